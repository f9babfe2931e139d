use super::Psn;

/// What arrived of the answers to READs: after the AETH of an acknowledge (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerReport {
    /// The PSN of the READ response that arrived last.
    pub newest: Psn,
    /// Microseconds since then; 65535 for that and more.
    pub delay_us: u16,
    /// READ responses that arrived with «congestion experienced», modulo 2^16.
    pub marked: u16,
    /// READ responses that arrived, modulo [`COUNTS`](Self::COUNTS).
    pub arrived: u32,
    /// Whether the newest arrived with «congestion experienced».
    pub is_newest_marked: bool,
    /// Which copy of that response the newest is, 0 to 31.
    pub copy: u8,
}

/// The flags: the lowest bit, and where the copy begins.
const NEWEST_MARKED: u8 = 1;
const COPY_SHIFT: u32 = 3;

impl AnswerReport {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 12;

    /// How many counts of arrived READ responses there are: three bytes of them.
    pub const COUNTS: u32 = 1 << 24;

    /// The last byte, which holds the kind.
    pub(super) const LAST_BYTE: u8 = 6 << 4;

    /// The trailer as bytes on the wire.
    pub fn to_bytes(&self) -> [u8; AnswerReport::BYTES] {
        let [p, s, n] = self.newest.to_be_bytes();
        let flags = u8::from(self.is_newest_marked) | (self.copy << COPY_SHIFT);
        let ([d, e], [m, k]) = (self.delay_us.to_be_bytes(), self.marked.to_be_bytes());
        let [_, a, r, v] = self.arrived.to_be_bytes();
        [p, s, n, flags, d, e, m, k, a, r, v, Self::LAST_BYTE]
    }

    /// Reads a report from all of `bytes`, whose last one is [`LAST_BYTE`](Self::LAST_BYTE). `None` when its length is
    /// wrong.
    pub(super) fn parse(bytes: &[u8]) -> Option<AnswerReport> {
        let &[p, s, n, flags, d, e, m, k, a, r, v, _] = bytes else { return None };
        Some(AnswerReport {
            newest: Psn::from_be_bytes([p, s, n]),
            delay_us: u16::from_be_bytes([d, e]),
            marked: u16::from_be_bytes([m, k]),
            arrived: u32::from_be_bytes([0, a, r, v]),
            is_newest_marked: flags & NEWEST_MARKED != 0,
            copy: flags >> COPY_SHIFT,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_wire() {
        let report = AnswerReport {
            newest: Psn::from_be_bytes([0xab, 0xcd, 0xef]),
            delay_us: 65535,
            marked: 0x1234,
            arrived: 0xff_fffe,
            is_newest_marked: true,
            copy: 19,
        };
        let bytes = report.to_bytes();
        assert_eq!(bytes, [0xab, 0xcd, 0xef, 0x99, 0xff, 0xff, 0x12, 0x34, 0xff, 0xff, 0xfe, 0x60]);
        assert_eq!(AnswerReport::parse(&bytes), Some(report));
        assert_eq!(AnswerReport::parse(&bytes[1..]), None);
    }
}

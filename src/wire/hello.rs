use super::Psn;

/// How two sides learn each other's nonces: after the AETH of an acknowledge (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's nonce, not 0. Each packet to the sender returns it from now on.
    pub nonce: u32,
    /// Upper bound on the PSNs that the sender has in flight, 1 to 2^24 − 1.
    pub window: u32,
    /// Whether requests to the sender may carry acknowledges.
    pub takes_carried: bool,
    /// Whether requests to the sender may have room for telemetry, which it then returns.
    pub takes_telemetry: bool,
    /// Whether the sender knows the receiver's nonce. Then all its packets have a tag, except requests that it sent
    /// before.
    pub tagged: Tagged,
}

/// Which of the sender's requests have a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagged {
    /// None: the sender does not know the receiver.
    None,
    /// The requests from this PSN on.
    From(Psn),
    /// All: the sender sent no request before it knew the receiver.
    All,
}

/// The kind, in the upper half of the last byte.
const HELLO: u8 = 5;

/// Bits of the flags: the sender knows the receiver; all of its requests have tags; requests to it may carry acknowledges, and have
/// room for telemetry.
const KNOWS: u8 = 1;
const ALL: u8 = 2;
const TAKES_CARRIED: u8 = 4;
const TAKES_TELEMETRY: u8 = 8;

impl Hello {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 12;

    /// The last byte, which holds the kind.
    pub(super) const LAST_BYTE: u8 = HELLO << 4;

    /// The trailer as bytes on the wire.
    pub fn to_bytes(&self) -> [u8; Hello::BYTES] {
        let [a, b, c, d] = self.nonce.to_be_bytes();
        let [_, e, f, g] = self.window.to_be_bytes();
        let (flags, from) = match self.tagged {
            Tagged::None => (0, Psn::default()),
            Tagged::From(psn) => (KNOWS, psn),
            Tagged::All => (KNOWS | ALL, Psn::default()),
        };
        let flags = flags | if self.takes_carried { TAKES_CARRIED } else { 0 };
        let flags = flags | if self.takes_telemetry { TAKES_TELEMETRY } else { 0 };
        let [h, i, j] = from.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, flags, Self::LAST_BYTE]
    }

    /// Reads a hello from all of `bytes`, whose last one is [`LAST_BYTE`](Self::LAST_BYTE). `None` when a field is out
    /// of range.
    pub(super) fn parse(bytes: &[u8]) -> Option<Hello> {
        let &[a, b, c, d, e, f, g, h, i, j, flags, _] = bytes else { return None };
        let (nonce, window) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, e, f, g]));
        let tagged = match (flags & KNOWS != 0, flags & ALL != 0) {
            (false, _) => Tagged::None,
            (true, false) => Tagged::From(Psn::from_be_bytes([h, i, j])),
            (true, true) => Tagged::All,
        };
        let (takes_carried, takes_telemetry) = (flags & TAKES_CARRIED != 0, flags & TAKES_TELEMETRY != 0);
        (nonce != 0 && window != 0).then_some(Hello { nonce, window, takes_carried, takes_telemetry, tagged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_read_back() {
        let (takes_carried, takes_telemetry, tagged) = (false, false, Tagged::From(Psn::new(0x0008_090a)));
        let hello = Hello { nonce: 0x0102_0304, window: 0x0005_0607, takes_carried, takes_telemetry, tagged };
        let bytes = hello.to_bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 0x50]);
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for tagged in [Tagged::None, Tagged::All] {
            let carried = Hello { tagged, takes_carried: true, ..hello };
            let telemetry = Hello { tagged, takes_telemetry: true, ..hello };
            for (other, flag) in [(carried, 4), (telemetry, 8)] {
                assert_eq!(other.to_bytes()[10] & 12, flag);
                assert_eq!(Hello::parse(&other.to_bytes()), Some(other));
            }
        }
        for wrong in [Hello { nonce: 0, ..hello }, Hello { window: 0, ..hello }] {
            assert_eq!(Hello::parse(&wrong.to_bytes()), None);
        }
        assert_eq!(Hello::parse(&bytes[1..]), None);
    }
}

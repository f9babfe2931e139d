use arrayvec::ArrayVec;

/// What switches wrote into a request about the links that it took, in the order of the links. Room for it follows the
/// request's own trailer, and the selective acknowledge that returns it (docs/EXTENSIONS.md).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// The exclusive-or of the switches' numbers: another path has another one, most probably.
    pub path: u16,
    /// The links, each as the switch before it saw it when the packet left.
    pub links: ArrayVec<LinkRecord, { Telemetry::MAX_LINKS }>,
}

/// What a switch tells of the link on which it sends a packet, at that moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRecord {
    /// The rate of the link, in bits of Ethernet frames a second: a multiple of [`RATE_UNIT`](Self::RATE_UNIT), at most
    /// 6,553.5 Gb/s.
    pub rate_bps: u64,
    /// Bytes that wait for the link behind the packet: a multiple of [`QUEUE_UNIT`](Self::QUEUE_UNIT), at most 16,776,960
    /// for that and more.
    pub queue_bytes: u32,
    /// The switch's own clock, in nanoseconds modulo 2^32.
    pub time_ns: u32,
    /// Bytes of frames that the link has sent, with the packet, modulo 2^32.
    pub sent_bytes: u32,
}

/// The kind, in the upper half of the last byte.
const TELEMETRY: u8 = 8;

impl LinkRecord {
    /// The unit of rates on the wire, in bits a second.
    pub const RATE_UNIT: u64 = 100_000_000;

    /// The unit of queues on the wire, in bytes.
    pub const QUEUE_UNIT: u32 = 256;

    /// Length on the wire, in bytes.
    const BYTES: usize = 12;

    fn to_bytes(self) -> [u8; LinkRecord::BYTES] {
        let saturated = |units: u64| u16::try_from(units).unwrap_or(u16::MAX).to_be_bytes();
        let [a, b] = saturated(self.rate_bps / Self::RATE_UNIT);
        let [c, d] = saturated((self.queue_bytes / Self::QUEUE_UNIT).into());
        let ([e, f, g, h], [i, j, k, l]) = (self.time_ns.to_be_bytes(), self.sent_bytes.to_be_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    fn parse(&[a, b, c, d, e, f, g, h, i, j, k, l]: &[u8; LinkRecord::BYTES]) -> LinkRecord {
        LinkRecord {
            rate_bps: u64::from(u16::from_be_bytes([a, b])) * Self::RATE_UNIT,
            queue_bytes: u32::from(u16::from_be_bytes([c, d])) * Self::QUEUE_UNIT,
            time_ns: u32::from_be_bytes([e, f, g, h]),
            sent_bytes: u32::from_be_bytes([i, j, k, l]),
        }
    }
}

impl Telemetry {
    /// Upper bound on the links: as many as HPCC's header has, and as a fat tree of three tiers.
    pub const MAX_LINKS: usize = 5;

    /// Length on the wire, in bytes, however many links there are.
    pub const BYTES: usize = LinkRecord::BYTES * Self::MAX_LINKS + 4;

    /// The last byte, which holds the kind.
    pub(super) const LAST_BYTE: u8 = TELEMETRY << 4;

    /// The telemetry as bytes on the wire; the rest of its room is zeros.
    pub fn to_bytes(&self) -> [u8; Telemetry::BYTES] {
        let mut out = [0; Self::BYTES];
        for (room, link) in out.as_chunks_mut().0.iter_mut().zip(&self.links) {
            *room = link.to_bytes();
        }
        let [a, b] = self.path.to_be_bytes();
        out[Self::BYTES - 4..].copy_from_slice(&[a, b, self.links.len() as u8, Self::LAST_BYTE]);
        out
    }

    /// Reads telemetry from all of `bytes`. `None` when it has another length or kind, or more links than there is room
    /// for.
    pub fn parse(bytes: &[u8]) -> Option<Telemetry> {
        let (records, &[a, b, count, kind]) = bytes.split_last_chunk::<4>()?;
        let is_one = bytes.len() == Self::BYTES && kind == Self::LAST_BYTE;
        let records = records.as_chunks().0.get(..usize::from(count)).filter(|_| is_one)?;
        Some(Telemetry { path: u16::from_be_bytes([a, b]), links: records.iter().map(LinkRecord::parse).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(number: u32) -> LinkRecord {
        LinkRecord {
            rate_bps: 25_000_000_000,
            queue_bytes: 0x0102 * 256,
            time_ns: 0x0304_0506 + number,
            sent_bytes: 0xffff_fff0 + number,
        }
    }

    #[test]
    fn telemetry_reads_back_with_as_many_links_as_there_are() {
        for count in 0..=5 {
            let telemetry = Telemetry { path: 0x0708, links: (0..count).map(link).collect() };
            assert_eq!(Telemetry::parse(&telemetry.to_bytes()), Some(telemetry));
        }
        let bytes = Telemetry { path: 0x0708, links: ArrayVec::from_iter([link(0)]) }.to_bytes();
        assert_eq!(bytes[..12], [0, 250, 1, 2, 3, 4, 5, 6, 0xff, 0xff, 0xff, 0xf0]);
        assert_eq!(bytes[12..60], [0; 48]);
        assert_eq!(bytes[60..], [7, 8, 1, 0x80]);
    }

    #[test]
    fn what_is_too_long_for_its_field_is_the_most() {
        let most = LinkRecord { rate_bps: u64::MAX, queue_bytes: u32::MAX, ..link(0) };
        let read = LinkRecord::parse(&most.to_bytes());
        assert_eq!((read.rate_bps, read.queue_bytes), (6_553_500_000_000, 65_535 * 256));
    }

    #[test]
    fn what_cannot_be_telemetry_is_none() {
        let bytes = Telemetry::default().to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(Telemetry::parse(&bytes[bytes.len() - len..]), None);
        }
        assert_eq!(Telemetry::parse(&[&[0], &bytes[..]].concat()), None);
        for (at, value) in [(62, 6), (62, 255), (63, 0x81), (63, 0x70)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Telemetry::parse(&wrong), None, "{value} at {at}");
        }
    }
}

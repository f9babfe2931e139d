use arrayvec::ArrayVec;
use zerocopy::{FromBytes, IntoBytes};

use crate::frame::FrameBytes;

use super::{Psn, Reth, Telemetry};

/// Where a request packet belongs, whatever was lost before it: between its pad and its ICRC (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTrailer {
    /// The message's RETH, in the MIDDLE and LAST packets of WRITEs; `None` in all others.
    pub reth: Option<Reth>,
    /// An acknowledge of the other direction, in the only packet of a message; `None` beside a RETH.
    pub acknowledge: Option<CarriedAcknowledge>,
    /// The packet's place in its message, 0 to 2^24 − 1.
    pub index: u32,
    /// Earlier transmissions of this packet; 255 for that and more.
    pub attempt: u8,
    /// Earlier messages of the connection that take a receive request, modulo 2^24.
    pub receive_number: u32,
    /// Whether room for [telemetry](super::Packet::telemetry) follows, which counts as a part of the trailer.
    pub has_telemetry: bool,
}

/// A selective acknowledge without blocks, for which no packet of its own is sent (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarriedAcknowledge {
    /// The PSN of the last request that has executed, as in the BTH of an acknowledge.
    pub psn: Psn,
    /// The PSN of the request packet that arrived last.
    pub trigger: Psn,
    /// The attempt of the trigger, as its trailer had it.
    pub attempt: u8,
    /// Microseconds since the trigger arrived; 65535 for that and more.
    pub delay_us: u16,
    /// Request packets that arrived with «congestion experienced», modulo 2^16.
    pub marked: u16,
    /// Whether the trigger arrived with «congestion experienced».
    pub is_trigger_marked: bool,
}

/// What arrived out of order: after the AETH of an acknowledge (docs/EXTENSIONS.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sack {
    /// The PSN of the request packet that arrived last.
    pub trigger: Psn,
    /// The attempt of the trigger, as its trailer had it.
    pub attempt: u8,
    /// Microseconds since the trigger arrived; 65535 for that and more.
    pub delay_us: u16,
    /// Request packets that arrived with «congestion experienced», modulo 2^16.
    pub marked: u16,
    /// Whether the trigger arrived with «congestion experienced».
    pub is_trigger_marked: bool,
    /// PSNs, each with a bit for it and the 63 PSNs after it, from the least significant on: set for those that have
    /// arrived.
    pub blocks: ArrayVec<(Psn, u64), { Sack::MAX_BLOCKS }>,
}

/// The kinds, in the upper half of the last byte.
const REQUEST: u8 = 1;
const SELECTIVE: u8 = 2;
const CARRYING: u8 = 7;

/// A bit of a selective acknowledge's flags.
const TRIGGER_MARKED: u8 = 1;

const RETH_BYTES: usize = size_of::<Reth>();

impl RequestTrailer {
    /// Length of the longest request trailer without room for telemetry, in bytes.
    pub const MAX_BYTES: usize = RETH_BYTES + Self::SHORT_BYTES;

    /// Length of a request trailer without a RETH, in bytes.
    const SHORT_BYTES: usize = 8;

    /// Length of a request trailer with an acknowledge, in bytes.
    const CARRYING_BYTES: usize = CarriedAcknowledge::BYTES + Self::SHORT_BYTES;

    /// Length on the wire, in bytes, with the room for telemetry if there is some.
    pub fn bytes(&self) -> usize {
        self.own_bytes() + if self.has_telemetry { Telemetry::BYTES } else { 0 }
    }

    fn own_bytes(&self) -> usize {
        match (&self.reth, &self.acknowledge) {
            (Some(_), _) => Self::MAX_BYTES,
            (None, Some(_)) => Self::CARRYING_BYTES,
            (None, None) => Self::SHORT_BYTES,
        }
    }

    /// The trailer as bytes on the wire, without the room for telemetry.
    pub fn to_bytes(&self) -> ArrayVec<u8, { RequestTrailer::MAX_BYTES }> {
        let mut out = ArrayVec::new();
        self.put(&mut out);
        out
    }

    /// Appends the trailer as bytes on the wire, without the room for telemetry.
    ///
    /// # Panics
    /// When `out` has less room than the longest trailer takes.
    #[inline]
    pub(crate) fn put<const N: usize>(&self, out: &mut ArrayVec<u8, N>) {
        let mut put = |bytes: &[u8]| out.try_extend_from_slice(bytes).expect("all of it fits");
        let mut kind = REQUEST;
        match (&self.reth, &self.acknowledge) {
            (Some(reth), _) => put(reth.as_bytes()),
            (None, Some(acknowledge)) => {
                put(&acknowledge.to_bytes());
                kind = CARRYING;
            }
            (None, None) => {}
        }
        let place = u64::from(self.index) << 40 | u64::from(self.attempt) << 32;
        let last = kind << 4 | (self.own_bytes() / 4) as u8;
        put(&(place | u64::from(self.receive_number & 0x00ff_ffff) << 8 | u64::from(last)).to_be_bytes());
    }

    /// Reads the trailer at the end of `body`: payload, pad and trailer, without the ICRC. Returns its length in bytes; `None`
    /// when there is no valid one. It must hold nothing before.
    #[inline]
    pub(super) fn read_end(&mut self, body: FrameBytes<'_>) -> Option<usize> {
        // Nearly all are so: what each ends with, and nothing before it.
        match body.last_chunk() {
            Some(end) if end[7] == REQUEST << 4 | (Self::SHORT_BYTES / 4) as u8 => {
                self.take_end(end);
                Some(Self::SHORT_BYTES)
            }
            _ => self.read_long(body).or_else(|| self.read_before_telemetry(body)),
        }
    }

    /// Reads the trailer at the end of `body`, with or without something before what each ends with.
    fn read_long(&mut self, body: FrameBytes<'_>) -> Option<usize> {
        let [last] = body.last_chunk()?;
        let bytes = 4 * usize::from(last & 0x0f);
        match last >> 4 {
            REQUEST if bytes == Self::SHORT_BYTES => {}
            REQUEST if bytes == Self::MAX_BYTES => {
                let all = body.last_chunk::<{ Self::MAX_BYTES }>()?;
                self.reth = Some(Reth::read_from_prefix(&all).ok()?.0);
            }
            CARRYING if bytes == Self::CARRYING_BYTES => {
                let all = body.last_chunk::<{ Self::CARRYING_BYTES }>()?;
                self.acknowledge = Some(CarriedAcknowledge::parse(all.first_chunk()?));
            }
            _ => return None,
        }
        self.take_end(body.last_chunk()?);
        Some(bytes)
    }

    /// Reads the trailer before the telemetry at the end of `body`.
    #[cold]
    fn read_before_telemetry(&mut self, body: FrameBytes<'_>) -> Option<usize> {
        Telemetry::parse(&body.last_chunk::<{ Telemetry::BYTES }>()?)?;
        let bytes = self.read_long(body.take(body.len() - Telemetry::BYTES))?;
        self.has_telemetry = true;
        Some(bytes + Telemetry::BYTES)
    }

    /// Takes what each request trailer ends with.
    #[inline]
    fn take_end(&mut self, end: [u8; Self::SHORT_BYTES]) {
        let end = u64::from_be_bytes(end);
        (self.index, self.attempt) = ((end >> 40) as u32, (end >> 32) as u8);
        self.receive_number = (end >> 8) as u32 & 0x00ff_ffff;
    }
}

impl CarriedAcknowledge {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 12;

    fn to_bytes(self) -> [u8; CarriedAcknowledge::BYTES] {
        let ([a, b, c], [d, e, f]) = (self.psn.to_be_bytes(), self.trigger.to_be_bytes());
        let ([g, h], [i, j]) = (self.delay_us.to_be_bytes(), self.marked.to_be_bytes());
        let flags = if self.is_trigger_marked { TRIGGER_MARKED } else { 0 };
        [a, b, c, self.attempt, d, e, f, flags, g, h, i, j]
    }

    fn parse(&[a, b, c, attempt, d, e, f, flags, g, h, i, j]: &[u8; CarriedAcknowledge::BYTES]) -> CarriedAcknowledge {
        CarriedAcknowledge {
            psn: Psn::from_be_bytes([a, b, c]),
            trigger: Psn::from_be_bytes([d, e, f]),
            attempt,
            delay_us: u16::from_be_bytes([g, h]),
            marked: u16::from_be_bytes([i, j]),
            is_trigger_marked: flags & TRIGGER_MARKED != 0,
        }
    }
}

impl Sack {
    /// Upper bound on the blocks: an acknowledge of half a kilobyte.
    pub const MAX_BLOCKS: usize = 40;

    /// Length of a block on the wire, in bytes.
    pub const BLOCK_BYTES: usize = 12;

    /// The last byte, which holds the kind.
    pub(super) const LAST_BYTE: u8 = SELECTIVE << 4;

    /// Length of the longest selective acknowledge, in bytes.
    pub const MAX_BYTES: usize = 8 + Self::BLOCK_BYTES * Self::MAX_BLOCKS + 4;

    /// The trailer as bytes on the wire, with room behind it for [`Telemetry`].
    pub fn to_bytes(&self) -> ArrayVec<u8, { Sack::MAX_BYTES + Telemetry::BYTES }> {
        let mut out = ArrayVec::new();
        out.extend(self.trigger.to_be_bytes());
        out.push(self.attempt);
        out.extend(self.delay_us.to_be_bytes());
        out.extend(self.marked.to_be_bytes());
        for (base, bits) in &self.blocks {
            out.extend(base.to_be_bytes());
            out.push(0);
            out.extend(bits.to_be_bytes());
        }
        out.extend((self.blocks.len() as u16).to_be_bytes());
        out.extend([if self.is_trigger_marked { TRIGGER_MARKED } else { 0 }, Self::LAST_BYTE]);
        out
    }

    /// Reads a selective acknowledge from all of `bytes`, whose last one is [`LAST_BYTE`](Self::LAST_BYTE). `None` when
    /// a field is out of range.
    pub(super) fn parse(bytes: &[u8]) -> Option<Sack> {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let (blocks, tail) = rest.split_last_chunk::<4>()?;
        let count = usize::from(u16::from_be_bytes([tail[0], tail[1]]));
        if blocks.len() != Self::BLOCK_BYTES * count || count > Self::MAX_BLOCKS {
            return None;
        }
        let blocks = blocks
            .as_chunks::<12>()
            .0
            .iter()
            .map(|&[a, b, c, _, d, e, f, g, h, i, j, k]| {
                (Psn::from_be_bytes([a, b, c]), u64::from_be_bytes([d, e, f, g, h, i, j, k]))
            })
            .collect();
        let &[a, b, c, attempt, d, e, f, g] = head;
        Some(Sack {
            trigger: Psn::from_be_bytes([a, b, c]),
            attempt,
            delay_us: u16::from_be_bytes([d, e]),
            marked: u16::from_be_bytes([f, g]),
            is_trigger_marked: tail[2] & TRIGGER_MARKED != 0,
            blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Key;

    /// The trailer at the end of `body`, if there is one.
    fn at_end(body: FrameBytes<'_>) -> Option<RequestTrailer> {
        let mut trailer = RequestTrailer::default();
        let bytes = trailer.read_end(body)?;
        assert_eq!(bytes, trailer.bytes());
        Some(trailer)
    }

    #[test]
    fn requests_say_where_they_belong() {
        let short = RequestTrailer { index: 0x010203, attempt: 4, receive_number: 0x050607, ..Default::default() };
        assert_eq!(short.to_bytes()[..], [1, 2, 3, 4, 5, 6, 7, 0x12]);
        let long = RequestTrailer { reth: Some(Reth::new(1, Key(2), 3)), ..short };
        assert_eq!(long.to_bytes()[..], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6, 7, 0x16]);
        let acknowledge = CarriedAcknowledge {
            psn: Psn::new(0x111213),
            trigger: Psn::new(0x151617),
            attempt: 0x14,
            delay_us: 0x191a,
            marked: 0x1b1c,
            is_trigger_marked: true,
        };
        let carrying = RequestTrailer { acknowledge: Some(acknowledge), ..short };
        let bytes = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 1, 0x19, 0x1a, 0x1b, 0x1c, 1, 2, 3, 4, 5, 6, 7, 0x75];
        assert_eq!(carrying.to_bytes()[..], bytes);
        for trailer in [short, long, carrying] {
            let body = [&[9; 5][..], &trailer.to_bytes()].concat();
            for cut in 0..=body.len() {
                let (head, tail) = body.split_at(cut);
                assert_eq!(at_end(FrameBytes { head, tail }), Some(trailer));
            }
        }
    }

    #[test]
    fn room_for_telemetry_follows_what_requests_say() {
        let short = RequestTrailer { index: 1, receive_number: 2, ..Default::default() };
        let long = RequestTrailer { reth: Some(Reth::new(1, Key(2), 3)), ..short };
        let room = Telemetry::default().to_bytes();
        for trailer in [short, long] {
            let body = [&trailer.to_bytes()[..], &room].concat();
            let with_room = RequestTrailer { has_telemetry: true, ..trailer };
            assert_eq!((with_room.to_bytes(), with_room.bytes()), (trailer.to_bytes(), trailer.bytes() + 64));
            for cut in 0..=body.len() {
                let (head, tail) = body.split_at(cut);
                assert_eq!(at_end(FrameBytes { head, tail }), Some(with_room));
            }
            let twice = [&body[..], &room].concat();
            assert_eq!(at_end(FrameBytes::from(&twice[..])), None);
        }
        assert_eq!(at_end(FrameBytes::from(&room[..])), None, "it is no trailer by itself");
    }

    #[test]
    fn acknowledges_say_what_arrived() {
        let blocks = ArrayVec::from_iter([(Psn::new(0xfffffe), 0x8000_0000_0000_0001), (Psn::new(64), 2)]);
        let sack = Sack {
            trigger: Psn::new(0x010203),
            attempt: 4,
            delay_us: 0x0506,
            marked: 0x0708,
            is_trigger_marked: true,
            blocks,
        };
        let bytes = sack.to_bytes();
        assert_eq!(bytes[..20], [1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xfe, 0, 0x80, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[32..], [0, 2, 1, 0x20]);
        assert_eq!(Sack::parse(&bytes), Some(sack));
    }

    #[test]
    fn what_cannot_be_a_trailer_is_none() {
        let request = RequestTrailer::default().to_bytes();
        let blocks = ArrayVec::from_iter([(Psn::new(1), 1)]);
        let sack = Sack { trigger: Psn::new(0), attempt: 0, delay_us: 0, marked: 0, is_trigger_marked: false, blocks }
            .to_bytes();
        for len in 0..request.len() {
            assert_eq!(at_end(FrameBytes::from(&request[request.len() - len..])), None);
        }
        for len in 0..sack.len() {
            assert_eq!(Sack::parse(&sack[sack.len() - len..]), None);
        }
        assert_eq!(at_end(FrameBytes::from(&sack[..])), None);
        for last in 0..=255 {
            let body = [[0; 39].as_slice(), &[last]].concat();
            let is_one = at_end(FrameBytes::from(&body[..])).is_some();
            assert_eq!(is_one, [0x12, 0x16, 0x75].contains(&last));
        }
    }
}

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use crate::frame::FrameBytes;

use super::{AnswerReport, Hello, Sack, Telemetry};

/// A probe of a path, or its answer: after the AETH of an acknowledge (docs/EXTENSIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathProbe {
    /// The path's number, at the side that probes.
    pub path: u8,
    /// Whether it answers a probe with the same token.
    pub is_answer: bool,
    /// In an answer: microseconds from the probe's arrival to the answer; 65535 for that and more.
    pub delay_us: u16,
    /// The token that joins the answer to its probe.
    pub token: u32,
}

/// The further addresses of one side: after the AETH of an acknowledge (docs/EXTENSIONS.md).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressList {
    /// The first address of each further interface.
    pub addresses: ArrayVec<IpAddr, { AddressList::MAX }>,
    /// Whether the sender knows the receiver's list.
    pub is_known: bool,
}

/// The trailers that can follow the AETH of an acknowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "nobody keeps any, and receiving allocates nothing")]
pub enum AcknowledgeTrailer {
    /// A selective acknowledge: what arrived out of order.
    Sack(Sack),
    /// The same, and what switches wrote into the request packet that arrived last.
    Measured(Sack, Telemetry),
    /// A probe of a path, or its answer.
    Probe(PathProbe),
    /// The sender's further addresses.
    Addresses(AddressList),
    /// A hello: the sender's nonce.
    Hello(Hello),
    /// What arrived of the answers to READs.
    Answers(AnswerReport),
}

/// The kinds, in the upper half of the last byte.
const PROBE: u8 = 3;
const ADDRESSES: u8 = 4;

/// Bits of a probe's flags.
const IS_ANSWER: u8 = 1;

/// Bits of an address list's flags.
const IS_KNOWN: u8 = 1;

const ADDRESS_BYTES: usize = 16;

impl PathProbe {
    /// Length on the wire, in bytes.
    pub const BYTES: usize = 12;

    /// The trailer as bytes on the wire.
    pub fn to_bytes(&self) -> [u8; PathProbe::BYTES] {
        let [a, b] = self.delay_us.to_be_bytes();
        let [c, d, e, f] = self.token.to_be_bytes();
        [self.path, if self.is_answer { IS_ANSWER } else { 0 }, a, b, c, d, e, f, 0, 0, 0, PROBE << 4]
    }

    fn parse(bytes: &[u8]) -> Option<PathProbe> {
        let &[path, flags, a, b, c, d, e, f, _, _, _, _] = bytes else { return None };
        let (delay_us, token) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]));
        Some(PathProbe { path, is_answer: flags & IS_ANSWER != 0, delay_us, token })
    }
}

impl AddressList {
    /// Upper bound on the addresses: as many rails as large networks have planes (eight), with the queue pair's own.
    pub const MAX: usize = 7;

    /// Length of the longest address list, in bytes.
    pub const MAX_BYTES: usize = ADDRESS_BYTES * Self::MAX + 4;

    /// The trailer as bytes on the wire: IPv4 addresses as IPv6 maps them (RFC 4291, 2.5.5.2).
    pub fn to_bytes(&self) -> ArrayVec<u8, { AddressList::MAX_BYTES }> {
        let mut out = ArrayVec::new();
        for address in &self.addresses {
            let mapped = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => *address,
            };
            out.extend(mapped.octets());
        }
        out.extend([if self.is_known { IS_KNOWN } else { 0 }, 0, self.addresses.len() as u8, ADDRESSES << 4]);
        out
    }

    fn parse(bytes: &[u8]) -> Option<AddressList> {
        let (list, &[flags, _, count, _]) = bytes.split_last_chunk::<4>()?;
        let (addresses, rest) = list.as_chunks::<ADDRESS_BYTES>();
        if !rest.is_empty() || addresses.len() != usize::from(count) || addresses.len() > Self::MAX {
            return None;
        }
        let unmapped = |octets: &[u8; ADDRESS_BYTES]| {
            let address = Ipv6Addr::from(*octets);
            address.to_ipv4_mapped().map_or(IpAddr::V6(address), |address: Ipv4Addr| IpAddr::V4(address))
        };
        Some(AddressList { addresses: addresses.iter().map(unmapped).collect(), is_known: flags & IS_KNOWN != 0 })
    }
}

impl AcknowledgeTrailer {
    /// Reads the trailer that is all of `body`: what follows an AETH, without the ICRC. `None` when it is not a valid
    /// trailer.
    pub(super) fn of(body: FrameBytes<'_>) -> Option<AcknowledgeTrailer> {
        if body.tail.is_empty() { AcknowledgeTrailer::parse(body.head) } else { AcknowledgeTrailer::of_parts(body) }
    }

    /// The same of a body in two parts.
    #[cold]
    fn of_parts(body: FrameBytes<'_>) -> Option<AcknowledgeTrailer> {
        let mut buffer = [0; Sack::MAX_BYTES + Telemetry::BYTES];
        let bytes = buffer.get_mut(..body.len())?;
        body.copy_to_slice(bytes);
        AcknowledgeTrailer::parse(bytes)
    }

    fn parse(bytes: &[u8]) -> Option<AcknowledgeTrailer> {
        match *bytes.last()? {
            Sack::LAST_BYTE => Sack::parse(bytes).map(AcknowledgeTrailer::Sack),
            AnswerReport::LAST_BYTE => AnswerReport::parse(bytes).map(AcknowledgeTrailer::Answers),
            Telemetry::LAST_BYTE => AcknowledgeTrailer::measured(bytes),
            Hello::LAST_BYTE => Hello::parse(bytes).map(AcknowledgeTrailer::Hello),
            last if last == PROBE << 4 => PathProbe::parse(bytes).map(AcknowledgeTrailer::Probe),
            last if last == ADDRESSES << 4 => AddressList::parse(bytes).map(AcknowledgeTrailer::Addresses),
            _ => None,
        }
    }

    /// Reads a selective acknowledge with telemetry from all of `bytes`.
    #[cold]
    fn measured(bytes: &[u8]) -> Option<AcknowledgeTrailer> {
        let (sack, telemetry) = bytes.split_last_chunk::<{ Telemetry::BYTES }>()?;
        let sack = Sack::parse(sack).filter(|_| sack.last() == Some(&Sack::LAST_BYTE))?;
        Some(AcknowledgeTrailer::Measured(sack, Telemetry::parse(telemetry)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Psn;

    fn of(bytes: &[u8]) -> Option<AcknowledgeTrailer> {
        AcknowledgeTrailer::of(FrameBytes::from(bytes))
    }

    #[test]
    fn probes_read_back() {
        let probe = PathProbe { path: 7, is_answer: true, delay_us: 0x0102, token: 0x0304_0506 };
        let bytes = probe.to_bytes();
        assert_eq!(bytes, [7, 1, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0x30]);
        assert_eq!(of(&bytes), Some(AcknowledgeTrailer::Probe(probe)));
        let other = PathProbe { is_answer: false, ..probe };
        assert_eq!(of(&other.to_bytes()), Some(AcknowledgeTrailer::Probe(other)));
    }

    #[test]
    fn addresses_read_back() {
        let texts = ["10.0.0.1", "fd00::1", "10.0.0.2", "fe80::1", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        for count in 0..=texts.len() {
            let addresses = texts[..count].iter().map(|text| text.parse().unwrap()).collect();
            let list = AddressList { addresses, is_known: count % 2 == 0 };
            assert_eq!(of(&list.to_bytes()), Some(AcknowledgeTrailer::Addresses(list.clone())));
        }
        let addresses = ArrayVec::from_iter(["10.0.0.1".parse().unwrap()]);
        let bytes = AddressList { addresses, is_known: true }.to_bytes();
        assert_eq!(bytes[..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1, 1, 0, 1, 0x40]);
    }

    #[test]
    fn what_cannot_be_a_trailer_is_none() {
        let probe = PathProbe { path: 0, is_answer: false, delay_us: 0, token: 0 }.to_bytes();
        let list = AddressList { addresses: ArrayVec::from_iter(["::1".parse().unwrap()]), is_known: false }.to_bytes();
        for whole in [&probe[..], &list] {
            for from in 1..=whole.len() {
                // What is left of the list at its end may be one without addresses, but for its count.
                assert_eq!(of(&whole[from..]), None, "{from} of {whole:?}");
            }
            assert_eq!(of(&[&[0], whole].concat()), None);
        }
        // More addresses than there may be.
        let mut many = vec![0; 16 * 8];
        many.extend([0, 0, 8, 0x40]);
        assert_eq!(of(&many), None);
        assert_eq!(of(&[0; 600]), None);
        for last in 0..=255 {
            let body = [[0; 11].as_slice(), &[last]].concat();
            assert_eq!(of(&body).is_some(), [0x20, 0x30, 0x60].contains(&last), "{last:#x}");
        }
        let sack = Sack {
            trigger: Psn::new(1),
            attempt: 0,
            delay_us: 0,
            marked: 0,
            is_trigger_marked: false,
            blocks: ArrayVec::new(),
        };
        assert_eq!(of(&sack.to_bytes()), Some(AcknowledgeTrailer::Sack(sack.clone())));
        let telemetry = Telemetry { path: 7, ..Telemetry::default() };
        let measured = [&sack.to_bytes()[..], &telemetry.to_bytes()].concat();
        assert_eq!(of(&measured), Some(AcknowledgeTrailer::Measured(sack, telemetry)));
        for from in 1..measured.len() {
            assert_eq!(of(&measured[from..]), None, "{from}");
        }
        let probe = [&probe[..], &Telemetry::default().to_bytes()].concat();
        assert_eq!(of(&probe), None, "it follows selective acknowledges alone");
    }
}

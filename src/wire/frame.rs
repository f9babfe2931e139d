use std::fmt;
use std::net::IpAddr;

use etherparse::{
    EtherType, Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice, SingleVlanHeaderSlice, UdpHeaderSlice,
};

use crate::frame::FrameBytes;

use super::flow::{Addresses, Flow, UDP_BYTES, ipv4_checksum};
use super::{ICRC_BYTES, ROCE_PORT, icrc};

/// The outer headers of a RoCE v2 frame, and where its InfiniBand part lies.
#[derive(Clone, Debug)]
pub struct RoceFrame<'a> {
    /// The Ethernet header, 14 bytes.
    pub ethernet: Ethernet2HeaderSlice<'a>,
    /// The VLAN tag, 802.1Q or 802.1ad; `None` without a tag.
    pub vlan: Option<SingleVlanHeaderSlice<'a>>,
    /// The IP header, of either version.
    pub ip: IpHeader<'a>,
    /// The UDP header, 8 bytes.
    pub udp: UdpHeaderSlice<'a>,
    /// The IP packet from its header to the end of the ICRC. Bytes after it (Ethernet's own padding) are cut off.
    pub packet: FrameBytes<'a>,
    /// The UDP payload, from BTH to ICRC.
    pub ib: FrameBytes<'a>,
}

/// An IP header of either version, without options or extension headers.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum IpHeader<'a> {
    V4(Ipv4HeaderSlice<'a>),
    V6(Ipv6HeaderSlice<'a>),
}

/// Why a frame is not a RoCE v2 frame, or is a malformed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is too short for a header.
    #[error("{have} bytes are too few for the {layer} header")]
    TooShort {
        /// The header that does not fit.
        layer: Layer,
        /// Bytes that are left for the header.
        have: usize,
    },
    /// A header's length field is more than the bytes that are there, or less than its own header.
    #[error("the {layer} header claims {says} bytes, but {have} are present")]
    Length {
        /// The header with the length field.
        layer: Layer,
        /// The length in the field, in bytes.
        says: usize,
        /// The bytes that are there.
        have: usize,
    },
    /// The version nibble contradicts the Ethernet type, or the IPv4 header length is below 20.
    #[error("the {0} header is inconsistent")]
    Inconsistent(Layer),
    /// The frame is neither IPv4 nor IPv6, so it is not RoCE v2; holds the Ethernet type.
    #[error("Ethernet type {0:#06x} is neither IPv4 nor IPv6")]
    NotIp(u16),
    /// The packet is IP but not UDP to port 4791, so it is not RoCE v2.
    #[error("not UDP to port 4791")]
    NotRoce,
    /// IPv4 options are not allowed in RoCE v2 (IBTA Annex A17.4).
    #[error("an IPv4 header with options")]
    Ipv4Options,
    /// The packet is a fragment: its ICRC cannot be checked, and RoCE v2 does not allow it.
    #[error("an IPv4 fragment")]
    Fragment,
}

/// A protocol layer, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Layer {
    Ethernet,
    Vlan,
    Ipv4,
    Ipv6,
    Udp,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Ethernet => "Ethernet",
            Layer::Vlan => "VLAN",
            Layer::Ipv4 => "IPv4",
            Layer::Ipv6 => "IPv6",
            Layer::Udp => "UDP",
        })
    }
}

impl FrameError {
    /// Whether the frame is other traffic, rather than malformed RoCE v2.
    pub fn is_foreign(&self) -> bool {
        matches!(self, FrameError::NotIp(_) | FrameError::NotRoce)
    }
}

impl<'a> RoceFrame<'a> {
    /// Reads Ethernet, at most one VLAN tag, IPv4 or IPv6, and UDP.
    ///
    /// # Errors
    /// [`FrameError`] when the frame is not UDP to port 4791, or when a length, version, option or fragment field is
    /// wrong. [`FrameError::is_foreign`] separates other traffic from malformed RoCE v2.
    #[inline]
    pub fn parse(frame: FrameBytes<'a>) -> Result<RoceFrame<'a>, FrameError> {
        let head = frame.head;
        let short = |layer, have| FrameError::TooShort { layer, have };
        let ethernet = Ethernet2HeaderSlice::from_slice(head).map_err(|_| short(Layer::Ethernet, head.len()))?;
        let mut at = 14;
        let mut ether_type = ethernet.ether_type();
        let mut vlan = None;
        if matches!(ether_type, EtherType::VLAN_TAGGED_FRAME | EtherType::PROVIDER_BRIDGING) {
            let rest = &head[at..];
            let tag = SingleVlanHeaderSlice::from_slice(rest).map_err(|_| short(Layer::Vlan, rest.len()))?;
            ether_type = tag.ether_type();
            vlan = Some(tag);
            at += 4;
        }

        let rest = &head[at..];
        let have = frame.len() - at;
        let (ip, ip_header_bytes, layer, says) = match ether_type {
            EtherType::IPV4 => {
                let ip = Ipv4HeaderSlice::from_slice(rest).map_err(|_| match rest {
                    [first, ..] if rest.len() >= 20 && first >> 4 != 4 => FrameError::Inconsistent(Layer::Ipv4),
                    [first, ..] if rest.len() >= 20 && first & 15 < 5 => FrameError::Inconsistent(Layer::Ipv4),
                    _ => short(Layer::Ipv4, rest.len()),
                })?;
                if ip.protocol() != etherparse::ip_number::UDP {
                    return Err(FrameError::NotRoce);
                }
                if ip.is_fragmenting_payload() {
                    return Err(FrameError::Fragment);
                }
                let says = usize::from(ip.total_len());
                (IpHeader::V4(ip), ip.slice().len(), Layer::Ipv4, says)
            }
            EtherType::IPV6 => {
                let ip = Ipv6HeaderSlice::from_slice(rest).map_err(|_| match rest {
                    [first, ..] if rest.len() >= 40 && first >> 4 != 6 => FrameError::Inconsistent(Layer::Ipv6),
                    _ => short(Layer::Ipv6, rest.len()),
                })?;
                if ip.next_header() != etherparse::ip_number::UDP {
                    return Err(FrameError::NotRoce);
                }
                let says = 40 + usize::from(ip.payload_length());
                (IpHeader::V6(ip), 40, Layer::Ipv6, says)
            }
            other => return Err(FrameError::NotIp(other.0)),
        };
        let udp_rest = &rest[ip_header_bytes..];
        let udp = UdpHeaderSlice::from_slice(udp_rest).map_err(|_| short(Layer::Udp, udp_rest.len()))?;
        if udp.destination_port() != ROCE_PORT {
            return Err(FrameError::NotRoce);
        }
        // Only now: other traffic's lengths and options are not ours to judge.
        if ip_header_bytes > 20 && layer == Layer::Ipv4 {
            return Err(FrameError::Ipv4Options);
        }
        if says > have || says < ip_header_bytes + UDP_BYTES {
            return Err(FrameError::Length { layer, says, have });
        }
        let udp_says = usize::from(udp.length());
        let udp_have = says - ip_header_bytes;
        if udp_says > udp_have || udp_says < UDP_BYTES {
            return Err(FrameError::Length { layer: Layer::Udp, says: udp_says, have: udp_have });
        }
        let packet = frame.skip(at).take(ip_header_bytes + udp_says);
        Ok(RoceFrame { ethernet, vlan, ip, udp, packet, ib: packet.skip(ip_header_bytes + UDP_BYTES) })
    }

    /// Whether the ICRC at the end of the packet is right.
    pub fn icrc_ok(&self) -> bool {
        let Some(covered) = self.packet.len().checked_sub(ICRC_BYTES) else { return false };
        icrc::compute(self.packet.take(covered)).is_some_and(|icrc| Some(icrc) == icrc::stored(self.packet))
    }

    /// The fields of the outer headers, to write the frame again or to answer it.
    pub fn flow(&self) -> Flow {
        Flow {
            addresses: self.ip.addresses(),
            source_port: self.udp.source_port(),
            traffic_class: self.ip.traffic_class(),
            hop_limit: self.ip.hop_limit(),
            flow_label: match &self.ip {
                IpHeader::V4(_) => 0,
                IpHeader::V6(ip) => ip.flow_label().value(),
            },
        }
    }
}

impl IpHeader<'_> {
    /// The source and destination addresses.
    pub fn addresses(&self) -> Addresses {
        match self {
            IpHeader::V4(ip) => Addresses::V4 { source: ip.source_addr(), destination: ip.destination_addr() },
            IpHeader::V6(ip) => Addresses::V6 { source: ip.source_addr(), destination: ip.destination_addr() },
        }
    }

    /// Whether it goes from the destination of `sent` to the source of it.
    pub(crate) fn answers(&self, sent: &Addresses) -> bool {
        match (self, sent) {
            (IpHeader::V4(ip), Addresses::V4 { source, destination }) => {
                ip.source() == destination.octets() && ip.destination() == source.octets()
            }
            (IpHeader::V6(ip), Addresses::V6 { source, destination }) => {
                ip.source() == destination.octets() && ip.destination() == source.octets()
            }
            _ => false,
        }
    }

    /// The source address.
    pub fn source(&self) -> IpAddr {
        self.addresses().source()
    }

    /// The destination address.
    pub fn destination(&self) -> IpAddr {
        self.addresses().destination()
    }

    /// The IPv4 type of service or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub fn traffic_class(&self) -> u8 {
        match self {
            IpHeader::V4(ip) => ip.slice()[1],
            IpHeader::V6(ip) => ip.traffic_class(),
        }
    }

    /// Whether it arrived with «congestion experienced» (RFC 3168, 5).
    pub fn is_marked(&self) -> bool {
        self.traffic_class() & 3 == 3
    }

    /// The IPv4 time to live or IPv6 hop limit.
    pub fn hop_limit(&self) -> u8 {
        match self {
            IpHeader::V4(ip) => ip.ttl(),
            IpHeader::V6(ip) => ip.hop_limit(),
        }
    }

    /// The IPv4 identification; `None` for IPv6.
    pub fn identification(&self) -> Option<u16> {
        match self {
            IpHeader::V4(ip) => Some(ip.identification()),
            IpHeader::V6(_) => None,
        }
    }

    /// Whether the IPv4 header checksum is right; always true for IPv6, which has none. The ICRC does not cover it.
    pub fn checksum_ok(&self) -> bool {
        match self {
            IpHeader::V4(ip) => ip.slice().first_chunk().is_some_and(|header| ipv4_checksum(header) == 0),
            IpHeader::V6(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use std::convert::Infallible;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn flow(v6: bool) -> Flow {
        let addresses = if v6 {
            Addresses::V6 { source: Ipv6Addr::LOCALHOST, destination: "fd77::2".parse().unwrap() }
        } else {
            Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) }
        };
        Flow {
            addresses,
            source_port: 0xc123,
            traffic_class: 0x6a,
            hop_limit: 64,
            flow_label: if v6 { 0x12345 } else { 0 },
        }
    }

    /// A frame with `payload` bytes of payload, VLAN-tagged or not.
    fn frame(v6: bool, vlan: bool, payload: usize) -> Vec<u8> {
        let mut frame = vec![0u8; 12];
        if vlan {
            frame.extend([0x81, 0x00, 0x00, 0x05]);
        }
        frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let headers = Headers {
            bth: Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(0x11), Psn::new(0xffffff)).with_ack_request(true),
            extension: Extension::Reth(Reth::new(0x1000, Key(7), payload as u32)),
        };
        let mut packet = vec![0; 2000];
        let fill = |out: &mut [u8]| {
            out.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
            Ok::<_, Infallible>(())
        };
        let len = headers.write(&mut packet, &flow(v6), 0x4321, payload, fill).unwrap();
        frame.extend(&packet[..len]);
        frame
    }

    #[test]
    fn what_is_written_reads_back() {
        for (v6, vlan, payload) in [(false, false, 0), (false, true, 1), (true, false, 2), (true, true, 1023)] {
            let bytes = frame(v6, vlan, payload);
            let roce = RoceFrame::parse(FrameBytes::from(&bytes[..])).unwrap();
            assert!(roce.icrc_ok() && roce.ip.checksum_ok());
            assert_eq!(roce.flow(), flow(v6));
            assert_eq!(roce.vlan.is_some(), vlan);
            assert_eq!(roce.ip.identification(), (!v6).then_some(0x4321));
            let packet = Packet::parse(roce.ib).unwrap();
            assert_eq!(packet.payload().to_vec(), (0..payload).map(|i| i as u8).collect::<Vec<_>>());
            assert_eq!(packet.reth().unwrap().length() as usize, payload);
            assert_eq!((packet.bth().psn(), packet.bth().pad()), (Psn::new(0xffffff), payload.wrapping_neg() & 3));
        }
    }

    #[test]
    fn trailing_ethernet_padding_is_cut_off() {
        let mut bytes = frame(false, false, 0);
        bytes.extend([0; 10]);
        assert!(RoceFrame::parse(FrameBytes::from(&bytes[..])).unwrap().icrc_ok());
    }

    #[test]
    fn every_truncation_is_an_error_and_never_a_panic() {
        for (v6, vlan) in [(false, false), (false, true), (true, false), (true, true)] {
            let bytes = frame(v6, vlan, 40);
            for len in 0..bytes.len() {
                assert!(RoceFrame::parse(FrameBytes::from(&bytes[..len])).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_errors() {
        let good = frame(false, false, 40);
        let (ip_length, udp_length) = (16, 38);
        for (at, delta) in [(ip_length, 1), (ip_length, -60), (udp_length, 1), (udp_length, -90)] {
            let mut bytes = good.clone();
            let value = u16::from_be_bytes([bytes[at], bytes[at + 1]]).wrapping_add_signed(delta);
            bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
            let error = RoceFrame::parse(FrameBytes::from(&bytes[..])).unwrap_err();
            assert!(matches!(error, FrameError::Length { .. }), "{error}");
        }
    }

    #[test]
    fn options_fragments_and_other_traffic_are_told_apart() {
        let parse = |at: usize, value: u8| {
            let mut bytes = frame(false, false, 40);
            bytes[at] = value;
            RoceFrame::parse(FrameBytes::from(&bytes[..])).unwrap_err()
        };
        assert_eq!(parse(14 + 6, 0x20), FrameError::Fragment);
        assert_eq!(parse(14, 0x55), FrameError::Inconsistent(Layer::Ipv4));
        assert_eq!(parse(14, 0x44), FrameError::Inconsistent(Layer::Ipv4));
        assert_eq!(parse(12, 0x09), FrameError::NotIp(0x0900));
        assert_eq!(parse(14 + 9, 6), FrameError::NotRoce);
        assert_eq!(parse(14 + 22, 0), FrameError::NotRoce);
        assert!(FrameError::NotRoce.is_foreign() && !FrameError::Fragment.is_foreign());
    }

    #[test]
    fn a_flipped_bit_anywhere_under_the_icrc_is_found_and_elsewhere_ignored() {
        for v6 in [false, true] {
            let good = frame(v6, false, 21);
            let ip = 14;
            let udp = ip + if v6 { 40 } else { 20 };
            // Bits that routers may change, or that are lengths, versions and protocols, which fail earlier.
            let uncovered = |byte: usize, bit: u8| match byte - ip {
                0 => v6 && bit < 4,
                1 => true,
                2 | 3 => v6,
                7 => v6,
                8 | 10 | 11 => !v6,
                _ => byte == udp + 6 || byte == udp + 7 || byte == udp + 8 + 4,
            };
            for byte in ip..good.len() {
                // Miri takes a minute for all of them.
                for bit in (0..8).step_by(if cfg!(miri) { 7 } else { 1 }) {
                    let mut bytes = good.clone();
                    bytes[byte] ^= 1 << bit;
                    let ok = RoceFrame::parse(FrameBytes::from(&bytes[..])).is_ok_and(|f| f.icrc_ok());
                    assert_eq!(ok, uncovered(byte, bit), "byte {byte} bit {bit} v6 {v6}");
                }
            }
        }
    }
}

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ROCE_PORT;

/// The outer headers of one direction of a connection: addresses, UDP source port and routing fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Both addresses, of one family.
    pub addresses: Addresses,
    /// The UDP source port, the entropy that routers spread flows by.
    pub source_port: u16,
    /// IPv4 type of service or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; unused with IPv4.
    pub flow_label: u32,
}

/// Source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// A pair of IPv4 addresses.
    V4 {
        /// The IPv4 source address.
        source: Ipv4Addr,
        /// The IPv4 destination address.
        destination: Ipv4Addr,
    },
    /// A pair of IPv6 addresses.
    V6 {
        /// The IPv6 source address.
        source: Ipv6Addr,
        /// The IPv6 destination address.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// The pair of these addresses; `None` when the families differ.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Addresses> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Addresses::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Addresses::V6 { source, destination }),
            _ => None,
        }
    }

    /// The pair in the header of an IP packet; `None` when `packet` does not begin with a whole IP header.
    pub(crate) fn of_packet(packet: &[u8]) -> Option<Addresses> {
        match packet.first()? >> 4 {
            4 => {
                let (source, rest) = packet.get(12..)?.split_first_chunk::<4>()?;
                let destination = *rest.first_chunk::<4>()?;
                Some(Addresses::V4 { source: (*source).into(), destination: destination.into() })
            }
            6 => {
                let (source, rest) = packet.get(8..)?.split_first_chunk::<16>()?;
                let destination = *rest.first_chunk::<16>()?;
                Some(Addresses::V6 { source: (*source).into(), destination: destination.into() })
            }
            _ => None,
        }
    }

    /// The source address.
    pub fn source(&self) -> IpAddr {
        match *self {
            Addresses::V4 { source, .. } => source.into(),
            Addresses::V6 { source, .. } => source.into(),
        }
    }

    /// The destination address.
    pub fn destination(&self) -> IpAddr {
        match *self {
            Addresses::V4 { destination, .. } => destination.into(),
            Addresses::V6 { destination, .. } => destination.into(),
        }
    }

    /// The pair of the other direction: source and destination exchanged.
    pub fn reversed(self) -> Addresses {
        match self {
            Addresses::V4 { source, destination } => Addresses::V4 { source: destination, destination: source },
            Addresses::V6 { source, destination } => Addresses::V6 { source: destination, destination: source },
        }
    }
}

pub(super) const UDP_BYTES: usize = 8;

impl Flow {
    /// The same headers with that DSCP, 0 to 63.
    pub fn with_dscp(self, dscp: u8) -> Flow {
        Flow { traffic_class: self.traffic_class & 3 | dscp << 2, ..self }
    }

    /// Sets ECT(0): both ends react to congestion marks (RFC 3168, 5).
    pub fn set_ecn_capable(&mut self) {
        self.traffic_class = self.traffic_class & !3 | 2;
    }

    /// Length of the IP and UDP headers, in bytes.
    pub const fn header_bytes(&self) -> usize {
        UDP_BYTES
            + match self.addresses {
                Addresses::V4 { .. } => 20,
                Addresses::V6 { .. } => 40,
            }
    }

    /// Writes IP and UDP headers for a datagram of `ib_bytes` (BTH to ICRC) to the start of `out`.
    ///
    /// The UDP checksum is zero, as RoCE v2 senders leave it: the ICRC covers more. `identification` goes into the IPv4
    /// header only.
    ///
    /// # Panics
    /// When `out` is shorter than [`header_bytes`](Flow::header_bytes).
    pub(crate) fn write(&self, out: &mut [u8], identification: u16, ib_bytes: usize) {
        let udp_length = (UDP_BYTES + ib_bytes) as u16;
        let udp = match self.addresses {
            Addresses::V4 { source, destination } => {
                let (ip, udp) = out.split_first_chunk_mut::<IPV4_BYTES>().expect("the caller has room for the headers");
                ip[0] = 0x45;
                ip[1] = self.traffic_class;
                ip[2..4].copy_from_slice(&(20 + udp_length).to_be_bytes());
                ip[4..6].copy_from_slice(&identification.to_be_bytes());
                ip[6..8].copy_from_slice(&[0x40, 0]); // don't fragment
                ip[8] = self.hop_limit;
                ip[9] = 17; // UDP
                ip[10..12].fill(0);
                ip[12..16].copy_from_slice(&source.octets());
                ip[16..20].copy_from_slice(&destination.octets());
                let checksum = ipv4_checksum(ip);
                ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
                udp
            }
            Addresses::V6 { source, destination } => {
                let (ip, udp) = out.split_at_mut(40);
                let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
                ip[..4].copy_from_slice(&first.to_be_bytes());
                ip[4..6].copy_from_slice(&udp_length.to_be_bytes());
                ip[6] = 17; // UDP
                ip[7] = self.hop_limit;
                ip[8..24].copy_from_slice(&source.octets());
                ip[24..40].copy_from_slice(&destination.octets());
                udp
            }
        };
        udp[..2].copy_from_slice(&self.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        udp[6..8].fill(0);
    }
}

/// Length of an IPv4 header without options, in bytes.
const IPV4_BYTES: usize = 20;

/// The internet checksum of an IPv4 header without options (RFC 1071), with its bytes in the order of memory. It is zero over a
/// header with a right checksum. Over a header with a zero in that field, it is the value to put there.
pub(super) fn ipv4_checksum(header: &[u8; IPV4_BYTES]) -> u16 {
    let sum: u64 = header.as_chunks().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    // Of five words, the third fold leaves no carry.
    let fold = |sum: u64| (sum >> 16) + (sum & 0xffff);
    !fold(fold(fold(sum))) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_says_its_addresses_and_what_is_too_short_says_none() {
        for [source, destination] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let addresses = Addresses::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap();
            let flow =
                Flow { addresses, source_port: 0xc000, traffic_class: 0xff, hop_limit: 64, flow_label: 0xf_ffff };
            let mut packet = vec![0; flow.header_bytes()];
            flow.write(&mut packet, 7, 0);
            let needed = packet.len() - UDP_BYTES;
            for len in 0..=packet.len() {
                assert_eq!(Addresses::of_packet(&packet[..len]), (len >= needed).then_some(addresses), "{len} bytes");
            }
            packet[0] = 0x50;
            assert_eq!(Addresses::of_packet(&packet), None);
        }
    }
}

//! What must be known of a frame to choose its path and to mark it.

use std::net::{IpAddr, SocketAddr};

const ETHERNET_BYTES: usize = 14;
const VLAN_BYTES: usize = 4;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// ECN of a frame whose ends know about it is 1 or 2, and this one after it met congestion (RFC 3168).
const CONGESTION_EXPERIENCED: u8 = 3;

/// What routers that spread traffic over equal paths look at (ECMP): addresses, protocol and ports. RoCE v2 varies the UDP
/// source port alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: Option<(u16, u16)>,
}

impl Flow {
    /// A UDP flow.
    pub fn udp(source: SocketAddr, destination: SocketAddr) -> Flow {
        let ports = Some((source.port(), destination.port()));
        Flow { source: source.ip(), destination: destination.ip(), protocol: UDP, ports }
    }

    /// The flow of an Ethernet frame; `None` when it is no IP packet. Fragments have no ports: all of a datagram take the
    /// same path.
    pub fn of(frame: &[u8]) -> Option<Flow> {
        let ip = frame.get(ip_start(frame)?..)?;
        let (source, destination, protocol, header_bytes, is_fragment): (IpAddr, IpAddr, _, _, _) =
            match ip.first()? >> 4 {
                4 => (
                    ip.get(12..16)?.first_chunk::<4>().map(|a| (*a).into())?,
                    ip.get(16..20)?.first_chunk::<4>().map(|a| (*a).into())?,
                    *ip.get(9)?,
                    usize::from(ip[0] & 15) * 4,
                    u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff != 0,
                ),
                6 => (
                    ip.get(8..24)?.first_chunk::<16>().map(|a| (*a).into())?,
                    ip.get(24..40)?.first_chunk::<16>().map(|a| (*a).into())?,
                    *ip.get(6)?,
                    40,
                    false,
                ),
                _ => return None,
            };
        let has_ports = matches!(protocol, TCP | UDP) && !is_fragment;
        let ports = ip
            .get(header_bytes..header_bytes + 4)
            .filter(|_| has_ports)
            .map(|ports| (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]])));
        Some(Flow { source, destination, protocol, ports })
    }

    /// Which of `paths` (at least 1) it takes; `seed` stands for the routers' own.
    pub fn path(&self, paths: usize, seed: u64) -> usize {
        let number = |address| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        let (source, destination) = (number(self.source), number(self.destination));
        let (from, to) = self.ports.unwrap_or_default();
        let ports = u64::from(from) << 24 | u64::from(to) << 8 | u64::from(self.protocol);
        let words = [source as u64, (source >> 64) as u64, destination as u64, (destination >> 64) as u64, ports];
        let hash = words.iter().fold(seed, |hash, word| scramble(hash ^ word));
        ((u128::from(hash) * paths as u128) >> 64) as usize
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output.
fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Where the IP header begins, behind at most one VLAN tag.
fn ip_start(frame: &[u8]) -> Option<usize> {
    match frame.get(12..14)? {
        [0x08, 0x00] | [0x86, 0xdd] => Some(ETHERNET_BYTES),
        [0x81, 0x00] | [0x88, 0xa8] => match frame.get(16..18)? {
            [0x08, 0x00] | [0x86, 0xdd] => Some(ETHERNET_BYTES + VLAN_BYTES),
            _ => None,
        },
        _ => None,
    }
}

/// Marks an IP packet whose ends know about ECN «congestion experienced»; whether it is marked now.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let Some(ip) = ip_start(frame).and_then(|start| frame.get_mut(start..)) else { return false };
    match ip {
        [first, class, ..] if *first >> 4 == 4 && *class & 3 != 0 => {
            let before = u16::from_be_bytes([*first, *class]);
            *class |= CONGESTION_EXPERIENCED;
            let after = u16::from_be_bytes([*first, *class]);
            let Some(checksum) = ip.get_mut(10..12) else { return true };
            let old = u16::from_be_bytes([checksum[0], checksum[1]]);
            checksum.copy_from_slice(&updated_checksum(old, before, after).to_be_bytes());
            true
        }
        [first, second, ..] if *first >> 4 == 6 && *second & 0x30 != 0 => {
            *second |= CONGESTION_EXPERIENCED << 4;
            true
        }
        _ => false,
    }
}

/// The Internet checksum after one of the words under it changed (RFC 1624, equation 3).
fn updated_checksum(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet, IPv4 with ECN `ecn`, and UDP from a port.
    fn v4(ecn: u8, source_port: u16) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12] = 0x08;
        frame.extend([0x45, 0x68 | ecn, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 79, 0, 1, 10, 79, 0, 2]);
        let checksum = !ones_sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(source_port.to_be_bytes());
        frame.extend([0x12, 0xb7, 0, 8, 0, 0]);
        frame
    }

    fn ones_sum(bytes: &[u8]) -> u16 {
        let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
        frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        frame
    }

    #[test]
    fn a_frames_flow_is_that_of_its_sockets() {
        let expected = Flow::udp("10.79.0.1:49152".parse().unwrap(), "10.79.0.2:4791".parse().unwrap());
        assert_eq!(Flow::of(&v4(0, 49152)), Some(expected));
        assert_eq!(Flow::of(&tagged(v4(2, 49152))), Some(expected));
        let mut v6 = vec![0; 14];
        (v6[12], v6[13]) = (0x86, 0xdd);
        v6.extend([0x60, 0, 0, 0, 0, 8, 17, 64]);
        v6.extend([0xfd, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        v6.extend([0xfd, 0x79, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        v6.extend([0xc0, 0, 0x12, 0xb7, 0, 8, 0, 0]);
        let expected = Flow::udp("[fd79::1]:49152".parse().unwrap(), "[fd79::2]:4791".parse().unwrap());
        assert_eq!(Flow::of(&v6), Some(expected));
        for frame in [v4(0, 1), tagged(v4(0, 1)), v6] {
            // No truncation is more than no flow, or one without ports.
            (0..frame.len()).for_each(|len| {
                assert!(Flow::of(&frame[..len]).is_none_or(|flow| flow.ports.is_none() || len >= frame.len() - 4))
            });
        }
        assert_eq!(Flow::of(&[0; 60]), None, "not IP");
    }

    #[test]
    fn fragments_of_a_datagram_take_one_path() {
        let fragment = |flags: u8, port| {
            let mut frame = v4(0, port);
            frame[20] = flags;
            Flow::of(&frame).unwrap()
        };
        assert_eq!(fragment(0x20, 1), fragment(0x00, 1).without_ports());
        assert_eq!(fragment(0x01, 2), fragment(0x20, 1));
    }

    impl Flow {
        fn without_ports(self) -> Flow {
            Flow { ports: None, ..self }
        }
    }

    #[test]
    fn source_ports_spread_evenly_over_paths_and_the_seed_decides_how() {
        const PORTS: u16 = 16_000;
        let to = "10.79.0.2:4791".parse().unwrap();
        let paths = |seed| {
            let flow = |port| Flow::udp(SocketAddr::new("10.79.0.1".parse().unwrap(), 49152 + port), to);
            (0..PORTS).map(|port| flow(port).path(16, seed)).collect::<Vec<_>>()
        };
        let (one, other) = (paths(1), paths(2));
        for path in 0..16 {
            let share = one.iter().filter(|p| **p == path).count();
            assert!((850..1150).contains(&share), "{share} of 1000 take path {path}");
        }
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!((850..1150).contains(&same), "{same} take the same path with another seed");
        assert!(paths(1).iter().all(|path| *path < 16));
    }

    #[test]
    fn marks_keep_the_header_checksum_right_and_leave_others_alone() {
        for ecn in 0..4 {
            for tag in [false, true] {
                let before = if tag { tagged(v4(ecn, 1)) } else { v4(ecn, 1) };
                let mut frame = before.clone();
                assert_eq!(mark(&mut frame), ecn != 0);
                let ip = if tag { 18 } else { 14 };
                assert_eq!(ones_sum(&frame[ip..ip + 20]), 0xffff, "the checksum");
                assert_eq!(frame[ip + 1], 0x68 | if ecn == 0 { 0 } else { 3 });
                assert_eq!((&frame[..ip], &frame[ip + 12..]), (&before[..ip], &before[ip + 12..]));
            }
        }
        let mut v6 = [0; 60];
        (v6[12], v6[13], v6[14], v6[15]) = (0x86, 0xdd, 0x60, 0x10);
        assert!(mark(&mut v6));
        assert_eq!(v6[15], 0x30);
        v6[15] = 0;
        assert!(!mark(&mut v6));
        // Cut anywhere, it does not panic.
        for len in 0..20 {
            mark(&mut v4(1, 1)[..len]);
        }
    }
}

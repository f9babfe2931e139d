use std::net::{IpAddr, Ipv6Addr};

use crate::engine::Engine;
use crate::link::HopError;
use crate::link::device::{Device, Gid};
use crate::transport::Path;
use crate::wire::{Addresses, Flow, Qpn};

/// How to reach a peer: the address vector of an address handle or connection (IBTA 11.2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The index of our address in the device's GID table, from 0.
    pub source_gid_index: usize,
    /// The peer's GID; `::ffff:a.b.c.d` for an IPv4 address.
    pub destination_gid: Ipv6Addr,
    /// DSCP (upper six bits) and ECN (lower two). The DSCP decides the [`Class`](crate::transport::Class).
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 counts as 64, as with rxe.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
}

/// Why there is no path to a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The GID table has no entry at the index.
    #[error("{device} has no GID with index {index}: there are {count}, see `uroce devices`")]
    NoSuchGid {
        /// The name of the device.
        device: String,
        /// The index that was given.
        index: usize,
        /// The number of GIDs in the table.
        count: usize,
    },
    /// One address is IPv4 and the other IPv6.
    #[error("GID {index} is {own}, the peer's is {peer}: one is IPv4, the other IPv6; choose another GID index")]
    Family {
        /// The index of our GID.
        index: usize,
        /// The address of our GID.
        own: IpAddr,
        /// The address of the peer.
        peer: IpAddr,
    },
    /// The kernel has no route to the peer by this device.
    #[error(transparent)]
    Hop(#[from] HopError),
}

/// The hop limit when none is given (rxe_av.c, and the kernel's default TTL).
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Resolves the path from one of a device's GIDs to a peer, over the device's link.
pub(super) fn find_path(
    engine: &Engine,
    device: &Device,
    vector: &AddressVector,
    source_port: u16,
) -> Result<Path, PathError> {
    let index = vector.source_gid_index;
    let (own, peer) = (gid_of(device, index)?.ip(), IpAddr::V6(vector.destination_gid).to_canonical());
    let addresses = Addresses::new(own, peer).ok_or(PathError::Family { index, own, peer })?;
    let hop = engine.with(|core, _| core.link.hop(own, peer))?;
    let flow = Flow {
        addresses,
        source_port,
        traffic_class: vector.traffic_class,
        hop_limit: if vector.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { vector.hop_limit },
        flow_label: vector.flow_label,
    };
    Ok(Path { flow, hop })
}

/// The device's GID at the index.
pub(super) fn gid_of(device: &Device, index: usize) -> Result<&Gid, PathError> {
    let (name, count) = (&device.name, device.gids.len());
    device.gids.get(index).ok_or_else(|| PathError::NoSuchGid { device: name.clone(), index, count })
}

/// The GID of an address: `::ffff:a.b.c.d` for IPv4.
pub(super) fn gid_of_address(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The UDP source port of a connection, in the dynamic range from 49152 on: both numbers folded, the same in both
/// directions (rdma_calc_flow_label and rdma_flow_label_to_udp_sport in the kernel's ib_verbs.h).
pub fn source_port(local: Qpn, remote: Qpn) -> u16 {
    let mut v = u64::from(local.value()) * u64::from(remote.value());
    v ^= v >> 20;
    v ^= v >> 40;
    label_port((v & 0xf_ffff) as u32)
}

/// The UDP source port of a connection whose path has a flow label (rdma_flow_label_to_udp_sport).
pub(super) fn label_port(label: u32) -> u16 {
    0xc000 | ((label & 0x3fff) ^ ((label & 0xf_c000) >> 14)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_are_the_same_both_ways_and_rxes() {
        // From a capture of a Linux 6.1 rxe peer: queue pairs 0x11 and 0x12.
        assert_eq!(source_port(Qpn::new(0x11), Qpn::new(0x12)), 0xc000 | 0x132);
        for (a, b) in [(1, 2), (0xabcdef, 0x123456), (0xffffff, 0xfffffe)] {
            let (a, b) = (Qpn::new(a), Qpn::new(b));
            assert_eq!(source_port(a, b), source_port(b, a));
            assert!(source_port(a, b) >= 0xc000);
        }
    }
}

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::Addresses;

use super::address_vector::gid_of_address;
use super::{AddressVector, Completion, Context, Path, PathError, Qpn};

/// Length in bytes of the routing header before a datagram's payload in the receive buffer: the headers that it came
/// with (IBTA 11.4.1.2).
pub const ROUTING_HEADER_BYTES: usize = 40;

/// Why a datagram cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The completion is not that of a datagram.
    #[error("the completion is not of a datagram: its buffer has no routing header")]
    NoRoutingHeader,
    /// The first 40 bytes of the buffer are neither an IPv6 header nor, at their end, an IPv4 header.
    #[error(
        "the 40 bytes before the payload hold no IP header: pass the buffer's first 40 bytes as they were received"
    )]
    Malformed,
    /// The datagram's destination address is not, or no longer, in the GID table.
    #[error("{0} is not one of the device's current GIDs: see `uroce devices`")]
    NotOurs(IpAddr),
    /// There is no path to the sender.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The sender, the destination, the traffic class, the hop limit and the flow label of a routing header.
///
/// IPv4 headers are in the last 20 bytes, and the first 20 are undefined then. So an IPv4 header with a correct
/// checksum takes precedence (IBTA Annex A17.4.5.2).
fn parse(header: &[u8; ROUTING_HEADER_BYTES]) -> Option<(IpAddr, IpAddr, u8, u8, u32)> {
    let v4 = &header[20..];
    let sum = v4.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
    if v4[0] == 0x45 && (sum & 0xffff) + (sum >> 16) == 0xffff {
        let address = |at: usize| IpAddr::V4(Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]));
        return Some((address(12), address(16), v4[1], v4[8], 0));
    }
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().expect("16 bytes of 40");
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    let first = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    Some((address(8), address(24), (first >> 20) as u8, header[7], first & 0xf_ffff))
}

impl Context {
    /// The address vector that answers a datagram; `routing_header` is the first 40 bytes of its receive buffer
    /// (`ibv_init_ah_from_wc`).
    ///
    /// # Errors
    /// [`ReplyError::NoRoutingHeader`] when the completion is not a datagram's, and those of
    /// [`sender_vector`](Context::sender_vector).
    pub fn reply_vector(
        &self,
        completion: &Completion,
        routing_header: &[u8; ROUTING_HEADER_BYTES],
    ) -> Result<AddressVector, ReplyError> {
        match completion.network_header {
            Some(_) => self.sender_vector(routing_header),
            None => Err(ReplyError::NoRoutingHeader),
        }
    }

    /// The address vector that answers a datagram, as [`reply_vector`](Context::reply_vector), for a caller without the
    /// completion. The caller must know that the bytes are a routing header.
    ///
    /// # Errors
    /// [`ReplyError::Malformed`] when the bytes hold no IP header; [`ReplyError::NotOurs`] when the GID table does not
    /// have the destination.
    pub fn sender_vector(&self, routing_header: &[u8; ROUTING_HEADER_BYTES]) -> Result<AddressVector, ReplyError> {
        let (sender, own, traffic_class, hop_limit, flow_label) = parse(routing_header).ok_or(ReplyError::Malformed)?;
        let source_gid_index = self.gids().iter().position(|gid| gid.ip() == own).ok_or(ReplyError::NotOurs(own))?;
        Ok(AddressVector {
            source_gid_index,
            destination_gid: gid_of_address(sender),
            traffic_class,
            hop_limit,
            flow_label,
        })
    }

    /// From the sender of a datagram to us; `None` when the routing header has no IP header, or it went to another
    /// address.
    pub(super) fn sender_addresses(&self, routing_header: &[u8; ROUTING_HEADER_BYTES]) -> Option<Addresses> {
        let (sender, own, ..) = parse(routing_header)?;
        let is_ours = self.gids().iter().any(|gid| gid.ip() == own);
        Addresses::new(sender, own).filter(|_| is_ours)
    }

    /// An address handle to the sender of a datagram, for answers from queue pair `local` to the completion's
    /// `source_qpn` (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    /// As [`reply_vector`](Context::reply_vector), and [`ReplyError::Path`] when there is no path to the sender.
    pub fn reply_handle(
        &self,
        completion: &Completion,
        routing_header: &[u8; ROUTING_HEADER_BYTES],
        local: Qpn,
    ) -> Result<Path, ReplyError> {
        let vector = self.reply_vector(completion, routing_header)?;
        Ok(self.address_handle(&vector, local)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header as Linux 6.1 sent it: 10.78.0.1 to 10.78.0.2, ToS 0x20, TTL 64.
    fn v4_header() -> [u8; 40] {
        let mut header = [0; 40];
        let ip = [0x45, 0x20, 0, 60, 0x1c, 0x46, 0x40, 0, 64, 17, 0, 0, 10, 78, 0, 1, 10, 78, 0, 2];
        header[20..].copy_from_slice(&ip);
        let sum = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>();
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        header[30..32].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    #[test]
    fn an_ipv4_header_counts_whatever_stands_before_it() {
        let wanted = (IpAddr::from([10, 78, 0, 1]), IpAddr::from([10, 78, 0, 2]), 0x20, 64, 0);
        let mut header = v4_header();
        assert_eq!(parse(&header), Some(wanted));
        header[0] = 0x60;
        assert_eq!(parse(&header), Some(wanted), "the first 20 bytes mean nothing");
        header[0] = 0;
        header[31] ^= 1;
        assert_eq!(parse(&header), None, "a wrong checksum");
    }

    #[test]
    fn an_ipv6_header_brings_class_and_label() {
        let mut header = [0; 40];
        header[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf0, 0, 40, 17, 3]);
        header[8..24].copy_from_slice(&"fd78::1".parse::<Ipv6Addr>().unwrap().octets());
        header[24..].copy_from_slice(&"fd78::2".parse::<Ipv6Addr>().unwrap().octets());
        let wanted = ("fd78::1".parse().unwrap(), "fd78::2".parse().unwrap(), 0xab, 3, 0xc_def0);
        assert_eq!(parse(&header), Some(wanted));
        assert_eq!(parse(&[0; 40]), None);
    }
}

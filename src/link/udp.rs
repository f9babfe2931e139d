//! RoCE v2 over ordinary UDP sockets: no capability, no XDP, any interface, the loopback too.
//!
//! One socket on port 4791 for each of the device's addresses. Since the kernel writes the IP and UDP headers, packets must
//! be made for what it writes ([`Link::imposed`](super::Link::imposed)): the ICRC covers it. IPv4's identification is 0, which
//! Linux writes into packets of unconnected sockets that are never fragmented (`ip_select_ident`). The source port is 4791 for
//! all: one of its own for each connection would take a socket each, and peers do not look at it; what it is there for,
//! spreading connections over paths and queues, is left to the AF_XDP link.
//!
//! What is received is given back its headers. The ICRC is checked as on every link, by the transport; a peer's IPv4
//! identification, which sockets do not show, is solved for before (`identification`).

#[cfg_attr(not(feature = "udp"), path = "udp/absent.rs")]
mod link;

mod error;
#[cfg(feature = "udp")]
mod identification;
#[cfg(feature = "udp")]
mod pool;
#[cfg(feature = "udp")]
mod socket;

use std::net::IpAddr;

use super::gid::addresses;
use super::holder;
use super::netlink::Interface;

pub use error::UdpOpenError;
pub use link::UdpLink;

/// What the socket's buffers are asked to hold; the kernel gives what `net.core.rmem_max` allows. Two windows of 128 packets
/// of 4 KiB, each of which it accounts at some 9 KiB.
pub(super) const SOCKET_BUFFER_BYTES: u64 = 4 << 20;

/// What keeps a device from being opened over UDP sockets, without opening any: that would be in the way of those who do.
pub(super) fn obstacle(device: &Interface, interfaces: &[Interface]) -> Option<UdpOpenError> {
    let is_there = |address: &IpAddr| interfaces.iter().any(|interface| interface.addresses.contains(address));
    let mut addresses = addresses(device, interfaces).into_iter().filter(is_there).peekable();
    if addresses.peek().is_none() {
        return Some(UdpOpenError::NoAddress { interface: device.name.clone() });
    }
    let interface = device.name.clone();
    if let Some(address) = addresses.find(|address| holder::is_taken(*address)) {
        return Some(UdpOpenError::Taken { interface, address, holder: holder::port_holder(address) });
    }
    holder::claimant(device.index).map(|holder| UdpOpenError::OverXdp { interface, holder })
}

/// What the kernel lets sockets buffer, if that is less than they ask for.
pub(super) fn small_socket_buffer() -> Option<u64> {
    let bytes = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse().ok()?;
    (bytes < SOCKET_BUFFER_BYTES).then_some(bytes)
}

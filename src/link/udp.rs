//! RoCE v2 over ordinary UDP sockets: no capability, no XDP, any interface, the loopback too.
//!
//! There is one socket on port 4791 for each of the device's addresses. The kernel writes the IP and UDP headers, which
//! the ICRC covers, so packets must be made for what it writes ([`Link::imposed`](super::Link::imposed)). IPv4's
//! identification is 0, which Linux writes into packets of unconnected sockets that are never fragmented
//! (`ip_select_ident`). Packets in a row to one queue pair leave as one, if the kernel takes such runs; it cuts them apart
//! and counts from 0 (`outbox`).
//!
//! The source port is 4791 for all. A port for each connection would take a socket each, and peers do not check it. Its
//! purpose, to spread connections over paths and queues, is left to the AF_XDP link.
//!
//! The link puts headers before received payloads again. The transport checks the ICRC, as on every link. Sockets do
//! not show a peer's IPv4 identification, which is solved for before (`identification`).

#[cfg_attr(not(feature = "udp"), path = "udp/absent.rs")]
mod link;

mod error;
#[cfg(feature = "udp")]
mod identification;
#[cfg(feature = "udp")]
mod inbox;
mod offload;
#[cfg(feature = "udp")]
mod outbox;
#[cfg(feature = "udp")]
mod pool;
#[cfg_attr(not(feature = "udp"), path = "udp/no_refusal.rs")]
mod refusal;
#[cfg(feature = "udp")]
mod sharing;
#[cfg(feature = "udp")]
mod socket;

use std::net::IpAddr;

use super::holder;
use super::netlink::Interface;
use super::selection::Selection;

pub use error::UdpOpenError;
pub use link::UdpLink;
pub use offload::{UdpOffload, UdpOffloadError};
pub(crate) use refusal::RefusalProbe;
#[cfg(feature = "udp")]
pub use sharing::{Arbiter, ArbiterError};

/// Requested size of the socket's buffers, in bytes; the kernel gives what `net.core.rmem_max` allows. Two windows of
/// 128 packets of 4 KiB, each of which it accounts at some 9 KiB.
pub(super) const SOCKET_BUFFER_BYTES: u64 = 4 << 20;

/// What prevents a device from being opened over UDP sockets, without opening any: an open socket would prevent others.
pub(super) fn obstacle(selection: &Selection<'_>, interfaces: &[Interface]) -> Option<UdpOpenError> {
    let device = selection.interface;
    let is_there =
        |address: &IpAddr| device.loopback || interfaces.iter().any(|interface| interface.addresses.contains(address));
    let mut addresses = selection.addresses().filter(is_there).peekable();
    if addresses.peek().is_none() {
        return Some(UdpOpenError::NoAddress { interface: device.name.clone() });
    }
    let interface = device.name.clone();
    let is_shared = is_shared(device.index);
    if let Some(address) = addresses.find(|address| holder::is_taken(*address) && !is_shared) {
        return Some(UdpOpenError::Taken { interface, address, holder: holder::port_holder(address) });
    }
    holder::exclusive_claimant(device.index).map(|holder| UdpOpenError::OverXdp { interface, holder })
}

/// Whether programs of this user share the interface.
pub(super) fn is_shared(interface: u32) -> bool {
    #[cfg(feature = "udp")]
    return sharing::is_ours(interface);
    #[cfg(not(feature = "udp"))]
    {
        let _ = interface;
        false
    }
}

/// The size that the kernel allows sockets' buffers in bytes, if that is less than they ask for.
pub(super) fn small_socket_buffer() -> Option<u64> {
    let bytes = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse().ok()?;
    (bytes < SOCKET_BUFFER_BYTES).then_some(bytes)
}

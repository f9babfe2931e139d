//! Where frames go: a [`Link`] takes frames from and gives frames to a network.

#[cfg_attr(not(feature = "capture"), path = "capture/absent.rs")]
mod capture;
pub mod device;
mod device_error;
mod ethernet;
pub mod fault;
mod gid;
mod gone;
mod holder;
mod hop_table;
mod host;
mod loopback;
mod membership;
#[cfg(test)]
pub(crate) mod memory;
mod neighbour;
pub mod netlink;
mod next_hops;
mod rails;
mod selection;
mod shared;
mod tapped;
pub mod udp;
pub mod xdp;

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::Forked;
use crate::frame::Frame;
pub use crate::frame::Hop;
use crate::time::{Duration, Instant};

pub use capture::Capture;
pub use ethernet::EthernetHeader;
pub use gone::Gone;
pub use loopback::Loopback;
pub use rails::{Rail, Rails};
pub use shared::SharedLink;
pub use tapped::Tapped;

/// Sends and receives RoCE v2 frames. One engine owns a link; nothing of it is shared.
///
/// Transmission has two steps, so that a packet is written once, where it leaves from:
/// [`transmit_buffer`](Link::transmit_buffer) lends the buffer, [`transmit`](Link::transmit) sends what was written.
pub trait Link: Send {
    /// Takes up to `budget` received frames, in order of arrival, and appends them to `frames`. Returns their number.
    /// Only frames to UDP port 4791 arrive here; they begin with the Ethernet header.
    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize;

    /// Lends the buffer for one packet, of at least [`max_packet_bytes`](Link::max_packet_bytes) bytes, to be written
    /// from the IP header on.
    ///
    /// `None` when all buffers are in flight: try again after the next step. A second call without `transmit` in
    /// between lends the same buffer again.
    fn transmit_buffer(&mut self) -> Option<&mut [u8]>;

    /// Writes into the packet in the lent buffer what it will have when it leaves by `hop`: for captures, which see it
    /// before. [`transmit`](Link::transmit) does the same, and damage that the ICRC shows stays.
    fn finish(&mut self, len: usize, hop: Hop) {
        let _ = (len, hop);
    }

    /// Sends the first `len` bytes of the lent buffer (an IP packet, complete with UDP header and ICRC) to `hop`.
    ///
    /// The link prepends its own header. While the neighbour of a hop is not resolved, a bounded number of packets
    /// waits for it; the rest is dropped and counted.
    ///
    /// # Panics
    /// When no buffer is lent, or `len` is larger than the buffer.
    fn transmit(&mut self, now: Instant, len: usize, hop: Hop);

    /// Hands everything queued to the kernel (at most one system call), and does the link's housekeeping: neighbours,
    /// completed transmissions, delayed frames.
    fn flush(&mut self, now: Instant);

    /// As [`flush`](Self::flush), while more packets follow within microseconds. A run at the end that they can join stays.
    /// Returns the number of its packets; 0 for a link that makes no runs.
    fn flush_whole_runs(&mut self, now: Instant) -> usize {
        self.flush(now);
        0
    }

    /// Flushes what is kept in memory: before a program exits without dropping the link.
    fn settle(&mut self) {}

    /// Resolves the next hop towards `destination` from `source`, by the kernel's routes: a number below 2^56.
    ///
    /// It stays valid for packets with these addresses, for any caller and any time. A link that has replaced it
    /// meanwhile resolves it again from the packet's addresses.
    ///
    /// # Errors
    /// - [`HopError::NoRoute`] when the kernel has no route.
    /// - [`HopError::OtherInterface`] when the route leaves by another interface.
    /// - [`HopError::OwnAddress`] when the destination is this host's own.
    /// - [`HopError::Netlink`] when the kernel does not answer.
    /// - [`HopError::Forked`] in a child of the process that opened the device.
    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError>;

    /// Joins a multicast group: datagrams to it are received from now on, those that leave by this link too. A second
    /// call for the same group does nothing.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::Unsupported`] when this link has no groups.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let _ = group;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Leaves a multicast group.
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// The slot of this program, 1 to 63, when it shares the link's addresses with others. Packets find it by the slot:
    /// it must be in the lower six of the upper twelve bits of queue pair numbers, and of ids of connections.
    fn slot(&self) -> Option<u8> {
        None
    }

    /// Tells the programs that share the link's interface for how long urgent messages of this one count as under way.
    /// Returns for how long those of all do; zero where nobody tells.
    fn share_urgency(&mut self, own: Duration) -> Duration {
        let _ = own;
        Duration::ZERO
    }

    /// Tells that messages are to come which nobody sends again when they are lost. The link has all its room for arrivals
    /// from then on.
    fn expect_unreliable(&mut self) {}

    /// Has requests of the connection manager come to this link, from now on: where programs share the link's
    /// addresses, they come to one of them.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when another program takes them; the kernel's error when nobody decides.
    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        let _ = requests;
        Ok(())
    }

    /// Ends that.
    fn leave_requests(&mut self, requests: Requests) {
        let _ = requests;
    }

    /// A counter that changes when the kernel's routes or interfaces do: a missing hop can be resolvable then.
    fn route_changes(&self) -> u64 {
        0
    }

    /// The Ethernet header that packets to `hop` get now, for captures.
    ///
    /// `None` while the neighbour is not resolved, when the link has replaced the hop, and on links that cannot see the
    /// header.
    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        let _ = hop;
        None
    }

    /// Fields that this link's packets always have in their outer headers, so that packets are written with the same;
    /// `None` where they leave as they were written.
    fn imposed(&self) -> Option<Imposed> {
        None
    }

    /// The largest IP packet in bytes that this link can send and receive: the interface's MTU, or less where a frame
    /// cannot carry that much.
    fn max_packet_bytes(&self) -> usize;

    /// File descriptors that become readable when there is a frame to receive, or housekeeping to do.
    fn poll_fds(&self) -> Vec<RawFd>;

    /// When [`receive`](Link::receive) and [`flush`](Link::flush) must be called although nothing arrived (delayed
    /// frames, neighbour retries). A time in the past means at once; `None` means never.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The name of the mode, for example `xdp-native-copy`.
    fn mode(&self) -> String;

    /// Counters by name, for people and for tests.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// The counters of several links as one link's: those of one name are added.
fn summed(counters: impl Iterator<Item = (&'static str, u64)>) -> Vec<(&'static str, u64)> {
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    for (name, count) in counters {
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += count,
            None => sums.push((name, count)),
        }
    }
    sums
}

/// Requests for connections, by what they ask for (REQ and SIDR_REQ; IBTA 12.6.5, 12.11.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// All that nobody takes: they are rejected.
    Unclaimed,
    /// Those for one service.
    For {
        /// The service.
        service_id: u64,
        /// Our address that they come to; `None` for any.
        address: Option<IpAddr>,
    },
}

impl Requests {
    /// Whether some request is among both.
    pub fn overlaps(&self, other: &Requests) -> bool {
        match (self, other) {
            (Requests::For { service_id, address }, Requests::For { service_id: other_id, address: other_address }) => {
                service_id == other_id && (address.is_none() || other_address.is_none() || address == other_address)
            }
            _ => self == other,
        }
    }
}

/// Fields of the outer headers that the ICRC covers and the kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imposed {
    /// The IPv4 identification.
    pub identification: u16,
    /// The UDP source port.
    pub source_port: u16,
}

/// Why there is no next hop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopError {
    /// The kernel has no route between these addresses.
    #[error("no route from {0} to {1}: add one with `ip route add`, or check the GID index")]
    NoRoute(IpAddr, IpAddr),
    /// The kernel's route leaves by another interface.
    #[error("the route to {destination} uses {interface}, which is not this device's")]
    OtherInterface {
        /// The destination of the packets.
        destination: IpAddr,
        /// The name of the interface that the kernel chose.
        interface: String,
    },
    /// The destination is one of this host's own addresses.
    #[error("{0} is this host's own address: packets to it do not use this link")]
    OwnAddress(IpAddr),
    /// The kernel did not answer; holds the destination and the error.
    #[error("the kernel did not answer a route query for {0}: {1}")]
    Netlink(IpAddr, String),
    /// The device was opened by a parent of this process; a child cannot use what it inherits by fork(2).
    #[error(transparent)]
    Forked(#[from] Forked),
}

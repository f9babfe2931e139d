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
mod neighbour;
pub mod netlink;
mod rails;
mod tapped;
pub mod udp;
pub mod xdp;

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::frame::Frame;
pub use crate::frame::Hop;
use crate::time::Instant;

pub use capture::Capture;
pub use ethernet::EthernetHeader;
pub use gone::Gone;
pub use loopback::Loopback;
pub use rails::{Rail, Rails};
pub use tapped::Tapped;

/// A way to send and receive RoCE v2 frames. One engine owns it; nothing about it is shared.
///
/// Transmission is in two steps, so that a packet is written once, where it leaves from:
/// [`transmit_buffer`](Link::transmit_buffer) lends the buffer, [`transmit`](Link::transmit) sends what was written.
pub trait Link: Send {
    /// Takes up to `budget` received frames, in order of arrival, and appends them to `frames`. Returns their number.
    /// Only frames to UDP port 4791 arrive here; they begin with the Ethernet header.
    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize;

    /// Lends the buffer for one packet, of at least [`max_packet_bytes`](Link::max_packet_bytes) bytes, to be written
    /// from the IP header on. `None` when all buffers are on their way: try again after the next step.
    /// Calling it again without `transmit` in between lends the same buffer again.
    fn transmit_buffer(&mut self) -> Option<&mut [u8]>;

    /// Sends the first `len` bytes of the lent buffer (an IP packet, complete with UDP header and ICRC) to `hop`. The
    /// link prepends its own header. A hop whose neighbour is not resolved yet keeps a bounded number of packets
    /// waiting; the rest is dropped and counted.
    ///
    /// # Panics
    /// When no buffer is lent, or `len` is larger than the buffer.
    fn transmit(&mut self, now: Instant, len: usize, hop: Hop);

    /// Hands everything queued to the kernel (one system call at the most) and does the link's housekeeping:
    /// neighbours, completed transmissions, delayed frames.
    fn flush(&mut self, now: Instant);

    /// Brings what is kept in memory where it belongs: before a program exits without dropping the link.
    fn settle(&mut self) {}

    /// The next hop towards `destination` from `source`, by the kernel's routes: a number below 2^56.
    ///
    /// It stays good for packets with these addresses, whoever has it and however long. A link that has forgotten it meanwhile,
    /// for others, looks at the packet's addresses.
    ///
    /// # Errors
    /// [`HopError`] says why there is none.
    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError>;

    /// Becomes a member of a multicast group: datagrams to it are received from now on, those that leave by this link too.
    /// Once more does nothing.
    ///
    /// # Errors
    /// What the kernel says, or that this link knows no groups.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let _ = group;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Is no member of that multicast group any more.
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// A number that changes when the kernel's routes or interfaces do: a hop that could not be found may be there now.
    fn route_changes(&self) -> u64 {
        0
    }

    /// The Ethernet header that packets to `hop` get now, for captures; `None` while the neighbour is not resolved, when the
    /// link has forgotten the hop, and on links that cannot see it.
    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        let _ = hop;
        None
    }

    /// What this link's packets carry in their outer headers whatever was written there, so that packets are made to say the
    /// same; `None` where they leave as they were written.
    fn imposed(&self) -> Option<Imposed> {
        None
    }

    /// The largest IP packet in bytes this link can send and receive: the interface's MTU, or less where the link
    /// cannot carry that much in one frame.
    fn max_packet_bytes(&self) -> usize;

    /// File descriptors that become readable when there is something to receive (or housekeeping to do).
    fn poll_fds(&self) -> Vec<RawFd>;

    /// When [`receive`](Link::receive) and [`flush`](Link::flush) want to be called although nothing arrived (delayed
    /// frames, neighbour retries); a point that has passed means at once.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// What it is, in a word: `xdp-native-copy`, say.
    fn mode(&self) -> String;

    /// Named counters, for people and for tests.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Fields of the outer headers that the ICRC covers and somebody else writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imposed {
    /// IPv4's identification.
    pub identification: u16,
    /// The UDP source port.
    pub source_port: u16,
}

/// Why there is no next hop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopError {
    /// The kernel has no route.
    #[error("no route from {0} to {1}: add one with `ip route add`, or check the GID index")]
    NoRoute(IpAddr, IpAddr),
    /// The kernel's route leaves by another interface.
    #[error("the route to {destination} leaves by {interface}, not by this device")]
    OtherInterface {
        /// Where to.
        destination: IpAddr,
        /// The interface that the kernel chose.
        interface: String,
    },
    /// The destination is one of this host's own addresses.
    #[error("{0} is this host's own address: packets to it do not leave by this link")]
    OwnAddress(IpAddr),
    /// The kernel did not answer.
    #[error("the kernel did not answer a route query for {0}: {1}")]
    Netlink(IpAddr, String),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error("the device was opened before fork(2), by the parent of this process: open it anew")]
    Forked,
}

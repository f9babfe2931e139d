use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use super::loopback::{HERE, Loopback};
use super::{EthernetHeader, Hop, HopError, Imposed, Link, Requests, summed};
use crate::frame::{Frame, FrameBytes};
use crate::time::{Duration, Instant, earliest};
use crate::wire::{Addresses, Bth, ICRC_BYTES, Qpn, icrc};

/// How long each step looks for packets through the kernel after one came or left: an answer to it may follow.
const LIVELY: Duration = Duration::from_millis(1);

/// How often they are looked for otherwise. Each look takes a system call an address, some 2 µs in all: 1 % of a
/// processor. The first packet of a neighbour waits for as long; a sleeping engine is woken by it.
const PAUSE: Duration = Duration::from_micros(200);

/// The hop of packets to this host and to multicast groups. The links' own numbers are below.
const KERNEL: Hop = Hop(1 << 63);

/// A link on addresses that other programs of this host share: one of them has the interface over AF_XDP, and the rest
/// have UDP sockets.
///
/// `network` carries the packets of other hosts to the queue pairs of this program, and back. `kernel` is this program's
/// own sockets among those of the others. These packets go through the kernel, in both directions:
///
/// - those between programs of this host;
/// - those to multicast groups, of which each program that has joined gets a copy;
/// - requests for connections that no program listens for.
pub struct SharedLink<N, K> {
    network: Loopback<N>,
    kernel: K,
    addresses: Vec<IpAddr>,
    /// What the kernel writes into the headers of `kernel`'s packets.
    imposed: Imposed,
    slot: u8,
    lively_until: Instant,
    look_again_at: Instant,
    through_kernel: u64,
    lost: u64,
}

impl<N: Link, K: Link> SharedLink<N, K> {
    /// One link of both. `addresses` are those of the interface. `None` when `kernel` has no slot, or does not write
    /// headers.
    pub fn new(network: Loopback<N>, kernel: K, addresses: Vec<IpAddr>) -> Option<SharedLink<N, K>> {
        Some(SharedLink {
            slot: kernel.slot()?,
            imposed: kernel.imposed()?,
            network,
            kernel,
            addresses,
            lively_until: Instant::ZERO,
            look_again_at: Instant::ZERO,
            through_kernel: 0,
            lost: 0,
        })
    }

    /// Whether a queue pair of this program has the number, as far as the number tells.
    fn is_ours(&self, qpn: Qpn) -> bool {
        qpn != Qpn::GSI && qpn != Qpn::MULTICAST && (qpn.value() >> 12 & 0x3f) as u8 == self.slot
    }

    /// Whether the packet in the network's lent buffer leaves by `hop` through the kernel.
    fn leaves_through_kernel(&mut self, len: usize, hop: Hop) -> bool {
        hop == KERNEL && destination_qpn(self.lent(len)).is_none_or(|qpn| !self.is_ours(qpn))
    }

    /// The packet in the network's lent buffer.
    fn lent(&mut self, len: usize) -> &mut [u8] {
        &mut self.network.transmit_buffer().expect("transmit follows transmit_buffer")[..len]
    }

    /// Copies the packet in the network's lent buffer to the kernel's, with the headers that the kernel writes. Returns
    /// its hop there; `None` when there is none, or no buffer.
    fn hand_over(&mut self, len: usize) -> Option<Hop> {
        let imposed = self.imposed;
        let packet = &mut self.network.transmit_buffer().expect("it is lent")[..len];
        impose(packet, imposed);
        let addresses = Addresses::of_packet(packet)?;
        let hop = self.kernel.hop(addresses.source(), addresses.destination()).ok()?;
        self.kernel.transmit_buffer()?[..len].copy_from_slice(packet);
        Some(hop)
    }

    /// Sends the packet in the network's lent buffer, which stays lent, through the kernel.
    fn send_through_kernel(&mut self, now: Instant, len: usize) {
        if self.kernel.transmit_buffer().is_none() {
            self.kernel.flush(now);
        }
        let Some(hop) = self.hand_over(len) else {
            self.lost += 1;
            return;
        };
        self.kernel.transmit(now, len, hop);
        self.through_kernel += 1;
        self.lively_until = now + LIVELY;
        self.look_again_at = now;
    }

    fn receive_through_kernel(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        if now < self.look_again_at {
            return 0;
        }
        let count = self.kernel.receive(now, frames, budget);
        if count > 0 {
            self.lively_until = now + LIVELY;
        }
        self.look_again_at = if now < self.lively_until { now } else { now + PAUSE };
        count
    }
}

/// The destination of an IP packet without options or extension headers.
fn destination_qpn(packet: &[u8]) -> Option<Qpn> {
    let bth = packet.get(ip_bytes(packet)? + UDP_BYTES..)?.get(..Bth::BYTES)?;
    Some(Qpn::new(u32::from_be_bytes([0, bth[5], bth[6], bth[7]])))
}

const UDP_BYTES: usize = 8;

fn ip_bytes(packet: &[u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 => Some(20),
        6 => Some(40),
        _ => None,
    }
}

/// Writes what the kernel will write into a packet's headers, and the ICRC that goes with it. It stays wrong by as much as
/// it was.
fn impose(packet: &mut [u8], imposed: Imposed) {
    let (Some(udp), Some(covered)) = (ip_bytes(packet), packet.len().checked_sub(ICRC_BYTES)) else { return };
    let Some(before) = icrc::compute(FrameBytes::from(&packet[..covered])) else { return };
    if udp == 20 {
        packet[4..6].copy_from_slice(&imposed.identification.to_be_bytes());
    }
    packet[udp..udp + 2].copy_from_slice(&imposed.source_port.to_be_bytes());
    let (packet, stored) = packet.split_at_mut(covered);
    if let (Some(after), Some(was)) = (icrc::compute(FrameBytes::from(&*packet)), stored.first_chunk()) {
        let icrc = after ^ before ^ u32::from_le_bytes(*was);
        stored.copy_from_slice(&icrc.to_le_bytes());
    }
}

impl<N: Link, K: Link> Link for SharedLink<N, K> {
    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        // Half at the most, so that neither side starves the other.
        let count = self.receive_through_kernel(now, frames, budget.div_ceil(2));
        count + self.network.receive(now, frames, budget - count)
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        let max = self.max_packet_bytes();
        self.network.transmit_buffer().map(|buffer| &mut buffer[..max])
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        if self.leaves_through_kernel(len, hop) {
            return self.send_through_kernel(now, len);
        }
        self.network.transmit(now, len, if hop == KERNEL { HERE } else { hop });
    }

    fn finish(&mut self, len: usize, hop: Hop) {
        if self.leaves_through_kernel(len, hop)
            && let Some(hop) = self.hand_over(len)
        {
            self.kernel.finish(len, hop);
            let finished = self.kernel.transmit_buffer().expect("it was lent");
            let packet = self.network.transmit_buffer().expect("transmit follows transmit_buffer");
            packet[..len].copy_from_slice(&finished[..len]);
        }
    }

    fn flush(&mut self, now: Instant) {
        self.network.flush(now);
        self.kernel.flush(now);
    }

    fn settle(&mut self) {
        self.network.settle();
        self.kernel.settle();
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        let is_own = self.addresses.contains(&destination);
        if !is_own && !destination.is_multicast() {
            return self.network.hop(source, destination);
        }
        match self.kernel.hop(source, destination) {
            Ok(_) => Ok(KERNEL),
            // From an address without a socket, queue pairs of this program can be reached.
            Err(_) if is_own => self.network.hop(source, destination),
            Err(error) => Err(error),
        }
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.kernel.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.kernel.leave(group);
    }

    fn slot(&self) -> Option<u8> {
        Some(self.slot)
    }

    fn share_urgency(&mut self, own: Duration) -> Duration {
        self.kernel.share_urgency(own)
    }

    fn expect_unreliable(&mut self) {
        self.network.expect_unreliable();
        self.kernel.expect_unreliable();
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.kernel.take_requests(requests)?;
        self.network.take_requests(requests)
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.network.leave_requests(requests);
        self.kernel.leave_requests(requests);
    }

    fn route_changes(&self) -> u64 {
        self.network.route_changes()
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        if hop == KERNEL { self.kernel.ethernet_header(hop) } else { self.network.ethernet_header(hop) }
    }

    fn max_packet_bytes(&self) -> usize {
        self.network.max_packet_bytes().min(self.kernel.max_packet_bytes())
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.network.poll_fds().into_iter().chain(self.kernel.poll_fds()).collect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.network.poll_timeout(), self.kernel.poll_timeout()])
    }

    fn mode(&self) -> String {
        self.network.mode()
    }

    /// The sums of both links' counters, and what went through the kernel.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = summed(self.network.counters().into_iter().chain(self.kernel.counters()));
        counters.extend([("kernel_tx_packets", self.through_kernel), ("kernel_tx_lost", self.lost)]);
        counters
    }
}

#[cfg(test)]
mod tests;

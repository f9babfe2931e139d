use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use super::netlink::Mac;
use super::{EthernetHeader, Hop, HopError, Link, Requests};
use crate::frame::Frame;
use crate::time::{Duration, Instant};
use crate::wire::Addresses;

/// Upper bound on the packets to ourselves that wait to be received. More are dropped and counted, as by a full ring.
/// Each queue pair can have 128 in flight; at 4 KiB each these are 16 MiB.
const WAITING_MAX: usize = 4096;

/// The hop to the device itself. Links give out smaller numbers.
pub(super) const HERE: Hop = Hop(u64::MAX);

/// A link on which a device also reaches itself: queue pairs of one program can be peers as if the packets went out and
/// came back.
///
/// An Ethernet switch would not send them back, and the kernel's routes to own addresses end in `lo`. A packet to
/// ourselves costs one copy more than others; all other packets cost one comparison.
pub struct Loopback<L> {
    inner: L,
    mac: Mac,
    addresses: Vec<IpAddr>,
    /// Multicast groups of the device. Packets to them go out, and come back too.
    groups: Vec<IpAddr>,
    waiting: VecDeque<Frame>,
    packets: u64,
    dropped: u64,
}

impl<L: Link> Loopback<L> {
    /// A loopback around `inner`: packets from one of `addresses` to another of them come back. `mac` is both addresses
    /// of their Ethernet headers.
    pub fn new(inner: L, mac: Mac, addresses: Vec<IpAddr>) -> Loopback<L> {
        Loopback { inner, mac, addresses, groups: Vec::new(), waiting: VecDeque::new(), packets: 0, dropped: 0 }
    }

    fn header(&self) -> EthernetHeader {
        EthernetHeader::new(self.mac, self.mac, None)
    }

    /// Whether the packet in the lent buffer goes to a group of the device.
    fn is_to_own_group(&mut self, len: usize) -> bool {
        let buffer = self.inner.transmit_buffer().expect("transmit follows transmit_buffer");
        Addresses::of_packet(&buffer[..len]).is_some_and(|packet| self.groups.contains(&packet.destination()))
    }

    /// Receives the packet in the lent buffer, which stays lent and is written again.
    fn turn_around(&mut self, len: usize) {
        self.packets += 1;
        if self.waiting.len() >= WAITING_MAX {
            self.dropped += 1;
            return;
        }
        let header = self.header();
        let buffer = self.inner.transmit_buffer().expect("transmit follows transmit_buffer");
        let mut frame = vec![0; header.len() + len];
        header.write(&mut frame, buffer[0] >> 4);
        frame[header.len()..].copy_from_slice(&buffer[..len]);
        self.waiting.push_back(Frame::from_vec(frame));
    }
}

impl<L: Link> Link for Loopback<L> {
    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        // Half at the most, so that neither side starves the other.
        let own = if self.waiting.is_empty() { 0 } else { self.waiting.len().min(budget.div_ceil(2)) };
        frames.extend(self.waiting.drain(..own));
        own + self.inner.receive(now, frames, budget - own)
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        self.inner.transmit_buffer()
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        if hop == HERE {
            return self.turn_around(len);
        }
        if !self.groups.is_empty() && self.is_to_own_group(len) {
            self.turn_around(len);
        }
        self.inner.transmit(now, len, hop);
    }

    fn flush(&mut self, now: Instant) {
        self.inner.flush(now);
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        if self.addresses.contains(&destination) {
            return Ok(HERE);
        }
        self.inner.hop(source, destination)
    }

    fn slot(&self) -> Option<u8> {
        self.inner.slot()
    }

    fn share_urgency(&mut self, own: Duration) -> Duration {
        self.inner.share_urgency(own)
    }

    fn expect_unreliable(&mut self) {
        self.inner.expect_unreliable();
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.inner.take_requests(requests)
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.inner.leave_requests(requests);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)?;
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
        self.groups.retain(|of| *of != group);
    }

    fn route_changes(&self) -> u64 {
        self.inner.route_changes()
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        if hop == HERE { Some(self.header()) } else { self.inner.ethernet_header(hop) }
    }

    fn max_packet_bytes(&self) -> usize {
        self.inner.max_packet_bytes()
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.inner.poll_fds()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.waiting.is_empty() { self.inner.poll_timeout() } else { Some(Instant::ZERO) }
    }

    fn mode(&self) -> String {
        self.inner.mode()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        counters.extend([("loopback_packets", self.packets), ("loopback_dropped", self.dropped)]);
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::memory::{Gives, MemoryLink};
    use crate::wire::Flow;

    fn outside() -> MemoryLink {
        MemoryLink::new(64, Gives { next_hop: Some(Hop(3)), ..Gives::default() })
    }

    #[test]
    fn packets_to_own_addresses_come_back_in_order_and_others_leave() {
        let [own, other]: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let mut link = Loopback::new(outside(), [2, 0, 0, 0, 0, 1], vec![own]);
        let here = link.hop(own, own).unwrap();
        assert_ne!(here, link.hop(own, other).unwrap());
        let now = Instant::ZERO;
        for number in 0..5 {
            link.transmit_buffer().unwrap()[..2].copy_from_slice(&[0x45, number]);
            link.transmit(now, 2, here);
        }
        link.transmit(now, 2, Hop(3));
        assert_eq!((link.inner.given().sent.len(), link.poll_timeout()), (1, Some(Instant::ZERO)));
        let mut frames = Vec::new();
        while link.receive(now, &mut frames, 4) > 0 {}
        let bytes: Vec<Vec<u8>> = frames.iter().map(|frame| frame.bytes().to_vec()).collect();
        let header = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 8, 0, 0x45];
        assert_eq!(bytes, (0..5).map(|n| [&header[..], &[n]].concat()).collect::<Vec<_>>());
        assert_eq!(link.poll_timeout(), None);
        assert_eq!(link.counters(), [("tx_frames", 1), ("loopback_packets", 5), ("loopback_dropped", 0)]);
    }

    /// Whether it does is in the packet: the link may give a hop's number to others later, or renumber it.
    #[test]
    fn packets_to_own_groups_leave_and_come_back_and_those_to_others_only_leave() {
        let [own, group, other]: [IpAddr; 3] = ["10.0.0.1", "239.0.0.1", "239.0.0.2"].map(|text| text.parse().unwrap());
        let mut link = Loopback::new(outside(), [0; 6], vec![own]);
        let send = |link: &mut Loopback<MemoryLink>, destination: IpAddr| {
            let addresses = Addresses::new(own, destination).unwrap();
            let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 1, flow_label: 0 };
            flow.write(link.transmit_buffer().unwrap(), 0, 0);
            link.transmit(Instant::ZERO, flow.header_bytes(), Hop(3));
            (link.inner.given().sent.len(), link.packets)
        };
        assert_eq!(send(&mut link, group), (1, 0), "not a member yet");
        link.groups.push(group);
        assert_eq!([group, other].map(|to| send(&mut link, to)), [(2, 1), (3, 1)]);
        link.leave(group);
        assert_eq!(send(&mut link, group), (4, 1));
    }

    #[test]
    fn what_nobody_receives_is_bounded() {
        let own: IpAddr = "10.0.0.1".parse().unwrap();
        let mut link = Loopback::new(outside(), [0; 6], vec![own]);
        link.transmit_buffer().unwrap()[0] = 0x45;
        for _ in 0..WAITING_MAX + 7 {
            link.transmit(Instant::ZERO, 30, HERE);
        }
        assert_eq!(
            link.counters(),
            [("tx_frames", 0), ("loopback_packets", WAITING_MAX as u64 + 7), ("loopback_dropped", 7)]
        );
    }
}

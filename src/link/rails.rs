use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use super::{EthernetHeader, Hop, HopError, Imposed, Link, summed};
use crate::frame::Frame;
use crate::time::Instant;

/// Several links as one: a device made of several interfaces.
///
/// A hop belongs to one of them: its number has the rail in the upper bits. A rail that fails causes no error: its
/// packets are lost, and counted by its link or as `rails_lost`, until it works again.
///
/// A packet is written into the buffer of the rail that is expected to be next. A packet for another rail is copied,
/// and counted (`rails_copied`).
pub struct Rails {
    rails: Vec<State>,
    /// The rail whose buffer is lent.
    lent: Option<usize>,
    /// The rail of the last packet.
    last: usize,
    /// The rail that receives first next time.
    next_receiver: usize,
    max_packet_bytes: usize,
    copied: u64,
    lost: u64,
}

/// One interface of a device with several.
pub struct Rail {
    /// The link of the interface.
    pub link: Box<dyn Link>,
    /// The addresses of the interface: packets from one of these leave by it.
    pub addresses: Vec<IpAddr>,
}

struct State {
    rail: Rail,
    /// The rail of the packet that followed one over this rail, the last time there was one. That predicts senders that
    /// take rails in turn, stay with one, or leave one out.
    follower: usize,
    sent: u64,
    received: u64,
}

/// The lowest bit of the rail in a hop's number. The links' own numbers are below.
const RAIL_SHIFT: u32 = 56;

/// Names of the counters of each rail.
const COUNTERS: [[&str; 2]; Rails::MAX] = [
    ["rail0_tx_packets", "rail0_rx_frames"],
    ["rail1_tx_packets", "rail1_rx_frames"],
    ["rail2_tx_packets", "rail2_rx_frames"],
    ["rail3_tx_packets", "rail3_rx_frames"],
    ["rail4_tx_packets", "rail4_rx_frames"],
    ["rail5_tx_packets", "rail5_rx_frames"],
    ["rail6_tx_packets", "rail6_rx_frames"],
    ["rail7_tx_packets", "rail7_rx_frames"],
];

impl Rails {
    /// Upper bound on the rails: a queue pair sends its peer seven addresses beside its own (docs/EXTENSIONS.md).
    pub const MAX: usize = 8;

    /// One link of 1 to [`MAX`](Rails::MAX) rails; packets from an address of no rail take the first.
    ///
    /// # Panics
    /// When there are none, or more.
    pub fn new(rails: Vec<Rail>) -> Rails {
        assert!((1..=Rails::MAX).contains(&rails.len()), "{} rails", rails.len());
        let count = rails.len();
        let max_packet_bytes = rails.iter().map(|rail| rail.link.max_packet_bytes()).min().unwrap_or_default();
        let state = |(number, rail)| State { rail, follower: (number + 1) % count, sent: 0, received: 0 };
        Rails {
            rails: rails.into_iter().enumerate().map(state).collect(),
            lent: None,
            last: count - 1,
            next_receiver: count - 1,
            max_packet_bytes,
            copied: 0,
            lost: 0,
        }
    }

    fn links(&self) -> impl Iterator<Item = &dyn Link> {
        self.rails.iter().map(|state| &*state.rail.link)
    }

    fn links_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Link>> {
        self.rails.iter_mut().map(|state| &mut state.rail.link)
    }

    /// The rail whose buffer the next packet is written into: the expected one, or the first after it that has any.
    fn lender(&mut self) -> Option<usize> {
        let (expected, count) = (self.rails[self.last].follower, self.rails.len());
        let mut order = (0..count).map(|step| (expected + step) % count);
        order.find(|&number| self.rails[number].rail.link.transmit_buffer().is_some())
    }
}

/// A hop's rail, and the hop's number on the rail's link.
fn split(hop: Hop) -> (usize, Hop) {
    ((hop.0 >> RAIL_SHIFT) as usize, Hop(hop.0 & ((1 << RAIL_SHIFT) - 1)))
}

impl Link for Rails {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        let joined = self.links_mut().try_for_each(|link| link.join(group));
        if joined.is_err() {
            self.leave(group);
        }
        joined
    }

    fn leave(&mut self, group: IpAddr) {
        self.links_mut().for_each(|link| link.leave(group));
    }

    fn expect_unreliable(&mut self) {
        self.links_mut().for_each(|link| link.expect_unreliable());
    }

    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let (before, count) = (frames.len(), self.rails.len());
        // Another one comes first every time, so that a busy one does not starve the others; and each has its share before any
        // has more: were one behind, what arrived over it would be taken for late, and the rail for dark.
        self.next_receiver = (self.next_receiver + 1) % count;
        for share in [budget.div_ceil(count), budget] {
            for step in 0..count {
                let left = budget - (frames.len() - before);
                let State { rail, received, .. } = &mut self.rails[(self.next_receiver + step) % count];
                if left > 0 {
                    *received += rail.link.receive(now, frames, left.min(share)) as u64;
                }
            }
        }
        frames.len() - before
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        let lender = match self.lent {
            Some(lender) => lender,
            None => self.lender()?,
        };
        self.lent = Some(lender);
        let buffer = self.rails[lender].rail.link.transmit_buffer()?;
        Some(&mut buffer[..self.max_packet_bytes])
    }

    fn finish(&mut self, len: usize, hop: Hop) {
        let (number, hop) = split(hop);
        if let (Some(lender), true) = (self.lent, number < self.rails.len() && self.imposed().is_some()) {
            // The rail that sends it decides, in its own buffer.
            let copy = |rails: &mut [State], from: usize, to: usize| {
                let Ok([from, to]) = rails.get_disjoint_mut([from, to]) else { return };
                if let [Some(from), Some(to)] = [from, to].map(|state| state.rail.link.transmit_buffer()) {
                    to[..len].copy_from_slice(&from[..len]);
                }
            };
            copy(&mut self.rails, lender, number);
            self.rails[number].rail.link.finish(len, hop);
            copy(&mut self.rails, number, lender);
        }
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        assert!(len > 0 && len <= self.max_packet_bytes, "a packet of {len} bytes in {}", self.max_packet_bytes);
        let lender = self.lent.take().expect("transmit follows transmit_buffer");
        let (number, hop) = split(hop);
        if number >= self.rails.len() {
            self.lost += 1;
            return;
        }
        self.rails[self.last].follower = number;
        self.last = number;
        // The lender's buffer stays lent where another rail's is used, and is written anew.
        if let Ok([from, to]) = self.rails.get_disjoint_mut([lender, number]) {
            let packet = from.rail.link.transmit_buffer().expect("it was lent");
            let Some(buffer) = to.rail.link.transmit_buffer() else {
                self.lost += 1;
                return;
            };
            buffer[..len].copy_from_slice(&packet[..len]);
            self.copied += 1;
        }
        let State { rail, sent, .. } = &mut self.rails[number];
        *sent += 1;
        rail.link.transmit(now, len, hop);
    }

    fn flush(&mut self, now: Instant) {
        self.links_mut().for_each(|link| link.flush(now));
    }

    fn settle(&mut self) {
        self.links_mut().for_each(|link| link.settle());
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        let number = self.rails.iter().position(|state| state.rail.addresses.contains(&source)).unwrap_or(0);
        let Hop(hop) = self.rails[number].rail.link.hop(source, destination)?;
        debug_assert_eq!(hop >> RAIL_SHIFT, 0, "a link's own hop");
        Ok(Hop((number as u64) << RAIL_SHIFT | hop))
    }

    fn route_changes(&self) -> u64 {
        self.links().map(Link::route_changes).sum()
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        let (number, hop) = split(hop);
        self.rails.get(number)?.rail.link.ethernet_header(hop)
    }

    fn imposed(&self) -> Option<Imposed> {
        // All are of one kind.
        self.rails[0].rail.link.imposed()
    }

    fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.links().flat_map(Link::poll_fds).collect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.links().filter_map(Link::poll_timeout).min()
    }

    /// The modes of all rails, for example `xdp-native-copy+xdp-skb-copy`.
    fn mode(&self) -> String {
        self.links().map(Link::mode).collect::<Vec<_>>().join("+")
    }

    /// The sums of the rails' counters, and what each rail carried.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = summed(self.links().flat_map(Link::counters));
        sums.extend([("rails_copied", self.copied), ("rails_lost", self.lost)]);
        let by_rail = self.rails.iter().zip(COUNTERS);
        sums.extend(by_rail.flat_map(|(state, [tx, rx])| [(tx, state.sent), (rx, state.received)]));
        sums
    }
}

#[cfg(test)]
mod tests;

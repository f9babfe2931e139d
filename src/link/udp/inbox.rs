//! Datagrams from the sockets, as frames: each gets the headers again that the kernel removed.
//!
//! The kernel delivers a run of packets as one datagram, and says how long each of them is (UDP_GRO). They lie behind
//! each other in one buffer, which goes back to the pool with the last of them. Only the first has room before it. The
//! headers of each further one are written elsewhere in the buffer, with a copy of its InfiniBand headers: its frame has
//! two parts.

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::identification::{Solver, Tracker};
use super::link::{ETHERNET_BYTES, MAX_PACKET_BYTES, ethernet_header};
use super::outbox::RUN_PACKETS_MAX;
use super::pool::Pool;
use super::socket::{BATCH, Headers, Received, Socket};
use crate::frame::{Frame, FrameBytes, FramePool};
use crate::time::Instant;
use crate::wire::{Addresses, Bth, Flow, ICRC_BYTES, Opcode, icrc};

/// Buffers to receive into: those of an engine's step, and of the packets that it left for the next one.
const BUFFERS: u32 = 96;

/// Bytes before a datagram: Ethernet 14, IPv6 40, UDP 8, rounded up.
const HEADROOM_BYTES: usize = 64;

/// Room for the largest datagram.
const DATAGRAM_BYTES: usize = 65_536;

/// Room for the headers of a packet that is not the first of its run: 62 as above, BTH 12, extended headers 28.
const HEAD_BYTES: usize = 128;

/// Where the first of them lies in a buffer.
const HEADS_AT: usize = HEADROOM_BYTES + DATAGRAM_BYTES;

/// The buffers to receive into, and what is known of who sends.
pub(super) struct Inbox {
    pool: Arc<Pool>,
    free: Vec<u32>,
    headers: Headers,
    solver: Arc<Solver>,
    tracker: Tracker,
    /// Packets a datagram in the last batch, rounded up: how many datagrams to ask for.
    packets_a_datagram: usize,
    /// The two lengths that packets of runs had last; 0 before the first run. A message makes runs of two lengths: that of
    /// its first packet with the next, and that of the others.
    run_packet_bytes: [usize; 2],
    /// The identification after that of the last packet: the next of a run has it, and the next of a peer that counts.
    likely: u16,
    pub counters: Counters,
}

counters! {
    /// What became of received packets.
    pub(super) struct Counters {
        rx_runs,
        rx_run_frames,
        rx_too_long,
        rx_identification_refused,
    }
}

/// A packet in a buffer.
#[derive(Clone, Copy)]
struct Place {
    buffer: u32,
    /// Its place in its run.
    number: usize,
    /// Where it lies, from the BTH to the ICRC.
    start: usize,
    len: usize,
}

impl Inbox {
    pub fn new(solver: Arc<Solver>) -> Inbox {
        Inbox {
            pool: Pool::new(BUFFERS, HEADS_AT + RUN_PACKETS_MAX * HEAD_BYTES),
            free: (0..BUFFERS).rev().collect(),
            headers: Headers::new(),
            solver,
            tracker: Tracker::default(),
            packets_a_datagram: 1,
            run_packet_bytes: [0; 2],
            likely: 0,
            counters: Counters::default(),
        }
    }

    /// Receives one batch from a socket. It is made for `budget` packets, and can bring more: all of the last datagram's,
    /// and of others that hold more than those of the last batch did.
    pub fn receive(&mut self, socket: &Socket, now: Instant, budget: usize, frames: &mut Vec<Frame>) {
        self.pool.collect(&mut self.free);
        let count = budget.div_ceil(self.packets_a_datagram).min(socket.likely_batch()).min(self.free.len());
        let numbers: ArrayVec<u32, BATCH> = self.free.drain(self.free.len() - count..).collect();
        let datagram = |buffer: &u32| (self.pool.buffer(*buffer).wrapping_add(HEADROOM_BYTES), DATAGRAM_BYTES);
        let buffers: ArrayVec<(*mut u8, usize), BATCH> = numbers.iter().map(datagram).collect();
        let mut arrived: ArrayVec<Received, BATCH> = ArrayVec::new();
        // SAFETY: the buffers were free and are ours.
        unsafe { socket.receive(&mut self.headers, &buffers, |_, received| arrived.push(received)) };
        self.free.extend(numbers[arrived.len()..].iter().rev());
        let before = frames.len();
        for (&buffer, received) in numbers.iter().zip(&arrived) {
            self.take_apart(buffer, received, socket.address, now, frames);
        }
        if !arrived.is_empty() {
            self.packets_a_datagram = (frames.len() - before).div_ceil(arrived.len()).max(1);
        }
    }

    /// Makes frames of the packets of a datagram.
    fn take_apart(&mut self, buffer: u32, received: &Received, own: IpAddr, now: Instant, frames: &mut Vec<Frame>) {
        let Some(addresses) = Addresses::new(received.source, own) else { return self.free.push(buffer) };
        let flow = Flow {
            addresses,
            source_port: received.source_port,
            traffic_class: received.traffic_class,
            hop_limit: received.hop_limit,
            flow_label: received.flow_label,
        };
        let packet_bytes = match received.packet_bytes {
            0 => self.untold_packet_bytes(buffer, received.len, &flow).unwrap_or(received.len),
            told => {
                let [last, _] = self.run_packet_bytes;
                if told != last {
                    self.run_packet_bytes = [told, last];
                }
                told
            }
        };
        self.pool.lend(buffer);
        let mut place = Place { buffer, number: 0, start: HEADROOM_BYTES, len: packet_bytes.min(received.len) };
        let end = HEADROOM_BYTES + received.len;
        loop {
            frames.extend(self.frame(place, &flow, now));
            place = Place { number: place.number + 1, start: place.start + place.len, ..place };
            place.len = packet_bytes.min(end - place.start);
            if place.len == 0 {
                break;
            }
        }
        if place.number > 1 {
            self.counters.rx_runs += 1;
            self.counters.rx_run_frames += place.number as u64;
        }
        self.pool.give_back(buffer.into());
    }

    /// The length of the packets in a datagram that is a run of which the kernel does not tell: it arrived just before
    /// the arbiter decided that there shall be none. Such a run is like those before it, and its first packet has a right
    /// ICRC. `None` for a single packet.
    fn untold_packet_bytes(&self, buffer: u32, len: usize, flow: &Flow) -> Option<usize> {
        let mut lengths = self.run_packet_bytes.into_iter();
        lengths.find(|packet_bytes| *packet_bytes < len && self.begins_with_packet(*packet_bytes, buffer, len, flow))
    }

    /// Whether a datagram begins with a packet of this length that has a right ICRC, and another one to the same queue
    /// pair follows.
    fn begins_with_packet(&self, packet_bytes: usize, buffer: u32, len: usize, flow: &Flow) -> bool {
        if packet_bytes < Bth::BYTES + ICRC_BYTES {
            return false;
        }
        let start = self.pool.buffer(buffer).wrapping_add(HEADROOM_BYTES).cast_const();
        // SAFETY: the datagram lies in the buffer, which is ours.
        let datagram = unsafe { std::slice::from_raw_parts(start, len) };
        // The destination queue pair.
        let qpn = |packet: usize| datagram.get(packet + 5..packet + 8);
        if qpn(0) != qpn(packet_bytes) {
            return false;
        }
        let (bth, rest) = datagram[..packet_bytes].split_at(Bth::BYTES);
        let mut head = [0; HEADROOM_BYTES + Bth::BYTES];
        let outer = flow.header_bytes();
        flow.write(&mut head, 0, packet_bytes);
        head[outer..outer + Bth::BYTES].copy_from_slice(bth);
        let packet = FrameBytes { head: &head[..outer + Bth::BYTES], tail: rest };
        match (icrc_difference(packet), flow.addresses) {
            (Some(difference), Addresses::V4 { .. }) => {
                self.solver.solve(difference, packet.len() - ICRC_BYTES, 0).is_some()
            }
            (difference, Addresses::V6 { .. }) => difference == Some(0),
            _ => false,
        }
    }

    /// The frame of a packet. `None` when it is dropped, which is counted.
    fn frame(&mut self, place: Place, flow: &Flow, now: Instant) -> Option<Frame> {
        if place.len > MAX_PACKET_BYTES {
            self.counters.rx_too_long += 1;
            return None;
        }
        let pool = Arc::clone(&self.pool);
        let at = |start: usize| pool.buffer(place.buffer).wrapping_add(start);
        // SAFETY: the packet lies in the buffer, which is ours, and nothing writes there.
        let ib =
            |from: usize| unsafe { std::slice::from_raw_parts(at(place.start + from).cast_const(), place.len - from) };
        let outer = ETHERNET_BYTES + flow.header_bytes();
        if place.number >= RUN_PACKETS_MAX {
            // Nobody's that we know: in memory of its own.
            let mut bytes = [&vec![0; outer], ib(0)].concat();
            let icrc = self.write_headers(&mut bytes, &[], flow, now)?;
            return Some(icrc.of(Frame::from_vec(bytes)));
        }
        let (head_start, in_head) = match place.number {
            0 => (place.start - outer, place.len),
            number => (HEADS_AT + number * HEAD_BYTES, header_bytes(ib(0))),
        };
        // SAFETY: the head lies in the buffer, and no frame has it yet; nor does it overlap what is read here.
        let head = unsafe { std::slice::from_raw_parts_mut(at(head_start), outer + in_head) };
        if place.number > 0 {
            head[outer..].copy_from_slice(&ib(0)[..in_head]);
        }
        let icrc = self.write_headers(head, ib(in_head), flow, now)?;
        let parts = [(head_start, outer + in_head), (place.start + in_head, place.len - in_head)];
        // SAFETY: the buffer is lent, and both parts lie in it.
        Some(icrc.of(unsafe { pool.frame(place.buffer, parts) }))
    }

    /// Writes the headers that the kernel removed to the start of a frame's first part. `None` when the packet is to be
    /// dropped, which is counted.
    fn write_headers(&mut self, head: &mut [u8], tail: &[u8], flow: &Flow, now: Instant) -> Option<Icrc> {
        let (ethernet, packet) = head.split_at_mut(ETHERNET_BYTES);
        let ib_bytes = packet.len() - flow.header_bytes() + tail.len();
        flow.write(packet, 0, ib_bytes);
        let IpAddr::V4(peer) = flow.addresses.source() else {
            ethernet_header().write(ethernet, 6);
            return Some(Icrc::Unchecked);
        };
        ethernet_header().write(ethernet, 4);
        let Some(identification) = self.identification(FrameBytes { head: packet, tail }) else {
            return Some(Icrc::Unchecked);
        };
        self.likely = identification.wrapping_add(1);
        if !self.tracker.accepts(peer, identification, now) {
            self.counters.rx_identification_refused += 1;
            return None;
        }
        if identification != 0 {
            flow.write(packet, identification, ib_bytes);
        }
        Some(Icrc::Right)
    }

    /// The identification of an IPv4 packet that has 0 in its place now, which makes its ICRC right. `None` when none
    /// does; the transport then drops the packet.
    fn identification(&self, packet: FrameBytes<'_>) -> Option<u16> {
        self.solver.solve(icrc_difference(packet)?, packet.len() - ICRC_BYTES, self.likely)
    }
}

/// What is known of the ICRC of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Icrc {
    Unchecked,
    Right,
}

impl Icrc {
    /// The frame, which says so.
    fn of(self, frame: Frame) -> Frame {
        if self == Icrc::Right { frame.with_right_icrc() } else { frame }
    }
}

/// Length of the InfiniBand headers of a packet, or of the packet if that is shorter.
fn header_bytes(ib: &[u8]) -> usize {
    let opcode = ib.first().map(|byte| Opcode(*byte));
    opcode.map_or(0, |opcode| Bth::BYTES + opcode.extension_bytes()).min(ib.len())
}

/// What the ICRC of a packet differs by from the right one. `None` when the packet is too short for one.
fn icrc_difference(packet: FrameBytes<'_>) -> Option<u32> {
    let covered = packet.len().checked_sub(ICRC_BYTES)?;
    Some(icrc::compute(packet.take(covered))? ^ icrc::stored(packet)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, Extension, Key, Psn, Qpn, Reth, RoceFrame};
    use std::convert::Infallible;
    use std::net::Ipv4Addr;

    /// The frame says of its ICRC what computing it again would.
    #[test]
    fn an_identification_makes_the_icrc_right_and_a_damaged_packet_is_left_to_the_endpoint() {
        let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let addresses = Addresses::V4 { source, destination };
        let flow = Flow { addresses, source_port: 0xc123, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(0x11), Psn::new(7));
        let headers = wire::Headers { bth, extension: Extension::Reth(Reth::new(0x1000, Key(7), 64)) };
        let mut packet = vec![0; 200];
        let fill = |out: &mut [u8]| {
            out.fill(0x5a);
            Ok::<_, Infallible>(())
        };
        let len = headers.write(&mut packet, &flow, 0x4321, 64, fill).unwrap();
        let mut inbox = Inbox::new(Arc::new(Solver::new(MAX_PACKET_BYTES)));
        for damage in [0, 1] {
            let outer = flow.header_bytes();
            let mut frame = vec![0; ETHERNET_BYTES + len];
            frame[ETHERNET_BYTES + outer..].copy_from_slice(&packet[outer..len]);
            frame[ETHERNET_BYTES + outer + 40] ^= damage;
            let icrc = inbox.write_headers(&mut frame, &[], &flow, Instant::ZERO);
            assert_eq!(icrc, Some(if damage == 0 { Icrc::Right } else { Icrc::Unchecked }));
            let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap();
            assert_eq!(roce.icrc_ok(), damage == 0);
            assert_eq!(roce.ip.identification(), Some(if damage == 0 { 0x4321 } else { 0 }));
        }
    }
}

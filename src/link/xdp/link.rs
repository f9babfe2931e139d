use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use xsk_rs::FrameDesc;

use super::accounts::FrameAccounts;
use super::opening;
use super::pool::{Pool, chunk_of};
use super::program::Program;
use super::queue::{BATCH, Queue};
use super::sockets::Sockets;
use super::{
    AttachMode, CHUNK_BYTES, CHUNK_CAPACITY, ETHERNET_BYTES_MAX, HEADROOM_BYTES, MULTI_BUFFER_PACKET_BYTES,
    SINGLE_BUFFER_PACKET_BYTES, XdpOpenError, XdpOptions, rings,
};
use crate::frame::Frame;
use crate::link::holder::Claim;
use crate::link::membership::{Memberships, Place};
use crate::link::neighbour::{Released, Step};
use crate::link::netlink::{Interface, Netlink};
use crate::link::next_hops::NextHops;
use crate::link::{EthernetHeader, Hop, HopError, Link, Requests, gid};
use crate::time::{Duration, Instant, earliest};

/// A frame in two parts whose first is shorter than the longest headers is dropped: Ethernet with a tag 18, IPv6 40,
/// UDP 8, BTH 12, AtomicETH 28 bytes.
const HEAD_BYTES_MIN: usize = ETHERNET_BYTES_MAX + 40 + 8 + 12 + 28;

/// Pause before [`Link::flush`] should be called again: the time of some twenty packets. The kernel did not take a
/// packet (no memory for it, for a moment), or all buffers are in flight.
const RETRY: Duration = Duration::from_micros(50);

/// The same pause while the interface is down: nothing becomes free before that is over.
const RETRY_DOWN: Duration = Duration::from_millis(10);

/// The share of the transmit buffers that packets without a neighbour can occupy: a missing peer must not stop the
/// traffic to others.
const WAITING_SHARE: usize = 2;

/// Frames that the kernel needs before it is worth going to the fill ring.
const REFILL_AT: usize = 32;

/// A [`Link`] over AF_XDP sockets, one a receive queue of the interface, with common memory.
///
/// A sender's segmentation offload (UDP GSO) makes frames above the MTU on veth. In skb mode they arrive in more than
/// two chunks, and are dropped and counted as `rx_too_many_parts`. In native mode veth turns that offload off.
///
/// Frames that it gave out keep its memory and its first socket alive: the interface is free for others when the link
/// and the last of its frames are gone.
pub struct XdpLink {
    // Dropped in this order: no frame reaches a socket any more before the sockets go, and the interface is free then.
    program: Program,
    queues: Vec<Queue>,
    partials: Vec<Partial>,
    pool: Arc<Pool>,
    descriptors: Box<[FrameDesc]>,
    next_hops: NextHops<Waiting>,
    /// Receive chunks that are free.
    free_chunks: Vec<u32>,
    /// Chunks in all frames that were given out so far.
    handed_out: u64,
    /// Transmit pairs that are free.
    free_pairs: Vec<u32>,
    /// Descriptors of each pair that the kernel has not completed.
    outstanding: Box<[u8]>,
    in_flight: u32,
    waiting: usize,
    lent: Option<Lent>,
    /// Length of the last packet's Ethernet header: where the next one's IP header is lent.
    header_bytes: usize,
    released: Vec<Released<Waiting>>,
    /// The addresses whose frames the program takes: those of the interface, and the groups.
    accepted: Vec<IpAddr>,
    groups: Vec<IpAddr>,
    /// When to try again although nothing was received.
    retry_at: Option<Instant>,
    /// Whether a buffer was requested and none was free.
    starved: bool,
    next_queue: usize,
    memberships: Memberships,
    interface: Interface,
    mode: AttachMode,
    zero_copy: bool,
    multi_buffer: bool,
    max_packet_bytes: usize,
    counters: Counters,
    _claim: Claim,
}

/// What a queue has received of a packet in several descriptors.
enum Partial {
    None,
    Head(FrameDesc),
    /// More than two: dropped to its end.
    TooLong,
}

impl Partial {
    /// Takes the next descriptor. Returns those of a packet that is whole; the chunks of one that is dropped go to `free`.
    fn take(
        &mut self,
        next: &FrameDesc,
        counters: &mut Counters,
        free: &mut Vec<u32>,
    ) -> Option<(FrameDesc, Option<FrameDesc>)> {
        match (&*self, next.has_more_frames()) {
            (Partial::None, false) => return Some((*next, None)),
            (Partial::None, true) => *self = Partial::Head(*next),
            (Partial::Head(head), false) => {
                let head = *head;
                *self = Partial::None;
                if head.lengths().data() >= HEAD_BYTES_MIN {
                    return Some((head, Some(*next)));
                }
                counters.rx_short_head += 1;
                free.extend([chunk_of(&head), chunk_of(next)]);
            }
            (Partial::Head(head), true) => {
                counters.rx_too_many_parts += 1;
                free.extend([chunk_of(head), chunk_of(next)]);
                *self = Partial::TooLong;
            }
            (Partial::TooLong, more) => {
                free.push(chunk_of(next));
                if !more {
                    *self = Partial::None;
                }
            }
        }
        None
    }
}

#[derive(Clone, Copy)]
struct Lent {
    pair: u32,
    header_bytes: usize,
}

/// A packet in a pair that waits for its neighbour.
#[derive(Debug)]
struct Waiting {
    pair: u32,
    header_bytes: usize,
    len: usize,
    hop: Hop,
}

counters! {
    /// What became of frames.
    struct Counters {
        rx_frames,
        rx_bytes,
        rx_too_many_parts,
        rx_short_head,
        tx_frames,
        tx_bytes,
        tx_waited_for_neighbour,
        tx_no_neighbour,
        tx_no_buffer,
        tx_stalls,
        tx_errors,
        addresses_refused,
    }
}

impl XdpLink {
    /// Opens `interface` in the calling thread's network namespace: loads and attaches the program, makes the sockets.
    ///
    /// It blocks for up to a second while an earlier owner of the queue is still going away.
    ///
    /// # Errors
    /// [`XdpOpenError`] has a variant for each condition, and its text names the remedy:
    ///
    /// - the interface is missing, not Ethernet, down, or taken, or its MTU is too large;
    /// - a capability is missing, or the kernel refuses the program or the socket;
    /// - the memory for frames cannot be locked;
    /// - an option is out of range.
    pub fn open(interface: &str, options: &XdpOptions) -> Result<XdpLink, XdpOpenError> {
        XdpLink::open_with(interface, options, None)
    }

    /// As [`open`](Self::open), but takes only packets for the slot, 1 to 63: the kernel gets those for other programs of
    /// this host, which have sockets on the same addresses. The caller has the slot's own sockets already.
    ///
    /// # Errors
    /// As `open`; [`XdpOpenError::Shared`] when another of these programs has the interface over AF_XDP.
    pub fn open_shared(interface: &str, options: &XdpOptions, slot: u8) -> Result<XdpLink, XdpOpenError> {
        XdpLink::open_with(interface, options, Some(slot))
    }

    fn open_with(interface: &str, options: &XdpOptions, slot: Option<u8>) -> Result<XdpLink, XdpOpenError> {
        let name = interface;
        let step = |what| move |error| XdpOpenError::Step { interface: name.to_owned(), what, error };
        let interfaces = Netlink::open().and_then(|mut n| n.interfaces()).map_err(step("querying the interfaces"))?;
        let interface = interfaces
            .iter()
            .find(|i| i.name == name)
            .cloned()
            .ok_or_else(|| XdpOpenError::NoInterface { interface: name.to_owned() })?;
        opening::check(&interface, options)?;
        // Before the program is attached: see `holder`.
        let addresses = gid::addresses(&interface, &interfaces);
        let claim = match slot {
            None => opening::claim(&interface, &addresses)?,
            Some(_) => opening::claim_shared(&interface)?,
        };

        let wanted = options.queues.unwrap_or(interface.rx_queues).clamp(1, interface.rx_queues);
        let mut program = Program::load(wanted).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpOpenError::LoadRefused { interface: name.to_owned(), error },
            _ => step("loading the XDP program")(error),
        })?;
        // Frames that come as soon as it is attached are for us, or are not.
        for &address in &addresses {
            program.accept(address).map_err(step("passing the addresses to the XDP program"))?;
        }
        if let Some(slot) = slot {
            program.set_slot(slot).map_err(step("passing the slot to the XDP program"))?;
        }
        let mode = opening::attach(&mut program, &interface, options)?;
        // The events of attaching are over before the tables are read.
        let next_hops = NextHops::open(interface.index).map_err(step("querying the neighbours"))?;

        let sockets = Sockets::open(&interface, options, mode, wanted)?;
        for (number, queue) in sockets.queues.iter().enumerate() {
            program.add_socket(number as u32, queue.fd()).map_err(step("registering the socket"))?;
        }
        let Sockets { pool, descriptors, queues, zero_copy, multi_buffer } = sockets;
        rings::keep_from_children(&queues.iter().map(Queue::fd).collect::<Vec<_>>());
        let limit = if multi_buffer { MULTI_BUFFER_PACKET_BYTES } else { SINGLE_BUFFER_PACKET_BYTES };
        let chunks = pool.receive_chunks();
        let mut link = XdpLink {
            program,
            accepted: addresses,
            groups: Vec::new(),
            partials: queues.iter().map(|_| Partial::None).collect(),
            queues,
            pool,
            descriptors,
            next_hops,
            // The end of the list is used first.
            free_chunks: (0..chunks).rev().collect(),
            handed_out: 0,
            free_pairs: (0..options.transmit_packets).rev().collect(),
            outstanding: vec![0; options.transmit_packets as usize].into(),
            in_flight: 0,
            waiting: 0,
            lent: None,
            header_bytes: 14,
            released: Vec::with_capacity(options.transmit_packets as usize),
            retry_at: None,
            starved: false,
            next_queue: 0,
            max_packet_bytes: interface.mtu.min(limit),
            memberships: Memberships::new(Place::new(interface.index, interface.addresses.iter().copied())),
            interface,
            mode,
            zero_copy,
            multi_buffer,
            counters: Counters::default(),
            _claim: claim,
        };
        // What has changed since the interfaces were listed.
        link.update_accepted();
        link.refill(1);
        Ok(link)
    }

    /// Where the program is attached: in the driver or in the network stack.
    pub fn mode(&self) -> AttachMode {
        self.mode
    }

    /// Whether the driver reads and writes our memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether packets can take two chunks.
    pub fn is_multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// The number of receive queues that are served.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The interface as it was when the link was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Where all frames are. Cheap enough for tests and for reports, too expensive for every packet.
    pub fn accounts(&self) -> FrameAccounts {
        let partial = self.partials.iter().filter(|p| matches!(p, Partial::Head(_))).count();
        FrameAccounts {
            receive_total: u64::from(self.pool.receive_chunks()),
            receive_kernel: self.queues.iter().map(|q| u64::from(q.in_kernel())).sum::<u64>() + partial as u64,
            receive_free: (self.free_chunks.len() + self.pool.returned()) as u64,
            receive_held: self.handed_out - self.pool.given_back(),
            transmit_total: self.outstanding.len() as u64,
            transmit_free: self.free_pairs.len() as u64,
            transmit_lent: u64::from(self.lent.is_some()),
            transmit_waiting: self.waiting as u64,
            transmit_kernel: self.outstanding.iter().filter(|&&n| n > 0).count() as u64,
        }
    }

    /// Whether every frame is accounted for; call it while no other thread is dropping frames.
    pub fn frames_conserved(&self) -> bool {
        self.accounts().conserved()
    }

    /// Takes packets to these multicast groups too, in place of those of an earlier call.
    ///
    /// The caller joins them with the kernel, which reports them to switches and the interface; [`join`](Link::join)
    /// does both.
    pub fn set_groups(&mut self, groups: &[IpAddr]) {
        self.groups = groups.to_vec();
        self.update_accepted();
    }

    /// Passes the current addresses to the program.
    fn update_accepted(&mut self) {
        let mut wanted = self.next_hops.addresses();
        wanted.extend(&self.groups);
        let program = &mut self.program;
        self.accepted.retain(|address| wanted.contains(address) || program.refuse(*address).is_err());
        for address in wanted {
            if !self.accepted.contains(&address) {
                match self.program.accept(address) {
                    Ok(()) => self.accepted.push(address),
                    Err(_) => self.counters.addresses_refused += 1,
                }
            }
        }
    }

    /// Gives chunks to the kernel where `at_least` or more are missing.
    fn refill(&mut self, at_least: usize) {
        for queue in &mut self.queues {
            let wanted = queue.wanted();
            if wanted < at_least {
                continue;
            }
            // The end of the list is used first: what came back last is still in a cache.
            self.pool.collect(&mut self.free_chunks);
            queue.refill(&mut self.free_chunks, &self.descriptors);
        }
    }

    /// Collects the buffers of packets that were sent.
    fn collect_completed(&mut self) {
        if self.in_flight == 0 {
            return;
        }
        for queue in &mut self.queues {
            loop {
                let completed = queue.completed();
                for descriptor in completed {
                    let pair = self.pool.pair_of(descriptor);
                    let outstanding = &mut self.outstanding[pair as usize];
                    *outstanding -= 1;
                    if *outstanding == 0 {
                        self.in_flight -= 1;
                        self.free_pairs.push(pair);
                    }
                }
                if completed.len() < BATCH {
                    break;
                }
            }
        }
    }

    /// Puts the Ethernet header before the packet of `len` bytes in `pair`, whose IP header is at `at`, and queues it.
    fn send(&mut self, pair: u32, at: usize, len: usize, hop: Hop, header: &EthernetHeader) {
        // SAFETY: the pair is ours until it is queued below, and its bytes are not lent any more.
        let bytes = unsafe { &mut *self.pool.pair_bytes(pair) };
        let frame_bytes = lay_out(bytes, at, len, header);
        self.header_bytes = header.len();
        let first = self.pool.first_chunk(pair) as usize;
        let queue = (hop.0 % self.queues.len() as u64) as usize;
        // SAFETY: the pair is ours, and goes to the kernel with this call.
        let parts = unsafe {
            self.queues[queue].transmit(&self.pool, self.descriptors[first], self.descriptors[first + 1], frame_bytes)
        };
        self.outstanding[pair as usize] = parts;
        self.in_flight += 1;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += frame_bytes as u64;
    }

    /// Sends or drops the packets whose wait is over.
    fn release(&mut self) {
        while let Some(Released { packet, header }) = self.released.pop() {
            self.waiting -= 1;
            match header {
                Some(header) => self.send(packet.pair, packet.header_bytes, packet.len, packet.hop, &header),
                None => {
                    self.counters.tx_no_neighbour += 1;
                    self.free_pairs.push(packet.pair);
                }
            }
        }
    }
}

impl Link for XdpLink {
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.memberships.join(group)?;
        self.set_groups(&self.memberships.groups());
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.memberships.leave(group);
        self.set_groups(&self.memberships.groups());
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.program.take(&requests);
        Ok(())
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.program.leave(&requests);
    }

    fn expect_unreliable(&mut self) {
        self.queues.iter_mut().for_each(Queue::keep_room);
        self.refill(1);
    }

    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let before = frames.len();
        let queues = self.queues.len();
        // Another queue comes first every time, so that a busy one does not starve the others.
        self.next_queue = (self.next_queue + 1) % queues;
        for step in 0..queues {
            let number = (self.next_queue + step) % queues;
            self.queues[number].note_waiting(now);
            loop {
                let left = budget - (frames.len() - before);
                let received = self.queues[number].receive(left);
                let (count, full) = (received.len(), received.len() == left.min(BATCH));
                if count == 0 {
                    break;
                }
                for descriptor in received {
                    let partial = &mut self.partials[number];
                    let Some((head, tail)) = partial.take(descriptor, &mut self.counters, &mut self.free_chunks) else {
                        continue;
                    };
                    let bytes = head.lengths().data() + tail.map_or(0, |t| t.lengths().data());
                    self.counters.rx_bytes += bytes as u64;
                    self.handed_out += 1 + u64::from(tail.is_some());
                    // SAFETY: the receive ring has just given us the chunks, and nobody else knows of them.
                    frames.push(unsafe { self.pool.frame(&head, tail.as_ref()) });
                }
                if !full || frames.len() - before >= budget {
                    break;
                }
            }
        }
        self.refill(REFILL_AT);
        let number = frames.len() - before;
        self.counters.rx_frames += number as u64;
        number
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        if self.lent.is_none() {
            if self.free_pairs.is_empty() {
                self.collect_completed();
            }
            let Some(pair) = self.free_pairs.pop() else {
                self.counters.tx_no_buffer += 1;
                self.starved = true;
                return None;
            };
            self.lent = Some(Lent { pair, header_bytes: self.header_bytes });
        }
        let Lent { pair, header_bytes } = self.lent?;
        // SAFETY: the pair was free and is lent once: the borrow of `self` ends before anything else happens to it.
        let bytes = unsafe { &mut *self.pool.pair_bytes(pair) };
        Some(&mut bytes[header_bytes..][..self.max_packet_bytes])
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        assert!(len > 0 && len <= self.max_packet_bytes, "a packet of {len} bytes in {}", self.max_packet_bytes);
        let Lent { pair, header_bytes } = self.lent.take().expect("transmit follows transmit_buffer");
        // SAFETY: the pair was lent and is ours again until it is queued below.
        let bytes = unsafe { &*self.pool.pair_bytes(pair) };
        let hop = self.next_hops.current(hop, &bytes[header_bytes..][..len]);
        match self.next_hops.step(now, hop) {
            Step::Send(header) => self.send(pair, header_bytes, len, hop, &header),
            Step::Wait if self.waiting < self.outstanding.len() / WAITING_SHARE => {
                match self.next_hops.wait(hop, Waiting { pair, header_bytes, len, hop }) {
                    Ok(()) => {
                        self.waiting += 1;
                        self.counters.tx_waited_for_neighbour += 1;
                    }
                    Err(packet) => {
                        self.counters.tx_no_neighbour += 1;
                        self.free_pairs.push(packet.pair);
                    }
                }
            }
            Step::Wait | Step::Drop => {
                self.counters.tx_no_neighbour += 1;
                self.free_pairs.push(pair);
            }
        }
    }

    fn flush(&mut self, now: Instant) {
        self.next_hops.poll(now, &mut self.released);
        if self.next_hops.take_interface_change() {
            self.update_accepted();
        }
        if !self.released.is_empty() {
            // Oldest first.
            self.released.reverse();
            self.release();
        }
        if self.in_flight > 0 {
            let mut stalled = false;
            // While it is down the kernel takes nothing, and what it has leaves when it is up.
            let is_up = self.next_hops.interface_is_up();
            for queue in self.queues.iter_mut().filter(|_| is_up) {
                match queue.kick() {
                    Ok(0) => {}
                    Ok(_) => {
                        self.counters.tx_stalls += 1;
                        stalled = true;
                    }
                    Err(_) => self.counters.tx_errors += 1,
                }
            }
            self.collect_completed();
            stalled |= self.starved && self.free_pairs.is_empty();
            self.starved &= stalled;
            self.retry_at = stalled.then(|| now + if is_up { RETRY } else { RETRY_DOWN });
        }
        self.refill(1);
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        self.next_hops.hop(source, destination)
    }

    fn route_changes(&self) -> u64 {
        self.next_hops.route_changes()
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        self.next_hops.header(hop)
    }

    fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        // Sockets of an interface that is gone are readable for ever.
        let present = self.next_hops.interface_is_present();
        let sockets = self.queues.iter().filter(|_| present).map(Queue::fd);
        sockets.chain([self.next_hops.event_fd()]).collect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.retry_at, self.next_hops.poll_timeout()])
    }

    fn mode(&self) -> String {
        let copy = if self.is_zero_copy() { "zero-copy" } else { "copy" };
        format!("xdp-{}-{copy}", XdpLink::mode(self).name())
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut kernel = [0; 4];
        for queue in &self.queues {
            for (sum, value) in kernel.iter_mut().zip(queue.statistics()) {
                *sum += value;
            }
        }
        let names = ["rx_ring_full", "rx_fill_ring_empty", "rx_dropped_by_kernel", "tx_invalid_by_kernel"];
        let hops = self.next_hops.counters();
        self.counters.list().chain(names.into_iter().zip(kernel)).chain(hops.list()).collect()
    }
}

/// Puts `header` before the packet of `len` bytes at `at`, so that the frame begins at 0. Bytes that do not fit into
/// the first chunk move to where the second one's descriptor points. Returns the frame's length.
fn lay_out(bytes: &mut [u8], at: usize, len: usize, header: &EthernetHeader) -> usize {
    let header_bytes = header.len();
    if header_bytes != at {
        // The buffer was lent with room for another header: the first packet behind a VLAN tag, or without one.
        bytes.copy_within(at..at + len, header_bytes);
    }
    header.write(bytes, bytes[header_bytes] >> 4);
    let frame_bytes = header_bytes + len;
    if frame_bytes > CHUNK_CAPACITY {
        // The descriptor points behind the chunk's headroom; at a path MTU of 4096 that is 300 bytes to move.
        bytes.copy_within(CHUNK_CAPACITY..frame_bytes, CHUNK_BYTES);
    }
    frame_bytes
}

const _: () = assert!(HEADROOM_BYTES + CHUNK_CAPACITY == CHUNK_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    /// For headers of both lengths, behind lent buffers for both, and packets around the end of the first chunk: the two
    /// descriptors' bytes together are the header and the packet.
    #[test]
    fn frames_are_laid_out_in_one_or_two_chunks_behind_either_header() {
        let headers =
            [EthernetHeader::new([1; 6], [2; 6], None), EthernetHeader::new([1; 6], [2; 6], Some((77, 0x8100)))];
        for header in &headers {
            for at in [14, 18] {
                for len in
                    [64, CHUNK_CAPACITY - 18, CHUNK_CAPACITY - 14, CHUNK_CAPACITY - 13, 4200, MULTI_BUFFER_PACKET_BYTES]
                {
                    let packet: Vec<u8> = (0..len).map(|i| 0x45 ^ (i % 251) as u8).collect();
                    let mut bytes = vec![0xee; 2 * CHUNK_BYTES - HEADROOM_BYTES];
                    bytes[at..at + len].copy_from_slice(&packet);
                    let frame_bytes = lay_out(&mut bytes, at, len, header);
                    let head = frame_bytes.min(CHUNK_CAPACITY);
                    let frame = [&bytes[..head], &bytes[CHUNK_BYTES..CHUNK_BYTES + frame_bytes - head]].concat();
                    let mut expected = vec![0; header.len()];
                    header.write(&mut expected, 4);
                    expected.extend(&packet);
                    assert!(frame == expected, "header {} at {at} packet {len}", header.len());
                }
            }
        }
    }
}

//! Packets on their way to the sockets, and which of them leave as one.
//!
//! A run is a row of packets to one queue pair that differ in nothing the kernel writes: it takes them as one datagram,
//! and it or the interface cuts them apart (UDP_SEGMENT). All are as long as the first; only the last may be shorter. So
//! the first packet of a message, whose headers are longer, makes a run with the second, and the others make the next.
//! Between peers with the extension all have one length. Then 15 of path MTU 4096 fill a run, and the last packet of a
//! message begins the next, with which the following message goes on.
//!
//! A run has one destination queue pair: the receiver's kernel picks a socket for it once, by its first packet, and
//! programs share addresses by the queue pair's number.
//!
//! Packets are numbered when they are queued: the kernel writes the identification 0 into an IPv4 packet, and 1, 2 and so
//! on into the further ones of a run, and the ICRC covers it.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::identification::Solver;
use super::link::Destination;
use super::pool::Pool;
use super::socket::{BATCH, Headers, Outgoing, Socket};

/// Upper bound on the packets of a run: UDP_MAX_SEGMENTS of Linux before 6.9, and what a step of the engine sends.
pub(super) const RUN_PACKETS_MAX: usize = 64;

/// Upper bound on the bytes of a run: what an IPv4 packet without options has for UDP's payload.
const RUN_BYTES_MAX: usize = 65_535 - 20 - UDP_BYTES;

/// Upper bound on the packets that wait for the sockets: two steps of an engine.
const BUFFERS: u32 = 2 * BATCH as u32;

pub(super) const UDP_BYTES: usize = 8;

/// The buffers to send from, and the packets that wait in them.
pub(super) struct Outbox {
    pool: Arc<Pool>,
    free: Vec<u32>,
    lent: Option<u32>,
    queued: VecDeque<Queued>,
    max_packet_bytes: usize,
}

struct Queued {
    buffer: u32,
    len: usize,
    destination: Destination,
    /// Its place in its run: 0 begins one.
    place: usize,
}

/// What became of the oldest packets.
pub(super) enum Sent {
    /// The kernel took them.
    Taken,
    /// The kernel has no room now.
    Stalled,
    /// The kernel refused the oldest run, of so many packets.
    Refused(u64),
    /// The kernel refused the oldest run, whose packets are single ones from now on. `is_for_good`: it would refuse
    /// others, too.
    Split { is_for_good: bool },
}

/// What the kernel took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub packets: u64,
    /// Bytes of the IP packets.
    pub bytes: u64,
    /// Runs of at least two packets, and the packets in them.
    pub runs: u64,
    pub run_packets: u64,
}

impl Outbox {
    pub fn new(max_packet_bytes: usize) -> Outbox {
        Outbox {
            pool: Pool::new(BUFFERS, max_packet_bytes),
            free: (0..BUFFERS).rev().collect(),
            lent: None,
            queued: VecDeque::with_capacity(BUFFERS as usize),
            max_packet_bytes,
        }
    }

    /// Lends a buffer; the same one again until its packet is queued. `None` when all are in use.
    pub fn lend(&mut self) -> Option<&mut [u8]> {
        self.lent = self.lent.or_else(|| self.free.pop());
        self.lent.is_some().then(|| self.lent(self.max_packet_bytes))
    }

    /// The first `len` bytes of the lent buffer.
    ///
    /// # Panics
    /// When none is lent, or it is shorter.
    pub fn lent(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.max_packet_bytes, "a packet of {len} bytes in {}", self.max_packet_bytes);
        let start = self.pool.buffer(self.lent.expect("transmit follows transmit_buffer"));
        // SAFETY: the buffer is lent, and so nobody else's; the borrow of `self` ends before that changes.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Gives the packet in the lent buffer the number that it will have when it leaves. Returns its place in its run.
    pub fn number(&mut self, len: usize, destination: Destination, solver: &Solver, runs: bool) -> usize {
        let place = if runs { self.place(len, destination) } else { 0 };
        if destination.address.is_ipv4() {
            solver.renumber(self.lent(len), place as u16);
        }
        place
    }

    /// Queues the packet in the lent buffer.
    pub fn queue(&mut self, len: usize, destination: Destination, place: usize) {
        let buffer = self.lent.take().expect("transmit follows transmit_buffer");
        self.queued.push_back(Queued { buffer, len, destination, place });
    }

    /// Takes the lent buffer back.
    pub fn drop_lent(&mut self) {
        self.free.extend(self.lent.take());
    }

    /// The place of the packet in the lent buffer in the run of the packets before it; 0 when it begins another.
    fn place(&mut self, len: usize, destination: Destination) -> usize {
        let (.., header) = fields(self.lent(len));
        let Some((place, first, last)) = self.last_run() else { return 0 };
        let is_next = last.len == first.len
            && len <= first.len
            && has_room(place, first.len - header, len - header)
            && first.destination == destination;
        let (buffer, first_len) = (first.buffer, first.len);
        if is_next && like(self.packet(buffer, first_len)) == like(self.lent(len)) { place } else { 0 }
    }

    /// The packet in a buffer that is queued.
    fn packet(&self, buffer: u32, len: usize) -> &[u8] {
        // SAFETY: the buffer is ours while it is queued, and is written through `&mut self` only.
        unsafe { std::slice::from_raw_parts(self.pool.buffer(buffer).cast_const(), len) }
    }

    /// The run at the end: the number of its packets, its first one and its last one.
    fn last_run(&self) -> Option<(usize, &Queued, &Queued)> {
        let last = self.queued.back()?;
        let packets = last.place + 1;
        Some((packets, &self.queued[self.queued.len() - packets], last))
    }

    /// The number of packets in the run at the end, if others as long can join it; otherwise 0.
    pub fn open_run(&self) -> usize {
        let Some((packets, first, last)) = self.last_run() else { return 0 };
        let (.., header) = fields(self.packet(last.buffer, last.len));
        let bytes = first.len - header;
        if last.len == first.len && has_room(packets, bytes, bytes) { packets } else { 0 }
    }

    /// The packets that wait.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// The socket of the oldest packet; `None` when there is none.
    pub fn next_socket(&self) -> Option<usize> {
        self.queued.front().map(|queued| queued.destination.socket)
    }

    /// Hands the oldest packets to the kernel, at most `packets`, the last of which ends a run, as far as they leave by
    /// `socket`, whose number is `number` and whose interface is `scope`. Those that are taken or refused leave the outbox.
    pub fn send(
        &mut self,
        (packets, number, socket, scope): (usize, usize, &Socket, u32),
        headers: &mut Headers,
        solver: &Solver,
        tally: &mut Tally,
    ) -> Sent {
        let leaving = self.queued.iter().take_while(|queued| queued.destination.socket == number);
        let datagrams = leaving.take(self.batch(packets)).map(|queued| {
            let packet = self.packet(queued.buffer, queued.len);
            outgoing(packet, queued.destination.address, scope, queued.place > 0)
        });
        // SAFETY: the payloads lie in buffers that are ours while they are queued.
        match unsafe { socket.send(headers, datagrams) } {
            Ok(runs) => {
                self.drop_runs(runs, tally);
                Sent::Taken
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => {
                Sent::Stalled
            }
            Err(error) if is_for_runs(&error) && self.run_packets() > 1 => {
                self.split(solver);
                // What is too long for the interface's MTU is so as a single packet, too.
                Sent::Split { is_for_good: error.raw_os_error() != Some(libc::EMSGSIZE) }
            }
            // The network is away, say: this run is lost, the next one may go elsewhere.
            Err(_) => {
                let mut refused = Tally::default();
                self.drop_runs(1, &mut refused);
                Sent::Refused(refused.packets)
            }
        }
    }

    /// How many of so many oldest packets one call sends: no run is cut.
    fn batch(&self, packets: usize) -> usize {
        let end = |at: &usize| self.queued.get(*at).is_none_or(|queued| queued.place == 0);
        (1..=BATCH.min(packets)).rev().find(end).unwrap_or(0)
    }

    /// The number of packets in the oldest run.
    fn run_packets(&self) -> usize {
        1 + self.queued.iter().skip(1).take_while(|queued| queued.place > 0).count()
    }

    fn drop_runs(&mut self, runs: usize, tally: &mut Tally) {
        for _ in 0..runs {
            let packets = self.run_packets().min(self.queued.len());
            for queued in self.queued.drain(..packets) {
                tally.bytes += queued.len as u64;
                self.free.push(queued.buffer);
            }
            tally.packets += packets as u64;
            if packets > 1 {
                tally.runs += 1;
                tally.run_packets += packets as u64;
            }
        }
    }

    /// Makes single packets of the oldest run.
    fn split(&mut self, solver: &Solver) {
        for at in 0..self.run_packets() {
            let queued = &mut self.queued[at];
            queued.place = 0;
            if queued.destination.address.is_ipv4() {
                // SAFETY: the buffer is ours while it is queued.
                let packet = unsafe { std::slice::from_raw_parts_mut(self.pool.buffer(queued.buffer), queued.len) };
                solver.renumber(packet, 0);
            }
        }
    }
}

/// Whether a run of so many packets, whose InfiniBand parts have `bytes`, has room for another one of `more` bytes.
fn has_room(packets: usize, bytes: usize, more: usize) -> bool {
    packets < RUN_PACKETS_MAX && packets * bytes + more <= RUN_BYTES_MAX
}

/// Whether the kernel can refuse a run for this, and take its packets: no checksum offload (EIO, before Linux 6.11) or
/// IPsec (EIO), more segments than it takes (EINVAL), segments longer than the interface's MTU (EMSGSIZE).
fn is_for_runs(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE))
}

/// Traffic class, hop limit, and the word with the destination queue pair: all packets of a run have the same.
fn like(packet: &[u8]) -> Option<(u8, u8, [u8; 3])> {
    let (traffic_class, hop_limit, header_bytes) = fields(packet);
    let qpn = packet.get(header_bytes + 5..header_bytes + 8)?;
    Some((traffic_class, hop_limit, [qpn[0], qpn[1], qpn[2]]))
}

/// Traffic class, hop limit, and the length of the IP and UDP headers.
fn fields(packet: &[u8]) -> (u8, u8, usize) {
    match packet[0] >> 4 {
        4 => (packet[1], packet[8], UDP_BYTES + 20),
        _ => (packet[0] << 4 | packet[1] >> 4, packet[7], UDP_BYTES + 40),
    }
}

/// The fields that the kernel needs to write the packet's headers again.
fn outgoing(packet: &[u8], destination: IpAddr, scope: u32, continues: bool) -> Outgoing {
    let (traffic_class, hop_limit, header_bytes) = fields(packet);
    let payload = &packet[header_bytes..];
    Outgoing { payload: (payload.as_ptr(), payload.len()), destination, scope, traffic_class, hop_limit, continues }
}

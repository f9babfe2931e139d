use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use crate::wire::{Psn, Reth};

use crate::transport::completion::{CompletionKind, Status};
use crate::transport::skipped::Skipped;
use crate::transport::work::{SendOperation, SendRequest};

/// Packet numbers from the first of the oldest request that is not complete to the last of the newest that was begun, at the most:
/// with 2^23, half the PSNs, what is after the oldest could be taken for what is before it (IBTA 9.7.2.1).
pub const SPAN_PACKETS: u32 = (1 << 23) - 1;

/// Receive numbers have 24 bits.
const RECEIVE_NUMBER_MASK: u32 = 0x00ff_ffff;

/// Packet numbers begin here, and after it: there is room for what is before the first.
const BEGINNING: u64 = 1 << 24;

/// Posted send requests, and how far they were sent. It knows nothing of losses: what was sent once is done here.
///
/// ```text
///   queue:           [ sent ....... | posted, not sent ... ]
///   packet number:   ^              ^cursor                ^posted
/// ```
///
/// Packet numbers are PSNs that do not wrap.
#[derive(Debug)]
pub struct SendQueue {
    wqes: VecDeque<Wqe>,
    /// The packet number after the last posted request.
    posted: u64,
    /// Messages posted that take a receive request of the peer.
    receives_taken: u32,
    cursor: Cursor,
    /// READs and what counts as such before the cursor.
    reads_in_flight: u32,
    max_rd_atomic: u32,
}

/// A send request on its way.
#[derive(Debug)]
pub struct Wqe {
    pub request: SendRequest,
    /// The number of its first packet.
    pub first: u64,
    /// Packet numbers that it takes: packets sent, or answers expected for a READ; none for local operations.
    pub packets: u32,
    pub len: u32,
    /// For local operations: carried out.
    is_done: bool,
    /// Why it fails as soon as all before it are complete.
    pub failed: Option<Status>,
    /// How many messages before it take a receive request of the peer.
    pub receive_number: u32,
}

/// The next packet to send is number `packet` of the request at `index`.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    index: usize,
    packet: u32,
}

impl Wqe {
    pub fn kind(&self) -> CompletionKind {
        match self.request.operation {
            SendOperation::Send | SendOperation::SendWithImmediate(_) | SendOperation::SendWithInvalidate(_) => {
                CompletionKind::Send
            }
            SendOperation::Write(_) | SendOperation::WriteWithImmediate(..) => CompletionKind::Write,
            SendOperation::Read(_) => CompletionKind::Read,
            SendOperation::CompareSwap { .. } => CompletionKind::CompareSwap,
            SendOperation::FetchAdd { .. } => CompletionKind::FetchAdd,
            SendOperation::BindWindow(_) => CompletionKind::BindWindow,
            SendOperation::AtomicWrite(_) => CompletionKind::AtomicWrite,
            SendOperation::Flush { .. } => CompletionKind::Flush,
            SendOperation::LocalInvalidate(_) => CompletionKind::LocalInvalidate,
        }
    }

    /// The packet number after its last.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.packets)
    }

    /// The RETH of a WRITE.
    pub fn reth(&self) -> Option<Reth> {
        match self.request.operation {
            SendOperation::Write(remote) | SendOperation::WriteWithImmediate(remote, _) => {
                Some(Reth::new(remote.address, remote.key, self.len))
            }
            _ => None,
        }
    }

    /// Whether it counts as a READ, and is complete as WRITEs are.
    pub fn is_acknowledged(&self) -> bool {
        self.request.operation.counts_as_read() && !self.request.operation.is_read_or_atomic()
    }

    /// Whether it is complete when all before `first` is done.
    fn is_complete(&self, first: u64) -> bool {
        let early = u64::from(self.packets > 1 && mutated!("completed-before-the-last-ack"));
        if self.packets == 0 { self.is_done } else { self.end() - early <= first }
    }
}

impl Default for SendQueue {
    fn default() -> SendQueue {
        SendQueue {
            wqes: VecDeque::new(),
            posted: BEGINNING,
            receives_taken: 0,
            cursor: Cursor::default(),
            reads_in_flight: 0,
            max_rd_atomic: 0,
        }
    }
}

impl Index<usize> for SendQueue {
    type Output = Wqe;

    fn index(&self, index: usize) -> &Wqe {
        &self.wqes[index]
    }
}

impl IndexMut<usize> for SendQueue {
    fn index_mut(&mut self, index: usize) -> &mut Wqe {
        &mut self.wqes[index]
    }
}

impl SendQueue {
    /// The next request begins with that PSN. Nothing may be in it.
    pub fn start_at(&mut self, psn: Psn) {
        self.posted = BEGINNING + u64::from(psn.value());
    }

    /// READs and what counts as such in flight at the most.
    pub fn set_max_rd_atomic(&mut self, max: u32) {
        self.max_rd_atomic = max;
    }

    /// Whether there may be such requests at all.
    pub fn takes_reads(&self) -> bool {
        self.max_rd_atomic > 0
    }

    /// Moves on as if so much had been sent and acknowledged.
    pub fn skip(&mut self, skipped: Skipped) {
        debug_assert!(self.wqes.is_empty(), "only an idle requester can be moved on");
        self.posted += u64::from(skipped.packets);
        self.receives_taken = (self.receives_taken + skipped.receives) & RECEIVE_NUMBER_MASK;
    }

    pub fn len(&self) -> usize {
        self.wqes.len()
    }

    /// The packet number after the last posted request.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    pub fn push(&mut self, request: SendRequest, packets: u32) {
        let (len, takes_receive) = (request.data.len() as u32, request.operation.takes_receive());
        let (first, receive_number) = (self.posted, self.receives_taken);
        self.posted += u64::from(packets);
        self.wqes.push_back(Wqe { request, first, packets, len, is_done: false, failed: None, receive_number });
        self.receives_taken = (self.receives_taken + u32::from(takes_receive)) & RECEIVE_NUMBER_MASK;
    }

    /// Takes out all that is posted.
    pub fn flush(&mut self) -> VecDeque<Wqe> {
        (self.cursor, self.reads_in_flight) = (Cursor::default(), 0);
        let mut all = std::mem::take(&mut self.wqes);
        if mutated!("flushed-in-reverse", by "uroce --test transport a_silent_peer_ends") {
            all.make_contiguous().reverse();
        }
        all
    }

    /// Whether something was never sent.
    pub fn has_unsent(&self) -> bool {
        self.cursor.index < self.wqes.len()
    }

    /// Whether the message at the cursor was begun.
    pub fn is_within_message(&self) -> bool {
        self.cursor.packet > 0
    }

    /// The first request that was not sent to its end: its index, and which of its packets is next.
    pub fn unsent(&self) -> Option<(usize, u32)> {
        self.has_unsent().then_some((self.cursor.index, self.cursor.packet))
    }

    /// Whether the packet at the cursor may be sent, as far as READs in flight, fences and the PSNs themselves go.
    pub fn may_send(&self) -> bool {
        let wqe = &self.wqes[self.cursor.index];
        let max_reads = self.max_rd_atomic * if mutated!("max-rd-atomic-ignored") { 4 } else { 1 };
        if wqe.request.operation.counts_as_read() && self.reads_in_flight >= max_reads {
            return false;
        }
        if self.cursor.packet == 0 && self.is_fenced(wqe) && !mutated!("fence-ignored") {
            return false;
        }
        // Else it would reach too far beyond the oldest one.
        wqe.end() - self.wqes[0].first <= u64::from(SPAN_PACKETS)
    }

    fn is_fenced(&self, wqe: &Wqe) -> bool {
        wqe.request.fence && self.reads_in_flight > 0
    }

    /// Moves the cursor past the packet that it is at. Returns how many packet numbers that takes, and whether they are answers.
    pub fn advance(&mut self) -> (u32, bool) {
        let wqe = &self.wqes[self.cursor.index];
        let rest = wqe.packets - self.cursor.packet;
        let count = if matches!(wqe.request.operation, SendOperation::Read(_)) { rest } else { 1 };
        self.cursor.packet += count;
        let answers = wqe.request.operation.is_read_or_atomic();
        if count == rest {
            self.reads_in_flight += u32::from(wqe.request.operation.counts_as_read());
            self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
        }
        (count, answers)
    }

    /// Whether the local operation at the cursor may be carried out.
    pub fn may_run_local(&self) -> bool {
        let wqe = &self.wqes[self.cursor.index];
        match wqe.request.operation {
            // After everything before it: the peer may still need the window for that (IBTA 10.8.3.2, Table 76).
            SendOperation::LocalInvalidate(_) => self.cursor.index == 0,
            _ => !self.is_fenced(wqe),
        }
    }

    /// The local operation at the cursor was carried out, or was not.
    pub fn local_done(&mut self, outcome: Result<(), Status>) {
        let wqe = &mut self.wqes[self.cursor.index];
        match outcome {
            Ok(()) => {
                wqe.is_done = true;
                self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
            }
            Err(status) => wqe.failed = Some(status),
        }
    }

    /// The oldest request.
    pub fn oldest(&self) -> Option<&Wqe> {
        self.wqes.front()
    }

    /// Takes out the oldest request, if it is complete when all before `first` is done.
    pub fn pop_complete(&mut self, first: u64) -> Option<Wqe> {
        self.wqes.front().filter(|wqe| wqe.is_complete(first))?;
        self.pop()
    }

    /// Takes out the oldest request.
    pub fn pop(&mut self) -> Option<Wqe> {
        let wqe = self.wqes.pop_front()?;
        self.cursor = match self.cursor.index.checked_sub(1) {
            Some(index) => {
                // Only now: the peer must still know those that come after an incomplete one.
                self.reads_in_flight -= u32::from(wqe.request.operation.counts_as_read());
                Cursor { index, ..self.cursor }
            }
            None => Cursor::default(),
        };
        Some(wqe)
    }

    /// The index of the request that a packet number, which was sent, belongs to.
    pub fn find(&self, number: u64) -> Option<usize> {
        let index = self.wqes.partition_point(|wqe| wqe.end() <= number);
        self.wqes.get(index).filter(|wqe| (wqe.first..wqe.end()).contains(&number)).map(|_| index)
    }

    /// Those that were begun, from the oldest on.
    pub fn begun(&self) -> impl Iterator<Item = &Wqe> {
        self.wqes.range(..self.cursor.index + usize::from(self.is_within_message()))
    }
}

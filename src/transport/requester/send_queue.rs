use std::iter;
use std::ops::{Index, IndexMut};

use crate::wire::Psn;

use crate::transport::completion::Status;
use crate::transport::skipped::Skipped;
use crate::transport::work::{SendOperation, SendRequest};

use super::wqe::Wqe;
use super::wqe_ring::WqeRing;

/// Upper bound on the packet numbers from the oldest incomplete request's first to the last of the newest that was
/// begun. With 2^23, half the PSN space, PSNs after the oldest could be taken for earlier ones (IBTA 9.7.2.1).
pub const SPAN_PACKETS: u32 = (1 << 23) - 1;

/// The mask of receive numbers, which have 24 bits.
const RECEIVE_NUMBER_MASK: u32 = 0x00ff_ffff;

/// The packet number of PSN 0 at the start: there is room for numbers before the first.
const BEGINNING: u64 = 1 << 24;

/// Posted send requests, and how far they are sent. Losses do not concern it: what was sent once is done here.
///
/// ```text
///   queue:           [ sent ....... | posted, not sent ... ]
///   packet number:   ^              ^cursor                ^posted
/// ```
///
/// Packet numbers are PSNs that do not wrap.
#[derive(Debug)]
pub struct SendQueue {
    wqes: WqeRing,
    /// The packet number after the last posted request's.
    posted: u64,
    /// Messages posted so far that consume a receive request of the peer, modulo 2^24.
    receives_taken: u32,
    cursor: Cursor,
    /// Requests in the queue, before the cursor, that count as READs.
    reads_in_flight: u32,
    max_rd_atomic: u32,
}

/// The next packet to send: number `packet` of the request at `index`.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    index: usize,
    packet: u32,
}

impl Default for SendQueue {
    fn default() -> SendQueue {
        SendQueue {
            wqes: WqeRing::default(),
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
    /// Has its next place fetched into the caches.
    pub fn prefetch(&self) {
        self.wqes.prefetch();
    }

    /// Makes the next request begin with that PSN. The queue must be empty.
    pub fn start_at(&mut self, psn: Psn) {
        self.posted = BEGINNING + u64::from(psn.value());
    }

    /// Sets the upper bound on the requests in flight that count as READs.
    pub fn set_max_rd_atomic(&mut self, max: u32) {
        self.max_rd_atomic = max;
    }

    /// Whether requests that count as READs are possible at all.
    pub fn takes_reads(&self) -> bool {
        self.max_rd_atomic > 0
    }

    /// Moves on as if `skipped` had been sent and acknowledged. The queue must be empty.
    pub fn skip(&mut self, skipped: Skipped) {
        debug_assert!(self.wqes.len() == 0, "only an idle requester can be moved on");
        self.posted += u64::from(skipped.packets);
        self.receives_taken = (self.receives_taken + skipped.receives) & RECEIVE_NUMBER_MASK;
    }

    pub fn len(&self) -> usize {
        self.wqes.len()
    }

    /// The packet number after the last posted request's.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Takes `request`, of `len` bytes, out of its place. It goes straight to its own: a queue's requests are large.
    #[inline]
    pub fn push(&mut self, request: &mut SendRequest, len: u32, packets: u32) {
        let (first, receive_number) = (self.posted, self.receives_taken);
        self.posted += u64::from(packets);
        self.receives_taken =
            (self.receives_taken + u32::from(request.operation.takes_receive())) & RECEIVE_NUMBER_MASK;
        let wqe = self.wqes.push();
        (wqe.first, wqe.packets, wqe.len, wqe.receive_number) = (first, packets, len, receive_number);
        (wqe.is_done, wqe.failed) = (false, None);
        let SendRequest { wr_id, operation, data, signaled, solicited, fence, destination } = request;
        (wqe.request.wr_id, wqe.request.operation) = (*wr_id, *operation);
        (wqe.request.signaled, wqe.request.solicited, wqe.request.fence) = (*signaled, *solicited, *fence);
        data.move_to(&mut wqe.request.data);
        if destination.is_some() {
            // All datagrams have one, and nothing else is asked for it.
            wqe.request.destination = *destination;
        }
    }

    /// Removes all requests.
    pub fn flush(&mut self) -> Vec<Wqe> {
        (self.cursor, self.reads_in_flight) = (Cursor::default(), 0);
        let mut wqes = std::mem::take(&mut self.wqes);
        let mut all: Vec<Wqe> = iter::from_fn(|| wqes.pop()).collect();
        if mutated!("flushed-in-reverse", by "uroce --test transport a_silent_peer_ends") {
            all.reverse();
        }
        all
    }

    /// Whether a packet was never sent.
    pub fn has_unsent(&self) -> bool {
        self.cursor.index < self.wqes.len()
    }

    /// Whether a packet of the message at the cursor was sent.
    pub fn is_within_message(&self) -> bool {
        self.cursor.packet > 0
    }

    /// The first request that is not sent to its end: its index, and which of its packets is next.
    pub fn unsent(&self) -> Option<(usize, u32)> {
        self.has_unsent().then_some((self.cursor.index, self.cursor.packet))
    }

    /// Whether the packet at the cursor can be sent, as far as READs in flight, fences and the PSN space allow it.
    pub fn may_send(&self) -> bool {
        let wqe = &self.wqes[self.cursor.index];
        let max_reads = self.max_rd_atomic * if mutated!("max-rd-atomic-ignored") { 4 } else { 1 };
        if wqe.request.operation.counts_as_read() && self.reads_in_flight >= max_reads {
            return false;
        }
        if self.cursor.packet == 0 && self.is_fenced(wqe) && !mutated!("fence-ignored") {
            return false;
        }
        // The span limits how far the message can reach beyond the oldest incomplete one.
        wqe.end() - self.wqes[0].first <= u64::from(SPAN_PACKETS)
    }

    fn is_fenced(&self, wqe: &Wqe) -> bool {
        wqe.request.fence && self.reads_in_flight > 0
    }

    /// Moves the cursor past the packet that it is at. Returns the packet numbers that this takes, and whether they are
    /// answers.
    #[inline]
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

    /// Whether the local operation at the cursor can execute.
    pub fn may_run_local(&self) -> bool {
        let wqe = &self.wqes[self.cursor.index];
        match wqe.request.operation {
            // It executes after everything before it: the peer can still need the window for that (IBTA 10.8.3.2, Table
            // 76).
            SendOperation::LocalInvalidate(_) => self.cursor.index == 0,
            _ => !self.is_fenced(wqe),
        }
    }

    /// Records the result of the local operation at the cursor.
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

    /// The oldest request in the queue.
    pub fn oldest(&self) -> Option<&Wqe> {
        self.wqes.front()
    }

    /// The oldest request, if it is complete when everything before packet number `first` is done.
    pub fn oldest_complete(&self, first: u64) -> Option<&Wqe> {
        self.oldest().filter(|wqe| wqe.is_complete(first))
    }

    /// Removes the oldest request.
    pub fn pop(&mut self) -> Option<Wqe> {
        self.leave_oldest();
        self.wqes.pop()
    }

    /// Discards the oldest request where it is.
    pub fn discard_oldest(&mut self) {
        self.leave_oldest();
        self.wqes.discard();
    }

    /// Counts the oldest request no more, which goes.
    fn leave_oldest(&mut self) {
        let Some(wqe) = self.wqes.front() else { return };
        self.cursor = match self.cursor.index.checked_sub(1) {
            Some(index) => {
                // Not earlier: the peer must still remember those that come after an incomplete one.
                self.reads_in_flight -= u32::from(wqe.request.operation.counts_as_read());
                Cursor { index, ..self.cursor }
            }
            None => Cursor::default(),
        };
    }

    /// The index of the request that a sent packet number belongs to.
    pub fn find(&self, number: u64) -> Option<usize> {
        let index = self.wqes.partition_point(|wqe| wqe.end() <= number);
        let is_there = index < self.len() && self.wqes[index].first <= number;
        is_there.then_some(index)
    }

    /// The requests that were begun, the oldest first.
    pub fn begun(&self) -> impl Iterator<Item = &Wqe> {
        (0..self.cursor.index + usize::from(self.is_within_message())).map(|index| &self.wqes[index])
    }
}

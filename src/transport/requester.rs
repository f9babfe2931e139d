mod answers;
mod completer;
mod selective;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::memory::{AccessError, MemoryTable};
use crate::time::{Duration, Instant};
use crate::wire::{
    AtomicEth, Bth, Deth, Extension, Feth, Headers, Ieth, ImmDt, Opcode, PathMtu, Position, Psn, QKey, RequestTrailer,
    Reth,
};

use super::attributes::{QpAttributes, Service};
use super::completion::{CompletionKind, Status};
use super::connection::{Connection, WINDOW_PACKETS};
use super::context::{Context, Fatal};
use super::outgoing::Outgoing;
use super::skipped::Skipped;
use super::transmit::Transmit;
use super::work::{Data, MAX_MESSAGE_BYTES, PostError, SendOperation, SendRequest};

use answers::Answers;
use selective::Selective;

/// PSNs from the first of the oldest request that is not complete to the last of the newest that was begun, at the most:
/// with 2^23, half the space, what is after the oldest could be taken for what is before it (IBTA 9.7.2.1).
const SPAN_PACKETS: u32 = (1 << 23) - 1;

/// Every packet with such a PSN asks for an acknowledge, so that the window never closes without one on its way.
const ACK_REQUEST_EVERY: u32 = 64;

/// Receive numbers have 24 bits.
const RECEIVE_NUMBER_MASK: u32 = 0x00ff_ffff;

/// The same towards a peer that repeats selectively, which tells with each what it knows.
const SELECTIVE_ACK_REQUEST_EVERY: u32 = 16;

/// The requester: posted send requests become packets, in PSN order; lost ones are sent again from the first missing
/// one on (go-back-N, as rxe and RNICs speak it).
///
/// ```text
///   queue:   [ done ... | in flight ............ | posted, not sent ... ]
///   PSN:                ^unacknowledged   ^cursor        ^posted
///                                              ^sent (after the highest ever sent)
/// ```
///
/// Towards a peer that has shown that it understands (`selective`), the cursor only goes forward: what was lost is sent
/// again by itself.
///
/// Unreliable services use the same queue and cursor; what they have sent counts as acknowledged at once.
#[derive(Debug)]
pub(super) struct Requester {
    service: Service,
    queue: VecDeque<Wqe>,
    /// The PSN after the last posted request.
    posted: Psn,
    /// Messages posted that take a receive request of the peer.
    receives_taken: u32,
    /// The oldest PSN not acknowledged.
    pub(super) unacknowledged: Psn,
    /// The PSN after the highest one ever sent.
    pub(super) sent: Psn,
    cursor: Cursor,
    /// Requests of the queue of which something was sent, or which were carried out, before those of which nothing was.
    begun: usize,
    /// READs and what counts as such before the cursor that are not complete.
    reads_in_flight: u32,
    max_rd_atomic: u32,
    /// For datagrams that name a privileged key.
    q_key: QKey,
    timeout: Option<Duration>,
    retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    retransmit_at: Option<Instant>,
    /// After an RNR NAK: when to try again.
    rnr_until: Option<Instant>,
    /// A lost answer was noticed from a later one, and asked for again; not twice without progress.
    gap_reported: bool,
    /// How often it went back because of a timeout, without progress since.
    timeouts: u32,
    /// Requests from this PSN on made the offer whenever they were sent.
    offers_from: Option<Psn>,
    /// Answers that come early are kept: not when nothing but go-back-N is wanted.
    pub(super) keeps_answers: bool,
    /// Those, of a peer that does not repeat selectively.
    answers: Option<Box<Answers>>,
    /// How it repeats selectively, towards a peer that understands.
    selective: Option<Box<Selective>>,
}

/// A send request on its way.
#[derive(Debug)]
struct Wqe {
    pub request: SendRequest,
    pub first_psn: Psn,
    /// PSNs it takes: packets sent, or answers expected for a READ; none for local operations.
    pub packets: u32,
    pub len: u32,
    /// Answers received, of a READ or atomic.
    pub received: u32,
    /// For local operations: carried out.
    done: bool,
    /// Why it fails as soon as all before it are complete.
    pub failed: Option<Status>,
    /// How many messages before it take a receive request of the peer.
    pub receive_number: u32,
}

/// A request packet to be written.
#[derive(Clone, Copy, Debug)]
struct RequestPacket {
    /// Its place in its message.
    pub index: u32,
    pub psn: Psn,
    /// Answers that a READ asks for; all the rest when there are fewer.
    pub answers: u32,
    /// It was sent before.
    pub is_again: bool,
    /// It offers the extension.
    pub offers: bool,
    pub trailer: Option<RequestTrailer>,
    pub path: u8,
}

/// Where the requester stands: the next packet to send is number `packet` of the request at `index`.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    pub index: usize,
    pub packet: u32,
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

    /// Whether it takes no PSN from `psn` on.
    pub fn end_is_at_most(&self, psn: Psn) -> bool {
        !psn.is_before(self.first_psn.plus(self.packets))
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

    /// Whether it waits for an answer with data.
    pub fn awaits_answer(&self) -> bool {
        let early = u32::from(self.packets > 1 && mutated!("read-complete-before-its-last-answer"));
        self.request.operation.is_read_or_atomic() && self.received + early < self.packets
    }
}

impl Requester {
    pub fn new(service: Service) -> Requester {
        Requester {
            service,
            queue: VecDeque::new(),
            posted: Psn::default(),
            receives_taken: 0,
            unacknowledged: Psn::default(),
            sent: Psn::default(),
            cursor: Cursor::default(),
            begun: 0,
            reads_in_flight: 0,
            max_rd_atomic: 0,
            q_key: QKey::default(),
            timeout: None,
            retry_count: 0,
            rnr_retry: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            retransmit_at: None,
            rnr_until: None,
            gap_reported: false,
            timeouts: 0,
            offers_from: None,
            keeps_answers: false,
            answers: None,
            selective: None,
        }
    }

    pub fn configure(&mut self, attributes: &QpAttributes) {
        if let Some(psn) = attributes.send_psn {
            (self.posted, self.unacknowledged, self.sent) = (psn, psn, psn);
        }
        if let Some(code) = attributes.timeout {
            // IBTA 9.9.2.1.1: 4.096 µs × 2^code, 0 for no timeout.
            self.timeout = (code != 0).then(|| Duration::from_nanos(4096 << code));
        }
        if let Some(count) = attributes.retry_count {
            (self.retry_count, self.retries_left) = (count, count);
        }
        if let Some(count) = attributes.rnr_retry {
            (self.rnr_retry, self.rnr_retries_left) = (count, count);
        }
        self.q_key = attributes.q_key.unwrap_or(self.q_key);
        if let Some(max) = attributes.max_rd_atomic {
            self.max_rd_atomic = u32::from(max);
        }
    }

    /// Moves on as if so much had been sent and acknowledged. Nothing may be in flight.
    pub fn skip(&mut self, skipped: Skipped) {
        debug_assert!(self.queue.is_empty(), "only an idle requester can be moved on");
        self.posted = self.posted.plus(skipped.packets);
        (self.unacknowledged, self.sent) = (self.posted, self.posted);
        self.selective = None;
        self.receives_taken = (self.receives_taken + skipped.receives) & RECEIVE_NUMBER_MASK;
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn posted(&self) -> Psn {
        self.posted
    }

    pub fn post(&mut self, request: SendRequest, path_mtu: PathMtu) -> Result<(), PostError> {
        let len = request.data.len();
        let operation = &request.operation;
        let limit = match self.service {
            _ if matches!(operation, SendOperation::Flush { .. }) => 0,
            Service::Rc | Service::Uc if mutated!("half-the-space-in-a-message", by "uroce --lib messages_of_half") => {
                MAX_MESSAGE_BYTES
            }
            // At path MTU 256, 2^31 bytes are half the PSN space.
            Service::Rc | Service::Uc => MAX_MESSAGE_BYTES.min(u64::from(SPAN_PACKETS) * path_mtu.bytes() as u64),
            Service::Ud | Service::Gsi => path_mtu.bytes() as u64,
        };
        if len > limit {
            return Err(PostError::TooLong { len, limit });
        }
        if !self.knows(operation) {
            return Err(PostError::Operation(self.service));
        }
        if self.service.is_datagram() && request.destination.is_none() {
            return Err(PostError::NoDestination);
        }
        if (operation.is_atomic() || matches!(operation, SendOperation::AtomicWrite(_))) && len != 8 {
            return Err(PostError::AtomicLength(len));
        }
        if operation.is_read_or_atomic() && matches!(request.data, Data::Inline(_)) {
            return Err(PostError::Inline);
        }
        if operation.counts_as_read() && self.max_rd_atomic == 0 {
            return Err(PostError::NoReads);
        }
        let packets = match operation {
            operation if operation.is_local() => 0,
            operation if operation.is_atomic() => 1,
            _ => path_mtu.packets(len as usize),
        };
        let takes_receive = operation.takes_receive();
        let first_psn = self.posted;
        self.posted = first_psn.plus(packets);
        self.queue.push_back(Wqe {
            request,
            first_psn,
            packets,
            len: len as u32,
            received: 0,
            done: false,
            failed: None,
            receive_number: self.receives_taken,
        });
        self.receives_taken = (self.receives_taken + u32::from(takes_receive)) & RECEIVE_NUMBER_MASK;
        Ok(())
    }

    /// IBTA 10.8.2, Table 73.
    fn knows(&self, operation: &SendOperation) -> bool {
        use SendOperation as Op;
        match self.service {
            Service::Rc => true,
            Service::Uc => !operation.counts_as_read() && !matches!(operation, Op::SendWithInvalidate(_)),
            Service::Ud | Service::Gsi => matches!(operation, Op::Send | Op::SendWithImmediate(_)),
        }
    }

    pub fn flush(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        if mutated!("flushed-in-reverse", by "uroce --test transport a_silent_peer_ends") {
            self.queue.make_contiguous().reverse();
        }
        for wqe in std::mem::take(&mut self.queue) {
            connection.complete_send(wqe.request.wr_id, wqe.kind(), Status::WrFlush, 0, cx);
        }
        (self.cursor, self.begun) = (Cursor::default(), 0);
        self.reads_in_flight = 0;
        // Nothing is in flight or half sent: what is posted next starts here, should the queue pair leave SQE.
        if !mutated!("flush-leaves-half-a-message", by "uroce --test services a_send_queue_that_left_its_error") {
            (self.unacknowledged, self.sent) = (self.posted, self.posted);
        }
        (self.retransmit_at, self.rnr_until) = (None, None);
        (self.selective, self.answers) = (None, None);
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.selective {
            Some(selective) => self.rnr_until.or(selective.deadline()),
            None => self.rnr_until.or(self.retransmit_at),
        }
    }

    /// Whether the request with that PSN made the offer whenever it was sent.
    pub fn has_offered(&self, psn: Psn) -> bool {
        self.offers_from.is_some_and(|from| !psn.is_before(from))
    }

    /// Bytes of memory that it takes for packets in flight.
    pub fn memory_bytes(&self) -> usize {
        self.selective.as_ref().map_or(0, |selective| selective.memory_bytes())
    }

    fn has_unacknowledged(&self) -> bool {
        self.sent != self.unacknowledged
    }

    /// Whether nothing is in flight and no message half sent.
    pub fn is_drained(&self) -> bool {
        (!self.has_unacknowledged() || mutated!("drained-before-all-is-acknowledged")) && self.cursor.packet == 0
    }

    pub fn may_transmit(&self) -> bool {
        let again = self.selective.as_ref().is_some_and(|selective| selective.may_transmit());
        self.rnr_until.is_none() && (again || self.cursor.index < self.queue.len())
    }

    /// Writes the next packet, if there is one and it may go. When `draining`, no new message is begun.
    pub fn poll_transmit(
        &mut self,
        draining: bool,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.rnr_until.is_some() {
            return Ok(None);
        }
        if connection.is_extended() {
            self.start_selective(cx.now);
            if let Some(transmit) = self.poll_again(out, connection, cx)? {
                return Ok(Some(transmit));
            }
        }
        let window = match self.selective {
            Some(_) if mutated!("selective-window-off") => i32::MAX,
            Some(_) => connection.extension.settings.window as i32,
            None if mutated!("window-off") => i32::MAX,
            None => WINDOW_PACKETS,
        };
        while let Some(wqe) = self.queue.get(self.cursor.index) {
            let begun = self.cursor.packet > 0 || self.sent != wqe.first_psn.plus(self.cursor.packet);
            if wqe.failed.is_some()
                || (draining
                    && !begun
                    && !mutated!("drained-queue-begins-requests", by "uroce --test services a_drained_send_queue"))
            {
                break;
            }
            if wqe.packets == 0 && wqe.done {
                // What is before it is sent again; it is not carried out again.
                self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
                continue;
            }
            if wqe.packets == 0 {
                if !self.run_local(connection, cx) {
                    break;
                }
                self.retire(connection, cx)?;
                continue;
            }
            let psn = wqe.first_psn.plus(self.cursor.packet);
            let window_closed = psn.since(self.unacknowledged) >= window;
            let max_reads = self.max_rd_atomic * if mutated!("max-rd-atomic-ignored") { 4 } else { 1 };
            let reads_exhausted = wqe.request.operation.counts_as_read() && self.reads_in_flight >= max_reads;
            let fenced =
                wqe.request.fence && !mutated!("fence-ignored") && self.cursor.packet == 0 && self.reads_in_flight > 0;
            if window_closed || reads_exhausted || fenced || self.would_span_too_much() {
                break;
            }
            return match self.write_next(out, connection, cx) {
                Ok(Some((transmit, path))) => {
                    self.advance(path, cx.now);
                    if self.service != Service::Rc
                        && !(self.service == Service::Uc && mutated!("uc-acknowledged-like-rc"))
                    {
                        self.progress(self.sent, cx.now);
                        self.retire(connection, cx)?;
                    }
                    Ok(Some(transmit))
                }
                Ok(None) => Ok(None),
                Err(_) => {
                    // IBTA 10.8.3.3: a local protection error; it is reported when all before it are complete.
                    cx.counters.send_err += 1;
                    self.queue[self.cursor.index].failed = Some(Status::LocalProtection);
                    self.retire(connection, cx)?;
                    Ok(None)
                }
            };
        }
        Ok(None)
    }

    /// Writes the packet at the cursor, which may go. Returns the path that it takes, too.
    fn write_next(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<(Transmit, u8)>, AccessError> {
        let wqe = &self.queue[self.cursor.index];
        if self.service.is_datagram() {
            return Ok(self.write_datagram(wqe, out, connection, cx)?.map(|transmit| (transmit, 0)));
        }
        let index = self.cursor.packet;
        let path = if self.selective.is_some() { cx.choose_path() } else { 0 };
        let offers = self.service == Service::Rc && connection.extension.offer(self.timeouts);
        self.offers_from = offers.then(|| self.offers_from.unwrap_or(self.sent));
        let packet = RequestPacket {
            index,
            psn: wqe.first_psn.plus(index),
            answers: u32::MAX,
            is_again: false,
            offers,
            trailer: self.trailer(wqe, index, 0),
            path,
        };
        Ok(write_request(wqe, packet, out, connection, cx)?.map(|transmit| (transmit, path)))
    }

    /// Whether the request at the cursor would reach too far beyond the oldest one.
    fn would_span_too_much(&self) -> bool {
        // All before it reach no further than that, so that its first PSN is told rightly from the oldest.
        let (oldest, wqe) = (&self.queue[0], &self.queue[self.cursor.index]);
        wqe.first_psn.since(oldest.first_psn) as u32 + wqe.packets > SPAN_PACKETS
    }

    /// Carries out the local operation at the cursor. False when it must wait.
    fn run_local(&mut self, connection: &Connection, cx: &mut Context<'_>) -> bool {
        let index = self.cursor.index;
        let wqe = &mut self.queue[index];
        match wqe.request.operation {
            SendOperation::BindWindow(binding) => {
                if wqe.request.fence && self.reads_in_flight > 0 {
                    return false;
                }
                if cx.memory.bind(connection.pd, connection.qpn, &binding).is_err() {
                    wqe.failed = Some(Status::MwBind);
                }
            }
            SendOperation::LocalInvalidate(key) => {
                // After everything before it: the peer may still need the window for that (IBTA 10.8.3.2, Table 76).
                if index > 0 {
                    return false;
                }
                if cx.memory.invalidate(connection.pd, connection.qpn, key).is_err() {
                    wqe.failed = Some(Status::MwBind);
                }
            }
            _ => unreachable!("only local operations take no PSN"),
        }
        wqe.done = wqe.failed.is_none();
        if wqe.done {
            self.cursor = Cursor { index: index + 1, packet: 0 };
        }
        true
    }

    /// Moves the cursor past the packet just sent over `path`.
    fn advance(&mut self, path: u8, now: Instant) {
        let wqe = &self.queue[self.cursor.index];
        self.begun = self.begun.max(self.cursor.index + 1);
        self.cursor.packet = match wqe.request.operation {
            SendOperation::Read(_) => wqe.packets,
            _ => self.cursor.packet + 1,
        };
        let next_psn = wqe.first_psn.plus(self.cursor.packet);
        let answers = wqe.request.operation.is_read_or_atomic();
        if self.cursor.packet == wqe.packets {
            self.reads_in_flight += u32::from(wqe.request.operation.counts_as_read());
            self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
        }
        if self.sent.is_before(next_psn) {
            self.sent_selectively(self.sent, next_psn.since(self.sent) as u32, answers, path, now);
            self.sent = next_psn;
        }
        if self.retransmit_at.is_none() && self.selective.is_none() && !mutated!("timer-not-armed") {
            self.retransmit_at = self.timeout.map(|timeout| now + timeout);
        }
    }

    /// Completes and removes requests that are done, from the oldest on.
    fn retire(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        while let Some(wqe) = self.queue.front() {
            if let Some(status) = wqe.failed {
                return self.fail_oldest(status, connection, cx);
            }
            let done = match wqe.packets {
                0 => wqe.done,
                packets => {
                    let early = i32::from(packets > 1 && mutated!("completed-before-the-last-ack"));
                    self.unacknowledged.since(wqe.first_psn) >= packets as i32 - early
                }
            };
            if !done {
                break;
            }
            if wqe.request.signaled || mutated!("unsignaled-completion-reported") {
                let byte_len = if wqe.request.operation.is_read_or_atomic() { wqe.len } else { 0 };
                for _ in 0..1 + u32::from(mutated!("completed-twice")) {
                    connection.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);
                }
            }
            let is_counted_till_now = self.selective.is_some() || wqe.is_acknowledged();
            if self.cursor.index > 0 && is_counted_till_now && wqe.request.operation.counts_as_read() {
                // Only now: the peer must still know those that come after an incomplete one.
                self.reads_in_flight -= 1;
            }
            self.queue.pop_front();
            self.begun = self.begun.saturating_sub(1);
            self.cursor = match self.cursor.index.checked_sub(1) {
                Some(index) => Cursor { index, ..self.cursor },
                // It was being sent again, and a late acknowledge came first.
                None => Cursor::default(),
            };
        }
        Ok(())
    }

    /// Reports the oldest request as failed; the caller flushes the others.
    fn fail_oldest(&mut self, status: Status, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        if let Some(wqe) = self.queue.pop_front() {
            connection.complete_send(wqe.request.wr_id, wqe.kind(), status, 0, cx);
        }
        Err(Fatal)
    }

    /// Moves the oldest unacknowledged PSN forward, to `to`. Progress: all patience starts anew.
    fn progress(&mut self, to: Psn, now: Instant) {
        if !self.unacknowledged.is_before(to) {
            return;
        }
        self.unacknowledged = to;
        self.retries_left = if mutated!("retry-count-not-reset") { self.retries_left } else { self.retry_count };
        self.rnr_retries_left =
            if mutated!("rnr-retry-count-not-reset") { self.rnr_retries_left } else { self.rnr_retry };
        (self.gap_reported, self.timeouts) = (false, 0);
        // What the receiver was not ready for has arrived after all; a wait for something later begins anew.
        self.rnr_until = self.rnr_until.filter(|_| mutated!("rnr-wait-outlives-progress"));
        if let Some(selective) = &mut self.selective {
            selective.receiver_may_be_ready();
            return;
        }
        let is_due = self.has_unacknowledged() && !mutated!("timer-not-armed-after-progress");
        self.retransmit_at = self.timeout.filter(|_| is_due).map(|timeout| now + timeout);
    }

    /// The PSN of the packet at the cursor.
    pub(super) fn cursor_psn(&self) -> Psn {
        self.queue.get(self.cursor.index).map_or(self.posted, |wqe| wqe.first_psn.plus(self.cursor.packet))
    }

    /// The index of the request that `psn`, which was sent, belongs to. All that is posted may take more PSNs than there are.
    fn find(&self, psn: Psn) -> Option<usize> {
        let (mut index, mut end) = (0, self.begun);
        while index < end {
            let middle = (index + end) / 2;
            match self.queue[middle].end_is_at_most(psn) {
                true => index = middle + 1,
                false => end = middle,
            }
        }
        self.queue.get(index).filter(|wqe| psn.is_within(wqe.first_psn, wqe.packets)).map(|_| index)
    }

    /// Moves the cursor to the packet with the oldest unacknowledged PSN.
    fn go_back(&mut self) {
        let psn = self.unacknowledged;
        let first_psn = self.queue.front().map_or(psn, |wqe| wqe.first_psn);
        let psn = if mutated!("go-back-too-far") { first_psn } else { psn };
        let psn = if mutated!("go-back-too-short") { psn.plus(1) } else { psn };
        let found = self.queue.iter().position(|wqe| match wqe.packets {
            0 => !wqe.done,
            packets => psn.is_within(wqe.first_psn, packets) || psn.is_before(wqe.first_psn),
        });
        let index = found.unwrap_or(self.queue.len());
        let packet = self.queue.get(index).map_or(0, |wqe| match wqe.packets {
            0 => 0,
            _ => psn.since(wqe.first_psn).max(0) as u32,
        });
        self.cursor = Cursor { index, packet };
        let counts = |wqe: &&Wqe| wqe.awaits_answer() || wqe.is_acknowledged();
        self.reads_in_flight = self.queue.range(..index).filter(counts).count() as u32;
    }

    /// Goes back because something was lost, if patience allows.
    fn retry(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        self.take_retry(connection, cx)?;
        cx.counters.completer_retry += 1;
        self.go_back();
        self.restart_timer(cx.now);
        Ok(())
    }

    /// One retry less; the oldest request fails when there are none (IBTA 9.9.2.4.1.1).
    fn take_retry(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let Some(left) = self.retries_left.checked_sub(1) else {
            cx.counters.retry_exceeded_err += 1;
            return self.fail_oldest(Status::RetryExceeded, connection, cx);
        };
        self.retries_left = left;
        Ok(())
    }

    fn restart_timer(&mut self, now: Instant) {
        self.retransmit_at = self.timeout.map(|timeout| now + timeout);
    }

    /// Whether it may wait for a receive request once more (IBTA 9.7.5.2.8).
    fn has_patience_for_receiver(&mut self) -> bool {
        /// The retry count that means «for ever».
        const FOR_EVER: u8 = 7;
        if self.rnr_retry == FOR_EVER {
            return true;
        }
        let left = self.rnr_retries_left.checked_sub(1);
        self.rnr_retries_left = left.unwrap_or_default();
        left.is_some()
    }

    /// Waits because the peer had no receive request.
    fn wait_for_receiver(&mut self, delay: Duration, cx: &mut Context<'_>) {
        if self.selective.is_none() && !mutated!("rnr-without-going-back") {
            self.go_back();
        }
        self.rnr_until = Some(if mutated!("lost-rnr-back-off") { cx.now } else { cx.now + delay });
        self.retransmit_at = None;
    }

    pub fn handle_timeout(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        if let Some(at) = self.rnr_until {
            if at <= cx.now {
                self.rnr_until = None;
                if let Some(selective) = &mut self.selective {
                    selective.receiver_may_be_ready();
                    return Ok(());
                }
                self.retransmit_at = self.timeout.filter(|_| self.has_unacknowledged()).map(|timeout| cx.now + timeout);
            }
            return Ok(());
        }
        if self.selective.is_some() {
            return self.handle_timeout_selectively(connection, cx);
        }
        match self.retransmit_at {
            Some(at) if at <= cx.now => {
                self.gap_reported = false;
                self.timeouts += 1;
                self.retry(connection, cx)
            }
            _ => Ok(()),
        }
    }

    fn is_waiting_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }
}

/// Writes a packet of `wqe`.
fn write_request(
    wqe: &Wqe,
    packet: RequestPacket,
    out: &mut [u8],
    connection: &Connection,
    cx: &mut Context<'_>,
) -> Result<Option<Transmit>, AccessError> {
    let RequestPacket { index, psn, answers, is_again, offers, trailer, path } = packet;
    let mtu = connection.path_mtu.bytes() as u32;
    let position = Position::of(index, wqe.packets);
    let opcode = wqe.request.operation.opcode(position).expect("local operations take no PSN");
    let offset = index * mtu;
    let rest = wqe.len - offset;
    let (extension, payload_bytes) = match wqe.request.operation {
        SendOperation::Read(remote) => {
            // The rest of the answers, when some are there already.
            let len = rest.min(answers.saturating_mul(mtu));
            let from = if mutated!("read-asked-again-from-its-beginning") { 0 } else { offset.into() };
            let reth = Reth::new(remote.address.wrapping_add(from), remote.key, len);
            (Extension::Reth(reth), 0)
        }
        SendOperation::CompareSwap { remote, compare, swap } => {
            (Extension::Atomic(AtomicEth::new(remote.address, remote.key, swap, compare)), 0)
        }
        SendOperation::FetchAdd { remote, add } => {
            (Extension::Atomic(AtomicEth::new(remote.address, remote.key, add, 0)), 0)
        }
        SendOperation::AtomicWrite(remote) => {
            (Extension::Reth(Reth::new(remote.address, remote.key, wqe.len)), wqe.len)
        }
        SendOperation::Flush { remote, length, placement, selectivity } => {
            let reth = Reth::new(remote.address, remote.key, length);
            (Extension::FethReth(Feth::new(placement, selectivity), reth), 0)
        }
        SendOperation::Write(remote) if position.starts() => {
            (Extension::Reth(Reth::new(remote.address, remote.key, wqe.len)), rest.min(mtu))
        }
        SendOperation::WriteWithImmediate(remote, data) if position.starts() => {
            let reth = Reth::new(remote.address, remote.key, wqe.len);
            let extension = match position {
                Position::Only => Extension::RethImmDt(reth, ImmDt::new(data)),
                _ => Extension::Reth(reth),
            };
            (extension, rest.min(mtu))
        }
        SendOperation::SendWithImmediate(data) | SendOperation::WriteWithImmediate(_, data) if position.ends() => {
            (Extension::ImmDt(ImmDt::new(data)), rest.min(mtu))
        }
        SendOperation::SendWithInvalidate(key) if position.ends() => (Extension::Ieth(Ieth::new(key)), rest.min(mtu)),
        _ => (Extension::None, rest.min(mtu)),
    };
    let carries_event = matches!(
        wqe.request.operation,
        SendOperation::Send
            | SendOperation::SendWithImmediate(_)
            | SendOperation::SendWithInvalidate(_)
            | SendOperation::WriteWithImmediate(..)
    );
    let opcode = if connection.service == Service::Uc { opcode.on_uc() } else { opcode };
    let every = if trailer.is_some() { SELECTIVE_ACK_REQUEST_EVERY } else { ACK_REQUEST_EVERY };
    let bth = Bth::new(opcode, connection.remote, psn)
        .with_ack_request(
            position.ends() || is_again || opcode == Opcode::RC_READ_REQUEST || psn.value() % every == every - 1,
        )
        .with_solicited(wqe.request.solicited && position.ends() && carries_event)
        .with_offer(offers);
    let trailer = trailer.map(|trailer| trailer.to_bytes()).unwrap_or_default();
    let headers = Headers { bth, extension };
    let packet = Outgoing { headers, payload_bytes: payload_bytes as usize, trailer: &trailer, tag: None };
    let gather = |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, connection.pd, offset, out);
    connection.write(path, out, packet, cx, gather)
}

impl Requester {
    /// Writes the datagram at the cursor.
    fn write_datagram(
        &self,
        wqe: &Wqe,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, AccessError> {
        let Some(destination) = &wqe.request.destination else { return Ok(None) };
        // IBTA 10.2.5: a key with the top bit set is privileged; the queue pair's own is sent in its place.
        let q_key = if destination.q_key.0 >> 31 == 1 && !mutated!("ud-privileged-key-sent-as-it-is") {
            self.q_key
        } else {
            destination.q_key
        };
        let deth = Deth::new(q_key, connection.qpn);
        let (opcode, extension) = match wqe.request.operation {
            SendOperation::SendWithImmediate(data) => {
                (Opcode::UD_SEND_ONLY_IMM, Extension::DethImmDt(deth, ImmDt::new(data)))
            }
            _ => (Opcode::UD_SEND_ONLY, Extension::Deth(deth)),
        };
        let bth = Bth::new(opcode, destination.qpn, wqe.first_psn).with_solicited(wqe.request.solicited);
        let gather = |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, connection.pd, 0, out);
        let packet = Outgoing { payload_bytes: wqe.len as usize, ..Outgoing::headers(Headers { bth, extension }) };
        packet.write(&destination.path, out, cx, gather)
    }
}

use std::collections::VecDeque;

use crate::memory::{AccessError, MemoryTable};
use crate::time::{Duration, Instant};
use crate::wire::{
    AtomicEth, Bth, Deth, Extension, Headers, Ieth, ImmDt, Opcode, PathMtu, Position, Psn, QKey, RequestTrailer, Reth,
};

use super::answers::Answers;
use super::attributes::{QpAttributes, Service};
use super::completion::{CompletionKind, Status};
use super::endpoint::Transmit;
use super::identity::{Identity, write};
use super::selective::Selective;
use super::surroundings::{Fatal, Surroundings};
use super::work::{Data, MAX_MESSAGE_BYTES, PostError, SendOperation, SendRequest};

/// PSNs in flight towards a peer at the most. rxe stalls at 128 itself (RXE_MAX_UNACKED_PSNS), and more overruns the
/// receive rings in front of such peers.
pub(super) const WINDOW_PACKETS: i32 = 128;

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
    pub(super) queue: VecDeque<Wqe>,
    /// The PSN after the last posted request.
    posted: Psn,
    /// Messages posted that take a receive request of the peer.
    receives_taken: u32,
    /// The oldest PSN not acknowledged.
    pub(super) unacknowledged: Psn,
    /// The PSN after the highest one ever sent.
    pub(super) sent: Psn,
    pub(super) cursor: Cursor,
    /// READs and atomics before the cursor that are not complete.
    pub(super) reads_in_flight: u32,
    max_rd_atomic: u32,
    /// For datagrams that name a privileged key.
    q_key: QKey,
    pub(super) timeout: Option<Duration>,
    pub(super) retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    pub(super) retransmit_at: Option<Instant>,
    /// After an RNR NAK: when to try again.
    rnr_until: Option<Instant>,
    /// A lost answer was noticed from a later one, and asked for again; not twice without progress.
    pub(super) gap_reported: bool,
    /// How often it went back because of a timeout, without progress since.
    timeouts: u32,
    /// Whether the latest request offered the extension.
    has_offered: bool,
    /// Answers may come in any order, and missing ones are asked for by themselves: not when nothing but go-back-N is
    /// wanted.
    pub(super) keeps_answers: bool,
    /// Those of a peer that does not repeat selectively.
    pub(super) answers: Option<Box<Answers>>,
    /// How it repeats selectively, towards a peer that understands.
    pub(super) selective: Option<Box<Selective>>,
}

/// A send request on its way.
#[derive(Debug)]
pub(super) struct Wqe {
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
pub(super) struct RequestPacket {
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
pub(super) struct Cursor {
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

    /// Whether it waits for an answer with data.
    pub fn awaits_answer(&self) -> bool {
        self.request.operation.is_read_or_atomic() && self.received < self.packets
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
            has_offered: false,
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
        if operation.is_atomic() && len != 8 {
            return Err(PostError::AtomicLength(len));
        }
        if operation.is_read_or_atomic() {
            if matches!(request.data, Data::Inline(_)) {
                return Err(PostError::Inline);
            }
            if self.max_rd_atomic == 0 {
                return Err(PostError::NoReads);
            }
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
            Service::Uc => !operation.is_read_or_atomic() && !matches!(operation, Op::SendWithInvalidate(_)),
            Service::Ud | Service::Gsi => matches!(operation, Op::Send | Op::SendWithImmediate(_)),
        }
    }

    pub fn flush(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) {
        for wqe in std::mem::take(&mut self.queue) {
            identity.complete_send(wqe.request.wr_id, wqe.kind(), Status::WrFlush, 0, cx);
        }
        self.cursor = Cursor::default();
        self.reads_in_flight = 0;
        // Nothing is in flight or half sent: what is posted next starts here, should the queue pair leave SQE.
        (self.unacknowledged, self.sent) = (self.posted, self.posted);
        (self.retransmit_at, self.rnr_until) = (None, None);
        (self.selective, self.answers) = (None, None);
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.selective {
            Some(selective) => self.rnr_until.or(selective.deadline()),
            None => self.rnr_until.or(self.retransmit_at),
        }
    }

    /// Whether the latest request offered the extension.
    pub fn has_offered(&self) -> bool {
        self.has_offered
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
        !self.has_unacknowledged() && self.cursor.packet == 0
    }

    pub fn may_transmit(&self) -> bool {
        let again = self.selective.as_ref().is_some_and(|selective| selective.may_transmit());
        self.rnr_until.is_none() && (again || self.may_ask() || self.cursor.index < self.queue.len())
    }

    /// Writes the next packet, if there is one and it may go. When `draining`, no new message is begun.
    pub fn poll_transmit(
        &mut self,
        draining: bool,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.rnr_until.is_some() {
            return Ok(None);
        }
        if identity.extension.is_on() && self.service == Service::Rc {
            self.start_selective(cx.now);
            if let Some(transmit) = self.poll_again(out, identity, cx)? {
                return Ok(Some(transmit));
            }
        } else if let Some(transmit) = self.poll_ask(out, identity, cx)? {
            return Ok(Some(transmit));
        }
        let window = if self.selective.is_some() { identity.extension.settings.window as i32 } else { WINDOW_PACKETS };
        while let Some(wqe) = self.queue.get(self.cursor.index) {
            let begun = self.cursor.packet > 0 || self.sent != wqe.first_psn.plus(self.cursor.packet);
            if wqe.failed.is_some() || (draining && !begun) {
                break;
            }
            if wqe.packets == 0 && wqe.done {
                // What is before it is sent again; it is not carried out again.
                self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
                continue;
            }
            if wqe.packets == 0 {
                if !self.run_local(identity, cx) {
                    break;
                }
                self.retire(identity, cx)?;
                continue;
            }
            let is_read_or_atomic = wqe.request.operation.is_read_or_atomic();
            let mut answers = u32::MAX;
            if self.answers.is_some() && is_read_or_atomic {
                let Some((start, count)) = self.missing_run(self.cursor.index, self.cursor.packet) else {
                    // It is sent again because of others; its answers are all here.
                    self.reads_in_flight += 1;
                    self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
                    continue;
                };
                (self.cursor.packet, answers) = (start, count);
            }
            let psn = wqe.first_psn.plus(self.cursor.packet);
            let window_closed = psn.since(self.unacknowledged) >= window;
            let reads_exhausted = is_read_or_atomic && self.reads_in_flight >= self.max_rd_atomic;
            let fenced = wqe.request.fence && self.cursor.packet == 0 && self.reads_in_flight > 0;
            if window_closed || reads_exhausted || fenced || self.would_span_too_much() {
                break;
            }
            let mut path = 0;
            let written = match self.service {
                Service::Rc | Service::Uc => {
                    let index = self.cursor.packet;
                    path = if self.selective.is_some() { cx.choose_path() } else { 0 };
                    self.has_offered = self.service == Service::Rc && identity.extension.offer(self.timeouts);
                    let packet = RequestPacket {
                        index,
                        psn,
                        answers,
                        is_again: false,
                        offers: self.has_offered,
                        trailer: self.trailer(wqe, index, 0),
                        path,
                    };
                    write_request(wqe, packet, out, identity, cx)
                }
                Service::Ud | Service::Gsi => write_datagram(wqe, psn, self.q_key, out, identity, cx),
            };
            return match written {
                Ok(Some(transmit)) => {
                    if is_read_or_atomic && self.answers.is_some() && psn.is_before(self.sent) {
                        self.asked(psn, answers);
                    }
                    self.advance(path, cx.now);
                    if self.service != Service::Rc {
                        self.progress(self.sent, cx.now);
                        self.retire(identity, cx)?;
                    }
                    Ok(Some(transmit))
                }
                Ok(None) => Ok(None),
                Err(_) => {
                    // IBTA 10.8.3.3: a local protection error; it is reported when all before it are complete.
                    cx.counters.send_err += 1;
                    self.queue[self.cursor.index].failed = Some(Status::LocalProtection);
                    self.retire(identity, cx)?;
                    Ok(None)
                }
            };
        }
        Ok(None)
    }

    /// Whether the request at the cursor would reach too far beyond the oldest one.
    fn would_span_too_much(&self) -> bool {
        // All before it reach no further than that, so that its first PSN is told rightly from the oldest.
        let (oldest, wqe) = (&self.queue[0], &self.queue[self.cursor.index]);
        wqe.first_psn.since(oldest.first_psn) as u32 + wqe.packets > SPAN_PACKETS
    }

    /// Carries out the local operation at the cursor. False when it must wait.
    fn run_local(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) -> bool {
        let index = self.cursor.index;
        let wqe = &mut self.queue[index];
        match wqe.request.operation {
            SendOperation::BindWindow(binding) => {
                if wqe.request.fence && self.reads_in_flight > 0 {
                    return false;
                }
                if cx.memory.bind(identity.pd, identity.qpn, &binding).is_err() {
                    wqe.failed = Some(Status::MwBind);
                }
            }
            SendOperation::LocalInvalidate(key) => {
                // After everything before it: the peer may still need the window for that (IBTA 10.8.3.2, Table 76).
                if index > 0 {
                    return false;
                }
                if cx.memory.invalidate(identity.pd, identity.qpn, key).is_err() {
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
        self.cursor.packet = match wqe.request.operation {
            SendOperation::Read(_) => wqe.packets,
            _ => self.cursor.packet + 1,
        };
        let next_psn = wqe.first_psn.plus(self.cursor.packet);
        let answers = wqe.request.operation.is_read_or_atomic();
        if self.cursor.packet == wqe.packets {
            self.reads_in_flight += u32::from(wqe.request.operation.is_read_or_atomic());
            self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
        }
        if self.sent.is_before(next_psn) {
            self.sent_selectively(self.sent, next_psn.since(self.sent) as u32, answers, path, now);
            self.sent = next_psn;
        }
        if self.retransmit_at.is_none() && self.selective.is_none() {
            self.retransmit_at = self.timeout.map(|timeout| now + timeout);
        }
    }

    /// Completes and removes requests that are done, from the oldest on.
    pub(super) fn retire(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<(), Fatal> {
        while let Some(wqe) = self.queue.front() {
            if let Some(status) = wqe.failed {
                return self.fail_oldest(status, identity, cx);
            }
            let done = match wqe.packets {
                0 => wqe.done,
                packets => self.unacknowledged.since(wqe.first_psn) >= packets as i32,
            };
            if !done {
                break;
            }
            if wqe.request.signaled {
                let byte_len = if wqe.request.operation.is_read_or_atomic() { wqe.len } else { 0 };
                identity.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);
            }
            let is_before_cursor = self.cursor.index > 0 && (self.selective.is_some() || self.keeps_answers);
            if is_before_cursor && wqe.request.operation.is_read_or_atomic() {
                // Only now: the peer must still know those that come after an incomplete one.
                self.reads_in_flight -= 1;
            }
            self.queue.pop_front();
            self.cursor = match self.cursor.index.checked_sub(1) {
                Some(index) => Cursor { index, ..self.cursor },
                // It was being sent again, and a late acknowledge came first.
                None => Cursor::default(),
            };
        }
        Ok(())
    }

    /// Reports the oldest request as failed; the caller flushes the others.
    pub(super) fn fail_oldest(
        &mut self,
        status: Status,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        if let Some(wqe) = self.queue.pop_front() {
            identity.complete_send(wqe.request.wr_id, wqe.kind(), status, 0, cx);
        }
        Err(Fatal)
    }

    /// Moves the oldest unacknowledged PSN forward, to `to`. Progress: all patience starts anew.
    pub(super) fn progress(&mut self, to: Psn, now: Instant) {
        if !self.unacknowledged.is_before(to) {
            return;
        }
        self.unacknowledged = to;
        (self.retries_left, self.rnr_retries_left) = (self.retry_count, self.rnr_retry);
        (self.gap_reported, self.timeouts) = (false, 0);
        // What the receiver was not ready for has arrived after all; a wait for something later begins anew.
        self.rnr_until = None;
        if let Some(selective) = &mut self.selective {
            selective.receiver_may_be_ready();
            return;
        }
        self.retransmit_at = self.timeout.filter(|_| self.has_unacknowledged()).map(|timeout| now + timeout);
    }

    /// The PSN of the packet at the cursor.
    pub(super) fn cursor_psn(&self) -> Psn {
        self.queue.get(self.cursor.index).map_or(self.posted, |wqe| wqe.first_psn.plus(self.cursor.packet))
    }

    /// Moves the cursor to the packet with the oldest unacknowledged PSN.
    pub(super) fn go_back(&mut self) {
        self.go_back_to(self.unacknowledged);
    }

    /// Moves the cursor to the packet with that PSN.
    fn go_back_to(&mut self, psn: Psn) {
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
        let counts = |wqe: &&Wqe| match self.keeps_answers {
            true => wqe.request.operation.is_read_or_atomic(),
            false => wqe.awaits_answer(),
        };
        self.reads_in_flight = self.queue.range(..index).filter(counts).count() as u32;
    }

    /// Goes back because something was lost, if patience allows.
    pub(super) fn retry(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<(), Fatal> {
        self.retry_from(self.unacknowledged, identity, cx)
    }

    /// Goes back to that PSN, if patience allows.
    pub(super) fn retry_from(&mut self, psn: Psn, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<(), Fatal> {
        let Some(left) = self.retries_left.checked_sub(1) else {
            cx.counters.retry_exceeded_err += 1;
            return self.fail_oldest(Status::RetryExceeded, identity, cx);
        };
        self.retries_left = left;
        cx.counters.completer_retry += 1;
        self.go_back_to(psn);
        self.restart_timer(cx.now);
        Ok(())
    }

    pub(super) fn restart_timer(&mut self, now: Instant) {
        self.retransmit_at = self.timeout.map(|timeout| now + timeout);
    }

    /// Whether it may wait for a receive request once more (IBTA 9.7.5.2.8).
    pub(super) fn has_patience_for_receiver(&mut self) -> bool {
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
    pub(super) fn wait_for_receiver(&mut self, delay: Duration, cx: &mut Surroundings<'_>) {
        if self.selective.is_none() {
            self.go_back();
        }
        self.rnr_until = Some(cx.now + delay);
        self.retransmit_at = None;
    }

    pub fn handle_timeout(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<(), Fatal> {
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
            return self.handle_timeout_selectively(identity, cx);
        }
        match self.retransmit_at {
            Some(at) if at <= cx.now => {
                self.gap_reported = false;
                self.answers.iter_mut().for_each(|answers| answers.start_over());
                self.timeouts += 1;
                self.retry(identity, cx)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn is_waiting_for_receiver(&self) -> bool {
        self.rnr_until.is_some()
    }
}

/// Writes a packet of `wqe`.
pub(super) fn write_request(
    wqe: &Wqe,
    packet: RequestPacket,
    out: &mut [u8],
    identity: &Identity,
    cx: &mut Surroundings<'_>,
) -> Result<Option<Transmit>, AccessError> {
    let RequestPacket { index, psn, answers, is_again, offers, trailer, path } = packet;
    let mtu = identity.path_mtu.bytes() as u32;
    let position = Position::of(index, wqe.packets);
    let opcode = wqe.request.operation.opcode(position).expect("local operations take no PSN");
    let offset = index * mtu;
    let rest = wqe.len - offset;
    let (extension, payload_bytes) = match wqe.request.operation {
        SendOperation::Read(remote) => {
            // The rest of the answers, when some are there already.
            let len = rest.min(answers.saturating_mul(mtu));
            let reth = Reth::new(remote.address.wrapping_add(offset.into()), remote.key, len);
            (Extension::Reth(reth), 0)
        }
        SendOperation::CompareSwap { remote, compare, swap } => {
            (Extension::Atomic(AtomicEth::new(remote.address, remote.key, swap, compare)), 0)
        }
        SendOperation::FetchAdd { remote, add } => {
            (Extension::Atomic(AtomicEth::new(remote.address, remote.key, add, 0)), 0)
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
    let opcode = if identity.service == Service::Uc { opcode.on_uc() } else { opcode };
    let every = if trailer.is_some() { SELECTIVE_ACK_REQUEST_EVERY } else { ACK_REQUEST_EVERY };
    let bth = Bth::new(opcode, identity.remote, psn)
        .with_ack_request(
            position.ends() || is_again || opcode == Opcode::RC_READ_REQUEST || psn.value() % every == every - 1,
        )
        .with_solicited(wqe.request.solicited && position.ends() && carries_event)
        .with_offer(offers)
        .with_extended(trailer.is_some());
    let trailer = trailer.map(|trailer| trailer.to_bytes()).unwrap_or_default();
    let gather = |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, identity.pd, offset, out);
    identity.write_over(path, out, Headers { bth, extension }, payload_bytes as usize, cx, gather, &trailer)
}

/// Writes a datagram.
fn write_datagram(
    wqe: &Wqe,
    psn: Psn,
    own_q_key: QKey,
    out: &mut [u8],
    identity: &Identity,
    cx: &mut Surroundings<'_>,
) -> Result<Option<Transmit>, AccessError> {
    let Some(destination) = &wqe.request.destination else { return Ok(None) };
    // IBTA 10.2.5: a key with the top bit set is privileged; the queue pair's own is sent in its place.
    let q_key = if destination.q_key.0 >> 31 == 1 { own_q_key } else { destination.q_key };
    let deth = Deth::new(q_key, identity.qpn);
    let (opcode, extension) = match wqe.request.operation {
        SendOperation::SendWithImmediate(data) => {
            (Opcode::UD_SEND_ONLY_IMM, Extension::DethImmDt(deth, ImmDt::new(data)))
        }
        _ => (Opcode::UD_SEND_ONLY, Extension::Deth(deth)),
    };
    let bth = Bth::new(opcode, destination.qpn, psn).with_solicited(wqe.request.solicited);
    let gather = |memory: &MemoryTable, out: &mut [u8]| wqe.request.data.gather(memory, identity.pd, 0, out);
    write(&destination.path, out, Headers { bth, extension }, wqe.len as usize, cx, gather, &[])
}

#[cfg(test)]
mod tests;

mod completer;
mod early_answers;
mod patience;
mod request_packet;
mod seen;
mod send_queue;
#[cfg(test)]
mod tests;
mod wqe;
mod wqe_ring;

use std::cell::Cell;

use crate::cache;
use crate::congestion::Progress;
use crate::path::Answered;
use crate::recovery::{Departure, Expired, GoBackN, PathReport, Recovery, Said, Wants};
use crate::time::{Duration, Instant};
use crate::wire::{CarriedAcknowledge, PathMtu, Psn, QKey};

use super::attributes::QpAttributes;
use super::cause::Cause;
use super::completion::{Completion, CompletionKind, Status};
use super::connection::Connection;
use super::context::{Context, Fatal};
use super::service::Service;
use super::skipped::Skipped;
use super::transmit::Transmit;
use super::work::{Data, Destination, MAX_MESSAGE_BYTES, PostError, SendOperation, SendRequest};

use early_answers::EarlyAnswers;
use patience::Patience;
use request_packet::{RequestPacket, write_datagram};
use seen::Seen;
use send_queue::{SPAN_PACKETS, SendQueue};

/// The requester: posted send requests become packets, in order. The [`Recovery`], which depends on what the peer
/// understands, decides what is retransmitted.
///
/// Packet numbers are PSNs that do not wrap. They become PSNs where packets are written, and PSNs become packet numbers
/// where packets are received.
///
/// Unreliable services use the same queue; their packets count as executed once they are sent.
#[derive(Debug)]
pub(super) struct Requester {
    service: Service,
    queue: SendQueue,
    recovery: Box<dyn Recovery>,
    patience: Patience,
    timeout: Option<Duration>,
    /// When the RNR delay ends, after an RNR NAK.
    rnr_until: Option<Instant>,
    /// The packet number from which on each transmission of a request has made the offer.
    offers_from: Option<u64>,
    early_answers: EarlyAnswers,
    /// The number after the newest packet that asks for an acknowledge or another answer; 0 before there is one.
    asked: u64,
    /// When the oldest packet after it was sent.
    unasked_since: Option<Instant>,
    /// The number after the oldest packet when a probe was put off, not twice without progress; 0 before that.
    put_off: u64,
    /// The own queue key, for datagrams that name a privileged one.
    q_key: QKey,
}

/// Which packets may go out beside retransmissions. Those always may: otherwise a window whose packets were all lost
/// would stay full.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    pub new_packets: bool,
    /// Of these, whether the first packets of messages may.
    pub new_messages: bool,
    /// Whether no other may go after the next: it asks for an acknowledge, since nothing else would open the window.
    pub is_last: bool,
    /// When another may go after the next.
    pub next_at: Instant,
    /// An acknowledge that is owed to the peer. The packet that carries it takes it away.
    pub acknowledge: &'a Cell<Option<CarriedAcknowledge>>,
}

/// How long a packet waits for one that asks for an acknowledge: half of the least time after which silence means a loss
/// ([`RoundTrip::patience`](crate::recovery::RoundTrip::patience)).
const ASKS_WITHIN: Duration = Duration::from_micros(500);

impl Requester {
    pub fn new(service: Service) -> Requester {
        let queue = SendQueue::default();
        Requester {
            service,
            recovery: Box::new(GoBackN::new(queue.posted(), None)),
            queue,
            patience: Patience::default(),
            timeout: None,
            rnr_until: None,
            offers_from: None,
            early_answers: EarlyAnswers::default(),
            asked: 0,
            unasked_since: None,
            put_off: 0,
            q_key: QKey::default(),
        }
    }

    pub fn configure(&mut self, attributes: &QpAttributes, connection: &Connection) {
        if let Some(code) = attributes.timeout {
            // IBTA 9.9.2.1.1: 4.096 µs × 2^code, 0 for no timeout.
            self.timeout = (code != 0).then(|| Duration::from_nanos(4096 << code));
            self.recovery.set_timeout(self.timeout);
        }
        if let Some(psn) = attributes.send_psn {
            self.queue.start_at(psn);
            self.start(connection);
        }
        self.patience.configure(attributes);
        self.q_key = attributes.q_key.unwrap_or(self.q_key);
        if let Some(max) = attributes.max_rd_atomic {
            self.queue.set_max_rd_atomic(max.into());
        }
        self.early_answers.is_on = connection.extension.early_window() > 0;
    }

    /// Begins a new recovery, as the peer understands it. Nothing is in flight.
    fn start(&mut self, connection: &Connection) {
        self.recovery = connection.extension.recovery(self.queue.posted(), self.timeout);
        (self.asked, self.unasked_since, self.put_off) = (0, None, 0);
    }

    /// Has what lies outside of it fetched into the caches.
    pub fn prefetch(&self) {
        cache::prefetch(&*self.recovery);
        self.queue.prefetch();
    }

    /// Has what lies outside of that fetched into the caches.
    pub fn prefetch_parts(&self) {
        self.recovery.prefetch_parts();
    }

    /// Whether requests are in flight.
    pub fn is_in_flight(&self) -> bool {
        self.recovery.first() < self.recovery.next()
    }

    /// Changes to selective repeat, and takes over what is in flight: the peer has shown only now that it understands.
    /// `round_trip` is that to the peer, if it is known.
    pub fn repeat_selectively(&mut self, connection: &Connection, round_trip: Option<Duration>, now: Instant) {
        let (first, next) = (self.recovery.first(), self.recovery.next());
        let mut recovery = connection.extension.selective(first, self.recovery.patience());
        recovery.set_timeout(self.timeout);
        if let Some(round_trip) = round_trip {
            recovery.path_answered(0, round_trip, false);
        }
        for wqe in self.queue.begun() {
            let mut at = wqe.first.max(first);
            while at < wqe.end().min(next) {
                let answers = wqe.request.operation.is_read_or_atomic();
                let count = if answers { (wqe.end() - at) as u32 } else { 1 };
                recovery.take_over(count, answers, now);
                at += u64::from(count);
            }
        }
        if self.rnr_until.is_some() {
            recovery.receiver_not_ready(first, now);
        }
        self.recovery = Box::new(recovery);
        // Early answers can be a stranger's.
        self.early_answers.clear();
    }

    /// Moves on as if `skipped` had been sent and acknowledged. Nothing can be in flight.
    pub fn skip(&mut self, skipped: Skipped, connection: &Connection) {
        self.queue.skip(skipped);
        self.start(connection);
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The destination of the next datagram.
    pub fn next_destination(&self) -> Option<&Destination> {
        let (index, _) = self.queue.unsent()?;
        self.queue[index].request.destination.as_ref()
    }

    /// The PSN after the last posted request.
    pub fn posted(&self) -> Psn {
        Psn::of(self.queue.posted())
    }

    /// The oldest PSN that is not acknowledged.
    pub fn unacknowledged(&self) -> Psn {
        Psn::of(self.recovery.first())
    }

    /// The PSN after the highest one that was sent.
    pub fn sent(&self) -> Psn {
        Psn::of(self.recovery.next())
    }

    /// The PSN of the packet that goes out next in order.
    pub fn upcoming(&self) -> Psn {
        Psn::of(self.recovery.upcoming())
    }

    /// Takes `request` out of its place if it is posted.
    pub fn post(&mut self, request: &mut SendRequest, path_mtu: PathMtu) -> Result<(), PostError> {
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
        if operation.counts_as_read() && !self.queue.takes_reads() {
            return Err(PostError::NoReads);
        }
        let packets = match operation {
            operation if operation.is_local() => 0,
            operation if operation.is_atomic() => 1,
            _ => path_mtu.packets(len as usize),
        };
        self.queue.push(request, len as u32, packets);
        Ok(())
    }

    /// Whether the service has the operation (IBTA 10.8.2, Table 73).
    fn knows(&self, operation: &SendOperation) -> bool {
        use SendOperation as Op;
        match self.service {
            Service::Rc => true,
            Service::Uc => !operation.counts_as_read() && !matches!(operation, Op::SendWithInvalidate(_)),
            Service::Ud | Service::Gsi => matches!(operation, Op::Send | Op::SendWithImmediate(_)),
        }
    }

    pub fn flush(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        for wqe in self.queue.flush() {
            connection.complete_send(wqe.request.wr_id, wqe.kind(), Status::WrFlush, 0, cx);
        }
        self.rnr_until = None;
        self.early_answers.clear();
        // Nothing is in flight or half sent. What is posted next starts here, if the queue pair leaves SQE.
        if !mutated!("flush-leaves-half-a-message", by "uroce --test services a_send_queue_that_left_its_error") {
            self.start(connection);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        if self.is_idle() { None } else { self.rnr_until.or(self.recovery.deadline()) }
    }

    /// Whether each transmission of the request with that PSN made the offer.
    pub fn has_offered(&self, psn: Psn) -> bool {
        self.offers_from.is_some_and(|from| self.number(psn) >= from)
    }

    /// Whether nothing is posted: then nothing is in flight either. It is asked first where the recovery would be. That of a queue
    /// pair which only receives need not be in the caches.
    fn is_idle(&self) -> bool {
        self.queue.len() == 0
    }

    /// Bytes of packets in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        if self.is_idle() { 0 } else { self.recovery.in_flight_bytes() }
    }

    /// Whether packets are in flight, and the peer owes no answer to any of them: it reports of them only when more arrive.
    pub fn is_unanswered(&self) -> bool {
        self.in_flight_bytes() > 0 && !self.has_asked()
    }

    /// Whether the peer owes an answer.
    fn has_asked(&self) -> bool {
        self.asked > self.recovery.first()
    }

    /// What became of packets since the last call.
    pub fn progress(&mut self) -> Progress {
        self.recovery.progress()
    }

    /// What retransmits.
    pub fn recovery_name(&self) -> &'static str {
        self.recovery.name()
    }

    /// Memory that it holds for packets in flight, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.recovery.memory_bytes()
    }

    /// Whether nothing is in flight, and no message is half sent.
    pub fn is_drained(&self) -> bool {
        let is_done = !self.is_in_flight();
        (is_done || mutated!("drained-before-all-is-acknowledged")) && !self.queue.is_within_message()
    }

    /// Whether a packet may go out; a new one only if there `is_room` in the congestion window.
    pub fn may_transmit(&self, is_room: impl FnOnce() -> bool) -> bool {
        !self.is_idle()
            && self.rnr_until.is_none()
            && (self.recovery.wants_anything() || (self.queue.has_unsent() && is_room()))
    }

    /// Writes the next packet, if one can go now.
    pub fn poll_transmit(
        &mut self,
        admission: Admission<'_>,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.rnr_until.is_some() {
            return Ok(None);
        }
        if self.recovery.wants_anything() {
            let again = self.poll_again(admission, out, connection, cx)?;
            // A retransmission that cannot be written now goes before all that is new.
            if again.is_some() || self.recovery.wants_anything() {
                return Ok(again);
            }
        }
        while let Some((index, packet)) = self.queue.unsent().filter(|_| admission.new_packets) {
            let wqe = &self.queue[index];
            let begins = packet == 0
                && !mutated!("drained-queue-begins-requests", by "uroce --test services a_drained_send_queue");
            if wqe.failed.is_some() || (begins && !admission.new_messages) {
                break;
            }
            if wqe.packets == 0 {
                if !self.queue.may_run_local() {
                    break;
                }
                let outcome = self.run_local(index, connection, cx);
                self.queue.local_done(outcome);
                self.retire(connection, cx)?;
                continue;
            }
            if !self.recovery.may_send_new() || !self.queue.may_send() {
                break;
            }
            return self.send_new((index, packet), admission, out, connection, cx);
        }
        Ok(None)
    }

    /// Writes what must be retransmitted or requested again, if there is something.
    fn poll_again(
        &mut self,
        admission: Admission<'_>,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        while let Some(what) = self.recovery.wants() {
            let position = what.position();
            let found = self.queue.find(position).filter(|index| self.queue[*index].failed.is_none());
            let Some(index) = found else {
                // The failed request is reported when all before it are complete.
                self.recovery.forgo(what);
                continue;
            };
            let wqe = &self.queue[index];
            let index_in_message = (position - wqe.first) as u32;
            let rest = wqe.packets - index_in_message;
            let (what, answers) = match what {
                Wants::Request(_) => (what, rest),
                Wants::Answers(_, count) => (Wants::Answers(position, count.min(rest)), count.min(rest)),
            };
            let packet = RequestPacket {
                index: index_in_message,
                answers,
                attempt: self.recovery.attempts(position),
                asks_for_acknowledge: self.recovery.asks_for_acknowledge(position, true)
                    || connection.extension.asks_telemetry(connection.path_mtu)
                    || self.must_ask(&admission, position + 1 == self.recovery.next(), cx.now),
                offers: self.offers(connection),
                path: cx.choose_path(),
                acknowledge: None,
            };
            match packet.write(&self.queue[index], out, connection, cx) {
                Ok(written) => {
                    cx.counters.retransmitted += 1;
                    let len = written.map_or(0, |transmit| transmit.len);
                    let is_answered = self.queue[index].request.operation.is_read_or_atomic();
                    let bytes = measured(len, is_answered, connection);
                    let asks = packet.asks_for_acknowledge || rest == 1 || is_answered;
                    self.recovery.sent_again(what, packet.path, bytes, cx.now);
                    self.note_asking(position, asks, cx.now);
                    return Ok(written);
                }
                Err(_) => self.fail_locally(index, connection, cx)?,
            }
        }
        Ok(None)
    }

    /// Whether a packet that goes now must ask for an acknowledge, since no other or only a late one follows. `is_newest`:
    /// nothing after it has been sent.
    fn must_ask(&self, admission: &Admission<'_>, is_newest: bool, now: Instant) -> bool {
        let is_late = admission.next_at > now.max(self.unasked_since.unwrap_or(now) + ASKS_WITHIN);
        (is_newest && admission.is_last) || is_late
    }

    /// Records whether the packet of that number, which goes now, asks for an acknowledge or another answer.
    fn note_asking(&mut self, number: u64, asks: bool, now: Instant) {
        if asks {
            (self.asked, self.unasked_since) = (self.asked.max(number + 1), None);
        } else {
            self.unasked_since.get_or_insert(now);
        }
    }

    /// Writes a packet for the first time: that of this number, of the request at `index`.
    #[inline(always)]
    fn send_new(
        &mut self,
        (index, packet): (usize, u32),
        admission: Admission<'_>,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        let number = self.recovery.next();
        let mut carries = false;
        let (written, path, asks) = if self.service.is_datagram() {
            (write_datagram(&self.queue[index], self.q_key, out, connection, cx), 0, true)
        } else {
            let offers = self.offers(connection);
            let wqe = &self.queue[index];
            // The last packet of a message asks anyway, and of a READ or atomic the first.
            let asks = packet + 1 == wqe.packets
                || wqe.request.operation.is_read_or_atomic()
                || self.recovery.asks_for_acknowledge(number, false)
                || connection.extension.asks_telemetry(connection.path_mtu)
                || self.must_ask(&admission, true, cx.now);
            let packet = RequestPacket {
                index: packet,
                answers: u32::MAX,
                attempt: 0,
                asks_for_acknowledge: asks,
                offers,
                path: cx.choose_path(),
                acknowledge: admission.acknowledge.get().filter(|_| wqe.can_carry(connection.path_mtu)),
            };
            carries = packet.acknowledge.is_some();
            (packet.write(wqe, out, connection, cx), packet.path, asks)
        };
        let Ok(written) = written else {
            self.fail_locally(index, connection, cx)?;
            return Ok(None);
        };
        if let Some(transmit) = written {
            if carries {
                admission.acknowledge.set(None);
            }
            let (count, answers) = self.queue.advance();
            let bytes = measured(transmit.len, answers, connection);
            self.recovery.sent(Departure { count, answers, path, bytes, asks }, cx.now);
            self.note_asking(number, asks, cx.now);
            if self.service != Service::Rc && !(self.service == Service::Uc && mutated!("uc-acknowledged-like-rc")) {
                self.acknowledge(&Said::before(self.recovery.next()), connection, cx)?;
            }
        }
        Ok(written)
    }

    /// Fails the request at `index`, since a packet of it cannot be written: a local protection error (IBTA 10.8.3.3).
    /// It is reported when all before it are complete.
    fn fail_locally(&mut self, index: usize, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        cx.counters.send_err += 1;
        self.queue[index].failed = Some(Status::LocalProtection);
        self.retire(connection, cx)
    }

    /// Whether a request packet that is sent now offers the extension.
    #[inline]
    fn offers(&mut self, connection: &Connection) -> bool {
        let offers = self.service == Service::Rc && connection.extension.offer(self.patience.timeouts());
        self.offers_from = offers.then(|| self.offers_from.unwrap_or_else(|| self.recovery.next()));
        offers
    }

    /// Executes the local operation at `index`.
    fn run_local(&self, index: usize, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Status> {
        let done = match self.queue[index].request.operation {
            SendOperation::BindWindow(binding) => cx.memory.bind(connection.scope(), &binding).is_ok(),
            SendOperation::LocalInvalidate(key) => cx.memory.invalidate(connection.scope(), key).is_ok(),
            _ => unreachable!("only local operations take no PSN"),
        };
        if done { Ok(()) } else { Err(Status::MwBind) }
    }

    /// Completes and removes requests that are done, the oldest first, until one is not done or has failed.
    fn retire(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let first = self.recovery.first();
        loop {
            if let Some(status) = self.queue.oldest().and_then(|wqe| wqe.failed) {
                return self.fail_oldest(status, connection, cx);
            }
            let Some(wqe) = self.queue.oldest_complete(first) else { return Ok(()) };
            self.patience.has_answered_large |= wqe.len > Cause::SMALL_BYTES;
            cx.counters.rdma_sends += u64::from(wqe.kind() == CompletionKind::Send);
            if wqe.request.signaled || mutated!("unsignaled-completion-reported") {
                let byte_len = if wqe.request.operation.is_read_or_atomic() { wqe.len } else { 0 };
                for _ in 0..1 + u32::from(mutated!("completed-twice")) {
                    connection.complete_send(wqe.request.wr_id, wqe.kind(), Status::Success, byte_len, cx);
                }
            }
            self.queue.discard_oldest();
        }
    }

    /// Completes the oldest request with an error; the caller flushes the others.
    fn fail_oldest(&mut self, status: Status, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        if let Some(wqe) = self.queue.pop() {
            let is_large = wqe.len.min(connection.path_mtu.bytes() as u32) > Cause::SMALL_BYTES;
            let seen = Seen {
                an_answer: self.patience.has_answered,
                a_large_answer: self.patience.has_answered_large || self.recovery.first() > wqe.first,
                is_large,
                has_paths: cx.multipath.as_ref().is_some_and(|multipath| multipath.set.has_several()),
            };
            let completion = Completion::send(wqe.request.wr_id, connection.qpn, wqe.kind(), status, 0);
            connection.fail_send(Completion { cause: seen.cause(status), ..completion }, cx);
        }
        Err(Fatal)
    }

    /// The packet number with that PSN, if it is in flight or was so recently.
    fn number(&self, psn: Psn) -> u64 {
        psn.expand(self.recovery.first())
    }

    /// Takes a retry for a retransmission. The oldest request fails when there are none left (IBTA 9.9.2.4.1.1).
    fn take_retry(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let psn = self.unacknowledged();
        if self.patience.take_retry() {
            let left = self.patience.retries_left();
            traced!(debug, "retry", qpn = connection.qpn, psn = psn, left = left);
            return Ok(());
        }
        cx.counters.retry_exceeded_err += 1;
        traced!(warn, "retries exceeded", qpn = connection.qpn, psn = psn);
        self.fail_oldest(Status::RetryExceeded, connection, cx)
    }

    /// Takes a retry, as [`take_retry`](Self::take_retry), and counts it.
    fn retry(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        self.take_retry(connection, cx)?;
        cx.counters.completer_retry += 1;
        Ok(())
    }

    pub fn handle_timeout(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        if let Some(at) = self.rnr_until {
            if at <= cx.now {
                self.rnr_until = None;
                self.recovery.receiver_may_be_ready(cx.now);
            }
            return Ok(());
        }
        self.learn_paths(cx);
        let first = self.recovery.first();
        let may_put_off = !self.has_asked() && self.queue.is_within_message() && self.put_off != first + 1;
        if may_put_off && self.recovery.has_not_asked(cx.now) {
            // The host, or others before us, kept the rest of the message back.
            self.put_off = first + 1;
        }
        let Expired { is_silent, asks_again } = self.recovery.handle_timeout(cx.now);
        if is_silent {
            self.patience.timed_out();
            let silences = self.patience.timeouts();
            traced!(debug, "timeout: the peer is silent", qpn = connection.qpn, silences = silences);
            self.take_retry(connection, cx)?;
        }
        cx.counters.completer_retry += u64::from(asks_again);
        self.tell_paths(connection, cx);
        Ok(())
    }

    /// Passes to the recovery what the paths mean for it, if there are several.
    fn learn_paths(&mut self, cx: &Context<'_>) {
        if let Some(multipath) = &*cx.multipath {
            let spread = (multipath.set.count() > 1).then(|| multipath.set.spread());
            self.recovery.use_paths(spread);
        }
    }

    /// Passes to the path policy the result of each packet.
    fn tell_paths(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        let (now, Some(multipath)) = (cx.now, cx.multipath.as_mut()) else { return };
        self.recovery.reports().iter().for_each(|report| match *report {
            PathReport::Arrived { path, took, is_marked } => multipath.set.arrived(path, took, is_marked, now),
            PathReport::Lost(path) => multipath.set.lost(path, now),
            PathReport::Dark(path) => {
                if multipath.set.fail(path, now) {
                    let good = multipath.set.good();
                    traced!(
                        debug,
                        "path dark: all packets on it are lost",
                        qpn = connection.qpn,
                        path = path,
                        good = good
                    );
                }
            }
        });
        self.recovery.forget_reports();
    }

    /// Passes to the recovery that the peer answered a probe of a path.
    pub fn path_answered(&mut self, path: u8, answered: Answered) {
        self.recovery.path_answered(path, answered.round_trip, answered.is_back);
    }
}

/// The length of a request packet as a recovery is told it. A READ or atomic is small, and how long its answer takes tells
/// of the way back: nobody asks what becomes of it.
fn measured(bytes: usize, answers: bool, connection: &Connection) -> usize {
    if answers { 0 } else { connection.extension.measured(bytes) }
}

use crate::path::Answered;
use crate::recovery::{Report, Scoreboard, Wants};
use crate::time::{Duration, Instant};
use crate::wire::{NakCode, Operation, Packet, Psn, RequestTrailer, Sack, Syndrome};

use super::completer::status_of;
use super::{Cursor, RequestPacket, Requester, Wqe, write_request};
use crate::transport::completion::Status;
use crate::transport::connection::Connection;
use crate::transport::context::{Context, Fatal};
use crate::transport::extension::RecoverySettings;
use crate::transport::transmit::Transmit;

/// What the requester keeps while it repeats selectively.
///
/// Positions are PSNs that do not wrap. That of the oldest PSN not acknowledged is the board's first.
#[derive(Debug)]
pub(super) struct Selective {
    board: Scoreboard,
    /// When the peer has been silent for a timeout more, unless there is progress until then. A retry each, as when going back:
    /// however long this host stood still, that is one.
    timeout_at: Option<Instant>,
    /// The request that the peer was not ready for.
    not_ready: Option<u64>,
}

/// How long is waited for a first sign of the peer when the queue pair has no timeout.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);

impl Selective {
    pub fn deadline(&self) -> Option<Instant> {
        [self.board.deadline(), self.timeout_at].into_iter().flatten().min()
    }

    pub fn may_transmit(&self) -> bool {
        self.board.wants_anything()
    }

    pub fn memory_bytes(&self) -> usize {
        self.board.memory_bytes()
    }

    /// The wait for a receiver that was not ready is over.
    pub fn receiver_may_be_ready(&mut self) {
        // An answer to what is before it may be all that is missing.
        if let Some(position) = self.not_ready.take().filter(|position| !self.board.is_carried_out(*position)) {
            self.board.lose(position);
        }
    }
}

impl Requester {
    /// The peer has shown that it understands: what is in flight is taken over.
    pub fn start_selective(&mut self, now: Instant) {
        if self.selective.is_some() {
            return;
        }
        let mut board = Scoreboard::new(0, self.timeout.unwrap_or(FIRST_PATIENCE));
        let mut at = self.unacknowledged;
        for wqe in &self.queue {
            let end = wqe.first_psn.plus(wqe.packets);
            while at.is_within(wqe.first_psn, wqe.packets) && at.is_before(self.sent) {
                let answers = wqe.request.operation.is_read_or_atomic();
                let count = if answers { end.since(at) as u32 } else { 1 };
                board.taken_over(count, answers, now);
                at = at.plus(count);
            }
        }
        // What came early may be a stranger's.
        self.answers = None;
        // Nothing is sent again but what the board wants.
        while self.cursor_psn().is_before(self.sent) {
            let wqe = &self.queue[self.cursor.index];
            self.cursor = match wqe.end_is_at_most(self.sent) {
                true => Cursor { index: self.cursor.index + 1, packet: 0 },
                false => Cursor { packet: self.sent.since(wqe.first_psn) as u32, ..self.cursor },
            };
        }
        let before = self.queue.range(..self.cursor.index);
        self.reads_in_flight = before.filter(|wqe| wqe.request.operation.counts_as_read()).count() as u32;
        let not_ready = self.is_waiting_for_receiver().then_some(0);
        self.selective = Some(Box::new(Selective { board, timeout_at: None, not_ready }));
        self.retransmit_at = None;
        self.rearm(now);
    }

    fn board(&mut self) -> &mut Scoreboard {
        &mut self.selective.as_mut().expect("called only while repeating selectively").board
    }

    fn position(&self, psn: Psn) -> Option<u64> {
        let first = self.selective.as_ref()?.board.first();
        first.checked_add_signed(psn.since(self.unacknowledged).into())
    }

    fn psn(&self, position: u64) -> Psn {
        let first = self.selective.as_ref().map_or(0, |selective| selective.board.first());
        self.unacknowledged.plus((position - first) as u32)
    }

    /// The next timeout begins.
    fn rearm(&mut self, now: Instant) {
        let timeout = self.timeout;
        let Some(selective) = &mut self.selective else { return };
        let in_flight = selective.board.first() < selective.board.next();
        // A timeout may be shorter than a round trip; a peer is not gone before three of them.
        let least = selective.board.patience() * 3;
        selective.timeout_at = timeout.filter(|_| in_flight).map(|timeout| now + timeout.max(least));
    }

    /// The board learns what the paths mean for it, if there are several.
    fn learn_paths(&mut self, cx: &Context<'_>) {
        let Some(multipath) = &*cx.multipath else { return };
        self.board().ignore_idle_acknowledges();
        if multipath.set.count() > 1 {
            self.board().spread_over_paths(multipath.set.spread());
        }
    }

    /// Whoever chooses paths learns what became of packets on them.
    fn tell_paths(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let (Some(multipath), Some(selective)) = (cx.multipath.as_mut(), &mut self.selective) else { return };
        for report in selective.board.reports() {
            match report {
                Report::Arrived { path, took, is_marked } => multipath.set.arrived(path, took, is_marked, now),
                Report::Lost(path) => multipath.set.lost(path, now),
                Report::Dark(path) => {
                    multipath.set.fail(path, now);
                }
            }
        }
    }

    /// The peer answered a probe of a path.
    pub fn path_answered(&mut self, path: u8, answered: Answered) {
        if let Some(selective) = &mut self.selective {
            selective.board.path_answered(path, answered.round_trip, answered.is_back);
        }
    }

    /// Takes what answers say of requests: all before `psn` were carried out.
    fn carried_out_before(&mut self, psn: Psn, now: Instant) {
        if let Some(position) = self.position(psn) {
            self.board().carried_out_before(position, now);
        }
    }

    /// After all that a packet said.
    fn settle(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        self.learn_paths(cx);
        let board = self.board();
        let before = board.first();
        let first = board.settle(cx.now);
        self.tell_paths(cx);
        if first > before {
            self.progress(self.unacknowledged.plus((first - before) as u32), cx.now);
            self.rearm(cx.now);
        }
        self.retire(connection, cx)
    }

    /// Takes an acknowledge, a READ response or an atomic acknowledge.
    pub fn handle_response_selectively(
        &mut self,
        packet: &Packet<'_>,
        sack: Option<&Sack>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        let operation = packet.bth().opcode().operation();
        match (operation, packet.aeth().map(|aeth| aeth.syndrome())) {
            // A late one acknowledges nothing, but may say what arrived.
            (Operation::Acknowledge, Some(Syndrome::Ack { .. }))
                if psn.is_before(self.sent)
                    && psn.since(self.unacknowledged) >= -(RecoverySettings::MAX_WINDOW as i32) =>
            {
                // Probes, too, take any path.
                let is_detour = match sack {
                    Some(sack) => sack.delay_us == u16::MAX,
                    None => packet.bth().extended(),
                };
                self.board().listen(is_detour && cx.multipath.is_some());
                if let Some(sack) = sack {
                    self.take_sack(sack, cx);
                }
                self.carried_out_before(psn.plus(1), cx.now);
                self.board().listen(false);
                self.settle(connection, cx)
            }
            _ if psn.is_before(self.unacknowledged) || !psn.is_before(self.sent) => {
                cx.counters.stray_response += 1;
                Ok(())
            }
            (Operation::ReadResponse, Some(Syndrome::Ack { .. })) if self.is_answer_without_data(psn, packet) => {
                self.carried_out_before(psn.plus(1), cx.now);
                self.settle(connection, cx)
            }
            (Operation::ReadResponse | Operation::AtomicAcknowledge, None | Some(Syndrome::Ack { .. })) => {
                self.take_answer(psn, packet, connection, cx)
            }
            (Operation::Acknowledge, Some(syndrome)) => self.take_nak(psn, syndrome, connection, cx),
            _ => {
                cx.counters.stray_response += 1;
                Ok(())
            }
        }
    }

    fn take_sack(&mut self, sack: &Sack, cx: &mut Context<'_>) {
        let now = cx.now;
        self.learn_paths(cx);
        // The longest delay stands for any longer one, too.
        let delay = Some(sack.delay_us).filter(|delay| *delay < u16::MAX);
        let delay = delay.map(|delay| Duration::from_micros(delay.into()));
        if let Some(position) = self.position(sack.trigger)
            && self.board().measured(position, sack.attempt, delay, sack.is_trigger_marked, now)
        {
            cx.counters.spurious_retransmission += 1;
        }
        for (base, bits) in &sack.blocks {
            let mut bits = *bits;
            while bits != 0 {
                let psn = base.plus(bits.trailing_zeros());
                bits &= bits - 1;
                // What was not sent cannot have arrived, whatever the peer says.
                let in_flight = !psn.is_before(self.unacknowledged) && psn.is_before(self.sent);
                match self.position(psn).filter(|_| in_flight) {
                    Some(position) if mutated!("completed-before-the-gap-is-filled") => {
                        self.board().carried_out_before(position + 1, now)
                    }
                    Some(position) => self.board().arrived(position, now),
                    None if psn.is_before(self.unacknowledged) => {}
                    None => cx.counters.stray_response += 1,
                }
            }
        }
    }

    fn take_nak(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let refused = match syndrome {
            Syndrome::RnrNak(timer) => {
                cx.counters.rcvd_rnr_err += 1;
                self.carried_out_before(psn, cx.now);
                self.settle(connection, cx)?;
                let position = self.position(psn);
                // A late one is about what has been carried out since.
                let is_news = position.is_some_and(|position| !self.board().is_carried_out(position));
                if self.is_waiting_for_receiver() || !is_news {
                    return Ok(());
                }
                if !self.has_patience_for_receiver() {
                    return self.fail_not_ready(psn, connection, cx);
                }
                self.wait_for_receiver(timer.delay(), cx);
                // The peer is there.
                self.retries_left = self.retry_count;
                self.rearm(cx.now);
                if let Some(selective) = &mut self.selective {
                    selective.not_ready = position;
                }
                return Ok(());
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                cx.counters.rcvd_seq_err += 1;
                self.carried_out_before(psn, cx.now);
                return self.settle(connection, cx);
            }
            Syndrome::Nak(code) => status_of(code),
            _ => None,
        };
        let Some(status) = refused else {
            cx.counters.stray_response += 1;
            return Ok(());
        };
        self.carried_out_before(psn, cx.now);
        self.settle(connection, cx)?;
        self.fail_refused(psn, status, connection, cx)
    }

    /// Takes an answer to a READ or atomic, in whatever order it comes.
    fn take_answer(
        &mut self,
        psn: Psn,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let position = self.position(psn).filter(|position| self.board().awaits_answer(*position));
        let (Some(position), Some(index)) = (position, self.find(psn)) else {
            // It came before.
            cx.counters.stray_response += 1;
            return Ok(());
        };
        let wqe = &self.queue[index];
        let at =
            if mutated!("early-answer-placed-as-the-next") { wqe.received } else { psn.since(wqe.first_psn) as u32 };
        if let Err(status) = self.place(index, at, packet, connection, cx) {
            let wqe = &mut self.queue[index];
            wqe.failed = Some(status);
            let first_psn = wqe.first_psn;
            self.carried_out_before(first_psn, cx.now);
            return self.settle(connection, cx);
        }
        self.board().answered(position, cx.now);
        self.queue[index].received += 1;
        if mutated!("reads-in-flight-forgotten-too-early") {
            self.reads_in_flight = 0;
        }
        self.settle(connection, cx)
    }

    /// Writes what is to be sent or asked for again, if there is something.
    pub fn poll_again(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        let (wants, position, count, index) = loop {
            let Some(selective) = &mut self.selective else { return Ok(None) };
            let Some(wants) = selective.board.wants() else { return Ok(None) };
            let (position, count) = match wants {
                Wants::Request(position) => (position, u32::MAX),
                Wants::Answers(position, count) => (position, count),
            };
            match self.find(self.psn(position)).filter(|index| self.queue[*index].failed.is_none()) {
                Some(index) => break (wants, position, count, index),
                // It will be reported when all before it are complete.
                None => self.board().forgo(position),
            }
        };
        let (psn, wqe) = (self.psn(position), &self.queue[index]);
        let index_in_message = psn.since(wqe.first_psn) as u32;
        let count = count.min(wqe.packets - index_in_message);
        let path = cx.choose_path();
        let packet = RequestPacket {
            index: index_in_message,
            psn,
            answers: count,
            is_again: true,
            offers: true,
            trailer: self.trailer(wqe, index_in_message, self.attempts(position)),
            path,
        };
        match write_request(wqe, packet, out, connection, cx) {
            Ok(written) => {
                cx.counters.retransmitted += 1;
                let now = cx.now;
                match wants {
                    Wants::Request(_) => self.board().sent(position, 1, false, path, now),
                    Wants::Answers(..) => self.board().asked(position, count, now),
                }
                Ok(written)
            }
            Err(_) => {
                cx.counters.send_err += 1;
                self.queue[index].failed = Some(Status::LocalProtection);
                self.retire(connection, cx)?;
                Ok(None)
            }
        }
    }

    fn attempts(&self, position: u64) -> u8 {
        self.selective.as_ref().map_or(0, |selective| selective.board.attempts(position))
    }

    /// What says where a packet belongs, towards a peer that understands it.
    pub(super) fn trailer(&self, wqe: &Wqe, index: u32, attempt: u8) -> Option<RequestTrailer> {
        self.selective.as_ref()?;
        let reth = wqe.reth().filter(|_| index > 0);
        Some(RequestTrailer { reth, index, attempt, receive_number: wqe.receive_number })
    }

    /// A packet went out over `path` for the first time.
    pub fn sent_selectively(&mut self, psn: Psn, count: u32, answers: bool, path: u8, now: Instant) {
        let Some(position) = self.position(psn) else { return };
        self.board().sent(position, count, answers, path, now);
        if self.selective.as_ref().is_some_and(|selective| selective.timeout_at.is_none()) {
            self.rearm(now);
        }
    }

    /// Time has passed.
    pub fn handle_timeout_selectively(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let now = cx.now;
        if self.selective.is_none() {
            return Ok(());
        }
        self.learn_paths(cx);
        if self.selective.as_ref().is_some_and(|selective| selective.timeout_at.is_some_and(|at| at <= now)) {
            self.take_retry(connection, cx)?;
            self.rearm(now);
        }
        let Some(selective) = &mut self.selective else { return Ok(()) };
        if selective.board.handle_timeout(now) {
            cx.counters.completer_retry += 1;
        }
        self.tell_paths(cx);
        Ok(())
    }
}

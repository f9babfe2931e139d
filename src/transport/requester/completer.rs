use arrayvec::ArrayVec;

use crate::frame::FrameBytes;
use crate::recovery::{Answer, Said, Trigger};
use crate::time::Duration;
use crate::wire::{
    AcknowledgeTrailer, CarriedAcknowledge, NakCode, Opcode, Operation, Packet, Position, Psn, Sack, Syndrome,
};

use super::Requester;
use crate::transport::completion::Status;
use crate::transport::connection::Connection;
use crate::transport::context::{Context, Fatal};
use crate::transport::work::{Data, SendOperation, scatter};

/// The completer: processes the peer's answers to the requests in flight.
impl Requester {
    /// Takes an acknowledge, a READ response or an atomic acknowledge (IBTA 9.7.5).
    pub fn handle_response(
        &mut self,
        packet: &Packet<'_>,
        trailer: Option<&AcknowledgeTrailer>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let number = self.number(packet.bth().psn());
        let is_in_flight = self.recovery.first() <= number && self.was_sent(number);
        match (packet.bth().opcode().operation(), packet.aeth().map(|aeth| aeth.syndrome())) {
            (Operation::Acknowledge, Some(Syndrome::Ack { .. })) if self.can_acknowledge(number) => {
                self.take_acknowledge(number, trailer, connection, cx)
            }
            (Operation::ReadResponse, Some(Syndrome::Ack { .. }))
                if is_in_flight && self.is_answer_without_data(number, packet) =>
            {
                self.acknowledge(&Said::before(number + 1), connection, cx)
            }
            (Operation::ReadResponse | Operation::AtomicAcknowledge, None | Some(Syndrome::Ack { .. }))
                if is_in_flight =>
            {
                self.take_answer(number, packet, connection, cx)
            }
            (Operation::Acknowledge, Some(syndrome)) if is_in_flight => self.take_nak(number, syndrome, connection, cx),
            _ => {
                cx.counters.stray_response += 1;
                Ok(())
            }
        }
    }

    /// Takes an acknowledge that a request of the peer carries.
    pub fn handle_carried(
        &mut self,
        carried: &CarriedAcknowledge,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let number = self.number(carried.psn);
        if !self.can_acknowledge(number) {
            cx.counters.stray_response += 1;
            return Ok(());
        }
        let CarriedAcknowledge { trigger, attempt, delay_us, is_trigger_marked, .. } = *carried;
        let trigger = self.trigger(trigger, attempt, delay_us, is_trigger_marked);
        let is_detour = trigger.delay.is_none() && cx.multipath.is_some();
        let said = Said { trigger: Some(trigger), is_detour, ..Said::before(number + 1) };
        self.acknowledge(&said, connection, cx)
    }

    /// Whether the packet `number` was sent: only what was can be answered. rxe accepts acknowledges for PSNs that it has not
    /// sent; this requester does not.
    fn was_sent(&self, number: u64) -> bool {
        number < self.recovery.next() || mutated!("acks-for-what-was-never-sent")
    }

    /// Whether an acknowledge with that number can be true. A late one acknowledges nothing, but can report what arrived.
    fn can_acknowledge(&self, number: u64) -> bool {
        self.was_sent(number) && number + self.recovery.reach() >= self.recovery.first()
    }

    /// The packet that an acknowledge was sent for. The maximum delay stands for any longer one, too, and for a copy over another
    /// path.
    fn trigger(&self, psn: Psn, attempt: u8, delay_us: u16, is_marked: bool) -> Trigger {
        let delay = Some(delay_us).filter(|delay| *delay < u16::MAX);
        let delay = delay.map(|delay| Duration::from_micros(delay.into()));
        Trigger { position: self.number(psn), attempt, delay, is_marked }
    }

    /// Whether it answers a FLUSH or ATOMIC WRITE, for which it is an acknowledge (IBTA A19.4.2).
    fn is_answer_without_data(&self, number: u64, packet: &Packet<'_>) -> bool {
        let is_empty = packet.bth().opcode() == Opcode::RC_READ_RESPONSE_ONLY && packet.payload().is_empty();
        is_empty && self.queue.find(number).is_some_and(|index| self.queue[index].is_acknowledged())
    }

    /// Takes an acknowledge, and its report of requests that arrived before earlier ones.
    fn take_acknowledge(
        &mut self,
        number: u64,
        trailer: Option<&AcknowledgeTrailer>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let Some(AcknowledgeTrailer::Sack(sack) | AcknowledgeTrailer::Measured(sack, _)) = trailer else {
            // An acknowledge with another trailer, such as a probe, takes any path.
            let is_detour = trailer.is_some() && cx.multipath.is_some();
            return self.acknowledge(&Said { is_detour, ..Said::before(number + 1) }, connection, cx);
        };
        let trigger = self.trigger(sack.trigger, sack.attempt, sack.delay_us, sack.is_trigger_marked);
        let next = self.recovery.next();
        let mut arrived = ArrayVec::<(u64, u64), { Sack::MAX_BLOCKS }>::new();
        for (base, bits) in &sack.blocks {
            let base = self.number(*base);
            // What was not sent cannot have arrived, whatever the peer reports.
            let sent = u32::try_from(next.saturating_sub(base)).unwrap_or(u32::MAX);
            cx.counters.stray_response += u64::from(bits.checked_shr(sent).unwrap_or(0).count_ones());
            arrived.push((base, *bits));
        }
        let is_detour = trigger.delay.is_none() && cx.multipath.is_some();
        let said = Said { before: number + 1, arrived: &arrived, trigger: Some(trigger), is_detour };
        self.acknowledge(&said, connection, cx)
    }

    /// Takes the contents of an acknowledge, or of an answer that implies one.
    pub(super) fn acknowledge(
        &mut self,
        said: &Said<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        self.learn_paths(cx);
        if self.recovery.acknowledge(said, cx.now) {
            cx.counters.spurious_retransmission += 1;
        }
        self.settle(connection, cx)?;
        if self.may_go_back(connection) && self.recovery.implied_nak(cx.now) {
            self.retry(connection, cx)?;
        }
        Ok(())
    }

    /// Completes what is done, after all that a packet reported.
    fn settle(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let before = self.recovery.first();
        let first = self.recovery.settle(cx.now);
        self.tell_paths(connection, cx);
        if first > before {
            self.patience.renew();
            // What the receiver was not ready for has arrived. An RNR delay for something later begins anew.
            self.rnr_until = self.rnr_until.filter(|_| mutated!("rnr-wait-outlives-progress"));
        }
        self.retire(connection, cx)
    }

    /// Whether to retransmit at once what was lost. An RNR delay ends with a retransmission anyway. While the peer's
    /// hello is expected, waiting for it lets only the lost packets be retransmitted.
    fn may_go_back(&self, connection: &Connection) -> bool {
        self.rnr_until.is_none() && !connection.extension.is_getting_acquainted()
    }

    /// Takes a NAK for the packet `number`.
    fn take_nak(
        &mut self,
        number: u64,
        syndrome: Syndrome,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = Psn::of(number);
        self.patience.has_answered = true;
        traced!(debug, "NAK received", qpn = connection.qpn, psn = psn, why = format_args!("{syndrome:?}"));
        match syndrome {
            Syndrome::RnrNak(timer) => {
                cx.counters.rcvd_rnr_err += 1;
                self.acknowledge(&Said::before(number), connection, cx)?;
                self.wait_for_receiver(number, timer.delay(), connection, cx)
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                cx.counters.rcvd_seq_err += 1;
                self.acknowledge(&Said::before(number), connection, cx)?;
                let is_news = self.recovery.is_news_of(number) && self.may_go_back(connection);
                if is_news && self.recovery.sequence_error(cx.now) {
                    self.retry(connection, cx)?;
                }
                Ok(())
            }
            Syndrome::Nak(code) => {
                let Some(status) = status_of(code) else {
                    cx.counters.stray_response += 1;
                    return Ok(());
                };
                self.acknowledge(&Said::before(number), connection, cx)?;
                // The NAK can be for any packet of its message. When answers to an earlier READ are missing as well,
                // that READ is not at fault. It is requested again until its retries end, since the peer is in error.
                match self.queue.oldest() {
                    Some(wqe) if (wqe.first..wqe.end()).contains(&number) => self.fail_oldest(status, connection, cx),
                    _ => Ok(()),
                }
            }
            Syndrome::Ack { .. } | Syndrome::Unknown(_) => {
                cx.counters.stray_response += 1;
                Ok(())
            }
        }
    }

    /// Begins the RNR delay, since the peer had no receive request for the packet `number`.
    fn wait_for_receiver(
        &mut self,
        number: u64,
        delay: Duration,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        // A late NAK is for a packet that has executed since.
        if self.rnr_until.is_some() || !self.recovery.is_news_of(number) {
            return Ok(());
        }
        if !self.patience.take_rnr_retry() {
            cx.counters.retry_rnr_exceeded_err += 1;
            traced!(warn, "RNR retries exceeded", qpn = connection.qpn, psn = Psn::of(number));
            // Answers to earlier requests can still arrive.
            if let Some(index) = self.queue.find(number) {
                self.queue[index].failed = Some(Status::RnrRetryExceeded);
            }
            return self.retire(connection, cx);
        }
        let left = self.patience.rnr_retries_left();
        traced!(debug, "RNR delay: the peer has no receive request", qpn = connection.qpn, left = left);
        self.recovery.receiver_not_ready(number, cx.now);
        self.patience.heard();
        self.rnr_until = Some(if mutated!("lost-rnr-back-off") { cx.now } else { cx.now + delay });
        Ok(())
    }

    /// Takes a READ response or atomic acknowledge: places it, keeps it, or drops it.
    fn take_answer(
        &mut self,
        number: u64,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let mut answer = self.recovery.answer(number);
        let believes_all = mutated!("any-answer-in-flight-believed", by "uroce --test answers a_stranger");
        let oldest = match answer {
            Answer::Early { oldest, is_next } if is_next || believes_all => Some(oldest),
            Answer::Expected if believes_all => Some(number),
            _ => None,
        };
        if let Some(oldest) = oldest
            && let Some(kept) = self.early_answers.take(oldest)
            && let Ok(kept) = Packet::parse(FrameBytes::from(&kept[..]))
        {
            // The kept answer replaces one that was lost for the second time.
            self.take_answer(oldest, &kept, connection, cx)?;
            answer = self.recovery.answer(number);
        }
        match (answer, self.queue.find(number)) {
            (Answer::Expected, Some(index)) => self.take_expected(index, number, packet, connection, cx),
            (Answer::Early { .. }, found) => {
                // All requests before it have executed, since answers come in order.
                if found.is_some_and(|index| self.queue[index].request.operation.is_read_or_atomic()) {
                    self.early_answers.keep(number, packet);
                }
                self.acknowledge(&Said::before(number), connection, cx)
            }
            _ => {
                cx.counters.stray_response += 1;
                Ok(())
            }
        }
    }

    /// Takes the missing answer `number` to the request at `index`.
    fn take_expected(
        &mut self,
        index: usize,
        number: u64,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        self.early_answers.take(number);
        let first = self.queue[index].first;
        let at = match mutated!("early-answer-placed-as-the-next") {
            true => self.recovery.first().saturating_sub(first),
            false => number - first,
        };
        if let Err(status) = self.place(index, at as u32, packet, connection, cx) {
            // It fails when all before it are complete. Its answer implies that they are, except READs.
            self.queue[index].failed = Some(status);
            return self.acknowledge(&Said::before(first), connection, cx);
        }
        self.recovery.answered(number, cx.now);
        self.learn_paths(cx);
        self.settle(connection, cx)
    }

    /// Checks answer number `at` to a request against the request, and places it.
    fn place(
        &self,
        index: usize,
        at: u32,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &Context<'_>,
    ) -> Result<(), Status> {
        let wqe = &self.queue[index];
        let Data::Sges(sges) = &wqe.request.data else { return Err(Status::LocalQpOperation) };
        let protection = |_| Status::LocalProtection;
        if wqe.request.operation.is_atomic() {
            let Some(original) = packet.atomic_ack_eth() else { return Err(Status::BadResponse) };
            let bytes = original.original().to_ne_bytes();
            return scatter(cx.memory, connection.pd, sges, 0, FrameBytes::from(&bytes[..])).map_err(protection);
        }
        debug_assert!(matches!(wqe.request.operation, SendOperation::Read(_)));
        if packet.bth().opcode().operation() != Operation::ReadResponse {
            return Err(Status::BadResponse);
        }
        // Only the end of the message is checked: a READ requested again from its middle can start with either FIRST,
        // as the IBTA says, or MIDDLE, as rxe continues. A requester that requests only some of the answers gets a
        // LAST among them.
        let ends = matches!(packet.bth().opcode().position(), Position::Last | Position::Only);
        let is_last = at + 1 == wqe.packets;
        if ends != is_last && (is_last || !self.recovery.asks_for_some_answers()) {
            return Err(Status::BadResponse);
        }
        let mtu = connection.path_mtu.bytes() as u32;
        let offset = at * mtu;
        if packet.payload().len() != (wqe.len - offset).min(mtu) as usize {
            return Err(Status::BadResponse);
        }
        let offset = offset.saturating_sub(4 * u32::from(mutated!("read-answer-at-wrong-offset")));
        scatter(cx.memory, connection.pd, sges, offset, packet.payload()).map_err(protection)
    }
}

/// The status of a request that was refused with `code`; `None` for a code that refuses none.
fn status_of(code: NakCode) -> Option<Status> {
    match code {
        NakCode::InvalidRequest | NakCode::InvalidRdRequest => Some(Status::RemoteInvalidRequest),
        NakCode::RemoteAccessError => Some(Status::RemoteAccess),
        NakCode::RemoteOperationalError => Some(Status::RemoteOperation),
        NakCode::PsnSequenceError | NakCode::Unknown(_) => None,
    }
}

use crate::frame::FrameBytes;
use crate::wire::{NakCode, Opcode, Operation, Packet, Position, Psn, Sack, Syndrome};

use super::Requester;
use crate::transport::completion::Status;
use crate::transport::connection::Connection;
use crate::transport::context::{Context, Fatal};
use crate::transport::work::{Data, SendOperation, scatter};

/// The completer: what the peer's answers mean for the requests in flight.
impl Requester {
    /// Takes an acknowledge, a READ response or an atomic acknowledge (IBTA 9.7.5).
    pub fn handle_response(
        &mut self,
        packet: &Packet<'_>,
        sack: Option<&Sack>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if connection.is_extended() {
            self.start_selective(cx.now);
            return self.handle_response_selectively(packet, sack, connection, cx);
        }
        // Only what is in flight can be answered. rxe believes acknowledges for PSNs it has not sent; we don't.
        let is_sent = psn.is_before(self.sent) || mutated!("acks-for-what-was-never-sent");
        if psn.is_before(self.unacknowledged) || !is_sent {
            cx.counters.stray_response += 1;
            return Ok(());
        }
        match packet.bth().opcode().operation() {
            Operation::Acknowledge => {
                let Some(aeth) = packet.aeth() else { return Ok(()) };
                self.handle_acknowledge(psn, aeth.syndrome(), connection, cx)?;
            }
            Operation::ReadResponse if self.is_answer_without_data(psn, packet) => {
                let Some(aeth) = packet.aeth() else { return Ok(()) };
                match aeth.syndrome() {
                    Syndrome::Ack { .. } => self.acknowledge_before(psn.plus(1), connection, cx)?,
                    _ => cx.counters.stray_response += 1,
                }
            }
            Operation::ReadResponse | Operation::AtomicAcknowledge => self.handle_data(psn, packet, connection, cx)?,
            _ => {}
        }
        if self.cursor_psn().is_before(self.unacknowledged) {
            // What was being sent again has arrived after all.
            self.go_back();
        }
        Ok(())
    }

    /// Whether it answers a FLUSH or ATOMIC WRITE: for these it is an acknowledge (IBTA A19.4.2).
    pub(super) fn is_answer_without_data(&self, psn: Psn, packet: &Packet<'_>) -> bool {
        let is_empty = packet.bth().opcode() == Opcode::RC_READ_RESPONSE_ONLY && packet.payload().is_empty();
        is_empty && self.find(psn).is_some_and(|index| self.queue[index].is_acknowledged())
    }

    fn handle_acknowledge(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        match syndrome {
            Syndrome::Ack { .. } => self.acknowledge_before(psn.plus(1), connection, cx),
            Syndrome::RnrNak(timer) => {
                cx.counters.rcvd_rnr_err += 1;
                self.acknowledge_before(psn, connection, cx)?;
                if self.unacknowledged != psn || self.is_waiting_for_receiver() {
                    return Ok(());
                }
                if !self.has_patience_for_receiver() {
                    return self.fail_not_ready(psn, connection, cx);
                }
                self.wait_for_receiver(timer.delay(), cx);
                Ok(())
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                cx.counters.rcvd_seq_err += 1;
                self.acknowledge_before(psn, connection, cx)?;
                // While it waits for the receiver it will go back anyway.
                let comes_better = connection.extension.is_getting_acquainted();
                if self.unacknowledged != psn || self.is_waiting_for_receiver() || comes_better {
                    return Ok(());
                }
                self.retry(connection, cx)
            }
            Syndrome::Nak(code) => {
                let Some(status) = status_of(code) else {
                    cx.counters.stray_response += 1;
                    return Ok(());
                };
                self.acknowledge_before(psn, connection, cx)?;
                self.fail_refused(psn, status, connection, cx)
            }
            Syndrome::Unknown(_) => {
                cx.counters.stray_response += 1;
                Ok(())
            }
        }
    }

    /// The request of `psn` was refused. A NAK may be for any packet of its message. When answers to an earlier READ are
    /// missing as well, that READ is not to blame; it is asked for again, and runs out of patience with a peer in error.
    pub(super) fn fail_refused(
        &mut self,
        psn: Psn,
        status: Status,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        match self.queue.front() {
            Some(wqe) if psn.is_within(wqe.first_psn, wqe.packets) => self.fail_oldest(status, connection, cx),
            _ => Ok(()),
        }
    }

    /// There was no receive request for the one of `psn`, too often. Answers to earlier requests may still come.
    pub(super) fn fail_not_ready(
        &mut self,
        psn: Psn,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        cx.counters.retry_rnr_exceeded_err += 1;
        if let Some(index) = self.find(psn) {
            self.queue[index].failed = Some(Status::RnrRetryExceeded);
        }
        self.retire(connection, cx)
    }

    /// Everything before `psn` has arrived, says the peer. READs and atomics are complete only with their answers: when
    /// one is missing, it was lost, and is asked for again (IBTA 9.7.5.1.1, implied NAK).
    fn acknowledge_before(&mut self, psn: Psn, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        let missing = self
            .queue
            .iter()
            .take_while(|wqe| wqe.first_psn.is_before(psn))
            .find(|wqe| wqe.awaits_answer())
            .map(|wqe| wqe.first_psn.plus(wqe.received));
        let to = match missing {
            Some(missing) if missing.is_before(psn.minus(mutated!("ack-completes-unanswered-read").into())) => missing,
            _ => psn,
        };
        self.progress(to, cx.now);
        self.retire(connection, cx)?;
        if to.is_before(psn) { self.report_gap(connection, cx) } else { Ok(()) }
    }

    /// An answer to a READ or atomic was lost: asks for it again, once.
    fn report_gap(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Result<(), Fatal> {
        // It is asked for by itself in a moment.
        let comes_better = connection.extension.is_getting_acquainted();
        if self.gap_reported || self.is_waiting_for_receiver() || comes_better {
            return Ok(());
        }
        self.gap_reported = true;
        self.retry(connection, cx)
    }

    /// Takes a READ response or atomic acknowledge.
    fn handle_data(
        &mut self,
        psn: Psn,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        if packet.aeth().is_some_and(|aeth| !matches!(aeth.syndrome(), Syndrome::Ack { .. })) {
            cx.counters.stray_response += 1;
            return Ok(());
        }
        if let Some(kept) = self.take_kept_answer(psn)
            && let Ok(oldest) = Packet::parse(FrameBytes::from(&kept[..]))
        {
            // It was lost for the second time.
            self.handle_data(oldest.bth().psn(), &oldest, connection, cx)?;
        }
        let Some(index) = self.queue.iter().position(|wqe| wqe.awaits_answer()) else {
            cx.counters.stray_response += 1;
            return Ok(());
        };
        let wqe = &self.queue[index];
        let expected = wqe.first_psn.plus(wqe.received);
        if psn != expected && !(psn == expected.plus(1) && mutated!("read-answer-out-of-order-taken")) {
            if psn.is_before(expected) {
                // An answer to something that needs none.
                cx.counters.stray_response += 1;
                return Ok(());
            }
            // A later one: this one was lost. All before it has arrived, since answers come in order.
            if self.keeps_answers {
                self.keep_answer(psn, packet);
            }
            return self.acknowledge_before(psn, connection, cx);
        }

        // The answer implies that all requests before it were carried out.
        let (first_psn, received) = (wqe.first_psn, wqe.received);
        self.forget_kept_answer(psn);
        let wqe = &self.queue[index];
        let is_last = wqe.received + 1 == wqe.packets;
        let ends = matches!(packet.bth().opcode().position(), Position::Last | Position::Only);
        // First or middle, last or only: a READ asked for again from its middle may start with either (rxe goes on with
        // MIDDLE, the IBTA says FIRST).
        let fits = ends == is_last || wqe.request.operation.is_atomic();
        let placed = if fits { self.place(index, received, packet, connection, cx) } else { Err(Status::BadResponse) };
        self.progress(first_psn.plus(received), cx.now);
        let status = match placed {
            Ok(()) => {
                let wqe = &mut self.queue[index];
                wqe.received += 1;
                let complete = !wqe.awaits_answer();
                if complete && index < self.cursor.index {
                    self.reads_in_flight -= 1;
                }
                self.progress(psn.plus(1), cx.now);
                return self.retire(connection, cx);
            }
            Err(status) => status,
        };
        self.retire(connection, cx)?;
        self.fail_oldest(status, connection, cx)
    }

    /// Checks answer number `at` to a request against what was asked, and places it.
    pub(super) fn place(
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
        let mtu = connection.path_mtu.bytes() as u32;
        let offset = at * mtu;
        if packet.payload().len() != (wqe.len - offset).min(mtu) as usize {
            return Err(Status::BadResponse);
        }
        let offset = offset.saturating_sub(4 * u32::from(mutated!("read-answer-at-wrong-offset")));
        scatter(cx.memory, connection.pd, sges, offset, packet.payload()).map_err(protection)
    }
}

/// The status of a request that was refused so; `None` where the code refuses none.
pub(super) fn status_of(code: NakCode) -> Option<Status> {
    match code {
        NakCode::InvalidRequest | NakCode::InvalidRdRequest => Some(Status::RemoteInvalidRequest),
        NakCode::RemoteAccessError => Some(Status::RemoteAccess),
        NakCode::RemoteOperationalError => Some(Status::RemoteOperation),
        NakCode::PsnSequenceError | NakCode::Unknown(_) => None,
    }
}

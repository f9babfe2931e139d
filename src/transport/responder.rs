mod owed;
mod saved;
mod server;

use crate::cache;
use crate::frame::FrameBytes;
use crate::wire::{
    Aeth, Bth, CarriedAcknowledge, Extension, Headers, Msn, NakCode, Opcode, Operation, Packet, Position, Psn,
    RequestTrailer, RnrTimer, Syndrome,
};

use super::acks::{AckPolicy, Arrived, CumulativeAcks, OwedAck};
use super::answer_flight::AnswerFlight;
use super::attributes::QpAttributes;
use super::connection::Connection;
use super::context::{Context, Fatal};
use super::early::{Arrival, Lie, Placed};
use super::event::Event;
use super::inbound::Refusal;
use super::message_kind::MessageKind;
use super::outgoing::{Outgoing, no_payload};
use super::reorder::{Early, Reorder, Waiting};
use super::skipped::Skipped;
use super::transmit::Transmit;

use owed::{OwedReply, ReadAnswer};
use saved::{FORGOTTEN_AFTER, Saved};
use server::Server;

/// The responder: checks the peer's requests in the order of IBTA 9.7.4, executes them, and answers.
#[derive(Debug)]
pub(super) struct Responder {
    pub server: Server,
    min_rnr_timer: RnrTimer,
    expected: Psn,
    /// Whether a NAK was sent for the expected PSN. Everything later is dropped until that arrives (IBTA 9.7.5.2.8: one
    /// NAK a gap).
    nak_outstanding: bool,
    /// How what arrived is reported to the peer.
    acks: Box<dyn AckPolicy>,
    /// Requests that arrived early.
    reorder: Option<Box<Reorder>>,
}

impl Default for Responder {
    fn default() -> Responder {
        Responder {
            server: Server::default(),
            min_rnr_timer: RnrTimer::default(),
            expected: Psn::default(),
            nak_outstanding: false,
            acks: Box::new(CumulativeAcks),
            reorder: None,
        }
    }
}

impl Responder {
    pub fn configure(&mut self, attributes: &QpAttributes, connection: &Connection) {
        self.server.inbound.access = attributes.access.unwrap_or(self.server.inbound.access);
        self.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        if let Some(max) = attributes.max_dest_rd_atomic {
            self.server.owed.set_outstanding_max(max.into());
        }
        if let Some(psn) = attributes.receive_psn {
            self.expected = psn;
            self.acks = connection.extension.acks();
        }
    }

    /// Takes over the acknowledges of the extension: the peer has shown only now that it understands. Early requests
    /// are discarded, since they can be a stranger's.
    pub fn met_peer(&mut self, connection: &Connection) {
        self.acks = connection.extension.acks();
        self.answers_in_flight_mut().into_iter().for_each(AnswerFlight::forget);
        if !mutated!("what-waited-for-anybody-is-kept", by "uroce --test strangers what_waits_is_forgotten") {
            self.reorder.iter_mut().for_each(|reorder| reorder.forget());
        }
    }

    /// Has what lies outside of it fetched into the caches.
    pub fn prefetch(&self) {
        cache::prefetch(&*self.acks);
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether a READ or atomic that the peer can request again has this PSN.
    pub fn is_saved(&self, psn: Psn) -> bool {
        self.server.saved.of(psn).is_some()
    }

    /// Moves on as if the messages of `skipped` had been received, executed and acknowledged, in order.
    pub fn skip(&mut self, skipped: Skipped) {
        debug_assert!(self.server.owed.is_empty(), "only an idle responder can be moved on");
        let mut packets = skipped.packets;
        while packets > 0 {
            // The steps are short enough for what is old to be noticed.
            let step = packets.min(FORGOTTEN_AFTER / 2);
            self.expected = self.expected.plus(step);
            self.server.saved.forget_old(self.expected);
            packets -= step;
        }
        self.server.msn = Msn::new(self.server.msn.value() + skipped.messages);
        self.server.inbound.skip(skipped.receives);
        self.nak_outstanding = false;
        self.reorder.iter_mut().for_each(|reorder| reorder.advance(skipped.packets));
        self.acks.advance(skipped.packets);
        self.acks.skip(self.expected.minus(1));
    }

    pub fn has_answers(&self) -> bool {
        !self.server.owed.is_empty() || self.acks.owed() != OwedAck::None
    }

    /// Whether the next answer is exempt from the rate: an acknowledge that overtakes the others; or an acknowledge, a NAK
    /// or the result of an atomic, when no READ response comes before it.
    pub fn owes_at_once(&self) -> bool {
        let keep_to_it = mutated!("refusals-keep-to-the-rate", by "uroce --test selective a_refusal_keeps_to_no_rate");
        self.acks.owed() != OwedAck::None || (self.server.owed.is_next_without_payload() && !keep_to_it)
    }

    /// Whether the next READ response is one that the peer has requested again, with selective repeat.
    pub fn answers_again(&self) -> bool {
        self.server.owed.is_next_again()
    }

    /// Memory that early requests take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.reorder.as_ref().map_or(0, |reorder| reorder.memory_bytes()) + self.acks.memory_bytes()
    }

    /// Bytes of requests that arrived early and wait.
    pub fn waiting_bytes(&self) -> usize {
        self.reorder.as_ref().map_or(0, |reorder| reorder.waiting_bytes())
    }

    /// Discards early requests, but not the answers to those that have executed.
    pub fn drop_early(&mut self) {
        self.reorder.iter_mut().for_each(|reorder| reorder.forget());
        self.acks.forget();
    }

    /// Whether a single acknowledge, not a NAK, is all that is owed.
    pub fn owes_only_an_acknowledge(&self) -> bool {
        match self.server.owed.only_acknowledges() {
            Some(0) => self.acks.owed() != OwedAck::None,
            Some(_) => self.acks.owed() == OwedAck::None,
            None => false,
        }
    }

    /// The acknowledge that is owed, if a request to the peer can carry it.
    pub fn acknowledge_to_carry(&self, connection: &Connection, cx: &Context<'_>) -> Option<CarriedAcknowledge> {
        // Others have a way or a class of their own.
        let goes_the_same_way = cx.multipath.is_none() && connection.acknowledge_dscp.is_none();
        let may_carry = connection.extension.may_carry() && goes_the_same_way;
        if may_carry { self.acks.to_carry(self.expected, cx.now) } else { None }
    }

    /// Records that a request carries that acknowledge.
    pub fn acknowledge_was_carried(&mut self) {
        if !mutated!("carried-and-sent-again", by "uroce --test carried a_request_takes_the_acknowledge") {
            self.acks.was_carried();
        }
    }

    /// Discards the READ responses that are owed: no memory is read from now on.
    pub fn drop_reads(&mut self) {
        self.server.owed.drop_reads();
    }

    /// Takes a request packet; `is_marked` when it arrived with «congestion experienced».
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        is_marked: bool,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let (psn, asks) = (packet.bth().psn(), packet.bth().ack_request());
        let attempt = trailer.map_or(0, |trailer| trailer.attempt);
        self.acks.arrived(Arrived { psn, attempt, is_marked, asks, at: cx.now });
        if trailer.is_some_and(|trailer| trailer.has_telemetry)
            && let Some(telemetry) = packet.telemetry()
        {
            self.acks.measured(psn, telemetry);
        }
        // Step 1: is it the expected one?
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            cx.counters.duplicate_request += 1;
            if cx.multipath.is_some() {
                // The peer did not learn that it had arrived: a copy of the acknowledge goes over another path.
                self.acks.owe_copy();
            }
            self.handle_duplicate(packet, connection, cx);
            return Ok(());
        }
        if ahead > 0 && packet.reth().is_some() && mutated!("write-placed-out-of-order") {
            let _ = self.server.inbound.serve(packet, None, connection, cx);
        }
        if ahead > i32::from(mutated!("every-gap-packet-accepted")) {
            return self.take_early(ahead as u32, packet, trailer, connection, cx);
        }
        // Where no request was ever early, none waits.
        if self.reorder.is_none() {
            return self.carry_out(packet, None, connection, cx);
        }
        let vouches = self.vouches_for_early();
        if !(vouches && self.reorder.as_ref().is_some_and(|reorder| reorder.has_expected())) {
            self.carry_out(packet, None, connection, cx)?;
        }
        if vouches { self.carry_out_waiting(None, connection, cx) } else { Ok(()) }
    }

    fn vouches_for_early(&self) -> bool {
        // A peer that is not known yet is served as a plain one, whatever its packets claim.
        self.acks.vouches_for_early()
            || mutated!("stranger-served-as-a-known-peer", by "uroce --test early a_send_of_a_peer")
    }

    /// Takes a request that arrived before earlier ones.
    ///
    /// Without a tag that proves whose it is, a stranger has a window of PSNs to hit. So the request is kept, and
    /// executed only after the peer has gone back. The same bytes, or those of a later request, must arrive again, and
    /// no other bytes for the same PSN in between. Then a loss among the retransmitted packets needs no third
    /// transmission.
    ///
    /// The peer learns nothing of requests that it has not retransmitted. Otherwise an rxe would wait for ever if the
    /// last packet is then lost (docs/INTEROP.md).
    fn take_early(
        &mut self,
        ahead: u32,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if self.vouches_for_early() {
            match self.keep(ahead, packet, trailer, connection, cx) {
                Early::Kept => self.acks.kept(ahead),
                Early::Duplicate => cx.counters.duplicate_request += 1,
                Early::Overflow => cx.counters.reorder_overflow += 1,
            }
            return Ok(());
        }
        if self.reorder.as_ref().is_some_and(|reorder| reorder.is_sent_again(ahead, packet, connection.path_mtu)) {
            self.carry_out_waiting(Some(psn), connection, cx)?;
            // An earlier one can still have to wait for a receive request.
            return if self.expected == psn { self.carry_out(packet, None, connection, cx) } else { Ok(()) };
        }
        // Duplicates, and those without room, are counted as out of sequence only.
        self.keep(ahead, packet, None, connection, cx);
        cx.counters.out_of_seq_request += 1;
        if self.reorder.is_some() && mutated!("early-request-of-a-plain-peer-acknowledged") {
            self.answer(psn, Syndrome::ACK);
        }
        if !self.nak_outstanding && self.server.owed.may_answer(cx) {
            self.nak_outstanding = true;
            traced!(debug, "NAK sent: sequence error", qpn = connection.qpn, psn = self.expected, received = psn);
            self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
        }
        Ok(())
    }

    /// Keeps a request that arrived early, and places its bytes if that is allowed.
    fn keep(
        &mut self,
        ahead: u32,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Early {
        let settings = &connection.extension.settings;
        let window = connection.extension.early_window();
        if window == 0 {
            return Early::Overflow;
        }
        let rest = settings.endpoint_reorder_bytes.saturating_sub(cx.waiting_elsewhere);
        let limit = settings.reorder_bytes.min(if mutated!("endpoint-bound-off") { usize::MAX } else { rest });
        let (opcode, is_single) = (packet.bth().opcode(), packet.bth().opcode().position() == Position::Only);
        if is_single && opcode.operation() == Operation::Write && mutated!("early-request-carried-out-at-once") {
            let _ = self.server.inbound.serve(packet, None, connection, cx);
        }
        if is_single && opcode.operation() == Operation::Send && mutated!("early-send-completed-at-once") {
            let _ = self.server.inbound.serve(packet, None, connection, cx);
        }
        let receive_pd = self.server.inbound.pd(connection, cx);
        let (inbound, memory) = (&self.server.inbound, &*cx.memory);
        let arrival = Arrival { packet, trailer, inbound, connection, memory, receive_pd };
        let is_vouched_for = self.acks.vouches_for_early();
        let reorder = self.reorder.get_or_insert_default();
        let early = reorder.keep(ahead, &arrival, (window, limit), is_vouched_for, cx.counters);
        cx.counters.reordered += u64::from(early == Early::Kept);
        early
    }

    /// Executes the requests that wait from the expected PSN on, up to `to` or all.
    fn carry_out_waiting(
        &mut self,
        to: Option<Psn>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        while to != Some(self.expected)
            && let Some((waiting, headers)) = self.take_waiting(connection)
        {
            let (psn, mut buffer) = (self.expected, [0; Packet::HEADER_BYTES_MAX]);
            let (packet, placed) = match (&waiting, &headers) {
                (Waiting::Placed(placed), Some(headers)) => {
                    (Ok(Packet::of_headers(headers, &mut buffer)), Some(placed))
                }
                (Waiting::Bytes(bytes), _) => (Packet::parse(FrameBytes::from(&bytes[..])), None),
                (Waiting::Placed(_), None) => break,
            };
            let Ok(packet) = packet else { break };
            self.carry_out(&packet, placed, connection, cx)?;
            if self.expected == psn {
                // It has no receive request now.
                if let Some(reorder) = &mut self.reorder {
                    reorder.put_back(waiting);
                }
                break;
            }
        }
        Ok(())
    }

    /// Removes the request with the expected PSN, if it arrived early. The headers are those of one whose bytes are
    /// placed.
    fn take_waiting(&mut self, connection: &Connection) -> Option<(Waiting, Option<Headers>)> {
        let reorder = self.reorder.as_mut()?;
        let waiting = reorder.take_expected()?;
        let headers = match &waiting {
            Waiting::Bytes(_) => None,
            Waiting::Placed(placed) => {
                let (messages, position) = reorder.messages();
                Some(placed.headers(connection, self.expected, messages.reth(position)))
            }
        };
        Some((waiting, headers))
    }

    /// Executes the expected request, or refuses it.
    fn carry_out(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        let was_not_ready = self.nak_outstanding && self.acks.overtakes();
        self.nak_outstanding &= mutated!("nak-not-cleared");

        match self.serve(packet, placed, connection, cx) {
            Ok(packets) => {
                self.expected = psn.plus(packets);
                self.server.saved.forget_old(self.expected);
                if was_not_ready && !mutated!("refusal-outlives-its-reason", by "uroce --test selective a_refusal_that")
                {
                    // The RNR NAK would be for a request that has executed.
                    self.server.owed.forget_rnr_naks();
                }
                self.acks.advance(packets);
                if let Some(reorder) = &mut self.reorder {
                    reorder.advance(packets);
                    let begun = self.server.inbound.current(connection.path_mtu).map_or(0, |current| current.packets);
                    let (messages, expected) = reorder.messages();
                    messages.retire(expected - u64::from(begun), self.server.inbound.first_unfinished());
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                if self.server.owed.may_answer(cx) {
                    cx.counters.send_rnr_err += 1;
                    self.nak_outstanding = true;
                    traced!(debug, "NAK sent: receiver not ready", qpn = connection.qpn, psn = psn);
                    self.answer(psn, Syndrome::RnrNak(self.min_rnr_timer));
                }
                Ok(())
            }
            Err(Refusal::Nak(code, status)) => {
                let opcode = packet.bth().opcode();
                let why = format_args!("{code:?}");
                traced!(warn, "NAK sent", qpn = connection.qpn, psn = psn, opcode = opcode, why = why);
                self.answer(psn, Syndrome::Nak(code));
                self.server.inbound.fail_message(status, connection, cx);
                let is_write = packet.bth().opcode().operation() == Operation::Write;
                if code == NakCode::RemoteAccessError && is_write && packet.imm_dt().is_some() {
                    self.server.inbound.fail_immediate(connection, cx);
                }
                let event = match code {
                    NakCode::RemoteAccessError => Event::AccessError(connection.qpn),
                    _ => Event::RequestError(connection.qpn),
                };
                cx.push_event(event);
                Err(Fatal)
            }
        }
    }

    /// Steps 2 to 6 of IBTA 9.7.4.1: opcode sequence, opcode, resources, keys and lengths; then executes the request.
    /// Returns the PSNs that it takes.
    fn serve(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let payload_bytes = placed.map_or(packet.payload().len(), |placed| placed.len.into());
        self.server.check(packet, payload_bytes, connection)?;
        self.check_told(packet, placed, connection, cx)?;
        let placed_bytes = placed.map(|placed| u32::from(placed.len));
        let packets = self.server.serve(packet, placed_bytes, connection, cx)?;
        let is_message = matches!(packet.bth().opcode().operation(), Operation::Send | Operation::Write);
        if is_message && packet.bth().ack_request() {
            let beyond = u32::from(mutated!("ack-beyond-what-arrived"));
            self.acknowledge(packet.bth().psn().plus(beyond), cx);
        }
        Ok(packets)
    }

    /// Checks what packets of this message claimed when they arrived early. If it was wrong, and bytes were placed by
    /// it, the peer has invented the request.
    fn check_told(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let Some((messages, expected)) = self.reorder.as_mut().map(|reorder| reorder.messages()) else { return Ok(()) };
        if messages.is_empty() && placed.is_none() {
            return Ok(());
        }
        let opcode = packet.bth().opcode();
        let number = self.server.inbound.taken();
        let (index, kind) = match (opcode.operation(), self.server.inbound.current(connection.path_mtu)) {
            (_, Some(current)) => (current.packets, current.kind),
            (Operation::Send, None) => (0, MessageKind::Send { number }),
            (Operation::Write, None) => {
                (0, MessageKind::Write { reth: packet.reth().copied().unwrap_or_default(), number })
            }
            (Operation::ReadRequest | Operation::Flush, None) => (0, MessageKind::Read),
            (_, None) => (0, MessageKind::Atomic),
        };
        messages.finish(expected - u64::from(index), index, kind, placed).map_err(|Lie| {
            cx.counters.bad_trailer += 1;
            Refusal::INVALID
        })
    }

    /// Answers a request that was served before: its answer was lost, or is still in flight (IBTA 9.7.5.1.3). The MSN
    /// is the current one, of the latest completed message (IBTA 9.7.7.1), as in rxe.
    fn handle_duplicate(&mut self, packet: &Packet<'_>, connection: &Connection, cx: &mut Context<'_>) {
        let psn = packet.bth().psn();
        match (packet.bth().opcode().operation(), self.server.saved.of(psn)) {
            (Operation::Send | Operation::Write, _) => self.acknowledge_again(packet, connection, cx),
            (Operation::ReadRequest, Some(&saved)) if saved.original.is_none() => {
                self.read_again(packet, &saved, connection, cx);
            }
            (Operation::CompareSwap | Operation::FetchAdd, Some(&Saved { original: Some(original), .. })) => {
                if mutated!("atomic-executed-twice") {
                    let _ = self.server.serve_atomic(packet, connection, cx);
                }
                let msn = self.server.msn;
                self.server.owed.push_if_room(OwedReply::Atomic { psn, msn, original, is_repeat: true }, cx);
            }
            // It has executed, as all before the expected PSN; no result is needed to answer it.
            (Operation::AtomicWrite | Operation::Flush, _) => {
                if mutated!("atomic-write-carried-out-again", by "uroce --test flush duplicates_are_answered_again") {
                    let _ = self.server.serve_atomic_write(packet, connection, cx);
                }
                let msn = self.server.msn;
                self.server.owed.push_if_room(OwedReply::Empty { psn, msn, is_outstanding: false }, cx);
            }
            // It is older than what the peer can request again: the IBTA has it dropped.
            _ => cx.counters.stray_response += 1,
        }
    }

    /// Acknowledges a duplicate SEND or WRITE. It is not placed again: newer data can be there. The acknowledge covers
    /// what has executed, but nothing from a READ or atomic on: only their data answers these, and rxe takes an
    /// acknowledge for that.
    fn acknowledge_again(&mut self, packet: &Packet<'_>, connection: &Connection, cx: &mut Context<'_>) {
        let is_single = packet.bth().opcode().position() == Position::Only;
        if is_single && packet.reth().is_some() && mutated!("duplicate-write-placed-again") {
            let _ = self.server.inbound.serve(packet, None, connection, cx);
        }
        if is_single && packet.reth().is_none() && mutated!("late-duplicate-send-placed") {
            let _ = self.server.inbound.serve(packet, None, connection, cx);
        }
        let following = self.server.saved.first_after(packet.bth().psn(), self.expected);
        if !mutated!("lost-ack-not-repeated") {
            self.acknowledge(following.unwrap_or(self.expected).minus(1), cx);
        }
    }

    /// Answers a READ, or a part of it, that is requested again.
    fn read_again(&mut self, packet: &Packet<'_>, saved: &Saved, connection: &Connection, cx: &mut Context<'_>) {
        let Some(reth) = packet.reth() else { return };
        let psn = packet.bth().psn();
        let (key, address, rest) = (reth.key(), reth.address(), reth.length());
        let index = psn.since(saved.first_psn) as u32;
        let packets = connection.path_mtu.packets(rest as usize);
        if packets > saved.packets - index {
            cx.counters.stray_response += 1;
            return;
        }
        // MigReq is clear in rxe's requests. rxe expects its answers to continue with MIDDLE; the IBTA wants them to
        // start with FIRST.
        let index = if packet.bth().mig_req() { 0 } else { index };
        let (request, msn, count) = (saved.first_psn, self.server.msn, index + packets);
        let answer = ReadAnswer { request, msn, key, psn, address, rest, index, count, is_repeat: true };
        match self.acks.asks_for_what_is_missing() {
            true => self.server.owed.send_again(answer, connection, cx),
            false => {
                let is_part = psn.plus(packets) != saved.first_psn.plus(saved.packets);
                self.server.owed.start_over(answer, is_part, cx);
            }
        }
    }

    /// The READ responses of which the peer has not reported yet.
    pub fn answers_in_flight(&self) -> Option<&AnswerFlight> {
        self.server.owed.flight.as_deref()
    }

    /// The same, to be told of reports and of time.
    pub fn answers_in_flight_mut(&mut self) -> Option<&mut AnswerFlight> {
        self.server.owed.flight.as_deref_mut()
    }

    /// Owes an acknowledge up to `psn`.
    fn acknowledge(&mut self, psn: Psn, cx: &mut Context<'_>) {
        if !self.acks.owe() {
            self.server.owed.acknowledge(psn, self.server.msn, self.expected, cx);
        }
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        self.server.owed.push(OwedReply::Acknowledge { psn, syndrome, msn: self.server.msn });
    }

    /// The headers of an acknowledge of all that has executed.
    pub fn acknowledge_of_all(&self, connection: &Connection) -> Headers {
        self.acknowledge_to(self.expected.minus(u32::from(!mutated!("sack-acknowledges-what-waits"))), connection)
    }

    /// The headers of an acknowledge of all before the first READ response or result that is owed. A requester with
    /// go-back-N takes an acknowledge beyond that for its loss.
    pub fn acknowledge_of_answered(&self, connection: &Connection) -> Headers {
        let first = self.server.owed.first_result(self.expected);
        let is_beyond = mutated!("hello-acknowledges-what-was-not-answered", by "uroce --test strangers a_hello_goes");
        let first = first.filter(|psn| psn.is_before(self.expected) && !is_beyond).unwrap_or(self.expected);
        self.acknowledge_to(first.minus(1), connection)
    }

    fn acknowledge_to(&self, done: Psn, connection: &Connection) -> Headers {
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, connection.remote, done);
        Headers { bth, extension: Extension::Aeth(Aeth::new(Syndrome::ACK, self.server.msn)) }
    }

    /// Writes the acknowledge of its own that the policy owes. It is not inlined, so that its callers need no room for
    /// its kilobyte of stack.
    #[inline(never)]
    fn poll_acks(&mut self, out: &mut [u8], connection: &Connection, cx: &mut Context<'_>) -> Option<Transmit> {
        let mut path = cx.quickest_path();
        let is_copy = self.acks.owed() == OwedAck::Copy;
        if is_copy {
            path = cx.multipath.as_mut().and_then(|multipath| multipath.set.another()).unwrap_or(path);
        } else {
            self.acks.take_path(path);
            if cx.multipath.as_mut().is_some_and(|multipath| multipath.wants_copy(cx.now)) {
                self.acks.owe_copy();
            }
        }
        let owed = self.acks.poll(self.expected, connection.extension.max_blocks(), cx.now);
        let owed = owed.as_ref()?;
        let mut trailer = owed.to_bytes();
        // A copy gives no round-trip sample, and so nothing to compare with.
        let has_room = !is_copy && connection.extension.has_room_for_telemetry(owed.blocks.len());
        if let Some(telemetry) = self.acks.telemetry(owed.trigger).filter(|_| has_room) {
            trailer.extend(telemetry.to_bytes());
        }
        let headers = self.acknowledge_of_all(connection);
        let packet = Outgoing { trailer: &trailer, ..Outgoing::headers(headers) };
        let Ok(written) = connection.write(path, out, packet, cx, no_payload);
        written
    }

    /// Writes the next answer, if one is owed.
    pub fn poll_transmit(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.acks.owed() != OwedAck::None {
            return Ok(self.poll_acks(out, connection, cx));
        }
        self.server.owed.poll_transmit(out, connection, cx)
    }

    /// Writes the next answer that carries none of our memory, if one is owed, also before READ responses.
    pub fn poll_owed(&mut self, out: &mut [u8], connection: &Connection, cx: &mut Context<'_>) -> Option<Transmit> {
        if self.acks.owed() != OwedAck::None {
            return self.poll_acks(out, connection, cx);
        }
        self.server.owed.poll_without_payload(out, connection, cx)
    }
}

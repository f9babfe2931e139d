mod owed;

use std::collections::VecDeque;

use crate::frame::FrameBytes;
use crate::memory::Access;
use crate::wire::{
    Aeth, Bth, Extension, Headers, Msn, NakCode, Opcode, Operation, Packet, Placement, Position, Psn, RequestTrailer,
    RnrTimer, Selectivity, Syndrome,
};

use super::attributes::QpAttributes;
use super::connection::{Connection, WINDOW_PACKETS};
use super::context::{Context, Fatal};
use super::early::{Arrival, Lie, Placed};
use super::event::Event;
use super::inbound::{Inbound, Refusal, check_length, check_message_length};
use super::message_kind::MessageKind;
use super::outgoing::{Outgoing, no_payload};
use super::reorder::{Early, Reorder, Waiting};
use super::skipped::Skipped;
use super::transmit::Transmit;

use owed::{Owed, ReadAnswer, Reply};

/// A request that many PSNs before the expected one is no duplicate of what a peer may still have outstanding (IBTA 9.7.2.1): half
/// the space is before the expected PSN.
const FORGOTTEN_AFTER: u32 = 1 << 23;

/// The responder: checks the peer's requests in the order of IBTA 9.7.4, carries them out, and answers.
#[derive(Debug, Default)]
pub(super) struct Responder {
    pub inbound: Inbound,
    min_rnr_timer: RnrTimer,
    expected: Psn,
    msn: Msn,
    /// A NAK was sent for the expected PSN; everything later is dropped until it comes (IBTA 9.7.5.2.8: once a gap).
    nak_outstanding: bool,
    owed: Owed,
    /// READs and atomics that the peer may ask for again, newest last: as many as it may have outstanding.
    saved: VecDeque<Saved>,
    /// The peer repeats selectively.
    is_selective: bool,
    /// What came early.
    reorder: Option<Box<Reorder>>,
}

#[derive(Debug)]
struct Saved {
    first_psn: Psn,
    packets: u32,
    /// The original value, of an atomic.
    original: Option<u64>,
}

impl Responder {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        self.inbound.access = attributes.access.unwrap_or(self.inbound.access);
        self.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        if let Some(max) = attributes.max_dest_rd_atomic {
            self.owed.set_outstanding_max(max.into());
        }
        self.expected = attributes.receive_psn.unwrap_or(self.expected);
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    /// Whether a READ or atomic that may be asked for again has this PSN.
    pub fn is_saved(&self, psn: Psn) -> bool {
        self.saved.iter().any(|saved| psn.is_within(saved.first_psn, saved.packets))
    }

    /// Moves on as if so much had been received, carried out and acknowledged: SENDs and WRITEs, in order.
    pub fn skip(&mut self, skipped: Skipped) {
        debug_assert!(self.owed.is_empty(), "only an idle responder can be moved on");
        let mut packets = skipped.packets;
        while packets > 0 {
            // In steps in which what is old is noticed.
            let step = packets.min(FORGOTTEN_AFTER / 2);
            self.expected = self.expected.plus(step);
            self.forget_old();
            packets -= step;
        }
        self.msn = Msn::new(self.msn.value() + skipped.messages);
        self.inbound.skip(skipped.receives);
        self.nak_outstanding = false;
        self.reorder.iter_mut().for_each(|reorder| reorder.skip(skipped.packets, self.expected.minus(1)));
    }

    pub fn has_answers(&self) -> bool {
        !self.owed.is_empty() || self.owes_selective()
    }

    /// Whether a selective acknowledge is owed.
    pub fn owes_selective(&self) -> bool {
        self.reorder.as_ref().is_some_and(|reorder| reorder.owes())
    }

    /// Whether the next answer is an acknowledge, a refusal or the result of an atomic, which keep to no rate. What a peer that goes back
    /// is told stays behind the READ responses before it.
    pub fn owes_at_once(&self) -> bool {
        let keep_to_it = mutated!("refusals-keep-to-the-rate", by "uroce --test selective a_refusal_keeps_to_no_rate");
        self.owes_selective() || (!self.is_selective && self.owed.is_next_without_payload() && !keep_to_it)
    }

    /// Bytes of memory that requests which came early take.
    pub fn memory_bytes(&self) -> usize {
        self.reorder.as_ref().map_or(0, |reorder| reorder.memory_bytes())
    }

    /// Bytes of requests that came early and wait.
    pub fn waiting_bytes(&self) -> usize {
        self.reorder.as_ref().map_or(0, |reorder| reorder.waiting_bytes())
    }

    /// Forgets what came early, but not what is owed for what was carried out.
    pub fn drop_early(&mut self) {
        self.reorder.iter_mut().for_each(|reorder| reorder.forget());
    }

    /// Whether one acknowledge that is no NAK is all that is owed.
    pub fn owes_only_an_acknowledge(&self) -> bool {
        match self.owed.only_acknowledges() {
            Some(0) => self.owes_selective(),
            Some(_) => !self.owes_selective(),
            None => false,
        }
    }

    /// Forgets READ responses that are owed: from now on nobody's memory is read.
    pub fn drop_reads(&mut self) {
        self.owed.drop_reads();
    }

    /// Takes a request packet. `is_marked`: the network was congested on its way.
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        is_marked: bool,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if connection.extension.is_on() {
            let reorder = self.reorder.get_or_insert_default();
            if !std::mem::replace(&mut self.is_selective, true)
                && !mutated!("what-waited-for-anybody-is-kept", by "uroce --test strangers what_waits_is_forgotten")
            {
                // What came before may be anybody's.
                reorder.forget();
            }
        }
        if let Some(reorder) = self.reorder.as_mut().filter(|_| self.is_selective) {
            let attempt = trailer.map_or(0, |trailer| trailer.attempt);
            reorder.note(psn, attempt, is_marked, packet.bth().ack_request(), cx.now);
        }
        // Step 1: is it the next one?
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            cx.counters.duplicate_request += 1;
            if let (Some(reorder), Some(_)) = (&mut self.reorder, &cx.multipath) {
                // It was not heard that it had arrived: perhaps on another path it is.
                reorder.owe_copy();
            }
            self.handle_duplicate(packet, connection, cx);
            return Ok(());
        }
        if ahead > 0 && packet.reth().is_some() && mutated!("write-placed-out-of-order") {
            let _ = self.inbound.serve(packet, None, connection, cx);
        }
        if ahead > i32::from(mutated!("every-gap-packet-accepted")) {
            // A peer that is not known yet is served as a plain one, whatever its packets say of themselves.
            if self.is_selective
                || mutated!("stranger-served-as-a-known-peer", by "uroce --test early a_send_of_a_peer")
            {
                self.keep(ahead as u32, packet, trailer, connection, cx);
                return Ok(());
            }
            return self.take_early_of_plain(ahead as u32, packet, connection, cx);
        }
        if !self.is_selective {
            return self.carry_out(packet, None, connection, cx);
        }
        if !self.reorder.as_ref().is_some_and(|reorder| reorder.has_expected()) {
            self.carry_out(packet, None, connection, cx)?;
        }
        self.carry_out_waiting(None, connection, cx)
    }

    /// Takes a request that a peer which goes back sent before earlier ones. Nobody says whose it is: a stranger has a window of
    /// PSNs to hit. So it is kept, and carried out only when the peer has gone back, has come to something after it, and
    /// nothing else came in its place meanwhile: then what lacks of what is sent again need not be sent a third time.
    ///
    /// The peer hears of nothing that it has not sent again: an rxe that does waits for ever when the last packet is lost then
    /// (docs/INTEROP.md).
    fn take_early_of_plain(
        &mut self,
        ahead: u32,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if self.reorder.as_ref().is_some_and(|reorder| reorder.is_sent_again(ahead, packet, connection.path_mtu)) {
            self.carry_out_waiting(Some(psn), connection, cx)?;
            // One before it may have to wait for a receive request.
            return if self.expected == psn { self.carry_out(packet, None, connection, cx) } else { Ok(()) };
        }
        if connection.extension.keeps_early() {
            self.keep(ahead, packet, None, connection, cx);
        }
        cx.counters.out_of_seq_request += 1;
        if self.reorder.is_some() && mutated!("early-request-of-a-plain-peer-acknowledged") {
            self.answer(psn, Syndrome::ACK);
        }
        if !self.nak_outstanding && self.owed.may_answer(cx) {
            self.nak_outstanding = true;
            traced!(debug, "NAK sent: sequence error", qpn = connection.qpn, psn = self.expected, came = psn);
            self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
        }
        Ok(())
    }

    /// Keeps a request that came early, and places its bytes if they may be.
    fn keep(
        &mut self,
        ahead: u32,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) {
        let settings = &connection.extension.settings;
        // Whoever repeats selectively has said how much it has on its way; whoever goes back has no more than that.
        let window = if self.is_selective { connection.extension.peer_window() } else { WINDOW_PACKETS as u32 };
        let rest = settings.endpoint_reorder_bytes.saturating_sub(cx.waiting_elsewhere);
        let limit = settings.reorder_bytes.min(if mutated!("endpoint-bound-off") { usize::MAX } else { rest });
        let (opcode, is_single) = (packet.bth().opcode(), packet.bth().opcode().position() == Position::Only);
        if is_single && opcode.operation() == Operation::Write && mutated!("early-request-carried-out-at-once") {
            let _ = self.inbound.serve(packet, None, connection, cx);
        }
        if is_single && opcode.operation() == Operation::Send && mutated!("early-send-completed-at-once") {
            let _ = self.inbound.serve(packet, None, connection, cx);
        }
        let receive_pd = self.inbound.pd(connection, cx);
        let (inbound, memory) = (&self.inbound, &*cx.memory);
        let arrival = Arrival { packet, trailer, inbound, connection, memory, receive_pd };
        let early =
            self.reorder.get_or_insert_default().keep(ahead, &arrival, (window, limit), self.is_selective, cx.counters);
        match early {
            Early::Kept => cx.counters.reordered += 1,
            Early::Duplicate if self.is_selective => cx.counters.duplicate_request += 1,
            Early::Overflow if self.is_selective => cx.counters.reorder_overflow += 1,
            // Counted as out of sequence.
            Early::Duplicate | Early::Overflow => {}
        }
    }

    /// Carries out what waits from the expected PSN on, up to that one or all.
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
                // There is no receive request for it now.
                if let Some(reorder) = &mut self.reorder {
                    reorder.put_back(waiting);
                }
                break;
            }
        }
        Ok(())
    }

    /// The request with the expected PSN, if it came early; with the headers of one whose bytes are placed.
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

    /// Carries out the expected request, or refuses it.
    fn carry_out(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        let was_not_ready = self.nak_outstanding && self.is_selective;
        self.nak_outstanding &= mutated!("nak-not-cleared");

        match self.serve(packet, placed, connection, cx) {
            Ok(packets) => {
                self.expected = psn.plus(packets);
                self.forget_old();
                if was_not_ready && !mutated!("refusal-outlives-its-reason", by "uroce --test selective a_refusal_that")
                {
                    // Acknowledges overtake what waits here: a refusal would be of what was carried out.
                    self.owed.forget_rnr_naks();
                }
                if let Some(reorder) = &mut self.reorder {
                    reorder.advance(packets);
                    let begun = self.inbound.current(connection.path_mtu).map_or(0, |current| current.packets);
                    let (messages, expected) = reorder.messages();
                    messages.retire(expected - u64::from(begun), self.inbound.first_unfinished());
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                if self.owed.may_answer(cx) {
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
                self.inbound.fail_message(status, connection, cx);
                let is_write = packet.bth().opcode().operation() == Operation::Write;
                if code == NakCode::RemoteAccessError && is_write && packet.imm_dt().is_some() {
                    self.inbound.fail_immediate(connection, cx);
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

    /// Steps 2 to 6 of IBTA 9.7.4.1: opcode sequence, opcode, resources, keys and lengths; then carries it out.
    /// Returns the PSNs it takes.
    fn serve(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let opcode = packet.bth().opcode();
        let position = opcode.position();
        let placed_bytes = placed.map(|placed| u32::from(placed.len));
        self.inbound.check_sequence(opcode.operation(), position)?;
        check_length(
            packet,
            placed.map_or(packet.payload().len(), |placed| placed.len.into()),
            connection.path_mtu.bytes(),
        )?;
        self.check_told(packet, placed, connection, cx)?;
        match opcode.operation() {
            Operation::ReadRequest => return self.serve_read(packet, connection, cx),
            Operation::CompareSwap | Operation::FetchAdd => return self.serve_atomic(packet, connection, cx),
            Operation::AtomicWrite => return self.serve_atomic_write(packet, connection, cx),
            Operation::Flush => return self.serve_flush(packet, connection, cx),
            _ => self.inbound.serve(packet, placed_bytes, connection, cx)?,
        }
        if if mutated!("msn-counts-beginnings") { position.starts() } else { position.ends() } {
            self.msn = self.msn.next();
        }
        if packet.bth().ack_request() {
            let beyond = u32::from(mutated!("ack-beyond-what-arrived"));
            self.acknowledge(packet.bth().psn().plus(beyond), cx);
        }
        Ok(1)
    }

    /// Whether what packets of this message told when they came early is so. If not, and something was placed by it, the peer
    /// has invented the request.
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
        let number = self.inbound.taken();
        let (index, kind) = match (opcode.operation(), self.inbound.current(connection.path_mtu)) {
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

    fn serve_read(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        check_message_length(reth)?;
        self.inbound.check_access(Access::REMOTE_READ)?;
        self.owed.check_outstanding()?;
        let (key, address, len) = (reth.key(), reth.address(), reth.length());
        cx.memory.remote(connection.pd, connection.qpn, key, address, len.into(), Access::REMOTE_READ)?;
        self.msn = self.msn.next();
        let packets = connection.path_mtu.packets(len as usize);
        let psn = packet.bth().psn();
        self.save(Saved { first_psn: psn, packets, original: None });
        let (request, msn) = (psn, self.msn);
        let answer =
            ReadAnswer { request, msn, key, psn, address, rest: len, index: 0, count: packets, is_repeat: false };
        self.owed.push(Reply::Read(answer));
        Ok(packets)
    }

    fn serve_atomic(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic_eth().ok_or(Refusal::INVALID)?;
        if !eth.address().is_multiple_of(8) {
            return Err(Refusal::INVALID); // IBTA 9.7.4.1.3
        }
        self.inbound.check_access(Access::REMOTE_ATOMIC)?;
        self.owed.check_outstanding()?;
        let span =
            cx.memory.remote(connection.pd, connection.qpn, eth.key(), eth.address(), 8, Access::REMOTE_ATOMIC)?;
        let original = match packet.bth().opcode().operation() {
            Operation::CompareSwap => span.update_u64(|old| if old == eth.compare() { eth.swap_or_add() } else { old }),
            _ => span.update_u64(|old| old.wrapping_add(eth.swap_or_add())),
        }?;
        self.msn = self.msn.next();
        let (psn, msn) = (packet.bth().psn(), self.msn);
        self.save(Saved {
            first_psn: psn,
            packets: 1,
            original: Some(original ^ u64::from(mutated!("atomic-result-not-saved"))),
        });
        self.owed.push(Reply::Atomic { psn, msn, original, is_repeat: false });
        Ok(1)
    }

    fn serve_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        let payload = packet.payload();
        let mut value = [0; 8];
        if payload.len() != value.len() || reth.length() as usize != value.len() || !reth.address().is_multiple_of(8) {
            return Err(Refusal::INVALID); // IBTA A19.5.2
        }
        payload.copy_to_slice(&mut value);
        self.inbound.check_access(Access::REMOTE_WRITE)?;
        self.owed.check_outstanding()?;
        let span =
            cx.memory.remote(connection.pd, connection.qpn, reth.key(), reth.address(), 8, Access::REMOTE_WRITE)?;
        span.update_u64(|_| u64::from_ne_bytes(value))?;
        self.msn = self.msn.next();
        self.owed.push(Reply::Empty { psn: packet.bth().psn(), msn: self.msn, is_outstanding: true });
        Ok(1)
    }

    /// What was written before is visible since it was carried out: stores become visible in their order, and before the
    /// answer leaves. So there is nothing to do but to check, and to answer.
    fn serve_flush(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let (feth, reth) = packet.feth().zip(packet.reth()).ok_or(Refusal::INVALID)?;
        let wanted = match feth.placement() {
            Placement::GLOBAL => Access::FLUSH_GLOBAL,
            Placement::PERSISTENT => Access::FLUSH_PERSISTENT,
            both if both == Placement::all() => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            _ => return Err(Refusal::INVALID),
        };
        check_message_length(reth)?;
        self.inbound.check_access(wanted)?;
        if !self.owed.has_room_for_flush() {
            return Err(Refusal::INVALID);
        }
        if !mutated!("flush-needs-no-right", by "uroce --test flush a_flush_needs_what") {
            cx.memory.check_remote(connection.pd, connection.qpn, reth.key(), wanted)?;
        }
        match feth.selectivity() {
            Selectivity::Range => {
                let (address, len) = (reth.address(), reth.length().into());
                cx.memory.remote(connection.pd, connection.qpn, reth.key(), address, len, wanted)?;
            }
            Selectivity::Region => {}
            Selectivity::Unknown(_) => return Err(Refusal::INVALID),
        }
        self.msn = self.msn.next();
        let is_outstanding = mutated!("flush-counts-as-outstanding", by "uroce --test flush as_many_flushes");
        self.owed.push(Reply::Empty { psn: packet.bth().psn(), msn: self.msn, is_outstanding });
        Ok(1)
    }

    fn save(&mut self, saved: Saved) {
        // More than one when the limit was lowered meanwhile.
        let room = if mutated!("too-few-results-saved") { 1 } else { self.owed.outstanding_max().max(1) };
        while self.saved.len() >= room {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }

    /// By how many PSNs the expected one is after `psn`: 0 for itself. What is kept of the past is younger than the whole space,
    /// but may be older than half of it, where [`Psn::is_before`] takes the past for the future.
    fn age(&self, psn: Psn) -> u32 {
        self.expected.after(psn)
    }

    /// The expected PSN moved on, by up to half the space. What no peer may ask for again is forgotten before its PSNs come
    /// again, when it would be taken for what has just been served.
    fn forget_old(&mut self) {
        let is_old = |saved: &Saved| self.age(saved.first_psn.plus(saved.packets - 1)) >= FORGOTTEN_AFTER;
        let old = self.saved.iter().take_while(|saved| is_old(saved)).count();
        if old > 0 && !mutated!("old-results-not-forgotten", by "uroce --test old_psns a_read_a_whole_lap") {
            self.saved.drain(..old);
        }
    }

    /// A request that was served before: its answer was lost, or is still on its way (IBTA 9.7.5.1.3). The MSN is that
    /// of now, of the latest message completed (IBTA 9.7.7.1), as rxe has it.
    fn handle_duplicate(&mut self, packet: &Packet<'_>, connection: &Connection, cx: &mut Context<'_>) {
        let psn = packet.bth().psn();
        let saved = self.saved.iter().rev().find(|saved| psn.is_within(saved.first_psn, saved.packets));
        match (packet.bth().opcode().operation(), saved) {
            // Not placed again: newer data may stand there. Acknowledged as far as we have come, but not beyond a READ
            // or atomic: these are answered by their data only, and rxe takes an acknowledge for it.
            (Operation::Send | Operation::Write, _) => {
                let is_single = packet.bth().opcode().position() == Position::Only;
                if is_single && packet.reth().is_some() && mutated!("duplicate-write-placed-again") {
                    let _ = self.inbound.serve(packet, None, connection, cx);
                }
                if is_single && packet.reth().is_none() && mutated!("late-duplicate-send-placed") {
                    let _ = self.inbound.serve(packet, None, connection, cx);
                }
                let following = self.saved.iter().map(|saved| saved.first_psn);
                let is_later = |first: &Psn| {
                    if mutated!("past-taken-for-the-future", by "uroce --test old_psns a_duplicate_half_the_space") {
                        return psn.is_before(*first);
                    }
                    self.age(*first) < self.age(psn)
                };
                let following = following.into_iter().find(is_later);
                let done = following.unwrap_or(self.expected).minus(1);
                if !mutated!("lost-ack-not-repeated") {
                    self.acknowledge(done, cx);
                }
            }
            (Operation::ReadRequest, Some(saved)) if saved.original.is_none() => {
                let Some(reth) = packet.reth() else { return };
                let (key, address, rest) = (reth.key(), reth.address(), reth.length());
                let index = psn.since(saved.first_psn) as u32;
                let packets = connection.path_mtu.packets(rest as usize);
                if packets > saved.packets - index {
                    cx.counters.stray_response += 1;
                    return;
                }
                // MigReq is clear in rxe's requests. It wants its answers to go on where they were, with MIDDLE; the
                // IBTA wants them to start with FIRST.
                let index = if packet.bth().mig_req() { 0 } else { index };
                let count = index + packets;
                let (request, msn) = (saved.first_psn, self.msn);
                let answer = ReadAnswer { request, msn, key, psn, address, rest, index, count, is_repeat: true };
                let is_part = psn.plus(packets) != saved.first_psn.plus(saved.packets);
                match self.is_selective {
                    true => self.owed.send_again(answer, connection, cx),
                    false => self.owed.start_over(answer, is_part, cx),
                }
            }
            (Operation::CompareSwap | Operation::FetchAdd, Some(&Saved { original: Some(original), .. })) => {
                if mutated!("atomic-executed-twice") {
                    let _ = self.serve_atomic(packet, connection, cx);
                }
                if self.owed.may_answer(cx) {
                    self.owed.push(Reply::Atomic { psn, msn: self.msn, original, is_repeat: true });
                }
            }
            // Carried out, as all before the expected PSN; there is nothing to be known of it.
            (Operation::AtomicWrite | Operation::Flush, _) => {
                if mutated!("atomic-write-carried-out-again", by "uroce --test flush duplicates_are_answered_again") {
                    let _ = self.serve_atomic_write(packet, connection, cx);
                }
                if self.owed.may_answer(cx) {
                    self.owed.push(Reply::Empty { psn, msn: self.msn, is_outstanding: false });
                }
            }
            // Longer ago than the peer may ask for: the IBTA has it dropped.
            _ => cx.counters.stray_response += 1,
        }
    }

    /// Owes an acknowledge up to `psn`.
    fn acknowledge(&mut self, psn: Psn, cx: &mut Context<'_>) {
        match self.reorder.as_mut().filter(|_| self.is_selective) {
            Some(reorder) => reorder.is_owed = true,
            None => self.owed.acknowledge(psn, self.msn, self.expected, cx),
        }
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        self.owed.push(Reply::Acknowledge { psn, syndrome, msn: self.msn });
    }

    /// The headers of an acknowledge of all that was carried out.
    pub fn acknowledge_of_all(&self, connection: &Connection) -> Headers {
        self.acknowledge_to(self.expected.minus(u32::from(!mutated!("sack-acknowledges-what-waits"))), connection)
    }

    /// The headers of an acknowledge of all before the first answer with data that is owed: whoever goes back takes an acknowledge
    /// beyond it for its loss.
    pub fn acknowledge_of_answered(&self, connection: &Connection) -> Headers {
        let first = self.owed.first_result(self.expected);
        let is_beyond = mutated!("hello-acknowledges-what-was-not-answered", by "uroce --test strangers a_hello_goes");
        let first = first.filter(|psn| psn.is_before(self.expected) && !is_beyond).unwrap_or(self.expected);
        self.acknowledge_to(first.minus(1), connection)
    }

    fn acknowledge_to(&self, done: Psn, connection: &Connection) -> Headers {
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, connection.remote, done);
        Headers { bth, extension: Extension::Aeth(Aeth::new(Syndrome::ACK, self.msn)) }
    }

    /// Writes the selective acknowledge that is owed. Not part of its callers, which need not have room for its kilobyte then.
    #[inline(never)]
    pub fn poll_selective(
        &mut self,
        out: &mut [u8],
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Option<Transmit> {
        let reorder = self.reorder.as_mut()?;
        let mut path = cx.quickest_path();
        if reorder.owes_only_a_copy() {
            path = cx.multipath.as_mut().and_then(|multipath| multipath.set.another()).unwrap_or(path);
        } else {
            reorder.take_path(path);
            if cx.multipath.as_mut().is_some_and(|multipath| multipath.wants_copy()) {
                reorder.owe_copy();
            }
        }
        let sack = reorder.sack(self.expected, connection.extension.max_blocks(), cx.now);
        let headers = self.acknowledge_of_all(connection);
        let packet = Outgoing { trailer: &sack.to_bytes(), ..Outgoing::headers(headers) };
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
        if self.owes_selective() {
            return Ok(self.poll_selective(out, connection, cx));
        }
        self.owed.poll_transmit(out, connection, cx)
    }

    /// Writes the next answer that carries none of our memory, if one is owed.
    pub fn poll_owed(&mut self, out: &mut [u8], connection: &Connection, cx: &mut Context<'_>) -> Option<Transmit> {
        if self.owes_selective() {
            return self.poll_selective(out, connection, cx);
        }
        self.owed.poll_without_payload(out, connection, cx)
    }
}

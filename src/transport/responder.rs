use std::collections::VecDeque;
use std::convert::Infallible;

use crate::frame::FrameBytes;
use crate::memory::{Access, MemoryTable};
use crate::wire::{
    Aeth, AtomicAckEth, Bth, Extension, Headers, Key, Msn, NakCode, Opcode, Operation, Packet, Position, Psn,
    RequestTrailer, RnrTimer, Syndrome,
};

use super::attributes::QpAttributes;
use super::early::{Arrival, Kind, Lie, Placed};
use super::endpoint::{Event, Transmit};
use super::identity::Identity;
use super::inbound::{Inbound, Refusal, check_length, check_message_length};
use super::reorder::{Early, Reorder, Waiting};
use super::requester::WINDOW_PACKETS;
use super::surroundings::{Fatal, Surroundings};

/// READs that a peer may ask for again at once: holes of a window that lost 5 %.
const AGAIN_MAX: usize = 1 << 14;

/// The responder: checks the peer's requests in the order of IBTA 9.7.4, carries them out, and answers.
#[derive(Debug, Default)]
pub(super) struct Responder {
    pub inbound: Inbound,
    min_rnr_timer: RnrTimer,
    max_dest_rd_atomic: usize,
    expected: Psn,
    msn: Msn,
    /// A NAK was sent for the expected PSN; everything later is dropped until it comes (IBTA 9.7.5.2.8: once a gap).
    nak_outstanding: bool,
    /// What is owed, in order.
    answers: VecDeque<Answer>,
    /// READs and atomics that the peer may ask for again, newest last: as many as it may have outstanding.
    saved: VecDeque<Saved>,
    /// The peer repeats selectively.
    is_selective: bool,
    /// What came early.
    reorder: Option<Box<Reorder>>,
    /// The peer goes back, and has sent again up to there; more is here already. It must not hear of that yet: an rxe that is
    /// acknowledged beyond what it has sent again waits for ever when the last packet is lost then (docs/INTEROP.md).
    sent_again: Option<Psn>,
    /// READ responses that such a peer asks for again: they go first.
    again: VecDeque<ReadAnswer>,
}

#[derive(Debug)]
enum Answer {
    Acknowledge { psn: Psn, syndrome: Syndrome, msn: Msn },
    Read(ReadAnswer),
    Atomic { psn: Psn, msn: Msn, original: u64, is_repeat: bool },
}

/// READ responses that are being sent.
#[derive(Clone, Copy, Debug)]
struct ReadAnswer {
    /// The first PSN of the READ that it answers, all or part of it.
    request: Psn,
    msn: Msn,
    key: Key,
    /// The PSN of the next packet.
    psn: Psn,
    /// Where its bytes are.
    address: u64,
    /// How many are left.
    rest: u32,
    /// Its place among `count` packets.
    index: u32,
    count: u32,
    /// Whether it was answered in full before.
    is_repeat: bool,
}

#[derive(Debug)]
struct Saved {
    first_psn: Psn,
    packets: u32,
    /// The original value, of an atomic.
    original: Option<u64>,
}

impl Answer {
    fn is_rnr_nak(&self) -> bool {
        matches!(self, Answer::Acknowledge { syndrome: Syndrome::RnrNak(_), .. })
    }
}

impl Responder {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        self.inbound.access = attributes.access.unwrap_or(self.inbound.access);
        self.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        self.max_dest_rd_atomic = attributes.max_dest_rd_atomic.map_or(self.max_dest_rd_atomic, usize::from);
        self.expected = attributes.receive_psn.unwrap_or(self.expected);
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty() || !self.again.is_empty() || self.owes_selective()
    }

    /// Whether a selective acknowledge is owed.
    pub fn owes_selective(&self) -> bool {
        self.reorder.as_ref().is_some_and(|reorder| reorder.owes())
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
        let plain = |answer: &Answer| matches!(answer, Answer::Acknowledge { syndrome: Syndrome::Ack { .. }, .. });
        if !self.again.is_empty() {
            return false;
        }
        match self.answers.len() {
            0 => self.owes_selective(),
            1 => !self.owes_selective() && self.answers.front().is_some_and(plain),
            _ => false,
        }
    }

    /// Takes a request packet. `is_marked`: the network was congested on its way.
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        is_marked: bool,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        if identity.extension.is_on() {
            self.is_selective = true;
            let reorder = self.reorder.get_or_insert_default();
            let attempt = trailer.map_or(0, |trailer| trailer.attempt);
            reorder.note(psn, attempt, is_marked, packet.bth().ack_request(), cx.now);
        }
        if self.sent_again.is_some_and(|to| to.is_before(psn)) {
            self.sent_again = Some(psn).filter(|psn| psn.plus(1).is_before(self.expected));
        }
        // Step 1: is it the next one?
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            cx.counters.duplicate_request += 1;
            if let (Some(reorder), Some(_)) = (&mut self.reorder, &cx.multipath) {
                // It was not heard that it had arrived: perhaps on another path it is.
                reorder.owe_copy();
            }
            self.handle_duplicate(packet, identity, cx);
            return Ok(());
        }
        if ahead > 0 {
            if identity.extension.keeps_early() {
                self.keep(ahead as u32, packet, trailer, identity, cx);
            }
            if self.is_selective {
                return Ok(());
            }
            cx.counters.out_of_seq_request += 1;
            if !self.nak_outstanding && self.may_answer(cx) {
                self.nak_outstanding = true;
                self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
            }
            return Ok(());
        }
        if !self.reorder.as_ref().is_some_and(|reorder| reorder.has_expected()) {
            self.carry_out(packet, None, identity, cx)?;
        }
        self.carry_out_waiting(identity, cx)
    }

    /// Keeps a request that came early, and places its bytes if they may be.
    fn keep(
        &mut self,
        ahead: u32,
        packet: &Packet<'_>,
        trailer: Option<&RequestTrailer>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) {
        let settings = &identity.extension.settings;
        // Whoever goes back has no more than that on its way.
        let window = if self.is_selective { u32::MAX } else { WINDOW_PACKETS as u32 };
        let limit = settings.reorder_bytes.min(settings.endpoint_reorder_bytes.saturating_sub(cx.waiting_elsewhere));
        let receive_pd = self.inbound.pd(identity, cx);
        let (inbound, memory) = (&self.inbound, &*cx.memory);
        let arrival = Arrival { packet, trailer, inbound, identity, memory, receive_pd };
        let early = self.reorder.get_or_insert_default().keep(ahead, &arrival, (window, limit), cx.counters);
        match early {
            Early::Kept => cx.counters.reordered += 1,
            Early::Duplicate if self.is_selective => cx.counters.duplicate_request += 1,
            Early::Overflow if self.is_selective => cx.counters.reorder_overflow += 1,
            // Counted as out of sequence.
            Early::Duplicate | Early::Overflow => {}
        }
    }

    /// Carries out what waited for the packet that has just been carried out.
    fn carry_out_waiting(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<(), Fatal> {
        while let Some((waiting, headers)) = self.take_waiting(identity) {
            let (psn, mut buffer) = (self.expected, [0; Packet::HEADER_BYTES_MAX]);
            if !self.is_selective && self.sent_again.is_none() {
                self.sent_again = Some(psn.minus(1));
            }
            let (packet, placed) = match (&waiting, &headers) {
                (Waiting::Placed(placed), Some(headers)) => {
                    (Ok(Packet::of_headers(headers, &mut buffer)), Some(placed))
                }
                (Waiting::Bytes(bytes), _) => (Packet::parse(FrameBytes::from(&bytes[..])), None),
                (Waiting::Placed(_), None) => break,
            };
            let Ok(packet) = packet else { break };
            self.carry_out(&packet, placed, identity, cx)?;
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
    fn take_waiting(&mut self, identity: &Identity) -> Option<(Waiting, Option<Headers>)> {
        let reorder = self.reorder.as_mut()?;
        let waiting = reorder.take_expected()?;
        let headers = match &waiting {
            Waiting::Bytes(_) => None,
            Waiting::Placed(placed) => {
                let (messages, position) = reorder.messages();
                Some(placed.headers(identity, self.expected, messages.reth(position)))
            }
        };
        Some((waiting, headers))
    }

    /// Carries out the expected request, or refuses it.
    fn carry_out(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        let was_not_ready = std::mem::take(&mut self.nak_outstanding) && self.is_selective;

        match self.serve(packet, placed, identity, cx) {
            Ok(packets) => {
                self.expected = psn.plus(packets);
                if was_not_ready {
                    // Acknowledges overtake what waits here: a refusal would be of what was carried out.
                    self.answers.retain(|answer| !answer.is_rnr_nak());
                }
                if let Some(reorder) = &mut self.reorder {
                    reorder.advance(packets);
                    let begun = self.inbound.current(identity.path_mtu).map_or(0, |current| current.packets);
                    let (messages, expected) = reorder.messages();
                    messages.retire(expected - u64::from(begun), self.inbound.first_unfinished());
                }
                Ok(())
            }
            Err(Refusal::NotReady) => {
                if self.may_answer(cx) {
                    cx.counters.send_rnr_err += 1;
                    self.nak_outstanding = true;
                    self.answer(psn, Syndrome::RnrNak(self.min_rnr_timer));
                }
                Ok(())
            }
            Err(Refusal::Nak(code, status)) => {
                self.answer(psn, Syndrome::Nak(code));
                self.inbound.fail_message(status, identity, cx);
                let event = match code {
                    NakCode::RemoteAccessError => Event::AccessError(identity.qpn),
                    _ => Event::RequestError(identity.qpn),
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
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<u32, Refusal> {
        let opcode = packet.bth().opcode();
        let position = opcode.position();
        let placed_bytes = placed.map(|placed| u32::from(placed.len));
        self.inbound.check_sequence(opcode.operation(), position)?;
        check_length(
            packet,
            placed.map_or(packet.payload().len(), |placed| placed.len.into()),
            identity.path_mtu.bytes(),
        )?;
        self.check_told(packet, placed, identity, cx)?;
        match opcode.operation() {
            Operation::ReadRequest => return self.serve_read(packet, identity, cx),
            Operation::CompareSwap | Operation::FetchAdd => return self.serve_atomic(packet, identity, cx),
            _ => self.inbound.serve(packet, placed_bytes, identity, cx)?,
        }
        if position.ends() {
            self.msn = self.msn.next();
        }
        if packet.bth().ack_request() {
            self.acknowledge(packet.bth().psn(), cx);
        }
        Ok(1)
    }

    /// Whether what packets of this message told when they came early is so. If not, and something was placed by it, the peer
    /// has invented the request.
    fn check_told(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<&Placed>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Refusal> {
        let Some((messages, expected)) = self.reorder.as_mut().map(|reorder| reorder.messages()) else { return Ok(()) };
        if messages.is_empty() && placed.is_none() {
            return Ok(());
        }
        let opcode = packet.bth().opcode();
        let number = self.inbound.taken();
        let (index, kind) = match (opcode.operation(), self.inbound.current(identity.path_mtu)) {
            (_, Some(current)) => (current.packets, current.kind),
            (Operation::Send, None) => (0, Kind::Send { number }),
            (Operation::Write, None) => (0, Kind::Write { reth: packet.reth().copied().unwrap_or_default(), number }),
            (Operation::ReadRequest, None) => (0, Kind::Read),
            (_, None) => (0, Kind::Atomic),
        };
        messages.finish(expected - u64::from(index), index, kind, placed).map_err(|Lie| {
            cx.counters.bad_trailer += 1;
            Refusal::INVALID
        })
    }

    fn serve_read(
        &mut self,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::INVALID)?;
        check_message_length(reth)?;
        self.inbound.check_access(Access::REMOTE_READ)?;
        self.check_outstanding()?;
        let (key, address, len) = (reth.key(), reth.address(), reth.length());
        cx.memory.remote(identity.pd, identity.qpn, key, address, len.into(), Access::REMOTE_READ)?;
        self.msn = self.msn.next();
        let packets = identity.path_mtu.packets(len as usize);
        let psn = packet.bth().psn();
        self.save(Saved { first_psn: psn, packets, original: None });
        let (request, msn) = (psn, self.msn);
        let answer =
            ReadAnswer { request, msn, key, psn, address, rest: len, index: 0, count: packets, is_repeat: false };
        self.owe(Answer::Read(answer));
        Ok(packets)
    }

    fn serve_atomic(
        &mut self,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic_eth().ok_or(Refusal::INVALID)?;
        if !eth.address().is_multiple_of(8) {
            return Err(Refusal::INVALID); // IBTA 9.7.4.1.3
        }
        self.inbound.check_access(Access::REMOTE_ATOMIC)?;
        self.check_outstanding()?;
        let span = cx.memory.remote(identity.pd, identity.qpn, eth.key(), eth.address(), 8, Access::REMOTE_ATOMIC)?;
        let original = match packet.bth().opcode().operation() {
            Operation::CompareSwap => span.update_u64(|old| if old == eth.compare() { eth.swap_or_add() } else { old }),
            _ => span.update_u64(|old| old.wrapping_add(eth.swap_or_add())),
        }?;
        self.msn = self.msn.next();
        let (psn, msn) = (packet.bth().psn(), self.msn);
        self.save(Saved { first_psn: psn, packets: 1, original: Some(original) });
        self.owe(Answer::Atomic { psn, msn, original, is_repeat: false });
        Ok(1)
    }

    /// READs and atomics that are not fully answered count against what the peer may have outstanding (IBTA 9.7.4.1.4).
    /// Those answered again don't: the first answer may have arrived late, and freed the peer to ask for more.
    fn check_outstanding(&self) -> Result<(), Refusal> {
        let is_outstanding = |answer: &&Answer| match answer {
            Answer::Read(ReadAnswer { is_repeat, .. }) | Answer::Atomic { is_repeat, .. } => !is_repeat,
            Answer::Acknowledge { .. } => false,
        };
        let outstanding = self.answers.iter().filter(is_outstanding).count();
        if outstanding < self.max_dest_rd_atomic { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn save(&mut self, saved: Saved) {
        // More than one when the limit was lowered meanwhile.
        while self.saved.len() >= self.max_dest_rd_atomic.max(1) {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }

    /// A request that was served before: its answer was lost, or is still on its way (IBTA 9.7.5.1.3). The MSN is that
    /// of now, of the latest message completed (IBTA 9.7.7.1), as rxe has it.
    fn handle_duplicate(&mut self, packet: &Packet<'_>, identity: &Identity, cx: &mut Surroundings<'_>) {
        let psn = packet.bth().psn();
        let saved = self.saved.iter().rev().find(|saved| psn.is_within(saved.first_psn, saved.packets));
        match (packet.bth().opcode().operation(), saved) {
            // Not placed again: newer data may stand there. Acknowledged as far as we have come, but not beyond a READ
            // or atomic: these are answered by their data only, and rxe takes an acknowledge for it.
            (Operation::Send | Operation::Write, _) => {
                let following = self.saved.iter().map(|saved| saved.first_psn).find(|first| psn.is_before(*first));
                let done = following.unwrap_or(self.expected).minus(1);
                let sent_again = self.sent_again.filter(|to| to.is_before(done) && !self.is_selective);
                self.acknowledge(sent_again.unwrap_or(done), cx);
            }
            (Operation::ReadRequest, Some(saved)) if saved.original.is_none() => {
                let Some(reth) = packet.reth() else { return };
                let (key, address, rest) = (reth.key(), reth.address(), reth.length());
                let index = psn.since(saved.first_psn) as u32;
                let packets = identity.path_mtu.packets(rest as usize);
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
                self.answer_again(answer, is_part, identity, cx);
            }
            (Operation::CompareSwap | Operation::FetchAdd, Some(&Saved { original: Some(original), .. })) => {
                if self.may_answer(cx) {
                    self.owe(Answer::Atomic { psn, msn: self.msn, original, is_repeat: true });
                }
            }
            // Longer ago than the peer may ask for: the IBTA has it dropped.
            _ => cx.counters.stray_response += 1,
        }
    }

    /// Queues READ responses again. If they are just being sent, they start over, unless it is some in the middle (`is_part`)
    /// that lack; but a peer that repeats selectively gets just these, and at once.
    fn answer_again(&mut self, mut answer: ReadAnswer, is_part: bool, identity: &Identity, cx: &mut Surroundings<'_>) {
        if self.is_selective {
            // What will be sent for the first time is not sent twice.
            let first = self.answers.iter().find_map(|queued| match queued {
                Answer::Read(read) if read.request == answer.request => Some(read.psn),
                _ => None,
            });
            if let Some(first) = first {
                let Ok(packets @ 1..) = u32::try_from(first.since(answer.psn)) else { return };
                answer.rest = answer.rest.min(packets * identity.path_mtu.bytes() as u32);
                answer.count = answer.count.min(answer.index + packets);
            }
            match self.again.len() < AGAIN_MAX {
                true => self.again.push_back(answer),
                false => cx.counters.answer_overflow += 1,
            }
            return;
        }
        for queued in &mut self.answers {
            if let Answer::Read(read) = queued
                && read.request == answer.request
                && !is_part
            {
                *read = ReadAnswer { is_repeat: read.is_repeat, ..answer };
                return;
            }
        }
        if self.may_answer(cx) {
            self.owe(Answer::Read(answer));
        }
    }

    /// Whether there is room for an answer that the peer can do without for now: it will ask again. All it may have
    /// outstanding with an acknowledge between any two fits, and as much again.
    fn may_answer(&self, cx: &mut Surroundings<'_>) -> bool {
        let room = self.answers.len() < 4 * self.max_dest_rd_atomic + 2;
        cx.counters.answer_overflow += u64::from(!room);
        room
    }

    /// Owes an acknowledge up to `psn`; one that is owed already grows.
    fn acknowledge(&mut self, psn: Psn, cx: &mut Surroundings<'_>) {
        if !self.is_selective && self.sent_again.is_some_and(|to| to.is_before(psn)) {
            return;
        }
        if let Some(reorder) = self.reorder.as_mut().filter(|_| self.is_selective) {
            reorder.is_owed = true;
        } else if let Some(Answer::Acknowledge { psn: owed, syndrome: Syndrome::Ack { .. }, msn }) =
            self.answers.back_mut()
        {
            *msn = self.msn;
            if owed.is_before(psn) {
                *owed = psn;
            }
        } else if self.may_answer(cx) {
            self.answer(psn, Syndrome::ACK);
        }
    }

    /// Queues an answer. The queue grows in small steps: it is bounded, and a queue pair that is idle again keeps what it
    /// grew to.
    fn owe(&mut self, answer: Answer) {
        const STEP: usize = 8;
        if self.answers.len() == self.answers.capacity() {
            self.answers.reserve_exact(STEP);
        }
        self.answers.push_back(answer);
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        self.owe(Answer::Acknowledge { psn, syndrome, msn: self.msn });
    }

    /// The headers of an acknowledge of all that was carried out, with a trailer behind them.
    pub fn extended_acknowledge(&self, identity: &Identity) -> Headers {
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, identity.remote, self.expected.minus(1))
            .with_offer(true)
            .with_extended(true);
        Headers { bth, extension: Extension::Aeth(Aeth::new(Syndrome::ACK, self.msn)) }
    }

    /// Writes the selective acknowledge that is owed.
    pub fn poll_selective(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
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
        let sack = reorder.sack(self.expected, identity.extension.max_blocks(), cx.now);
        let headers = self.extended_acknowledge(identity);
        let nothing = |_: &MemoryTable, _: &mut [u8]| Ok::<_, Infallible>(());
        let Ok(written) = identity.write_over(path, out, headers, 0, cx, nothing, &sack.to_bytes());
        written
    }

    /// Writes the next answer, if one is owed.
    pub fn poll_transmit(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if self.owes_selective() {
            return Ok(self.poll_selective(out, identity, cx));
        }
        if !self.again.is_empty() {
            return self.write_read(out, identity, cx);
        }
        let (opcode, psn, extension) = match self.answers.front_mut() {
            None => return Ok(None),
            Some(Answer::Read(_)) => return self.write_read(out, identity, cx),
            Some(Answer::Acknowledge { psn, syndrome, msn }) => {
                (Opcode::RC_ACKNOWLEDGE, *psn, Extension::Aeth(Aeth::new(*syndrome, *msn)))
            }
            Some(Answer::Atomic { psn, msn, original, .. }) => {
                let aeth = Aeth::new(Syndrome::ACK, *msn);
                let extension = Extension::AethAtomicAck(aeth, AtomicAckEth::new(*original));
                (Opcode::RC_ATOMIC_ACKNOWLEDGE, *psn, extension)
            }
        };
        self.answers.pop_front();
        let bth = Bth::new(opcode, identity.remote, psn).with_offer(self.is_selective);
        identity.write_over(cx.quickest_path(), out, Headers { bth, extension }, 0, cx, |_, _| Ok(()), &[])
    }

    /// Writes the next READ response.
    fn write_read(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        let is_again = !self.again.is_empty();
        let read = match (self.again.front_mut(), self.answers.front_mut()) {
            (Some(read), _) | (None, Some(Answer::Read(read))) => read,
            _ => return Ok(None),
        };
        let len = read.rest.min(identity.path_mtu.bytes() as u32);
        let position = Position::of(read.index, read.count);
        let opcode = match position {
            Position::First => Opcode::RC_READ_RESPONSE_FIRST,
            Position::Middle => Opcode::RC_READ_RESPONSE_MIDDLE,
            Position::Last => Opcode::RC_READ_RESPONSE_LAST,
            Position::Only => Opcode::RC_READ_RESPONSE_ONLY,
        };
        let extension = match position {
            Position::Middle => Extension::None,
            _ => Extension::Aeth(Aeth::new(Syndrome::ACK, read.msn)),
        };
        let ReadAnswer { msn, key, psn, address, .. } = *read;
        let bth = Bth::new(opcode, identity.remote, psn).with_offer(self.is_selective);
        let path = cx.choose_path();
        let fill = |memory: &MemoryTable, out: &mut [u8]| {
            let wanted = Access::REMOTE_READ;
            memory.remote(identity.pd, identity.qpn, key, address, len.into(), wanted).and_then(|span| span.read(out))
        };
        let written = identity.write_over(path, out, Headers { bth, extension }, len as usize, cx, fill, &[]);
        match written {
            Ok(written) => {
                read.psn = psn.plus(1);
                read.address = address.wrapping_add(len.into());
                read.rest -= len;
                read.index += 1;
                if read.rest == 0 && is_again {
                    self.again.pop_front();
                } else if read.rest == 0 {
                    self.answers.pop_front();
                }
                Ok(written)
            }
            Err(_) => {
                // The region went away while it was being read.
                let nak = Answer::Acknowledge { psn, syndrome: Syndrome::Nak(NakCode::RemoteAccessError), msn };
                if is_again {
                    self.again.clear();
                    self.answers.push_front(nak);
                } else {
                    self.answers[0] = nak;
                }
                cx.push_event(Event::AccessError(identity.qpn));
                Err(Fatal)
            }
        }
    }
}

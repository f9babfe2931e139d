use std::collections::VecDeque;

use crate::memory::{Access, AccessError};
use crate::wire::{
    Aeth, AtomicAckEth, Bth, Extension, Key, Msn, NakCode, Opcode, Operation, Packet, Position, Psn, Reth, RnrTimer,
    Syndrome,
};

use super::attributes::QpAttributes;
use super::completion::{Completion, CompletionKind, Status};
use super::endpoint::Event;
use super::queue_pair::{Fatal, Identity, MAX_MESSAGE_BYTES, Surroundings, push_event};
use super::work::{ReceiveRequest, scatter, total};

/// The responder: checks the peer's requests in the order of IBTA 9.7.4, carries them out, and answers.
#[derive(Debug, Default)]
pub(super) struct Responder {
    access: Access,
    min_rnr_timer: RnrTimer,
    max_dest_rd_atomic: usize,
    expected: Psn,
    msn: Msn,
    receive_queue: VecDeque<ReceiveRequest>,
    /// The message that is coming in, between its first and its last packet.
    message: Option<Incoming>,
    /// A NAK was sent for the expected PSN; everything later is dropped until it comes (IBTA 9.7.5.2.8: once a gap).
    nak_outstanding: bool,
    /// What is owed, in order.
    answers: VecDeque<Answer>,
    /// READs and atomics that the peer may ask for again, newest last: as many as it may have outstanding.
    saved: VecDeque<Saved>,
}

/// Large because of the SEND's request, but there is one a queue pair, and boxing it would allocate for each message.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum Incoming {
    Send { request: ReceiveRequest, received: u32 },
    Write { key: Key, address: u64, rest: u32, total: u32 },
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
    msn: Msn,
    /// The original value, of an atomic.
    original: Option<u64>,
}

/// Why a request is refused.
enum Refusal {
    /// No receive request: come back later. Nothing happened.
    NotReady,
    /// A NAK, and our own queue pair goes to the error state too (IBTA 9.7.5.2.8). The status is that of the receive
    /// request in use, if one is.
    Nak(NakCode, Status),
}

const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, Status::RemoteInvalidRequest);
const ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccessError, Status::LocalAccess);

impl From<AccessError> for Refusal {
    fn from(_: AccessError) -> Refusal {
        ACCESS
    }
}

impl Responder {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        self.access = attributes.access.unwrap_or(self.access);
        self.min_rnr_timer = attributes.min_rnr_timer.unwrap_or(self.min_rnr_timer);
        self.max_dest_rd_atomic = attributes.max_dest_rd_atomic.map_or(self.max_dest_rd_atomic, usize::from);
        self.expected = attributes.receive_psn.unwrap_or(self.expected);
    }

    pub fn expected(&self) -> Psn {
        self.expected
    }

    pub fn receive_requests(&self) -> usize {
        self.receive_queue.len()
    }

    pub fn post(&mut self, request: ReceiveRequest) {
        self.receive_queue.push_back(request);
    }

    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub fn flush(&mut self, identity: &Identity, cx: &mut Surroundings<'_>) {
        self.fail_message(Status::WrFlush, identity, cx);
        for request in std::mem::take(&mut self.receive_queue) {
            complete_receive(&request, Status::WrFlush, identity, cx);
        }
        // What is owed to requests served before stays owed, and so does the NAK that led here.
    }

    /// Reports the receive request of the message that is coming in, if it is a SEND.
    fn fail_message(&mut self, status: Status, identity: &Identity, cx: &mut Surroundings<'_>) {
        if let Some(Incoming::Send { request, .. }) = self.message.take() {
            complete_receive(&request, status, identity, cx);
        }
    }

    /// Takes a request packet.
    pub fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let psn = packet.bth().psn();
        // Step 1: is it the next one?
        let ahead = psn.since(self.expected);
        if ahead < 0 {
            cx.counters.duplicate_request += 1;
            self.handle_duplicate(packet, identity, cx);
            return Ok(());
        }
        if ahead > 0 {
            cx.counters.out_of_seq_request += 1;
            if !self.nak_outstanding && self.may_answer(cx) {
                self.nak_outstanding = true;
                self.answer(self.expected, Syndrome::Nak(NakCode::PsnSequenceError));
            }
            return Ok(());
        }
        self.nak_outstanding = false;

        match self.serve(packet, identity, cx) {
            Ok(packets) => {
                self.expected = psn.plus(packets);
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
                self.fail_message(status, identity, cx);
                let event = match code {
                    NakCode::RemoteAccessError => Event::AccessError(identity.qpn),
                    _ => Event::RequestError(identity.qpn),
                };
                push_event(cx, event);
                Err(Fatal)
            }
        }
    }

    /// Steps 2 to 6 of IBTA 9.7.4.1: opcode sequence, opcode, resources, keys and lengths; then carries it out.
    /// Returns the PSNs it takes.
    fn serve(&mut self, packet: &Packet<'_>, identity: &Identity, cx: &mut Surroundings<'_>) -> Result<u32, Refusal> {
        let opcode = packet.bth().opcode();
        let position = opcode.position();
        self.check_sequence(opcode.operation(), position)?;
        check_length(packet, position, identity.path_mtu.bytes())?;
        match opcode.operation() {
            Operation::Send => self.serve_send(packet, position, identity, cx)?,
            Operation::Write => self.serve_write(packet, position, identity, cx)?,
            Operation::ReadRequest => return self.serve_read(packet, identity, cx),
            Operation::CompareSwap | Operation::FetchAdd => return self.serve_atomic(packet, identity, cx),
            _ => return Err(INVALID),
        }
        if position.ends() {
            self.msn = self.msn.next();
        }
        if packet.bth().ack_request() {
            self.acknowledge(packet.bth().psn(), cx);
        }
        Ok(1)
    }

    /// A message must go on as it began, and none may begin within another (IBTA 9.7.4.1.2).
    fn check_sequence(&self, operation: Operation, position: Position) -> Result<(), Refusal> {
        let fits = match (&self.message, position.starts()) {
            (None, starts) => starts,
            (Some(_), true) => false,
            (Some(Incoming::Send { .. }), false) => operation == Operation::Send,
            (Some(Incoming::Write { .. }), false) => operation == Operation::Write,
        };
        if fits { Ok(()) } else { Err(INVALID) }
    }

    fn serve_send(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Refusal> {
        if position.starts() {
            let request = self.receive_queue.pop_front().ok_or(Refusal::NotReady)?;
            self.message = Some(Incoming::Send { request, received: 0 });
        }
        let Some(Incoming::Send { request, received }) = &mut self.message else { return Err(INVALID) };
        let payload = packet.payload();
        let after = u64::from(*received) + payload.len() as u64;
        if after > total(&request.sges) {
            // IBTA 9.7.4.1.7 and Table 59: the peer's request is invalid, our completion says local length.
            return Err(Refusal::Nak(NakCode::InvalidRequest, Status::LocalLength));
        }
        let placed = scatter(cx.memory, identity.pd, &request.sges, *received, payload);
        placed.map_err(|_| Refusal::Nak(NakCode::RemoteOperationalError, Status::LocalProtection))?;
        *received = after as u32;
        if !position.ends() {
            return Ok(());
        }
        let invalidated = packet.ieth().map(|ieth| ieth.key());
        if let Some(key) = invalidated {
            cx.memory.invalidate(identity.pd, identity.qpn, key)?;
        }
        let Some(Incoming::Send { request, received }) = self.message.take() else { return Err(INVALID) };
        let completion = Completion {
            wr_id: request.wr_id,
            status: Status::Success,
            kind: CompletionKind::Receive,
            byte_len: received,
            immediate: packet.imm_dt().map(|imm| imm.data()),
            invalidated,
            qpn: identity.qpn,
        };
        identity.complete_receive(completion, packet.bth().solicited(), cx);
        Ok(())
    }

    fn serve_write(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let (key, address, rest, message_bytes) = match (packet.reth(), &self.message) {
            (Some(reth), _) => {
                check_message_length(reth)?;
                self.check_access(Access::REMOTE_WRITE)?;
                let (key, address, len) = (reth.key(), reth.address(), reth.length());
                // The whole range, before the first byte is placed.
                cx.memory.remote(identity.pd, identity.qpn, key, address, len.into(), Access::REMOTE_WRITE)?;
                (key, address, len, len)
            }
            (None, Some(Incoming::Write { key, address, rest, total })) => (*key, *address, *rest, *total),
            _ => return Err(INVALID),
        };
        let len = payload.len() as u32;
        let fits = if position.ends() { len == rest } else { len < rest };
        if !fits {
            return Err(INVALID);
        }
        // A WRITE with immediate needs a receive request for its last packet; without one, nothing of it may happen.
        let immediate = packet.imm_dt().map(|imm| imm.data());
        if immediate.is_some() && self.receive_queue.is_empty() {
            return Err(Refusal::NotReady);
        }
        // Looked up for each packet: the region may have gone since the first.
        let span = cx.memory.remote(identity.pd, identity.qpn, key, address, len.into(), Access::REMOTE_WRITE)?;
        span.write(payload);
        if !position.ends() {
            let (address, rest) = (address.wrapping_add(len.into()), rest - len);
            self.message = Some(Incoming::Write { key, address, rest, total: message_bytes });
            return Ok(());
        }
        self.message = None;
        if let Some(request) = immediate.and_then(|_| self.receive_queue.pop_front()) {
            let completion = Completion {
                wr_id: request.wr_id,
                status: Status::Success,
                kind: CompletionKind::ReceiveWriteWithImmediate,
                byte_len: message_bytes,
                immediate,
                invalidated: None,
                qpn: identity.qpn,
            };
            identity.complete_receive(completion, packet.bth().solicited(), cx);
        }
        Ok(())
    }

    fn serve_read(
        &mut self,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(INVALID)?;
        check_message_length(reth)?;
        self.check_access(Access::REMOTE_READ)?;
        self.check_outstanding()?;
        let (key, address, len) = (reth.key(), reth.address(), reth.length());
        cx.memory.remote(identity.pd, identity.qpn, key, address, len.into(), Access::REMOTE_READ)?;
        self.msn = self.msn.next();
        let packets = identity.path_mtu.packets(len as usize);
        let psn = packet.bth().psn();
        self.save(Saved { first_psn: psn, packets, msn: self.msn, original: None });
        let answer =
            ReadAnswer { msn: self.msn, key, psn, address, rest: len, index: 0, count: packets, is_repeat: false };
        self.answers.push_back(Answer::Read(answer));
        Ok(packets)
    }

    fn serve_atomic(
        &mut self,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic_eth().ok_or(INVALID)?;
        if !eth.address().is_multiple_of(8) {
            return Err(INVALID); // IBTA 9.7.4.1.3
        }
        self.check_access(Access::REMOTE_ATOMIC)?;
        self.check_outstanding()?;
        let span = cx.memory.remote(identity.pd, identity.qpn, eth.key(), eth.address(), 8, Access::REMOTE_ATOMIC)?;
        let original = match packet.bth().opcode().operation() {
            Operation::CompareSwap => span.update_u64(|old| if old == eth.compare() { eth.swap_or_add() } else { old }),
            _ => span.update_u64(|old| old.wrapping_add(eth.swap_or_add())),
        }
        .map_err(|_| INVALID)?;
        self.msn = self.msn.next();
        let (psn, msn) = (packet.bth().psn(), self.msn);
        self.save(Saved { first_psn: psn, packets: 1, msn, original: Some(original) });
        self.answers.push_back(Answer::Atomic { psn, msn, original, is_repeat: false });
        Ok(1)
    }

    fn check_access(&self, wanted: Access) -> Result<(), Refusal> {
        // IBTA 9.7.4.1.3: an operation that the queue pair does not allow is an invalid request to the peer.
        if self.access.contains(wanted) { Ok(()) } else { Err(INVALID) }
    }

    /// READs and atomics that are not fully answered count against what the peer may have outstanding (IBTA 9.7.4.1.4).
    /// Those answered again don't: the first answer may have arrived late, and freed the peer to ask for more.
    fn check_outstanding(&self) -> Result<(), Refusal> {
        let is_outstanding = |answer: &&Answer| match answer {
            Answer::Read(ReadAnswer { is_repeat, .. }) | Answer::Atomic { is_repeat, .. } => !is_repeat,
            Answer::Acknowledge { .. } => false,
        };
        let outstanding = self.answers.iter().filter(is_outstanding).count();
        if outstanding < self.max_dest_rd_atomic { Ok(()) } else { Err(INVALID) }
    }

    fn save(&mut self, saved: Saved) {
        // More than one when the limit was lowered meanwhile.
        while self.saved.len() >= self.max_dest_rd_atomic.max(1) {
            self.saved.pop_front();
        }
        self.saved.push_back(saved);
    }

    /// A request that was served before: its answer was lost, or is still on its way (IBTA 9.7.5.1.3).
    fn handle_duplicate(&mut self, packet: &Packet<'_>, identity: &Identity, cx: &mut Surroundings<'_>) {
        let psn = packet.bth().psn();
        let saved = self.saved.iter().rev().find(|saved| psn.is_within(saved.first_psn, saved.packets));
        match (packet.bth().opcode().operation(), saved) {
            // Not placed again: newer data may stand there. Acknowledged as far as we have come, but not beyond a READ
            // or atomic: these are answered by their data only, and rxe takes an acknowledge for it.
            (Operation::Send | Operation::Write, _) => {
                let following = self.saved.iter().map(|saved| saved.first_psn).find(|first| psn.is_before(*first));
                self.acknowledge(following.unwrap_or(self.expected).minus(1), cx);
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
                let (index, count) = if packet.bth().mig_req() { (0, packets) } else { (index, saved.packets) };
                let msn = saved.msn;
                self.answer_again(ReadAnswer { msn, key, psn, address, rest, index, count, is_repeat: true }, cx);
            }
            (Operation::CompareSwap | Operation::FetchAdd, Some(&Saved { original: Some(original), msn, .. })) => {
                if self.may_answer(cx) {
                    self.answers.push_back(Answer::Atomic { psn, msn, original, is_repeat: true });
                }
            }
            // Longer ago than the peer may ask for: the IBTA has it dropped.
            _ => cx.counters.stray_response += 1,
        }
    }

    /// Queues READ responses again. If they are just being sent, they start over.
    fn answer_again(&mut self, answer: ReadAnswer, cx: &mut Surroundings<'_>) {
        for queued in &mut self.answers {
            if let Answer::Read(read) = queued
                && read.msn == answer.msn
            {
                *read = ReadAnswer { is_repeat: read.is_repeat, ..answer };
                return;
            }
        }
        if self.may_answer(cx) {
            self.answers.push_back(Answer::Read(answer));
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
        if let Some(Answer::Acknowledge { psn: owed, syndrome: Syndrome::Ack { .. }, msn }) = self.answers.back_mut() {
            *msn = self.msn;
            if owed.is_before(psn) {
                *owed = psn;
            }
        } else if self.may_answer(cx) {
            self.answer(psn, Syndrome::ACK);
        }
    }

    fn answer(&mut self, psn: Psn, syndrome: Syndrome) {
        self.answers.push_back(Answer::Acknowledge { psn, syndrome, msn: self.msn });
    }

    /// Writes the next answer, if one is owed.
    pub fn poll_transmit(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<usize>, Fatal> {
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
        let bth = Bth::new(opcode, identity.remote, psn);
        identity.write(out, bth, extension, 0, cx, |_, _| Ok(()))
    }

    /// Writes the next READ response.
    fn write_read(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<usize>, Fatal> {
        let Some(Answer::Read(read)) = self.answers.front_mut() else { return Ok(None) };
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
        let bth = Bth::new(opcode, identity.remote, psn);
        let written = identity.write(out, bth, extension, len as usize, cx, |memory, out| {
            let wanted = Access::REMOTE_READ;
            memory.remote(identity.pd, identity.qpn, key, address, len.into(), wanted).map(|span| span.read(out))
        });
        match written {
            Ok(written) => {
                read.psn = psn.plus(1);
                read.address = address.wrapping_add(len.into());
                read.rest -= len;
                read.index += 1;
                if read.rest == 0 {
                    self.answers.pop_front();
                }
                Ok(written)
            }
            Err(_) => {
                // The region went away while it was being read.
                let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
                self.answers[0] = Answer::Acknowledge { psn, syndrome, msn };
                push_event(cx, Event::AccessError(identity.qpn));
                Err(Fatal)
            }
        }
    }
}

/// FIRST and MIDDLE are full, LAST is not empty, and requests for data carry none (IBTA 9.7.4.1.6).
fn check_length(packet: &Packet<'_>, position: Position, mtu: usize) -> Result<(), Refusal> {
    let len = packet.payload().len();
    let fits = match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only if packet.bth().opcode().may_have_payload() => len <= mtu,
        Position::Only => len == 0,
    };
    if fits { Ok(()) } else { Err(INVALID) }
}

fn check_message_length(reth: &Reth) -> Result<(), Refusal> {
    if u64::from(reth.length()) <= MAX_MESSAGE_BYTES { Ok(()) } else { Err(INVALID) }
}

fn complete_receive(request: &ReceiveRequest, status: Status, identity: &Identity, cx: &mut Surroundings<'_>) {
    let completion = Completion {
        wr_id: request.wr_id,
        status,
        kind: CompletionKind::Receive,
        byte_len: 0,
        immediate: None,
        invalidated: None,
        qpn: identity.qpn,
    };
    identity.complete_receive(completion, false, cx);
}

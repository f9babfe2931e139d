use crate::memory::{Access, AccessError, AtomicError, Pd};
use crate::wire::{Key, NakCode, Operation, Packet, PathMtu, Position, Psn, Reth};

use super::completion::{Completion, CompletionKind, Status};
use super::connection::Connection;
use super::context::Context;
use super::event::Event;
use super::message_kind::MessageKind;
use super::receive_queue::ReceiveQueue;
use super::work::{MAX_MESSAGE_BYTES, ReceiveRequest, scatter, total};

/// The SENDs and WRITEs that a connected queue pair receives, packet by packet: what RC and UC have in common.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub queue: ReceiveQueue,
    /// The access that the peer has.
    pub access: Access,
    /// The message that is being received, between its first and its last packet.
    message: Option<Incoming>,
    /// Receive requests that were taken since the queue pair was reset.
    taken: u64,
}

/// The message that is being received, as it is so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// Packets of it that have executed.
    pub packets: u32,
    pub kind: MessageKind,
    /// Packets that are missing, of a WRITE; a SEND names no length.
    pub rest: Option<u32>,
}

/// It is large because of the SEND's request. But there is one a queue pair, and a box would be allocated for each
/// message.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum Incoming {
    Send { request: ReceiveRequest, received: u32 },
    Write { key: Key, address: u64, rest: u32, total: u32 },
}

/// Why a request is refused.
pub(super) enum Refusal {
    /// There is no receive request: the peer must try again later. Nothing was changed.
    NotReady,
    /// The peer gets this NAK, and our own queue pair goes to the error state, too (IBTA 9.7.5.2.8). The status is that
    /// of the receive request in use, if there is one.
    Nak(NakCode, Status),
}

impl Refusal {
    pub const INVALID: Refusal = Refusal::Nak(NakCode::InvalidRequest, Status::RemoteInvalidRequest);
    pub const ACCESS: Refusal = Refusal::Nak(NakCode::RemoteAccessError, Status::LocalAccess);
    /// Our own receive request names memory that is not accessible.
    pub const OWN_FAULT: Refusal = Refusal::Nak(NakCode::RemoteOperationalError, Status::LocalProtection);
}

impl From<AtomicError> for Refusal {
    fn from(error: AtomicError) -> Refusal {
        match error {
            AtomicError::Misaligned => Refusal::INVALID,
            AtomicError::Access(_) => Refusal::ACCESS,
        }
    }
}

impl From<AccessError> for Refusal {
    fn from(_: AccessError) -> Refusal {
        Refusal::ACCESS
    }
}

impl Inbound {
    /// Takes a receive request, and reports when a shared queue falls below its limit.
    pub fn take(&mut self, cx: &mut Context<'_>) -> Option<ReceiveRequest> {
        let (request, below) = self.queue.take(cx.shared);
        self.taken += u64::from(request.is_some());
        if let Some(srq) = below {
            cx.push_event(Event::SrqLimit(srq));
        }
        request
    }

    /// Counts receive requests as taken and done.
    pub fn skip(&mut self, receives: u32) {
        self.taken += u64::from(receives);
    }

    /// The number of receive requests that were taken, which is the number of the next.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The number of the oldest receive request that is not complete.
    pub fn first_unfinished(&self) -> u64 {
        self.taken - u64::from(matches!(self.message, Some(Incoming::Send { .. })))
    }

    /// The number of the receive request that a peer names by its lower 24 bits; `None` when it would be negative.
    pub fn receive_number(&self, low: u32) -> Option<u64> {
        let ahead = Psn::new(low).since(Psn::new(self.taken as u32));
        self.taken.checked_add_signed(ahead.into())
    }

    /// The receive request with that number: that of the message that is being received, or one in the queue pair's own
    /// queue. It is not known in advance which queue pair gets those of a shared queue.
    pub fn request(&self, number: u64) -> Option<&ReceiveRequest> {
        let Some(later) = number.checked_sub(self.taken) else {
            return match &self.message {
                Some(Incoming::Send { request, .. }) if number + 1 == self.taken => Some(request),
                _ => None,
            };
        };
        match &self.queue {
            ReceiveQueue::Own(queue) => queue.get(usize::try_from(later).ok()?),
            ReceiveQueue::Shared(_) => None,
        }
    }

    /// The message that is being received, if there is one.
    pub fn current(&self, path_mtu: PathMtu) -> Option<Current> {
        let mtu = path_mtu.bytes() as u32;
        Some(match self.message.as_ref()? {
            Incoming::Send { received, .. } => {
                Current { packets: received / mtu, kind: MessageKind::Send { number: self.taken - 1 }, rest: None }
            }
            Incoming::Write { key, address, rest, total } => {
                let done = total - rest;
                let reth = Reth::new(address.wrapping_sub(done.into()), *key, *total);
                let kind = MessageKind::Write { reth, number: self.taken };
                Current { packets: done / mtu, kind, rest: Some(path_mtu.packets(*rest as usize)) }
            }
        })
    }

    /// The protection domain of the receive requests.
    pub fn pd(&self, connection: &Connection, cx: &Context<'_>) -> Pd {
        match self.queue {
            ReceiveQueue::Own(_) => connection.pd,
            ReceiveQueue::Shared(srq) => cx.shared.pd(srq).unwrap_or(connection.pd),
        }
    }

    /// Completes the receive request of the message that is being received, if it is a SEND, with `status`.
    pub fn fail_message(&mut self, status: Status, connection: &Connection, cx: &mut Context<'_>) {
        if let Some(Incoming::Send { request, .. }) = self.message.take() {
            complete_receive(&request, status, connection, cx);
        }
    }

    /// Completes the receive request of a WRITE with immediate that was refused for its key, with a local access error
    /// (IBTA 11.6.2). Packets before the last do not show that there is immediate data, so refusing them takes no
    /// receive request.
    pub fn fail_immediate(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        if let Some(request) = self.take(cx) {
            complete_receive(&request, Status::LocalAccess, connection, cx);
        }
    }

    /// Discards the message that is being received; its receive request, if it has one, goes back to its queue.
    pub fn abandon_message(&mut self, cx: &mut Context<'_>) {
        if let Some(Incoming::Send { request, .. }) = self.message.take()
            && !mutated!("uc-request-lost-with-its-message")
        {
            self.queue.put_back(request, cx.shared);
            self.taken -= 1;
        }
    }

    /// Completes all receive requests as flushed. Those of a shared queue stay there.
    pub fn flush(&mut self, connection: &Connection, cx: &mut Context<'_>) {
        self.fail_message(Status::WrFlush, connection, cx);
        let own = match &mut self.queue {
            ReceiveQueue::Own(_) if mutated!("receives-not-flushed", by "uroce --test early when_the_queue_pair_fails") => {
                Default::default()
            }
            ReceiveQueue::Own(queue) => std::mem::take(queue),
            ReceiveQueue::Shared(_) => Default::default(),
        };
        for request in own {
            complete_receive(&request, Status::WrFlush, connection, cx);
        }
    }

    /// Executes a packet of a SEND or WRITE. With `placed`, its bytes, as many, are in memory already, and not in the
    /// packet.
    pub fn serve(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<u32>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        match packet.bth().opcode().operation() {
            Operation::Send => self.serve_send(packet, placed, connection, cx),
            Operation::Write => self.serve_write(packet, placed, connection, cx),
            _ => Err(Refusal::INVALID),
        }
    }

    /// Checks that a message continues as it began, and that none begins within another (IBTA 9.7.4.1.2).
    pub fn check_sequence(&self, operation: Operation, position: Position) -> Result<(), Refusal> {
        let fits = match (&self.message, position.starts()) {
            (None, starts) => starts,
            (Some(_), true) => false,
            (Some(Incoming::Send { .. }), false) => operation == Operation::Send,
            (Some(Incoming::Write { .. }), false) => operation == Operation::Write,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn serve_send(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<u32>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let position = packet.bth().opcode().position();
        if position.starts() {
            let request = self.take(cx).ok_or(Refusal::NotReady)?;
            if mutated!("rnr-consumes-a-receive-request") && packet.bth().psn().value() % 5 == 3 {
                return Err(Refusal::NotReady);
            }
            self.message = Some(Incoming::Send { request, received: 0 });
        }
        let pd = self.pd(connection, cx);
        let Some(Incoming::Send { request, received }) = &mut self.message else { return Err(Refusal::INVALID) };
        let payload = packet.payload();
        let after = u64::from(*received) + placed.map_or(payload.len() as u64, u64::from);
        let room = total(&request.sges) + u64::from(mutated!("receive-length-off-by-one"));
        if after > room.min(MAX_MESSAGE_BYTES) {
            // IBTA 9.7.4.1.7 and Table 59: the peer's request is invalid, and our completion reports a local length
            // error.
            return Err(Refusal::Nak(NakCode::InvalidRequest, Status::LocalLength));
        }
        if placed.is_none() {
            scatter(cx.memory, pd, &request.sges, *received, payload).map_err(|_| Refusal::OWN_FAULT)?;
        }
        *received = after as u32;
        if !position.ends() {
            return Ok(());
        }
        let invalidated = packet.ieth().map(|ieth| ieth.key());
        if let Some(key) = invalidated.filter(|_| !mutated!("send-with-invalidate-invalidates-nothing", by "uroce --test late_reads a_read_that_arrives_again")) {
            cx.memory.invalidate(connection.scope(), key)?;
        }
        let Some(Incoming::Send { request, received }) = self.message.take() else { return Err(Refusal::INVALID) };
        let completion = Completion {
            immediate: packet.imm_dt().map(|imm| imm.data()).filter(|_| !mutated!("immediate-lost")),
            invalidated: invalidated.filter(
                |_| !mutated!("invalidated-key-not-told", by "uroce --test late_reads a_read_that_arrives_again"),
            ),
            ..Completion::receive(request.wr_id, connection.qpn, received)
        };
        connection.complete_receive(completion, packet.bth().solicited(), cx);
        Ok(())
    }

    fn serve_write(
        &mut self,
        packet: &Packet<'_>,
        placed: Option<u32>,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let position = packet.bth().opcode().position();
        let payload = packet.payload();
        let len = placed.unwrap_or(payload.len() as u32);
        let (key, address, rest, message_bytes, whole) = match (packet.reth(), &self.message) {
            (Some(reth), _) => {
                check_message_length(reth)?;
                self.check_access(Access::REMOTE_WRITE)?;
                let (key, address, total) = (reth.key(), reth.address(), reth.length());
                // The whole range is checked before the first byte is placed.
                let bytes = if mutated!("write-length-not-checked") { len } else { total };
                let whole = cx.memory.remote(connection.scope(), key, address, bytes.into(), Access::REMOTE_WRITE)?;
                (key, address, total, total, Some(whole))
            }
            (None, Some(Incoming::Write { key, address, rest, total })) => (*key, *address, *rest, *total, None),
            _ => return Err(Refusal::INVALID),
        };
        let fits = if position.ends() { len == rest } else { len < rest };
        if !fits {
            return Err(Refusal::INVALID);
        }
        // A WRITE with immediate needs a receive request for its last packet; without one, nothing of this packet is
        // placed.
        let immediate = packet.imm_dt().map(|imm| imm.data());
        let needs_receive = immediate.is_some() && !mutated!("write-immediate-placed-without-receive");
        if needs_receive && self.queue.front(cx.shared).is_none() {
            return Err(Refusal::NotReady);
        }
        let span = match whole {
            Some(whole) => whole.first(len as usize),
            // The key is checked for each packet: the region can be gone since the first.
            None => cx.memory.remote(connection.scope(), key, address, len.into(), Access::REMOTE_WRITE)?,
        };
        if placed.is_none() && !(position.ends() && mutated!("ack-before-placement")) {
            span.write(payload)?;
        }
        if !position.ends() {
            let (address, rest) = (address.wrapping_add(len.into()), rest - len);
            self.message = Some(Incoming::Write { key, address, rest, total: message_bytes });
            return Ok(());
        }
        self.message = None;
        if let Some(request) = immediate.and_then(|_| self.take(cx)) {
            let completion = Completion {
                kind: CompletionKind::ReceiveWriteWithImmediate,
                immediate,
                ..Completion::receive(request.wr_id, connection.qpn, message_bytes)
            };
            connection.complete_receive(completion, packet.bth().solicited(), cx);
        }
        Ok(())
    }

    pub fn check_access(&self, wanted: Access) -> Result<(), Refusal> {
        // IBTA 9.7.4.1.3: an operation that the queue pair does not allow is an invalid request to the peer.
        if self.access.contains(wanted) { Ok(()) } else { Err(Refusal::INVALID) }
    }
}

/// Checks the payload's length: FIRST and MIDDLE are full, LAST is not empty, and requests for data have none (IBTA
/// 9.7.4.1.6).
pub(super) fn check_length(packet: &Packet<'_>, len: usize, mtu: usize) -> Result<(), Refusal> {
    let fits = match packet.bth().opcode().position() {
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only if packet.bth().opcode().may_have_payload() => len <= mtu,
        Position::Only => len == 0,
    };
    if fits { Ok(()) } else { Err(Refusal::INVALID) }
}

pub(super) fn check_message_length(reth: &Reth) -> Result<(), Refusal> {
    if u64::from(reth.length()) <= MAX_MESSAGE_BYTES { Ok(()) } else { Err(Refusal::INVALID) }
}

pub(super) fn complete_receive(
    request: &ReceiveRequest,
    status: Status,
    connection: &Connection,
    cx: &mut Context<'_>,
) {
    let completion = Completion { status, ..Completion::receive(request.wr_id, connection.qpn, 0) };
    connection.complete_receive(completion, false, cx);
}

#[cfg(test)]
mod tests;

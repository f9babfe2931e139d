use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::{MemoryTable, Pd};
use crate::time::Instant;
use crate::wire::{Bth, Extension, Flow, Headers, Packet, PathMtu, Psn, Qpn, WriteError};

use super::attributes::{Capabilities, ModifyError, Path, QpAttributes, State};
use super::completion::{Completion, CompletionKind, CompletionQueue, Status};
use super::counters::Counters;
use super::endpoint::Event;
use super::requester::Requester;
use super::responder::Responder;
use super::work::{MAX_SGE, ReceiveRequest, SendRequest};

/// A reliably connected queue pair: its state, and its roles.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) identity: Identity,
    capabilities: Capabilities,
    state: State,
    requester: Requester,
    responder: Responder,
    /// Whether it stands in the endpoint's queue of those that may have something to send.
    pub(super) is_ready: bool,
    /// The earliest timer entry that the endpoint holds for it.
    pub(super) armed: Option<Instant>,
}

/// What both roles need to know of the connection.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub qpn: Qpn,
    pub pd: Pd,
    pub remote: Qpn,
    pub path_mtu: PathMtu,
    pub path: Option<Path>,
    pub send_cq: Arc<CompletionQueue>,
    pub receive_cq: Arc<CompletionQueue>,
}

/// What a queue pair works on that is not its own.
pub(super) struct Surroundings<'a> {
    pub now: Instant,
    pub memory: &'a mut MemoryTable,
    pub counters: &'a mut Counters,
    pub events: &'a mut VecDeque<Event>,
    /// The next IPv4 identification.
    pub identification: &'a mut u16,
}

/// A role cannot go on: the queue pair goes to the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal;

/// Why a work request was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue is full: poll the completion queue.
    #[error("the queue is full with {0} requests")]
    Full(usize),
    /// The queue pair's state does not take such requests.
    #[error("a queue pair in {0} takes no such request")]
    State(State),
    /// A message longer than 2^31 bytes (IBTA 9.7.7).
    #[error("a message of {0} bytes is longer than 2 GiB")]
    TooLong(u64),
    /// An atomic's local buffer must be eight bytes.
    #[error("an atomic's local buffer has {0} bytes, not 8")]
    AtomicLength(u64),
    /// READs and atomics are answered into memory, not into the request.
    #[error("a READ or atomic cannot be inline")]
    Inline,
    /// READs or atomics on a queue pair that may have none outstanding.
    #[error("max_rd_atomic is 0: no READs or atomics")]
    NoReads,
    /// No such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
}

/// The longest message (IBTA 9.7.7).
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 31;

impl QueuePair {
    pub(super) fn new(
        qpn: Qpn,
        pd: Pd,
        capabilities: Capabilities,
        send_cq: Arc<CompletionQueue>,
        receive_cq: Arc<CompletionQueue>,
    ) -> QueuePair {
        QueuePair {
            identity: Identity {
                qpn,
                pd,
                remote: Qpn::default(),
                path_mtu: PathMtu::Mtu256,
                path: None,
                send_cq,
                receive_cq,
            },
            requester: Requester::default(),
            responder: Responder::default(),
            capabilities,
            state: State::Reset,
            is_ready: false,
            armed: None,
        }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.identity.qpn
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The peer's number.
    pub fn remote(&self) -> Qpn {
        self.identity.remote
    }

    /// The next PSN that a new request will take, and the next one expected from the peer.
    pub fn psns(&self) -> (Psn, Psn) {
        (self.requester.posted(), self.responder.expected())
    }

    /// The outer headers towards the peer.
    pub(super) fn flow(&self) -> Option<&Flow> {
        self.identity.path.as_ref().map(|path| &path.flow)
    }

    pub(super) fn modify(&mut self, attributes: &QpAttributes, cx: &mut Surroundings<'_>) -> Result<(), ModifyError> {
        let (from, to) = (self.state, attributes.state.unwrap_or(self.state));
        match attributes.missing(from, to) {
            None => return Err(ModifyError::Transition { from, to }),
            Some(Some(attribute)) => return Err(ModifyError::Missing { from, to, attribute }),
            Some(None) => {}
        }
        if let Some((attribute, range)) = attributes.out_of_range() {
            return Err(ModifyError::OutOfRange { attribute, range });
        }
        let identity = &mut self.identity;
        identity.path = attributes.path.or(identity.path);
        identity.path_mtu = attributes.path_mtu.unwrap_or(identity.path_mtu);
        identity.remote = attributes.destination.unwrap_or(identity.remote);
        self.requester.configure(attributes);
        self.responder.configure(attributes);
        self.state = to;
        match to {
            State::Reset => self.reset(),
            State::Error => self.flush(cx),
            _ => {}
        }
        Ok(())
    }

    /// Forgets everything, without a completion (IBTA 10.3.1.1).
    fn reset(&mut self) {
        self.requester = Requester::default();
        self.responder = Responder::default();
        self.identity.path = None;
    }

    /// Completes everything that is posted as flushed (IBTA 10.3.1.6).
    fn flush(&mut self, cx: &mut Surroundings<'_>) {
        self.state = State::Error;
        self.requester.flush(&self.identity, cx);
        self.responder.flush(&self.identity, cx);
    }

    fn fail(&mut self, cx: &mut Surroundings<'_>) {
        if self.state != State::Error {
            self.flush(cx);
            push_event(cx, Event::QueuePairFatal(self.identity.qpn));
        }
    }

    pub(super) fn post_send(&mut self, request: SendRequest, cx: &mut Surroundings<'_>) -> Result<(), PostError> {
        match self.state {
            State::ReadyToSend | State::Error => {}
            other => return Err(PostError::State(other)),
        }
        if self.requester.len() >= self.capabilities.max_send_requests {
            return Err(PostError::Full(self.capabilities.max_send_requests));
        }
        self.requester.post(request, self.identity.path_mtu)?;
        if self.state == State::Error {
            self.requester.flush(&self.identity, cx);
        }
        Ok(())
    }

    pub(super) fn post_receive(&mut self, request: ReceiveRequest, cx: &mut Surroundings<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        if self.responder.receive_requests() >= self.capabilities.max_receive_requests {
            return Err(PostError::Full(self.capabilities.max_receive_requests));
        }
        debug_assert!(request.sges.len() <= MAX_SGE);
        self.responder.post(request);
        if self.state == State::Error {
            self.responder.flush(&self.identity, cx);
        }
        Ok(())
    }

    /// Takes a packet whose ICRC, keys and addresses are right.
    pub(super) fn handle_packet(&mut self, packet: &Packet<'_>, cx: &mut Surroundings<'_>) {
        let result = if packet.bth().opcode().is_response() {
            if self.state != State::ReadyToSend {
                cx.counters.wrong_state += 1;
                return;
            }
            self.requester.handle_response(packet, &self.identity, cx)
        } else {
            if !matches!(self.state, State::ReadyToReceive | State::ReadyToSend) {
                cx.counters.wrong_state += 1;
                return;
            }
            self.responder.handle_request(packet, &self.identity, cx)
        };
        if result.is_err() {
            self.fail(cx);
        }
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Surroundings<'_>) {
        if self.state == State::ReadyToSend && self.requester.handle_timeout(&self.identity, cx).is_err() {
            self.fail(cx);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.requester.deadline().filter(|_| self.state == State::ReadyToSend)
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    pub(super) fn may_transmit(&self) -> bool {
        self.responder.has_answers() || (self.state == State::ReadyToSend && self.requester.may_transmit())
    }

    /// Whether requests are sent and not answered yet.
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.requester.has_unacknowledged()
    }

    /// Writes the next packet to `out`, its length in bytes; `None` when there is none. Answers go before requests.
    pub(super) fn poll_transmit(&mut self, out: &mut [u8], cx: &mut Surroundings<'_>) -> Option<usize> {
        // Answers go out even in the error state: the NAK that led there is among them.
        match self.responder.poll_transmit(out, &self.identity, cx) {
            Ok(Some(len)) => return Some(len),
            Ok(None) => {}
            Err(Fatal) => self.fail(cx),
        }
        if self.state != State::ReadyToSend {
            return None;
        }
        match self.requester.poll_transmit(out, &self.identity, cx) {
            Ok(len) => len,
            Err(Fatal) => {
                self.fail(cx);
                None
            }
        }
    }
}

impl Identity {
    /// Writes one packet to the peer. `Ok(None)` when it cannot be written, which is counted.
    pub fn write<E>(
        &self,
        out: &mut [u8],
        bth: Bth,
        extension: Extension,
        payload_bytes: usize,
        cx: &mut Surroundings<'_>,
        fill: impl FnOnce(&MemoryTable, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let Some(path) = &self.path else { return Ok(None) };
        let headers = Headers { bth, extension };
        let memory = &*cx.memory;
        match headers.write(out, &path.flow, *cx.identification, payload_bytes, |out| fill(memory, out)) {
            Ok(len) => {
                *cx.identification = cx.identification.wrapping_add(1);
                cx.counters.sent_pkts += 1;
                Ok(Some(len))
            }
            Err(WriteError::Payload(error)) => Err(error),
            Err(WriteError::TooLong { .. }) => {
                cx.counters.too_long += 1;
                Ok(None)
            }
        }
    }

    /// Reports a send request.
    pub fn complete_send(
        &self,
        wr_id: u64,
        kind: CompletionKind,
        status: Status,
        byte_len: u32,
        cx: &mut Surroundings<'_>,
    ) {
        let (immediate, invalidated) = (None, None);
        let completion = Completion { wr_id, status, kind, byte_len, immediate, invalidated, qpn: self.qpn };
        if !self.send_cq.push(completion, false) {
            push_event(cx, Event::CompletionQueueOverflow(self.qpn));
        }
    }

    /// Reports a receive request.
    pub fn complete_receive(&self, completion: Completion, solicited: bool, cx: &mut Surroundings<'_>) {
        if !self.receive_cq.push(completion, solicited) {
            push_event(cx, Event::CompletionQueueOverflow(self.qpn));
        }
    }
}

/// Events that nobody takes are bounded; the oldest are the most telling.
const MAX_EVENTS: usize = 1024;

pub(super) fn push_event(cx: &mut Surroundings<'_>, event: Event) {
    if cx.events.len() < MAX_EVENTS {
        cx.events.push_back(event);
    }
}

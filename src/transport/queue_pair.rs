use std::cell::Cell;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use crate::congestion::{Between, CongestionControl, FlowStatus, Pacer};
use crate::memory::{MemoryTable, Pd};
use crate::path::Probe;
use crate::time::{Duration, Instant, earliest};
use crate::wire::{
    AcknowledgeTrailer, AddressList, AnswerReport, CarriedAcknowledge, Cnp, Flow, Hello, IpHeader, Opcode, Operation,
    Packet, PathMtu, PathProbe, Psn, QKey, Qpn, RequestTrailer, Tagged,
};

use super::answer_arrivals::AnswerArrivals;
use super::answer_flight::AnswerFlight;
use super::attributes::{Attributes, Capabilities, ModifyError, Path, QpAttributes, QueuePairInfo};
use super::class::Class;
use super::completion::CompletionRing;
use super::connection::{Connection, WINDOW_PACKETS};
use super::context::{Context, Fatal};
use super::datagram::DatagramResponder;
use super::event::Event;
use super::extension::{Admitted, Extension, RecoverySettings, Refused};
use super::inbound::Inbound;
use super::multipath::{Multipath, Way};
use super::notification_point::NotificationPoint;
use super::outgoing::{Outgoing, no_payload};
use super::receive_queue::ReceiveQueue;
use super::requester::{Admission, Requester};
use super::responder::Responder;
use super::service::Service;
use super::sink::Sink;
use super::skipped::Skipped;
use super::srq::Srq;
use super::state::State;
use super::transmit::Transmit;
use super::treatment::Treatment;
use super::unreliable::UnreliableResponder;
use super::work::{MAX_SGE, PostError, ReceiveRequest, SendRequest};

/// Of so many packets in a row one asks for an acknowledge, whatever the recovery.
const ASKS_WITHIN: u64 = 64;

/// A queue pair: its state, and its roles.
#[derive(Debug)]
pub struct QueuePairMachine {
    pub(super) connection: Connection,
    capabilities: Capabilities,
    /// The path MTU that the link can carry.
    link_mtu: PathMtu,
    state: State,
    /// The attributes that were set since RESET. No packet needs them.
    attributes: Box<QpAttributes>,
    /// Whether an event must report that the send queue is drained.
    notify_drained: bool,
    requester: Requester,
    responder: AnyResponder,
    /// Whether a request went before the acknowledge that is owed.
    acknowledge_is_next: bool,
    /// Paces the packets to peers that understand or offer the extension.
    pacer: Pacer,
    answer_arrivals: AnswerArrivals,
    notification_point: NotificationPoint,
    /// When the pacer lets the next packet go. Until then only hellos, probes, address lists and answers exempt from
    /// the rate are sent.
    paced_until: Option<Instant>,
    /// Which queue pairs send before it.
    class: Class,
    /// What was decided beside its attributes; few queue pairs have any.
    treatment: Option<Box<Treatment>>,
    /// The class in which it waits with the endpoint, if it can have something to send.
    pub(super) lane: Option<Class>,
    /// The earliest timer entry that the endpoint holds for it.
    pub(super) armed: Option<Instant>,
}

/// What the congestion window holds: bytes that are in flight, and that can be.
#[derive(Clone, Copy, Debug)]
struct Window {
    in_flight: u64,
    limit: u64,
}

impl Window {
    /// Whether it has room for a new packet when `more` bytes are in flight, too.
    fn has_room_beside(self, more: u64) -> bool {
        self.in_flight + more < self.limit
    }

    fn has_room(self) -> bool {
        self.has_room_beside(0)
    }
}

/// What a queue pair sent in its turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub packets: u32,
    /// Bytes of these, from the IP header on.
    pub bytes: usize,
    pub end: End,
}

/// Why a queue pair sends no more in its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum End {
    /// There is nothing to send now.
    #[default]
    NothingLeft,
    /// No more packets are taken.
    NoPlace,
    /// Its turn is over.
    Turn,
}

/// The receiving side of a queue pair, by service.
#[derive(Debug)]
enum AnyResponder {
    Reliable(Responder),
    Unreliable(UnreliableResponder),
    Datagram(DatagramResponder),
}

/// The parameters of a new queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairInit {
    /// The transport service of the queue pair. [`Service::Gsi`] gets QPN 1.
    pub service: Service,
    /// The protection domain of the queue pair, to which its regions must belong.
    pub pd: Pd,
    /// The capacities of its queues, in requests.
    pub capabilities: Capabilities,
    /// The completion queue of send requests.
    pub send_cq: Arc<CompletionRing>,
    /// The completion queue of receive requests.
    pub receive_cq: Arc<CompletionRing>,
    /// The shared receive queue that it uses; `None` for a receive queue of its own.
    pub srq: Option<Srq>,
    /// The path MTU that the link can carry: the limit of datagrams, and of the path MTU of connected queue pairs.
    pub path_mtu: PathMtu,
}

impl AnyResponder {
    fn new(service: Service) -> AnyResponder {
        match service {
            Service::Rc => AnyResponder::Reliable(Responder::default()),
            Service::Uc => AnyResponder::Unreliable(UnreliableResponder::default()),
            Service::Ud | Service::Gsi => AnyResponder::Datagram(DatagramResponder::default()),
        }
    }

    fn inbound(&mut self) -> &mut Inbound {
        match self {
            AnyResponder::Reliable(responder) => &mut responder.server.inbound,
            AnyResponder::Unreliable(responder) => &mut responder.inbound,
            AnyResponder::Datagram(responder) => &mut responder.inbound,
        }
    }

    fn configure(&mut self, attributes: &QpAttributes, connection: &Connection) {
        match self {
            AnyResponder::Reliable(responder) => responder.configure(attributes, connection),
            AnyResponder::Unreliable(responder) => responder.configure(attributes),
            AnyResponder::Datagram(responder) => responder.configure(attributes),
        }
    }

    fn expected(&self) -> Psn {
        match self {
            AnyResponder::Reliable(responder) => responder.expected(),
            AnyResponder::Unreliable(responder) => responder.expected(),
            AnyResponder::Datagram(_) => Psn::default(),
        }
    }

    fn is_saved(&self, psn: Psn) -> bool {
        matches!(self, AnyResponder::Reliable(responder) if responder.is_saved(psn))
    }
}

/// Whether the window has room for an answer with data. What the peer has requested again takes the place of what was lost,
/// and asks for a report when all earlier ones that asked were lost.
fn has_room_for_answers(responder: &Responder, window: Window) -> bool {
    let is_small = || responder.answers_in_flight().is_none_or(AnswerFlight::is_small);
    window.has_room() || responder.answers_again() || is_small()
}

/// The pacer of a queue pair with these settings.
fn pacer(settings: &RecoverySettings) -> Pacer {
    Pacer::new(settings.congestion, settings.rate).on_line(settings.line_rate)
}

/// The class of a queue pair that knows no peer. The connection manager's messages wait for nobody.
fn first_class(service: Service) -> Class {
    if service == Service::Gsi { Class::Urgent } else { Class::default() }
}

impl QueuePairMachine {
    pub(super) fn new(qpn: Qpn, init: QueuePairInit, recovery: RecoverySettings) -> QueuePairMachine {
        let QueuePairInit { service, pd, capabilities, send_cq, receive_cq, srq, path_mtu } = init;
        let mut responder = AnyResponder::new(service);
        if let Some(srq) = srq {
            responder.inbound().queue = ReceiveQueue::Shared(srq);
        }
        QueuePairMachine {
            connection: Connection {
                qpn,
                service,
                pd,
                remote: Qpn::default(),
                path_mtu,
                path: None,
                acknowledge_dscp: None,
                extension: Extension::new(service, recovery),
                send_cq,
                receive_cq,
            },
            capabilities,
            link_mtu: path_mtu,
            state: State::Reset,
            attributes: Box::default(),
            notify_drained: false,
            requester: Requester::new(service),
            responder,
            acknowledge_is_next: false,
            pacer: pacer(&recovery),
            answer_arrivals: AnswerArrivals::default(),
            notification_point: NotificationPoint::default(),
            paced_until: None,
            class: first_class(service),
            treatment: None,
            lane: None,
            armed: None,
        }
    }

    /// Has what a packet with that opcode needs fetched into the caches.
    #[inline(never)]
    fn prefetch(&self, opcode: Opcode) {
        if let AnyResponder::Reliable(responder) = &self.responder {
            responder.prefetch();
        }
        if opcode.is_response() {
            self.prefetch_requester();
        }
    }

    /// Has what requests need fetched into the caches.
    #[inline(never)]
    fn prefetch_requester(&self) {
        self.requester.prefetch();
        self.pacer.prefetch();
        self.requester.prefetch_parts();
        self.pacer.prefetch_parts();
    }

    fn settings(&self) -> &RecoverySettings {
        &self.connection.extension.settings
    }

    /// The number of the queue pair.
    pub fn qpn(&self) -> Qpn {
        self.connection.qpn
    }

    /// The transport service of the queue pair.
    pub fn service(&self) -> Service {
        self.connection.service
    }

    /// The current state of the queue pair.
    pub fn state(&self) -> State {
        self.state
    }

    /// The number of the peer's queue pair, as last set; 0 before.
    pub fn remote(&self) -> Qpn {
        self.connection.remote
    }

    /// The answer to a query of the queue pair.
    pub fn info(&self) -> QueuePairInfo {
        let set = &*self.attributes;
        let attributes = QpAttributes {
            state: Some(self.state),
            current_state: Some(self.state),
            send_psn: set.send_psn.map(|_| self.requester.posted()),
            receive_psn: set.receive_psn.map(|_| self.responder.expected()),
            ..*set
        };
        QueuePairInfo {
            service: self.connection.service,
            capabilities: self.capabilities,
            srq: self.srq(),
            attributes,
            is_draining: self.state == State::SendQueueDrained && !self.requester.is_drained(),
        }
    }

    /// The PSN that the next new request will take, and the one expected from the peer.
    pub fn psns(&self) -> (Psn, Psn) {
        (self.requester.posted(), self.responder.expected())
    }

    /// The oldest PSN that is not acknowledged, and the PSN of the packet that goes out next in order.
    pub fn send_progress(&self) -> (Psn, Psn) {
        (self.requester.unacknowledged(), self.requester.upcoming())
    }

    /// Moves on, as [`Endpoint::skip`](super::Endpoint::skip).
    pub(super) fn skip(&mut self, sent: Skipped, received: Skipped) {
        self.requester.skip(sent, &self.connection);
        if let AnyResponder::Reliable(responder) = &mut self.responder {
            responder.skip(received);
        }
    }

    /// The queue key of a datagram queue pair; `None` for others.
    pub fn q_key(&self) -> Option<QKey> {
        match &self.responder {
            AnyResponder::Datagram(responder) => Some(responder.q_key()),
            _ => None,
        }
    }

    /// The shared receive queue that it uses; `None` for a receive queue of its own.
    pub fn srq(&self) -> Option<Srq> {
        let inbound = match &self.responder {
            AnyResponder::Reliable(responder) => &responder.server.inbound,
            AnyResponder::Unreliable(responder) => &responder.inbound,
            AnyResponder::Datagram(responder) => &responder.inbound,
        };
        match inbound.queue {
            ReceiveQueue::Shared(srq) => Some(srq),
            ReceiveQueue::Own(_) => None,
        }
    }

    /// Which queue pairs send before it. Of a datagram queue pair, that of its next datagram's address.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The outer headers towards the peer, of a connected queue pair.
    pub(super) fn flow(&self) -> Option<&Flow> {
        self.connection.path.as_ref().map(|path| &path.flow)
    }

    pub(super) fn modify(&mut self, attributes: &QpAttributes, cx: &mut Context<'_>) -> Result<(), ModifyError> {
        let from = self.state;
        let to = attributes.check(self.connection.service, from)?;
        if attributes.path_mtu.is_some_and(|mtu| mtu > self.link_mtu) {
            // Packets of that size could not be sent over the link.
            let (attribute, range) = (Attributes::PATH_MTU, "at most the port's active MTU");
            return Err(ModifyError::OutOfRange { attribute, range });
        }
        let connection = &mut self.connection;
        if let Some(path_mtu) = attributes.path_mtu {
            connection.path_mtu = path_mtu;
            connection.extension.fit(path_mtu);
        }
        connection.remote = attributes.destination.unwrap_or(connection.remote);
        self.notify_drained = attributes.notify_drained.unwrap_or(self.notify_drained && to == from);
        *self.attributes = self.attributes.overlaid(attributes);
        self.apply_treatment();
        self.requester.configure(attributes, &self.connection);
        self.responder.configure(attributes, &self.connection);
        traced!(debug, "modified", qpn = self.qpn(), from = format_args!("{from:?}"), to = format_args!("{to:?}"));
        self.state = to;
        if !to.notifies() {
            self.notification_point.forget();
        }
        match to {
            State::Reset => self.reset(),
            State::Error => {
                // A queue pair that is in error already has flushed, and reported it.
                if from != State::Error {
                    self.flush(cx);
                }
                // The program wants its memory back.
                if let AnyResponder::Reliable(responder) = &mut self.responder
                    && !mutated!("reads-are-answered-in-error", by "uroce --test late_reads a_queue_pair_that_its_program")
                {
                    responder.drop_reads();
                }
            }
            State::SendQueueDrained => self.check_drained(cx),
            _ => {}
        }
        Ok(())
    }

    /// Decides what its program does not: until RESET, whatever is modified.
    pub(super) fn treat(&mut self, treatment: Treatment) {
        self.treatment = (treatment != Treatment::default()).then(|| Box::new(treatment));
        self.apply_treatment();
    }

    fn apply_treatment(&mut self) {
        let treatment = self.treatment.as_deref().copied().unwrap_or_default();
        if let Some(asked) = self.attributes.path {
            let path = treatment.path(asked);
            self.class = treatment.class_on(&path);
            self.connection.path = Some(path);
        }
        self.pacer.set_cap([self.settings().rate, treatment.cap].into_iter().flatten().min_by_key(|rate| rate.bytes()));
        let owes_no_data = self.attributes.max_dest_rd_atomic == Some(0);
        self.connection.acknowledge_dscp = treatment.acknowledge_dscp.filter(|_| owes_no_data);
    }

    /// Discards everything, without a completion (IBTA 10.3.1.1). Completions that are not polled are removed, too, as
    /// providers for RNICs do. The queue pair can be reused at once, and earlier completions would be taken for new
    /// ones.
    fn reset(&mut self) {
        if !mutated!("reset-leaves-completions", by "uroce --test services a_reset_leaves_no_completion") {
            self.forget_completions();
        }
        let srq = self.srq();
        if !mutated!("reset-forgets-no-sends", by "uroce --test services a_reset_forgets_what") {
            self.requester = Requester::new(self.connection.service);
        }
        if !mutated!("reset-forgets-no-receives", by "uroce --test services a_reset_forgets_what") {
            self.responder = AnyResponder::new(self.connection.service);
        }
        if let Some(srq) = srq {
            self.responder.inbound().queue = ReceiveQueue::Shared(srq);
        }
        *self.attributes = QpAttributes::default();
        self.connection.path = None;
        self.treat(Treatment::default());
        self.class = first_class(self.connection.service);
        self.connection.extension = Extension::new(self.connection.service, *self.settings());
        self.pacer = pacer(self.settings());
        self.answer_arrivals = AnswerArrivals::default();
    }

    /// Removes its completions from its completion queues.
    pub(super) fn forget_completions(&self) {
        for cq in [&self.connection.send_cq, &self.connection.receive_cq] {
            cq.forget(self.connection.qpn);
        }
    }

    /// Whether a completion queue of it is in error, and it has not gone to the error state itself.
    pub(super) fn has_failed_queue(&self) -> bool {
        let queues = [&self.connection.send_cq, &self.connection.receive_cq];
        !matches!(self.state, State::Reset | State::Error) && queues.iter().any(|cq| cq.has_overflowed())
    }

    /// Goes to the error state, since a completion queue of it is in error. No completion can report why (IBTA
    /// 11.6.3.3).
    pub(super) fn fail_for_its_queue(&mut self, cx: &mut Context<'_>) {
        self.fail(cx);
        cx.push_event(Event::QueuePairFatal(self.connection.qpn));
    }

    /// Whether it or its peer uses several paths.
    pub(super) fn wants_multipath(&self) -> bool {
        self.connection.extension.wants_paths() && self.connection.path.is_some()
    }

    /// The state of its paths, on a device whose further interfaces have the addresses `local_rails`. `None` unless it
    /// or its peer uses several.
    pub(super) fn multipath(
        &self,
        local_rails: &[Vec<IpAddr>],
        port_is_imposed: bool,
        now: Instant,
    ) -> Option<Box<Multipath>> {
        let path = self.connection.path.as_ref().filter(|_| self.wants_multipath())?;
        Some(Box::new(Multipath::new(self.settings(), path, local_rails, port_is_imposed, now)))
    }

    /// Memory that it holds for packets that are in flight or arrived early, in bytes.
    pub fn recovery_memory_bytes(&self) -> usize {
        let early = match &self.responder {
            AnyResponder::Reliable(responder) => responder.memory_bytes(),
            _ => 0,
        };
        self.requester.memory_bytes() + early
    }

    /// Bytes of requests that arrived early and wait.
    pub fn waiting_bytes(&self) -> usize {
        match &self.responder {
            AnyResponder::Reliable(responder) => responder.waiting_bytes(),
            _ => 0,
        }
    }

    /// Whether the peer has shown that it understands docs/EXTENSIONS.md, or is assumed to.
    pub fn is_extended(&self) -> bool {
        self.connection.extension.is_on()
    }

    /// Completes everything that is posted as flushed (IBTA 10.3.1.6). Answers to requests that were served before stay
    /// owed, and so does the NAK that led here.
    fn flush(&mut self, cx: &mut Context<'_>) {
        self.state = State::Error;
        self.requester.flush(&self.connection, cx);
        self.responder.inbound().flush(&self.connection, cx);
        if let AnyResponder::Reliable(responder) = &mut self.responder {
            responder.drop_early();
        }
        if let Some(srq) = self
            .srq()
            .filter(|_| !mutated!("srq-without-last-event", by "uroce --test services the_last_receive_request"))
        {
            cx.push_event(Event::LastWqeReached(self.connection.qpn, srq));
        }
    }

    /// Goes to the error state. A completion has reported why, or the event of a refused request does (IBTA 11.6.3.2).
    fn fail(&mut self, cx: &mut Context<'_>) {
        if self.state != State::Error {
            traced!(warn, "failed: the state is now Error", qpn = self.connection.qpn);
            self.flush(cx);
            if mutated!("ordinary-error-is-fatal", by "uroce --test statuses naks_say_what") {
                cx.push_event(Event::QueuePairFatal(self.connection.qpn));
            }
        }
    }

    /// Handles a failed send request. Unreliable services stop only sending (IBTA 10.3.1.5).
    fn fail_sending(&mut self, cx: &mut Context<'_>) {
        let is_fatal = mutated!("unreliable-send-error-is-fatal", by "uroce --test services an_unreliable_send_queue");
        if self.connection.service == Service::Rc || is_fatal {
            self.fail(cx);
        } else if self.state.sends() {
            traced!(warn, "sending failed: the state is now SendQueueError", qpn = self.connection.qpn);
            self.state = State::SendQueueError;
            self.requester.flush(&self.connection, cx);
        }
    }

    /// Reports, once, that the send queue is drained (IBTA 10.3.1.4).
    fn check_drained(&mut self, cx: &mut Context<'_>) {
        if self.state == State::SendQueueDrained && self.notify_drained && self.requester.is_drained() {
            self.notify_drained = mutated!("drained-is-told-twice", by "uroce --test services a_drained_send_queue");
            cx.push_event(Event::SendQueueDrained(self.connection.qpn));
        }
    }

    /// Takes `request` out of its place if it is posted.
    pub(super) fn post_send(&mut self, request: &mut SendRequest, cx: &mut Context<'_>) -> Result<(), PostError> {
        match self.state {
            State::ReadyToSend | State::SendQueueDrained | State::SendQueueError | State::Error => {}
            other => return Err(PostError::State(other)),
        }
        if cx.is_cold {
            self.prefetch_requester();
        }
        if self.requester.len() >= self.capabilities.max_send_requests {
            return Err(PostError::Full(self.capabilities.max_send_requests));
        }
        self.requester.post(request, self.connection.path_mtu)?;
        if self.connection.service == Service::Ud {
            self.take_class_of_datagram();
        }
        // The connection manager's messages set up what is to come: nobody waits for each of them.
        if self.class == Class::Urgent
            && self.connection.service != Service::Gsi
            && !mutated!("urgent-is-not-told", by "uroce --test classes who_is_to_wait_for_urgent_messages")
        {
            cx.urgent.posted(cx.now);
        }
        if matches!(self.state, State::Error | State::SendQueueError) {
            self.requester.flush(&self.connection, cx);
        }
        Ok(())
    }

    pub(super) fn post_receive(&mut self, request: ReceiveRequest, cx: &mut Context<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        debug_assert!(request.sges.len() <= MAX_SGE);
        let ReceiveQueue::Own(queue) = &mut self.responder.inbound().queue else { return Err(PostError::HasSrq) };
        if queue.len() >= self.capabilities.max_receive_requests {
            return Err(PostError::Full(self.capabilities.max_receive_requests));
        }
        queue.push_back(request);
        if self.state == State::Error {
            self.responder.inbound().flush(&self.connection, cx);
        }
        Ok(())
    }

    /// Takes a packet whose ICRC, keys and addresses are valid.
    pub(super) fn handle_packet(&mut self, mut packet: Packet<'_>, ip: &IpHeader<'_>, way: Way, cx: &mut Context<'_>) {
        let opcode = packet.bth().opcode();
        if cx.is_cold {
            self.prefetch(opcode);
        }
        if opcode == Opcode::CNP {
            self.take_notification(&packet, cx);
            return;
        }
        let admitted = match self.connection.service {
            Service::Rc => match self.admit(&mut packet, cx) {
                Some(admitted) => admitted,
                None => return,
            },
            _ => Admitted::default(),
        };
        let is_marked = ip.is_marked();
        if is_marked {
            self.take_mark(cx);
        }
        if opcode.is_response() {
            self.handle_answer((&packet, admitted), is_marked, way, cx);
        } else {
            self.handle_request((&mut packet, admitted), is_marked, ip, cx);
        }
    }

    /// Takes the mark of a packet that arrived with «congestion experienced»: the peer must learn of it, by a CNP unless
    /// it finds marks in our acknowledges and reports.
    fn take_mark(&mut self, cx: &mut Context<'_>) {
        if self.connection.service == Service::Rc && self.state.notifies() {
            cx.counters.np_ecn_marked_roce_packets += 1;
            self.notification_point.take(cx.now);
        }
    }

    /// Takes a CNP. A known peer sends none: it would not carry our nonce, and anybody can forge it.
    fn take_notification(&mut self, packet: &Packet<'_>, cx: &mut Context<'_>) {
        if !self.state.receives() {
            cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.wrong_state);
            return;
        }
        cx.counters.rcvd_cnp += 1;
        let is_reliable = self.connection.service == Service::Rc;
        let counts = is_reliable && self.connection.extension.uses_notifications() && self.pacer.notified(cx.now);
        cx.counters.rp_cnp_handled += u64::from(counts);
        cx.counters.rp_cnp_ignored += u64::from(!counts);
    }

    /// Whether a CNP is owed to the peer.
    fn owes_notification(&self) -> bool {
        let is_owed = self.notification_point.is_owed() && self.state.notifies();
        is_owed && self.connection.extension.uses_notifications()
    }

    /// Takes an acknowledge, a READ response or an atomic acknowledge.
    fn handle_answer(
        &mut self,
        (packet, admitted): (&Packet<'_>, Admitted),
        is_marked: bool,
        way: Way,
        cx: &mut Context<'_>,
    ) {
        let Admitted { has_tag, may_have_trailer, is_believed } = admitted;
        let opcode = packet.bth().opcode();
        let trailer = if may_have_trailer { packet.acknowledge_trailer() } else { None };
        if may_have_trailer && trailer.is_none() && opcode == Opcode::RC_ACKNOWLEDGE && !packet.payload().is_empty() {
            cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.bad_trailer);
            return;
        }
        match &trailer {
            Some(AcknowledgeTrailer::Hello(hello)) => self.take_hello(hello, packet.bth().psn(), has_tag, cx),
            _ if has_tag => self.take_tag(),
            _ => {}
        }
        let trailer = trailer.as_ref().filter(|_| is_believed);
        let is_about_paths = matches!(trailer, Some(AcknowledgeTrailer::Probe(_) | AcknowledgeTrailer::Addresses(_)));
        match trailer {
            Some(AcknowledgeTrailer::Probe(probe)) => self.take_probe(probe, way, cx),
            Some(AcknowledgeTrailer::Addresses(list)) => self.take_addresses(list, cx),
            Some(AcknowledgeTrailer::Answers(report)) => self.take_report(report, cx),
            Some(AcknowledgeTrailer::Measured(_, telemetry)) => self.pacer.measured(telemetry),
            Some(AcknowledgeTrailer::Sack(_) | AcknowledgeTrailer::Hello(_)) | None => {}
        }
        let has_data = opcode.operation() == Operation::ReadResponse && !packet.payload().is_empty();
        if has_tag && is_believed && has_data {
            self.answer_arrivals.take(packet.bth(), is_marked, cx.now);
        }
        if !self.state.sends() {
            cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.wrong_state);
            return;
        }
        if !is_about_paths && let Some(multipath) = cx.multipath {
            multipath.set.touch(cx.now);
        }
        let handled = self.requester.handle_response(packet, trailer, &self.connection, cx);
        self.take_consequences(handled, cx);
    }

    /// Does what follows from an answer that the requester has taken.
    fn take_consequences(&mut self, handled: Result<(), Fatal>, cx: &mut Context<'_>) {
        if handled.is_err() {
            self.fail(cx);
        }
        self.control_congestion(cx);
        self.check_drained(cx);
    }

    /// Takes a request or a datagram.
    fn handle_request(
        &mut self,
        (packet, admitted): (&mut Packet<'_>, Admitted),
        is_marked: bool,
        ip: &IpHeader<'_>,
        cx: &mut Context<'_>,
    ) {
        let Admitted { has_tag, may_have_trailer, is_believed } = admitted;
        if !self.state.receives() {
            cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.wrong_state);
            return;
        }
        let mut trailer = RequestTrailer::default();
        if may_have_trailer && !packet.move_trailer(&mut trailer) {
            cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.bad_trailer);
            return;
        }
        let trailer = may_have_trailer.then_some(&trailer);
        let carried = trailer.and_then(|trailer| trailer.acknowledge);
        if let Some(carried) = carried.filter(|_| has_tag && is_believed && self.state.sends()) {
            let handled = self.requester.handle_carried(&carried, &self.connection, cx);
            self.take_consequences(handled, cx);
            if !self.state.receives() {
                // The acknowledge let an earlier failure be told.
                cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.wrong_state);
                return;
            }
        }
        if has_tag {
            self.take_tag();
            if trailer.is_some_and(|trailer| trailer.attempt == 0) {
                self.connection.extension.new_request_has_tag(packet.bth().psn());
            }
        }
        let handled = match &mut self.responder {
            AnyResponder::Reliable(responder) => {
                responder.handle_request(packet, trailer, is_marked, &self.connection, cx)
            }
            AnyResponder::Unreliable(responder) => responder.handle_request(packet, &self.connection, cx),
            AnyResponder::Datagram(responder) => responder.handle_request(packet, ip, &self.connection, cx),
        };
        if handled.is_err() {
            self.fail(cx);
        }
    }

    /// Checks whether a packet of a reliable connection can be the peer's, as far as its tag and its PSN show, and
    /// learns what it reports of the extension. `None` for a packet that is refused, and counted.
    #[inline]
    fn admit(&mut self, packet: &mut Packet<'_>, cx: &mut Context<'_>) -> Option<Admitted> {
        let (requester, responder) = (&self.requester, &self.responder);
        let next = |is_answer| if is_answer { requester.unacknowledged() } else { responder.expected() };
        let admitted = match self.connection.extension.admit(packet, next) {
            Ok(admitted) => admitted,
            Err(Refused::NoTag) => {
                cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.bad_trailer);
                return None;
            }
            Err(Refused::WrongTag) => {
                cx.refuse(self.connection.qpn, packet.bth().psn(), |c| &mut c.wrong_tag);
                return None;
            }
        };
        let packet = &*packet;
        let is_settled = self.connection.extension.is_acquainted();
        if !is_settled
            && (self.is_plausible(packet)
                || mutated!("offer-of-any-psn-taken", by "uroce --test strangers an_offer_with_a_psn"))
        {
            let is_asked = packet.bth().opcode().is_response() && self.requester.has_offered(packet.bth().psn());
            let memory = &mut *cx.memory;
            self.connection.extension.observe(packet, is_asked, cx.now, || memory.keys().next_u32());
        }
        Some(admitted)
    }

    /// Whether the peer can have sent that now. An answer must be in flight, or have been so recently. A request must
    /// be near the expected one, or be one that can be requested again.
    fn is_plausible(&self, packet: &Packet<'_>) -> bool {
        let psn = packet.bth().psn();
        if packet.bth().opcode().is_response() {
            psn.is_before(self.requester.sent()) && psn.since(self.requester.unacknowledged()) >= -WINDOW_PACKETS
        } else {
            psn.since(self.responder.expected()).abs() <= WINDOW_PACKETS
                || (self.responder.is_saved(psn)
                    && !mutated!("offer-that-asks-again-not-heard", by "uroce --test strangers an_offer_that_asks_again"))
        }
    }

    /// Takes a hello from an acknowledge with that PSN.
    fn take_hello(&mut self, hello: &Hello, psn: Psn, has_tag: bool, cx: &mut Context<'_>) {
        let (from_now, unacknowledged) = (self.not_sent_yet(), self.requester.unacknowledged());
        let may_be_now = match from_now {
            Tagged::From(sent) => {
                psn.is_before(sent) && psn.since(unacknowledged) >= -(RecoverySettings::MAX_WINDOW as i32)
            }
            Tagged::None | Tagged::All => true,
        };
        let may_be_now =
            may_be_now || mutated!("hello-of-any-psn-taken", by "uroce --test strangers a_hello_with_a_psn");
        if !self.state.receives() || !may_be_now {
            cx.refuse(self.connection.qpn, psn, |c| &mut c.stray_response);
            return;
        }
        let memory = &mut *cx.memory;
        let draw = || memory.keys().next_u32();
        if self.connection.extension.take_hello(hello, has_tag, from_now, cx.now, draw) {
            self.requester.repeat_selectively(&self.connection, self.pacer.round_trip(), cx.now);
            if let AnyResponder::Reliable(responder) = &mut self.responder {
                responder.met_peer(&self.connection);
            }
        }
    }

    /// Takes that a packet with our tag arrived: what answers our requests from now on will have one.
    fn take_tag(&mut self) {
        if self.connection.extension.misses_tag() {
            self.connection.extension.tag_came(self.not_sent_yet());
        }
    }

    /// The requests that have not been sent: all, while the attributes do not set their first PSN.
    fn not_sent_yet(&self) -> Tagged {
        if self.state.sends() { Tagged::From(self.requester.sent()) } else { Tagged::All }
    }

    /// Takes a probe of a path, which must be answered, or the answer to one of ours.
    fn take_probe(&mut self, probe: &PathProbe, way: Way, cx: &mut Context<'_>) {
        self.connection.extension.has_named_paths = true;
        // From now on there are several paths; the peer will probe again.
        let Some(multipath) = cx.multipath.as_mut().filter(|_| self.state.receives()) else { return };
        if !probe.is_answer {
            cx.counters.answer_overflow += u64::from(!multipath.probed(probe, way, cx.now));
            return;
        }
        let delay = Duration::from_micros(probe.delay_us.into());
        match multipath.set.answered(probe.path, probe.token, delay, cx.now) {
            Some(answered) => {
                if answered.is_back {
                    let good = multipath.set.good();
                    traced!(debug, "path good", qpn = self.connection.qpn, path = probe.path, good = good);
                }
                self.requester.path_answered(probe.path, answered);
            }
            None => cx.counters.stray_probe += 1,
        }
    }

    /// Takes the peer's list of further addresses.
    fn take_addresses(&mut self, list: &AddressList, cx: &mut Context<'_>) {
        self.connection.extension.has_named_paths = true;
        let Some(multipath) = cx.multipath.as_mut().filter(|_| self.state.receives()) else { return };
        let Some(path) = &self.connection.path else { return };
        cx.counters.refused_addresses += u64::from(!multipath.take_addresses(list, path, cx.now));
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if let Some(multipath) = cx.multipath.as_mut().filter(|_| self.state.receives()) {
            let before = multipath.set.good();
            multipath.handle_timeout(cx.now);
            let good = multipath.set.good();
            if good < before {
                traced!(debug, "path dark: its probes are not answered", qpn = self.connection.qpn, good = good);
            }
        }
        self.end_wait(cx.now);
        if let AnyResponder::Reliable(responder) = &mut self.responder
            && let Some(answers) = responder.answers_in_flight_mut()
        {
            answers.expire(cx.now);
        }
        if self.hello_deadline().is_some() {
            self.connection.extension.handle_timeout(cx.now);
        }
        if self.state.sends() && self.requester.handle_timeout(&self.connection, cx).is_err() {
            self.fail(cx);
        }
        self.control_congestion(cx);
    }

    /// Ends the wait for the pacer, if its time has come.
    fn end_wait(&mut self, now: Instant) {
        if let Some(at) = self.paced_until.take_if(|at| *at <= now) {
            self.pacer.was_late(now - at, now);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    pub(super) fn deadline(&self, multipath: Option<&Multipath>) -> Option<Instant> {
        let requester = self.requester.deadline().filter(|_| self.state.sends());
        let paths = multipath.filter(|_| self.state.receives()).and_then(Multipath::deadline);
        earliest([requester, self.paced_until, paths, self.answers_deadline(), self.hello_deadline()])
    }

    /// When the hello to a peer that is not known yet is repeated, while requests are in flight: what is lost of them waits for
    /// its answer.
    fn hello_deadline(&self) -> Option<Instant> {
        self.connection.extension.deadline().filter(|_| self.state.sends() && self.requester.is_in_flight())
    }

    /// When a full congestion window need not wait for answers in flight any more.
    fn answers_deadline(&self) -> Option<Instant> {
        let AnyResponder::Reliable(responder) = &self.responder else { return None };
        responder.answers_in_flight()?.expires_at().filter(|_| !self.window().has_room())
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) can have a packet.
    pub(super) fn may_transmit(&self, multipath: Option<&Multipath>) -> bool {
        if self.owes_hello() || self.answer_arrivals.is_owed() || self.owes_notification() {
            return true;
        }
        if self.state.receives() && multipath.is_some_and(Multipath::may_transmit) {
            return true;
        }
        if self.paced_until.is_some() {
            // Everything waits, except answers that are exempt from the rate.
            return matches!(&self.responder, AnyResponder::Reliable(responder) if responder.owes_at_once());
        }
        let answers = match &self.responder {
            AnyResponder::Reliable(responder) => {
                responder.owes_at_once() || (responder.has_answers() && has_room_for_answers(responder, self.window()))
            }
            AnyResponder::Unreliable(_) | AnyResponder::Datagram(_) => false,
        };
        answers || self.may_request()
    }

    /// Whether a plain acknowledge is all that it has to send.
    pub(super) fn owes_only_an_acknowledge(&self) -> bool {
        let owes_more = self.owes_hello() || self.owes_notification();
        self.owes_acknowledge() && !owes_more && !self.may_request()
    }

    /// Bytes of packets in flight: requests, and answers to READs.
    fn in_flight_bytes(&self) -> u64 {
        let answers = match &self.responder {
            AnyResponder::Reliable(responder) => responder.answers_in_flight().map_or(0, AnswerFlight::bytes),
            AnyResponder::Unreliable(_) | AnyResponder::Datagram(_) => 0,
        };
        self.requester.in_flight_bytes() + answers
    }

    /// What the congestion controller does and knows; `None` before it sends data, and without a controller.
    pub fn flow_status(&self) -> Option<FlowStatus> {
        self.pacer.status(self.in_flight_bytes())
    }

    /// What decides how fast it sends.
    pub fn congestion(&self) -> CongestionControl {
        self.settings().congestion
    }

    /// How it recovers from losses with this peer; `None` for services that retransmit nothing.
    pub fn recovery_in_use(&self) -> Option<&'static str> {
        (self.connection.service == Service::Rc).then(|| self.requester.recovery_name())
    }

    /// Tells the congestion controller what became of packets.
    fn control_congestion(&mut self, cx: &Context<'_>) {
        if !self.pacer.is_controlled() {
            return;
        }
        let now = cx.now;
        let gives_way = matches!(self.class, Class::Bulk | Class::Scavenger);
        self.pacer.set_scavenger(self.class == Class::Scavenger, now);
        self.pacer.set_beside_urgent(gives_way && cx.urgent.are_under_way(now), now);
        let in_flight_bytes = self.in_flight_bytes();
        self.pacer.take(&self.requester.progress(), in_flight_bytes, now);
        if let AnyResponder::Reliable(responder) = &mut self.responder
            && let Some(answers) = responder.answers_in_flight_mut()
        {
            self.pacer.take(&answers.progress(), in_flight_bytes, now);
        }
    }

    /// Takes the peer's report of what arrived of our answers to READs.
    fn take_report(&mut self, report: &AnswerReport, cx: &mut Context<'_>) {
        if let AnyResponder::Reliable(responder) = &mut self.responder
            && let Some(answers) = responder.answers_in_flight_mut()
        {
            answers.take(report, cx.now);
        }
    }

    /// What the congestion window holds now.
    fn window(&self) -> Window {
        Window { in_flight: self.in_flight_bytes(), limit: self.pacer.limit_bytes() }
    }

    /// Whether a new request packet can go out. One more than the window goes when a smaller window leaves nothing that asks
    /// for an acknowledge: it asks, and nothing else would move on.
    fn may_send_new(&self, window: Window) -> bool {
        window.has_room() || self.requester.is_unanswered()
    }

    /// Whether a request packet can go out.
    fn may_request(&self) -> bool {
        self.state.sends() && self.requester.may_transmit(|| self.may_send_new(self.window()))
    }

    fn owes_hello(&self) -> bool {
        self.state.receives() && self.connection.extension.owes_hello()
    }

    fn owes_acknowledge(&self) -> bool {
        matches!(&self.responder, AnyResponder::Reliable(responder) if responder.owes_only_an_acknowledge())
    }

    /// Whether packets keep to a rate: towards peers that understand or offer the extension, and with some controllers,
    /// or a cap of its own, towards all.
    fn is_paced(&self) -> bool {
        let is_capped = self.treatment.as_ref().is_some_and(|treatment| treatment.cap.is_some());
        let paces_plain_peers = is_capped || self.settings().congestion.paces_plain_peers();
        let is_always = self.connection.service == Service::Rc && paces_plain_peers;
        is_always || self.connection.extension.is_on_or_offered()
    }

    /// Writes at most so many packets to `sink`, and no more after one that concerns others: its class is another, or the
    /// completion queue that it shares is in error.
    pub(super) fn transmit(&mut self, most: u32, sink: &mut dyn Sink, cx: &mut Context<'_>) -> Sent {
        let mut sent = Sent { packets: 0, bytes: 0, end: End::Turn };
        // What is sent does not change it.
        let is_paced = self.is_paced();
        while sent.packets < most && self.lane == Some(self.class) && !cx.has_lost_completion {
            let Some(out) = sink.place() else { return Sent { end: End::NoPlace, ..sent } };
            let Some(transmit) = self.poll_transmit(is_paced, out, cx) else {
                return Sent { end: End::NothingLeft, ..sent };
            };
            sink.take(transmit);
            sent.packets += 1;
            sent.bytes += transmit.len;
        }
        sent
    }

    /// Starts the congestion controller, if it is not: of a queue pair with one path in the company of others to the same peer.
    #[inline]
    fn start_controller(&mut self, cx: &mut Context<'_>) {
        if self.pacer.awaits_start() {
            self.begin_control(cx);
        }
    }

    #[cold]
    fn begin_control(&mut self, cx: &mut Context<'_>) {
        let settings = self.settings();
        let has_company = settings.congestion.keeps_company() && settings.paths == 1 && cx.multipath.is_none();
        let flow = self.connection.path.filter(|_| has_company).map(|path| path.flow);
        let between = flow.map(|flow| Between { addresses: flow.addresses, dscp: flow.traffic_class >> 2 });
        let seat = between.and_then(|between| cx.companies.join(between));
        self.pacer.start(seat);
    }

    /// Takes what part of the rate it uses: paths that carry nothing take their share with them.
    fn take_share(&mut self, cx: &Context<'_>) {
        let (good, count) = match &cx.multipath {
            Some(multipath) => (multipath.set.good(), multipath.set.count()),
            None if self.connection.extension.is_on_or_offered() => (1, self.settings().paths),
            None => (1, 1),
        };
        self.pacer.set_share(good.into(), count.into());
    }

    /// Writes the next packet to `out`; `None` when there is none. Answers go before requests, except that one request
    /// goes before a plain acknowledge: the peer waits for it when messages alternate.
    fn poll_transmit(&mut self, is_paced: bool, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        if self.owes_hello()
            && let Some(transmit) = self.poll_hello(out, cx)
        {
            return Some(transmit);
        }
        if self.owes_notification()
            && let Some(transmit) = self.poll_notification(out, cx)
        {
            return Some(transmit);
        }
        if self.answer_arrivals.is_owed()
            && let Some(transmit) = self.poll_report(out, cx)
        {
            return Some(transmit);
        }
        if !is_paced {
            let transmit = self.poll_unpaced(out, cx)?;
            if transmit.is_data {
                self.start_controller(cx);
                // A company knows what its flows have in flight. Others hear of what became of it only.
                if self.settings().congestion.keeps_company() {
                    self.pacer.sent_unpaced(cx.now, transmit.len);
                }
            }
            return Some(transmit);
        }
        if cx.multipath.as_ref().is_some_and(|multipath| multipath.may_transmit())
            && let Some(transmit) = self.poll_paths(out, cx)
        {
            // They wait for nobody, and run into no debt that others would have to pay.
            if self.pacer.wait(cx.now).is_none() {
                self.pacer.sent_without_data(cx.now, transmit.len);
            }
            return Some(transmit);
        }
        self.take_share(cx);
        self.end_wait(cx.now);
        self.paced_until = self.pacer.wait(cx.now);
        if self.paced_until.is_some() {
            return match &mut self.responder {
                AnyResponder::Reliable(responder) if responder.owes_at_once() => {
                    responder.poll_owed(out, &self.connection, cx)
                }
                _ => None,
            };
        }
        let transmit = self.poll_unpaced(out, cx)?;
        let is_data = transmit.is_data
            || mutated!("acknowledges-have-a-controller", by "uroce --test congestion a_side_that_only");
        match is_data {
            true => {
                self.start_controller(cx);
                self.pacer.sent(cx.now, transmit.len);
            }
            false => self.pacer.sent_without_data(cx.now, transmit.len),
        }
        Some(transmit)
    }

    /// Writes what is owed for the state of the paths: answers to probes, our further addresses, and probes. Each is a
    /// plain acknowledge, too.
    #[inline(never)]
    fn poll_paths(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        let (connection, AnyResponder::Reliable(responder)) = (&self.connection, &self.responder) else { return None };
        let base = connection.path.as_ref().filter(|_| self.state.receives())?;
        loop {
            let multipath = cx.multipath.as_mut()?;
            let (mut path, mut trailer) = (*base, arrayvec::ArrayVec::<u8, { AddressList::MAX_BYTES }>::new());
            let has_hop = if let Some((answer, way)) = multipath.poll_answer(cx.now) {
                trailer.extend(answer.to_bytes());
                multipath.turn_back(&mut path, way)
            } else if let Some(list) = multipath.poll_addresses() {
                trailer = list.to_bytes();
                multipath.turn(&mut path, multipath.set.quickest())
            } else {
                let probe = multipath.set.poll_probe(cx.now, || cx.memory.keys().next_u32())?;
                let Probe { path: number, token } = probe;
                trailer.extend(PathProbe { path: number, is_answer: false, delay_us: 0, token }.to_bytes());
                multipath.turn(&mut path, number)
            };
            // The rail can have lost its next hop meanwhile.
            if !has_hop {
                continue;
            }
            let headers = responder.acknowledge_of_all(connection);
            let packet =
                Outgoing { trailer: &trailer, ..Outgoing::headers(headers) }.tagged(connection.extension.tag());
            let Ok(written) = packet.write(&path, out, cx, no_payload);
            return written;
        }
    }

    /// Writes the hello that is owed, which is a plain acknowledge, too.
    fn poll_hello(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        let (hello, tag) = self.connection.extension.poll_hello()?;
        let (connection, AnyResponder::Reliable(responder)) = (&self.connection, &self.responder) else { return None };
        let path = connection.path?;
        let headers = responder.acknowledge_of_answered(connection);
        let trailer = hello.to_bytes();
        let packet = Outgoing { trailer: &trailer, ..Outgoing::headers(headers) }.tagged(Some(tag));
        let Ok(written) = packet.write(&path, out, cx, no_payload);
        written
    }

    /// Writes the CNP that is owed. It is the IBTA's, without anything of the extension.
    fn poll_notification(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        self.notification_point.sent(cx.now);
        let path = self.connection.path?;
        let path = Path { flow: Cnp::flow(&path.flow), ..path };
        let headers = Cnp { destination: self.connection.remote }.headers();
        let packet = Outgoing { payload_bytes: Cnp::RESERVED_BYTES, ..Outgoing::headers(headers) };
        let fill = |_: &MemoryTable, out: &mut [u8]| {
            out.fill(0);
            Ok::<_, Infallible>(())
        };
        let Ok(written) = packet.write(&path, out, cx, fill);
        cx.counters.np_cnp_sent += u64::from(written.is_some());
        written
    }

    /// Writes the report of answers that is owed, which is a plain acknowledge, too.
    fn poll_report(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        let report = self.answer_arrivals.poll(cx.now)?;
        let (connection, AnyResponder::Reliable(responder)) = (&self.connection, &self.responder) else { return None };
        let headers = responder.acknowledge_of_answered(connection);
        let packet = Outgoing { trailer: &report.to_bytes(), ..Outgoing::headers(headers) };
        let Ok(written) = connection.write(cx.quickest_path(), out, packet, cx, no_payload);
        written
    }

    fn poll_unpaced(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        if !self.has_answers() {
            self.acknowledge_is_next = false;
            return self.poll_request(&Cell::default(), out, cx);
        }
        if !self.acknowledge_is_next && self.owes_acknowledge() {
            self.acknowledge_is_next = true;
            if let Some(transmit) = self.poll_request_with_acknowledge(out, cx) {
                return Some(transmit);
            }
        }
        self.acknowledge_is_next = false;
        let window = self.window();
        // Answers go out even in the error state: the NAK that led there is among them.
        let is_full =
            matches!(&self.responder, AnyResponder::Reliable(responder) if !has_room_for_answers(responder, window));
        if is_full && let AnyResponder::Reliable(responder) = &mut self.responder {
            let owed = if responder.owes_at_once() { responder.poll_owed(out, &self.connection, cx) } else { None };
            return owed.or_else(|| self.poll_request(&Cell::default(), out, cx));
        }
        while let AnyResponder::Reliable(responder) = &mut self.responder {
            match responder.poll_transmit(out, &self.connection, cx) {
                Ok(Some(transmit)) => return Some(transmit),
                Ok(None) => break,
                // The NAK is the next answer.
                Err(Fatal) => self.fail(cx),
            }
        }
        self.poll_request(&Cell::default(), out, cx)
    }

    /// Whether anything is owed to the peer beside what is of the extension.
    fn has_answers(&self) -> bool {
        matches!(&self.responder, AnyResponder::Reliable(responder) if responder.has_answers())
    }

    /// Writes the next request, which carries the acknowledge that is owed, if the peer takes it so, and there is room. Otherwise
    /// that goes next.
    fn poll_request_with_acknowledge(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        let AnyResponder::Reliable(responder) = &self.responder else { return None };
        if !self.may_request() {
            return None;
        }
        let acknowledge = responder.acknowledge_to_carry(&self.connection, cx);
        let left = Cell::new(acknowledge);
        let transmit = self.poll_request(&left, out, cx)?;
        if acknowledge.is_some()
            && left.get().is_none()
            && let AnyResponder::Reliable(responder) = &mut self.responder
        {
            responder.acknowledge_was_carried();
            self.acknowledge_is_next = false;
        }
        Some(transmit)
    }

    /// A datagram queue pair has the class of the next datagram.
    #[cold]
    fn take_class_of_datagram(&mut self) {
        if let Some(destination) = self.requester.next_destination() {
            self.class = Class::of_traffic_class(destination.path.flow.traffic_class);
        }
    }

    /// Writes the next acknowledge, NAK or result of an atomic that is owed.
    pub(super) fn poll_owed(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Option<Transmit> {
        match &mut self.responder {
            AnyResponder::Reliable(responder) => responder.poll_owed(out, &self.connection, cx),
            AnyResponder::Unreliable(_) | AnyResponder::Datagram(_) => None,
        }
    }

    fn poll_request(
        &mut self,
        acknowledge: &Cell<Option<CarriedAcknowledge>>,
        out: &mut [u8],
        cx: &mut Context<'_>,
    ) -> Option<Transmit> {
        // Each turn ends with a poll that finds nothing.
        if !self.state.sends() || !self.requester.may_transmit(|| true) {
            return None;
        }
        self.start_controller(cx);
        let window = self.window();
        let new_messages = self.state != State::SendQueueDrained;
        let mtu = self.connection.path_mtu.bytes() as u64;
        // Of more packets, one asks for an acknowledge anyway.
        let is_last = (window.in_flight < ASKS_WITHIN * mtu && !window.has_room_beside(mtu)) || !window.has_room();
        let next_at = if self.pacer.can_ask_late() && self.is_paced() {
            self.pacer.next_after(cx.now, mtu as usize)
        } else {
            cx.now
        };
        let new_packets = self.may_send_new(window);
        let admission = Admission { new_packets, new_messages, is_last, next_at, acknowledge };
        match self.requester.poll_transmit(admission, out, &self.connection, cx) {
            Ok(transmit) => {
                if self.connection.service == Service::Ud {
                    self.take_class_of_datagram();
                }
                self.check_drained(cx);
                transmit
            }
            Err(Fatal) => {
                self.fail_sending(cx);
                None
            }
        }
    }
}

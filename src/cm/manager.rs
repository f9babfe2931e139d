use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use crate::time::{Duration, Instant, earliest};
use crate::wire::{Addresses, Qpn};

use super::connection::{Connection, Id, State, time_of};
use super::counters::Counters;
use super::departed::{Departed, Waiting};
use super::event::{CmEvent, EventKind};
use super::listener::{InUse, Listener, Listeners};
use super::mad::{MAD_BYTES, Mad};
use super::message::{
    DatagramReply, DatagramRequest, DatagramStatus, DisconnectReply, DisconnectRequest, Message, ReadyToUse, Reason,
    Received, Reject, Rejected, Reply, Request,
};
use super::service_id::ServiceId;

/// The connection manager of a device: listeners, connections, and requests for datagram services.
#[derive(Debug)]
pub struct Manager {
    ca_guid: u64,
    /// The upper twelve bits of all communication ids: those of this process among others on the device.
    slot: u32,
    next_id: u32,
    next_transaction: u64,
    connections: FxHashMap<u32, Connection>,
    /// Ours, by the peer's address, GUID and communication id.
    by_remote_id: FxHashMap<(IpAddr, u64, u32), u32>,
    /// Ours, by the peer's address, GUID and queue pair.
    by_remote_qpn: FxHashMap<(IpAddr, u64, Qpn), u32>,
    /// Datagram requests, by the peer's address and id.
    asked: FxHashMap<(IpAddr, u32), u32>,
    listeners: Listeners,
    departed: Departed,
    timers: BTreeSet<(Instant, u32)>,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<CmEvent>,
    counters: Counters,
}

/// A message to be sent from QP1 to the peer's QP1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// From our address to the peer's.
    pub addresses: Addresses,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// The management datagram.
    pub mad: [u8; MAD_BYTES],
    /// Whether to find out if anybody receives RoCE there ([`Manager::handle_refusal`]): with each first message, and when
    /// the end of a connection was not answered.
    pub may_be_refused: bool,
}

/// There are as many connections and requests as are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the maximum of {MAX_CONNECTIONS} connections is reached")]
pub struct TooMany;

/// A connection is not in a state for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// There is no connection with this id: it is closed, or has ended.
    #[error("there is no connection {0}")]
    NoSuchConnection(Id),
    /// The connection is in another state.
    #[error("the connection {id} is {state}")]
    State {
        /// The connection.
        id: Id,
        /// Its state, in words.
        state: &'static str,
    },
}

/// Upper bound on connections and requests. Their ids have 20 bits within the slot, of which many stay free.
const MAX_CONNECTIONS: usize = 1 << 16;

/// Upper bound on the messages that wait to be sent. Those of connections are sent again anyway.
const MAX_OUTGOING: usize = 1024;

/// Retries of each message: the kernel's (CMA_MAX_CM_RETRIES in cma.c).
pub const CM_RETRIES: u8 = 15;

/// The code of the time for an answer that our messages name: the kernel's (CMA_CM_RESPONSE_TIMEOUT in cma.c), 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;

/// The code of the time that our MRAs ask for, 17 s. The kernel asks for 24, 68.7 s (CMA_CM_MRA_SETTING in cma.c): so long
/// its peer then waits when the answer is lost. Each duplicate gets another MRA.
const SERVICE_TIMEOUT: u8 = 22;

/// Upper bound on the time that a peer's MRA makes us wait: twice what the kernel's ask for.
const LONGEST_SERVICE: Duration = Duration::from_secs(137);

/// Upper bound on the time in time wait, whatever timeout the peer names: the kernel's packet life time of 1.07 s, there
/// and back, and as long again.
const LONGEST_TIME_WAIT: Duration = Duration::from_secs(4);

/// How long the answer to a request is kept, for a peer that has not got it: all its retries.
const ANSWER_KEPT: Duration = Duration::from_secs(60);

const ID_BITS: u32 = 20;

impl Manager {
    /// A manager without connections. `ca_guid` is the GUID of the device. `slot`, 12 bits, tells this process from others
    /// on it. `seed` decides the first communication id and transaction, which strangers must not guess.
    pub fn new(ca_guid: u64, slot: u16, seed: u64) -> Manager {
        Manager {
            ca_guid,
            slot: u32::from(slot) << ID_BITS,
            next_id: seed as u32,
            next_transaction: seed.rotate_left(32),
            connections: FxHashMap::default(),
            by_remote_id: FxHashMap::default(),
            by_remote_qpn: FxHashMap::default(),
            asked: FxHashMap::default(),
            listeners: Listeners::default(),
            departed: Departed::default(),
            timers: BTreeSet::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// All counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of connections and requests, those in time wait among them.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether a peer has not answered yet that a connection ends.
    pub fn is_disconnecting(&self) -> bool {
        self.connections.values().any(|connection| connection.state == State::Disconnecting)
    }

    /// Says again that connections end to the peers that have not answered, before its time: who calls this is about to go.
    pub fn repeat_ends(&mut self) {
        self.those(|one| one.state == State::Disconnecting).into_iter().for_each(|id| self.send_once(id));
    }

    /// The connections that are meant, in the order of their numbers.
    fn those(&self, is_meant: impl Fn(&Connection) -> bool) -> BTreeSet<u32> {
        self.connections.iter().filter(|(_, one)| is_meant(one)).map(|(id, _)| *id).collect()
    }

    /// Listens for a service, at one of our addresses or at all. At most `backlog` requests wait for a decision; others
    /// are dropped, and their peers ask again.
    ///
    /// # Errors
    /// [`InUse`] when there is a listener for the service at that address.
    pub fn listen(
        &mut self,
        now: Instant,
        service_id: ServiceId,
        address: Option<IpAddr>,
        backlog: usize,
    ) -> Result<Listener, InUse> {
        let listener = self.listeners.add(service_id, address, backlog)?;
        for Waiting { back, transaction, message, .. } in self.departed.take_all() {
            self.take(now, back, transaction, message);
        }
        Ok(listener)
    }

    /// Ends a listener. Requests whose events were not taken are rejected; the program decides on the others, as before.
    /// Returns what it listened for; `None` when it had ended.
    pub fn unlisten(&mut self, now: Instant, listener: Listener) -> Option<(ServiceId, Option<IpAddr>)> {
        let (service_id, address) = self.listeners.remove(listener)?;
        self.departed.note(now, service_id);
        let asks = |event: &CmEvent| match event.kind {
            EventKind::Requested { listener: whose, .. } | EventKind::Asked { listener: whose, .. } => {
                whose == listener
            }
            _ => false,
        };
        let unseen: Vec<Id> = self.events.iter().filter(|event| asks(event)).map(|event| event.id).collect();
        unseen.into_iter().for_each(|id| self.close(now, id));
        Some((service_id, address))
    }

    /// Asks a peer for a connection. The manager fills in the communication id and the GUID of `request`.
    ///
    /// # Errors
    /// [`TooMany`] when there are too many connections.
    pub fn connect(&mut self, now: Instant, addresses: Addresses, request: Request) -> Result<Id, TooMany> {
        let id = self.draw_id()?;
        let mut connection = Connection::new(State::Requesting, addresses);
        connection.traffic_class = request.traffic_class;
        connection.time_wait = time_of(request.ack_timeout, LONGEST_TIME_WAIT);
        let request = Request { local_id: id, ca_guid: self.ca_guid, ..request };
        let mad = Mad { transaction: self.transaction(id), message: Message::Request(Box::new(request)) };
        connection.expect_answer(mad, CM_RETRIES);
        self.connections.insert(id, connection);
        self.send(now, id);
        Ok(Id(id))
    }

    /// Asks a peer for a datagram service. The manager fills in the id of `request`.
    ///
    /// # Errors
    /// [`TooMany`] when there are too many connections.
    pub fn ask(&mut self, now: Instant, addresses: Addresses, request: DatagramRequest) -> Result<Id, TooMany> {
        let id = self.draw_id()?;
        let mut connection = Connection::new(State::Asking, addresses);
        let request = DatagramRequest { request_id: id, ..request };
        let mad = Mad { transaction: self.transaction(id), message: Message::DatagramRequest(Box::new(request)) };
        connection.expect_answer(mad, CM_RETRIES);
        self.connections.insert(id, connection);
        self.send(now, id);
        Ok(Id(id))
    }

    /// Accepts a connection. The queue pair must be able to receive. The manager fills in the ids and the GUID of `reply`.
    ///
    /// # Errors
    /// [`StateError`] when the connection does not wait for a decision.
    pub fn accept(&mut self, now: Instant, id: Id, reply: Reply) -> Result<(), StateError> {
        let remote_id = self.in_state(id, &[State::Requested])?.remote_id;
        let reply = Reply { local_id: id.0, remote_id, ca_guid: self.ca_guid, ..reply };
        self.decided(id.0);
        self.enter(now, id, State::Replied, Some(Message::Reply(Box::new(reply))));
        Ok(())
    }

    /// Rejects a connection for the reason [`Reason::CONSUMER`]: one that waits for a decision, or one that the peer has
    /// accepted. It is gone then.
    ///
    /// # Errors
    /// [`StateError`] when the connection is in another state.
    pub fn reject(
        &mut self,
        now: Instant,
        id: Id,
        private_data: [u8; Reject::PRIVATE_BYTES],
    ) -> Result<(), StateError> {
        self.in_state(id, &[State::Requested, State::Accepted])?;
        let reject = Message::Reject(Box::new(self.reject_of(id.0, Reason::CONSUMER, private_data)));
        // The same queue pair can ask again, under another id.
        self.forget_queue_pair(id.0);
        self.keep_answer(now, id.0, reject);
        Ok(())
    }

    /// Announces that our queue pair can receive, after [`EventKind::Accepted`]: the connection is established.
    ///
    /// # Errors
    /// [`StateError`] when the peer has not accepted the connection.
    pub fn ready_to_use(&mut self, now: Instant, id: Id) -> Result<(), StateError> {
        let remote_id = self.in_state(id, &[State::Accepted])?.remote_id;
        self.enter(now, id, State::Established, Some(Message::ReadyToUse(ReadyToUse { local_id: id.0, remote_id })));
        Ok(())
    }

    /// Announces that the queue pair has received something: the peer is ready, although its message is not here
    /// (IBTA 12.9.6).
    pub fn handle_data(&mut self, id: Id) {
        if self.in_state(id, &[State::Replied]).is_ok() {
            self.establish(id.0);
        }
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// [`StateError`] when there is no connection. One that has ended, or is ending, is none.
    pub fn disconnect(&mut self, now: Instant, id: Id) -> Result<(), StateError> {
        let connection = self.in_state(
            id,
            &[State::Established, State::Replied, State::Accepted, State::Disconnecting, State::TimeWait],
        )?;
        if matches!(connection.state, State::Disconnecting | State::TimeWait) {
            return Ok(());
        }
        let (remote_id, remote_qpn) = (connection.remote_id, connection.remote_qpn);
        let request = DisconnectRequest { local_id: id.0, remote_id, remote_qpn };
        self.enter(now, id, State::Disconnecting, Some(Message::DisconnectRequest(request)));
        Ok(())
    }

    /// Answers a request for a datagram service.
    ///
    /// # Errors
    /// [`StateError`] when the request does not wait for a decision.
    pub fn answer(&mut self, now: Instant, id: Id, reply: DatagramReply) -> Result<(), StateError> {
        let request_id = self.in_state(id, &[State::Asked])?.remote_id;
        let reply = DatagramReply { request_id, ..reply };
        self.keep_answer(now, id.0, Message::DatagramReply(Box::new(reply)));
        Ok(())
    }

    /// Ends what a program has no interest in any more, whatever its state. It gets no more events.
    pub fn close(&mut self, now: Instant, id: Id) {
        self.events.retain(|event| event.id != id);
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        connection.is_closed = true;
        match connection.state {
            State::Requesting => {
                self.send_reject(id.0, Reason::TIMEOUT);
                self.remove(id.0);
            }
            State::Requested | State::Accepted => _ = self.reject(now, id, [0; Reject::PRIVATE_BYTES]),
            State::Established | State::Replied => _ = self.disconnect(now, id),
            State::Asking => self.remove(id.0),
            State::Asked => {
                _ = self.answer(now, id, DatagramReply::refusal(0, ServiceId(0), DatagramStatus::REJECTED));
            }
            State::Disconnecting | State::TimeWait | State::Answered => {}
        }
    }

    /// Takes a datagram to QP1, from the address that `addresses` has as its source.
    pub fn handle_datagram(&mut self, now: Instant, addresses: Addresses, payload: &[u8]) {
        if payload == Mad::of_no_meaning() {
            return;
        }
        let Ok(mad) = Mad::parse(payload) else {
            self.counters.cm_malformed += 1;
            return;
        };
        self.counters.cm_received += 1;
        self.take(now, addresses.reversed(), mad.transaction, mad.message);
    }

    fn take(&mut self, now: Instant, back: Addresses, transaction: u64, message: Message) {
        match message {
            Message::Request(request) => self.take_request(now, back, transaction, request),
            Message::Reply(reply) => self.take_reply(now, back, transaction, reply),
            Message::ReadyToUse(ReadyToUse { local_id, remote_id }) => match self.state(back, remote_id, local_id) {
                Some(State::Replied) => self.establish(remote_id),
                state => self.unexpected(state),
            },
            Message::Reject(reject) => self.take_reject(now, back, transaction, reject),
            Message::Received(received) => self.take_received(now, back, received),
            Message::DisconnectRequest(request) => self.take_disconnect(now, back, transaction, &request),
            Message::DisconnectReply(DisconnectReply { local_id, remote_id }) => {
                match self.state(back, remote_id, local_id) {
                    Some(State::Disconnecting) => self.end(now, remote_id),
                    state => self.unexpected(state),
                }
            }
            Message::DatagramRequest(request) => self.take_datagram_request(now, back, transaction, request),
            Message::DatagramReply(reply) => self.take_datagram_reply(now, back, transaction, reply),
        }
    }

    /// Nobody receives RoCE at the peer's address, so its kernel says. Who waits there for a first answer asks again twice,
    /// and gives up within half a second: a program may begin just then. A connection that was being ended is over: the
    /// peer's program has gone.
    pub fn handle_refusal(&mut self, now: Instant, peer: IpAddr) {
        let is_there = |one: &Connection| one.addresses.destination() == peer;
        let waits = |one: &Connection| matches!(one.state, State::Requesting | State::Asking) && !one.is_refused;
        for id in self.those(|one| is_there(one) && waits(one)) {
            self.connections.get_mut(&id).expect("it was found").is_refused = true;
            self.ask_again_or_end(now, id);
        }
        for id in self.those(|one| is_there(one) && one.state == State::Disconnecting) {
            self.end(now, id);
        }
    }

    /// Asks again in a moment, if that was not done often enough; otherwise the peer is unreachable.
    fn ask_again_or_end(&mut self, now: Instant, id: u32) {
        if !self.ask_again(now, id) {
            self.report(id, EventKind::Unreachable);
            self.remove(id);
        }
    }

    /// Handles the time `now`: sends again what was not answered, and ends what is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        for Waiting { back, transaction, message, .. } in self.departed.take_due(now) {
            // Nobody came: it is rejected now.
            self.take(now, back, transaction, message);
        }
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.arm(id, None);
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match connection.state {
                State::TimeWait => {
                    self.report(id, EventKind::TimeWaitOver);
                    self.remove(id);
                }
                State::Answered => self.remove(id),
                State::Requesting | State::Asking if connection.is_refused => {
                    self.counters.cm_retransmitted += 1;
                    self.send_once(id);
                    self.ask_again_or_end(now, id);
                }
                State::Requesting | State::Replied | State::Disconnecting | State::Asking
                    if connection.retries_left > 0 =>
                {
                    connection.retries_left -= 1;
                    self.counters.cm_retransmitted += 1;
                    self.send(now, id);
                }
                State::Requesting | State::Replied => {
                    // The peer may have a connection by now.
                    self.send_reject(id, Reason::TIMEOUT);
                    self.report(id, EventKind::Unreachable);
                    self.remove(id);
                }
                State::Asking => {
                    self.report(id, EventKind::Unreachable);
                    self.remove(id);
                }
                State::Disconnecting => self.end(now, id),
                State::Requested | State::Accepted | State::Established | State::Asked => {}
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        earliest([self.timers.first().map(|(at, _)| *at), self.departed.deadline()])
    }

    /// The next message to send; `None` when there is none.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The oldest event that was not taken; `None` when there is none.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    fn take_request(&mut self, now: Instant, back: Addresses, transaction: u64, request: Box<Request>) {
        let peer = back.destination();
        if let Some(&id) = self.by_remote_id.get(&(peer, request.ca_guid, request.local_id)) {
            return self.take_request_again(id);
        }
        // Its queue pair cannot have two connections: the old one is over, and its peer does not know (IBTA 12.9.8.3.1).
        if let Some(&stale) = self.by_remote_qpn.get(&(peer, request.ca_guid, request.qpn)) {
            let reject = Reject::of_stranger(request.local_id, Rejected::Request, Reason::STALE_CONNECTION);
            self.reject_stranger(back, transaction, reject);
            _ = self.disconnect(now, Id(stale));
            return;
        }
        let Some(listener) = self.listeners.find(request.service_id, back.source()) else {
            if let Some(until) = self.departed.may_wait(now, request.service_id) {
                return self.wait(Waiting { until, back, transaction, message: Message::Request(request) });
            }
            self.counters.cm_no_listener += 1;
            let reject = Reject::of_stranger(request.local_id, Rejected::Request, Reason::INVALID_SERVICE_ID);
            self.reject_stranger(back, transaction, reject);
            return;
        };
        let Some(id) = self.admit(listener) else { return };
        let mut connection = Connection::new(State::Requested, back);
        connection.traffic_class = request.traffic_class;
        connection.listener = Some(listener);
        connection.remote_id = request.local_id;
        connection.remote_guid = request.ca_guid;
        connection.remote_qpn = request.qpn;
        connection.time_wait = time_of(request.ack_timeout, LONGEST_TIME_WAIT);
        // What is sent next answers it; nothing was sent yet.
        connection.sent = Some(Mad { transaction, message: Message::Request(request.clone()) });
        self.connections.insert(id, connection);
        self.by_remote_id.insert((peer, request.ca_guid, request.local_id), id);
        self.by_remote_qpn.insert((peer, request.ca_guid, request.qpn), id);
        self.report(id, EventKind::Requested { listener, addresses: back, request });
    }

    /// The peer sent a request again that we know.
    fn take_request_again(&mut self, id: u32) {
        self.counters.cm_duplicate += 1;
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            State::Requested => self.send_received(id, Rejected::Request),
            State::Replied | State::Answered => self.send_once(id),
            _ => {}
        }
    }

    fn take_reply(&mut self, now: Instant, back: Addresses, transaction: u64, reply: Box<Reply>) {
        let found = self.state(back, reply.remote_id, reply.local_id);
        let id = reply.remote_id;
        match found {
            Some(State::Requesting) => {}
            Some(State::Accepted) => {
                self.counters.cm_duplicate += 1;
                return self.send_received(id, Rejected::Reply);
            }
            Some(State::Established) => {
                // Our message was lost.
                self.counters.cm_duplicate += 1;
                return self.send_once(id);
            }
            Some(_) => {
                self.counters.cm_duplicate += 1;
                return;
            }
            None => {
                self.counters.cm_stray += 1;
                let reject = Reject::of_stranger(reply.local_id, Rejected::Reply, Reason::INVALID_COMM_ID);
                return self.reject_stranger(back, transaction, reject);
            }
        }
        let peer = back.destination();
        if let Some(&stale) = self.by_remote_qpn.get(&(peer, reply.ca_guid, reply.qpn)) {
            let connection = self.connections.get_mut(&id).expect("it was found");
            connection.remote_id = reply.local_id;
            self.send_reject(id, Reason::STALE_CONNECTION);
            self.report(id, EventKind::Unreachable);
            self.remove(id);
            _ = self.disconnect(now, Id(stale));
            return;
        }
        let connection = self.connections.get_mut(&id).expect("it was found");
        connection.remote_id = reply.local_id;
        connection.remote_guid = reply.ca_guid;
        connection.remote_qpn = reply.qpn;
        connection.state = State::Accepted;
        self.by_remote_id.insert((peer, reply.ca_guid, reply.local_id), id);
        self.by_remote_qpn.insert((peer, reply.ca_guid, reply.qpn), id);
        self.arm(id, None);
        self.report(id, EventKind::Accepted(reply));
    }

    fn take_reject(&mut self, now: Instant, back: Addresses, transaction: u64, reject: Box<Reject>) {
        // A peer that gave up its request may not know our id.
        let by_request = self.by_remote_id.get(&(back.destination(), reject.ca_guid, reject.local_id)).copied();
        let id = if reject.remote_id == 0 { by_request.unwrap_or(0) } else { reject.remote_id };
        // Nor does one that never had the connection say its own.
        let peers_id = match reject.local_id {
            0 => self.connections.get(&id).map_or(0, |connection| connection.remote_id),
            id => id,
        };
        let state = self.state(back, id, peers_id);
        match state {
            Some(State::Requesting) if reject.reason == Reason::INVALID_SERVICE_ID => {
                self.nobody_listens(now, id, transaction, EventKind::Rejected(reject));
            }
            // It is late: the peer has accepted since, a request that was sent again.
            Some(State::Accepted | State::Established | State::Disconnecting) if reject.what == Rejected::Request => {
                self.counters.cm_duplicate += 1;
            }
            Some(State::Requesting | State::Requested | State::Accepted | State::Replied) => {
                self.report(id, EventKind::Rejected(reject));
                self.remove(id);
            }
            // The peer does not know it any more.
            Some(State::Established | State::Disconnecting) => self.end(now, id),
            state => self.unexpected(state),
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        let is_new = self.departed.wait(waiting);
        self.counters.cm_duplicate += u64::from(!is_new);
    }

    /// Nobody listens, so the peer says of what was sent in `transaction`: asks again in a moment, or ends with `last`. Each
    /// try is a transaction of its own, so that a copy of that word, or a late one, counts once.
    fn nobody_listens(&mut self, now: Instant, id: u32, transaction: u64, last: EventKind) {
        let sent = self.connections.get(&id).and_then(|connection| connection.sent.as_ref());
        // A peer that does not repeat our transactions is believed.
        let is_ours = transaction as u32 == id;
        if is_ours && sent.is_some_and(|mad| mad.transaction != transaction) {
            self.counters.cm_duplicate += 1;
            return;
        }
        if !self.ask_again(now, id) {
            self.report(id, last);
            return self.remove(id);
        }
        let fresh = self.transaction(id);
        let connection = self.connections.get_mut(&id).expect("it asks again");
        connection.is_refused = false;
        if let Some(mad) = &mut connection.sent {
            mad.transaction = fresh;
        }
    }

    /// Asks again in a moment, if that was not done often enough. Returns whether.
    fn ask_again(&mut self, now: Instant, id: u32) -> bool {
        let Some(after) = self.connections.get_mut(&id).and_then(Connection::ask_again) else { return false };
        self.arm(id, Some(now + after));
        true
    }

    fn take_received(&mut self, now: Instant, back: Addresses, received: Received) {
        let Received { local_id, remote_id, service_timeout, what } = received;
        let state = self.state(back, remote_id, local_id);
        match (state, what) {
            (Some(State::Requesting), Rejected::Request) | (Some(State::Replied), Rejected::Reply) => {
                self.arm(remote_id, Some(now + time_of(service_timeout, LONGEST_SERVICE)));
                let connection = self.connections.get_mut(&remote_id).expect("it was found");
                // The peer is there.
                connection.retries_left = CM_RETRIES;
                connection.is_refused = false;
            }
            (state, _) => self.unexpected(state),
        }
    }

    fn take_disconnect(&mut self, now: Instant, back: Addresses, transaction: u64, request: &DisconnectRequest) {
        let reply = DisconnectReply { local_id: request.remote_id, remote_id: request.local_id };
        // Who asks for the end of what is not there, has asked before, and missed the answer.
        self.answer_stranger(back, transaction, Message::DisconnectReply(reply));
        match self.state(back, request.remote_id, request.local_id) {
            Some(State::Replied) => {
                // The peer had the connection, although its message that it is ready is not here: data may have come.
                self.establish(request.remote_id);
                self.end(now, request.remote_id);
            }
            Some(State::Established | State::Accepted | State::Disconnecting) => self.end(now, request.remote_id),
            // It was accepted, and has ended. The reply is late: it finds nothing any more.
            Some(State::Requesting) => {
                let id = request.remote_id;
                self.connections.get_mut(&id).expect("it was found").remote_id = request.local_id;
                let rejected = self.reject_of(id, Reason::CONSUMER, [0; Reject::PRIVATE_BYTES]);
                let reject = Reject { local_id: request.local_id, remote_id: id, ..rejected };
                self.report(id, EventKind::Rejected(Box::new(reject)));
                self.remove(id);
            }
            state => self.unexpected(state),
        }
    }

    fn take_datagram_request(
        &mut self,
        now: Instant,
        back: Addresses,
        transaction: u64,
        request: Box<DatagramRequest>,
    ) {
        let key = (back.destination(), request.request_id);
        if let Some(&id) = self.asked.get(&key) {
            self.counters.cm_duplicate += 1;
            if self.connections.get(&id).is_some_and(|connection| connection.state == State::Answered) {
                self.send_once(id);
            }
            return;
        }
        let Some(listener) = self.listeners.find(request.service_id, back.source()) else {
            if let Some(until) = self.departed.may_wait(now, request.service_id) {
                return self.wait(Waiting { until, back, transaction, message: Message::DatagramRequest(request) });
            }
            self.counters.cm_no_listener += 1;
            let reply = DatagramReply::refusal(request.request_id, request.service_id, DatagramStatus::UNSUPPORTED);
            return self.answer_stranger(back, transaction, Message::DatagramReply(Box::new(reply)));
        };
        let Some(id) = self.admit(listener) else { return };
        let mut connection = Connection::new(State::Asked, back);
        connection.listener = Some(listener);
        connection.remote_id = request.request_id;
        connection.sent = Some(Mad { transaction, message: Message::DatagramRequest(request.clone()) });
        self.connections.insert(id, connection);
        self.asked.insert(key, id);
        self.report(id, EventKind::Asked { listener, addresses: back, request });
    }

    fn take_datagram_reply(&mut self, now: Instant, back: Addresses, transaction: u64, reply: Box<DatagramReply>) {
        let id = reply.request_id;
        match self.state(back, id, 0) {
            Some(State::Asking) if reply.status == DatagramStatus::UNSUPPORTED => {
                self.nobody_listens(now, id, transaction, EventKind::Answered(reply));
            }
            Some(State::Asking) => {
                self.report(id, EventKind::Answered(reply));
                self.remove(id);
            }
            state => self.unexpected(state),
        }
    }

    /// The state of the connection `id` with the peer at the other end of `back`, whose id must be `peers_id` if it is
    /// known.
    fn state(&self, back: Addresses, id: u32, peers_id: u32) -> Option<State> {
        let connection = self.connections.get(&id).filter(|connection| {
            connection.addresses == back && (connection.remote_id == 0 || connection.remote_id == peers_id)
        });
        connection.map(|connection| connection.state)
    }

    /// Counts a message that nothing waits for, by the state of its connection.
    fn unexpected(&mut self, state: Option<State>) {
        match state {
            Some(_) => self.counters.cm_duplicate += 1,
            None => self.counters.cm_stray += 1,
        }
    }

    /// The id of one more request for a listener; `None` when there is no room.
    fn admit(&mut self, listener: Listener) -> Option<u32> {
        let id = self.draw_id().ok().filter(|_| self.listeners.admit(listener));
        self.counters.cm_backlog_full += u64::from(id.is_none());
        id
    }

    /// The program has decided on a request, or it is gone.
    fn decided(&mut self, id: u32) {
        let undecided = self.connections.get(&id).filter(|connection| connection.state.is_undecided());
        if let Some(listener) = undecided.and_then(|connection| connection.listener) {
            self.listeners.decided(listener);
        }
    }

    fn in_state(&self, id: Id, states: &[State]) -> Result<&Connection, StateError> {
        let connection = self.connections.get(&id.0).ok_or(StateError::NoSuchConnection(id))?;
        if states.contains(&connection.state) {
            Ok(connection)
        } else {
            Err(StateError::State { id, state: connection.state.words() })
        }
    }

    /// A free communication id.
    fn draw_id(&mut self) -> Result<u32, TooMany> {
        if self.connections.len() >= MAX_CONNECTIONS {
            return Err(TooMany);
        }
        loop {
            let id = self.slot | self.next_id & ((1 << ID_BITS) - 1);
            self.next_id = self.next_id.wrapping_add(1);
            // 0 means «not known» on the wire.
            if id != 0 && !self.connections.contains_key(&id) {
                return Ok(id);
            }
        }
    }

    /// A new transaction. Its lower half is the communication id, as the kernel's.
    fn transaction(&mut self, id: u32) -> u64 {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        self.next_transaction << 32 | u64::from(id)
    }

    /// The message within the transaction of what the connection sent or got last.
    fn answer_to(&self, id: u32, message: Message) -> Mad {
        let last = self.connections.get(&id).and_then(|connection| connection.sent.as_ref());
        Mad { transaction: last.map_or(0, |mad| mad.transaction), message }
    }

    /// Goes to another state, and sends `message`: until it is answered, if the state waits for an answer.
    fn enter(&mut self, now: Instant, id: Id, state: State, message: Option<Message>) {
        let mad = message.map(|message| match state {
            State::Disconnecting => Mad { transaction: self.transaction(id.0), message },
            _ => self.answer_to(id.0, message),
        });
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        connection.state = state;
        let Some(mad) = mad else { return self.arm(id.0, None) };
        connection.expect_answer(mad, CM_RETRIES);
        match state {
            State::Replied | State::Disconnecting => self.send(now, id.0),
            _ => {
                self.arm(id.0, None);
                self.send_once(id.0);
            }
        }
    }

    /// The program is done with a request. The answer is kept for a while, should the peer ask again.
    fn keep_answer(&mut self, now: Instant, id: u32, answer: Message) {
        self.decided(id);
        let mad = self.answer_to(id, answer);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::Answered;
        connection.sent = Some(mad);
        connection.is_closed = true;
        self.send_once(id);
        self.arm(id, Some(now + ANSWER_KEPT));
    }

    fn establish(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::Established;
        self.arm(id, None);
        self.report(id, EventKind::Established);
    }

    /// The connection has ended.
    fn end(&mut self, now: Instant, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = State::TimeWait;
        connection.sent = None;
        let until = now + connection.time_wait;
        self.arm(id, Some(until));
        self.report(id, EventKind::Disconnected);
    }

    fn remove(&mut self, id: u32) {
        self.decided(id);
        self.arm(id, None);
        self.forget_queue_pair(id);
        let Some(gone) = self.connections.remove(&id) else { return };
        let peer = gone.addresses.destination();
        take_if(&mut self.by_remote_id, (peer, gone.remote_guid, gone.remote_id), id);
        take_if(&mut self.asked, (peer, gone.remote_id), id);
    }

    fn forget_queue_pair(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let peer = connection.addresses.destination();
        take_if(&mut self.by_remote_qpn, (peer, connection.remote_guid, connection.remote_qpn), id);
    }

    fn report(&mut self, id: u32, kind: EventKind) {
        if self.connections.get(&id).is_some_and(|connection| !connection.is_closed) {
            self.events.push_back(CmEvent { id: Id(id), kind });
        }
    }

    fn arm(&mut self, id: u32, at: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(armed) = std::mem::replace(&mut connection.deadline, at) {
            self.timers.remove(&(armed, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    /// Sends the connection's message, and again when no answer comes in time.
    fn send(&mut self, now: Instant, id: u32) {
        self.send_once(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let interval = connection.next_interval();
        self.arm(id, Some(now + interval));
    }

    fn send_once(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(mad) = &connection.sent else { return };
        let (addresses, traffic_class) = (connection.addresses, connection.traffic_class);
        let may_be_refused = match connection.state {
            State::Requesting | State::Asking => true,
            State::Disconnecting => connection.retries_left < CM_RETRIES,
            _ => false,
        };
        let outgoing = Outgoing { addresses, traffic_class, mad: mad.to_bytes(), may_be_refused };
        self.push(outgoing);
    }

    /// Announces that the answer takes time.
    fn send_received(&mut self, id: u32, what: Rejected) {
        let Some(connection) = self.connections.get(&id) else { return };
        let received =
            Received { local_id: id, remote_id: connection.remote_id, what, service_timeout: SERVICE_TIMEOUT };
        self.send_beside(id, Message::Received(received));
    }

    fn send_reject(&mut self, id: u32, reason: Reason) {
        let reject = self.reject_of(id, reason, [0; Reject::PRIVATE_BYTES]);
        self.send_beside(id, Message::Reject(Box::new(reject)));
    }

    fn reject_of(&self, id: u32, reason: Reason, private_data: [u8; Reject::PRIVATE_BYTES]) -> Reject {
        let connection = &self.connections[&id];
        let what = match connection.state {
            State::Requested => Rejected::Request,
            State::Accepted | State::Requesting if connection.remote_id != 0 => Rejected::Reply,
            _ => Rejected::Other,
        };
        let ca_guid = if reason == Reason::TIMEOUT { self.ca_guid } else { 0 };
        Reject { local_id: id, remote_id: connection.remote_id, what, reason, ca_guid, private_data }
    }

    /// Sends a message that is not sent again.
    fn send_beside(&mut self, id: u32, message: Message) {
        let mad = self.answer_to(id, message).to_bytes();
        let Some(connection) = self.connections.get(&id) else { return };
        let (addresses, traffic_class) = (connection.addresses, connection.traffic_class);
        self.push(Outgoing { addresses, traffic_class, mad, may_be_refused: false });
    }

    /// Rejects a message that belongs to no connection.
    fn reject_stranger(&mut self, addresses: Addresses, transaction: u64, reject: Reject) {
        self.answer_stranger(addresses, transaction, Message::Reject(Box::new(reject)));
    }

    /// Answers a message that belongs to no connection.
    fn answer_stranger(&mut self, addresses: Addresses, transaction: u64, message: Message) {
        let mad = Mad { transaction, message }.to_bytes();
        self.push(Outgoing { addresses, traffic_class: 0, mad, may_be_refused: false });
    }

    fn push(&mut self, outgoing: Outgoing) {
        if self.outgoing.len() >= MAX_OUTGOING {
            self.counters.cm_answer_dropped += 1;
            return;
        }
        self.counters.cm_sent += 1;
        self.outgoing.push_back(outgoing);
    }
}

/// Removes an entry if it is of `id`: another can have taken its key.
fn take_if<K: std::hash::Hash + Eq>(map: &mut FxHashMap<K, u32>, key: K, id: u32) {
    if map.get(&key) == Some(&id) {
        map.remove(&key);
    }
}

//! Reliable connections on one shared receive queue. Its requests are used in order, each once, by whichever message
//! arrives first. An empty queue makes senders wait; the limit event comes exactly once each time that it is armed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use uroce::memory::Access;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Completion, CompletionKind, CompletionRing, Data, Endpoint, Event, QpAttributes, QueuePairInit, ReceiveRequest,
    RecoveryMode, RecoverySettings, SendOperation, SendRequest, Service, Sge, Srq, State, Status,
};
use uroce::wire::{Key, Opcode, PathMtu, Psn, Qpn, RnrTimer};

use crate::sim::frame_pool::Condition;
use crate::sim::network::{Network, NodeId, Observer};
use crate::sim::pattern;
use crate::sim::random::Random;
use crate::world::{Peering, queue_pair};

use super::arena::Arena;
use super::header::Header;
use super::layout::Layout;
use super::setting::{Setting, Weather};
use super::stage::{self, Cues, Violations};

/// A SEND, with or without immediate data.
#[derive(Clone, Debug)]
struct Message {
    immediate: Option<u32>,
    /// Its PSNs, counted from the client's first.
    first: u64,
    packets: u64,
    len: usize,
    name: u64,
    slot: usize,
}

/// A client, and the server's queue pair for it.
struct Client {
    node: NodeId,
    qpn: Qpn,
    server_qpn: Qpn,
    arena: Arena,
    key: Key,
    base: Psn,
    messages: Vec<Message>,
    quota: usize,
    completed: usize,
    free_slots: Vec<usize>,
    is_woken: bool,
    has_failed: bool,
    /// The number of messages for which the server has taken a receive request, and of those that it has reported.
    taken: usize,
    received: usize,
    /// The names of requests taken for messages that are not yet reported.
    taken_requests: VecDeque<u64>,
    /// The PSN that the server's queue pair expected before the frame that is being handled.
    expected: Psn,
    is_killed: bool,
    last_wqe_reached: bool,
}

/// The node with the shared queue.
const SERVER: NodeId = NodeId(0);

const CLIENT_TOKENS: u64 = 1 << 32;
const KILL: u64 = 1 << 33;

pub(super) struct World {
    setting: Setting,
    seed: u64,
    random: Random,
    mtu: PathMtu,
    max_len: usize,
    depth: usize,
    capacity: usize,
    think: Duration,
    layout: Layout,
    queues: Vec<Arc<CompletionRing>>,
    clients: Vec<Client>,
    by_client: FxHashMap<(usize, u32), usize>,
    by_server: FxHashMap<u32, usize>,
    srq: Srq,
    arena: Arena,
    key: Key,
    /// Receive requests in the queue, in order; and all that are not completed, with their slots.
    free: VecDeque<u64>,
    slots: BTreeMap<u64, usize>,
    free_slots: Vec<usize>,
    posted: u64,
    /// The limit, while the event is armed.
    armed: Option<usize>,
    limit_is_due: bool,
    /// Whether the frame that is being handled is as it was sent.
    is_intact: bool,
    is_woken: bool,
    next_name: u64,
    cues: Cues,
    violations: Violations,
}

impl World {
    pub fn new(seed: u64) -> (Setting, World) {
        let setting = Setting::new(&mut Random::new(seed, 0));
        let mut random = Random::new(seed, 3);
        let mtu = random.choose(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu1024]);
        let max_len = mtu.bytes() * random.choose(&[1, 2, 3, 8]);
        let depth = random.choose(&[1, 4, 16]);
        let capacity = random.choose(&[1, 2, 4, 16, 64]);
        // The arenas hold the sources of clients, and the receive buffers of the server.
        let slot = (max_len + 64).next_multiple_of(8);
        let layout = Layout { slot, sources: depth, sinks: 0, receives: capacity + 8, area: 64 };
        let think = random.choose(&[Duration::ZERO, Duration::from_micros(5), Duration::from_micros(200)]);
        let world = World {
            setting: setting.clone(),
            seed,
            random,
            mtu,
            max_len,
            depth,
            capacity,
            think,
            layout,
            queues: Vec::new(),
            clients: Vec::new(),
            by_client: FxHashMap::default(),
            by_server: FxHashMap::default(),
            srq: Srq(0),
            arena: Arena::new(layout.len(), seed),
            key: Key(0),
            free: VecDeque::new(),
            slots: BTreeMap::new(),
            free_slots: (0..layout.receives).collect(),
            posted: 0,
            armed: None,
            limit_is_due: false,
            is_intact: false,
            is_woken: false,
            next_name: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            cues: Cues::default(),
            violations: Violations::default(),
        };
        (setting, world)
    }

    fn connect(&mut self, network: &mut Network, index: usize, clients: usize, pd: uroce::memory::Pd) {
        let node = NodeId(1 + index % (self.setting.nodes - 1));
        let arena = Arena::new(self.layout.len(), self.seed ^ (1 + index as u64) << 32);
        let endpoint = network.endpoint(node);
        let client_pd = endpoint.allocate_pd();
        let key = arena.register(endpoint.memory(), client_pd, self.layout.local(), Access::empty());
        let queue = |world: &World, node: NodeId| world.queues[node.0].clone();
        let of_client = queue_pair(Service::Rc, client_pd, [self.depth, 1], &queue(self, node), self.mtu);
        let of_server = QueuePairInit {
            srq: Some(self.srq),
            ..queue_pair(Service::Rc, pd, [1, 1], &queue(self, SERVER), self.mtu)
        };
        let qpn = endpoint.create_queue_pair(of_client).expect("there is room for a queue pair");
        let server_qpn = network.endpoint(SERVER).create_queue_pair(of_server).expect("there is room for a queue pair");
        let bases = [0, 1].map(|_| Psn::new(0).minus(self.random.below(300) as u32));
        let source_port = 0xc000 | self.random.u32() as u16;
        let round_trip = self.setting.round_trip(clients);
        // The code of a timeout that is long enough to cause no spurious retransmission.
        let timeout = (0..31u8).find(|code| Duration::from_nanos(4096 << code) > round_trip * 4).unwrap_or(31);
        let rnr_timer = RnrTimer::new(self.random.between(1, 14) as u8);
        for (here, there, qpn, peer, own, other) in
            [(node, SERVER, qpn, server_qpn, bases[0], bases[1]), (SERVER, node, server_qpn, qpn, bases[1], bases[0])]
        {
            let peering = Peering {
                path_mtu: self.mtu,
                send_psn: own,
                receive_psn: other,
                rd_atomic: 1,
                rnr_timer,
                timeout,
                ..Peering::new(self.setting.path(here.0, there.0, source_port), peer)
            };
            peering.connect(network.endpoint(here), Instant::ZERO, qpn);
        }
        self.by_client.insert((node.0, qpn.value()), index);
        self.by_server.insert(server_qpn.value(), index);
        self.cues.wakes.push((Instant::ZERO, CLIENT_TOKENS | index as u64));
        if self.random.chance(0.1) {
            let at = Instant::ZERO + self.random.up_to(round_trip * 4);
            self.cues.wakes.push((at, KILL | index as u64));
        }
        let quota = self.random.between(0, 200).min(3000 / self.mtu.packets(self.max_len) as u64) as usize;
        self.clients.push(Client {
            node,
            qpn,
            server_qpn,
            arena,
            key,
            base: bases[0],
            messages: Vec::new(),
            quota,
            completed: 0,
            free_slots: (0..self.depth).collect(),
            is_woken: true,
            has_failed: false,
            taken: 0,
            received: 0,
            taken_requests: VecDeque::new(),
            expected: bases[0],
            is_killed: false,
            last_wqe_reached: false,
        });
    }

    /// Posts receive requests and arms the event, as the server.
    fn serve(&mut self, network: &mut Network) {
        let now = network.now();
        self.is_woken = false;
        let endpoint = network.endpoint(SERVER);
        for _ in 0..self.random.between(1, self.capacity as u64) {
            if self.free.len() >= self.capacity {
                break;
            }
            let Some(slot) = self.free_slots.pop() else { break };
            let address = self.arena.address(self.layout.receive(slot));
            let sge = Sge { address, length: self.max_len as u32, lkey: self.key };
            let request = ReceiveRequest { wr_id: self.posted, sges: [sge].into_iter().collect() };
            self.free.push_back(self.posted);
            self.slots.insert(self.posted, slot);
            self.posted += 1;
            if let Err(error) = endpoint.post_srq_receive(self.srq, request) {
                return self.violations.push(now, format!("a receive request was not posted: {error}"));
            }
        }
        if self.armed.is_none() && self.random.chance(0.5) {
            let limit = self.random.between(1, self.capacity as u64) as usize;
            self.armed = Some(limit);
            endpoint.arm_srq(self.srq, limit).expect("a limit within the queue's size");
        }
        self.want_serve(now);
    }

    fn want_serve(&mut self, now: Instant) {
        let all_done = self.clients.iter().all(|client| client.has_failed || client.completed == client.quota);
        if !all_done && self.free.len() < self.capacity && !std::mem::replace(&mut self.is_woken, true) {
            let slowness = self.setting.core.delay * 4 + self.think;
            let at = now + self.random.up_to(slowness) + Duration::from_micros(1);
            self.cues.wakes.push((at, 0));
        }
    }

    fn send(&mut self, network: &mut Network, index: usize) {
        let now = network.now();
        let batch = self.random.between(1, 8);
        let World { clients, random, layout, mtu, max_len, next_name, .. } = self;
        let client = &mut clients[index];
        client.is_woken = false;
        for _ in 0..batch {
            if client.messages.len() >= client.quota || client.has_failed {
                break;
            }
            let Some(slot) = client.free_slots.pop() else { break };
            let len = match random.below(5) {
                0 => 0,
                1 => mtu.bytes(),
                _ => random.between(1, *max_len as u64) as usize,
            };
            let immediate = random.chance(0.5).then(|| random.u32());
            let first = client.messages.last().map_or(0, |message| message.first + message.packets);
            let packets = mtu.packets(len).into();
            *next_name += 1;
            client.arena.scribble(layout.source(slot), len, *next_name);
            let data = Data::sge(client.arena.address(layout.source(slot)), len as u32, client.key);
            let operation = immediate.map_or(SendOperation::Send, SendOperation::SendWithImmediate);
            let wr_id = client.messages.len() as u64;
            client.messages.push(Message { immediate, first, packets, len, name: *next_name, slot });
            let request = SendRequest::new(wr_id, operation, data);
            if let Err(error) = network.endpoint(client.node).post_send(now, client.qpn, request) {
                self.violations.push(now, format!("client {index}: message {wr_id} was not posted: {error}"));
                return;
            }
        }
        self.cues.posted.push(clients[index].node);
        self.want_send(now, index);
    }

    fn want_send(&mut self, now: Instant, index: usize) {
        let client = &mut self.clients[index];
        let may = client.messages.len() < client.quota && !client.free_slots.is_empty() && !client.has_failed;
        if may && !std::mem::replace(&mut client.is_woken, true) {
            let at = now + self.random.up_to(self.think) + Duration::from_nanos(100);
            self.cues.wakes.push((at, CLIENT_TOKENS | index as u64));
        }
    }

    /// Puts the server's queue pair for a client into the error state.
    fn kill(&mut self, network: &mut Network, index: usize) {
        let now = network.now();
        self.clients[index].is_killed = true;
        let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
        let endpoint = network.endpoint(SERVER);
        endpoint.modify(now, self.clients[index].server_qpn, &error).expect("any queue pair may go to the error state");
        self.take_events(now, endpoint);
        self.poll(now, SERVER);
        if !self.clients[index].last_wqe_reached {
            self.violations.push(now, format!("client {index}: no event for the last request"));
        }
        if !self.clients[index].taken_requests.is_empty() {
            let left = &self.clients[index].taken_requests;
            self.violations.push(now, format!("client {index}: requests {left:?} were taken and are not flushed"));
        }
        self.cues.posted.push(SERVER);
    }

    fn take_events(&mut self, now: Instant, endpoint: &mut Endpoint) {
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::SrqLimit(srq) if srq == self.srq && self.limit_is_due => self.limit_is_due = false,
                Event::LastWqeReached(qpn, srq) if srq == self.srq => {
                    let client = self.by_server.get(&qpn.value()).map(|index| &mut self.clients[*index]);
                    let first = client.is_some_and(|client| {
                        client.is_killed && !std::mem::replace(&mut client.last_wqe_reached, true)
                    });
                    if !first {
                        self.violations.push(now, format!("{event:?} without a reason"));
                    }
                }
                _ => self.violations.push(now, format!("{event:?}, where the limit is {:?}", self.armed)),
            }
        }
        if std::mem::take(&mut self.limit_is_due) {
            self.violations.push(now, "the limit event is missing");
        }
        let due = Ok((self.capacity, self.armed.unwrap_or(0)));
        if endpoint.query_srq(self.srq) != due {
            self.violations.push(now, format!("(capacity, limit) is {:?}, not {due:?}", endpoint.query_srq(self.srq)));
        }
    }

    fn poll(&mut self, now: Instant, node: NodeId) {
        while let Some(completion) = self.queues[node.0].poll() {
            let key = completion.qpn.value();
            let of_server = self.by_server.get(&key).copied().filter(|_| node == SERVER);
            let result = match (of_server, self.by_client.get(&(node.0, key)).copied()) {
                (Some(index), _) => self.receive_completed(index, &completion),
                (None, Some(index)) => self.send_completed(now, index, &completion),
                (None, None) => Err("of no queue pair".into()),
            };
            if let Err(text) = result {
                self.violations.push(now, format!("node {}: {completion:?}: {text}", node.0));
            }
            self.want_serve(now);
        }
    }

    fn send_completed(&mut self, now: Instant, index: usize, completion: &Completion) -> Result<(), String> {
        let client = &mut self.clients[index];
        let next = client.completed;
        let Some(message) = client.messages.get(next).filter(|_| completion.wr_id == next as u64) else {
            return Err(format!("client {index}: {next} is next"));
        };
        let slot = message.slot;
        match completion.status {
            Status::Success if client.has_failed => return Err("after a failure".into()),
            Status::Success if client.received <= next => {
                return Err(format!("client {index}: the server has reported {}", client.received));
            }
            Status::Success => {}
            Status::WrFlush if client.has_failed => {}
            Status::RetryExceeded
                if !client.has_failed && (client.is_killed || self.setting.weather == Weather::Harsh) =>
            {
                client.has_failed = true;
            }
            _ => return Err(format!("client {index}: no reason to fail")),
        }
        client.completed += 1;
        client.arena.scribble(self.layout.source(slot), self.max_len, completion.wr_id);
        client.free_slots.push(slot);
        self.want_send(now, index);
        Ok(())
    }

    fn receive_completed(&mut self, index: usize, completion: &Completion) -> Result<(), String> {
        let client = &mut self.clients[index];
        // The oracle learns of taken requests only after the frame was handled; the request of a short message is
        // completed at once.
        let wr_id = match client.taken_requests.pop_front() {
            Some(wr_id) => Some(wr_id),
            None if completion.status != Status::Success => return Err("it had taken none".into()),
            None => {
                let taken = self.free.pop_front();
                client.taken += usize::from(taken.is_some());
                if let Some(limit) = self.armed
                    && taken.is_some()
                    && self.free.len() < limit
                {
                    (self.armed, self.limit_is_due) = (None, true);
                }
                taken
            }
        };
        if wr_id != Some(completion.wr_id) {
            return Err(format!("client {index}: {wr_id:?} is next"));
        }
        let Some(slot) = self.slots.remove(&completion.wr_id) else { return Err("was never posted".into()) };
        let offset = self.layout.receive(slot);
        if completion.status == Status::Success {
            let number = client.received;
            let Some(message) = client.messages.get(number) else { return Err("was never sent".into()) };
            let due = (CompletionKind::Receive, message.len as u32, message.immediate);
            if (completion.kind, completion.byte_len, completion.immediate) != due {
                return Err(format!("client {index}: message {number} is {due:?}"));
            }
            client.received += 1;
            pattern::fill(message.name, 0, self.arena.shadow(offset, message.len));
            if let Some(at) = self.arena.differences(offset..offset + self.layout.slot).first() {
                return Err(format!("client {index}: byte {} of message {number} is wrong", at - offset));
            }
        } else if completion.status != Status::WrFlush || !client.is_killed {
            return Err(format!("client {index}: no reason to fail"));
        }
        self.next_name += 1;
        self.arena.scribble(offset, self.max_len, self.next_name);
        self.free_slots.push(slot);
        Ok(())
    }
}

impl Observer for World {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], _to: NodeId) {
        let header = Header::of(frame);
        let is_of_role = (node == SERVER) == (header.opcode == Opcode::RC_ACKNOWLEDGE);
        if !is_of_role && header.hello.is_none() && header.opcode != Opcode::CNP {
            self.violations.push(now, format!("node {} sends opcode {:#04x}", node.0, header.opcode.0));
        }
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        self.poll(now, node);
    }

    fn arriving(&mut self, _now: Instant, _node: NodeId, _frame: &[u8], condition: Condition) {
        self.is_intact = condition == Condition::Intact;
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        self.poll(now, node);
        let Some(header) = frame.map(Header::of).filter(|_| node == SERVER) else { return };
        let Some(&index) = self.by_server.get(&header.qpn.value()) else { return };
        let Ok(queue_pair) = endpoint.queue_pair(header.qpn) else { return };
        let client = &mut self.clients[index];
        let before = std::mem::replace(&mut client.expected, queue_pair.psns().1);
        let expected = client.expected.since(client.base) as u64;
        // The server takes a receive request with the first packet of a message.
        let begun = client.messages.iter().take_while(|message| message.first < expected).count();
        // Several requests are taken at once when early packets waited for this one.
        while client.taken < begun {
            match self.free.pop_front() {
                Some(request) => client.taken_requests.push_back(request),
                None => self.violations.push(now, format!("client {index}: {begun} messages begun without a request")),
            }
            client.taken += 1;
            if self.armed.is_some_and(|limit| self.free.len() < limit) {
                (self.armed, self.limit_is_due) = (None, true);
            }
        }
        let is_request = self.is_intact && !header.opcode.is_response() && header.opcode != Opcode::CNP;
        let is_refused = is_request && header.psn == before && client.expected == before && !client.is_killed;
        if is_refused && !self.free.is_empty() {
            self.violations.push(now, format!("client {index} must wait although a receive request is there"));
        }
        self.take_events(now, endpoint);
    }
}

impl stage::World for World {
    fn begin(&mut self, network: &mut Network) {
        self.queues = (0..self.setting.nodes).map(|_| Arc::new(CompletionRing::new(4096, || {}))).collect();
        let mut random = Random::new(self.seed, 5);
        let recovery = random.choose(&[RecoveryMode::GoBackN, RecoveryMode::Auto]);
        for node in 0..self.setting.nodes {
            let settings = RecoverySettings {
                recovery: if random.chance(0.1) { RecoveryMode::GoBackN } else { recovery },
                window: random.choose(&[16, 128]),
                reorder_bytes: random.choose(&[0, 3000, 1 << 30]),
                ..RecoverySettings::default()
            };
            network.endpoint(NodeId(node)).set_recovery(settings);
        }
        let endpoint = network.endpoint(SERVER);
        let pd = endpoint.allocate_pd();
        self.srq = endpoint.create_srq(pd, self.capacity).expect("there is room for a queue");
        self.key = self.arena.register(endpoint.memory(), pd, self.layout.local(), Access::LOCAL_WRITE);
        let clients = self.random.choose(&[1, 2, 3, 6]);
        (0..clients).for_each(|index| self.connect(network, index, clients, pd));
        self.is_woken = true;
        self.cues.wakes.push((Instant::ZERO, 0));
    }

    fn woken(&mut self, network: &mut Network, token: u64) {
        let index = (token & 0xffff) as usize;
        match token & !0xffff {
            CLIENT_TOKENS => self.send(network, index),
            KILL => self.kill(network, index),
            _ => self.serve(network),
        }
    }

    fn poll_all(&mut self, now: Instant) {
        (0..self.setting.nodes).for_each(|node| self.poll(now, NodeId(node)));
    }

    fn rest(&mut self, network: &mut Network) {
        let now = network.now();
        (0..self.setting.nodes).for_each(|node| self.poll(now, NodeId(node)));
        let mut taken = 0;
        for (index, client) in self.clients.iter().enumerate() {
            let Client { completed, quota, received, .. } = *client;
            let posted = client.messages.len();
            if completed != posted || (posted != quota && !client.has_failed) {
                let text = format!("client {index}: {completed} completed of {posted} posted of {quota}");
                self.violations.push(now, text);
            }
            if received != quota && !client.has_failed {
                self.violations.push(now, format!("client {index}: {received} of {quota} received"));
            }
            taken += client.taken_requests.len();
        }
        if self.slots.len() != self.free.len() + taken {
            let (left, free) = (self.slots.len(), self.free.len());
            self.violations.push(now, format!("{left} requests are left, where {free} are free and {taken} taken"));
        }
        for client in &mut self.clients {
            if let Some(what) = self.layout.damage(&mut client.arena) {
                self.violations.push(now, format!("node {}: {what}", client.node.0));
            }
        }
        // The message of a failed client can have arrived in part.
        let in_use: Vec<u64> = self.clients.iter().flat_map(|client| client.taken_requests.iter().copied()).collect();
        for wr_id in in_use {
            self.arena.accept(self.layout.receive(self.slots[&wr_id]), self.max_len);
        }
        if let Some(what) = self.layout.damage(&mut self.arena) {
            self.violations.push(now, format!("the server: {what}"));
        }
    }

    fn cues(&mut self) -> &mut Cues {
        &mut self.cues
    }

    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }
}

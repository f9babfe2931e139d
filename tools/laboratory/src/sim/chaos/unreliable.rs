//! Unreliable connections: messages are lost as a whole, never reported in part, and never twice unless the network
//! duplicates them.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use uroce::memory::Access;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Completion, CompletionKind, CompletionRing, Data, Endpoint, QpAttributes, ReceiveRequest, Remote, SendOperation,
    SendRequest, Service, Sge, State, Status,
};
use uroce::wire::{Key, PathMtu, Psn, Qpn};

use crate::sim::frame_pool::Condition;
use crate::sim::network::{Network, NodeId, Observer};
use crate::sim::pattern;
use crate::sim::random::Random;
use crate::world::{Peering, queue_pair};

use super::arena::Arena;
use super::header::Header;
use super::layout::Layout;
use super::setting::Setting;
use super::stage::{self, Cues, Violations};

/// A SEND or WRITE, with or without immediate data.
#[derive(Clone, Debug)]
struct Message {
    is_write: bool,
    immediate: Option<u32>,
    /// Its PSNs, counted from the flow's first.
    first: u64,
    packets: u64,
    len: usize,
    /// The name of the pattern that it carries.
    name: u64,
    /// The slot in the sender's arena, and the offset in the receiver's arena for a WRITE.
    slot: usize,
    target: usize,
}

impl Message {
    fn end(&self) -> u64 {
        self.first + self.packets
    }

    fn consumes(&self) -> bool {
        !self.is_write || self.immediate.is_some()
    }
}

/// The packets of one message that have arrived without a gap, from its first on.
#[derive(Clone, Copy, Debug)]
struct Run {
    message: usize,
    packets: u64,
    /// Whether a receive request was posted when the first packet arrived.
    has_receive: bool,
}

/// One side of a connection, and the messages that it sends.
struct Side {
    node: NodeId,
    qpn: Qpn,
    arena: Arena,
    key: Key,
    remote_key: Key,
    base: Psn,
    messages: Vec<Message>,
    quota: usize,
    /// The PSN after the last one sent.
    sent: u64,
    completed: usize,
    /// Receive requests posted and not completed: name and slot.
    receives: VecDeque<(u64, usize)>,
    posted_receives: u64,
    free_sources: Vec<usize>,
    free_receives: Vec<usize>,
    /// The current run of packets from the other side.
    run: Option<Run>,
    /// The message of the other side that must be reported when the endpoint has handled the frame.
    due: Option<usize>,
    is_woken: bool,
}

struct Connection {
    sides: [Side; 2],
    layout: Layout,
    mtu: PathMtu,
    depth: usize,
    receive_depth: usize,
    max_len: usize,
    think: Duration,
    random: Random,
    next_name: u64,
}

pub(super) struct World {
    setting: Setting,
    seed: u64,
    queues: Vec<Arc<CompletionRing>>,
    connections: Vec<Connection>,
    by_qpn: FxHashMap<(usize, u32), (usize, usize)>,
    cues: Cues,
    violations: Violations,
}

impl World {
    pub fn new(seed: u64) -> (Setting, World) {
        let setting = Setting::new(&mut Random::new(seed, 0));
        let world = World {
            setting: setting.clone(),
            seed,
            queues: Vec::new(),
            connections: Vec::new(),
            by_qpn: FxHashMap::default(),
            cues: Cues::default(),
            violations: Violations::default(),
        };
        (setting, world)
    }

    fn connect(&mut self, network: &mut Network, c: usize) {
        let mut random = Random::new(self.seed, 1000 + c as u64);
        let nodes = self.setting.nodes as u64;
        let first = random.below(nodes);
        let pair = [first, (first + 1 + random.below(nodes - 1)) % nodes].map(|node| NodeId(node as usize));
        let mtu = random.choose(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu4096]);
        let max_len = (mtu.bytes() * random.choose(&[1, 2, 3, 5, 20])).min(20_000);
        let (depth, receive_depth) = (random.choose(&[1, 4, 16, 32]), random.choose(&[1, 4, 16, 32]));
        let layout = Layout {
            slot: (max_len + 64).next_multiple_of(8),
            sources: depth,
            sinks: 0,
            receives: receive_depth,
            area: (2 * max_len).max(512),
        };
        let source_port = 0xc000 | random.u32() as u16;
        let bases = [0, 1].map(|_| Psn::new(0).minus(random.below(300) as u32));
        let quotas = [0, 1].map(|_| random.between(0, 300).min(6000 / mtu.packets(max_len) as u64 + 4) as usize);
        let mut sides = [0, 1].map(|s| {
            let endpoint = network.endpoint(pair[s]);
            let pd = endpoint.allocate_pd();
            let arena = Arena::new(layout.len(), self.seed ^ (c as u64) << 32 ^ (s as u64) << 40);
            let key = arena.register(endpoint.memory(), pd, layout.local(), Access::LOCAL_WRITE);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let remote_key = arena.register(endpoint.memory(), pd, layout.target(), access);
            let queue = self.queues[pair[s].0].clone();
            let init = queue_pair(Service::Uc, pd, [depth, receive_depth], &queue, mtu);
            let qpn = endpoint.create_queue_pair(init).expect("there is room for a queue pair");
            self.by_qpn.insert((pair[s].0, qpn.value()), (c, s));
            Side {
                node: pair[s],
                qpn,
                arena,
                key,
                remote_key,
                base: bases[s],
                messages: Vec::new(),
                quota: quotas[s],
                sent: 0,
                completed: 0,
                receives: VecDeque::new(),
                posted_receives: 0,
                free_sources: (0..layout.sources).collect(),
                free_receives: (0..layout.receives).collect(),
                run: None,
                due: None,
                is_woken: false,
            }
        });
        self.introduce(network, c, &mut sides, mtu, source_port);
        let think = random.choose(&[Duration::ZERO, Duration::from_micros(5), Duration::from_micros(200)]);
        let next_name = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (c as u64) << 48;
        self.connections.push(Connection {
            sides,
            layout,
            mtu,
            depth,
            receive_depth,
            max_len,
            think,
            random,
            next_name,
        });
    }

    /// Connects both sides with each other, and wakes their programs.
    fn introduce(&mut self, network: &mut Network, c: usize, sides: &mut [Side; 2], mtu: PathMtu, source_port: u16) {
        for s in [0, 1] {
            let peer = sides[1 - s].qpn;
            let Side { node, qpn, .. } = sides[s];
            let peering = Peering {
                service: Service::Uc,
                access: Access::REMOTE_WRITE,
                path_mtu: mtu,
                send_psn: sides[s].base,
                receive_psn: sides[1 - s].base,
                ..Peering::new(self.setting.path(node.0, sides[1 - s].node.0, source_port), peer)
            };
            peering.connect(network.endpoint(node), Instant::ZERO, qpn);
            sides[s].is_woken = true;
            self.cues.wakes.push((Instant::ZERO, token(c, s)));
        }
    }

    /// Posts some receive requests and some messages, as the program of a side.
    fn post(&mut self, network: &mut Network, c: usize, s: usize) {
        let now = network.now();
        let connection = &mut self.connections[c];
        connection.sides[s].is_woken = false;
        let count = connection.random.below(connection.receive_depth as u64 + 1);
        for _ in 0..count {
            let side = &mut connection.sides[s];
            let Some(slot) = side.free_receives.pop() else { break };
            let offset = connection.layout.receive(slot);
            let address = side.arena.address(offset);
            let sge = Sge { address, length: connection.max_len as u32, lkey: side.key };
            let request = ReceiveRequest { wr_id: side.posted_receives, sges: [sge].into_iter().collect() };
            side.receives.push_back((side.posted_receives, slot));
            side.posted_receives += 1;
            if let Err(error) = network.endpoint(side.node).post_receive(now, side.qpn, request) {
                return self.violations.push(now, format!("connection {c} side {s}: receive not posted: {error}"));
            }
        }
        for _ in 0..connection.random.between(1, 12) {
            let side = &connection.sides[s];
            let outstanding = side.messages.len() - side.completed;
            if side.messages.len() >= side.quota || outstanding >= connection.depth {
                break;
            }
            if let Err(text) = connection.post_message(network, s) {
                return self.violations.push(now, format!("connection {c} side {s}: {text}"));
            }
        }
        self.cues.posted.push(connection.sides[s].node);
        self.want_post(now, c, s);
    }

    fn want_post(&mut self, now: Instant, c: usize, s: usize) {
        let Connection { sides, random, think, depth, .. } = &mut self.connections[c];
        let side = &mut sides[s];
        let may = side.messages.len() < side.quota && side.messages.len() - side.completed < *depth;
        if (may || !side.free_receives.is_empty() && sides[1 - s].completed < sides[1 - s].quota)
            && !std::mem::replace(&mut sides[s].is_woken, true)
        {
            let at = now + random.up_to(*think) + Duration::from_nanos(100);
            self.cues.wakes.push((at, token(c, s)));
        }
    }

    fn poll(&mut self, now: Instant, node: NodeId) {
        while let Some(completion) = self.queues[node.0].poll() {
            let Some(&(c, s)) = self.by_qpn.get(&(node.0, completion.qpn.value())) else {
                return self.violations.push(now, format!("{completion:?} of no queue pair"));
            };
            let connection = &mut self.connections[c];
            let result = match completion.kind {
                CompletionKind::Receive | CompletionKind::ReceiveWriteWithImmediate => {
                    connection.receive_completed(s, &completion)
                }
                _ => connection.send_completed(s, &completion),
            };
            if let Err(text) = result {
                self.violations.push(now, format!("connection {c} side {s}: {completion:?}: {text}"));
            }
            self.want_post(now, c, s);
        }
    }

    fn verify(&mut self, now: Instant, c: usize, s: usize, what: &str) {
        let Connection { sides, layout, max_len, .. } = &mut self.connections[c];
        let side = &mut sides[s];
        if let Some(&(_, slot)) = side.receives.front() {
            // A message can be arriving there.
            side.arena.accept(layout.receive(slot), *max_len);
        }
        if let Some(damage) = layout.damage(&mut side.arena) {
            self.violations.push(now, format!("connection {c} side {s} {what}: {damage}"));
        }
    }
}

fn token(c: usize, s: usize) -> u64 {
    (c as u64) << 1 | s as u64
}

impl Connection {
    fn post_message(&mut self, network: &mut Network, s: usize) -> Result<(), String> {
        let Connection { sides, layout, random, .. } = self;
        let mtu = self.mtu.bytes();
        let len = match random.below(6) {
            0 => 0,
            1 => mtu,
            2 => mtu + 1,
            _ => random.between(1, self.max_len as u64) as usize,
        }
        .min(self.max_len);
        let (is_write, immediate) = (random.chance(0.5), random.chance(0.5).then(|| random.u32()));
        let target = layout.target().0 + random.below((layout.area - len) as u64 + 1) as usize;
        let address = sides[1 - s].arena.address(target);
        let remote = Remote { address, key: sides[1 - s].remote_key };
        let operation = match (is_write, immediate) {
            (false, None) => SendOperation::Send,
            (false, Some(data)) => SendOperation::SendWithImmediate(data),
            (true, None) => SendOperation::Write(remote),
            (true, Some(data)) => SendOperation::WriteWithImmediate(remote, data),
        };
        let side = &mut sides[s];
        let Some(slot) = side.free_sources.pop() else { return Err("more messages than slots".into()) };
        self.next_name += 1;
        let name = self.next_name;
        side.arena.scribble(layout.source(slot), len, name);
        let data = Data::sge(side.arena.address(layout.source(slot)), len as u32, side.key);
        let index = side.messages.len();
        let first = side.messages.last().map_or(0, Message::end);
        let packets = self.mtu.packets(len).into();
        side.messages.push(Message { is_write, immediate, first, packets, len, name, slot, target });
        let request = SendRequest::new(index as u64, operation, data);
        let now = network.now();
        let posted = network.endpoint(side.node).post_send(now, side.qpn, request);
        posted.map_err(|error| format!("message {index} was not posted: {error}"))
    }

    fn send_completed(&mut self, s: usize, completion: &Completion) -> Result<(), String> {
        let side = &mut self.sides[s];
        let index = side.completed;
        let Some(message) = side.messages.get(index).filter(|_| completion.wr_id == index as u64) else {
            return Err(format!("{index} is next"));
        };
        if completion.status != Status::Success {
            return Err("nothing can fail".into());
        }
        if side.sent < message.end() {
            return Err(format!("only {} of its packets, which end before {}, are sent", side.sent, message.end()));
        }
        let (slot, len) = (message.slot, message.len);
        side.completed += 1;
        self.next_name += 1;
        side.arena.scribble(self.layout.source(slot), len, self.next_name);
        side.free_sources.push(slot);
        Ok(())
    }

    fn receive_completed(&mut self, r: usize, completion: &Completion) -> Result<(), String> {
        let Some((wr_id, slot)) = self.sides[r].receives.pop_front() else { return Err("was never posted".into()) };
        if completion.wr_id != wr_id {
            return Err(format!("{wr_id} is the oldest"));
        }
        self.sides[r].free_receives.push(slot);
        let offset = self.layout.receive(slot);
        self.next_name += 1;
        let name = self.next_name;
        if completion.status != Status::Success {
            return Err("no reason to fail".into());
        }
        let Some(index) = self.sides[r].due.take() else { return Err("no message has just become complete".into()) };
        let message = self.sides[1 - r].messages[index].clone();
        let kind = match message.is_write {
            true => CompletionKind::ReceiveWriteWithImmediate,
            false => CompletionKind::Receive,
        };
        let due = (kind, message.len as u32, message.immediate);
        if (completion.kind, completion.byte_len, completion.immediate) != due {
            return Err(format!("message {index} is {due:?}"));
        }
        let arena = &mut self.sides[r].arena;
        if !message.is_write {
            pattern::fill(message.name, 0, arena.shadow(offset, message.len));
            if let Some(at) = arena.differences(offset..offset + message.len).first() {
                return Err(format!("byte {} of message {index} is wrong", at - offset));
            }
        }
        arena.scribble(offset, self.max_len, name);
        Ok(())
    }

    /// Applies an intact packet that has reached side `r` to the model of the messages.
    fn arrive(&mut self, r: usize, header: &Header) {
        let mtu = self.mtu.bytes();
        let Connection { sides, .. } = self;
        let [a, b] = sides;
        let (sender, receiver) = if r == 1 { (a, b) } else { (b, a) };
        let Some(psn) = header.count(sender.base, sender.sent).filter(|psn| *psn < sender.sent) else { return };
        let index = sender.messages.partition_point(|message| message.end() <= psn);
        let message = &sender.messages[index];
        let packet = psn - message.first;
        let run = match receiver.run {
            _ if packet == 0 => {
                Run { message: index, packets: 0, has_receive: message.is_write || !receiver.receives.is_empty() }
            }
            Some(run) if run.message == index && run.packets == packet => run,
            _ => {
                receiver.run = None;
                return;
            }
        };
        let is_last = packet + 1 == message.packets;
        if message.is_write {
            let (at, offset) = (message.target, packet as usize * mtu);
            let len = (message.len - offset).min(mtu);
            if is_last && message.immediate.is_some() && receiver.receives.is_empty() {
                // The message cannot be reported, and its last bytes can be there or not.
                receiver.run = None;
                return;
            }
            pattern::fill(message.name, offset, receiver.arena.shadow(at + offset, len));
        }
        receiver.due = (is_last && message.consumes() && run.has_receive).then_some(index);
        receiver.run = Some(Run { packets: packet + 1, ..run }).filter(|_| !is_last);
    }
}

impl Observer for World {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        let header = Header::of(frame);
        let Some(&(c, r)) = self.by_qpn.get(&(to.0, header.qpn.value())) else {
            return self.violations.push(now, format!("node {} sends to queue pair {}", node.0, header.qpn));
        };
        let side = &mut self.connections[c].sides[1 - r];
        let posted = side.messages.last().map_or(0, Message::end);
        if header.count(side.base, side.sent) != Some(side.sent) || side.sent >= posted || side.node != node {
            let text = format!("connection {c} side {}: sent PSN {} after {} packets", 1 - r, header.psn, side.sent);
            self.violations.push(now, text);
        }
        side.sent += 1;
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        self.poll(now, node);
    }

    fn arriving(&mut self, _now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        let header = Header::of(frame);
        if condition == Condition::Intact
            && let Some(&(c, r)) = self.by_qpn.get(&(node.0, header.qpn.value()))
        {
            self.connections[c].arrive(r, &header);
        }
    }

    fn handled(&mut self, now: Instant, node: NodeId, _endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        self.poll(now, node);
        let Some(header) = frame.map(Header::of) else { return };
        let Some(&(c, r)) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        if let Some(index) = self.connections[c].sides[r].due.take() {
            let text = format!("connection {c} side {r}: message {index} has arrived, and was not reported");
            self.violations.push(now, text);
        }
        // WRITEs are checked now and then: later ones can hide a mistake.
        if self.connections[c].random.chance(0.05) {
            self.verify(now, c, r, "in between");
        }
    }
}

impl stage::World for World {
    fn begin(&mut self, network: &mut Network) {
        self.queues = (0..self.setting.nodes).map(|_| Arc::new(CompletionRing::new(1024, || {}))).collect();
        let count = Random::new(self.seed, 3).choose(&[1, 1, 2, 4]);
        (0..count).for_each(|c| self.connect(network, c));
    }

    fn woken(&mut self, network: &mut Network, token: u64) {
        self.post(network, (token >> 1) as usize, (token & 1) as usize);
    }

    fn poll_all(&mut self, now: Instant) {
        (0..self.setting.nodes).for_each(|node| self.poll(now, NodeId(node)));
    }

    fn rest(&mut self, network: &mut Network) {
        let now = network.now();
        for node in 0..self.setting.nodes {
            self.poll(now, NodeId(node));
        }
        for c in 0..self.connections.len() {
            for s in [0, 1] {
                let Side { completed, quota, node, qpn, ref receives, .. } = self.connections[c].sides[s];
                let left: Vec<u64> = receives.iter().map(|(wr_id, _)| *wr_id).collect();
                if completed != quota {
                    self.violations.push(now, format!("connection {c} side {s}: {completed} of {quota} completed"));
                }
                self.verify(now, c, s, "at the end");
                // All requests that are still posted are flushed, in order.
                let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
                network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
                let flushed = std::iter::from_fn(|| self.queues[node.0].poll());
                let flushed: Vec<u64> =
                    flushed.filter(|done| done.status == Status::WrFlush).map(|done| done.wr_id).collect();
                if flushed != left {
                    self.violations.push(now, format!("connection {c} side {s}: {left:?} left, {flushed:?} flushed"));
                }
            }
        }
    }

    fn cues(&mut self) -> &mut Cues {
        &mut self.cues
    }

    fn violations(&mut self) -> &mut Violations {
        &mut self.violations
    }
}

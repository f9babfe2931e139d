//! Datagrams: each is lost, or arrives once, or as often as the network duplicates it, with the header of its packet.
//! Those with a wrong key, without a buffer or too long for it are dropped and counted.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use uroce::memory::Access;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Completion, CompletionKind, CompletionRing, Data, Destination, Endpoint, NetworkHeader, QpAttributes,
    ReceiveRequest, SendOperation, SendRequest, Service, Sge, State, Status,
};
use uroce::wire::{Key, PathMtu, Psn, QKey, Qpn};

use crate::ethernet::ETHERNET_BYTES;
use crate::sim::frame_pool::Condition;
use crate::sim::network::{Network, NodeId, Observer};
use crate::sim::pattern;
use crate::sim::random::Random;
use crate::world::queue_pair;

use super::arena::Arena;
use super::header::Header;
use super::layout::Layout;
use super::setting::Setting;
use super::stage::{self, Cues, Violations};

/// Length of the routing header before the payload in the receive buffer, in bytes.
const GRH_BYTES: usize = 40;

/// A Q_Key with this bit set is privileged: the sender's own is sent instead (IBTA 10.2.5).
const PRIVILEGED: u32 = 1 << 31;

#[derive(Clone, Debug)]
struct Datagram {
    to: usize,
    /// The Q_Key in the packet.
    q_key: QKey,
    immediate: Option<u32>,
    len: usize,
    name: u64,
    slot: usize,
}

#[derive(Clone, Copy, Debug)]
struct Receive {
    wr_id: u64,
    slot: usize,
    len: usize,
}

/// A program with one queue pair.
struct Station {
    node: NodeId,
    qpn: Qpn,
    q_key: QKey,
    arena: Arena,
    key: Key,
    base: Psn,
    sent_datagrams: Vec<Datagram>,
    quota: usize,
    sent: usize,
    completed: usize,
    receives: VecDeque<Receive>,
    posted_receives: u64,
    free_sources: Vec<usize>,
    free_receives: Vec<usize>,
    /// The sender and the number of the datagram that the frame being handled must deliver.
    due: Option<(usize, usize)>,
    /// The expected counts of dropped datagrams, and of those with a wrong key.
    dropped: u64,
    wrong_keys: u64,
    is_woken: bool,
}

pub(super) struct World {
    setting: Setting,
    seed: u64,
    random: Random,
    mtu: PathMtu,
    layout: Layout,
    depth: usize,
    think: Duration,
    queues: Vec<Arc<CompletionRing>>,
    stations: Vec<Station>,
    by_qpn: FxHashMap<(usize, u32), usize>,
    next_name: u64,
    cues: Cues,
    violations: Violations,
}

impl World {
    pub fn new(seed: u64) -> (Setting, World) {
        let mut setting = Setting::new(&mut Random::new(seed, 0));
        // A stranger's datagram is legal, so that no forgery can be refused.
        setting.core.faults.forge = 0.0;
        setting.edge.faults.forge = 0.0;
        let mut random = Random::new(seed, 3);
        let mtu = random.choose(&[PathMtu::Mtu256, PathMtu::Mtu1024, PathMtu::Mtu1024, PathMtu::Mtu4096]);
        let depth = random.choose(&[1, 4, 16, 64]);
        let slot = (GRH_BYTES + mtu.bytes() + 64).next_multiple_of(8);
        let layout = Layout { slot, sources: depth, sinks: 0, receives: depth, area: 64 };
        let think = random.choose(&[Duration::ZERO, Duration::from_micros(5), Duration::from_micros(200)]);
        let world = World {
            setting: setting.clone(),
            seed,
            random,
            mtu,
            layout,
            depth,
            think,
            queues: Vec::new(),
            stations: Vec::new(),
            by_qpn: FxHashMap::default(),
            next_name: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            cues: Cues::default(),
            violations: Violations::default(),
        };
        (setting, world)
    }

    fn add_station(&mut self, network: &mut Network, index: usize) {
        let node = NodeId(index % self.setting.nodes);
        let arena = Arena::new(self.layout.len(), self.seed ^ (index as u64) << 32);
        let endpoint = network.endpoint(node);
        let pd = endpoint.allocate_pd();
        let key = arena.register(endpoint.memory(), pd, self.layout.local(), Access::LOCAL_WRITE);
        let queue = self.queues[node.0].clone();
        let init = queue_pair(Service::Ud, pd, [self.depth; 2], &queue, self.mtu);
        let qpn = endpoint.create_queue_pair(init).expect("there is room for a queue pair");
        let q_key = QKey(self.random.u32() & !PRIVILEGED);
        let base = Psn::new(0).minus(self.random.below(300) as u32);
        let steps = [
            QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: Some(1),
                q_key: Some(q_key),
                ..QpAttributes::default()
            },
            QpAttributes { state: Some(State::ReadyToReceive), ..QpAttributes::default() },
            QpAttributes { state: Some(State::ReadyToSend), send_psn: Some(base), ..QpAttributes::default() },
        ];
        for attributes in &steps {
            endpoint.modify(Instant::ZERO, qpn, attributes).expect("the attributes are right");
        }
        self.by_qpn.insert((node.0, qpn.value()), index);
        self.cues.wakes.push((Instant::ZERO, index as u64));
        self.stations.push(Station {
            node,
            qpn,
            q_key,
            arena,
            key,
            base,
            sent_datagrams: Vec::new(),
            quota: self.random.between(0, 400) as usize,
            sent: 0,
            completed: 0,
            receives: VecDeque::new(),
            posted_receives: 0,
            free_sources: (0..self.depth).collect(),
            free_receives: (0..self.depth).collect(),
            due: None,
            dropped: 0,
            wrong_keys: 0,
            is_woken: true,
        });
    }

    fn post(&mut self, network: &mut Network, index: usize) {
        let now = network.now();
        self.stations[index].is_woken = false;
        for _ in 0..self.random.below(self.depth as u64 + 1) {
            let small = self.random.chance(0.1);
            let station = &mut self.stations[index];
            let Some(slot) = station.free_receives.pop() else { break };
            // Some buffers are too short for most datagrams.
            let len = GRH_BYTES + if small { 20 } else { self.mtu.bytes() };
            let address = station.arena.address(self.layout.receive(slot));
            let sge = Sge { address, length: len as u32, lkey: station.key };
            let wr_id = station.posted_receives;
            station.receives.push_back(Receive { wr_id, slot, len });
            station.posted_receives += 1;
            let request = ReceiveRequest { wr_id, sges: [sge].into_iter().collect() };
            if let Err(error) = network.endpoint(station.node).post_receive(now, station.qpn, request) {
                return self.violations.push(now, format!("station {index}: receive not posted: {error}"));
            }
        }
        for _ in 0..self.random.between(1, 12) {
            let station = &self.stations[index];
            if station.sent_datagrams.len() >= station.quota || station.free_sources.is_empty() {
                break;
            }
            self.post_datagram(network, index);
        }
        self.cues.posted.push(self.stations[index].node);
        self.want_post(now, index);
    }

    fn post_datagram(&mut self, network: &mut Network, index: usize) {
        let now = network.now();
        let World { stations, random, layout, mtu, .. } = self;
        let to = (index + 1 + random.below(stations.len() as u64 - 1) as usize) % stations.len();
        if stations[to].node == stations[index].node {
            // The station is on the same node, and the network has no path from a node to itself.
            stations[index].quota -= 1;
            return;
        }
        let right = stations[to].q_key;
        let own = stations[index].q_key;
        // The Q_Key in the address handle, and the one that is sent.
        let (named, q_key) = match random.below(10) {
            0 => (QKey(right.0 ^ 1 << random.below(31)), None),
            1 => (QKey(right.0 | PRIVILEGED), Some(own)),
            _ => (right, None),
        };
        let q_key = q_key.unwrap_or(named);
        let len = match random.below(5) {
            0 => 0,
            1 => mtu.bytes(),
            _ => random.between(1, mtu.bytes() as u64) as usize,
        };
        let immediate = random.chance(0.5).then(|| random.u32());
        let source_port = 0xc000 | random.u32() as u16;
        let (here, there, qpn) = (stations[index].node.0, stations[to].node.0, stations[to].qpn);
        let path = self.setting.path(here, there, source_port);
        let station = &mut stations[index];
        let Some(slot) = station.free_sources.pop() else { return };
        self.next_name += 1;
        station.arena.scribble(layout.source(slot), len, self.next_name);
        let data = Data::sge(station.arena.address(layout.source(slot)), len as u32, station.key);
        let operation = immediate.map_or(SendOperation::Send, SendOperation::SendWithImmediate);
        let wr_id = station.sent_datagrams.len() as u64;
        station.sent_datagrams.push(Datagram { to, q_key, immediate, len, name: self.next_name, slot });
        let destination = Some(Destination { path, qpn, q_key: named });
        let request = SendRequest { destination, ..SendRequest::new(wr_id, operation, data) };
        if let Err(error) = network.endpoint(station.node).post_send(now, station.qpn, request) {
            self.violations.push(now, format!("station {index}: datagram {wr_id} was not posted: {error}"));
        }
    }

    fn want_post(&mut self, now: Instant, index: usize) {
        let all_sent = self.stations.iter().all(|station| station.completed == station.quota);
        let station = &mut self.stations[index];
        let may = station.sent_datagrams.len() < station.quota && !station.free_sources.is_empty();
        if (may || (!station.free_receives.is_empty() && !all_sent)) && !station.is_woken {
            station.is_woken = true;
            let at = now + self.random.up_to(self.think) + Duration::from_nanos(100);
            self.cues.wakes.push((at, index as u64));
        }
    }

    /// Takes the completions of a node; `frame` is the frame that it has just handled.
    fn poll(&mut self, now: Instant, node: NodeId, frame: Option<&[u8]>) {
        while let Some(completion) = self.queues[node.0].poll() {
            let Some(&index) = self.by_qpn.get(&(node.0, completion.qpn.value())) else {
                return self.violations.push(now, format!("{completion:?} of no queue pair"));
            };
            let result = match (completion.kind, frame) {
                (CompletionKind::Receive, Some(frame)) => self.receive_completed(index, &completion, frame),
                (CompletionKind::Receive, None) => Err("nothing has arrived".into()),
                _ => self.send_completed(index, &completion),
            };
            if let Err(text) = result {
                self.violations.push(now, format!("station {index}: {completion:?}: {text}"));
            }
            self.want_post(now, index);
        }
    }

    fn send_completed(&mut self, index: usize, completion: &Completion) -> Result<(), String> {
        let station = &mut self.stations[index];
        let next = station.completed;
        if (completion.wr_id, completion.status) != (next as u64, Status::Success) || station.sent <= next {
            return Err(format!("{next} is next, and {} are sent", station.sent));
        }
        let Datagram { slot, len, .. } = station.sent_datagrams[next];
        station.completed += 1;
        self.next_name += 1;
        station.arena.scribble(self.layout.source(slot), len, self.next_name);
        station.free_sources.push(slot);
        Ok(())
    }

    fn receive_completed(&mut self, index: usize, completion: &Completion, frame: &[u8]) -> Result<(), String> {
        let Some((from, number)) = self.stations[index].due.take() else { return Err("no datagram is due".into()) };
        let source_qpn = self.stations[from].qpn;
        let datagram = self.stations[from].sent_datagrams[number].clone();
        let station = &mut self.stations[index];
        let Some(receive) = station.receives.pop_front() else { return Err("was never posted".into()) };
        let due = Completion {
            cause: None,
            status: Status::Success,
            byte_len: (GRH_BYTES + datagram.len) as u32,
            immediate: datagram.immediate,
            invalidated: None,
            source_qpn,
            network_header: Some(match self.setting.v6 {
                true => NetworkHeader::Ipv6,
                false => NetworkHeader::Ipv4,
            }),
            wr_id: receive.wr_id,
            ..*completion
        };
        if *completion != due {
            return Err(format!("{due:?} is due"));
        }
        let offset = self.layout.receive(receive.slot);
        let header = station.arena.shadow(offset, GRH_BYTES);
        // The header is the IPv6 header, or zeros and the IPv4 header (IBTA A17.4.5.2).
        match self.setting.v6 {
            true => header.copy_from_slice(&frame[ETHERNET_BYTES..][..40]),
            false => {
                header[..20].fill(0);
                header[20..].copy_from_slice(&frame[ETHERNET_BYTES..][..20]);
            }
        }
        pattern::fill(datagram.name, 0, station.arena.shadow(offset + GRH_BYTES, datagram.len));
        if let Some(at) = station.arena.differences(offset..offset + self.layout.slot).first() {
            return Err(format!("byte {} of its buffer is wrong", at - offset));
        }
        self.next_name += 1;
        station.arena.scribble(offset, receive.len, self.next_name);
        station.free_receives.push(receive.slot);
        Ok(())
    }
}

impl Observer for World {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        let header = Header::of(frame);
        let Some(&index) = self.by_qpn.get(&(node.0, header.source_qpn().value())) else {
            return self.violations.push(now, format!("node {}: a datagram of no queue pair", node.0));
        };
        let station = &self.stations[index];
        let number = station.sent;
        let destination = station.sent_datagrams.get(number).map(|datagram| {
            let to = &self.stations[datagram.to];
            (to.node, to.qpn, datagram.q_key.0.to_be_bytes())
        });
        if destination != Some((to, header.qpn, header.words[0]))
            || header.count(station.base, number as u64) != Some(number as u64)
        {
            let text = format!("station {index} sends to {} with PSN {} as number {number}", header.qpn, header.psn);
            self.violations.push(now, text);
        }
        self.stations[index].sent += 1;
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        self.poll(now, node, None);
    }

    fn arriving(&mut self, _now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        let header = Header::of(frame);
        let Some(&index) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        if condition != Condition::Intact {
            return;
        }
        let sender = self.stations.iter().position(|station| {
            station.qpn == header.source_qpn() && header.count(station.base, station.sent as u64).is_some()
        });
        let Some(from) = sender else { return };
        let Some(number) = header.count(self.stations[from].base, self.stations[from].sent as u64) else { return };
        let Datagram { q_key, len, .. } = self.stations[from].sent_datagrams[number as usize];
        let station = &mut self.stations[index];
        if q_key != station.q_key {
            station.wrong_keys += 1;
        } else if station.receives.front().is_none_or(|receive| GRH_BYTES + len > receive.len) {
            station.dropped += 1;
        } else {
            station.due = Some((from, number as usize));
        }
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        self.poll(now, node, frame);
        let Some(header) = frame.map(Header::of) else { return };
        let Some(&index) = self.by_qpn.get(&(node.0, header.qpn.value())) else { return };
        let station = &mut self.stations[index];
        if let Some((from, number)) = station.due.take() {
            self.violations.push(now, format!("station {index}: datagram {number} of {from} was not reported"));
            return;
        }
        let Ok(counters) = endpoint.queue_pair_counters(header.qpn) else { return };
        let due = (station.wrong_keys, station.dropped);
        if (counters.bad_q_key, counters.dropped_message) != due {
            let text = format!("station {index}: {counters:?}, where (wrong keys, dropped) must be {due:?}");
            self.violations.push(now, text);
        }
    }
}

impl stage::World for World {
    fn begin(&mut self, network: &mut Network) {
        self.queues = (0..self.setting.nodes).map(|_| Arc::new(CompletionRing::new(4096, || {}))).collect();
        let count = self.setting.nodes * self.random.between(1, 3) as usize;
        (0..count).for_each(|index| self.add_station(network, index));
    }

    fn woken(&mut self, network: &mut Network, token: u64) {
        self.post(network, token as usize);
    }

    fn poll_all(&mut self, now: Instant) {
        (0..self.setting.nodes).for_each(|node| self.poll(now, NodeId(node), None));
    }

    fn rest(&mut self, network: &mut Network) {
        let now = network.now();
        for index in 0..self.stations.len() {
            let node = self.stations[index].node;
            self.poll(now, node, None);
            let station = &mut self.stations[index];
            if station.completed != station.quota {
                let text = format!("station {index}: {} of {} completed", station.completed, station.quota);
                self.violations.push(now, text);
            }
            if let Some(what) = self.layout.damage(&mut station.arena) {
                self.violations.push(now, format!("station {index}: {what}"));
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

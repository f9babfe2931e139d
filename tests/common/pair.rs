//! Two endpoints, connected, over a network in virtual time with faults from a seed.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory, Pd, WindowKind};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Capabilities, Completion, CompletionQueue, Counters, Data, Destination, Endpoint, Event, Path, QpAttributes,
    QueuePairInit, ReceiveRequest, RecoveryMode, RecoverySettings, Remote, SendOperation, SendRequest, Service, Sge,
    Srq, State, Status,
};
use uroce::wire::{Addresses, Flow, Key, Opcode, PathMtu, Placement, Psn, QKey, Qpn, RnrTimer, Selectivity};

/// Probabilities, 0 to 1, for each frame.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    /// Delayed by a random time of up to ten packets.
    pub reorder: f64,
    /// One bit flipped, anywhere.
    pub corrupt: f64,
}

impl Faults {
    pub const NONE: Faults = Faults { loss: 0.0, duplicate: 0.0, reorder: 0.0, corrupt: 0.0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

pub struct Node {
    pub endpoint: Endpoint,
    pub memory: Arc<HostMemory>,
    pub key: Key,
    pub pd: Pd,
    pub qpn: Qpn,
    pub srq: Option<Srq>,
    cq: Arc<CompletionQueue>,
}

pub struct Pair {
    seed: u64,
    pub now: Instant,
    random: ChaCha8Rng,
    faults: Faults,
    nodes: [Node; 2],
    /// Frames on their way: when they arrive, to whom; kept in order of arrival.
    wire: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Every frame sent from now on and when, as a capture in front of all faults has it; each direction is a queue then.
    pub trace: Option<Vec<(Instant, Vec<u8>)>>,
    /// When the last frame of each sender left, while there is a trace.
    left: [Instant; 2],
}

/// One way, without reordering.
const DELAY: Duration = Duration::from_micros(10);
/// Between two frames of one sender.
const SPACING: Duration = Duration::from_nanos(100);

/// Bytes that depend on the seed and their place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

impl Pair {
    /// Bytes registered on each side.
    pub const BYTES: usize = 1 << 20;
    pub const HALF: usize = Self::BYTES / 2;
    pub const RETRY_COUNT: u8 = 7;
    pub const Q_KEY: QKey = QKey(0x1111_1111);

    /// A connection both of whose ends recover in that way.
    pub fn new(recovery: RecoveryMode, seed: u64, path_mtu: PathMtu, first_psn: Psn, faults: Faults) -> Pair {
        Pair::of(Service::Rc, recovery, false, seed, path_mtu, first_psn, faults)
    }

    /// A pair of any service, with shared receive queues on both sides or not.
    pub fn of(
        service: Service,
        recovery: RecoveryMode,
        shared: bool,
        seed: u64,
        path_mtu: PathMtu,
        first_psn: Psn,
        faults: Faults,
    ) -> Pair {
        let access =
            Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND;
        let access = access | Access::FLUSH_GLOBAL;
        let nodes = [1, 2].map(|n| {
            let mut endpoint = Endpoint::new([seed as u8 ^ n; 32]);
            endpoint.set_recovery(RecoverySettings { recovery, ..RecoverySettings::default() });
            let pd = endpoint.allocate_pd();
            let memory = Arc::new(HostMemory::new(Self::BYTES).unwrap());
            let key = endpoint.memory().register(pd, memory.clone(), access);
            let cq = Arc::new(CompletionQueue::new(4096, || {}));
            let capabilities = Capabilities { max_send_requests: 1024, max_receive_requests: 1024 };
            let (send_cq, receive_cq) = (cq.clone(), cq.clone());
            let srq = shared.then(|| endpoint.create_srq(pd, 1024).unwrap());
            let init = QueuePairInit { service, pd, capabilities, send_cq, receive_cq, srq, path_mtu };
            let qpn = endpoint.create_queue_pair(init).unwrap();
            Node { endpoint, memory, key, pd, qpn, srq, cq }
        });
        let random = ChaCha8Rng::seed_from_u64(seed);
        let mut pair = Pair {
            seed,
            now: Instant::ZERO,
            random,
            faults,
            nodes,
            wire: VecDeque::new(),
            trace: None,
            left: [Instant::ZERO; 2],
        };
        let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        for (me, peer) in [(0, 1), (1, 0)] {
            let destination = pair.nodes[peer].qpn;
            let Node { endpoint, qpn, .. } = &mut pair.nodes[me];
            let flow = Flow {
                addresses: Addresses::V4 { source: addresses[me], destination: addresses[peer] },
                source_port: 0xc000,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            };
            let (reliable, datagram) = (service == Service::Rc, matches!(service, Service::Ud | Service::Gsi));
            let init = QpAttributes {
                state: Some(State::Init),
                p_key_index: Some(0),
                port: (service != Service::Gsi).then_some(1),
                access: (!datagram).then_some(access),
                q_key: datagram.then_some(Self::Q_KEY),
                ..Default::default()
            };
            let to_receive = QpAttributes {
                state: Some(State::ReadyToReceive),
                path: (!datagram).then_some(Path { flow, hop: Hop(peer as u64) }),
                path_mtu: (!datagram).then_some(path_mtu),
                destination: (!datagram).then_some(destination),
                receive_psn: (!datagram).then_some(first_psn.plus(peer as u32 * 17)),
                max_dest_rd_atomic: reliable.then_some(8),
                min_rnr_timer: reliable.then_some(RnrTimer::new(12)),
                ..Default::default()
            };
            let to_send = QpAttributes {
                state: Some(State::ReadyToSend),
                send_psn: Some(first_psn.plus(me as u32 * 17)),
                timeout: reliable.then_some(8), // 1 ms
                retry_count: reliable.then_some(Self::RETRY_COUNT),
                rnr_retry: reliable.then_some(7),
                max_rd_atomic: reliable.then_some(8),
                ..Default::default()
            };
            for attributes in [init, to_receive, to_send] {
                endpoint.modify(Instant::ZERO, *qpn, &attributes).unwrap();
            }
        }
        pair
    }

    /// Where datagrams from `side` to the other go.
    pub fn destination(&self, side: Side, q_key: QKey) -> Destination {
        let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let (me, peer) = (side as usize, side.other() as usize);
        let flow = Flow {
            addresses: Addresses::V4 { source: addresses[me], destination: addresses[peer] },
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        Destination { path: Path { flow, hop: Hop(peer as u64) }, qpn: self.qpn(side.other()), q_key }
    }

    pub fn node(&mut self, side: Side) -> &mut Node {
        &mut self.nodes[side as usize]
    }

    pub fn fill(&self, side: Side, offset: usize, bytes: &[u8]) {
        self.nodes[side as usize].memory.write(offset, bytes);
    }

    pub fn bytes(&self, side: Side, offset: usize, len: usize) -> Vec<u8> {
        self.nodes[side as usize].memory.to_vec(offset, len)
    }

    pub fn u64(&self, side: Side, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(side, offset, 8).try_into().unwrap())
    }

    pub fn data(&self, side: Side, offset: usize, len: usize) -> Data {
        let node = &self.nodes[side as usize];
        Data::sge(node.memory.address() + offset as u64, len as u32, node.key)
    }

    pub fn remote(&self, side: Side, offset: usize) -> Remote {
        let node = &self.nodes[side as usize];
        Remote { address: node.memory.address() + offset as u64, key: node.key }
    }

    pub fn qpn(&self, side: Side) -> Qpn {
        self.nodes[side as usize].qpn
    }

    pub fn state(&self, side: Side) -> State {
        let node = &self.nodes[side as usize];
        node.endpoint.queue_pair(node.qpn).unwrap().state()
    }

    pub fn counters(&self, side: Side) -> Counters {
        self.nodes[side as usize].endpoint.counters()
    }

    pub fn event(&mut self, side: Side) -> Option<Event> {
        self.node(side).endpoint.poll_event()
    }

    pub fn deregister(&mut self, side: Side) {
        let key = self.node(side).key;
        self.node(side).endpoint.memory().deregister(key).unwrap();
    }

    pub fn allocate_window(&mut self, side: Side) -> Key {
        let pd = self.node(side).pd;
        self.node(side).endpoint.memory().allocate_window(pd, WindowKind::Two)
    }

    pub fn set_access(&mut self, side: Side, access: Access) {
        self.modify(side, &QpAttributes { access: Some(access), ..Default::default() });
    }

    pub fn set_rnr_retry(&mut self, side: Side, count: u8) {
        // It may be changed only while the send queue is drained.
        let state = |state| QpAttributes { state: Some(state), ..Default::default() };
        self.modify(side, &state(State::SendQueueDrained));
        self.modify(side, &QpAttributes { rnr_retry: Some(count), ..Default::default() });
        self.modify(side, &state(State::ReadyToSend));
    }

    pub fn modify(&mut self, side: Side, attributes: &QpAttributes) {
        let (now, qpn) = (self.now, self.qpn(side));
        self.node(side).endpoint.modify(now, qpn, attributes).unwrap();
    }

    pub fn post(&mut self, side: Side, request: SendRequest) {
        let (now, qpn) = (self.now, self.qpn(side));
        self.node(side).endpoint.post_send(now, qpn, request).unwrap();
    }

    pub fn post_receive(&mut self, side: Side, wr_id: u64, offset: usize, length: u32) {
        let (now, node) = (self.now, self.node(side));
        let address = node.memory.address() + offset as u64;
        let sges = [Sge { address, length, lkey: node.key }].into_iter().collect();
        let request = ReceiveRequest { wr_id, sges };
        match node.srq {
            Some(srq) => node.endpoint.post_srq_receive(srq, request).unwrap(),
            None => node.endpoint.post_receive(now, node.qpn, request).unwrap(),
        }
    }

    pub fn try_completion(&mut self, side: Side) -> Option<Completion> {
        self.node(side).cq.poll()
    }

    /// The next completion, however long it takes (up to ten virtual seconds).
    pub fn completion(&mut self, side: Side) -> Completion {
        let end = self.now + Duration::from_secs(10);
        loop {
            if let Some(completion) = self.try_completion(side) {
                return completion;
            }
            let more = self.step(end) || !self.nodes[side as usize].cq.is_empty();
            assert!(more, "seed {}: no completion on side {side:?}", self.seed);
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Nothing is in flight, armed or waiting, and no completion is left.
    pub fn assert_quiet(&mut self) {
        self.run_for(Duration::from_secs(2));
        for side in [Side::A, Side::B] {
            assert!(self.try_completion(side).is_none(), "seed {}", self.seed);
            let now = self.now;
            let endpoint = &mut self.node(side).endpoint;
            endpoint.handle_timeout(now);
            assert_eq!((endpoint.poll_timeout(), endpoint.may_transmit()), (None, false));
        }
        assert!(self.wire.is_empty());
    }

    fn chance(&mut self, probability: f64) -> bool {
        f64::from(self.random.next_u32()) < probability * f64::from(u32::MAX) && probability > 0.0
    }

    fn send(&mut self, from: usize, index: u32, packet: &[u8]) {
        // An Ethernet header, as the link would prepend it.
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend(packet);
        let mut leaves = self.now + SPACING * index;
        if let Some(trace) = &mut self.trace {
            leaves = leaves.max(self.left[from] + SPACING);
            self.left[from] = leaves;
            trace.push((leaves, frame.clone()));
        }
        if self.chance(self.faults.loss) {
            return;
        }
        if self.chance(self.faults.corrupt) {
            let bit = self.random.next_u32() as usize % (packet.len() * 8);
            frame[14 + bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            let extra = match self.chance(self.faults.reorder) {
                true => self.random.next_u32() % 1000,
                false => 0,
            };
            let at = leaves + DELAY + Duration::from_nanos(extra.into());
            let place = self.wire.partition_point(|(other, ..)| *other <= at);
            self.wire.insert(place, (at, 1 - from, frame.clone()));
        }
    }

    /// Whether acknowledges are all that a side would send now.
    pub fn owes_only_acknowledges(&mut self, side: Side) -> bool {
        self.node(side).endpoint.owes_only_acknowledges()
    }

    /// Sends what a side has to send, and tells its opcodes.
    pub fn transmit(&mut self, side: Side) -> Vec<Opcode> {
        let mut buffer = vec![0; 8192];
        let mut opcodes = Vec::new();
        while let Some(transmit) = {
            let now = self.now;
            self.node(side).endpoint.poll_transmit(now, &mut buffer)
        } {
            // The first byte behind IPv4 and UDP.
            opcodes.push(Opcode(buffer[28]));
            self.send(side as usize, opcodes.len() as u32, &buffer[..transmit.len]);
        }
        opcodes
    }

    /// Goes on to the next thing that happens before `end`. False when nothing does.
    pub fn step(&mut self, end: Instant) -> bool {
        let mut buffer = vec![0; 8192];
        for from in 0..2 {
            let mut index = 0;
            while let Some(transmit) = self.nodes[from].endpoint.poll_transmit(self.now, &mut buffer) {
                assert_eq!(transmit.hop, Hop(1 - from as u64));
                self.send(from, index, &buffer[..transmit.len]);
                index += 1;
            }
        }
        let timeout = self.nodes.iter().filter_map(|node| node.endpoint.poll_timeout()).min();
        let arrival = self.wire.front().map(|(at, ..)| *at);
        let Some(next) = [timeout, arrival].into_iter().flatten().min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= self.now)
            && let Some((_, to, frame)) = self.wire.pop_front()
        {
            // Split at a random point behind the headers, as multi-buffer frames are.
            let cut = frame.len().min(90 + self.random.next_u32() as usize % 1000);
            let (head, tail) = frame.split_at(cut);
            self.nodes[to].endpoint.handle_frame(self.now, FrameBytes { head, tail });
        }
        for node in &mut self.nodes {
            node.endpoint.handle_timeout(self.now);
        }
        true
    }

    /// Posts `count` random operations from A to B, all at once, and checks memory, results and order. WRITEs and SENDs
    /// go to places of their own; READs read what nobody writes; atomics add up.
    pub fn run_pipeline(&mut self, count: usize) {
        const SLOT: usize = 3000;
        const COUNTER: usize = Pair::HALF - 8;
        let source = pattern(self.seed, Self::BYTES);
        self.fill(Side::A, 0, &source[..Self::HALF]);
        self.fill(Side::B, 0, &[0; Self::HALF]);
        self.fill(Side::B, Self::HALF, &source[Self::HALF..]);
        // (operation, offset at A, offset at B, length, value)
        let mut posted = Vec::new();
        let (mut sum, mut receives) = (0, VecDeque::new());
        for i in 0..count {
            let len = self.random.next_u32() as usize % (SLOT + 1);
            let (here, there, readable) = (i * SLOT, i * SLOT, Self::HALF + i * SLOT);
            let kind = self.random.next_u32() % 7;
            let operation = match kind {
                0 => SendOperation::Send,
                1 => SendOperation::Write(self.remote(Side::B, there)),
                2 => SendOperation::WriteWithImmediate(self.remote(Side::B, there), i as u32),
                3 => SendOperation::Read(self.remote(Side::B, readable)),
                5 => SendOperation::AtomicWrite(self.remote(Side::B, there)),
                6 => SendOperation::Flush {
                    remote: self.remote(Side::B, 0),
                    length: (i * SLOT) as u32,
                    placement: Placement::GLOBAL,
                    selectivity: if len.is_multiple_of(2) { Selectivity::Range } else { Selectivity::Region },
                },
                _ => SendOperation::FetchAdd { remote: self.remote(Side::B, COUNTER), add: i as u64 },
            };
            if kind == 0 || kind == 2 {
                self.post_receive(Side::B, i as u64, there, SLOT as u32);
                receives.push_back((i as u64, len as u32, (kind == 2).then_some(i as u32)));
            }
            // READs and atomics write into the upper half of A, which nothing else touches.
            let (from, len) = match kind {
                3 => (Self::HALF + here, len),
                4 => (Self::HALF + here, 8),
                5 => (here, 8),
                6 => (here, 0),
                _ => (here, len),
            };
            self.post(Side::A, SendRequest::new(i as u64, operation, self.data(Side::A, from, len)));
            posted.push((kind, here, there, len, sum));
            if kind == 4 {
                sum += i as u64;
            }
        }
        for (i, &(kind, here, there, len, sum)) in posted.iter().enumerate() {
            let seed = self.seed;
            let done = self.completion(Side::A);
            assert_eq!((done.wr_id, done.status), (i as u64, Status::Success), "seed {seed}");
            match kind {
                3 => assert_eq!(
                    self.bytes(Side::A, Self::HALF + here, len),
                    source[Self::HALF + here..][..len],
                    "seed {seed}: READ {i}"
                ),
                4 => assert_eq!(self.u64(Side::A, Self::HALF + here), sum, "seed {seed}: atomic {i}"),
                _ => assert_eq!(self.bytes(Side::B, there, len), source[here..][..len], "seed {seed}: {kind} {i}"),
            }
        }
        while let Some((wr_id, byte_len, immediate)) = receives.pop_front() {
            let done = self.completion(Side::B);
            assert_eq!((done.wr_id, done.byte_len, done.immediate), (wr_id, byte_len, immediate), "seed {}", self.seed);
        }
        assert_eq!(
            self.u64(Side::B, COUNTER),
            posted.iter().enumerate().filter(|(_, p)| p.0 == 4).map(|(i, _)| i as u64).sum()
        );
    }
}

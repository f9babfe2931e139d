use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory, WindowKind};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Completion, CompletionRing, Counters, Data, Destination, Endpoint, Event, QpAttributes, ReceiveRequest,
    RecoveryMode, RecoverySettings, Remote, SendRequest, Service, Sge, Srq, State,
};
use uroce::wire::{Key, Opcode, PathMtu, Psn, QKey, Qpn, RnrTimer};

use crate::ethernet::ETHERNET_BYTES;

use super::{Host, Peering, path, with_ethernet};

/// The faults of each frame: probabilities from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Chances {
    /// The probability that a frame is lost.
    pub loss: f64,
    /// The probability that a frame arrives twice.
    pub duplicate: f64,
    /// The probability that a frame is delayed by a random time, up to that of ten packets.
    pub reorder: f64,
    /// The probability that one bit behind the Ethernet header is flipped.
    pub corrupt: f64,
}

impl Chances {
    /// A network without faults.
    pub const NONE: Chances = Chances { loss: 0.0, duplicate: 0.0, reorder: 0.0, corrupt: 0.0 };
}

/// One side of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they are
pub enum Side {
    A,
    B,
}

impl Side {
    /// Both sides, A first.
    pub const BOTH: [Side; 2] = [Side::A, Side::B];

    /// The opposite side of the pair.
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, self as u8 + 1)
    }
}

/// The parameters of a pair.
#[derive(Clone, Copy, Debug)]
pub struct PairPlan {
    /// The transport service of its queue pairs.
    pub service: Service,
    /// How both ends recover losses.
    pub recovery: RecoveryMode,
    /// Whether both ends have a shared receive queue.
    pub is_shared: bool,
    /// The seed of all random decisions.
    pub seed: u64,
    /// The path MTU of both directions.
    pub path_mtu: PathMtu,
    /// The first PSN of A; that of B is 17 later.
    pub first_psn: Psn,
    /// The faults of the network.
    pub faults: Chances,
}

impl PairPlan {
    /// A pair with queues of its own, path MTU 1024 and PSNs from 0 on, over a network without faults.
    pub fn new(service: Service, recovery: RecoveryMode) -> PairPlan {
        let (path_mtu, first_psn, faults) = (PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
        PairPlan { service, recovery, is_shared: false, seed: 1, path_mtu, first_psn, faults }
    }
}

struct End {
    host: Host,
    qpn: Qpn,
    srq: Option<Srq>,
}

/// Two endpoints, connected, over a network in virtual time with faults from a seed.
pub struct Pair {
    pub(super) seed: u64,
    /// The current virtual time.
    pub now: Instant,
    pub(super) random: ChaCha8Rng,
    faults: Chances,
    ends: [End; 2],
    /// Frames in flight: arrival time, receiver and bytes, in the order of arrival.
    wire: VecDeque<(Instant, Side, Vec<u8>)>,
    /// Every frame sent from now on, and when, as a capture before all faults has them. While there is a trace, each
    /// sender's frames leave in order.
    pub trace: Option<Vec<(Instant, Vec<u8>)>>,
    /// When the last frame of each sender left, while there is a trace.
    left: [Instant; 2],
    buffer: Vec<u8>,
}

/// The delay in one direction, without reordering.
const DELAY: Duration = Duration::from_micros(10);
/// The time between two frames of one sender.
const SPACING: Duration = Duration::from_nanos(100);

/// The number of requests that each work queue and shared receive queue holds.
const REQUESTS: usize = 1024;

/// Length of the buffer in bytes; a packet of path MTU 4096 fits, with all headers.
const BUFFER_BYTES: usize = 8192;

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL);

/// Random bytes, which depend only on the seed and their position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

impl Pair {
    /// Length of the registered memory of each side, in bytes.
    pub const BYTES: usize = 1 << 20;
    /// Half of that length.
    pub const HALF: usize = Self::BYTES / 2;
    /// The number of retries of both requesters.
    pub const RETRY_COUNT: u8 = 7;
    /// The Q_Key that datagrams must have.
    pub const Q_KEY: QKey = QKey(0x1111_1111);

    /// A pair with a reliable connection, and the given recovery at both ends.
    pub fn new(recovery: RecoveryMode, seed: u64, path_mtu: PathMtu, first_psn: Psn, faults: Chances) -> Pair {
        Pair::of(PairPlan { seed, path_mtu, first_psn, faults, ..PairPlan::new(Service::Rc, recovery) })
    }

    /// A pair of any service.
    pub fn of(plan: PairPlan) -> Pair {
        let PairPlan { service, recovery, is_shared, seed, path_mtu, first_psn, faults } = plan;
        let mut ends = Side::BOTH.map(|side| {
            let memory = Arc::new(HostMemory::new(Self::BYTES).unwrap());
            let recovery = RecoverySettings { recovery, ..RecoverySettings::default() };
            let cq = CompletionRing::new(4096, || {});
            let mut host = Host::new(seed as u8 ^ (side as u8 + 1), recovery, memory, ACCESS, cq);
            let srq = is_shared.then(|| host.endpoint.create_srq(host.pd, REQUESTS).unwrap());
            let init = host.init(service, REQUESTS, srq, path_mtu);
            let qpn = host.endpoint.create_queue_pair(init).unwrap();
            End { host, qpn, srq }
        });
        let psn = |side: Side| first_psn.plus(side as u32 * 17);
        for side in Side::BOTH {
            let path = path(side.address(), side.other().address(), side.other() as u64);
            let peering = Peering {
                service,
                access: ACCESS,
                path_mtu,
                send_psn: psn(side),
                receive_psn: psn(side.other()),
                rd_atomic: 8,
                rnr_timer: RnrTimer::new(12),
                timeout: 8, // 1 ms
                retry_count: Self::RETRY_COUNT,
                q_key: Self::Q_KEY,
                ..Peering::new(path, ends[side.other() as usize].qpn)
            };
            let End { host, qpn, .. } = &mut ends[side as usize];
            peering.connect(&mut host.endpoint, Instant::ZERO, *qpn);
        }
        Pair {
            seed,
            now: Instant::ZERO,
            random: ChaCha8Rng::seed_from_u64(seed),
            faults,
            ends,
            wire: VecDeque::new(),
            trace: None,
            left: [Instant::ZERO; 2],
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    fn host(&self, side: Side) -> &Host {
        &self.end(side).host
    }

    /// The endpoint of a side.
    pub fn endpoint(&mut self, side: Side) -> &mut Endpoint {
        &mut self.ends[side as usize].host.endpoint
    }

    /// The number of a side's queue pair.
    pub fn qpn(&self, side: Side) -> Qpn {
        self.end(side).qpn
    }

    /// The shared receive queue of a side.
    ///
    /// # Panics
    /// When the pair was made without.
    pub fn srq(&self, side: Side) -> Srq {
        self.end(side).srq.expect("the pair was made with shared receive queues")
    }

    /// The destination of datagrams from `side` to the other one.
    pub fn destination(&self, side: Side, q_key: QKey) -> Destination {
        let path = path(side.address(), side.other().address(), side.other() as u64);
        Destination { path, qpn: self.qpn(side.other()), q_key }
    }

    /// Writes `bytes` into a side's memory, from `offset` on.
    pub fn fill(&self, side: Side, offset: usize, bytes: &[u8]) {
        self.host(side).memory.write(offset, bytes);
    }

    /// Reads `len` bytes of a side's memory, from `offset` on.
    pub fn bytes(&self, side: Side, offset: usize, len: usize) -> Vec<u8> {
        self.host(side).memory.to_vec(offset, len)
    }

    /// Reads eight bytes of a side's memory as a number in native byte order.
    pub fn u64(&self, side: Side, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(side, offset, 8).try_into().unwrap())
    }

    /// A range of a side's memory, for its own requests.
    pub fn data(&self, side: Side, offset: usize, len: usize) -> Data {
        let host = self.host(side);
        Data::sge(host.memory.address() + offset as u64, len as u32, host.key)
    }

    /// An address in a side's memory and its key, for the other side's requests.
    pub fn remote(&self, side: Side, offset: usize) -> Remote {
        let host = self.host(side);
        Remote { address: host.memory.address() + offset as u64, key: host.key }
    }

    /// The state of a side's queue pair.
    pub fn state(&self, side: Side) -> State {
        self.host(side).endpoint.queue_pair(self.qpn(side)).unwrap().state()
    }

    /// The counters of a side's endpoint.
    pub fn counters(&self, side: Side) -> Counters {
        self.host(side).endpoint.counters()
    }

    /// The next event of a side; `None` when there is none.
    pub fn event(&mut self, side: Side) -> Option<Event> {
        self.endpoint(side).poll_event()
    }

    /// Deregisters the memory of a side.
    pub fn deregister(&mut self, side: Side) {
        let key = self.host(side).key;
        self.endpoint(side).memory().deregister(key).unwrap();
    }

    /// Allocates a window of type 2, not yet bound.
    pub fn allocate_window(&mut self, side: Side) -> Key {
        let pd = self.host(side).pd;
        self.endpoint(side).memory().allocate_window(pd, WindowKind::Two)
    }

    /// Changes the operations that a side allows its peer.
    pub fn set_access(&mut self, side: Side, access: Access) {
        self.modify(side, &QpAttributes { access: Some(access), ..Default::default() });
    }

    /// Changes the number of a side's retries after RNR NAKs.
    pub fn set_rnr_retry(&mut self, side: Side, count: u8) {
        // The attribute can be changed only while the send queue is drained.
        let state = |state| QpAttributes { state: Some(state), ..Default::default() };
        self.modify(side, &state(State::SendQueueDrained));
        self.modify(side, &QpAttributes { rnr_retry: Some(count), ..Default::default() });
        self.modify(side, &state(State::ReadyToSend));
    }

    /// Modifies the attributes of a side's queue pair.
    pub fn modify(&mut self, side: Side, attributes: &QpAttributes) {
        let (now, qpn) = (self.now, self.qpn(side));
        self.endpoint(side).modify(now, qpn, attributes).unwrap();
    }

    /// Posts a send request on a side.
    pub fn post(&mut self, side: Side, request: SendRequest) {
        let (now, qpn) = (self.now, self.qpn(side));
        self.endpoint(side).post_send(now, qpn, request).unwrap();
    }

    /// Posts a receive request, to the shared receive queue if there is one.
    pub fn post_receive(&mut self, side: Side, wr_id: u64, offset: usize, length: u32) {
        let now = self.now;
        let End { host, qpn, srq } = &mut self.ends[side as usize];
        let sge = Sge { address: host.memory.address() + offset as u64, length, lkey: host.key };
        let request = ReceiveRequest { wr_id, sges: [sge].into_iter().collect() };
        match srq {
            Some(srq) => host.endpoint.post_srq_receive(*srq, request).unwrap(),
            None => host.endpoint.post_receive(now, *qpn, request).unwrap(),
        }
    }

    /// The next completion of a side; `None` when there is none yet.
    pub fn try_completion(&mut self, side: Side) -> Option<Completion> {
        self.host(side).cq.poll()
    }

    /// Waits for the next completion of a side, up to ten virtual seconds.
    ///
    /// # Panics
    /// When there is none in this time.
    pub fn completion(&mut self, side: Side) -> Completion {
        let end = self.now + Duration::from_secs(10);
        loop {
            if let Some(completion) = self.try_completion(side) {
                return completion;
            }
            let more = self.step(end) || !self.host(side).cq.is_empty();
            assert!(more, "seed {}: no completion on side {side:?}", self.seed);
        }
    }

    /// Runs the network for `time` of virtual time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Checks, after two virtual seconds, that no frame is in flight, no timer is armed, and no completion is left.
    ///
    /// # Panics
    /// When one of these is.
    pub fn assert_quiet(&mut self) {
        self.run_for(Duration::from_secs(2));
        for side in Side::BOTH {
            assert!(self.try_completion(side).is_none(), "seed {}", self.seed);
            let now = self.now;
            let endpoint = self.endpoint(side);
            endpoint.handle_timeout(now);
            assert_eq!((endpoint.poll_timeout(), endpoint.may_transmit()), (None, false));
        }
        assert!(self.wire.is_empty());
    }

    fn chance(&mut self, probability: f64) -> bool {
        f64::from(self.random.next_u32()) < probability * f64::from(u32::MAX) && probability > 0.0
    }

    fn send(&mut self, from: Side, index: u32, len: usize) {
        let mut frame = with_ethernet(&self.buffer[..len]);
        let mut leaves = self.now + SPACING * index;
        if let Some(trace) = &mut self.trace {
            let left = &mut self.left[from as usize];
            leaves = leaves.max(*left + SPACING);
            *left = leaves;
            trace.push((leaves, frame.clone()));
        }
        if self.chance(self.faults.loss) {
            return;
        }
        if self.chance(self.faults.corrupt) {
            let bit = self.random.next_u32() as usize % (len * 8);
            frame[ETHERNET_BYTES + bit / 8] ^= 1 << (bit % 8);
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            let extra = match self.chance(self.faults.reorder) {
                true => self.random.next_u32() % 1000,
                false => 0,
            };
            let at = leaves + DELAY + Duration::from_nanos(extra.into());
            let place = self.wire.partition_point(|(other, ..)| *other <= at);
            self.wire.insert(place, (at, from.other(), frame.clone()));
        }
    }

    /// Whether a side owes only acknowledges now.
    pub fn owes_only_acknowledges(&mut self, side: Side) -> bool {
        self.endpoint(side).owes_only_acknowledges()
    }

    /// Sends all packets that a side is allowed to send, and returns their opcodes.
    pub fn transmit(&mut self, side: Side) -> Vec<Opcode> {
        /// The offset of the BTH, behind the IPv4 and UDP headers.
        const BTH: usize = 28;
        let mut opcodes = Vec::new();
        while let Some(transmit) = self.ends[side as usize].host.endpoint.poll_transmit(self.now, &mut self.buffer) {
            assert_eq!(transmit.hop, Hop(side.other() as u64));
            self.send(side, opcodes.len() as u32, transmit.len);
            opcodes.push(Opcode(self.buffer[BTH]));
        }
        opcodes
    }

    /// Advances to the next event before `end`. Returns `false` when there is none.
    pub fn step(&mut self, end: Instant) -> bool {
        Side::BOTH.into_iter().for_each(|side| drop(self.transmit(side)));
        let timeout = self.ends.iter_mut().filter_map(|end| end.host.endpoint.poll_timeout()).min();
        let arrival = self.wire.front().map(|(at, ..)| *at);
        let Some(next) = [timeout, arrival].into_iter().flatten().min().filter(|next| *next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        if arrival.is_some_and(|at| at <= now)
            && let Some((_, to, frame)) = self.wire.pop_front()
        {
            // The frame is split at a random offset behind the headers, as multi-buffer frames are.
            let cut = frame.len().min(90 + self.random.next_u32() as usize % 1000);
            let (head, tail) = frame.split_at(cut);
            self.endpoint(to).handle_frame(now, FrameBytes { head, tail });
        }
        Side::BOTH.into_iter().for_each(|side| self.endpoint(side).handle_timeout(now));
        true
    }
}

//! Random programs over random networks, each decided by a seed, and everything that they see checked by an oracle.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::frame::Hop;
use crate::pcap::{Direction, Record, Writer};
use crate::time::{Duration, Instant};
use crate::transport::{
    Capabilities, CompletionQueue, Data, Endpoint, MAX_INLINE_BYTES, MAX_SGE, Path, QpAttributes, QueuePairInit,
    ReceiveRequest, Remote, SendOperation, SendRequest, Service, Sge, State,
};
use crate::wire::{Addresses, Flow as Route, Key, Psn, Qpn};

use super::arena::{Arena, Piece};
use super::flow::{Fault, Flow, Kind, Payload, Wr};
use super::frame_pool::Condition;
use super::link::Lost;
use super::network::{LinkEnd, Network, NodeId, Observer, Step, Tally};
use super::oracle::{Connection, Oracle, Receive, Side};
use super::random::Random;
use super::scenario::{ACCESS, Layout, Plan, Scenario, Trouble};

/// What one seed's run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed, which repeats the run.
    pub seed: u64,
    /// Frames that nodes sent.
    pub packets: u64,
    /// What happened to frames.
    pub tally: Tally,
    /// What went wrong, in the order in which it was found; at most a few, since one often leads to others.
    pub violations: Vec<String>,
}

/// Runs the scenario of `seed`.
pub fn run(seed: u64) -> Outcome {
    World::new(seed, None).run()
}

/// Runs the scenario of `seed` and writes every frame to `capture` when it arrives or is lost, with a remark on what
/// happened to it.
pub fn run_captured(seed: u64, capture: Writer<Box<dyn std::io::Write>>) -> Outcome {
    World::new(seed, Some(capture)).run()
}

/// Events after which a run is said never to come to rest. Ordinary ones take some ten thousand.
const MAX_EVENTS: u64 = 20_000_000;

/// Events between two comparisons of all memory with the model.
const EVENTS_PER_VERIFICATION: u64 = 8_000;

/// Who looks on: the oracle, and the capture if there is one.
struct Watch {
    oracle: Oracle,
    capture: Option<Writer<Box<dyn std::io::Write>>>,
}

impl Watch {
    fn record(&mut self, time: Instant, frame: &[u8], comment: Option<&str>) {
        if let Some(capture) = &mut self.capture {
            let record = Record { time, direction: Direction::Received, parts: &[frame], comment };
            if let Err(error) = capture.write(record) {
                self.oracle.violation(time, format!("the capture cannot be written: {error}"));
                self.capture = None;
            }
        }
    }
}

impl Observer for Watch {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        self.oracle.sent(now, node, frame, to);
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        self.oracle.drained(now, node);
    }

    fn lost(&mut self, now: Instant, _to: NodeId, frame: &[u8], why: Lost) {
        let why = match why {
            Lost::Chance => "fault: lost",
            Lost::Burst => "fault: lost in a burst",
            Lost::Blackhole => "fault: lost in a blackhole",
            Lost::QueueFull => "lost: queue full",
        };
        self.record(now, frame, Some(why));
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        let comment = match condition {
            Condition::Intact => None,
            Condition::Corrupted => Some("fault: corrupted"),
            Condition::Forged => Some("fault: forged"),
        };
        self.record(now, frame, comment);
        self.oracle.arriving(now, node, frame, condition);
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        self.oracle.handled(now, node, endpoint, frame);
    }
}

/// What the two programs of a connection have done and will do.
struct Program {
    plan: Plan,
    random: Random,
    /// Requests posted by each side over all lives of the connection.
    posted: [u64; 2],
    lives: u32,
    connected: bool,
    closing: bool,
    /// When this many are posted, trouble comes.
    trouble_at: Option<u64>,
    post_pending: [bool; 2],
    receive_pending: [bool; 2],
    /// Counts lives, so that what was scheduled in an earlier one is known.
    life: u64,
    keys: [Vec<Key>; 2],
    foreign_keys: [Key; 2],
    next_flag: u64,
}

/// What the world is woken for.
#[derive(Clone, Copy, Debug)]
enum Wake {
    Post { c: usize, s: usize },
    Receive { c: usize, s: usize },
    Close { c: usize },
    Poll { node: usize },
}

impl Wake {
    fn token(self, life: u64) -> u64 {
        let (kind, a, b) = match self {
            Wake::Post { c, s } => (0, c, s),
            Wake::Receive { c, s } => (1, c, s),
            Wake::Close { c } => (2, c, 0),
            Wake::Poll { node } => (3, node, 0),
        };
        life << 32 | kind << 24 | (a as u64) << 8 | b as u64
    }

    fn from_token(token: u64) -> (u64, Wake) {
        let (a, b) = ((token >> 8 & 0xffff) as usize, (token & 0xff) as usize);
        let wake = match token >> 24 & 0xff {
            0 => Wake::Post { c: a, s: b },
            1 => Wake::Receive { c: a, s: b },
            2 => Wake::Close { c: a },
            _ => Wake::Poll { node: a },
        };
        (token >> 32, wake)
    }
}

struct World {
    seed: u64,
    network: Network,
    watch: Watch,
    scenario: Scenario,
    programs: Vec<Program>,
    poll_pending: Vec<bool>,
}

impl World {
    fn new(seed: u64, capture: Option<Writer<Box<dyn std::io::Write>>>) -> World {
        let scenario = Scenario::new(seed);
        let mut network = Network::new(seed);
        let mut oracle = Oracle::new(scenario.weather, scenario.polls_at_once);
        build(&mut network, &scenario, seed);
        for node in 0..scenario.nodes {
            // One queue for all that completes on a node: just as large as it must be.
            let mut capacity = 0;
            for plan in &scenario.plans {
                for s in [0, 1] {
                    if plan.nodes[s] == node {
                        capacity += plan.depth[s] + plan.receive_depth[s];
                    }
                }
            }
            oracle.queues.push(vec![Arc::new(CompletionQueue::new(capacity, || {}))]);
        }
        let programs = scenario
            .plans
            .iter()
            .enumerate()
            .map(|(c, plan)| {
                let mut random = Random::new(seed, 1000 + c as u64);
                let total = plan.quota[0] + plan.quota[1];
                let trouble_at = (plan.trouble != Trouble::None).then(|| random.below(total + 1));
                Program {
                    plan: plan.clone(),
                    random,
                    posted: [0; 2],
                    lives: plan.lives,
                    connected: false,
                    closing: false,
                    trouble_at,
                    post_pending: [false; 2],
                    receive_pending: [false; 2],
                    life: 0,
                    keys: [Vec::new(), Vec::new()],
                    foreign_keys: [Key(0); 2],
                    next_flag: 1,
                }
            })
            .collect();
        let poll_pending = vec![false; scenario.nodes];
        World { seed, network, watch: Watch { oracle, capture }, scenario, programs, poll_pending }
    }

    fn run(mut self) -> Outcome {
        for c in 0..self.programs.len() {
            let connection = self.make_connection(c);
            self.watch.oracle.connections.push(connection);
            self.connect(c);
        }
        let mut events = 0;
        while let Some(step) = self.network.step(&mut self.watch) {
            events += 1;
            match step {
                Step::Moved => {}
                Step::Handled(node) => self.after(node),
                Step::Woken(token) => self.woken(token),
            }
            if !self.watch.oracle.moved.is_empty() || !self.watch.oracle.failed.is_empty() {
                self.react();
            }
            if events % EVENTS_PER_VERIFICATION == 0 {
                self.verify_all("in between");
            }
            if events > MAX_EVENTS {
                let now = self.network.now();
                self.watch.oracle.violation(now, "does not come to rest".into());
            }
            if !self.watch.oracle.violations.is_empty() {
                break;
            }
        }
        if self.watch.oracle.violations.is_empty() {
            self.rest();
        }
        let tally = self.network.tally();
        Outcome { seed: self.seed, packets: tally.sent, tally, violations: self.watch.oracle.violations }
    }

    fn verify_all(&mut self, what: &str) {
        let now = self.network.now();
        for c in 0..self.programs.len() {
            for s in [0, 1] {
                self.watch.oracle.verify_side(now, c, s, what);
            }
        }
    }

    /// Nothing is left to happen: everything must be done, nothing armed, and no frame unaccounted for.
    fn rest(&mut self) {
        let now = self.network.now();
        for node in 0..self.scenario.nodes {
            self.watch.oracle.poll(now, NodeId(node));
        }
        for c in 0..self.programs.len() {
            for s in [0, 1] {
                let flow = &self.watch.oracle.connections[c].flows[s];
                let plan = &self.programs[c].plan;
                let left = self.programs[c].connected && self.programs[c].posted[s] < plan.quota[s];
                if (flow.completed < flow.posted() || left) && self.programs[c].connected {
                    let text = format!(
                        "connection {c} side {s} is stuck: {} of {} completed, {} of {} posted",
                        flow.completed,
                        flow.posted(),
                        self.programs[c].posted[s],
                        plan.quota[s]
                    );
                    self.watch.oracle.violation(now, text);
                }
            }
        }
        self.verify_all("at the end");
        let tally = self.network.tally();
        let in_flight = self.network.in_flight();
        if in_flight != 0 || tally.sent + tally.duplicated + tally.forged != tally.delivered + tally.lost {
            self.watch.oracle.violation(now, format!("frames are not conserved: {in_flight} in flight, {tally:?}"));
        }
        let mut refused = 0;
        for node in 0..self.scenario.nodes {
            let frames = self.network.node(NodeId(node)).frames();
            let endpoint = self.network.endpoint(NodeId(node));
            let counters = endpoint.counters();
            let rest = (endpoint.poll_timeout(), endpoint.may_transmit());
            if rest != (None, false) {
                let text = format!("node {node} is not at rest: timer {:?}, may transmit {}", rest.0, rest.1);
                self.watch.oracle.violation(now, text);
            }
            if (counters.sent_pkts, counters.rcvd_pkts) != frames {
                let text = format!("node {node} counts {counters:?}, frames sent and received are {frames:?}");
                self.watch.oracle.violation(now, text);
            }
            refused += counters.malformed + counters.bad_icrc + counters.bad_ip_checksum + counters.unknown_qpn;
            refused += counters.bad_tver + counters.bad_opcode + counters.bad_p_key + counters.wrong_address;
            refused += counters.wrong_state + counters.stray_response + counters.rcvd_cnp;
        }
        if refused < tally.delivered_bad {
            let text = format!("{} frames were corrupted or forged, {refused} refused", tally.delivered_bad);
            self.watch.oracle.violation(now, text);
        }
        // All is over: what is still posted must be flushed, in order.
        for c in 0..self.programs.len() {
            if self.programs[c].connected {
                self.close(c);
            }
        }
    }

    /// Completions of a node may be there: they are polled now or after a while.
    fn after(&mut self, node: NodeId) {
        let oracle = &mut self.watch.oracle;
        if oracle.polls_at_once {
            oracle.poll(self.network.now(), node);
        } else if !self.poll_pending[node.0] && oracle.queues[node.0].iter().any(|queue| !queue.is_empty()) {
            self.poll_pending[node.0] = true;
            let at = self.network.now() + self.scenario.poll_every;
            self.network.wake_at(at, Wake::Poll { node: node.0 }.token(0));
        }
    }

    /// Something completed: the programs post on, or give up.
    fn react(&mut self) {
        let mut moved = std::mem::take(&mut self.watch.oracle.moved);
        for (c, s) in moved.drain(..) {
            self.want_post(c, s);
            self.want_receive(c, s);
        }
        self.watch.oracle.moved = moved;
        let mut failed = std::mem::take(&mut self.watch.oracle.failed);
        for c in failed.drain(..) {
            self.want_close(c);
        }
        self.watch.oracle.failed = failed;
    }

    fn wake(&mut self, at: Instant, wake: Wake, c: usize) {
        self.network.wake_at(at, wake.token(self.programs[c].life));
    }

    fn want_close(&mut self, c: usize) {
        let program = &mut self.programs[c];
        if program.connected && !program.closing {
            program.closing = true;
            let later = program.random.up_to(self.scenario.core.delay * 6 + Duration::from_micros(20));
            let at = self.network.now() + later;
            self.wake(at, Wake::Close { c }, c);
        }
    }

    fn want_post(&mut self, c: usize, s: usize) {
        let program = &mut self.programs[c];
        if program.connected && !program.post_pending[s] && program.posted[s] < program.plan.quota[s] {
            program.post_pending[s] = true;
            let at = self.network.now() + program.random.up_to(program.plan.think);
            self.wake(at, Wake::Post { c, s }, c);
        }
    }

    fn want_receive(&mut self, c: usize, s: usize) {
        let program = &mut self.programs[c];
        let missing = self.watch.oracle.connections[c].sides[s].receives.len() < program.plan.receive_depth[s];
        if !program.connected || !missing || self.watch.oracle.connections[c].sides[s].killed {
            return;
        }
        if program.plan.receives_ready {
            self.post_receives(c, s, usize::MAX);
        } else if !program.receive_pending[s] {
            program.receive_pending[s] = true;
            let at = self.network.now() + program.random.up_to(program.plan.slowness);
            self.wake(at, Wake::Receive { c, s }, c);
        }
    }

    fn woken(&mut self, token: u64) {
        let (life, wake) = Wake::from_token(token);
        match wake {
            Wake::Poll { node } => {
                self.poll_pending[node] = false;
                let now = self.network.now();
                self.watch.oracle.poll(now, NodeId(node));
            }
            Wake::Post { c, .. } | Wake::Receive { c, .. } | Wake::Close { c } if life != self.programs[c].life => {}
            Wake::Post { c, s } => {
                self.programs[c].post_pending[s] = false;
                self.post_batch(c, s);
            }
            Wake::Receive { c, s } => {
                self.programs[c].receive_pending[s] = false;
                let count = self.programs[c].random.between(1, 4) as usize;
                self.post_receives(c, s, count);
                self.want_receive(c, s);
            }
            Wake::Close { c } => {
                self.close(c);
                let program = &self.programs[c];
                let left = [0, 1].into_iter().any(|s| program.posted[s] < program.plan.quota[s]);
                if program.lives > 0 && left && self.watch.oracle.violations.is_empty() {
                    self.connect(c);
                }
            }
        }
    }

    /// The memory of both sides of a connection, not connected yet.
    fn make_connection(&mut self, c: usize) -> Connection {
        let plan = &self.programs[c].plan;
        let slot = (plan.max_len + 8 * MAX_SGE + 64).next_multiple_of(8);
        let layout = Layout {
            slot,
            sources: plan.depth[0].max(plan.depth[1]),
            sinks: plan.depth[0].max(plan.depth[1]),
            receives: plan.receive_depth[0].max(plan.receive_depth[1]),
            area: (2 * plan.max_len).max(512).next_multiple_of(8),
        };
        let sides = [0, 1].map(|s| Side {
            node: NodeId(plan.nodes[s]),
            qpn: Qpn::default(),
            pd: crate::memory::Pd(0),
            arena: Arena::new(layout.len(), self.seed ^ (c as u64) << 32 ^ (s as u64) << 40),
            local_key: Key(0),
            remote_key: Key(0),
            receives: Default::default(),
            posted_receives: 0,
            killed: true,
            destroyed: true,
            deregistered: false,
            free_sources: Vec::new(),
            free_sinks: Vec::new(),
            free_receives: Vec::new(),
        });
        let flows = [0, 1].map(|_| Flow::new(Psn::default(), Vec::new(), 0));
        let name = (self.seed ^ (c as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Connection::new(sides, flows, layout, plan.mtu.bytes(), plan.rnr_retry, plan.receives_ready, name)
    }

    /// Makes queue pairs and keys on both sides, and begins.
    fn connect(&mut self, c: usize) {
        let now = self.network.now();
        let program = &mut self.programs[c];
        program.lives -= 1;
        program.life += 1;
        (program.connected, program.closing) = (true, false);
        (program.post_pending, program.receive_pending) = ([false; 2], [false; 2]);
        let plan = program.plan.clone();
        // PSNs go on somewhere else in the next life.
        let psns = match program.life {
            1 => plan.first_psns,
            _ => [0, 1].map(|_| Psn::new(program.random.u32())),
        };
        let connection = &mut self.watch.oracle.connections[c];
        let layout = connection.layout;
        for s in [0, 1] {
            let side = &mut connection.sides[s];
            let queue = self.watch.oracle.queues[side.node.0][0].clone();
            let endpoint = self.network.endpoint(side.node);
            side.pd = endpoint.allocate_pd();
            let stranger = endpoint.allocate_pd();
            let capabilities =
                Capabilities { max_send_requests: plan.depth[s], max_receive_requests: plan.receive_depth[s] };
            let init = QueuePairInit {
                service: Service::Rc,
                pd: side.pd,
                capabilities,
                send_cq: queue.clone(),
                receive_cq: queue,
                srq: None,
                path_mtu: plan.mtu,
            };
            side.qpn = endpoint.create_queue_pair(init).expect("there is room for a queue pair");
            let host = || side.arena.host.clone();
            let ((local, local_len), (target, target_len)) = (layout.local(), layout.target());
            let memory = endpoint.memory();
            side.local_key =
                memory.register_part(side.pd, host(), local, local_len, crate::memory::Access::LOCAL_WRITE);
            side.remote_key = memory.register_part(side.pd, host(), target, target_len, ACCESS);
            program.foreign_keys[s] = memory.register_part(stranger, host(), target, target_len, ACCESS);
            program.keys[s] = vec![side.local_key, side.remote_key, program.foreign_keys[s]];
            side.receives.clear();
            side.posted_receives = 0;
            (side.killed, side.destroyed, side.deregistered) = (false, false, false);
            side.free_sources = (0..layout.sources).collect();
            side.free_sinks = (0..layout.sinks).collect();
            side.free_receives = (0..layout.receives).collect();
            self.watch.oracle.by_qpn.insert((side.node.0, side.qpn.value()), (c, s));
        }
        for s in [0, 1] {
            let (target, len) = layout.target();
            let responder = &connection.sides[1 - s].arena;
            let (_, flag) = layout.words();
            let planned = responder.expected(target, len).to_vec();
            connection.flows[s] = Flow::new(psns[s], planned, responder.actual_u64(flag));
        }
        let qpns = [connection.sides[0].qpn, connection.sides[1].qpn];
        for s in [0, 1] {
            for attributes in modifications(&plan, self.scenario.v6, s, qpns[1 - s], psns) {
                let endpoint = self.network.endpoint(NodeId(plan.nodes[s]));
                endpoint.modify(now, qpns[s], &attributes).expect("the attributes are right");
            }
        }
        for s in [0, 1] {
            let count = if plan.receives_ready { usize::MAX } else { self.programs[c].random.below(4) as usize };
            self.post_receives(c, s, count);
            self.want_receive(c, s);
            self.want_post(c, s);
        }
    }

    /// Both queue pairs go to the error state and, when all is flushed, away.
    fn close(&mut self, c: usize) {
        let now = self.network.now();
        let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
        for s in [0, 1] {
            let side = &mut self.watch.oracle.connections[c].sides[s];
            if side.destroyed {
                continue;
            }
            side.killed = true;
            let (node, qpn) = (side.node, side.qpn);
            self.network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
            self.watch.oracle.poll(now, node);
            self.network.kick(node, &mut self.watch);
        }
        self.watch.oracle.close(now, c);
        for s in [0, 1] {
            self.destroy(c, s);
            let node = self.watch.oracle.connections[c].sides[s].node;
            for key in std::mem::take(&mut self.programs[c].keys[s]) {
                self.network.endpoint(node).memory().deregister(key).expect("it was registered");
            }
        }
        self.programs[c].connected = false;
        self.programs[c].life += 1;
    }

    /// Removes a queue pair, with all that is posted to it.
    fn destroy(&mut self, c: usize, s: usize) {
        let side = &mut self.watch.oracle.connections[c].sides[s];
        if side.destroyed {
            return;
        }
        let (node, qpn) = (side.node, side.qpn);
        (side.killed, side.destroyed) = (true, true);
        self.network.endpoint(node).destroy_queue_pair(qpn).expect("it exists");
        self.watch.oracle.by_qpn.remove(&(node.0, qpn.value()));
    }

    fn post_receives(&mut self, c: usize, s: usize, limit: usize) {
        let now = self.network.now();
        let Program { plan, random, connected, .. } = &mut self.programs[c];
        let connection = &mut self.watch.oracle.connections[c];
        let layout = connection.layout;
        let side = &mut connection.sides[s];
        if !*connected || side.killed {
            return;
        }
        for _ in 0..limit {
            if side.receives.len() >= plan.receive_depth[s] {
                break;
            }
            let Some(slot) = side.free_receives.pop() else { break };
            let pieces = pieces(layout.receive(slot), plan.max_len, plan.max_sge, random);
            let wr_id = 1 << 63 | side.posted_receives;
            let sges = pieces.iter().map(|piece| sge(&side.arena, *piece, side.local_key)).collect();
            let request = ReceiveRequest { wr_id, sges };
            side.receives.push_back(Receive { wr_id, slot, pieces });
            side.posted_receives += 1;
            if let Err(error) = self.network.endpoint(side.node).post_receive(now, side.qpn, request) {
                return self.watch.oracle.violation(now, format!("receive {wr_id:#x} was not posted: {error}"));
            }
        }
    }

    fn post_batch(&mut self, c: usize, s: usize) {
        let node = self.watch.oracle.connections[c].sides[s].node;
        let batch = self.programs[c].random.between(1, 12);
        for _ in 0..batch {
            let program = &self.programs[c];
            let connection = &self.watch.oracle.connections[c];
            let outstanding = connection.flows[s].posted() - connection.flows[s].completed;
            let full = outstanding as usize >= program.plan.depth[s];
            if full || program.posted[s] >= program.plan.quota[s] || connection.sides[s].killed {
                break;
            }
            if program.trouble_at.is_some_and(|at| at <= program.posted[0] + program.posted[1]) {
                self.programs[c].trouble_at = None;
                self.make_trouble(c, s);
                if self.watch.oracle.connections[c].sides[s].killed {
                    break;
                }
                continue;
            }
            self.post(c, s, false);
        }
        self.network.kick(node, &mut self.watch);
        self.after(node);
        let connection = &self.watch.oracle.connections[c];
        let outstanding = connection.flows[s].posted() - connection.flows[s].completed;
        if (outstanding as usize) < self.programs[c].plan.depth[s] && !connection.sides[s].killed {
            self.want_post(c, s);
        }
    }

    fn make_trouble(&mut self, c: usize, s: usize) {
        let now = self.network.now();
        match self.programs[c].plan.trouble {
            Trouble::None => return,
            Trouble::BadRequest => return self.post(c, s, true),
            Trouble::Kill => {
                let side = &mut self.watch.oracle.connections[c].sides[s];
                side.killed = true;
                let (node, qpn) = (side.node, side.qpn);
                let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
                self.network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
            }
            Trouble::Destroy => {
                let node = self.watch.oracle.connections[c].sides[s].node;
                self.watch.oracle.poll(now, node);
                self.watch.oracle.verify_side(now, c, s, "before destruction");
                self.watch.oracle.abandon(c, s);
                self.destroy(c, s);
            }
            Trouble::Deregister => {
                self.watch.oracle.deregister(now, c, s);
                let side = &self.watch.oracle.connections[c].sides[s];
                let key = side.remote_key;
                let node = side.node;
                self.network.endpoint(node).memory().deregister(key).expect("it was registered");
                self.programs[c].keys[s].retain(|other| *other != key);
            }
        }
        self.want_close(c);
    }

    /// Posts a random request; one that must fail if `bad`.
    fn post(&mut self, c: usize, s: usize, bad: bool) {
        let now = self.network.now();
        let Program { plan, random, posted, foreign_keys, next_flag, .. } = &mut self.programs[c];
        let connection = &mut self.watch.oracle.connections[c];
        let (layout, name) = (connection.layout, connection.name());
        let (target, target_len) = layout.target();
        let foreign_key = foreign_keys[1 - s];

        let mut kinds = random.below(plan.mix.iter().sum());
        let choice = plan.mix.iter().position(|share| {
            let here = kinds < *share;
            kinds = kinds.saturating_sub(*share);
            here
        });
        let mut is_flag = false;
        let mut kind = match choice.unwrap_or_default() {
            0 => Kind::Send,
            1 => Kind::SendImmediate,
            2 => Kind::Write,
            3 => Kind::WriteImmediate,
            4 => Kind::Read,
            5 => Kind::FetchAdd,
            6 => Kind::CompareSwap,
            _ => {
                is_flag = true;
                Kind::Write
            }
        };
        let mut len = match random.below(8) {
            _ if kind.is_atomic() || is_flag => 8,
            0 => 0,
            1 => random.between(1, 16) as usize,
            2 => plan.mtu.bytes() - 1,
            3 => plan.mtu.bytes(),
            4 => plan.mtu.bytes() + 1,
            _ => random.between(1, plan.max_len as u64) as usize,
        }
        .min(plan.max_len.max(8));

        let flow = &connection.flows[s];
        // What follows a request that must fail is flushed.
        let void = flow.void || flow.failed;
        let bad = bad && !void && flow.bad.is_none();
        let (mut fault, mut places) = (None, !void);
        let (requester, responder) = match &mut connection.sides {
            [a, b] if s == 0 => (a, b),
            [a, b] => (b, a),
        };
        let mut remote_key = responder.remote_key;
        let mut local_key = requester.local_key;
        // Where it reads or writes.
        let mut at = match kind {
            Kind::Send | Kind::SendImmediate => 0,
            Kind::FetchAdd | Kind::CompareSwap => layout.word(random.below(8)),
            Kind::Read => target + random.below((target_len - len.min(target_len)) as u64 + 1) as usize,
            _ if is_flag => layout.words().1,
            _ => target + random.below((layout.area - len) as u64 + 1) as usize,
        };
        if bad {
            is_flag = false;
            let which = random.below(9);
            match which {
                0..=4 => {
                    if !matches!(kind, Kind::Write | Kind::WriteImmediate | Kind::Read) {
                        kind = random.choose(&[Kind::Write, Kind::WriteImmediate, Kind::Read]);
                    }
                    len = len.max(1);
                    (fault, places) = (Some(Fault::Access), false);
                    at = target + random.below((layout.area - len) as u64 + 1) as usize;
                    match which {
                        0 => remote_key = Key(remote_key.0 ^ random.choose(&[1, 0x80, 0x5500, 0x8000_0000])),
                        1 => remote_key = foreign_key,
                        2 => at = target + target_len + 1 - len,
                        3 => at = target - 1,
                        _ => {
                            remote_key = responder.local_key;
                            at = layout.source(0);
                            len = len.min(layout.slot);
                        }
                    }
                }
                5 => {
                    kind = random.choose(&[Kind::FetchAdd, Kind::CompareSwap]);
                    (fault, places, len) = (Some(Fault::Invalid), false, 8);
                    at = layout.word(random.below(7)) + random.between(1, 7) as usize;
                }
                6 => {
                    kind = random.choose(&[Kind::Send, Kind::SendImmediate]);
                    (fault, len) = (Some(Fault::Invalid), plan.max_len + 1);
                }
                _ => {
                    if kind.is_atomic() {
                        kind = Kind::Write;
                    }
                    at = if kind.is_send() { 0 } else { target };
                    len = len.max(1);
                    fault = Some(Fault::Local);
                    local_key = Key(local_key.0 ^ random.choose(&[1, 0x100, 0x4000_0000]));
                }
            }
        } else if responder.deregistered && !kind.is_send() && len > 0 {
            fault = (!void).then_some(Fault::Access);
            places = false;
        }

        let signaled = random.chance(1.0 - plan.unsignaled)
            || posted[s] + 1 >= plan.quota[s]
            || (flow.posted() - flow.completed) as usize + 1 >= plan.depth[s]
            || fault.is_some();
        let fence = random.chance(plan.fence);
        let inline = !kind.is_answered() && len <= MAX_INLINE_BYTES && fault.is_none() && random.chance(plan.inline);
        let immediate = matches!(kind, Kind::SendImmediate | Kind::WriteImmediate).then(|| random.u32());

        // What it carries, and what comes of it.
        let planned = |at: usize, len: usize| at - target..at - target + len;
        let mut payload = Payload::Pattern(name);
        let mut expected = Vec::new();
        let remote = Remote { address: responder.arena.host.address() + at as u64, key: remote_key };
        let plain = fault.is_none() || fault == Some(Fault::Local);
        let operation = match kind {
            Kind::Send => SendOperation::Send,
            Kind::SendImmediate => SendOperation::SendWithImmediate(immediate.unwrap_or_default()),
            Kind::Write => SendOperation::Write(remote),
            Kind::WriteImmediate => SendOperation::WriteWithImmediate(remote, immediate.unwrap_or_default()),
            Kind::Read => {
                expected = match plain {
                    true => flow.planned[planned(at, len)].to_vec(),
                    false => vec![0; len],
                };
                SendOperation::Read(remote)
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                let word = match plain {
                    true => flow.planned[planned(at, 8)].to_vec(),
                    false => vec![0; 8],
                };
                let old = u64::from_ne_bytes(word.as_slice().try_into().expect("eight bytes"));
                expected = word;
                if kind == Kind::FetchAdd {
                    let add = random.u64() | 1;
                    payload = Payload::Word(old.wrapping_add(add));
                    SendOperation::FetchAdd { remote, add }
                } else {
                    let compare = if random.chance(0.7) { old } else { !old };
                    let swap = random.u64();
                    payload = Payload::Word(if compare == old { swap } else { old });
                    SendOperation::CompareSwap { remote, compare, swap }
                }
            }
        };
        if is_flag {
            *next_flag += 1;
            payload = Payload::Word(name ^ *next_flag << 40);
        }
        let slot = match kind.is_answered() {
            true => requester.free_sinks.pop(),
            false => requester.free_sources.pop(),
        };
        let Some(slot) = slot else {
            return self.watch.oracle.violation(now, format!("connection {c} side {s}: more requests than slots"));
        };
        let start = if kind.is_answered() { layout.sink(slot) } else { layout.source(slot) };
        let pieces = pieces(start, len, plan.max_sge, random);
        if !kind.is_answered() {
            let mut bytes = vec![0; len];
            payload.fill(0, &mut bytes);
            let mut rest = bytes.as_slice();
            for &(start, len) in &pieces {
                let (now, later) = rest.split_at(len as usize);
                requester.arena.write(start as usize, now);
                rest = later;
            }
        }
        let index = connection.flows[s].posted();
        let data = if inline {
            let mut bytes = ArrayVec::<u8, MAX_INLINE_BYTES>::new();
            for &(start, len) in &pieces {
                bytes.extend(requester.arena.expected(start as usize, len as usize).iter().copied());
                // The buffer is free again at once.
                requester.arena.scribble(start as usize, len as usize, !name);
            }
            Data::Inline(bytes)
        } else {
            let mut sges: crate::transport::SgeList =
                pieces.iter().map(|piece| sge(&requester.arena, *piece, requester.local_key)).collect();
            // Of several entries the last with bytes is the bad one.
            if let Some(last) = sges.iter_mut().rev().find(|sge| sge.length > 0) {
                last.lkey = local_key;
            }
            Data::Sges(sges)
        };
        let request = SendRequest {
            wr_id: index,
            operation,
            data,
            signaled,
            solicited: random.chance(0.3),
            fence,
            destination: None,
        };
        let flow = &mut connection.flows[s];
        let first = flow.posted_psn;
        let packets = if kind.is_atomic() { 1 } else { plan.mtu.packets(len) };
        flow.posted_psn += u64::from(packets);
        let receive = flow.posted_receives;
        flow.posted_receives += u64::from(kind.consumes());
        if fault.is_some() {
            flow.bad = flow.bad.or(Some(index));
            flow.void |= !(fault == Some(Fault::Local) && kind == Kind::Read);
        }
        if kind.writes() && places && fault.is_none() {
            payload.fill(0, &mut flow.planned[planned(at, len)]);
        }
        if is_flag
            && places
            && let Payload::Word(value) = payload
        {
            flow.flags.push_back((value, index));
        }
        flow.wrs.push_back(Wr {
            index,
            kind,
            first,
            packets,
            len: len as u32,
            signaled,
            fence,
            payload,
            pieces,
            slot: Some(slot),
            target: at as u32,
            expected,
            immediate,
            receive,
            fault,
            places,
            frozen: false,
            answers: 0,
            asked_again: false,
        });
        posted[s] += 1;
        if let Err(error) = self.network.endpoint(requester.node).post_send(now, requester.qpn, request) {
            self.watch
                .oracle
                .violation(now, format!("connection {c} side {s}: request {index} was not posted: {error}"));
        }
    }
}

/// Nodes, switches and links.
fn build(network: &mut Network, scenario: &Scenario, seed: u64) {
    let nodes: Vec<_> = (0..scenario.nodes)
        .map(|node| {
            let mut random = Random::new(seed, 10 + node as u64);
            network.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
        })
        .collect();
    if scenario.paths == 0 {
        let (a, b) = (LinkEnd::Node(nodes[0]), LinkEnd::Node(nodes[1]));
        network.add_link(a, b, scenario.edge.clone());
        network.add_link(b, a, scenario.edge.clone());
        return;
    }
    // Two switches with the paths between them; nodes are on one or the other.
    let switches = [network.add_switch(), network.add_switch()];
    for (index, node) in nodes.iter().enumerate() {
        let (near, far) = (switches[index % 2], switches[1 - index % 2]);
        network.add_link(LinkEnd::Node(*node), LinkEnd::Switch(near), scenario.edge.clone());
        let down = network.add_link(LinkEnd::Switch(near), LinkEnd::Node(*node), scenario.edge.clone());
        network.add_route(near, *node, down);
        for _ in 0..scenario.paths {
            let across = network.add_link(LinkEnd::Switch(far), LinkEnd::Switch(near), scenario.core.clone());
            network.add_route(far, *node, across);
        }
    }
}

/// The modifications that bring the queue pair of side `s` to RTS.
fn modifications(plan: &Plan, v6: bool, s: usize, peer: Qpn, psns: [Psn; 2]) -> [QpAttributes; 3] {
    let address = |node: usize| match v6 {
        true => std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 + node as u16).into(),
        false => std::net::Ipv4Addr::new(10, 0, 0, 1 + node as u8).into(),
    };
    let (here, there) = (plan.nodes[s], plan.nodes[1 - s]);
    let route = Route {
        addresses: Addresses::new(address(here), address(there)).expect("of one family"),
        source_port: plan.source_port,
        // ECT(0): switches may mark it.
        traffic_class: 2,
        hop_limit: 64,
        flow_label: if v6 { plan.source_port.into() } else { 0 },
    };
    [
        QpAttributes {
            state: Some(State::Init),
            p_key_index: Some(0),
            port: Some(1),
            access: Some(ACCESS),
            ..QpAttributes::default()
        },
        QpAttributes {
            state: Some(State::ReadyToReceive),
            path: Some(Path { flow: route, hop: Hop(there as u32) }),
            path_mtu: Some(plan.mtu),
            destination: Some(peer),
            receive_psn: Some(psns[1 - s]),
            max_dest_rd_atomic: Some(plan.rd_atomic),
            min_rnr_timer: Some(plan.rnr_timer),
            ..QpAttributes::default()
        },
        QpAttributes {
            state: Some(State::ReadyToSend),
            send_psn: Some(psns[s]),
            timeout: Some(plan.timeout),
            retry_count: Some(plan.retry_count),
            rnr_retry: Some(plan.rnr_retry),
            max_rd_atomic: Some(plan.rd_atomic),
            ..QpAttributes::default()
        },
    ]
}

fn sge(arena: &Arena, (offset, length): Piece, lkey: Key) -> Sge {
    Sge { address: arena.host.address() + u64::from(offset), length, lkey }
}

/// Divides `len` bytes from `start` on among up to `max` pieces with gaps between them; some may be empty.
fn pieces(start: usize, len: usize, max: usize, random: &mut Random) -> ArrayVec<Piece, MAX_SGE> {
    let count = random.between(1, max as u64) as usize;
    let mut pieces = ArrayVec::new();
    let (mut at, mut left) = (start, len);
    for i in 0..count {
        let piece = if i + 1 == count { left } else { random.below(left as u64 + 1) as usize };
        pieces.push((at as u32, piece as u32));
        at += piece + random.below(9) as usize;
        left -= piece;
    }
    pieces
}

//! Reliable connections: every operation, with all faults, and all that programs do to their connections.

mod completions;
mod flow;
mod old_age;
mod oracle;
mod plan;
mod post;
mod states;
mod windows;

use std::sync::Arc;

use flow::Flow;
use old_age::Ages;
use oracle::{Connection, Oracle, Side};
use plan::{ACCESS, Plan, Scenario, TARGET_ACCESS, Trouble};
use uroce::memory::Access;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    CompletionRing, MAX_SGE, PlainRecovery, QpAttributes, RecoveryMode, RecoverySettings, Service, State,
};
use uroce::wire::{Key, Psn, Qpn};
use windows::{Window, WindowState};

use crate::sim::chaos::Capture;
use crate::sim::chaos::arena::Arena;
use crate::sim::chaos::layout::Layout;
use crate::sim::chaos::setting::Setting;
use crate::sim::chaos::stage::{MAX_EVENTS, check_rest};
use crate::sim::network::{Network, NodeId, Step, Tally};
use crate::sim::random::Random;
use crate::sim::recorder::Recorder;
use crate::world::{Peering, queue_pair};

/// Runs the scenario of `seed`.
pub(super) fn run(seed: u64, capture: Option<Capture>, plain: PlainRecovery) -> (Tally, Vec<String>) {
    World::new(seed, capture, plain).run()
}

/// The number of events between two comparisons of all memory with the model.
const EVENTS_PER_VERIFICATION: u64 = 8_000;

/// The past and future actions of the two programs of a connection.
struct Program {
    plan: Plan,
    random: Random,
    /// The number of requests posted by each side over all lives of the connection.
    posted: [u64; 2],
    lives: u32,
    connected: bool,
    closing: bool,
    /// The number of posted requests after which trouble begins.
    trouble_at: Option<u64>,
    post_pending: [bool; 2],
    receive_pending: [bool; 2],
    /// The number of the current life, which identifies events of an earlier one.
    life: u64,
    keys: [Vec<Key>; 2],
    foreign_keys: [Key; 2],
    next_flag: u64,
    ages: Ages,
    /// The randomness for windows, and for the states of queue pairs.
    window_random: Random,
    /// The number of checks left whether packets of the earlier life are in flight.
    quiet_tries: u32,
}

impl Program {
    /// Whether the program posts no requests for now.
    fn is_silent(&self) -> bool {
        self.ages.is_waiting()
    }
}

/// The reason of a wake-up.
#[derive(Clone, Copy, Debug)]
enum Wake {
    Post { c: usize, s: usize },
    Receive { c: usize, s: usize },
    Close { c: usize },
    Poll { node: usize },
    Age { c: usize },
    Resume { c: usize, s: usize },
    Connect { c: usize },
}

impl Wake {
    fn token(self, life: u64) -> u64 {
        let (kind, a, b) = match self {
            Wake::Post { c, s } => (0, c, s),
            Wake::Receive { c, s } => (1, c, s),
            Wake::Close { c } => (2, c, 0),
            Wake::Poll { node } => (3, node, 0),
            Wake::Age { c } => (4, c, 0),
            Wake::Resume { c, s } => (5, c, s),
            Wake::Connect { c } => (6, c, 0),
        };
        life << 32 | kind << 24 | (a as u64) << 8 | b as u64
    }

    fn from_token(token: u64) -> (u64, Wake) {
        let (a, b) = ((token >> 8 & 0xffff) as usize, (token & 0xff) as usize);
        let wake = match token >> 24 & 0xff {
            0 => Wake::Post { c: a, s: b },
            1 => Wake::Receive { c: a, s: b },
            2 => Wake::Close { c: a },
            4 => Wake::Age { c: a },
            5 => Wake::Resume { c: a, s: b },
            6 => Wake::Connect { c: a },
            _ => Wake::Poll { node: a },
        };
        (token >> 32, wake)
    }
}

struct World {
    seed: u64,
    network: Network,
    watch: Recorder<Oracle>,
    scenario: Scenario,
    programs: Vec<Program>,
    poll_pending: Vec<bool>,
}

impl World {
    fn new(seed: u64, capture: Option<Capture>, plain: PlainRecovery) -> World {
        let scenario = Scenario::new(seed);
        let mut network = scenario.setting.build(seed);
        for (node, recovery) in scenario.recovery.iter().enumerate() {
            network.endpoint(NodeId(node)).set_recovery(RecoverySettings { plain, ..*recovery });
        }
        let mut oracle = Oracle::new(scenario.setting.weather, scenario.polls_at_once);
        oracle.waiting_bytes_max = scenario.recovery.iter().map(|recovery| recovery.endpoint_reorder_bytes).collect();
        for node in 0..scenario.setting.nodes {
            // Each node has one completion queue, of exactly the capacity that it needs.
            let mut capacity = 0;
            for plan in &scenario.plans {
                for s in [0, 1] {
                    if plan.nodes[s] == node {
                        capacity += plan.depth[s] + plan.receive_depth[s];
                    }
                }
            }
            oracle.queues.push(vec![Arc::new(CompletionRing::new(capacity, || {}))]);
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
                    ages: Ages::new(total, &mut Random::new(seed, 2000 + c as u64)),
                    window_random: Random::new(seed, 3000 + c as u64),
                    quiet_tries: 0,
                }
            })
            .collect();
        let poll_pending = vec![false; scenario.setting.nodes];
        World { seed, network, watch: Recorder::new(oracle, capture, u64::MAX), scenario, programs, poll_pending }
    }

    fn run(mut self) -> (Tally, Vec<String>) {
        for c in 0..self.programs.len() {
            let connection = self.make_connection(c);
            self.watch.observer.connections.push(connection);
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
            if !self.watch.observer.moved.is_empty() || !self.watch.observer.failed.is_empty() {
                self.react();
            }
            if events % EVENTS_PER_VERIFICATION == 0 {
                self.verify_all("in between");
            }
            if events > MAX_EVENTS {
                let now = self.network.now();
                self.watch.observer.violation(now, "does not come to rest".into());
            }
            if !self.watch.observer.violations.is_empty() {
                break;
            }
        }
        if self.watch.observer.violations.is_empty() {
            self.rest();
        }
        (self.network.tally(), self.watch.observer.violations.into_vec())
    }

    fn verify_all(&mut self, what: &str) {
        let now = self.network.now();
        for c in 0..self.programs.len() {
            for s in [0, 1] {
                self.watch.observer.verify_side(now, c, s, what);
            }
        }
    }

    /// Checks, when no event is left, that all work is done, no timer is armed, and every frame is accounted for.
    fn rest(&mut self) {
        let now = self.network.now();
        for node in 0..self.scenario.setting.nodes {
            self.watch.observer.poll(now, NodeId(node));
        }
        for c in 0..self.programs.len() {
            for s in [0, 1] {
                let flow = &self.watch.observer.connections[c].flows[s];
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
                    self.watch.observer.violation(now, text);
                }
                let side = &self.watch.observer.connections[c].sides[s];
                let (node, qpn) = (side.node, side.qpn);
                let waiting = self.network.endpoint(node).queue_pair(qpn).map_or(0, |qp| qp.waiting_bytes());
                let is_whole = !self.watch.observer.connections[c].flows.iter().any(|flow| flow.failed);
                let flow = &self.watch.observer.connections[c].flows[s];
                let drains = flow.is_draining && !flow.is_drained && !flow.failed;
                if drains && self.programs[c].connected && !self.watch.observer.connections[c].sides[s].killed {
                    self.watch.observer.violation_at(now, c, s, "the send queue is not drained");
                }
                if waiting > 0 && is_whole && self.programs[c].connected {
                    let text = format!("connection {c} side {s}: {waiting} bytes wait for what has come");
                    self.watch.observer.violation(now, text);
                }
            }
        }
        self.verify_all("at the end");
        check_rest(&mut self.network, &mut self.watch.observer.violations);
        // After the run all requests that are still posted must be flushed, in order.
        for c in 0..self.programs.len() {
            if self.programs[c].connected {
                self.close(c);
            }
        }
    }

    /// Polls for completions of a node, now or after a while.
    fn after(&mut self, node: NodeId) {
        self.take_events(node);
        let oracle = &mut self.watch.observer;
        if oracle.polls_at_once {
            oracle.poll(self.network.now(), node);
        } else if !self.poll_pending[node.0] && oracle.queues[node.0].iter().any(|queue| !queue.is_empty()) {
            self.poll_pending[node.0] = true;
            let at = self.network.now() + self.scenario.poll_every;
            self.network.wake_at(at, Wake::Poll { node: node.0 }.token(0));
        }
    }

    /// Makes the programs of completed requests post more, or give up.
    fn react(&mut self) {
        let mut moved = std::mem::take(&mut self.watch.observer.moved);
        for (c, s) in moved.drain(..) {
            self.want_post(c, s);
            self.want_receive(c, s);
        }
        self.watch.observer.moved = moved;
        let mut failed = std::mem::take(&mut self.watch.observer.failed);
        for c in failed.drain(..) {
            self.want_close(c);
        }
        self.watch.observer.failed = failed;
    }

    fn wake(&mut self, at: Instant, wake: Wake, c: usize) {
        self.network.wake_at(at, wake.token(self.programs[c].life));
    }

    fn want_close(&mut self, c: usize) {
        let program = &mut self.programs[c];
        if program.connected && !program.closing {
            program.closing = true;
            let later = program.random.up_to(self.scenario.setting.core.delay * 6 + Duration::from_micros(20));
            let at = self.network.now() + later;
            self.wake(at, Wake::Close { c }, c);
        }
    }

    fn want_post(&mut self, c: usize, s: usize) {
        let program = &mut self.programs[c];
        if program.connected
            && !program.is_silent()
            && !program.post_pending[s]
            && program.posted[s] < program.plan.quota[s]
        {
            program.post_pending[s] = true;
            let at = self.network.now() + program.random.up_to(program.plan.think);
            self.wake(at, Wake::Post { c, s }, c);
        }
    }

    fn want_receive(&mut self, c: usize, s: usize) {
        let program = &mut self.programs[c];
        let missing = self.watch.observer.connections[c].sides[s].receives.len() < program.plan.receive_depth[s];
        if !program.connected || !missing || self.watch.observer.connections[c].sides[s].killed {
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
                self.watch.observer.poll(now, NodeId(node));
            }
            Wake::Post { c, .. }
            | Wake::Receive { c, .. }
            | Wake::Close { c }
            | Wake::Age { c }
            | Wake::Resume { c, .. }
            | Wake::Connect { c }
                if life != self.programs[c].life => {}
            Wake::Age { c } => self.age(c),
            Wake::Resume { c, s } => self.resume(c, s),
            Wake::Connect { c } => self.connect_when_quiet(c),
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
                if program.lives > 0 && left && self.watch.observer.violations.is_empty() {
                    self.want_connect(c);
                }
            }
        }
    }

    /// Makes the memory of both sides of a connection, which is not connected yet.
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
            pd: uroce::memory::Pd(0),
            arena: Arena::new(layout.len(), self.seed ^ (c as u64) << 32 ^ (s as u64) << 40),
            local_key: Key(0),
            remote_key: Key(0),
            receives: Default::default(),
            posted_receives: 0,
            killed: true,
            destroyed: true,
            deregistered: false,
            took_away: false,
            windows: Vec::new(),
            region_used: 0,
            is_renewing: false,
            is_reset: false,
            free_sources: Vec::new(),
            free_sinks: Vec::new(),
            free_receives: Vec::new(),
        });
        let flows = [0, 1].map(|_| Flow::new(Psn::default(), Vec::new(), 0));
        let name = (self.seed ^ (c as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Connection::new(sides, flows, layout, plan, name)
    }

    /// Makes queue pairs and keys on both sides, and starts the programs.
    fn connect(&mut self, c: usize) {
        let now = self.network.now();
        let program = &mut self.programs[c];
        program.lives -= 1;
        program.life += 1;
        (program.connected, program.closing) = (true, false);
        (program.post_pending, program.receive_pending) = ([false; 2], [false; 2]);
        program.ages.stop_waiting();
        let plan = program.plan.clone();
        // The PSNs of the next life begin at random.
        let psns = match program.life {
            1 => plan.first_psns,
            _ => [0, 1].map(|_| Psn::new(program.random.u32())),
        };
        let connection = &mut self.watch.observer.connections[c];
        let layout = connection.layout;
        for s in [0, 1] {
            let side = &mut connection.sides[s];
            let queue = self.watch.observer.queues[side.node.0][0].clone();
            let endpoint = self.network.endpoint(side.node);
            // A queue pair keeps its protection domain.
            side.pd = if side.is_reset { side.pd } else { endpoint.allocate_pd() };
            let stranger = endpoint.allocate_pd();
            let depths = [plan.depth[s], plan.receive_depth[s]];
            let init = queue_pair(Service::Rc, side.pd, depths, &queue, plan.mtu);
            if !std::mem::take(&mut side.is_reset) {
                side.qpn = endpoint.create_queue_pair(init).expect("there is room for a queue pair");
            }
            let (memory, arena) = (endpoint.memory(), &side.arena);
            side.local_key = arena.register(memory, side.pd, layout.local(), Access::LOCAL_WRITE);
            let relaxed = if plan.relaxed[s] { Access::RELAXED_ORDERING } else { Access::empty() };
            side.remote_key = arena.register(memory, side.pd, layout.target(), TARGET_ACCESS | relaxed);
            program.foreign_keys[s] = arena.register(memory, stranger, layout.target(), ACCESS);
            program.keys[s] = vec![side.local_key, side.remote_key, program.foreign_keys[s]];
            side.receives.clear();
            side.posted_receives = 0;
            (side.killed, side.destroyed, side.deregistered, side.took_away) = (false, false, false, false);
            (side.region_used, side.is_renewing) = (0, false);
            side.windows = if plan.windows[s] { Window::pair(endpoint, side.pd) } else { Vec::new() };
            side.free_sources = (0..layout.sources).collect();
            side.free_sinks = (0..layout.sinks).collect();
            side.free_receives = (0..layout.receives).collect();
            self.watch.observer.by_qpn.insert((side.node.0, side.qpn.value()), (c, s));
        }
        (connection.selective, connection.nonces, connection.knows_addresses) = ([false; 2], [None; 2], [false; 2]);
        connection.relaxed = plan.relaxed;
        for s in [0, 1] {
            let recovery = self.scenario.recovery[plan.nodes[s]];
            connection.windows[s] = (recovery.recovery != RecoveryMode::GoBackN).then_some(recovery.window.into());
            connection.has_rate[s] = recovery.rate.is_some();
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
            let endpoint = self.network.endpoint(NodeId(plan.nodes[s]));
            peering(&plan, &self.scenario.setting, s, qpns[1 - s], psns).connect(endpoint, now, qpns[s]);
        }
        for s in [0, 1] {
            let count = if plan.receives_ready { usize::MAX } else { self.programs[c].random.below(4) as usize };
            self.post_receives(c, s, count);
            self.want_receive(c, s);
            self.want_post(c, s);
        }
    }

    /// Puts both queue pairs into the error state and, when all requests are flushed, removes or resets them.
    fn close(&mut self, c: usize) {
        let now = self.network.now();
        let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
        for s in [0, 1] {
            let side = &mut self.watch.observer.connections[c].sides[s];
            if side.destroyed {
                continue;
            }
            side.killed = true;
            let (node, qpn) = (side.node, side.qpn);
            self.network.endpoint(node).modify(now, qpn, &error).expect("any queue pair may go to the error state");
            self.watch.observer.poll(now, node);
            self.network.kick(node, &mut self.watch);
        }
        self.watch.observer.close(now, c);
        for s in [0, 1] {
            match self.programs[c].plan.reuse {
                true => self.reset(c, s),
                false => self.destroy(c, s),
            }
            let side = &self.watch.observer.connections[c].sides[s];
            let node = side.node;
            for window in side.windows.iter().filter(|window| window.state != WindowState::Gone) {
                self.network.endpoint(node).memory().deallocate_window(window.key).expect("it was made");
            }
            for key in std::mem::take(&mut self.programs[c].keys[s]) {
                self.network.endpoint(node).memory().deregister(key).expect("it was registered");
            }
        }
        self.programs[c].connected = false;
        self.programs[c].life += 1;
    }

    /// Removes a queue pair, with all requests that are posted to it.
    fn destroy(&mut self, c: usize, s: usize) {
        let side = &mut self.watch.observer.connections[c].sides[s];
        if side.destroyed {
            return;
        }
        let (node, qpn) = (side.node, side.qpn);
        (side.killed, side.destroyed) = (true, true);
        self.network.endpoint(node).destroy_queue_pair(qpn).expect("it exists");
        self.watch.observer.by_qpn.remove(&(node.0, qpn.value()));
    }
}

/// The attributes that connect side `s` to its peer.
fn peering(plan: &Plan, setting: &Setting, s: usize, peer: Qpn, psns: [Psn; 2]) -> Peering {
    Peering {
        access: ACCESS,
        path_mtu: plan.mtu,
        send_psn: psns[s],
        receive_psn: psns[1 - s],
        rd_atomic: plan.rd_atomic,
        rnr_timer: plan.rnr_timer,
        timeout: plan.timeout,
        retry_count: plan.retry_count,
        rnr_retry: plan.rnr_retry,
        ..Peering::new(setting.path(plan.nodes[s], plan.nodes[1 - s], plan.source_port), peer)
    }
}

use uroce::time::Instant;

use crate::sim::network::{Network, NodeId, Observer, Step, Tally};
use crate::sim::recorder::Recorder;

use super::Capture;
use super::setting::Setting;

/// Violations of the expected behaviour by the stack.
#[derive(Debug, Default)]
pub(super) struct Violations(Vec<String>);

impl Violations {
    /// Upper bound on the violations that are kept: more are of no use.
    const MAX: usize = 5;

    pub fn push(&mut self, now: Instant, text: impl std::fmt::Display) {
        if self.0.len() < Self::MAX {
            self.0.push(format!("{} ns: {text}", now.as_ns()));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_vec(self) -> Vec<String> {
        self.0
    }
}

/// Requests of a world's programs that only the stage can fulfil.
#[derive(Debug, Default)]
pub(super) struct Cues {
    /// The nodes to which requests were posted.
    pub posted: Vec<NodeId>,
    /// The times at which programs want to be woken, and their tokens.
    pub wakes: Vec<(Instant, u64)>,
}

impl Cues {
    fn is_empty(&self) -> bool {
        self.posted.is_empty() && self.wakes.is_empty()
    }
}

/// The programs of a scenario, and the oracle that observes them.
pub(super) trait World: Observer {
    /// Connects all nodes and starts the programs.
    fn begin(&mut self, network: &mut Network);

    /// Runs a program whose time has come.
    fn woken(&mut self, network: &mut Network, token: u64);

    /// Makes the programs take all completions.
    fn poll_all(&mut self, now: Instant);

    /// Checks, when no event is left, that all work is done.
    fn rest(&mut self, network: &mut Network);

    fn cues(&mut self) -> &mut Cues;

    fn violations(&mut self) -> &mut Violations;
}

/// The number of events after which a run counts as endless. Ordinary runs take some ten thousand.
pub(super) const MAX_EVENTS: u64 = 20_000_000;

/// Runs a world until it is at rest, or until the first violation.
pub(super) fn play<W: World>(
    seed: u64,
    capture: Option<Capture>,
    world: impl FnOnce(u64) -> (Setting, W),
) -> (Tally, Vec<String>) {
    let (setting, world) = world(seed);
    let mut network = setting.build(seed);
    let mut watch = Recorder::new(world, capture, u64::MAX);
    watch.observer.begin(&mut network);
    let mut events = 0;
    loop {
        let Cues { posted, wakes } = std::mem::take(watch.observer.cues());
        wakes.into_iter().for_each(|(at, token)| network.wake_at(at, token));
        posted.into_iter().for_each(|node| network.kick(node, &mut watch));
        // Requests that complete by being sent.
        watch.observer.poll_all(network.now());
        if !watch.observer.cues().is_empty() {
            continue;
        }
        let Some(step) = network.step(&mut watch) else { break };
        if let Step::Woken(token) = step {
            watch.observer.woken(&mut network, token);
        }
        events += 1;
        if events > MAX_EVENTS {
            watch.observer.violations().push(network.now(), "does not come to rest");
        }
        if !watch.observer.violations().is_empty() {
            break;
        }
    }
    if watch.observer.violations().is_empty() {
        check_rest(&mut network, watch.observer.violations());
        watch.observer.rest(&mut network);
    }
    (network.tally(), std::mem::take(watch.observer.violations()).into_vec())
}

/// Checks, when no event is left, that no timer is armed and every frame is accounted for.
pub(super) fn check_rest(network: &mut Network, violations: &mut Violations) {
    let (now, tally, in_flight) = (network.now(), network.tally(), network.in_flight());
    if in_flight != 0 || tally.sent + tally.duplicated + tally.forged != tally.delivered + tally.lost {
        violations.push(now, format!("frames are not conserved: {in_flight} in flight, {tally:?}"));
    }
    let mut refused = 0;
    for node in 0..network.nodes() {
        let frames = network.node(NodeId(node)).frames();
        let endpoint = network.endpoint(NodeId(node));
        let counters = endpoint.counters();
        let rest = (endpoint.poll_timeout(), endpoint.may_transmit());
        if rest != (None, false) {
            violations.push(now, format!("node {node} is not at rest: timer {:?}, may transmit {}", rest.0, rest.1));
        }
        if (counters.sent_pkts, counters.rcvd_pkts) != frames {
            violations.push(now, format!("node {node} counts {counters:?}, frames sent and received are {frames:?}"));
        }
        refused += counters.malformed + counters.bad_icrc + counters.bad_ip_checksum + counters.unknown_qpn;
        refused += counters.bad_tver + counters.bad_opcode + counters.bad_p_key + counters.wrong_address;
        refused += counters.wrong_tag + counters.wrong_state + counters.stray_response + counters.rcvd_cnp;
    }
    if refused < tally.delivered_bad {
        let bad = tally.delivered_bad;
        violations.push(now, format!("{bad} frames were corrupted or forged, {refused} refused"));
    }
}

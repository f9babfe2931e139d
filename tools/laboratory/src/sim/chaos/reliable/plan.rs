use uroce::congestion::Rate;
use uroce::memory::Access;
use uroce::path::PathPolicy;
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, RecoverySettings};
use uroce::wire::{PathMtu, Psn, RnrTimer};

use crate::sim::chaos::setting::{Setting, Weather};
use crate::sim::random::Random;

/// A harmful action of a program on its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// The program posts a request that must fail.
    BadRequest,
    /// The program puts a queue pair into the error state.
    Kill,
    /// The program destroys a queue pair.
    Destroy,
    /// The program deregisters its target region, and frees the windows to it.
    Deregister,
    /// The program frees a window that the peer may be using.
    FreeWindow,
    /// The program resets a queue pair.
    Reset,
}

/// A connection and the actions of its two programs.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub nodes: [usize; 2],
    pub mtu: PathMtu,
    pub first_psns: [Psn; 2],
    pub max_len: usize,
    /// Upper bounds on posted send and receive requests, by side.
    pub depth: [usize; 2],
    pub receive_depth: [usize; 2],
    /// The numbers of requests to post, by side.
    pub quota: [u64; 2],
    pub rd_atomic: u8,
    pub timeout: u8,
    /// Whether the timeout is longer than four round trips with all queues full.
    pub is_patient: bool,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: RnrTimer,
    pub source_port: u16,
    /// Whether receive requests are always posted in time.
    pub receives_ready: bool,
    /// The share of each kind of request: SEND, SEND with immediate, WRITE, WRITE with immediate, READ, FETCH_ADD,
    /// CMP_SWAP, flag.
    pub mix: [u64; 8],
    pub unsignaled: f64,
    pub inline: f64,
    pub fence: f64,
    pub max_sge: usize,
    /// Upper bound on the time between two batches of requests.
    pub think: Duration,
    /// Upper bound on the time until receive requests are posted again.
    pub slowness: Duration,
    pub trouble: Trouble,
    /// The number of times that the connection is made.
    pub lives: u32,
    /// Whether a side's target is registered for relaxed ordering of WRITEs.
    pub relaxed: [bool; 2],
    /// Whether a side has memory windows to its target.
    pub windows: [bool; 2],
    /// The probability that the send queue is drained after a batch of requests.
    pub drain: f64,
    /// Whether queue pairs are reset between lives, instead of destroyed.
    pub reuse: bool,
}

/// A network, the connections in it, and the trouble on them.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub setting: Setting,
    pub polls_at_once: bool,
    /// How long completions wait when they are not polled at once.
    pub poll_every: Duration,
    pub plans: Vec<Plan>,
    /// The recovery settings of each node.
    pub recovery: Vec<RecoverySettings>,
}

pub(super) const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The access that the peer's target is registered for.
pub(super) const TARGET_ACCESS: Access = ACCESS.union(Access::MW_BIND);

impl Scenario {
    /// The scenario that `seed` decides.
    pub fn new(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, 0);
        let setting = Setting::new(random);
        let recovery = recovery(&setting, &mut Random::new(seed, 5));
        // Where a node uses several paths, the paths differ.
        let setting = match recovery.iter().any(|recovery| recovery.paths > 1) {
            true => setting.with_unlike_links(&mut Random::new(seed, 6)),
            false => setting,
        };
        let connections = random.choose(&[1, 1, 1, 2, 2, 3, 4, 8]);
        let round_trip = setting.round_trip(connections);
        let polls_at_once = random.chance(0.75);
        let mut plans: Vec<_> =
            (0..connections).map(|_| plan(setting.nodes, setting.weather, polls_at_once, round_trip, random)).collect();
        let relaxed = &mut Random::new(seed, 8);
        plans.iter_mut().for_each(|plan| plan.relaxed = [(); 2].map(|()| relaxed.chance(0.5)));
        let apart = &mut Random::new(seed, 9);
        for plan in &mut plans {
            plan.windows = [(); 2].map(|()| apart.chance(0.4));
            plan.drain = apart.choose(&[0.0, 0.0, 0.05, 0.3]);
            plan.reuse = apart.chance(0.4);
            plan.trouble = match (plan.trouble, apart.below(20)) {
                (Trouble::None, 0) => Trouble::Reset,
                (Trouble::None, 1 | 2) if plan.windows != [false; 2] => Trouble::FreeWindow,
                (trouble, _) => trouble,
            };
        }
        let poll_every = setting.core.delay + Duration::from_micros(random.between(1, 200));
        Scenario { setting, polls_at_once, poll_every, plans, recovery }
    }
}

/// Recovery settings: in half of the scenarios all nodes use plain go-back-N, in most others all use the extension, and
/// in some one does not.
fn recovery(setting: &Setting, random: &mut Random) -> Vec<RecoverySettings> {
    let kind = random.below(10);
    // Paths and policies are drawn from a copy, so that the rest of a seed's scenario does not depend on them.
    let mut apart = random.clone();
    let several = kind >= 5 && apart.chance(0.5);
    let one = |node: usize, random: &mut Random| RecoverySettings {
        recovery: if kind < 5 || (kind == 5 && node == 0) { RecoveryMode::GoBackN } else { RecoveryMode::Auto },
        // Except in harsh weather, a full queue must not use up a requester's retries.
        window: match setting.weather {
            Weather::Harsh => random.choose(&[16, 128, 1024, RecoverySettings::MAX_WINDOW]),
            _ => random.choose(&[16, 128]),
        },
        rate: random
            .choose(&[None, Some(8), Some(2)])
            .map(|bits| Rate::from_bits(bits * setting.core.bytes_per_second)),
        reorder_bytes: random.choose(&[0, 3000, 100_000, 1 << 30]),
        endpoint_reorder_bytes: random.choose(&[5000, 1 << 30, 1 << 30]),
        ..RecoverySettings::default()
    };
    let mut with_paths = |recovery: RecoverySettings| {
        let paths = apart.choose(&[1, 2, 3, 4, 8, 16]);
        let policy = apart.choose(&[
            PathPolicy::RoundRobin,
            PathPolicy::RoundRobin,
            PathPolicy::Single,
            PathPolicy::Weighted,
            PathPolicy::Recycle,
        ]);
        match (several, apart.chance(0.5)) {
            (false, _) => recovery,
            (true, false) => recovery.with_paths(paths, policy),
            (true, true) => recovery.with_paths_as_peer(paths, policy),
        }
    };
    (0..setting.nodes).map(|node| with_paths(one(node, random))).collect()
}

/// Draws the share of each kind of request.
fn mix(random: &mut Random) -> [u64; 8] {
    let mut mix = [(); 8].map(|()| random.choose(&[0, 1, 1, 3]));
    let only = random.below(16) as usize;
    if only < 8 {
        // A large share of one kind finds mistakes that mixtures hide.
        mix[only] += 12;
    }
    if mix == [0; 8] {
        mix[2] = 1;
    }
    mix
}

fn plan(nodes: usize, weather: Weather, polls_at_once: bool, round_trip: Duration, random: &mut Random) -> Plan {
    let first = random.below(nodes as u64) as usize;
    let second = (first + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
    let mtu = random.choose(&[
        PathMtu::Mtu256,
        PathMtu::Mtu256,
        PathMtu::Mtu256,
        PathMtu::Mtu512,
        PathMtu::Mtu1024,
        PathMtu::Mtu2048,
        PathMtu::Mtu4096,
    ]);
    let max_len = (mtu.bytes() * random.choose(&[1, 1, 2, 3, 5, 8, 20, 150])).min(40_000);
    let psn = |random: &mut Random| {
        let anywhere = Psn::new(random.u32());
        if random.chance(0.5) { Psn::new(0).minus(random.below(300) as u32) } else { anywhere }
    };
    let depth =
        |random: &mut Random| random.choose(&[1usize, 2, 3, 4, 8, 16, 16, 32, 100]).min(600_000 / max_len).max(1);
    // The quota is enough for a few turns of every queue, and at most a few thousand packets.
    let packets = mtu.packets(max_len) as u64;
    let quota = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => random.between(1, 5),
        _ => random.between(5, 400).min(3000 / packets + 4),
    };
    // The code of a timeout that is longer than four round trips, and so causes no spurious retransmission.
    let patient = (0..31u8).find(|code| Duration::from_nanos(4096 << code) > round_trip * 4).unwrap_or(31);
    let harsh = weather == Weather::Harsh;
    let depths = [depth(random), depth(random)];
    let receives_ready = random.chance(0.4) && polls_at_once;
    let mix = mix(random);
    let timeout = match harsh && random.chance(0.5) {
        true => patient.saturating_sub(random.below(5) as u8).max(1),
        false => patient,
    };
    Plan {
        nodes: [first, second],
        mtu,
        first_psns: [psn(random), psn(random)],
        max_len,
        depth: depths,
        receive_depth: match receives_ready {
            // The depth is as large as the peer needs.
            true => [depths[1], depths[0]],
            false => [random.between(1, 16) as usize, random.between(1, 16) as usize],
        },
        quota: [quota(random), quota(random)],
        rd_atomic: random.choose(&[1, 1, 2, 4, 8, 16]),
        timeout,
        is_patient: timeout >= patient,
        retry_count: if harsh { random.choose(&[1, 3, 7, 7, 7]) } else { 7 },
        rnr_retry: if receives_ready || random.chance(0.2) { random.choose(&[0, 1, 3]) } else { 7 },
        rnr_timer: RnrTimer::new(random.between(1, 14) as u8),
        source_port: 0xc000 | random.u32() as u16,
        receives_ready,
        mix,
        unsignaled: random.choose(&[0.0, 0.0, 0.3, 0.9]),
        inline: random.choose(&[0.0, 0.3]),
        fence: random.choose(&[0.0, 0.1, 0.5]),
        max_sge: random.choose(&[1, 1, 2, 4, 16]),
        think: random.choose(&[Duration::ZERO, Duration::from_micros(1), Duration::from_micros(50), round_trip]),
        slowness: random.choose(&[Duration::ZERO, Duration::from_micros(5), Duration::from_micros(300)]),
        trouble: match random.below(20) {
            0..3 => Trouble::BadRequest,
            3 => Trouble::Kill,
            4 => Trouble::Destroy,
            5 => Trouble::Deregister,
            _ => Trouble::None,
        },
        lives: random.between(1, 3) as u32,
        relaxed: [false; 2],
        windows: [false; 2],
        drain: 0.0,
        reuse: false,
    }
}

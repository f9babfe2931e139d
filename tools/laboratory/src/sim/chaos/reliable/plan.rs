use uroce::congestion::Rate;
use uroce::memory::Access;
use uroce::path::PathPolicy;
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, RecoverySettings};
use uroce::wire::{PathMtu, Psn, RnrTimer};

use crate::sim::chaos::setting::{Setting, Weather};
use crate::sim::random::Random;

/// What a program does to its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    /// It posts a request that must fail.
    BadRequest,
    /// It puts a queue pair into the error state.
    Kill,
    /// It destroys a queue pair.
    Destroy,
    /// It takes its target region away, and the windows to it.
    Deregister,
    /// It frees a window that the peer may be using.
    FreeWindow,
    /// It resets a queue pair.
    Reset,
}

/// A connection and what its two programs do with it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub nodes: [usize; 2],
    pub mtu: PathMtu,
    pub first_psns: [Psn; 2],
    pub max_len: usize,
    /// Send and receive requests posted at the most, by side.
    pub depth: [usize; 2],
    pub receive_depth: [usize; 2],
    /// Requests to post, by side.
    pub quota: [u64; 2],
    pub rd_atomic: u8,
    pub timeout: u8,
    /// Whether that is longer than a round trip with all queues full, four times over.
    pub is_patient: bool,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub rnr_timer: RnrTimer,
    pub source_port: u16,
    /// Receive requests are posted at once, never late.
    pub receives_ready: bool,
    /// How often each kind of request is posted: SEND, with immediate, WRITE, with immediate, READ, add, swap, flag.
    pub mix: [u64; 8],
    pub unsignaled: f64,
    pub inline: f64,
    pub fence: f64,
    pub max_sge: usize,
    /// Between two batches of requests.
    pub think: Duration,
    /// Until receive requests are posted again.
    pub slowness: Duration,
    pub trouble: Trouble,
    /// How often the connection is made.
    pub lives: u32,
    /// Sides whose target is registered for WRITEs that overtake each other.
    pub relaxed: [bool; 2],
    /// Sides with memory windows to their target.
    pub windows: [bool; 2],
    /// How often the send queue is drained, by batches of requests.
    pub drain: f64,
    /// Queue pairs are reset between lives, rather than destroyed.
    pub reuse: bool,
}

/// A network, the connections in it, and what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub setting: Setting,
    pub polls_at_once: bool,
    /// How long completions wait when they are not polled at once.
    pub poll_every: Duration,
    pub plans: Vec<Plan>,
    /// How each node deals with losses.
    pub recovery: Vec<RecoverySettings>,
}

pub(super) const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// What the peer's target is registered for.
pub(super) const TARGET_ACCESS: Access = ACCESS.union(Access::MW_BIND);

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, 0);
        let setting = Setting::new(random);
        let recovery = recovery(&setting, &mut Random::new(seed, 5));
        // Where somebody uses several paths, they differ.
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

/// In half of the scenarios all speak plain IBTA, in most others all understand each other, and in some one does not.
fn recovery(setting: &Setting, random: &mut Random) -> Vec<RecoverySettings> {
    let kind = random.below(10);
    // Paths and policies are drawn apart, so that all else stays what a seed had before there were any.
    let mut apart = random.clone();
    let several = kind >= 5 && apart.chance(0.5);
    let one = |node: usize, random: &mut Random| RecoverySettings {
        recovery: if kind < 5 || (kind == 5 && node == 0) { RecoveryMode::GoBackN } else { RecoveryMode::Auto },
        // In other weather than harsh, patience must not end for a queue of ours.
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

/// How often each kind of request is posted.
fn mix(random: &mut Random) -> [u64; 8] {
    let mut mix = [(); 8].map(|()| random.choose(&[0, 1, 1, 3]));
    let only = random.below(16) as usize;
    if only < 8 {
        // Much of one kind shows what mixtures hide.
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
    // Enough for a few turns of every queue, no more than a few thousand packets.
    let packets = mtu.packets(max_len) as u64;
    let quota = |random: &mut Random| match random.below(8) {
        0 => 0,
        1 => random.between(1, 5),
        _ => random.between(5, 400).min(3000 / packets + 4),
    };
    // The code of a time that is long enough never to pass in vain, four times over.
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
            // As many as the peer may need.
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

use crate::memory::Access;
use crate::time::{Duration, Instant};
use crate::wire::{PathMtu, Psn, RnrTimer};

use super::link::{Blackhole, Bursts, Faults, LinkProfile};
use super::oracle::Weather;
use super::random::Random;

/// How the memory of one side is divided: buffers to send from, to read into and to receive into, each a row of equal
/// slots; then, with a key of its own, what the peer may write: an area, words for atomics, and a flag. Between and around
/// them are bytes that nobody may touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub slot: usize,
    pub sources: usize,
    pub sinks: usize,
    pub receives: usize,
    pub area: usize,
}

/// Bytes between areas that nobody may touch.
const GUARD: usize = 64;
const WORDS: usize = 8;

impl Layout {
    pub fn source(&self, index: usize) -> usize {
        GUARD + index * self.slot
    }

    pub fn sink(&self, index: usize) -> usize {
        self.source(self.sources + index)
    }

    pub fn receive(&self, index: usize) -> usize {
        self.sink(self.sinks + index)
    }

    /// What the program itself uses.
    pub fn local(&self) -> (usize, usize) {
        (GUARD, self.receive(self.receives) - GUARD)
    }

    /// What the peer may write and read: area, words and flag.
    pub fn target(&self) -> (usize, usize) {
        (self.receive(self.receives) + GUARD, self.area + 8 * WORDS + 8)
    }

    /// The first word for atomics, and the flag.
    pub fn words(&self) -> (usize, usize) {
        let words = self.target().0 + self.area;
        (words, words + 8 * WORDS)
    }

    pub fn word(&self, index: u64) -> usize {
        self.words().0 + 8 * (index as usize % WORDS)
    }

    pub fn len(&self) -> usize {
        let (start, len) = self.target();
        start + len + GUARD
    }

    /// What is at an offset, for messages.
    pub fn describe(&self, offset: usize) -> String {
        let (target, target_len) = self.target();
        let (words, flag) = self.words();
        match offset {
            at if at < GUARD || at >= target + target_len => "guard".into(),
            at if at < self.sink(0) => format!("source {}", (at - GUARD) / self.slot),
            at if at < self.receive(0) => format!("sink {}", (at - self.sink(0)) / self.slot),
            at if at < self.receive(self.receives) => format!("receive {}", (at - self.receive(0)) / self.slot),
            at if at < target => "guard".into(),
            at if at < words => format!("target {}", at - target),
            at if at < flag => format!("word {}", (at - words) / 8),
            _ => "flag".into(),
        }
    }
}

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
    /// It takes the peer's target region away.
    Deregister,
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
}

/// A network, the connections in it, and what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub nodes: usize,
    pub v6: bool,
    /// Parallel links between the two switches; none when two nodes are connected directly.
    pub paths: usize,
    pub edge: LinkProfile,
    pub core: LinkProfile,
    pub weather: Weather,
    pub polls_at_once: bool,
    /// How long completions wait when they are not polled at once.
    pub poll_every: Duration,
    pub plans: Vec<Plan>,
}

pub(super) const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl Scenario {
    /// The scenario of a seed.
    pub fn new(seed: u64) -> Scenario {
        let random = &mut Random::new(seed, 0);
        let weather = match random.below(100) {
            0..15 => Weather::Fair,
            15..60 => Weather::Mild,
            _ => Weather::Harsh,
        };
        let nodes = random.choose(&[2, 2, 2, 3, 4]);
        let paths = if nodes == 2 { random.choose(&[0, 0, 1, 2, 4]) } else { random.choose(&[1, 1, 2, 4]) };
        let connections = random.choose(&[1, 1, 1, 2, 2, 3, 4, 8]);
        let gigabytes = random.choose(&[125_000_000, 1_250_000_000, 12_500_000_000]);
        let delay = Duration::from_nanos(random.choose(&[200, 1_000, 10_000, 10_000, 100_000, 1_000_000]));
        let faults = faults(weather, delay, random);
        // In fair and mild weather nothing is lost to full queues: windows fit in.
        let queue_bytes = match weather {
            Weather::Harsh => random.choose(&[20_000, 100_000, 1_000_000]),
            _ => u64::MAX,
        };
        let core = LinkProfile {
            bytes_per_second: gigabytes,
            delay,
            queue_bytes,
            ecn_threshold_bytes: Some(10_000),
            faults: faults.clone(),
        };
        let edge = if paths == 0 {
            core.clone()
        } else {
            LinkProfile { delay: Duration::from_nanos(200), faults: Faults::NONE, ..core.clone() }
        };
        let round_trip = round_trip(&core, connections);
        let polls_at_once = random.chance(0.75);
        let plans = (0..connections).map(|_| plan(nodes, weather, polls_at_once, round_trip, random)).collect();
        Scenario {
            nodes,
            v6: random.chance(0.3),
            paths,
            edge,
            core,
            weather,
            polls_at_once,
            poll_every: delay + Duration::from_micros(random.between(1, 200)),
            plans,
        }
    }
}

/// A round trip at the most, with all windows of all connections in one queue.
fn round_trip(core: &LinkProfile, connections: usize) -> Duration {
    // A window of full packets, and answers to READs, each way.
    let bytes = connections as u64 * 2 * (128 + 64) * 4300;
    core.delay * 4 + Duration::from_nanos(bytes * 1_000_000_000 / core.bytes_per_second) + Duration::from_micros(20)
}

fn faults(weather: Weather, delay: Duration, random: &mut Random) -> Faults {
    let some = |random: &mut Random, limit: f64| {
        if random.chance(0.4) { 0.0 } else { limit * random.below(1000) as f64 / 1000.0 }
    };
    let reorder_by = random.up_to(delay * 2) + Duration::from_nanos(300);
    match weather {
        Weather::Fair => Faults { forge: some(random, 0.02), reorder_by, ..Faults::NONE },
        Weather::Mild => Faults {
            loss: some(random, 0.02),
            duplicate: some(random, 0.02),
            reorder: some(random, 0.02),
            reorder_by,
            corrupt: some(random, 0.01),
            forge: some(random, 0.02),
            ..Faults::NONE
        },
        Weather::Harsh => {
            let bursts = random.chance(0.4).then(|| Bursts {
                enter: 0.001 + 0.01 * random.below(100) as f64 / 100.0,
                leave: 0.02 + 0.2 * random.below(100) as f64 / 100.0,
                loss: 0.3 + 0.7 * random.below(100) as f64 / 100.0,
            });
            let blackholes = (0..random.choose(&[0, 0, 0, 1, 2]))
                .map(|_| {
                    let from = Instant::ZERO + random.up_to(delay * 50 + Duration::from_micros(500));
                    Blackhole { from, until: from + random.up_to(delay * 20 + Duration::from_micros(500)) }
                })
                .collect();
            Faults {
                loss: some(random, 0.15),
                bursts,
                duplicate: some(random, 0.2),
                reorder: some(random, 0.2),
                reorder_by: reorder_by + random.up_to(delay * 6),
                corrupt: some(random, 0.05),
                forge: some(random, 0.05),
                blackholes,
            }
        }
    }
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
    let mut mix = [0; 8];
    for share in &mut mix {
        *share = random.choose(&[0, 1, 1, 3]);
    }
    let only = random.below(16) as usize;
    if only < 8 {
        // Much of one kind shows what mixtures hide.
        mix[only] += 12;
    }
    if mix.iter().all(|share| *share == 0) {
        mix[2] = 1;
    }
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
        timeout: if harsh && random.chance(0.5) {
            patient.saturating_sub(random.below(5) as u8).max(1)
        } else {
            patient
        },
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
    }
}

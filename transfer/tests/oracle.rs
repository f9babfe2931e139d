//! The receiver's bitmap is exact: random requests over random paths, that lose, repeat and reorder datagrams and are cut,
//! with deadlines that move, transfers that are cancelled, and datagrams of other versions. An oracle reads the bytes that
//! arrived by their places alone, and knows which blocks are whole by it.
//!
//! `UROCE_SEEDS=N` plays N seeds, `UROCE_SEED=S` begins with S.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Path, Step, To, World, contents, ms};
use uroce::time::{Duration, Instant};
use uroce_laboratory::sim::Random;
use uroce_transfer::deadline::{End, Failure, Receiver, Request, Run, Sender, Shape, Values};

/// Enough for every fault to meet every other.
const SEEDS: u64 = 10_000;

const BEGIN: Instant = Instant::from_ns(1_000_000_000);
const ID: u64 = 0xfeed_f00d_0bad_cafe;
const OBJECT: u64 = 77;
const VERSION: u64 = 5;

/// What was asked for, and what the path has delivered.
struct Oracle {
    bytes: Vec<u8>,
    block_bytes: usize,
    symbol_bytes: usize,
    wanted: Vec<u32>,
    /// The symbols of each block that were delivered.
    symbols: BTreeMap<u32, BTreeSet<u32>>,
    /// When something of the sender was delivered last.
    heard: Option<Instant>,
    /// Whether a symbol of another version was delivered.
    is_mixed: bool,
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn long_number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Oracle {
    /// Takes a datagram that the receiver gets now.
    fn delivered(&mut self, now: Instant, datagram: &[u8]) {
        if datagram[..4] != *b"uDL1" || long_number(datagram, 8) != ID {
            return;
        }
        self.heard = Some(now);
        if datagram[4] != 2 {
            return;
        }
        if long_number(datagram, 16) != VERSION {
            self.is_mixed = true;
            return;
        }
        let (block, symbol, payload) = (number(datagram, 28), number(datagram, 32), &datagram[40..]);
        let whole = self.block(block);
        if let Some(expected) = whole.chunks(self.symbol_bytes).nth(symbol as usize) {
            assert_eq!(payload, expected, "the sender's own mistake: block {block}, symbol {symbol}");
        }
        self.symbols.entry(block).or_default().insert(symbol);
    }

    fn block(&self, block: u32) -> &[u8] {
        self.bytes.chunks(self.block_bytes).nth(block as usize).unwrap()
    }

    fn is_whole(&self, block: u32) -> bool {
        let needs = self.block(block).len().div_ceil(self.symbol_bytes);
        self.symbols.get(&block).is_some_and(|symbols| symbols.len() >= needs)
    }

    fn check(&self, world: &mut World) {
        let receiver = &mut world.receiver;
        let whole: Vec<u32> = self.wanted.iter().copied().filter(|block| self.is_whole(*block)).collect();
        let blocks = self.bytes.len().div_ceil(self.block_bytes) as u32;
        assert_eq!(receiver.whole().len(), blocks);
        for block in 0..blocks {
            assert_eq!(receiver.whole().has(block), whole.contains(&block), "block {block} of {blocks}");
            let expected = whole.contains(&block).then(|| self.block(block));
            assert!(receiver.block(block) == expected, "the bytes of block {block}");
        }
        let missing: Vec<u32> = receiver.missing().into_iter().flat_map(Run::blocks).collect();
        let expected: Vec<u32> = self.wanted.iter().copied().filter(|block| !self.is_whole(*block)).collect();
        assert_eq!(missing, expected);
        let mut told: Vec<u32> = std::iter::from_fn(|| receiver.poll_block()).collect();
        told.sort_unstable();
        let mut whole = whole;
        whole.sort_unstable();
        assert_eq!(told, whole);
    }

    fn check_end(&self, end: End, now: Instant, deadline: Instant, was_cancelled: bool) {
        let is_all = self.wanted.iter().all(|block| self.is_whole(*block));
        match end {
            End::Complete => assert!(is_all),
            End::Deadline => assert!(now >= deadline && !is_all && self.heard.is_some()),
            End::Cancelled => assert!(was_cancelled && !is_all),
            End::Failed(Failure::MixedVersions { asked, got }) => {
                assert!(self.is_mixed && asked == VERSION && got == VERSION - 1);
            }
            End::Failed(Failure::Silent(_)) => assert!(now - self.heard.unwrap() >= Duration::from_secs(1)),
            End::Failed(Failure::NoDeadlineMode { .. }) => {
                assert!(self.heard.is_none() && (now >= deadline || now - BEGIN >= Duration::from_secs(1)));
            }
            End::Failed(other) => panic!("{other}"),
        }
        assert_eq!(self.is_mixed, matches!(end, End::Failed(Failure::MixedVersions { .. })));
    }
}

/// What one seed is.
struct Game {
    oracle: Oracle,
    world: World,
    /// When the program cancels; when it moves the deadline, and to when; when a symbol of another version comes.
    cancel_at: Option<Instant>,
    move_at: Option<(Instant, Instant)>,
    mix_at: Option<Instant>,
}

fn runs_of(random: &mut Random, blocks: u32) -> Vec<Run> {
    let mut all: Vec<u32> = (0..blocks).filter(|_| random.chance(0.9)).collect();
    if all.is_empty() {
        all.push(random.below(u64::from(blocks)) as u32);
    }
    if random.chance(0.5) {
        let at = random.below(all.len() as u64) as usize;
        all.rotate_left(at);
    }
    if random.chance(0.2) {
        all.reverse();
    }
    Run::of(all)
}

fn path_of(random: &mut Random) -> Path {
    let cut = |random: &mut Random| {
        let from = BEGIN + random.up_to(ms(80));
        let longest = ms(random.choose(&[10, 60, 2000]));
        from..from + random.up_to(longest)
    };
    Path {
        rate: random.choose(&[1_000_000, 10_000_000, 100_000_000]),
        delay: Duration::from_micros(random.choose(&[100, 2_000, 20_000])),
        loss: random.choose(&[0.0, 0.01, 0.1, 0.3]),
        duplicate: random.choose(&[0.0, 0.02, 0.3]),
        reorder: random.choose(&[0.0, 0.05, 0.5]),
        reorder_by: random.up_to(ms(30)),
        cuts: (0..random.below(3)).map(|_| cut(random)).collect(),
    }
}

fn game(seed: u64) -> Game {
    let mut random = Random::new(seed, 0);
    let random = &mut random;
    let len = random.between(1, 60_000) as usize;
    let block_bytes = random.between(1 + len as u64 / 60, 9_000) as usize;
    let symbol_bytes = random.choose(&[64u16, 128, 512, 1024]);
    let shape = Shape::new(len as u64, block_bytes as u32, symbol_bytes).unwrap();
    let bytes = contents(random, len);
    let runs = runs_of(random, shape.blocks());
    let repair = random.choose(&[0, 0, 100, 250, 1000]);
    let longest = ms(random.choose(&[20, 200, 4000]));
    let deadline = BEGIN + random.up_to(longest) + Duration::from_nanos(1);
    let request = Request::new(OBJECT, VERSION, shape).with_runs(runs.clone()).with_repair(repair).by(deadline);
    let mut sender = Sender::new([seed as u8; 32]);
    sender.offer(OBJECT, Values::new(VERSION, block_bytes as u32, bytes.clone()).unwrap());
    let receiver = Receiver::new(ID, request, BEGIN).unwrap();
    let oracle = Oracle {
        bytes,
        block_bytes,
        symbol_bytes: usize::from(symbol_bytes),
        wanted: runs.into_iter().flat_map(Run::blocks).collect(),
        symbols: BTreeMap::new(),
        heard: None,
        is_mixed: false,
    };
    let path = path_of(random);
    let at = |random: &mut Random, chance: f64| random.chance(chance).then(|| BEGIN + random.up_to(ms(150)));
    let cancel_at = at(random, 0.05);
    let move_at = at(random, 0.2).map(|when| (when, when + random.up_to(ms(300)) + Duration::from_nanos(1)));
    let mix_at = at(random, 0.1);
    let mut world = World::new(sender, receiver, path, seed, BEGIN);
    world.lateness = random.choose(&[Duration::ZERO, ms(1)]);
    Game { oracle, world, cancel_at, move_at, mix_at }
}

impl Game {
    fn act(&mut self) -> bool {
        let now = self.world.now;
        if let Some((_, deadline)) = self.move_at.take_if(|(at, _)| *at <= now) {
            let is_past = deadline <= now;
            assert_eq!(self.world.receiver.set_deadline(deadline, now).is_err(), is_past);
        }
        if self.cancel_at.take_if(|at| *at <= now).is_some() {
            self.world.receiver.cancel();
            return true;
        }
        false
    }

    /// A datagram that is on its way comes again, as of an earlier version, and as of an earlier request.
    fn mix(&mut self, datagram: &[u8]) {
        if datagram[4] == 2 && self.mix_at.take_if(|at| *at <= self.world.now).is_some() {
            let mut of_other_request = datagram.to_vec();
            of_other_request[15] ^= 1;
            self.world.put(self.world.now, To::Receiver, of_other_request);
            let mut of_other_version = datagram.to_vec();
            of_other_version[23] -= 1;
            let at = self.world.now + Duration::from_millis(1);
            self.world.put(at, To::Receiver, of_other_version);
        }
    }

    fn play(mut self) -> End {
        let mut was_cancelled = false;
        for _ in 0..1_000_000 {
            if self.world.receiver.end().is_none() {
                was_cancelled |= self.act();
            }
            if let Some(end) = self.world.receiver.end() {
                let (now, deadline) = (self.world.now, self.world.receiver.deadline());
                self.oracle.check_end(end, now, deadline, was_cancelled);
                self.oracle.check(&mut self.world);
                // What comes later changes nothing.
                self.world.run_until(now + ms(50));
                assert_eq!(self.world.receiver.end(), Some(end));
                let whole: Vec<bool> = (0..self.world.receiver.whole().len())
                    .map(|block| self.world.receiver.block(block).is_some())
                    .collect();
                let expected = (0..whole.len() as u32)
                    .map(|block| self.oracle.wanted.contains(&block) && self.oracle.is_whole(block));
                assert!(whole.iter().copied().eq(expected), "a block changed after the end");
                return end;
            }
            match self.world.step().expect("the deadline comes") {
                Step::Arrives(To::Receiver, datagram) => {
                    let now = self.world.now;
                    let silent = now - self.oracle.heard.unwrap_or(BEGIN);
                    if now < self.world.receiver.deadline() && silent < Duration::from_secs(1) {
                        self.oracle.delivered(now, &datagram);
                    }
                    self.mix(&datagram);
                    self.world.hand_over(To::Receiver, &datagram);
                }
                Step::Arrives(To::Sender, datagram) => self.world.hand_over(To::Sender, &datagram),
                Step::Time => {}
            }
        }
        panic!("it does not end");
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Plays seeds; returns how often each end came.
fn play_all(seeds: impl Iterator<Item = u64>) -> BTreeMap<String, u64> {
    let mut ends = BTreeMap::new();
    for seed in seeds {
        let played = std::panic::catch_unwind(|| game(seed).play());
        let Ok(end) = played else { panic!("seed {seed}: see above; UROCE_SEED={seed} UROCE_SEEDS=1 plays it alone") };
        let name = match end {
            End::Failed(failure) => format!("{failure:?}").split([' ', '(']).next().unwrap().to_owned(),
            end => format!("{end:?}"),
        };
        *ends.entry(name).or_default() += 1;
    }
    ends
}

#[test]
fn every_bitmap_is_exact() {
    let first = variable("UROCE_SEED").unwrap_or(0);
    let count = variable("UROCE_SEEDS").unwrap_or(SEEDS);
    let halves = std::thread::scope(|scope| {
        let threads = [0, 1].map(|half| scope.spawn(move || play_all((first + half..first + count).step_by(2))));
        threads.map(|thread| thread.join().expect("a seed failed: see above"))
    });
    let mut ends = BTreeMap::new();
    halves.into_iter().flatten().for_each(|(end, count)| *ends.entry(end).or_insert(0) += count);
    println!("{ends:?}");
    if count >= SEEDS {
        for end in ["Complete", "Deadline", "Cancelled", "MixedVersions", "Silent", "NoDeadlineMode"] {
            assert!(ends.get(end).is_some_and(|count| *count >= 20), "{end} is hardly played: {ends:?}");
        }
    }
}

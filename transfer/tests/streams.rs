//! Streams over a connection in virtual time that is cut at any moment, and then made again: random parts, chunks, rates and
//! limits. An oracle has the receiver's memory, byte by byte, and knows what is whole by it.
//!
//! `UROCE_SEEDS=N` plays N seeds, `UROCE_SEED=S` begins with S.

use std::collections::VecDeque;

use uroce::time::{Duration, Instant};
use uroce_laboratory::sim::Random;
use uroce_transfer::stream::{Difference, End, Failure, Parts, Place, Post, Receiver, Sender, Stream};

/// Enough for cuts to meet every moment of a stream.
const SEEDS: u64 = 10_000;

const BEGIN: Instant = Instant::from_ns(1_000_000_000);
const ADDRESS: u64 = 0x7f00_0000_1000;
const RKEY: u32 = 0x55;

/// What is not whole.
const OLD: u8 = 0xee;

/// What one seed is.
struct Game {
    random: Random,
    stream: Stream,
    bytes: Vec<u8>,
    /// When the first so many parts are ready, since the beginning.
    ready: Vec<Duration>,
    memory: Vec<u8>,
    now: Instant,
}

/// A WRITE on its way: when it is placed, and when its completion is seen.
struct Flying {
    post: Post,
    placed_at: Instant,
    completed_at: Instant,
    is_placed: bool,
}

/// What a connection came to.
#[derive(Debug)]
struct Played {
    sent: u64,
    is_cut: bool,
}

fn game(seed: u64) -> Game {
    let mut random = Random::new(seed, 0);
    let mut lengths: Vec<u64> = (0..random.between(1, 12)).map(|_| random.choose(&[0, 1, 7, 100, 333])).collect();
    lengths[0] += 1;
    let parts = Parts::new(&lengths).unwrap();
    let bytes: Vec<u8> = (0..parts.bytes()).map(|at| (at * 7 % 200) as u8).collect();
    let step = random.choose(&[0, 10, 1000]);
    let mut at = Duration::ZERO;
    let ready = lengths
        .iter()
        .map(|_| {
            at += random.up_to(Duration::from_micros(step));
            at
        })
        .collect();
    let memory = vec![OLD; bytes.len()];
    Game { random, stream: Stream { name: seed, version: 3, parts }, bytes, ready, memory, now: BEGIN }
}

impl Game {
    /// Plays a connection to its end, or until it is cut; what is there before is `held`.
    fn connect(&mut self, held: u64, may_cut: bool) -> (Receiver, Played) {
        let outstanding = self.random.between(1, 9) as u32;
        let place = Place { address: ADDRESS, rkey: RKEY, outstanding };
        let send_queue = self.random.between(1, 9) as usize;
        let mut receiver = Receiver::new(self.stream.clone(), place, held, self.now).unwrap();
        let mut sender = Sender::new(self.stream.clone(), send_queue, self.now);
        sender.handle_message(self.now, &receiver.poll_message().unwrap());
        assert_eq!(sender.invited(), Some((place, held)));
        // A warm-up writes to what is not there.
        self.memory[held as usize..].fill(OLD);
        let chunk_bytes = self.random.choose(&[1, 3, 50, 256, 100_000]);
        sender.begin(chunk_bytes, self.now).unwrap();
        let begin = sender.poll_message().unwrap();
        let began = self.now;
        let begin_comes = began + self.random.up_to(Duration::from_micros(300));
        let cut_at = (may_cut && self.random.chance(0.7)).then(|| began + self.random.up_to(Duration::from_millis(2)));
        let mut message = Some(begin);
        let mut flying: VecDeque<Flying> = VecDeque::new();
        let mut played = Played { sent: 0, is_cut: false };
        let delay = self.random.up_to(Duration::from_micros(100));
        let byte = Duration::from_nanos(self.random.choose(&[1, 1000]));
        let mut free = began;
        for _ in 0..1_000_000 {
            let ready = self.ready.iter().filter(|ready| began + **ready <= self.now).count();
            sender.handle_ready(ready);
            while let Some(post) = sender.poll_post(self.now) {
                let end = post.offset + u64::from(post.bytes);
                assert!(post.bytes > 0 && end <= self.stream.parts.end(ready), "{post:?} before it is ready");
                assert_eq!((post.address, post.rkey), (ADDRESS + post.offset, RKEY));
                assert_eq!(post.offset, held + played.sent, "chunks follow each other");
                played.sent += u64::from(post.bytes);
                free = free.max(self.now) + byte * post.bytes;
                let placed_at = free + delay;
                flying.push_back(Flying { post, placed_at, completed_at: placed_at + delay, is_placed: false });
                assert!(flying.len() <= send_queue.min(outstanding as usize), "more than there are receives");
            }
            if cut_at.is_some_and(|at| at <= self.now) {
                sender.handle_broken();
                receiver.handle_broken();
                played.is_cut = receiver.end() != Some(End::Complete);
            }
            self.check(&receiver, &sender, held);
            if receiver.end().is_some() && (sender.end().is_some()) {
                return (receiver, played);
            }
            let next = (flying.iter().map(|one| if one.is_placed { one.completed_at } else { one.placed_at }))
                .chain(self.ready.get(ready).map(|ready| began + *ready))
                .chain(cut_at.filter(|at| *at > self.now))
                .chain(message.map(|_| begin_comes))
                .min();
            self.now = next.expect("something happens").max(self.now);
            if begin_comes <= self.now
                && let Some(message) = message.take()
            {
                receiver.handle_message(self.now, &message);
            }
            for one in flying.iter_mut().filter(|one| !one.is_placed && one.placed_at <= self.now) {
                let range = one.post.offset as usize..one.post.offset as usize + one.post.bytes as usize;
                self.memory[range.clone()].copy_from_slice(&self.bytes[range]);
                receiver.handle_notification(self.now, one.post.immediate, one.post.bytes);
                one.is_placed = true;
            }
            while flying.front().is_some_and(|one| one.is_placed && one.completed_at <= self.now) {
                flying.pop_front();
                sender.handle_completion(self.now);
            }
        }
        panic!("it does not end");
    }

    /// What the ends say is whole is there, and no less than what they say is there.
    fn check(&self, receiver: &Receiver, sender: &Sender, held: u64) {
        let there = self.memory.iter().zip(&self.bytes).take_while(|(got, sent)| got == sent).count() as u64;
        let whole = receiver.whole_bytes();
        assert!(whole <= there && whole >= held);
        // Notifications wait for the message that the sender has begun, and end with a failure.
        let is_told = receiver.cut().is_some() && !matches!(receiver.end(), Some(End::Failed(_)));
        assert!(!is_told || whole == there, "{whole} of {there}");
        let ends = (1..=self.stream.parts.count()).filter(|count| self.stream.parts.end(*count) <= whole).count();
        assert_eq!(receiver.whole_parts(), ends);
        if receiver.cut().is_some() {
            assert!(sender.whole_bytes() <= whole && sender.whole_parts() <= ends);
        }
        assert_eq!(
            receiver.end() == Some(End::Complete),
            receiver.cut().is_some() && whole == self.stream.parts.bytes()
        );
    }

    /// Plays connections until all is whole; returns how often it was cut.
    fn play(mut self) -> u64 {
        let (mut held, mut cuts) = (0, 0);
        loop {
            let (receiver, played) = self.connect(held, cuts < 3);
            let whole = receiver.whole_bytes();
            if !played.is_cut {
                assert_eq!((receiver.end(), played.sent), (Some(End::Complete), self.stream.parts.bytes() - held));
                assert!(self.memory == self.bytes, "the bytes differ");
                return cuts;
            }
            assert_eq!(receiver.end(), Some(End::Failed(Failure::Broken)));
            (held, cuts) = (whole, cuts + 1);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_stream_goes_on_where_it_was_cut_and_counts_what_is_there() {
    let first = variable("UROCE_SEED").unwrap_or(0);
    let count = variable("UROCE_SEEDS").unwrap_or(SEEDS);
    let mut cuts = 0;
    for seed in first..first + count {
        let played = std::panic::catch_unwind(|| game(seed).play());
        let Ok(cut) = played else { panic!("seed {seed}: see above; UROCE_SEED={seed} UROCE_SEEDS=1 plays it alone") };
        cuts += cut;
    }
    assert!(count < SEEDS || cuts >= SEEDS / 4, "{cuts} cuts");
}

fn ends(here: &Stream, there: &Stream) -> (Sender, Receiver) {
    let place = Place { address: ADDRESS, rkey: RKEY, outstanding: 4 };
    (Sender::new(here.clone(), 8, BEGIN), Receiver::new(there.clone(), place, 0, BEGIN).unwrap())
}

fn stream(name: u64, version: u64, lengths: &[u64]) -> Stream {
    Stream { name, version, parts: Parts::new(lengths).unwrap() }
}

/// The receiver invites, and the sender refuses: both name the difference, each from its side.
#[test]
fn streams_that_do_not_fit_are_errors_at_both_ends() {
    let here = stream(1, 1, &[5, 5]);
    for (there, at_sender, at_receiver) in [
        (stream(2, 1, &[5, 5]), Difference::Name { here: 1, there: 2 }, Difference::Name { here: 2, there: 1 }),
        (stream(1, 2, &[5, 5]), Difference::Version { here: 1, there: 2 }, Difference::Version { here: 2, there: 1 }),
        (stream(1, 1, &[5, 5, 5]), Difference::Parts { here: 2, there: 3 }, Difference::Parts { here: 3, there: 2 }),
        (stream(1, 1, &[5, 6]), Difference::Bytes { here: 10, there: 11 }, Difference::Bytes { here: 11, there: 10 }),
    ] {
        let (mut sender, mut receiver) = ends(&here, &there);
        sender.handle_message(BEGIN, &receiver.poll_message().unwrap());
        receiver.handle_message(BEGIN, &sender.poll_message().unwrap());
        assert_eq!(sender.end(), Some(End::Failed(Failure::Differs(at_sender))));
        assert_eq!(receiver.end(), Some(End::Failed(Failure::Differs(at_receiver))));
        assert_eq!((sender.poll_message(), receiver.poll_message()), (None, None));
    }
}

#[test]
fn a_sender_cannot_begin_before_it_is_invited_or_with_chunks_that_cannot_be() {
    let here = stream(1, 1, &[5, 5]);
    let (mut sender, mut receiver) = ends(&here, &here);
    assert_eq!(
        sender.begin(4, BEGIN).unwrap_err().to_string(),
        "the stream has not been invited, or has begun already"
    );
    sender.handle_message(BEGIN, &receiver.poll_message().unwrap());
    for length in [0, (1 << 31) + 1] {
        let text = format!("chunks of {length} bytes: 1 to 2147483648 are possible");
        assert_eq!(sender.begin(length, BEGIN).unwrap_err().to_string(), text);
    }
    sender.begin(4, BEGIN).unwrap();
    assert!(sender.begin(4, BEGIN).is_err());
    // A second invitation is refused, and so is its sender's receiver.
    let (_, mut other) = ends(&here, &here);
    sender.handle_message(BEGIN, &other.poll_message().unwrap());
    assert_eq!(sender.end(), Some(End::Failed(Failure::Unexpected)));
}

#[test]
fn a_peer_that_falls_silent_is_an_error_when_the_patience_ends() {
    let here = stream(1, 1, &[5, 5]);
    let patience = Duration::from_millis(30);
    let fails_at = BEGIN + patience;
    let is_silent = |end: Option<End>| end == Some(End::Failed(Failure::Silent(patience)));
    let new = || {
        let (sender, receiver) = ends(&here, &here);
        (sender.with_patience(patience), receiver.with_patience(patience))
    };
    // No invitation, no beginning.
    let (mut sender, mut receiver) = new();
    assert_eq!((sender.poll_timeout(), receiver.poll_timeout()), (Some(fails_at), Some(fails_at)));
    sender.handle_timeout(BEGIN + (patience - Duration::from_nanos(1)));
    assert_eq!(sender.end(), None);
    sender.handle_timeout(fails_at);
    receiver.handle_timeout(fails_at);
    assert!(is_silent(sender.end()) && is_silent(receiver.end()));
    assert_eq!((sender.poll_timeout(), receiver.poll_timeout()), (None, None));
    // A chunk that does not complete. While nothing is ready, nobody waits for the receiver.
    let (mut sender, mut receiver) = new();
    sender.handle_message(BEGIN, &receiver.poll_message().unwrap());
    sender.begin(5, BEGIN).unwrap();
    assert_eq!(sender.poll_timeout(), None);
    let later = BEGIN + Duration::from_secs(9);
    sender.handle_ready(1);
    assert!(sender.poll_post(later).is_some() && sender.poll_post(later).is_none());
    assert_eq!(sender.poll_timeout(), Some(later + patience));
    sender.handle_timeout(later + patience);
    assert!(is_silent(sender.end()) && sender.poll_post(later).is_none());
    assert_eq!(sender.whole_parts(), 0);
}

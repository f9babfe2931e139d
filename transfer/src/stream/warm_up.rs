use std::collections::VecDeque;

use uroce::time::{Duration, Instant};

use super::Conditions;

/// Finds out what a connection does, by WRITEs without immediate data before the first chunk.
///
/// First a few short ones go one at a time, which show the round trip. Then long ones keep more and more bytes on their way,
/// until that makes them no faster.
#[derive(Clone, Debug)]
pub struct WarmUp {
    longest_bytes: u64,
    outstanding: usize,
    /// When each message on its way was posted, and its bytes.
    on_their_way: VecDeque<(Instant, u64)>,
    posted: u64,
    completed: u64,
    completed_bytes: u64,
    /// Short messages that are still to be posted.
    short: u32,
    round_trip: Option<Duration>,
    /// Bytes that are kept on their way.
    window_bytes: u64,
    round: Option<Round>,
    /// Whether a round was no faster than those before, so that what is kept on its way is twice what is needed.
    is_wide: bool,
    /// The rounds since then: bytes, and how long they took.
    steady: Vec<(u64, Duration)>,
    best_bps: f64,
    rounds: u32,
}

/// From a completion until the message that is posted next completes: what is kept on its way goes once.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    posted: u64,
    completed_bytes: u64,
    /// Whether what completes was posted while less was kept on its way.
    is_growing: bool,
}

/// How many short messages show the round trip: the first also finds the peer's address.
const SHORT: u32 = 4;

/// Length of a short message, in bytes: a packet of the largest path MTU.
const SHORT_BYTES: u64 = 4096;

/// What is kept on its way at first, in bytes, and of how many messages.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
const MESSAGES: u64 = 8;

/// Length of a long message in bytes: shorter ones are about their own cost, and longer ones are long to wait for.
const LONG_BYTES: [u64; 2] = [32 << 10, 16 << 20];

/// A round that is so much faster than all before shows that the connection carries more.
const GROWTH: f64 = 1.25;

/// So many rounds that are no faster, in so much time, show what it carries.
const STEADY_ROUNDS: usize = 2;
const STEADY: Duration = Duration::from_millis(100);

/// Of so many rounds, where the rate never settles, later ones do not count as faster.
const ROUNDS_MAX: u32 = 64;

/// What a message costs the sender: a post, its completion, and the calls of the program around them. Posting also moves packets,
/// so that it cannot be measured from here; 5 µs is what it takes over AF_XDP.
const MESSAGE: Duration = Duration::from_micros(5);

impl WarmUp {
    /// Messages of at most `longest_bytes`, which is at least 1, and at most `outstanding` of them on their way.
    pub fn new(longest_bytes: u64, outstanding: usize) -> WarmUp {
        WarmUp {
            longest_bytes: longest_bytes.max(1),
            outstanding: outstanding.max(1),
            on_their_way: VecDeque::new(),
            posted: 0,
            completed: 0,
            completed_bytes: 0,
            short: SHORT,
            round_trip: None,
            window_bytes: FIRST_WINDOW_BYTES,
            round: None,
            is_wide: false,
            steady: Vec::new(),
            best_bps: 0.0,
            rounds: 0,
        }
    }

    /// The length of the next message to be posted now, in bytes; `None` when there is none until the next completion.
    pub fn poll_post(&mut self, now: Instant) -> Option<u64> {
        if self.is_measured() {
            return None;
        }
        let bytes = if self.short > 0 {
            if !self.on_their_way.is_empty() {
                return None;
            }
            self.short -= 1;
            SHORT_BYTES.min(self.longest_bytes)
        } else {
            self.next_long()?
        };
        self.on_their_way.push_back((now, bytes));
        self.posted += 1;
        Some(bytes)
    }

    fn next_long(&self) -> Option<u64> {
        let messages = MESSAGES.min(self.outstanding as u64);
        let bytes = (self.window_bytes / messages).clamp(LONG_BYTES[0], LONG_BYTES[1]).min(self.longest_bytes);
        let others: u64 = self.on_their_way.iter().map(|(_, bytes)| bytes).sum();
        // The last short one shows the round trip, and is alone.
        let is_short_there =
            self.completed < u64::from(SHORT) && self.posted > self.completed && others < SHORT_BYTES * 2;
        let has_room = others == 0 || others + bytes <= self.window_bytes;
        (has_room && !is_short_there && self.on_their_way.len() < self.outstanding).then_some(bytes)
    }

    /// A posted message has completed with success; they do so in order.
    pub fn handle_completion(&mut self, now: Instant) {
        let Some((posted_at, bytes)) = self.on_their_way.pop_front() else { return };
        self.completed += 1;
        self.completed_bytes += bytes;
        if self.completed <= u64::from(SHORT) {
            let took = now - posted_at;
            self.round_trip = Some(self.round_trip.map_or(took, |least| least.min(took)));
            return;
        }
        match self.round {
            Some(round) if self.completed < round.posted => {}
            Some(round) => {
                let window_bytes = self.window_bytes;
                self.end_round(round, now);
                self.begin_round(now, self.window_bytes > window_bytes);
            }
            None => self.begin_round(now, false),
        }
    }

    fn begin_round(&mut self, now: Instant, is_growing: bool) {
        // The next to be posted: it completes a round trip from now.
        let posted = self.posted + 1;
        self.round = Some(Round { began: now, posted, completed_bytes: self.completed_bytes, is_growing });
    }

    fn end_round(&mut self, round: Round, now: Instant) {
        if round.is_growing {
            return;
        }
        let took = (now - round.began).max(Duration::from_nanos(1));
        let bytes = self.completed_bytes - round.completed_bytes;
        let rate_bps = bytes as f64 * 8.0 / took.as_secs_f64();
        self.rounds += 1;
        if rate_bps >= GROWTH * self.best_bps && self.rounds < ROUNDS_MAX {
            self.best_bps = rate_bps;
            self.window_bytes = self.window_bytes.saturating_mul(2);
            self.is_wide = false;
            self.steady.clear();
        } else if !self.is_wide {
            // Twice as much, so that a late completion leaves no gap.
            self.window_bytes = self.window_bytes.saturating_mul(2);
            self.is_wide = true;
        } else {
            self.steady.push((bytes, took));
        }
    }

    fn is_measured(&self) -> bool {
        let took: Duration = self.steady.iter().map(|(_, took)| *took).sum();
        self.steady.len() >= STEADY_ROUNDS && (took >= STEADY || self.rounds >= ROUNDS_MAX)
    }

    /// What the connection does, once it is known and all messages have completed. A connection that carries more than
    /// `outstanding` messages of 16 MiB in a round trip is faster than this says.
    pub fn conditions(&self) -> Option<Conditions> {
        if !self.is_measured() || !self.on_their_way.is_empty() {
            return None;
        }
        let (bytes, took) =
            self.steady.iter().fold((0, Duration::ZERO), |sum, round| (sum.0 + round.0, sum.1 + round.1));
        let rate_bps = bytes as f64 * 8.0 / took.as_secs_f64();
        Some(Conditions { rate_bps, round_trip: self.round_trip?, message: MESSAGE, outstanding: self.outstanding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a warm-up over a line of `rate` bytes a second, whose messages are acknowledged after `round_trip`.
    fn over(rate: u64, round_trip: Duration, longest_bytes: u64, outstanding: usize) -> (Conditions, Duration, u64) {
        let begin = Instant::from_ns(1);
        let mut warm_up = WarmUp::new(longest_bytes, outstanding);
        let (mut now, mut free, mut sent) = (begin, begin, 0);
        let mut ends: VecDeque<Instant> = VecDeque::new();
        for _ in 0..1_000_000 {
            while let Some(bytes) = warm_up.poll_post(now) {
                assert!(bytes <= longest_bytes);
                free = free.max(now) + Duration::from_nanos(bytes * 1_000_000_000 / rate);
                ends.push_back(free + round_trip);
                sent += bytes;
                assert!(ends.len() <= outstanding);
            }
            if let Some(conditions) = warm_up.conditions() {
                return (conditions, now - begin, sent);
            }
            now = ends.pop_front().expect("something is on its way");
            warm_up.handle_completion(now);
        }
        panic!("it does not end: {warm_up:?}");
    }

    #[test]
    fn rate_and_round_trip_are_those_of_the_line() {
        for (mbps, rtt_ms) in [(300, 2), (300, 100), (10_000, 30), (100_000, 1)] {
            let (rate, round_trip) = (mbps * 125_000, Duration::from_millis(rtt_ms));
            let (conditions, took, sent) = over(rate, round_trip, 64 << 20, 64);
            let share = conditions.rate_bps / (rate * 8) as f64;
            assert!((0.97..1.01).contains(&share), "{mbps} Mb/s, {rtt_ms} ms: {share}");
            let more = conditions.round_trip - round_trip;
            assert!(more <= Duration::from_nanos(4096 * 1_000_000_000 / rate), "{more:?}");
            // Some round trips, and what they carry.
            let limit = round_trip * 40 + Duration::from_millis(400);
            assert!(took < limit, "{mbps} Mb/s, {rtt_ms} ms: {took:?} for {sent} bytes");
        }
    }

    #[test]
    fn few_and_short_messages_show_what_they_carry() {
        let round_trip = Duration::from_millis(10);
        let (conditions, ..) = over(125_000_000, round_trip, 1 << 20, 1);
        // One of 1 MiB in 18.4 ms.
        assert!((4.4e8..4.7e8).contains(&conditions.rate_bps), "{conditions:?}");
        let (conditions, ..) = over(125_000_000, round_trip, 1, 4);
        assert!(conditions.rate_bps > 0.0 && conditions.round_trip >= round_trip);
    }
}

use arrayvec::ArrayVec;

use crate::time::{Duration, Instant};

use super::{Progress, Sample};

/// What is known of the packets of a queue pair on the way to its peer: how many bytes arrived and were
/// lost, and how long they take.
#[derive(Debug, Default)]
pub struct Flight {
    delivered_bytes: u64,
    lost_bytes: u64,
    in_flight_bytes: u64,
    paths: Vec<PathDelay>,
}

/// The shortest round trip of a path lately: the least of two periods, of which one has ended.
#[derive(Clone, Copy, Debug, Default)]
struct PathDelay {
    previous: Option<Duration>,
    current: Option<Duration>,
    began: Instant,
    /// The delay of the newest sample over the shortest.
    queue: Duration,
    /// The smoothed round trip.
    smoothed: Duration,
    /// When the packet of the newest sample was sent.
    sent_at: Instant,
}

/// Upper bound on the number of paths.
const MAX_PATHS: usize = 256;

/// The shortest round trip is forgotten after one to two of these: routes change.
const PERIOD: Duration = Duration::from_secs(10);

impl PathDelay {
    fn shortest(&self) -> Option<Duration> {
        [self.previous, self.current].into_iter().flatten().min()
    }

    fn take(&mut self, sample: &Sample, now: Instant) {
        let round_trip = sample.round_trip;
        if now - self.began > PERIOD {
            (self.previous, self.current, self.began) = (self.current, None, now);
        }
        self.current = Some(self.current.map_or(round_trip, |current| current.min(round_trip)));
        self.sent_at = sample.sent_at;
        self.queue = round_trip.saturating_sub(self.shortest().unwrap_or(round_trip));
        let before = if self.smoothed.is_zero() { round_trip } else { self.smoothed };
        self.smoothed = (before * 7 + round_trip) / 8;
    }
}

impl Flight {
    /// Takes what became of packets; `in_flight_bytes` are left in flight.
    pub fn take(&mut self, progress: &Progress, in_flight_bytes: u64, now: Instant) {
        self.in_flight_bytes = in_flight_bytes;
        self.delivered_bytes += progress.delivered_bytes;
        self.lost_bytes += progress.lost_bytes;
        if let Some(sample) = &progress.sample {
            self.take_sample(sample, now);
        }
    }

    fn take_sample(&mut self, sample: &Sample, now: Instant) {
        let path = usize::from(sample.path);
        if self.paths.len() <= path {
            self.paths.resize(path + 1, PathDelay { began: now, ..PathDelay::default() });
        }
        self.paths[path].take(sample, now);
    }

    /// Bytes whose arrival is known so far.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// Bytes that were found to be lost so far.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Bytes that are in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// The smoothed round trip of the slowest path: after it, all that was sent is known of. `None` before the first
    /// sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.paths.iter().map(|path| path.smoothed).max()
    }

    /// The round trip without queues: the shortest lately, as the mean over paths; `None` before the first sample.
    pub fn shortest(&self) -> Option<Duration> {
        let (sum, count) = self
            .paths
            .iter()
            .filter_map(PathDelay::shortest)
            .fold((Duration::ZERO, 0), |(sum, count), shortest| (sum + shortest, count + 1));
        sum.checked_div(count)
    }

    /// The delay in queues of packets that were sent at `since` or later: the median over paths, each by its newest
    /// sample. `None` before the first such sample.
    pub fn queue(&self, since: Instant) -> Option<Duration> {
        let is_new = |path: &&PathDelay| path.shortest().is_some() && path.sent_at >= since;
        let mut queues: ArrayVec<Duration, MAX_PATHS> =
            self.paths.iter().filter(is_new).map(|path| path.queue).collect();
        queues.sort_unstable();
        queues.get(queues.len() / 2).copied()
    }
}

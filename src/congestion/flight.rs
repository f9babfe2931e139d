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
        if let [path] = &self.paths[..] {
            return Some(path).filter(is_new).map(|path| path.queue);
        }
        let mut queues: ArrayVec<Duration, MAX_PATHS> =
            self.paths.iter().filter(is_new).map(|path| path.queue).collect();
        queues.sort_unstable();
        queues.get(queues.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(path: u8, sent_ms: u64, round_trip_ms: u64) -> Progress {
        let sent_at = Instant::from_ns(sent_ms * 1_000_000);
        let round_trip = Duration::from_millis(round_trip_ms);
        let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path, is_marked: false };
        Progress { delivered_bytes: 1000, sample: Some(sample), ..Progress::default() }
    }

    /// A flight that took these samples, each of a path, a time and a round trip in milliseconds, at the time of its arrival.
    fn flight(samples: &[(u8, u64, u64)]) -> Flight {
        let mut flight = Flight::default();
        for &(path, sent_ms, round_trip_ms) in samples {
            let now = Instant::from_ns((sent_ms + round_trip_ms) * 1_000_000);
            flight.take(&sample(path, sent_ms, round_trip_ms), 5000, now);
        }
        flight
    }

    const EVER: Instant = Instant::ZERO;

    #[test]
    fn the_queue_is_what_the_newest_sample_took_longer_than_the_shortest() {
        let flight = flight(&[(0, 1, 22), (0, 2, 20), (0, 3, 27)]);
        assert_eq!((flight.delivered_bytes(), flight.in_flight_bytes()), (3000, 5000));
        assert_eq!(flight.shortest(), Some(Duration::from_millis(20)));
        assert_eq!(flight.queue(EVER), Some(Duration::from_millis(7)));
        // Nothing that was sent since has come back.
        assert_eq!(flight.queue(Instant::from_ns(4_000_000)), None);
    }

    #[test]
    fn one_congested_path_of_three_is_not_the_queue() {
        let flight = flight(&[(0, 1, 10), (1, 1, 20), (2, 1, 30), (0, 40, 110), (1, 41, 21), (2, 42, 33)]);
        assert_eq!(flight.queue(EVER), Some(Duration::from_millis(3)), "the median of 100, 1 and 3");
        assert_eq!(flight.shortest(), Some(Duration::from_millis(20)), "the mean of 10, 20 and 30");
    }

    #[test]
    fn a_route_that_has_become_longer_is_no_queue_after_two_periods() {
        let before = flight(&[(0, 0, 20), (0, 5_000, 50)]);
        assert_eq!(before.queue(EVER), Some(Duration::from_millis(30)));
        let after = flight(&[(0, 0, 20), (0, 5_000, 50), (0, 10_100, 50), (0, 20_200, 50)]);
        assert_eq!((after.shortest(), after.queue(EVER)), (Some(Duration::from_millis(50)), Some(Duration::ZERO)));
    }
}

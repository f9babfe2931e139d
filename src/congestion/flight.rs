use crate::cache;
use crate::time::{Duration, Instant};
use crate::tournament::Tournament;

use super::{Progress, Sample};

/// What is known of the packets of a queue pair on the way to its peer: how many bytes arrived and were
/// lost, and how long they take.
#[derive(Debug, Default)]
pub struct Flight {
    delivered_bytes: u64,
    lost_bytes: u64,
    in_flight_bytes: u64,
    paths: Box<[PathDelay]>,
    /// The smoothed round trips of paths.
    smoothed: Tournament<Duration>,
    /// The sum of the shortest round trips of paths, in nanoseconds, and how many these are.
    shortest_ns: u64,
    known: u32,
    /// The newest samples of the paths that were heard of last, in the order of their queues; and a time before which none of them
    /// was sent.
    newest: Box<[Newest]>,
    newest_since: Instant,
    /// Their paths, the one that was not heard of for longest first.
    heard: [u8; NEWEST_MAX],
}

/// The newest sample of a path.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// The delay over the shortest of its path, in nanoseconds.
    queue_ns: u64,
    /// When its packet was sent.
    sent_at: Instant,
    path: u8,
}

/// The shortest round trip of a path lately: the least of two periods, of which one has ended.
#[derive(Clone, Copy, Debug, Default)]
struct PathDelay {
    previous: Option<Duration>,
    current: Option<Duration>,
    began: Instant,
    /// Whether its newest sample counts.
    is_newest: bool,
}

/// Upper bound on the paths whose newest samples count: the median of so many is near that of all, and does not take longer
/// with each path more.
const NEWEST_MAX: usize = 16;

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
    }
}

impl Flight {
    /// Has what lies outside of it fetched into the caches.
    pub fn prefetch(&self) {
        self.paths.first().into_iter().for_each(cache::prefetch);
        self.newest.first().into_iter().for_each(cache::prefetch);
        self.smoothed.prefetch();
    }

    /// Takes what became of packets; `in_flight_bytes` are left in flight.
    pub fn take(&mut self, progress: &Progress, in_flight_bytes: u64, now: Instant) {
        self.in_flight_bytes = in_flight_bytes;
        self.delivered_bytes += progress.delivered_bytes;
        self.lost_bytes += progress.lost_bytes;
        if let Some(sample) = &progress.sample {
            self.take_sample(sample, now);
        }
    }

    /// Counts this as the round trip of the first path, of which nothing is known: what others have seen there.
    pub(super) fn assume(&mut self, shortest: Duration, now: Instant) {
        let sample = Sample { sent_at: now, round_trip: shortest, delay: Duration::ZERO, path: 0, is_marked: false };
        self.take_sample(&sample, now);
    }

    fn take_sample(&mut self, sample: &Sample, now: Instant) {
        let path = usize::from(sample.path);
        if self.paths.len() <= path {
            let mut paths = std::mem::take(&mut self.paths).into_vec();
            paths.resize(path + 1, PathDelay { began: now, ..PathDelay::default() });
            self.paths = paths.into_boxed_slice();
        }
        let delay = &mut self.paths[path];
        let before = delay.shortest();
        delay.take(sample, now);
        let shortest = delay.shortest().unwrap_or_default();
        // In nanoseconds: arithmetic of durations takes several times as long.
        let took_ns = sample.round_trip.as_nanos() as u64;
        let smoothed = self.smoothed.value(path).filter(|before| !before.is_zero());
        let smoothed_ns = smoothed.map_or(took_ns, |smoothed| smoothed.as_nanos() as u64);
        self.smoothed.set(path, Some(Duration::from_nanos((smoothed_ns * 7 + took_ns) / 8)));
        self.shortest_ns += shortest.as_nanos() as u64;
        self.shortest_ns -= before.unwrap_or_default().as_nanos() as u64;
        self.known += u32::from(before.is_none());
        let queue_ns = sample.round_trip.saturating_sub(shortest).as_nanos() as u64;
        self.take_newest(Newest { queue_ns, sent_at: sample.sent_at, path: sample.path });
    }

    /// Takes the newest sample of a path, in the place of the one before, or of the path that was not heard of for longest.
    fn take_newest(&mut self, sample: Newest) {
        let replaced = self.hear(sample.path);
        let newest = &mut self.newest;
        let mut index = newest.iter().position(|other| Some(other.path) == replaced).unwrap_or(newest.len());
        match newest.get_mut(index) {
            Some(other) => {
                let since = if other.path == sample.path { self.newest_since } else { other.sent_at };
                self.newest_since = since.min(sample.sent_at);
                *other = sample;
            }
            None => {
                let mut more = std::mem::take(newest).into_vec();
                more.reserve_exact(1);
                more.push(sample);
                *newest = more.into_boxed_slice();
            }
        }
        while index > 0 && sample.queue_ns < newest[index - 1].queue_ns {
            newest.swap(index, index - 1);
            index -= 1;
        }
        while index + 1 < newest.len() && sample.queue_ns > newest[index + 1].queue_ns {
            newest.swap(index, index + 1);
            index += 1;
        }
    }

    /// Makes the path the one that was heard of last. Returns the path whose sample the one of this path replaces, which can be the
    /// same, if there is no room for one more.
    fn hear(&mut self, path: u8) -> Option<u8> {
        let (heard, count) = (&mut self.heard, self.newest.len());
        let was_newest = std::mem::replace(&mut self.paths[usize::from(path)].is_newest, true);
        if was_newest {
            if heard[count - 1] != path {
                let index = heard.iter().position(|other| *other == path).unwrap_or_default();
                heard[index..count].rotate_left(1);
            }
            return Some(path);
        }
        if count < NEWEST_MAX {
            heard[count] = path;
            return None;
        }
        let replaced = heard[0];
        heard.copy_within(1.., 0);
        heard[NEWEST_MAX - 1] = path;
        self.paths[usize::from(replaced)].is_newest = false;
        Some(replaced)
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
        self.smoothed.greatest()
    }

    /// The round trip without queues: the shortest lately, as the mean over paths; `None` before the first sample.
    pub fn shortest(&self) -> Option<Duration> {
        self.shortest_ns.checked_div(self.known.into()).map(Duration::from_nanos)
    }

    /// The delay in queues: the median over the paths that were heard of last, at most sixteen, each by its newest sample. `None`
    /// before the first sample.
    pub fn queue(&self) -> Option<Duration> {
        self.newest.get(self.newest.len() / 2).map(|sample| Duration::from_nanos(sample.queue_ns))
    }

    /// As [`queue`](Self::queue), of those of these paths whose newest sample was sent at `since` or later.
    pub fn queue_since(&self, since: Instant) -> Option<Duration> {
        if since <= self.newest_since {
            return self.queue();
        }
        let mut new = self.newest.iter().filter(|sample| sample.sent_at >= since);
        let count = new.clone().count();
        new.nth(count / 2).map(|sample| Duration::from_nanos(sample.queue_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        /// Beside a scan of all paths, of which sixteen have been heard of last.
        #[test]
        fn what_is_said_of_many_paths_is_what_a_scan_of_them_finds(
            samples in prop::collection::vec((0..24u8, 1..50u64), 1..200), ago in 0..200u64,
        ) {
            let (mut flight, mut delays) = (Flight::default(), vec![None::<PathDelay>; 24]);
            let mut smoothed = [None::<Duration>; 24];
            let mut heard: Vec<(u8, u64, Duration)> = Vec::new();
            for (index, (path, round_trip_ms)) in samples.into_iter().enumerate() {
                let (sent_ms, slot) = (200 + index as u64, &mut delays[usize::from(path)]);
                let now = Instant::from_ns((sent_ms + round_trip_ms) * 1_000_000);
                let progress = sample(path, sent_ms, round_trip_ms);
                flight.take(&progress, 0, now);
                slot.get_or_insert(PathDelay { began: now, ..PathDelay::default() }).take(&progress.sample.unwrap(), now);
                let (before, took) = (&mut smoothed[usize::from(path)], Duration::from_millis(round_trip_ms));
                *before = Some((before.unwrap_or(took) * 7 + took) / 8);
                heard.retain(|(other, ..)| *other != path);
                heard.push((path, sent_ms, Duration::from_millis(round_trip_ms) - slot.unwrap().shortest().unwrap()));
                let known: Vec<PathDelay> = delays.iter().flatten().copied().collect();
                prop_assert_eq!(flight.smoothed(), smoothed.iter().flatten().max().copied());
                let sum: Duration = known.iter().filter_map(PathDelay::shortest).sum();
                prop_assert_eq!(flight.shortest(), Some(sum / known.len() as u32));
                let since = sent_ms.saturating_sub(ago);
                let latest = heard.iter().rev().take(NEWEST_MAX).filter(|(_, sent, _)| *sent >= since);
                let mut queues: Vec<Duration> = latest.map(|(.., queue)| *queue).collect();
                queues.sort();
                let median = queues.get(queues.len() / 2).copied();
                prop_assert_eq!(flight.queue(), flight.queue_since(Instant::ZERO));
                prop_assert_eq!(flight.queue_since(Instant::from_ns(since * 1_000_000)), median);
            }
        }
    }

    #[test]
    fn the_queue_is_what_the_newest_sample_took_longer_than_the_shortest() {
        let flight = flight(&[(0, 1, 22), (0, 2, 20), (0, 3, 27)]);
        assert_eq!((flight.delivered_bytes(), flight.in_flight_bytes()), (3000, 5000));
        assert_eq!(flight.shortest(), Some(Duration::from_millis(20)));
        assert_eq!(flight.queue(), Some(Duration::from_millis(7)));
        // Nothing that was sent since has come back.
        assert_eq!(flight.queue_since(Instant::from_ns(4_000_000)), None);
    }

    #[test]
    fn one_congested_path_of_three_is_not_the_queue() {
        let flight = flight(&[(0, 1, 10), (1, 1, 20), (2, 1, 30), (0, 40, 110), (1, 41, 21), (2, 42, 33)]);
        assert_eq!(flight.queue(), Some(Duration::from_millis(3)), "the median of 100, 1 and 3");
        assert_eq!(flight.shortest(), Some(Duration::from_millis(20)), "the mean of 10, 20 and 30");
    }

    #[test]
    fn a_route_that_has_become_longer_is_no_queue_after_two_periods() {
        let before = flight(&[(0, 0, 20), (0, 5_000, 50)]);
        assert_eq!(before.queue(), Some(Duration::from_millis(30)));
        let after = flight(&[(0, 0, 20), (0, 5_000, 50), (0, 10_100, 50), (0, 20_200, 50)]);
        assert_eq!((after.shortest(), after.queue()), (Some(Duration::from_millis(50)), Some(Duration::ZERO)));
    }
}

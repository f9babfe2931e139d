use arrayvec::ArrayVec;

use crate::time::{Duration, Instant};

/// What had arrived at which time, in the last round trips.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The time, and the bytes that had been delivered by then; the oldest is followed at `next`.
    moments: Box<ArrayVec<(Instant, u64), MOMENTS>>,
    next: usize,
}

/// Moments that are remembered, and how many of them there are in a shortest round trip: with four times its length of
/// queue they still reach back to when a packet was sent.
const MOMENTS: usize = 256;
const IN_ROUND_TRIP: u32 = 48;

impl Arrivals {
    /// Adds what has been delivered by now, unless the last time is nearer than a part of the shortest round trip.
    pub fn add(&mut self, now: Instant, delivered: u64, shortest: Duration) {
        let last = (self.next + self.moments.len()).checked_sub(1).map(|at| at % MOMENTS);
        let last = last.and_then(|at| self.moments.get(at));
        if last.is_some_and(|(at, _)| now.saturating_since(*at) < shortest / IN_ROUND_TRIP) {
            return;
        }
        if self.moments.is_full() {
            self.moments[self.next] = (now, delivered);
            self.next = (self.next + 1) % MOMENTS;
        } else {
            self.moments.push((now, delivered));
        }
    }

    /// The bytes that arrived from `since` on until now, when `delivered` have arrived, and the seconds that they took;
    /// `None` when it is not known what had arrived by then.
    pub fn since(&self, since: Instant, now: Instant, delivered: u64) -> Option<(f64, f64)> {
        let (newer, older) = self.moments.split_at(self.next);
        let is_before = |moment: &&(Instant, u64)| moment.0 <= since;
        // Both parts are in the order of time.
        let in_part = |part: &[(Instant, u64)]| part.partition_point(|moment| moment.0 <= since);
        let found = match in_part(newer) {
            0 => in_part(older).checked_sub(1).map(|at| older[at]),
            after => Some(newer[after - 1]),
        };
        let (from, before) = found.filter(|moment| is_before(&moment))?;
        let lasted = (now - from).as_secs_f64();
        (lasted > 0.0).then(|| ((delivered - before) as f64, lasted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_ns(us * 1000)
    }

    #[test]
    fn the_rate_is_that_since_a_packet_was_sent() {
        let mut arrivals = Arrivals::default();
        let shortest = Duration::from_micros(48);
        // A byte in each microsecond, and from 1000 µs on two.
        let delivered = |us: u64| us + us.saturating_sub(1000);
        (0..3000).for_each(|us| arrivals.add(at(us), delivered(us), shortest));
        for (since, now, expected) in [(2800, 2900, 2e6), (2745, 2999, 2e6)] {
            let (bytes, seconds) = arrivals.since(at(since), at(now), delivered(now)).unwrap();
            assert!((bytes / seconds / expected - 1.0).abs() < 1e-9, "{bytes} in {seconds} since {since}");
        }
        assert_eq!(arrivals.since(at(2743), at(2999), delivered(2999)), None, "256 moments of a microsecond each");
    }

    #[test]
    fn between_two_moments_the_earlier_one_counts() {
        let mut arrivals = Arrivals::default();
        let shortest = Duration::from_micros(480);
        (0..100).for_each(|us| arrivals.add(at(us), us, shortest));
        // At 90, ten microseconds after the last but one.
        assert_eq!(arrivals.since(at(95), at(100), 190), Some((100.0, 10e-6)));
        assert_eq!(Arrivals::default().since(at(95), at(100), 190), None);
    }
}

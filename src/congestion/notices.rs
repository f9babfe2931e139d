use crate::time::{Duration, Instant};

use super::Flight;
use super::steady::SHORTEST_ROUND;

/// Bounds what notifications of congestion do to a window. Towards a plain peer anybody who knows the addresses and the
/// QPN can forge them, and so they count once a round trip (or 100 µs), and never push the window under a tenth of what was
/// delivered.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// When the next one counts.
    counts_at: Instant,
    /// When the round trip began that is measured, what had been delivered then, and whether a notification came since.
    began: Instant,
    delivered: u64,
    has_come: bool,
    /// The most that was delivered in a round trip of the previous and of the current period, in bytes a second.
    most: [f64; 2],
    /// When the current period began, later by the round trips with notifications.
    period_began: Instant,
}

/// The share of the window that a notification leaves as a rule. What it takes is DCTCP's when a quarter of the packets is
/// marked, and more than the growth in a round trip without a queue.
pub(super) const LEFT: f64 = 7.0 / 8.0;

/// The shortest time in which they count once: hosts handle packets in batches.
const SHORTEST: Duration = Duration::from_micros(100);

/// The share of what was delivered that no notification takes.
const FLOOR: f64 = 0.1;

/// What was delivered is forgotten after one to two of these without notifications: as long as the shortest round trip.
const PERIOD: Duration = Duration::from_secs(10);

impl Notices {
    /// Takes what is known of the packets on their way.
    pub fn take(&mut self, flight: &Flight, now: Instant) {
        let lasted = now.saturating_since(self.began);
        if lasted < round(flight, SHORTEST_ROUND) {
            return;
        }
        let rate = flight.delivered_bytes().saturating_sub(self.delivered) as f64 / lasted.as_secs_f64();
        self.most[1] = self.most[1].max(rate);
        if self.has_come {
            // Whoever floods does not wait until it is forgotten what was delivered before.
            self.period_began = self.period_began + lasted;
        } else if now.saturating_since(self.period_began) > PERIOD {
            (self.most, self.period_began) = ([self.most[1], 0.0], now);
        }
        (self.began, self.delivered, self.has_come) = (now, flight.delivered_bytes(), false);
    }

    /// Takes a notification that leaves this `share` of a window of so many bytes, but no less than the floor. Returns what is
    /// left; `None` when it does not count.
    pub fn cut(&mut self, window: f64, share: f64, flight: &Flight, now: Instant) -> Option<f64> {
        self.has_come = true;
        let base = flight.shortest().filter(|_| now >= self.counts_at)?;
        self.counts_at = now + round(flight, SHORTEST);
        let floor = FLOOR * self.most[0].max(self.most[1]) * base.as_secs_f64();
        Some((window * share).max(floor).min(window))
    }
}

/// A round trip, or the `least` time that counts as one.
fn round(flight: &Flight, least: Duration) -> Duration {
    flight.smoothed().unwrap_or_default().max(least)
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, Sample};
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(10);
    const MB: u64 = 1_000_000;

    /// A time of `seconds`, in which `bytes_per_second` are delivered, and a notification comes every millisecond if
    /// `is_flooded`. The window is what is delivered in a round trip, as far as notifications leave it.
    fn pass(state: &mut (Notices, Flight, Instant), seconds: u64, bytes_per_second: u64, is_flooded: bool) -> f64 {
        let (notices, flight, now) = state;
        let mut window = bytes_per_second as f64 * ROUND_TRIP.as_secs_f64();
        for _ in 0..seconds * 1000 {
            *now = *now + Duration::from_millis(1);
            let sample =
                Sample { sent_at: *now, round_trip: ROUND_TRIP, delay: Duration::ZERO, path: 0, is_marked: false };
            let delivered_bytes = (window / 10.0) as u64;
            let progress = Progress { delivered_bytes, sample: Some(sample), ..Progress::default() };
            flight.take(&progress, 0, *now);
            notices.take(flight, *now);
            if is_flooded && let Some(left) = notices.cut(window, LEFT, flight, *now) {
                assert!(left <= window);
                window = left;
            }
        }
        window
    }

    fn state() -> (Notices, Flight, Instant) {
        (Notices::default(), Flight::default(), Instant::from_ns(1))
    }

    #[test]
    fn one_notification_a_round_trip_counts_and_takes_an_eighth() {
        let mut state = state();
        pass(&mut state, 1, 100 * MB, false);
        let (notices, flight, now) = &mut state;
        assert_eq!(notices.cut(800_000.0, LEFT, flight, *now), Some(700_000.0));
        for _ in 0..1000 {
            assert_eq!(notices.cut(700_000.0, LEFT, flight, *now + Duration::from_micros(9999)), None);
        }
        assert_eq!(notices.cut(800_000.0, LEFT, flight, *now + ROUND_TRIP), Some(700_000.0));
    }

    #[test]
    fn a_flood_of_minutes_leaves_a_tenth_of_what_was_delivered() {
        let mut state = state();
        pass(&mut state, 5, 100 * MB, false);
        let left = pass(&mut state, 120, 100 * MB, true);
        assert!((0.99e5..1.02e5).contains(&left), "{left}: a tenth of 100 MB/s × 10 ms");
        // A second flood does not begin from what the first one left.
        pass(&mut state, 1, 10 * MB, false);
        let left = pass(&mut state, 120, 100 * MB, true);
        assert!((0.99e5..1.02e5).contains(&left), "{left}");
    }

    #[test]
    fn what_was_delivered_long_ago_is_forgotten() {
        let mut state = state();
        pass(&mut state, 5, 100 * MB, false);
        pass(&mut state, 25, MB, false);
        let left = pass(&mut state, 5, MB, true);
        assert!((0.99e3..1.02e3).contains(&left), "{left}: a tenth of 1 MB/s × 10 ms");
    }
}

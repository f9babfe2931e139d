use crate::time::{Duration, Instant};

use super::Flight;

/// What arrived in each of the latest rounds.
#[derive(Debug)]
pub(super) struct Delivery {
    /// In bytes a second, the newest last.
    rates: [f32; ROUNDS],
    /// The share that is left of what arrives in the present round and in the next one, of which packets were sent before
    /// others took over a part.
    left: [f32; 2],
    /// When the present round began, and what had been delivered then.
    began: Instant,
    delivered: u64,
}

/// Rounds that are remembered, and those of them that are the latest.
const ROUNDS: usize = 8;
const LATE: usize = 2;

/// The share of what has arrived that surely arrives again, of all rounds and of the latest: acknowledges come in batches,
/// and so in one round more arrives than in the next.
const SURE: f64 = 0.95;
const LATELY_SURE: f64 = 0.995;

impl Default for Delivery {
    /// Nothing has arrived.
    fn default() -> Delivery {
        Delivery { rates: [0.0; ROUNDS], left: [1.0; 2], began: Instant::ZERO, delivered: 0 }
    }
}

impl Delivery {
    /// Begins a round.
    pub fn begin(&mut self, flight: &Flight, now: Instant) {
        (self.began, self.delivered) = (now, flight.delivered_bytes());
    }

    /// Ends a round, of which what arrived is remembered.
    pub fn end(&mut self, flight: &Flight, now: Instant) {
        self.rates.rotate_left(1);
        let seconds = now.saturating_since(self.began).as_secs_f64();
        let rate = (flight.delivered_bytes() - self.delivered) as f64 / seconds;
        self.rates[ROUNDS - 1] = self.left[0] * rate as f32;
        self.left = [self.left[1], 1.0];
    }

    /// The bytes that surely arrive in a round trip without queues: no delay tells that fewer fit into the network.
    pub fn sure(&self, base: Duration) -> f64 {
        let most = |rates: &[f32]| f64::from(rates.iter().copied().fold(0.0, f32::max));
        let (all, late) = (most(&self.rates), most(&self.rates[ROUNDS - LATE..]));
        (all * SURE).max(late * LATELY_SURE) * base.as_secs_f64()
    }

    /// Others take over a part of it: this share is left, of what is on its way, too.
    pub fn leave(&mut self, share: f64) {
        self.rates.iter_mut().chain(&mut self.left).for_each(|of| *of *= share as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Progress;
    use super::*;

    const BASE: Duration = Duration::from_millis(10);

    /// What is sure after rounds of 10 ms, in which so many bytes arrive.
    fn sure_after(delivery: &mut Delivery, rounds: &[u64]) -> f64 {
        let (mut flight, mut now) = (Flight::default(), Instant::from_ns(1));
        for delivered_bytes in rounds {
            delivery.begin(&flight, now);
            now = now + BASE;
            flight.take(&Progress { delivered_bytes: *delivered_bytes, ..Progress::default() }, 0, now);
            delivery.end(&flight, now);
        }
        delivery.sure(BASE)
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn the_latest_rounds_are_surer_than_those_before() {
        assert_near(sure_after(&mut Delivery::default(), &[1000, 1000]), 995.0);
        assert_near(sure_after(&mut Delivery::default(), &[1000, 10, 10, 10]), 950.0);
        assert_near(sure_after(&mut Delivery::default(), &[1000, 980, 970]), 0.995 * 980.0);
    }

    #[test]
    fn what_arrived_long_ago_or_was_left_to_others_is_not_sure() {
        assert_near(sure_after(&mut Delivery::default(), &[1000, 10, 10, 10, 10, 10, 10, 10, 10]), 9.95);
        let mut delivery = Delivery::default();
        sure_after(&mut delivery, &[1000]);
        delivery.leave(0.5);
        assert_near(delivery.sure(BASE), 0.995 * 500.0);
    }

    /// Else the two rounds that follow make sure again of what was left to others, and the next top keeps to it.
    #[test]
    fn what_is_on_its_way_when_a_part_is_left_to_others_is_not_sure_either() {
        let mut delivery = Delivery::default();
        sure_after(&mut delivery, &[1000]);
        delivery.leave(0.5);
        // The round under way and the next one hear of packets that were sent before.
        assert_near(sure_after(&mut delivery, &[1000]), 0.995 * 500.0);
        assert_near(sure_after(&mut delivery, &[1000]), 0.995 * 500.0);
        assert_near(sure_after(&mut delivery, &[1000]), 995.0);
    }
}

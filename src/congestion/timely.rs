use crate::time::{Duration, Instant};

use super::{Controller, Flight, Progress, Rate};

/// TIMELY: sets the rate by the gradient of the round trip (Mittal et al., TIMELY: RTT-based Congestion Control for the
/// Datacenter, SIGCOMM 2015, section 4 and algorithm 1), and by the distance from a reference where the gradient is small
/// (Zhu et al., ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY, CoNEXT 2016, algorithm 2: patched TIMELY,
/// without which flows stay as unequal as they are).
///
/// The papers' thresholds are of a data centre whose shortest round trip is 20 µs; here they are as far above the shortest
/// one. It starts at the rate of the link, as a host's only flow does in the paper. It does not react to losses.
#[derive(Debug)]
pub struct Timely {
    /// The rate, and that of the link, in bits a second.
    rate: f64,
    line: f64,
    /// The round trip of the last segment, and its smoothed change, in seconds.
    previous: Option<f64>,
    change: f64,
    /// Segments in a row with a falling round trip.
    falling: u32,
    /// Bytes that arrived since the last segment was complete.
    arrived: u64,
}

/// Length of a segment, in bytes: the paper's largest. The rate changes once for each.
const SEGMENT_BYTES: u64 = 64 << 10;

/// The paper's T_low and T_high, 50 and 500 µs, over the shortest round trip, in seconds.
const LOW: f64 = 30e-6;
const HIGH: f64 = 480e-6;

/// α: the weight of the newest change.
const WEIGHT: f64 = 0.875;

/// δ, in bits a second: the paper's value.
const INCREASE: f64 = 10e6;

/// β, the paper's value; and its value in the patched algorithm, which has a unique fixed point.
const DECREASE: f64 = 0.8;
const PATCHED_DECREASE: f64 = 0.008;

/// The patched algorithm decreases only, with all of β, from this gradient on, and increases only below its negative.
const GRADIENT_RANGE: f64 = 0.25;

/// Segments in a row with a falling round trip after which hyperactive increase adds so many times δ.
const HYPERACTIVE_AFTER: u32 = 5;
const HYPERACTIVE: f64 = 5.0;

/// The least rate, in bits a second: an increase.
const LEAST: f64 = INCREASE;

/// The shortest round trip that is reckoned with: clocks of samples are no finer.
const SHORTEST: Duration = Duration::from_micros(1);

impl Timely {
    /// A controller without history, which starts at the rate of the link.
    pub fn new(line: Rate) -> Timely {
        let line = (line.bytes() * 8) as f64;
        Timely { rate: line, line, previous: None, change: 0.0, falling: 0, arrived: 0 }
    }

    fn complete(&mut self, round_trip: f64, shortest: f64) {
        let Some(previous) = self.previous.replace(round_trip) else { return };
        self.change = (1.0 - WEIGHT) * self.change + WEIGHT * (round_trip - previous);
        let gradient = self.change / shortest;
        self.falling = if gradient < 0.0 { self.falling + 1 } else { 0 };
        let (low, high) = (shortest + LOW, shortest + HIGH);
        if round_trip < low {
            self.rate += INCREASE;
        } else if round_trip > high {
            self.rate *= 1.0 - DECREASE * (1.0 - high / round_trip);
        } else {
            let weight = (gradient / (2.0 * GRADIENT_RANGE) + 0.5).clamp(0.0, 1.0);
            let error = (round_trip - low) / low;
            let steps = if self.falling >= HYPERACTIVE_AFTER { HYPERACTIVE } else { 1.0 };
            self.rate = INCREASE * steps * (1.0 - weight) + self.rate * (1.0 - PATCHED_DECREASE * weight * error);
        }
        self.rate = self.rate.clamp(LEAST.min(self.line), self.line);
    }
}

impl Controller for Timely {
    fn take(&mut self, progress: &Progress, flight: &Flight, _now: Instant) {
        self.arrived += progress.delivered_bytes;
        let Some(shortest) = flight.shortest().filter(|_| progress.sample.is_some()) else { return };
        if self.arrived < SEGMENT_BYTES {
            return;
        }
        self.arrived = 0;
        let shortest = shortest.max(SHORTEST);
        let round_trip = shortest + flight.queue().unwrap_or_default();
        self.complete(round_trip.as_secs_f64(), shortest.as_secs_f64());
    }

    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        Some(Rate::from_bits(self.rate as u64))
    }

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    /// The rate after each segment, in megabits a second: the papers' algorithms as they are printed, with their numbers,
    /// of round trips in microseconds whose shortest is 20.
    fn published(line: f64, round_trips: &[f64]) -> Vec<f64> {
        let (min_rtt, t_low, t_high, rtt_ref) = (20.0, 50.0, 500.0, 50.0);
        let (alpha, beta, beta_patched, delta) = (0.875, 0.8, 0.008, 10.0);
        let (mut rate, mut prev_rtt, mut rtt_diff, mut negative) = (line, round_trips[0], 0.0, 0);
        let mut rates = vec![rate];
        for new_rtt in &round_trips[1..] {
            let new_rtt_diff = new_rtt - prev_rtt;
            prev_rtt = *new_rtt;
            rtt_diff = (1.0 - alpha) * rtt_diff + alpha * new_rtt_diff;
            let gradient = rtt_diff / min_rtt;
            negative = if gradient < 0.0 { negative + 1 } else { 0 };
            if *new_rtt < t_low {
                rate += delta;
            } else if *new_rtt > t_high {
                rate *= 1.0 - beta * (1.0 - t_high / new_rtt);
            } else {
                let w = if gradient <= -0.25 {
                    0.0
                } else if gradient >= 0.25 {
                    1.0
                } else {
                    2.0 * gradient + 0.5
                };
                let n = if negative >= 5 { 5.0 } else { 1.0 };
                let error = (new_rtt - rtt_ref) / rtt_ref;
                rate = delta * n * (1.0 - w) + rate * (1.0 - beta_patched * w * error);
            }
            rate = rate.min(line).max(10.0);
            rates.push(rate);
        }
        rates
    }

    /// A queue that grows past both thresholds and drains, stays, falls for long, and trembles.
    fn story() -> Vec<f64> {
        let mut round_trips = vec![20.0];
        round_trips.extend((0..60).map(|number| 20.0 + 12.0 * f64::from(number)));
        round_trips.extend((0..80).map(|number| 728.0 - 8.0 * f64::from(number)));
        round_trips.extend([100.0; 50]);
        round_trips.extend((0..100).map(|number| 100.0 + f64::from(number % 9) * 3.0));
        round_trips.extend((0..40).map(|number| 124.0 - 2.0 * f64::from(number)));
        round_trips.extend([30.0; 30]);
        round_trips.extend([5000.0; 40]);
        round_trips.extend((0..100).map(|number| 45.0 + f64::from(number % 4)));
        round_trips
    }

    #[test]
    fn the_reaction_to_round_trips_is_the_published_one_segment_by_segment() {
        let round_trips = story();
        let expected = published(10_000.0, &round_trips);
        let (mut timely, mut flight) = (Timely::new(Rate::from_bits(10_000_000_000)), Flight::default());
        for (number, (took, expected)) in round_trips.iter().zip(&expected).enumerate() {
            // A segment in four acknowledges, of which the last one counts.
            for part in 0..4 {
                let now = Instant::from_ns(1_000_000_000 + number as u64 * 100_000 + part * 1000);
                let round_trip = Duration::from_nanos((took * 1000.0) as u64 + (3 - part) * 7000);
                let sent_at = Instant::from_ns(now.as_ns() - round_trip.as_nanos() as u64);
                let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
                let progress = Progress { delivered_bytes: 16 << 10, sample: Some(sample), ..Progress::default() };
                flight.take(&progress, 0, now);
                timely.take(&progress, &flight, now);
            }
            let rate = timely.rate / 1e6;
            assert!((rate / expected - 1.0).abs() < 1e-9, "{number}: {rate} instead of {expected}");
        }
        // All that was to be compared has happened: hyperactive increase, the least rate, and the link's.
        let steps: Vec<f64> = expected.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.iter().any(|step| *step > 40.0) && expected.contains(&10.0) && expected[0] == 10_000.0);
        let added = steps.iter().filter(|step| (*step - 10.0).abs() < 1e-6).count();
        assert!(added > 50, "{added}");
    }

    #[test]
    fn flows_of_one_bottleneck_become_equal() {
        // A queue of two flows at 10 Gb/s, as a fluid: it grows by what exceeds the line.
        let line = Rate::from_bits(10_000_000_000);
        let mut flows = [Timely::new(line), Timely::new(line)];
        flows[1].rate = 1e9;
        let (mut queue, shortest) = (0.0, 20e-6);
        for _ in 0..200_000 {
            let seconds = SEGMENT_BYTES as f64 * 8.0 / flows[0].rate.max(flows[1].rate);
            queue = (queue + (flows[0].rate + flows[1].rate - 10e9) * seconds / 8.0_f64).max(0.0);
            flows.iter_mut().for_each(|flow| flow.complete(shortest + queue * 8.0 / 10e9, shortest));
        }
        let [first, second] = flows.map(|flow| flow.rate / 1e9);
        assert!((4.0..6.0).contains(&first) && (4.0..6.0).contains(&second), "{first} {second}");
    }
}

use crate::time::{Duration, Instant};

use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// Swift: keeps the delay of packets at a target, with additive increase and a decrease in proportion to the excess
/// (Kumar et al., Swift: Delay is Simple and Effective for Congestion Control in the Datacenter, SIGCOMM 2020, section 3
/// and algorithm 1).
///
/// The paper's hosts know the topology, and add a target for each hop; here the shortest round trip is that part of the
/// target. The paper names no start: until the first delay above the target, the window doubles in a round trip. Of
/// several paths the median delay counts, as in MSwift. Delays in hosts are not told apart from those of the network.
#[derive(Debug)]
pub struct Swift {
    /// Packets in flight; less than one is kept to by pacing.
    window: f64,
    packet: LongestFrame,
    /// When the window shrank last.
    shrank_at: Option<Instant>,
    /// Timeouts in a row.
    timeouts: u32,
    is_starting: bool,
    /// The smoothed round trip.
    round_trip: Duration,
}

/// The target over the shortest round trip, without flow scaling: as in UCCL.
const BASE_TARGET: Duration = Duration::from_micros(50);

/// The most that flow scaling adds to the target, and the windows at which it adds all of that, and nothing: the values with
/// which Swift is simulated in htsim.
const SCALING_RANGE: f64 = 5.0;
const SCALING_LEAST: f64 = 0.1;
const SCALING_MOST: f64 = 100.0;

/// Packets that are added in a round trip, β, and the largest decrease: as in UCCL and in htsim; the paper has no values.
const INCREASE: f64 = 1.0;
const BETA: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;

/// Timeouts in a row after which the window is the least one, as in htsim.
const TIMEOUTS_MAX: u32 = 5;

/// The least and the largest window, in packets. The largest is what a queue pair can have in flight.
const LEAST_WINDOW: f64 = 0.001;
const MOST_WINDOW: f64 = 262_144.0;

/// The window before anything is known: what RFC 6928 gives to TCP.
const FIRST_WINDOW: f64 = 10.0;

impl Default for Swift {
    /// A controller without history.
    fn default() -> Swift {
        Swift {
            window: FIRST_WINDOW,
            packet: LongestFrame::default(),
            shrank_at: None,
            timeouts: 0,
            is_starting: true,
            round_trip: Duration::ZERO,
        }
    }
}

impl Swift {
    /// The delay that is aimed at: larger for smaller windows, because many flows share the path then.
    fn target(&self, shortest: Duration) -> f64 {
        let range = SCALING_RANGE * BASE_TARGET.as_secs_f64();
        let alpha = range / (SCALING_LEAST.sqrt().recip() - SCALING_MOST.sqrt().recip());
        let scaling = alpha * (self.window.sqrt().recip() - SCALING_MOST.sqrt().recip());
        (shortest + BASE_TARGET).as_secs_f64() + scaling.clamp(0.0, range)
    }

    /// Leaves a share of the window, once in a round trip.
    fn shrink(&mut self, share: f64, now: Instant) {
        self.is_starting = false;
        if self.shrank_at.is_none_or(|at| now.saturating_since(at) >= self.round_trip) {
            let left = (self.window * share).max(LEAST_WINDOW);
            if left < self.window {
                (self.window, self.shrank_at) = (left, Some(now));
            }
        }
    }
}

impl Controller for Swift {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let (Some(shortest), Some(smoothed)) = (flight.shortest(), flight.smoothed()) else { return };
        self.round_trip = smoothed;
        if progress.forgotten_bytes > 0 {
            self.timeouts += 1;
            self.shrink(1.0 - DECREASE_MAX, now);
            if self.timeouts >= TIMEOUTS_MAX {
                self.window = LEAST_WINDOW;
            }
        } else if progress.lost_bytes > 0 {
            self.timeouts = 0;
            self.shrink(1.0 - DECREASE_MAX, now);
        }
        if progress.sample.is_none() {
            return;
        }
        self.timeouts = 0;
        let delay = (shortest + flight.queue().unwrap_or_default()).as_secs_f64();
        let target = self.target(shortest);
        let acknowledged = progress.delivered_bytes as f64 / self.packet.bytes();
        if delay >= target {
            let excess = (delay - target) / delay;
            self.shrink((1.0 - BETA * excess).max(1.0 - DECREASE_MAX), now);
        } else if self.is_starting {
            self.window += acknowledged;
        } else {
            self.window += INCREASE * acknowledged / self.window.max(1.0);
        }
        self.window = self.window.clamp(LEAST_WINDOW, MOST_WINDOW);
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes)
    }

    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        let bits = self.window * self.packet.bytes() * 8.0 / self.round_trip.as_secs_f64();
        (self.window < 1.0).then(|| Rate::from_bits(bits as u64))
    }

    fn window_bytes(&self) -> u64 {
        (self.window.max(1.0) * self.packet.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const PACKET: u64 = 4000;

    /// What became of packets at a time, in nanoseconds.
    #[derive(Clone, Copy)]
    enum Event {
        /// So many packets arrived, the newest of which took so long, in nanoseconds.
        Arrived(u64, u64),
        Lost,
        Timeout,
    }

    /// The window after each event, in packets: algorithm 1 of the paper, line by line, in its units, after a start in which
    /// it doubles. The shortest round trip of `events` is 20 µs.
    fn published(events: &[(u64, Event)]) -> Vec<f64> {
        let (base_target, fs_range) = (20.0 + 50.0, 250.0);
        let (fs_min_cwnd, fs_max_cwnd) = (0.1_f64, 100.0_f64);
        let alpha = fs_range / (1.0 / fs_min_cwnd.sqrt() - 1.0 / fs_max_cwnd.sqrt());
        let beta = -alpha / fs_max_cwnd.sqrt();
        let (ai, mdf, max_mdf, min_cwnd) = (1.0, 0.8, 0.5, 0.001);
        let (mut cwnd, mut retransmit_cnt, mut t_last_decrease, mut slow_start) = (10.0_f64, 0, -1e9, true);
        let mut rtt = 0.0;
        let mut windows = Vec::new();
        for (time, event) in events {
            let now = *time as f64 / 1000.0;
            if let Event::Arrived(_, took) = event {
                let sample = *took as f64 / 1000.0;
                rtt = if rtt == 0.0 { sample } else { rtt * 7.0 / 8.0 + sample / 8.0 };
            }
            let cwnd_prev = cwnd;
            let can_decrease = now - t_last_decrease >= rtt;
            match event {
                Event::Arrived(num_acked, took) => {
                    retransmit_cnt = 0;
                    let delay = *took as f64 / 1000.0;
                    let target_delay = base_target + (alpha / cwnd.sqrt() + beta).min(fs_range).max(0.0);
                    if delay < target_delay {
                        if slow_start {
                            cwnd += *num_acked as f64;
                        } else if cwnd >= 1.0 {
                            cwnd += ai / cwnd * *num_acked as f64;
                        } else {
                            cwnd += ai * *num_acked as f64;
                        }
                    } else {
                        slow_start = false;
                        if can_decrease {
                            cwnd *= (1.0 - mdf * (delay - target_delay) / delay).max(1.0 - max_mdf);
                        }
                    }
                }
                Event::Timeout => {
                    slow_start = false;
                    retransmit_cnt += 1;
                    if retransmit_cnt >= 5 {
                        cwnd = min_cwnd;
                    } else if can_decrease {
                        cwnd *= 1.0 - max_mdf;
                    }
                }
                Event::Lost => {
                    slow_start = false;
                    retransmit_cnt = 0;
                    if can_decrease {
                        cwnd *= 1.0 - max_mdf;
                    }
                }
            }
            cwnd = cwnd.max(min_cwnd);
            if cwnd < cwnd_prev {
                t_last_decrease = now;
            }
            windows.push(cwnd);
        }
        windows
    }

    /// A start, delays a little and far above the target, a loss, timeouts down to the least window, and what comes after.
    fn story() -> Vec<(u64, Event)> {
        let mut events = vec![(20_000, Event::Arrived(1, 20_000))];
        let mut time = 20_000;
        let mut add = |count: u64, every: u64, event: fn(u64) -> Event| {
            for number in 0..count {
                time += every;
                events.push((time, event(number)));
            }
        };
        add(30, 4_000, |_| Event::Arrived(4, 30_000));
        add(40, 7_000, |number| Event::Arrived(3, 60_000 + 2_500 * number));
        add(40, 7_000, |number| Event::Arrived(3, 260_000 - 4_000 * number));
        add(300, 5_000, |number| Event::Arrived(2, 40_000 + number % 7 * 6_000));
        add(3, 30_000, |_| Event::Lost);
        add(20, 10_000, |_| Event::Arrived(1, 50_000));
        add(40, 100_000, |_| Event::Arrived(1, 2_000_000));
        add(100, 700_000, |_| Event::Arrived(1, 1_200_000));
        add(7, 5_000_000, |_| Event::Timeout);
        add(60, 20_000, |_| Event::Arrived(1, 90_000));
        events
    }

    #[test]
    fn the_reaction_to_delays_is_the_published_one_sample_by_sample() {
        let events = story();
        let expected = published(&events);
        let (mut swift, mut flight) = (Swift::default(), Flight::default());
        swift.sent(PACKET, Instant::ZERO);
        for (number, ((time, event), expected)) in events.iter().zip(&expected).enumerate() {
            let now = Instant::from_ns(*time);
            let progress = match event {
                Event::Arrived(packets, took) => {
                    let round_trip = Duration::from_nanos(*took);
                    let sent_at = Instant::from_ns(time.saturating_sub(*took));
                    let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
                    Progress { delivered_bytes: packets * PACKET, sample: Some(sample), ..Progress::default() }
                }
                Event::Lost => Progress { lost_bytes: PACKET, ..Progress::default() },
                Event::Timeout => Progress { forgotten_bytes: PACKET, ..Progress::default() },
            };
            flight.take(&progress, 0, now);
            swift.take(&progress, &flight, now);
            // The smoothed round trip is kept in whole nanoseconds.
            assert!((swift.window / expected - 1.0).abs() < 1e-6, "{number}: {} instead of {expected}", swift.window);
        }
        // All that was to be compared has happened: the start, windows below one packet, and the least one.
        let (low, high) = expected.iter().fold((f64::MAX, 0.0_f64), |(low, high), at| (low.min(*at), high.max(*at)));
        assert!(low == 0.001 && high > 100.0, "{low} to {high}");
        let under_one = expected.iter().filter(|window| (0.002..1.0).contains(*window)).count();
        assert!(under_one > 5, "{under_one}");
    }

    #[test]
    fn a_window_under_a_packet_is_kept_to_by_pacing() {
        let mut swift = Swift { round_trip: Duration::from_micros(100), ..Swift::default() };
        swift.packet.take(4000);
        assert_eq!((swift.window_bytes(), swift.rate()), (40_000, None));
        swift.window = 0.25;
        // A packet in four round trips.
        assert_eq!((swift.window_bytes(), swift.rate()), (4000, Some(Rate::from_bits(80_000_000))));
    }
}

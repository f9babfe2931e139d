use crate::time::{Duration, Instant};

use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// NSCC, the network-signalled congestion control of Ultra Ethernet: marks say that a queue grows, delays say how long it
/// is, and the window follows by the quadrant (Ultra Ethernet Specification 1.0, section 3.6.13; constants as in the
/// consortium's simulator, uet-htsim).
///
/// | | delay below the target | delay above it |
/// |---|---|---|
/// | not marked | increase in proportion to what the delay is below the target | fair increase |
/// | marked | nothing | decrease in proportion to the excess, once in a round trip |
///
/// A window without a queue grows fast. A loss takes its bytes from the window. Losses, and delays of four times the
/// target, make a window that is far too large what arrived in a round trip (quick adapt).
///
/// There, all hosts know the network's one rate and one round trip, which the constants are in proportion to: here these
/// are the rate of the link and the shortest round trip. The mean delay is smoothed in one way, and packets are never
/// trimmed. Of several paths the median delay counts.
#[derive(Debug)]
pub struct Nscc {
    /// The rate of the link, in bytes a second.
    line: f64,
    /// Bytes in flight; `None` before the first sample.
    window: Option<f64>,
    packet: LongestFrame,
    /// The smoothed delay in queues, in seconds.
    delay: f64,
    /// What the window is to grow by, times its length, and the bytes that arrived since it last did.
    growth: f64,
    arrived: f64,
    /// When η was added, and when the window shrank last.
    added_at: Instant,
    shrank_at: Option<Instant>,
    /// Bytes that arrived without a queue in a row, and whether they make the window grow fast.
    free: f64,
    is_fast: bool,
    /// Until when arrivals are counted for quick adapt, how many bytes there are, and whether packets were lost.
    adapts_at: Option<Instant>,
    achieved: f64,
    has_lost: bool,
    /// Bytes whose marks are of before the window was adapted.
    ignored: f64,
}

/// The target of the delay in queues, over the round trip: 6 of 12 µs.
const TARGET: f64 = 0.5;

/// γ: the share of the excess that a decrease takes; and the most that one takes of the window.
const DECREASE: f64 = 0.8;
const DECREASE_MAX: f64 = 0.5;

/// A packet over what is on the way in the network that the constants are of: 4 KiB, 100 Gb/s and 12 µs.
const PACKET_SHARE: f64 = 4096.0 / 150_000.0;

/// What an empty queue adds in a round trip, over what is on the way: α times the target, two packets.
const PROPORTIONAL: f64 = 2.0 * PACKET_SHARE;

/// The fair increase in a round trip, five packets, and η, 0.15 of one.
const FAIR: f64 = 5.0 * PACKET_SHARE;
const ETA: f64 = 0.15 * PACKET_SHARE;

/// The share of what arrives that fast increase adds, and the delay under which there is no queue: 1 of 12 µs.
const FAST: f64 = 0.25;
const NO_QUEUE: f64 = 1.0 / 12.0;

/// The weight of the newest delay in the mean.
const WEIGHT: f64 = 0.0125;

/// The delay, in targets, at which quick adapt acts, if less than this share of the largest window has arrived.
const ADAPT_TARGETS: f64 = 4.0;
const ADAPT_SHARE: f64 = 1.0 / 8.0;

/// The largest window, and the first, over what is on the way at the rate of the link.
const MOST: f64 = 1.5;

/// Packets after whose arrival the window grows.
const GROWS_AFTER: f64 = 8.0;

/// The window before the first sample, in packets: what RFC 6928 gives to TCP. The simulator's hosts know the round trip.
const FIRST_PACKETS: f64 = 10.0;

/// The shortest round trip that is reckoned with: clocks of samples are no finer.
const SHORTEST: Duration = Duration::from_micros(1);

impl Nscc {
    /// A controller without history on a link of this rate.
    pub fn new(line: Rate) -> Nscc {
        Nscc {
            line: line.bytes() as f64,
            window: None,
            packet: LongestFrame::default(),
            delay: 0.0,
            growth: 0.0,
            arrived: 0.0,
            added_at: Instant::ZERO,
            shrank_at: None,
            free: 0.0,
            is_fast: false,
            adapts_at: None,
            achieved: 0.0,
            has_lost: false,
            ignored: 0.0,
        }
    }

    /// Quick adapt: what is left of the window; `None` when the time is not over, or the window not far too large.
    fn adapt(&mut self, window: f64, delay: f64, base: Duration, now: Instant) -> Option<f64> {
        if self.adapts_at.is_some_and(|at| now <= at) {
            return None;
        }
        let target = TARGET * base.as_secs_f64();
        let most = MOST * self.line * base.as_secs_f64();
        let is_far = self.has_lost || delay > ADAPT_TARGETS * target;
        let adapts = self.adapts_at.is_some() && is_far && self.achieved < ADAPT_SHARE * most;
        let achieved = std::mem::take(&mut self.achieved);
        self.adapts_at = Some(now + base.mul_f64(1.0 + TARGET));
        self.has_lost &= !adapts;
        adapts.then(|| achieved.min(window))
    }

    /// Takes an acknowledge, by the quadrant. Returns the new window.
    fn follow(&mut self, window: f64, ack: &Acknowledge, base: Duration, now: Instant) -> f64 {
        let Acknowledge { bytes, delay, is_marked } = *ack;
        let target = TARGET * base.as_secs_f64();
        let on_the_way = self.line * base.as_secs_f64();
        let is_empty = !is_marked && delay < NO_QUEUE * base.as_secs_f64();
        self.free = if is_empty { self.free + bytes } else { 0.0 };
        self.is_fast = is_empty && (self.is_fast || self.free > window);
        match (is_marked, delay < target) {
            (false, true) if self.is_fast => return window + FAST * bytes,
            (false, true) => self.growth += PROPORTIONAL * on_the_way * bytes * (target - delay) / target,
            (false, false) => self.growth += FAIR * on_the_way * bytes,
            (true, true) => {}
            (true, false) => {
                let may_shrink = self.shrank_at.is_none_or(|at| now.saturating_since(at) > base);
                if self.delay > target && may_shrink {
                    self.shrank_at = Some(now);
                    let excess = (self.delay - target) / self.delay;
                    return window * (1.0 - DECREASE * excess).max(1.0 - DECREASE_MAX);
                }
            }
        }
        window
    }

    /// What the window grows by, from time to time and after some packets, and what is added once in a round trip.
    fn grow(&mut self, window: f64, base: Duration, now: Instant) -> f64 {
        let is_time = now.saturating_since(self.added_at) >= base;
        if !is_time && self.arrived <= GROWS_AFTER * self.packet.bytes() {
            return window;
        }
        self.arrived = 0.0;
        let grown = window + std::mem::take(&mut self.growth) / window;
        if !is_time {
            return grown;
        }
        self.added_at = now;
        grown + ETA * self.line * base.as_secs_f64()
    }
}

/// What an acknowledge shows: bytes that arrived, their delay in queues in seconds, and whether they are marked.
struct Acknowledge {
    bytes: f64,
    delay: f64,
    is_marked: bool,
}

impl Controller for Nscc {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let Some(base) = flight.shortest().map(|shortest| shortest.max(SHORTEST)) else { return };
        let most = MOST * self.line * base.as_secs_f64();
        let lost = progress.lost_bytes + progress.forgotten_bytes;
        let mut window = (self.window.unwrap_or(most) - lost as f64).max(self.packet.bytes());
        self.has_lost |= lost > 0;
        if let Some(sample) = &progress.sample {
            let bytes = progress.delivered_bytes as f64;
            let delay = flight.queue().unwrap_or_default().as_secs_f64();
            let ack = Acknowledge { bytes, delay, is_marked: sample.is_marked };
            self.delay += WEIGHT * (delay - self.delay);
            self.achieved += bytes;
            self.arrived += bytes;
            let is_of_before = self.ignored > 0.0 && ack.is_marked;
            self.ignored = (self.ignored - bytes).max(0.0);
            if let Some(left) = self.adapt(window, delay, base, now) {
                window = left;
                self.ignored = flight.in_flight_bytes() as f64;
            } else if !is_of_before {
                window = self.follow(window, &ack, base, now);
                window = self.grow(window, base, now);
            }
        }
        let least = self.packet.bytes();
        self.window = Some(window.min(most).max(least));
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes)
    }

    /// Peers that send notifications instead of marks in acknowledges are RNICs, and not of Ultra Ethernet.
    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        None
    }

    fn window_bytes(&self) -> u64 {
        self.window.unwrap_or(FIRST_PACKETS * self.packet.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    /// An acknowledge: the time since the last one and its delay in queues in microseconds, packets of 4096 bytes that
    /// arrived and that were lost, and whether it is marked.
    #[derive(Clone, Copy, Debug)]
    struct Ack {
        after: u64,
        qdelay: u64,
        packets: u64,
        lost: u64,
        ecn: bool,
    }

    const IN_FLIGHT: u64 = 40 * 4096;

    /// The window in bytes after each acknowledge, in the network that the constants are of: the specification's steps with
    /// the simulator's numbers, in bytes and microseconds. The base round trip is 12 µs, and the link has 100 Gb/s.
    fn published(acks: &[Ack]) -> Vec<f64> {
        let (base_rtt, target, mtu, bdp) = (12.0, 6.0, 4096.0, 150_000.0);
        let maxwnd = 1.5 * bdp;
        let (alpha, fi, eta, gamma) = (4.0 * mtu * (target / base_rtt) / target, 5.0 * mtu, 0.15 * mtu, 0.8);
        let (mut cwnd, mut avg, mut inc_bytes, mut received) = (maxwnd, 0.0, 0.0, 0.0);
        let (mut fi_count, mut increase) = (0.0, false);
        let (mut last_adjust, mut last_dec) = (0.0, -1e9);
        let (mut qa_end, mut achieved, mut trigger, mut to_ignore) = (0.0, 0.0, false, 0.0);
        let mut now = 0.0;
        let mut windows = Vec::new();
        for ack in acks {
            now += ack.after as f64;
            let (bytes, delay) = (ack.packets as f64 * mtu, ack.qdelay as f64);
            let lost = ack.lost as f64 * mtu;
            cwnd = (cwnd - lost).max(mtu);
            trigger |= lost > 0.0;
            avg = 0.0125 * delay + (1.0 - 0.0125) * avg;
            achieved += bytes;
            received += bytes;
            let ignores = to_ignore > 0.0 && ack.ecn;
            to_ignore -= bytes;
            let mut adapted = false;
            if qa_end == 0.0 || now > qa_end {
                if qa_end != 0.0 && (trigger || delay > 4.0 * target) && achieved < maxwnd / 8.0 {
                    cwnd = cwnd.min(achieved);
                    to_ignore = IN_FLIGHT as f64;
                    (trigger, adapted) = (false, true);
                }
                achieved = 0.0;
                qa_end = now + base_rtt + target;
            }
            if !adapted && !ignores {
                if ack.ecn || delay >= 1.0 {
                    (fi_count, increase) = (0.0, false);
                } else {
                    fi_count += bytes;
                    increase |= fi_count > cwnd;
                }
                match (ack.ecn, delay >= target) {
                    (false, false) if increase => cwnd += 0.25 * bytes,
                    (false, false) => inc_bytes += alpha * bytes * (target - delay),
                    (false, true) => inc_bytes += fi * bytes,
                    (true, false) => {}
                    (true, true) if avg > target && now - last_dec > base_rtt => {
                        cwnd *= (1.0 - gamma * (avg - target) / avg).max(0.5);
                        last_dec = now;
                    }
                    (true, true) => {}
                }
                let period = now - last_adjust >= base_rtt;
                if received > 8.0 * mtu || period {
                    cwnd += inc_bytes / cwnd;
                    (inc_bytes, received) = (0.0, 0.0);
                    if period {
                        cwnd += eta;
                        last_adjust = now;
                    }
                }
            }
            cwnd = cwnd.clamp(mtu, maxwnd);
            windows.push(cwnd);
        }
        windows
    }

    /// All quadrants, a queue for long, losses with and without quick adapt, marks that come after it, and an empty queue.
    fn story() -> Vec<Ack> {
        let ack = |after, qdelay, packets, ecn| Ack { after, qdelay, packets, lost: 0, ecn };
        let mut acks = vec![ack(12, 0, 1, false)];
        acks.extend((0..400).map(|number| ack(1, 4 + number % 13, 2, number % 3 > 0)));
        acks.extend((0..300).map(|number| ack(1, 30 + number % 10, 3, true)));
        acks.extend((0..60).map(|_| ack(4, 30, 1, true)));
        acks.extend((0..100).map(|number| ack(1, number % 6, 2, false)));
        acks.extend((0..100).map(|number| ack(1, 6 + number % 3, 2, false)));
        acks.extend((0..40).map(|number| Ack { lost: u64::from(number % 10 == 0), ..ack(1, 3, 2, false) }));
        acks.extend((0..30).map(|_| Ack { lost: 1, ..ack(5, 3, 1, true) }));
        acks.extend((0..100).map(|_| ack(1, 0, 2, false)));
        acks.extend((0..200).map(|number| ack(2, 9, 1, number % 2 > 0)));
        acks
    }

    #[test]
    fn the_reaction_to_marks_and_delays_is_the_published_one_acknowledge_by_acknowledge() {
        let acks = story();
        let expected = published(&acks);
        let (mut nscc, mut flight) = (Nscc::new(Rate::from_bits(100_000_000_000)), Flight::default());
        nscc.sent(4096, Instant::ZERO);
        let mut now = Instant::ZERO;
        for (number, (ack, expected)) in acks.iter().zip(&expected).enumerate() {
            now = now + Duration::from_micros(ack.after);
            let round_trip = Duration::from_micros(12 + ack.qdelay);
            let sent_at = Instant::from_ns(now.as_ns().saturating_sub(round_trip.as_nanos() as u64));
            let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: ack.ecn };
            let progress = Progress {
                delivered_bytes: ack.packets * 4096,
                lost_bytes: ack.lost * 4096,
                sample: Some(sample),
                ..Progress::default()
            };
            flight.take(&progress, IN_FLIGHT, now);
            nscc.take(&progress, &flight, now);
            let window = nscc.window.unwrap_or_default();
            assert!((window / expected - 1.0).abs() < 1e-6, "{number}, {ack:?}: {window} instead of {expected}");
        }
        // All that was to be compared has happened: quick adapt, fast increase up to the largest window, decreases.
        let ratios: Vec<f64> = expected.windows(2).map(|pair| pair[1] / pair[0]).collect();
        assert!(ratios.iter().any(|ratio| *ratio < 0.49), "quick adapt");
        assert!(ratios.iter().filter(|ratio| (0.5..0.9).contains(*ratio)).count() > 3, "decreases");
        let fast = expected.windows(2).filter(|pair| (pair[1] - pair[0] - 2048.0).abs() < 1.0).count();
        assert!(fast > 20 && expected.contains(&225_000.0), "fast increase: {fast}");
    }
}

use crate::time::{Duration, Instant};

use super::{Controller, Flight, Progress, Rate};

/// DCQCN, the controller of RNICs: cuts the rate when the peer reports congestion marks, and recovers it by time and by
/// bytes (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 3.1 and figure 7).
///
/// It starts at the rate of the link. It reacts to nothing but marks, and every notification counts, as with RNICs.
#[derive(Debug)]
pub struct Dcqcn {
    /// The period of the timer of increases.
    increase_time: Duration,
    /// The rate of the link, in bits a second: R_C and R_T are never above it.
    line: f64,
    /// R_C, the current rate, and R_T, the target that recovery approaches.
    current: f64,
    target: f64,
    /// α: the share of marked packets, as estimated.
    alpha: f64,
    /// When α decays next; `None` before the first cut. When the timer of increases expires next.
    alpha_at: Option<Instant>,
    increase_at: Instant,
    /// T and BC: expirations of the timer and of the byte counter since the last cut.
    times: u32,
    byte_times: u32,
    /// Bytes until the byte counter expires.
    bytes_left: u64,
    /// Whether the rate was cut, and has not recovered to that of the link.
    is_limited: bool,
    /// When the next mark in an acknowledge counts.
    mark_counts_at: Instant,
}

/// g: the weight of the newest observation in α. The paper's value, for which it shows the analysis.
const G: f64 = 1.0 / 256.0;

/// The time without a notification after which α decays: the paper's K, longer than the 50 µs between notifications.
const ALPHA_TIME: Duration = Duration::from_micros(55);

/// The period of the timer of increases. The paper found QCN's 1.5 ms too slow to converge, and ran 55 µs; ConnectX has
/// 300 µs by default (rpg_time_reset). It is ConnectX's, so that flows of both recover equally fast on one fabric.
const INCREASE_TIME: Duration = Duration::from_micros(300);

/// B: bytes after which the byte counter expires. The paper's value, large so that the timer decides for slow flows.
const INCREASE_BYTES: u64 = 10_000_000;

/// F: increases without raising the target, after a cut.
const FAST_RECOVERY: u32 = 5;

/// R_AI: what an additive increase adds to the target, in bits a second. The paper's value.
const ADDITIVE: f64 = 40e6;

/// R_HAI: what the first hyper increase adds. The paper gives none; this is QCN's ratio of ten to R_AI (IEEE 802.1Qau).
const HYPER: f64 = 10.0 * ADDITIVE;

/// The least rate, in bits a second: ConnectX's default (rpg_min_rate).
const LEAST: f64 = 1e6;

/// The least time between two marks in acknowledges that count: that between two notifications of a peer without them.
const MARK_TIME: Duration = Duration::from_micros(50);

/// Decays of α that are made up for at once, after a pause.
const MAX_DECAYS: u32 = 1 << 24;

/// Closer than this, in bits a second, the current rate is that of the link.
const NEAR: f64 = 1.0;

impl Dcqcn {
    /// A controller without history, which starts at the rate of the link, with the timer of ConnectX: 300 µs.
    pub fn new(line: Rate) -> Dcqcn {
        Dcqcn::with_timer(line, INCREASE_TIME)
    }

    /// The same with another period of the timer of increases.
    pub fn with_timer(line: Rate, increase_time: Duration) -> Dcqcn {
        let line = (line.bytes() * 8) as f64;
        Dcqcn {
            increase_time,
            line,
            current: line,
            target: line,
            alpha: 1.0,
            alpha_at: None,
            increase_at: Instant::ZERO,
            times: 0,
            byte_times: 0,
            bytes_left: INCREASE_BYTES,
            is_limited: false,
            mark_counts_at: Instant::ZERO,
        }
    }

    /// Makes the timers expire that are due.
    fn expire(&mut self, now: Instant) {
        if let Some(at) = self.alpha_at.filter(|at| *at <= now) {
            // After some seconds nothing is left of it.
            let expirations = (now - at).as_nanos() / ALPHA_TIME.as_nanos() + 1;
            let expirations = expirations.min(MAX_DECAYS.into()) as u32;
            self.alpha *= (1.0 - G).powi(expirations as i32);
            self.alpha_at = Some(at + ALPHA_TIME * expirations);
        }
        while self.is_limited && self.increase_at <= now {
            self.times += 1;
            self.increase_at = self.increase_at + self.increase_time;
            self.increase();
        }
    }

    /// Fast recovery, then additive increase, then hyper increase when both the timer and the byte counter agree.
    fn increase(&mut self) {
        let (least, most) = (self.times.min(self.byte_times), self.times.max(self.byte_times));
        if least > FAST_RECOVERY {
            self.target += f64::from(least - FAST_RECOVERY) * HYPER;
        } else if most > FAST_RECOVERY {
            self.target += ADDITIVE;
        }
        self.target = self.target.min(self.line);
        self.current = (self.target + self.current) / 2.0;
        if self.current > self.line - NEAR {
            (self.current, self.is_limited) = (self.line, false);
        }
    }

    fn cut(&mut self, now: Instant) {
        self.expire(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(LEAST);
        self.alpha = (1.0 - G) * self.alpha + G;
        (self.times, self.byte_times, self.bytes_left) = (0, 0, INCREASE_BYTES);
        (self.alpha_at, self.increase_at) = (Some(now + ALPHA_TIME), now + self.increase_time);
        self.is_limited = true;
    }
}

impl Controller for Dcqcn {
    fn take(&mut self, progress: &Progress, _flight: &Flight, now: Instant) {
        let is_marked = progress.sample.is_some_and(|sample| sample.is_marked);
        if is_marked && now >= self.mark_counts_at {
            self.mark_counts_at = now + MARK_TIME;
            self.cut(now);
        }
    }

    fn notified(&mut self, _flight: &Flight, now: Instant) {
        self.cut(now);
    }

    fn sent(&mut self, bytes: u64, now: Instant) -> bool {
        self.expire(now);
        if !self.is_limited {
            return true;
        }
        if let Some(left) = self.bytes_left.checked_sub(bytes).filter(|left| *left > 0) {
            self.bytes_left = left;
        } else {
            self.bytes_left = INCREASE_BYTES;
            self.byte_times += 1;
            self.increase();
        }
        true
    }

    fn rate(&self) -> Option<Rate> {
        Some(Rate::from_bits(self.current as u64))
    }

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const GIGABIT: f64 = 1e9;

    fn at(us: u64) -> Instant {
        Instant::from_ns(us * 1000)
    }

    fn controller(line_gigabits: u64) -> Dcqcn {
        Dcqcn::new(Rate::from_bits(line_gigabits * 1_000_000_000))
    }

    fn gigabits(controller: &Dcqcn) -> f64 {
        controller.current / GIGABIT
    }

    #[test]
    fn it_starts_at_the_rate_of_the_link_and_the_first_notification_halves_it() {
        let mut c = controller(10);
        c.sent(9000, at(0));
        assert_eq!(c.rate(), Some(Rate::from_bits(10_000_000_000)));
        c.notified(&Flight::default(), at(1000));
        assert_eq!((gigabits(&c), c.target / GIGABIT), (5.0, 10.0));
        // Five times half of what is missing, by the timer of 300 µs; then the target would rise above the link's rate.
        for (time, expected) in [
            (1299, 5.0),
            (1300, 7.5),
            (1600, 8.75),
            (1900, 9.375),
            (2200, 9.6875),
            (2500, 9.84375),
            (2800, 9.921875),
            (3100, 9.9609375),
        ] {
            c.sent(100, at(time));
            assert_eq!(gigabits(&c), expected, "{time} µs");
        }
    }

    #[test]
    fn notifications_without_end_lead_to_the_least_rate() {
        let mut c = controller(10);
        (0..=1000).for_each(|number| c.notified(&Flight::default(), at(50 * number)));
        assert_eq!(c.rate(), Some(Rate::from_bits(1_000_000)));
        // It recovers by itself.
        c.sent(100, at(50_000 + 62_000));
        assert!((8.0..8.1).contains(&gigabits(&c)), "{}", gigabits(&c));
        c.sent(100, at(1_000_000));
        assert_eq!(c.rate(), Some(Rate::from_bits(10_000_000_000)));
        // What was long ago counts for little: α has decayed.
        c.notified(&Flight::default(), at(2_000_000));
        assert!(gigabits(&c) > 9.99, "{}", gigabits(&c));
    }

    #[test]
    fn a_marked_acknowledge_is_a_notification_at_most_once_in_50_us() {
        let mut c = controller(10);
        let mut take = |time, is_marked| {
            let (round_trip, delay) = (Duration::from_micros(20), Duration::ZERO);
            let sample = Sample { sent_at: at(time - 20), round_trip, delay, path: 0, is_marked };
            let progress = Progress { delivered_bytes: 1, sample: Some(sample), ..Progress::default() };
            c.take(&progress, &Flight::default(), at(time));
            (c.current / 1e6).round()
        };
        assert_eq!([take(1000, false), take(1001, true), take(1050, true)], [10_000.0, 5000.0, 5000.0]);
        assert_eq!(take(1051, true), 2500.0);
    }

    /// What happens at a time, in nanoseconds.
    #[derive(Clone, Copy, PartialEq)]
    enum Event {
        Sent(u64),
        Cnp,
    }

    /// The rate after each event, in bits a second: the pseudo-code as the paper and QCN have it, with their numbers, one
    /// nanosecond that matters after the other.
    fn published(line: f64, events: &[(u64, Event)]) -> Vec<f64> {
        let (mut rc, mut rt, mut alpha) = (line, line, 1.0_f64);
        let (mut t, mut bc, mut bytes) = (0_i64, 0_i64, 0_u64);
        let (mut alpha_timer, mut rate_timer) = (u64::MAX, u64::MAX);
        let mut rates = Vec::new();
        for (time, event) in events {
            while alpha_timer <= *time {
                alpha *= 255.0 / 256.0;
                alpha_timer += 55_000;
            }
            let mut increases = Vec::new();
            while rate_timer <= *time {
                rate_timer += 300_000;
                increases.push((1, 0));
            }
            if let Event::Sent(length) = event
                && rate_timer != u64::MAX
            {
                bytes += length;
                if bytes >= 10_000_000 {
                    bytes = 0;
                    increases.push((0, 1));
                }
            }
            for (time_more, bytes_more) in increases {
                t += time_more;
                bc += bytes_more;
                if t.max(bc) > 5 && t.min(bc) <= 5 {
                    rt += 40e6;
                }
                if t.min(bc) > 5 {
                    rt += (t.min(bc) - 5) as f64 * 400e6;
                }
                rt = rt.min(line);
                rc = 0.5 * rt + 0.5 * rc;
            }
            if *event == Event::Cnp {
                rt = rc;
                rc = (rc - rc * alpha / 2.0).max(1e6);
                alpha = 255.0 / 256.0 * alpha + 1.0 / 256.0;
                (t, bc, bytes) = (0, 0, 0);
                (alpha_timer, rate_timer) = (time + 55_000, time + 300_000);
            }
            rates.push(rc);
        }
        rates
    }

    /// 50,000 packets of 9000 bytes, one in 2.5 µs, and notifications: alone, in a row of the least distance, after a pause
    /// that reaches additive increase, and after one in which the byte counter, which expires each 2.8 ms, reaches hyper
    /// increase.
    #[test]
    fn the_reaction_to_notifications_is_the_published_one_packet_by_packet() {
        let mut events: Vec<(u64, Event)> = (0..50_000).map(|number| (number * 2500, Event::Sent(9000))).collect();
        let row = (0..20).map(|number| 5_000_100 + number * 50_000);
        let cnps = [1_000_100, 1_050_200].into_iter().chain(row).chain([9_000_700, 50_000_300, 50_310_000, 90_000_100]);
        events.extend(cnps.map(|time| (time, Event::Cnp)));
        events.sort_by_key(|(time, _)| *time);
        let expected = published(400e9, &events);
        let mut c = controller(400);
        for ((time, event), expected) in events.iter().zip(&expected) {
            let now = Instant::from_ns(*time);
            match event {
                Event::Sent(bytes) => drop(c.sent(*bytes, now)),
                Event::Cnp => c.notified(&Flight::default(), now),
            }
            assert!((c.current / expected - 1.0).abs() < 1e-9, "{time} ns: {} instead of {expected}", c.current);
        }
        // All that was to be compared has happened.
        let phase = |from: u64, until: u64| {
            let inside = events.iter().zip(&expected).filter(|((time, _), _)| (from..until).contains(time));
            inside.map(|(_, rate)| *rate).fold((f64::MAX, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)))
        };
        assert_eq!(phase(0, 1_000_000), (400e9, 400e9));
        assert!(phase(5_000_000, 9_000_000).0 < 1e9, "{:?}", phase(5_000_000, 9_000_000));
        let (low, high) = phase(30_000_000, 50_000_000);
        assert!(high - low > 30e9, "hyper increase: {low} to {high}");
        assert!(expected.last().is_some_and(|rate| *rate > 399.9e9), "{:?}", expected.last());
    }
}

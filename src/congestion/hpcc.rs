use crate::time::{Duration, Instant};
use crate::wire::{LinkRecord, Telemetry};

use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// HPCC: switches write into packets how long their queues are and how much their links have sent. From that it computes what
/// is in flight on the busiest link, and keeps that just below what the link carries in a round trip (Li et al., HPCC: High
/// Precision Congestion Control, SIGCOMM 2019, algorithm 1).
///
/// The paper's hosts know T, the round trip without queues; here it is the shortest one. Each path has the last telemetry of
/// its own, and all have one U. Without telemetry the window stays W_init, what is on the way at the link's rate. Losses
/// change nothing, as in the paper.
#[derive(Debug)]
pub struct Hpcc {
    /// B_NIC, the rate of the link, in bytes a second.
    line: f64,
    packet: LongestFrame,
    /// T, in seconds; `None` before the first sample.
    base: Option<f64>,
    /// W and W_c, the window and the reference window, in bytes; `None` before links were compared.
    windows: Option<Windows>,
    /// U, what is in flight on the busiest link over what it carries in a round trip.
    inflight: f64,
    /// incStage: additive increases in a row.
    stage: u32,
    /// When W_c was set last. What was sent since then shows what that did, as lastUpdateSeq.
    updated_at: Instant,
    /// The telemetry of the next sample.
    measured: Option<Telemetry>,
    /// L, by path.
    last: Vec<Option<Last>>,
}

#[derive(Clone, Copy, Debug)]
struct Windows {
    now: f64,
    reference: f64,
}

/// L: the newest telemetry of a path, and when its packet was sent.
#[derive(Clone, Debug)]
struct Last {
    telemetry: Telemetry,
    sent_at: Instant,
}

/// η: what is to be in flight on the busiest link, over what it carries in a round trip. The paper's value (section 3.3).
const ETA: f64 = 0.95;

/// maxStage: additive increases in a row, after which free bandwidth is taken at once. The paper's value (section 3.3).
const MAX_STAGE: u32 = 5;

/// N of the paper's rule W_AI = W_init × (1 − η) / N: flows that can grow at once without a queue. Its 80 bytes, at 100 Gb/s and
/// 13 µs, are those of 100 flows; so are the 50 Mb/s of its simulator's example (README, `--hpai 50`).
const FLOWS: f64 = 100.0;

/// U before anything was measured, as in the paper's simulator (rdma-queue-pair.cc).
const FIRST_INFLIGHT: f64 = 1.0;

/// The window before the first sample, in packets: what RFC 6928 gives to TCP. The paper's hosts know T.
const FIRST_PACKETS: f64 = 10.0;

/// The shortest round trip that is reckoned with: clocks of samples are no finer.
const SHORTEST: Duration = Duration::from_micros(1);

/// Packets that were sent so long after each other are not compared: a switch's clock wraps after 4.3 s.
const LONGEST: Duration = Duration::from_secs(2);

/// Bytes after which the counter of a link wraps.
const COUNTER: f64 = (1_u64 << 32) as f64;

const NANOSECOND: f64 = 1e-9;

impl Hpcc {
    /// A controller without history on a link of this rate.
    pub fn new(line: Rate) -> Hpcc {
        Hpcc {
            line: line.bytes() as f64,
            packet: LongestFrame::default(),
            base: None,
            windows: None,
            inflight: FIRST_INFLIGHT,
            stage: 0,
            updated_at: Instant::ZERO,
            measured: None,
            last: Vec::new(),
        }
    }

    /// W_init and the upper bound of all windows: what is on the way at the rate of the link. `None` before T is known.
    fn most(&self) -> Option<f64> {
        Some(self.line * self.base?)
    }

    fn window(&self) -> Option<f64> {
        self.windows.map(|windows| windows.now).or(self.most())
    }

    /// Takes the telemetry of a packet of this path in the place of the last. Returns u' of the busiest link between the two,
    /// and the time between them there, in seconds; `None` when they cannot be compared, or are not in their order.
    fn compare(&mut self, path: u8, sent_at: Instant, telemetry: Telemetry, base: f64) -> Option<(f64, f64)> {
        let path = usize::from(path);
        if self.last.len() <= path {
            self.last.resize(path + 1, None);
        }
        let slot = &mut self.last[path];
        if slot.as_ref().is_some_and(|last| sent_at <= last.sent_at) {
            return None;
        }
        let before = slot.replace(Last { telemetry: telemetry.clone(), sent_at })?;
        let (since, before) = (sent_at - before.sent_at, before.telemetry);
        let is_same = (before.path, before.links.len()) == (telemetry.path, telemetry.links.len())
            || mutated!("hpcc-other-path-compared", by "uroce --lib what_cannot_be_compared");
        let links = before.links.iter().zip(&telemetry.links).filter(|_| is_same && since < LONGEST);
        let busy = links.filter_map(|(before, after)| link_inflight(before, after, base));
        busy.max_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// ComputeWind, with what is in flight now; `updates` the reference, too.
    fn compute_window(&mut self, most: f64, updates: bool) {
        let increase = most * (1.0 - ETA) / FLOWS;
        let reference = self.windows.map_or(most, |windows| windows.reference);
        let follows = self.inflight >= ETA
            || (self.stage >= MAX_STAGE
                && !mutated!("hpcc-takes-nothing-at-once", by "uroce --lib the_reaction_to_telemetry"));
        // Nothing in flight makes it infinite, and so the most.
        let wanted = if follows { reference * ETA / self.inflight } else { reference };
        let now = (wanted + increase).min(most);
        let updates = updates || mutated!("hpcc-reacts-twice-to-one-queue", by "uroce --lib the_reaction_to_telemetry");
        if updates {
            self.stage = if follows { 0 } else { self.stage + 1 };
        }
        self.windows = Some(Windows { now, reference: if updates { now } else { reference } });
    }
}

/// What was in flight on a link between two packets, over what it carries in `base`, T in seconds; and the time between them, in
/// seconds. `None` when they do not tell: without a rate, at one time, or when a counter can have wrapped.
fn link_inflight(before: &LinkRecord, after: &LinkRecord, base: f64) -> Option<(f64, f64)> {
    let rate = after.rate_bps as f64 / 8.0;
    let time = f64::from(after.time_ns.wrapping_sub(before.time_ns)) * NANOSECOND;
    let sent = f64::from(after.sent_bytes.wrapping_sub(before.sent_bytes));
    if rate * time <= 0.0 || rate * time >= COUNTER {
        return None;
    }
    // A queue that comes and goes between the two is no queue.
    let queue = match mutated!("hpcc-newest-queue-counts", by "uroce --lib the_reaction_to_telemetry") {
        true => after.queue_bytes,
        false => after.queue_bytes.min(before.queue_bytes),
    };
    Some((f64::from(queue) / (rate * base) + sent / time / rate, time))
}

impl Controller for Hpcc {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let measured = self.measured.take();
        let Some(base) = flight.shortest().map(|shortest| shortest.max(SHORTEST).as_secs_f64()) else { return };
        self.base = Some(base);
        let most = self.line * base;
        if let Some(Windows { now, reference }) = &mut self.windows {
            // A round trip that is shorter than was known.
            (*now, *reference) = (now.min(most), reference.min(most));
        }
        let (Some(sample), Some(telemetry)) = (&progress.sample, measured) else { return };
        let Some((link, time)) = self.compare(sample.path, sample.sent_at, telemetry, base) else { return };
        let weight = time.min(base) / base;
        self.inflight += weight * (link - self.inflight);
        let updates = sample.sent_at >= self.updated_at;
        self.compute_window(most, updates);
        if updates {
            self.updated_at = now;
        }
    }

    fn measured(&mut self, telemetry: &Telemetry) {
        self.measured = Some(telemetry.clone());
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes)
    }

    /// Switches tell more than marks do.
    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    /// R = W / T.
    fn rate(&self) -> Option<Rate> {
        let bytes = self.window()? / self.base?;
        Some(Rate::from_bits((bytes * 8.0) as u64))
    }

    fn window_bytes(&self) -> u64 {
        self.window().unwrap_or(FIRST_PACKETS * self.packet.bytes()).max(self.packet.bytes()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    /// 25 Gb/s and 10 µs: W_init is 31,250 bytes, and W_AI 15.625.
    const LINE: u64 = 25_000_000_000;
    const BASE: Duration = Duration::from_micros(10);
    const START: Instant = Instant::from_ns(1_000_000);

    /// A link of that rate, at a time in microseconds.
    fn link(us: u32, sent_bytes: u32, queue_bytes: u32) -> LinkRecord {
        LinkRecord { rate_bps: LINE, queue_bytes, time_ns: us.wrapping_mul(1000), sent_bytes }
    }

    struct Flow {
        hpcc: Hpcc,
        flight: Flight,
        now: Instant,
    }

    impl Flow {
        fn new() -> Flow {
            let mut hpcc = Hpcc::new(Rate::from_bits(LINE));
            hpcc.sent(4000, START);
            Flow { hpcc, flight: Flight::default(), now: START }
        }

        /// An acknowledge of a packet that was sent a round trip ago; `after` is the time since the one before. Returns W.
        fn ack(&mut self, after: Duration, path: u16, links: &[LinkRecord]) -> f64 {
            self.now = self.now + after;
            let sent_at = Instant::from_ns(self.now.as_ns() - BASE.as_nanos() as u64);
            let sample = Sample { sent_at, round_trip: BASE, delay: Duration::ZERO, path: 0, is_marked: false };
            let progress = Progress { delivered_bytes: 4000, sample: Some(sample), ..Progress::default() };
            self.hpcc.measured(&Telemetry { path, links: links.iter().copied().collect() });
            self.flight.take(&progress, 0, self.now);
            self.hpcc.take(&progress, &self.flight, self.now);
            self.hpcc.window().expect("a round trip is known")
        }

        fn bits(&self) -> u64 {
            self.hpcc.rate().expect("a round trip is known").bytes() * 8
        }
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
    }

    /// Algorithm 1 by hand. W_AI = 31,250 × 0.05 / 100 = 15.625.
    #[test]
    fn the_reaction_to_telemetry_is_the_published_one_acknowledge_by_acknowledge() {
        let us = Duration::from_micros;
        let mut flow = Flow::new();
        // Nothing to compare with: W_init.
        assert_near(flow.ack(us(0), 1, &[link(0, 0, 31_250)]), 31_250.0);
        // The line is full, and T × B waits, of the 62,500 bytes as before: u = 1 + 1, τ = T, U = 2.
        // W = 31,250 × 0.95 / 2 + W_AI, and so W_c.
        assert_near(flow.ack(us(10), 1, &[link(10, 31_250, 62_500)]), 14_859.375);
        // Half of T later, of a packet that was sent before: u = 1, τ = T / 2, U = 1.5. W = W_c × 0.95 / 1.5 + W_AI.
        assert_near(flow.ack(us(5), 1, &[link(15, 46_875, 0)]), 9_426.562_5);
        // Half is used, and no queue: U = 0.5. Five times W_c + W_AI, once in a round trip.
        let mut sent = 46_875;
        for stage in 1..=5 {
            sent += 15_625;
            let us_there = 15 + 10 * stage;
            let window = flow.ack(us(10), 1, &[link(us_there, sent, 0)]);
            assert_near(window, 14_859.375 + 15.625 * f64::from(stage));
        }
        // The sixth takes what is free: W = 14,937.5 × 0.95 / 0.5 + W_AI.
        sent += 15_625;
        assert_near(flow.ack(us(10), 1, &[link(75, sent, 0)]), 28_396.875);
        assert_eq!(flow.bits(), 22_717_500_000, "R = W / T");
        // Then additive increase again; and nothing is beyond W_init.
        sent += 15_625;
        assert_near(flow.ack(us(10), 1, &[link(85, sent, 0)]), 28_412.5);
        for us_there in [95, 105, 115, 125, 135] {
            sent += 15_625;
            flow.ack(us(10), 1, &[link(us_there, sent, 0)]);
        }
        assert_eq!((flow.hpcc.window_bytes(), flow.bits()), (31_250, LINE));
    }

    #[test]
    fn the_busiest_link_decides_and_its_own_time() {
        let mut flow = Flow::new();
        let slow =
            |us: u32, sent_bytes, queue_bytes| LinkRecord { rate_bps: LINE / 5, ..link(us, sent_bytes, queue_bytes) };
        flow.ack(Duration::ZERO, 1, &[link(0, 0, 0), slow(3, 0, 0), link(0, 0, 1000)]);
        // A quarter; all of 5 Gb/s and 3,125 bytes, half of what it carries in T; and three quarters.
        // The second has u = 1 + 0.5 with τ = 5 µs: U = 0.5 × 1 + 0.5 × 1.5 = 1.25.
        // But its queue was empty before: u = 1, and so U = 1.
        let window = flow.ack(BASE, 1, &[link(10, 7_812, 0), slow(8, 3_125, 3_125), link(10, 23_437, 0)]);
        assert_near(flow.hpcc.inflight, 1.0);
        assert_near(window, 31_250.0 * 0.95 + 15.625);
        // Now the queue was there before, too: u = 1.5, U = 0.5 × 1 + 0.5 × 1.5.
        flow.ack(BASE, 1, &[link(20, 15_625, 0), slow(13, 6_250, 3_125), link(20, 46_875, 0)]);
        assert_near(flow.hpcc.inflight, 1.25);
    }

    #[test]
    fn counters_and_clocks_wrap() {
        let mut flow = Flow::new();
        let before = LinkRecord { time_ns: u32::MAX - 4_999, sent_bytes: u32::MAX - 15_624, ..link(0, 0, 31_250) };
        flow.ack(Duration::ZERO, 1, &[before]);
        assert_near(flow.ack(BASE, 1, &[link(5, 15_625, 31_250)]), 14_859.375);
    }

    #[test]
    fn what_cannot_be_compared_changes_nothing() {
        let full = |us: u32| link(us, us.wrapping_mul(3_125), 31_250);
        let second = Duration::from_secs(1);
        let without = LinkRecord { rate_bps: 0, ..full(10) };
        for (what, after, path, links) in [
            ("nothing", BASE, 1, vec![]),
            ("another path", BASE, 2, vec![full(10)]),
            ("another number of links", BASE, 1, vec![full(10), full(10)]),
            ("the same time", BASE, 1, vec![full(0)]),
            ("no rate", BASE, 1, vec![without]),
            ("a counter that can have wrapped", BASE, 1, vec![full(2_000_000)]),
            ("after a long silence", second * 4, 1, vec![full(10)]),
            ("sent at the same time", Duration::ZERO, 1, vec![full(10)]),
        ] {
            let mut flow = Flow::new();
            flow.ack(Duration::ZERO, 1, &[full(0)]);
            flow.ack(after, path, &links);
            assert_eq!((flow.hpcc.window_bytes(), flow.bits()), (31_250, LINE), "{what}");
        }
        // What it is compared with next is the newest.
        let mut flow = Flow::new();
        flow.ack(Duration::ZERO, 1, &[full(0)]);
        flow.ack(BASE, 2, &[full(10)]);
        assert_near(flow.ack(BASE, 2, &[full(20)]), 14_859.375);
    }

    #[test]
    fn without_telemetry_the_window_is_what_the_line_carries() {
        let mut flow = Flow::new();
        assert_eq!((flow.hpcc.window_bytes(), flow.hpcc.rate()), (40_000, None), "ten packets at first");
        for _ in 0..10 {
            flow.ack(BASE, 0, &[]);
            assert_eq!((flow.hpcc.window_bytes(), flow.bits()), (31_250, LINE));
        }
    }

    /// Any host on the path can write anything: the rate stays between W_AI / T and the line's, and the next is of use again.
    #[test]
    fn garbage_leaves_the_rate_between_its_bounds() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32 >> (state % 32)
        };
        let mut flow = Flow::new();
        let (mut least, mut most) = (u64::MAX, 0);
        for _ in 0..100_000 {
            let record = |random: &mut dyn FnMut() -> u32| LinkRecord {
                rate_bps: u64::from(random() as u16) * LinkRecord::RATE_UNIT,
                queue_bytes: random(),
                time_ns: random(),
                sent_bytes: random(),
            };
            let links: Vec<_> = (0..random() % 3).map(|_| record(&mut random)).collect();
            let after = Duration::from_nanos(random().into());
            let window = flow.ack(after, (random() % 2) as u16, &links);
            assert!((15.624..31_250.001).contains(&window), "{window} after {links:?}");
            (least, most) = (least.min(flow.bits()), most.max(flow.bits()));
        }
        // 12.5 Mb/s, in whole bytes; both bounds were reached.
        assert!((12_500_000..12_600_000).contains(&least) && most == LINE, "{least} to {most}");
    }
}

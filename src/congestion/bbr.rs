use crate::time::{Duration, Instant};

use super::arrivals::Arrivals;
use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// A model of BBR version 3: paces at the rate of delivery, with what arrives in a shortest round trip in flight, and looks
/// for more now and then (BBR Congestion Control, draft-ietf-ccwg-bbr-04, sections 5.3 to 5.6).
///
/// It has the draft's states, gains and loss ceiling. It differs where packets are not known one by one: the rate of
/// delivery is that of the sample's round trip, losses count by round trip and by bytes, and there is no allowance for
/// aggregation. ECN is not used. In place of a random number, what has arrived decides when it looks for more.
#[derive(Debug)]
pub struct Bbr {
    phase: Phase,
    phase_began: Instant,
    /// Round trips in this phase.
    phase_rounds: u32,
    packet: LongestFrame,
    arrivals: Arrivals,
    /// The largest rate of delivery of the previous and of the current cycle, in bytes a second.
    fastest: [f64; 2],
    /// Bounds on the rate and on the bytes in flight that losses have set until more is looked for next.
    rate_short: f64,
    inflight_short: f64,
    /// The bytes in flight that losses have shown to be too many.
    inflight_long: f64,
    /// The shortest round trip, when it was seen, and when the window was made small to see it last.
    shortest: Duration,
    shortest_at: Instant,
    probed_at: Instant,
    round: Round,
    /// The rate at which growth was seen last, and the round trips without any since.
    grown: f64,
    flat_rounds: u32,
    in_flight: u64,
}

/// The phases: STARTUP, DRAIN, the four of PROBE_BW, and PROBE_RTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// What was seen in this round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Instant,
    /// What had been delivered and lost when it began.
    delivered: u64,
    lost: u64,
    /// The largest rate of delivery, in bytes a second, and the most bytes that arrived in the round trip of a sample.
    fastest: f64,
    most: f64,
}

/// The pacing gains of the phases. The pacing rate is a hundredth less.
const STARTUP_GAIN: f64 = 2.77;
const DRAIN_GAIN: f64 = 0.5;
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
const MARGIN: f64 = 0.99;

/// The gains of the window, and the window before anything is known, in packets.
const WINDOW_GAIN: f64 = 2.0;
const UP_WINDOW_GAIN: f64 = 2.25;
const PROBE_RTT_WINDOW_GAIN: f64 = 0.5;
const FIRST_PACKETS: f64 = 10.0;
const LEAST_PACKETS: f64 = 4.0;

/// Growth of the rate in a round trip that counts, and round trips without any after which the path is full.
const GROWTH: f64 = 1.25;
const FLAT_ROUNDS: u32 = 3;

/// The share of losses in a round trip that is too much, and the packets in which STARTUP believes it.
const LOSS_CEILING: f64 = 0.02;
const LOST_PACKETS: f64 = 6.0;

/// β: what losses leave of the bounds; and the share of the bytes in flight that is left free for others.
const BETA: f64 = 0.7;
const HEADROOM: f64 = 0.15;

/// More is looked for after two to three seconds, and after as many round trips as packets are on the way, at most 63: as
/// often as Reno would fill the path.
const PROBE_AFTER: Duration = Duration::from_secs(2);
const PROBE_AFTER_ROUNDS: f64 = 63.0;

/// How long the shortest round trip holds, how often the window is made small to see it, and for how long.
const SHORTEST_LASTS: Duration = Duration::from_secs(10);
const PROBE_RTT_EVERY: Duration = Duration::from_secs(5);
const PROBE_RTT_LASTS: Duration = Duration::from_millis(200);

impl Default for Bbr {
    /// A controller without history.
    fn default() -> Bbr {
        Bbr {
            phase: Phase::Startup,
            phase_began: Instant::ZERO,
            phase_rounds: 0,
            packet: LongestFrame::default(),
            arrivals: Arrivals::default(),
            fastest: [0.0; 2],
            rate_short: f64::INFINITY,
            inflight_short: f64::INFINITY,
            inflight_long: f64::INFINITY,
            shortest: Duration::MAX,
            shortest_at: Instant::ZERO,
            probed_at: Instant::ZERO,
            round: Round::default(),
            grown: 0.0,
            flat_rounds: 0,
            in_flight: 0,
        }
    }
}

impl Bbr {
    fn most(&self) -> f64 {
        self.fastest[0].max(self.fastest[1])
    }

    /// What arrives in a shortest round trip, in bytes.
    fn on_the_way(&self) -> f64 {
        self.most().min(self.rate_short) * self.shortest.as_secs_f64()
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.phase_began, self.phase_rounds) = (phase, now, 0);
        (self.grown, self.flat_rounds) = (0.0, 0);
        if phase == Phase::Refill {
            (self.rate_short, self.inflight_short) = (f64::INFINITY, f64::INFINITY);
        }
    }

    /// Takes a new shortest round trip, or one that replaces it after a while.
    fn take_round_trip(&mut self, round_trip: Duration, now: Instant) {
        if round_trip <= self.shortest || now.saturating_since(self.shortest_at) > SHORTEST_LASTS {
            (self.shortest, self.shortest_at) = (round_trip, now);
        }
    }

    /// Whether the rate has stopped to grow.
    fn is_flat(&mut self) -> bool {
        if self.round.fastest >= self.grown * GROWTH {
            (self.grown, self.flat_rounds) = (self.round.fastest, 0);
        } else {
            self.flat_rounds += 1;
        }
        self.flat_rounds >= FLAT_ROUNDS
    }

    fn end_round(&mut self, flight: &Flight, now: Instant) {
        self.phase_rounds += 1;
        let lost = (flight.lost_bytes() - self.round.lost) as f64;
        let delivered = (flight.delivered_bytes() - self.round.delivered) as f64;
        let is_too_much = lost > LOSS_CEILING * (lost + delivered);
        match self.phase {
            Phase::Startup => {
                let is_lossy = is_too_much && lost >= LOST_PACKETS * self.packet.bytes();
                if is_lossy {
                    self.inflight_long = self.round.most.max(self.on_the_way());
                }
                if self.is_flat() || is_lossy {
                    self.enter(Phase::Drain, now);
                }
            }
            Phase::Refill => self.enter(Phase::Up, now),
            Phase::Up if is_too_much => {
                self.inflight_long = (self.in_flight as f64).max(BETA * self.on_the_way());
                self.enter(Phase::Down, now);
            }
            Phase::Up => {
                self.inflight_long += self.packet.bytes() * f64::from(1 << self.phase_rounds.min(30));
                if self.is_flat() {
                    self.enter(Phase::Down, now);
                }
            }
            Phase::Cruise => {
                let rounds = (self.on_the_way() / self.packet.bytes()).min(PROBE_AFTER_ROUNDS);
                let varied = Duration::from_nanos(flight.delivered_bytes() % 1_000_000_000);
                if now - self.phase_began > PROBE_AFTER + varied || f64::from(self.phase_rounds) >= rounds {
                    self.enter(Phase::Refill, now);
                }
            }
            _ => {}
        }
        if lost > 0.0 && !matches!(self.phase, Phase::Startup | Phase::Refill | Phase::Up) {
            self.rate_short = self.round.fastest.max(BETA * self.rate_short.min(self.most()));
            self.inflight_short = self.round.most.max(BETA * self.inflight_short.min(self.window()));
        }
        let (delivered, lost) = (flight.delivered_bytes(), flight.lost_bytes());
        self.round = Round { began: now, delivered, lost, ..Round::default() };
    }

    /// Ends phases that what is in flight, or the time, ends.
    fn advance(&mut self, now: Instant) {
        let in_flight = self.in_flight as f64;
        match self.phase {
            Phase::Drain if in_flight <= self.on_the_way() => self.enter(Phase::Down, now),
            Phase::Down if in_flight <= self.on_the_way().min((1.0 - HEADROOM) * self.inflight_long) => {
                // All that the last probe has sent is known of: its cycle ends.
                self.fastest = [self.fastest[1], 0.0];
                self.enter(Phase::Cruise, now);
            }
            Phase::ProbeRtt if self.phase_rounds >= 1 && now - self.phase_began >= PROBE_RTT_LASTS => {
                self.probed_at = now;
                self.enter(Phase::Down, now);
            }
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up
                if now - self.probed_at.max(self.shortest_at) > PROBE_RTT_EVERY =>
            {
                self.enter(Phase::ProbeRtt, now);
            }
            _ => {}
        }
    }

    fn window(&self) -> f64 {
        let least = LEAST_PACKETS * self.packet.bytes();
        if self.most() == 0.0 {
            return FIRST_PACKETS * self.packet.bytes();
        }
        let (gain, bound) = match self.phase {
            Phase::Up => (UP_WINDOW_GAIN, self.inflight_long),
            Phase::ProbeRtt => (PROBE_RTT_WINDOW_GAIN, (1.0 - HEADROOM) * self.inflight_long),
            Phase::Cruise => (WINDOW_GAIN, (1.0 - HEADROOM) * self.inflight_long),
            _ => (WINDOW_GAIN, self.inflight_long),
        };
        (gain * self.on_the_way()).min(bound).min(self.inflight_short).max(least)
    }
}

impl Controller for Bbr {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        self.in_flight = flight.in_flight_bytes();
        let Some(sample) = &progress.sample else { return };
        self.take_round_trip(sample.round_trip, now);
        self.arrivals.add(now, flight.delivered_bytes(), self.shortest);
        if let Some((bytes, seconds)) = self.arrivals.since(sample.sent_at, now, flight.delivered_bytes()) {
            self.round.most = self.round.most.max(bytes);
            self.round.fastest = self.round.fastest.max(bytes / seconds);
            self.fastest[1] = self.fastest[1].max(bytes / seconds);
        }
        if sample.sent_at >= self.round.began {
            self.end_round(flight, now);
        }
        self.advance(now);
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes)
    }

    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Down => DOWN_GAIN,
            Phase::Up => UP_GAIN,
            Phase::Cruise | Phase::Refill | Phase::ProbeRtt => 1.0,
        };
        let rate = self.most().min(self.rate_short);
        (rate > 0.0).then(|| Rate::from_bits((gain * MARGIN * rate * 8.0) as u64))
    }

    fn window_bytes(&self) -> u64 {
        self.window() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const PACKET: f64 = 4000.0;

    /// A round trip: how many microseconds it took, what arrived and what was lost in it, in packets, and what is left in
    /// flight.
    #[derive(Clone, Copy, Debug)]
    struct Trip {
        rtt: u64,
        arrived: u64,
        lost: u64,
        inflight: u64,
    }

    /// The state, the pacing rate in bytes a second and the window in bytes after each round trip: the draft's equations by
    /// its names, with one sample in a round.
    fn published(trips: &[Trip]) -> Vec<(&'static str, f64, f64)> {
        let (mut state, mut cycle_stamp, mut now) = ("Startup", 0.0, 0.0);
        let (mut max_bw_filter, mut bw_shortterm) = ([0.0_f64; 2], f64::INFINITY);
        let (mut inflight_shortterm, mut inflight_longterm) = (f64::INFINITY, f64::INFINITY);
        let (mut min_rtt, mut min_rtt_stamp, mut probe_rtt_stamp) = (f64::INFINITY, 0.0, 0.0);
        let (mut full_bw, mut full_bw_count, mut rounds_in_state) = (0.0, 0, 0);
        let (mut total, mut cwnd) = (0.0, 10.0 * PACKET);
        let mut states = Vec::new();
        for (number, trip) in trips.iter().enumerate() {
            let rtt = trip.rtt as f64 / 1e6;
            now += rtt;
            if rtt <= min_rtt || now - min_rtt_stamp > 10.0 {
                (min_rtt, min_rtt_stamp) = (rtt, now);
            }
            let (delivered, lost, inflight) =
                (trip.arrived as f64 * PACKET, trip.lost as f64 * PACKET, trip.inflight as f64 * PACKET);
            total += delivered;
            // Before the first sample nothing is known of what had arrived when it was sent.
            let (bw_latest, inflight_latest) = if number == 0 { (0.0, 0.0) } else { (delivered / rtt, delivered) };
            max_bw_filter[1] = max_bw_filter[1].max(bw_latest);
            let max_bw = max_bw_filter[0].max(max_bw_filter[1]);
            let bdp = |bw: f64| bw * min_rtt;
            let too_lossy = lost / (lost + delivered) > 0.02;
            let before = state;
            rounds_in_state += 1;
            let mut full_bw_now = || {
                if bw_latest >= full_bw * 1.25 {
                    (full_bw, full_bw_count) = (bw_latest, 0);
                } else {
                    full_bw_count += 1;
                }
                full_bw_count >= 3
            };
            match state {
                "Startup" => {
                    if too_lossy && trip.lost >= 6 {
                        inflight_longterm = inflight_latest.max(bdp(max_bw.min(bw_shortterm)));
                        state = "Drain";
                    }
                    if full_bw_now() {
                        state = "Drain";
                    }
                }
                "Refill" => state = "Up",
                "Up" if too_lossy => {
                    inflight_longterm = inflight.max(0.7 * bdp(max_bw.min(bw_shortterm)));
                    state = "Down";
                }
                "Up" => {
                    inflight_longterm += PACKET * 2_f64.powi(rounds_in_state);
                    if full_bw_now() {
                        state = "Down";
                    }
                }
                "Cruise" => {
                    let wait = 2.0 + (total % 1e9) / 1e9;
                    let reno = (bdp(max_bw.min(bw_shortterm)) / PACKET).min(63.0);
                    if now - cycle_stamp > wait || f64::from(rounds_in_state) >= reno {
                        state = "Refill";
                        (bw_shortterm, inflight_shortterm) = (f64::INFINITY, f64::INFINITY);
                    }
                }
                _ => {}
            }
            if state != before {
                (cycle_stamp, rounds_in_state, full_bw, full_bw_count) = (now, 0, 0.0, 0);
                // The window is of the new state when the bounds are drawn.
                cwnd = window(state, bdp(max_bw.min(bw_shortterm)), inflight_longterm, inflight_shortterm);
            }
            if lost > 0.0 && !["Startup", "Refill", "Up"].contains(&state) {
                bw_shortterm = bw_latest.max(0.7 * bw_shortterm.min(max_bw));
                let bounded = window(state, bdp(max_bw.min(bw_shortterm)), inflight_longterm, inflight_shortterm);
                inflight_shortterm = inflight_latest.max(0.7 * inflight_shortterm.min(bounded));
            }
            let before = state;
            let on_the_way = bdp(max_bw.min(bw_shortterm));
            match state {
                "Drain" if inflight <= on_the_way => state = "Down",
                "Down" if inflight <= on_the_way.min(0.85 * inflight_longterm) => {
                    max_bw_filter = [max_bw_filter[1], 0.0];
                    state = "Cruise";
                }
                "ProbeRTT" if rounds_in_state >= 1 && now - cycle_stamp >= 0.2 - 1e-9 => {
                    probe_rtt_stamp = now;
                    state = "Down";
                }
                "Down" | "Cruise" | "Refill" | "Up" if now - min_rtt_stamp.max(probe_rtt_stamp) > 5.0 => {
                    state = "ProbeRTT";
                }
                _ => {}
            }
            if state != before {
                (cycle_stamp, rounds_in_state, full_bw, full_bw_count) = (now, 0, 0.0, 0);
            }
            let bw = max_bw_filter[0].max(max_bw_filter[1]).min(bw_shortterm);
            let pacing_gain = match state {
                "Startup" => 2.77,
                "Drain" => 0.5,
                "Down" => 0.9,
                "Up" => 1.25,
                _ => 1.0,
            };
            if bw > 0.0 {
                cwnd = window(state, bdp(bw), inflight_longterm, inflight_shortterm);
            }
            states.push((state, pacing_gain * 0.99 * bw, cwnd));
        }
        states
    }

    fn window(state: &str, bdp: f64, inflight_longterm: f64, inflight_shortterm: f64) -> f64 {
        let (cwnd_gain, cap) = match state {
            "Up" => (2.25, inflight_longterm),
            "ProbeRTT" => (0.5, 0.85 * inflight_longterm),
            "Cruise" => (2.0, 0.85 * inflight_longterm),
            _ => (2.0, inflight_longterm),
        };
        (cwnd_gain * bdp).min(cap).min(inflight_shortterm).max(4.0 * PACKET)
    }

    /// A start that finds 1000 packets in 20 ms, a queue that drains, losses below and above 2 % in all states, and a time
    /// without the shortest round trip.
    fn story() -> Vec<Trip> {
        let trip = |rtt, arrived, lost, inflight| Trip { rtt, arrived, lost, inflight };
        let mut trips: Vec<Trip> = (0..7).map(|number| trip(20_000, 10 << number, 0, 20 << number)).collect();
        trips.extend([trip(21_000, 1000, 0, 2000); 4]);
        trips.extend([trip(25_000, 1000, 0, 1300), trip(23_000, 1000, 0, 1100), trip(20_000, 1000, 0, 950)]);
        trips.extend([trip(20_000, 1000, 0, 900); 20]);
        trips.extend((0..60).map(|number| trip(20_000, 1000 - number % 5, 5 + number % 3, 950)));
        trips.extend([trip(20_000, 1000, 0, 1000); 3]);
        trips.extend([trip(20_000, 1300, 40, 1400); 2]);
        trips.extend([trip(20_000, 1000, 0, 900); 100]);
        trips.extend((0..700).map(|number| trip(20_500 + number % 50, 1000, number % 60 / 50 * 30, 800)));
        trips.extend([trip(20_500, 1000, 0, 500); 30]);
        trips
    }

    fn state(phase: Phase) -> &'static str {
        match phase {
            Phase::Startup => "Startup",
            Phase::Drain => "Drain",
            Phase::Down => "Down",
            Phase::Cruise => "Cruise",
            Phase::Refill => "Refill",
            Phase::Up => "Up",
            Phase::ProbeRtt => "ProbeRTT",
        }
    }

    #[test]
    fn the_reaction_is_that_of_the_drafts_equations_round_trip_by_round_trip() {
        let trips = story();
        let expected = published(&trips);
        let (mut bbr, mut flight, mut now) = (Bbr::default(), Flight::default(), Instant::ZERO);
        bbr.sent(PACKET as u64, now);
        for (number, (trip, (name, rate, cwnd))) in trips.iter().zip(&expected).enumerate() {
            let round_trip = Duration::from_micros(trip.rtt);
            let (sent_at, packet) = (now, PACKET as u64);
            now = now + round_trip;
            let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
            let progress = Progress {
                delivered_bytes: trip.arrived * packet,
                lost_bytes: trip.lost * packet,
                sample: Some(sample),
                ..Progress::default()
            };
            flight.take(&progress, trip.inflight * packet, now);
            bbr.take(&progress, &flight, now);
            let found = (state(bbr.phase), bbr.rate().map_or(0.0, |rate| rate.bytes() as f64), bbr.window());
            let is_near = |found: f64, expected: f64| (found - expected).abs() <= 2.0 + 1e-6 * expected;
            let is_same = found.0 == *name && is_near(found.1, *rate) && is_near(found.2, *cwnd);
            assert!(is_same, "{number}, {trip:?}: {found:?} instead of {:?}", expected[number]);
        }
        // All that was to be compared has happened.
        for phase in
            [Phase::Startup, Phase::Drain, Phase::Down, Phase::Cruise, Phase::Refill, Phase::Up, Phase::ProbeRtt]
        {
            assert!(expected.iter().any(|(name, ..)| *name == state(phase)), "{phase:?}");
        }
        assert!(expected.windows(2).any(|pair| pair[0].0 == "Up" && pair[1].0 == "Down"), "{expected:?}");
    }
}

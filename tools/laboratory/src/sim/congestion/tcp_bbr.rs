use std::collections::VecDeque;

use uroce::congestion::{CongestionControl, Controller, Flight, LongestFrame, OwnController, Progress, Rate};
use uroce::time::{Duration, Instant};

/// BBR of version 1, as Linux has it for TCP (draft-cardwell-iccrg-bbr-congestion-control-00; net/ipv4/tcp_bbr.c), so that flows
/// of this stack meet one on a simulated link.
///
/// It has the draft's states and gains. What has arrived decides the phase in which its cycle begins, in place of a random number.
/// Losses do not slow it down: only in the round trip that follows one it sends no more than what arrives.
#[derive(Debug)]
struct TcpBbr {
    phase: Phase,
    phase_began: Instant,
    packet: LongestFrame,
    /// What had been delivered at which time, in the last round trips.
    arrivals: VecDeque<(Instant, u64)>,
    /// The largest rate of delivery of each of the latest round trips, in bytes a second, the newest last.
    rates: [f64; ROUNDS],
    round_began: Instant,
    /// The rate at which growth was seen last, and the round trips without any since.
    grown: f64,
    flat_rounds: u32,
    shortest: Duration,
    shortest_at: Instant,
    /// Until when no more is in flight than arrives, after a loss, and how much that is.
    conserves: Option<(Instant, f64)>,
}

/// The phases: STARTUP, DRAIN, PROBE_BW with the number of its phase, and PROBE_RTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Cycle(usize),
    ProbeRtt,
}

/// BBR of version 1 as a controller of flows.
pub const TCP_BBR: CongestionControl = CongestionControl::Own(OwnController {
    name: "tcp-bbr",
    reacts_to_marks: false,
    start: |_| Box::new(TcpBbr::default()),
});

/// Round trips in which the largest rate counts.
const ROUNDS: usize = 10;

/// The gain of STARTUP, 2/ln 2, and of the window in other phases; the gains of a cycle of PROBE_BW; and the share of pacing.
const HIGH_GAIN: f64 = 2.885;
const WINDOW_GAIN: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const PACED: f64 = 0.99;

/// Growth of the rate in a round trip that counts, and round trips without any after which the path is full.
const GROWTH: f64 = 1.25;
const FLAT_ROUNDS: u32 = 3;

/// The window before anything is known, and the least one, in packets.
const FIRST_PACKETS: f64 = 10.0;
const LEAST_PACKETS: f64 = 4.0;

/// How long the shortest round trip holds, and how long the window is made small to see it anew.
const SHORTEST_LASTS: Duration = Duration::from_secs(10);
const PROBE_RTT_LASTS: Duration = Duration::from_millis(200);

impl Default for TcpBbr {
    fn default() -> TcpBbr {
        TcpBbr {
            phase: Phase::Startup,
            phase_began: Instant::ZERO,
            packet: LongestFrame::default(),
            arrivals: VecDeque::new(),
            rates: [0.0; ROUNDS],
            round_began: Instant::ZERO,
            grown: 0.0,
            flat_rounds: 0,
            shortest: Duration::MAX,
            shortest_at: Instant::ZERO,
            conserves: None,
        }
    }
}

impl TcpBbr {
    fn most(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// What arrives in a shortest round trip, in bytes.
    fn on_the_way(&self) -> f64 {
        self.most() * self.shortest.as_secs_f64()
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        (self.phase, self.phase_began) = (phase, now);
    }

    /// Enters a cycle in any of its phases but the one that sends less.
    fn enter_cycle(&mut self, flight: &Flight, now: Instant) {
        let phase = (flight.delivered_bytes() / self.packet.bytes() as u64) as usize % (CYCLE.len() - 1);
        self.enter(Phase::Cycle(if phase == 1 { CYCLE.len() - 1 } else { phase }), now);
    }

    fn end_round(&mut self, now: Instant) {
        if self.phase == Phase::Startup {
            if self.rates[ROUNDS - 1] >= self.grown * GROWTH {
                (self.grown, self.flat_rounds) = (self.rates[ROUNDS - 1], 0);
            } else {
                self.flat_rounds += 1;
            }
            if self.flat_rounds >= FLAT_ROUNDS {
                self.enter(Phase::Drain, now);
            }
        }
        self.rates.rotate_left(1);
        self.rates[ROUNDS - 1] = 0.0;
        self.round_began = now;
    }

    /// Ends phases that what is in flight, or the time, ends.
    fn advance(&mut self, lost: bool, flight: &Flight, now: Instant) {
        let in_flight = flight.in_flight_bytes() as f64;
        let lasted = now - self.phase_began;
        match self.phase {
            Phase::Drain if in_flight <= self.on_the_way() => self.enter_cycle(flight, now),
            Phase::Cycle(phase) => {
                let is_full = lost || in_flight >= CYCLE[0] * self.on_the_way();
                let is_over = match phase {
                    0 => lasted > self.shortest && is_full,
                    1 => lasted > self.shortest || in_flight <= self.on_the_way(),
                    _ => lasted > self.shortest,
                };
                if is_over {
                    self.enter(Phase::Cycle((phase + 1) % CYCLE.len()), now);
                }
            }
            Phase::ProbeRtt if lasted >= PROBE_RTT_LASTS => {
                self.shortest_at = now;
                self.enter_cycle(flight, now);
            }
            _ => {}
        }
    }

    /// The rate of delivery since a packet was sent, in bytes a second.
    fn rate_since(&self, sent_at: Instant, now: Instant, delivered: u64) -> Option<f64> {
        let after = self.arrivals.partition_point(|(at, _)| *at <= sent_at);
        let (from, before) = self.arrivals[after.checked_sub(1)?];
        let seconds = (now - from).as_secs_f64();
        (seconds > 0.0).then(|| (delivered - before) as f64 / seconds)
    }
}

impl Controller for TcpBbr {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        if progress.lost_bytes > 0 && self.conserves.is_none() {
            let left = flight.in_flight_bytes() as f64 + progress.delivered_bytes as f64;
            self.conserves = Some((now + flight.smoothed().unwrap_or_default(), left));
        }
        if self.conserves.is_some_and(|(until, _)| now >= until) {
            self.conserves = None;
        }
        let Some(sample) = &progress.sample else { return };
        let is_old = now.saturating_since(self.shortest_at) > SHORTEST_LASTS;
        if sample.round_trip <= self.shortest || is_old {
            (self.shortest, self.shortest_at) = (sample.round_trip, now);
        }
        if is_old && self.phase != Phase::ProbeRtt {
            self.enter(Phase::ProbeRtt, now);
        }
        let delivered = flight.delivered_bytes();
        let rate = self.rate_since(sample.sent_at, now, delivered).unwrap_or_default();
        self.rates[ROUNDS - 1] = self.rates[ROUNDS - 1].max(rate);
        self.arrivals.push_back((now, delivered));
        let kept = self.arrivals.partition_point(|(at, _)| *at < sample.sent_at);
        self.arrivals.drain(..kept.saturating_sub(1));
        if sample.sent_at >= self.round_began {
            self.end_round(now);
        }
        self.advance(progress.lost_bytes > 0, flight, now);
    }

    fn sent(&mut self, bytes: u64, _now: Instant) -> bool {
        self.packet.take(bytes);
        true
    }

    fn notified(&mut self, _flight: &Flight, _now: Instant) {}

    fn rate(&self) -> Option<Rate> {
        let gain = match self.phase {
            Phase::Startup => HIGH_GAIN,
            Phase::Drain => 1.0 / HIGH_GAIN,
            Phase::Cycle(phase) => CYCLE[phase],
            Phase::ProbeRtt => 1.0,
        };
        let most = self.most();
        (most > 0.0).then(|| Rate::from_bits((gain * PACED * most * 8.0) as u64))
    }

    fn window_bytes(&self) -> u64 {
        let least = LEAST_PACKETS * self.packet.bytes();
        if self.most() == 0.0 {
            return (FIRST_PACKETS * self.packet.bytes()) as u64;
        }
        let gain = if matches!(self.phase, Phase::Startup | Phase::Drain) { HIGH_GAIN } else { WINDOW_GAIN };
        let window = if self.phase == Phase::ProbeRtt { least } else { gain * self.on_the_way() };
        let conserved = self.conserves.map_or(f64::INFINITY, |(_, left)| left);
        window.min(conserved).max(least) as u64
    }
}

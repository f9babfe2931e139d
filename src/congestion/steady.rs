use crate::time::{Duration, Instant};

use super::flood::Flood;
use super::near::Near;
use super::notices::Notices;
use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// The controller of this project: it keeps a short queue in front of the bottleneck, whatever packets are lost by
/// chance.
///
/// On a way shorter than 500 µs delays are the hosts' own: a thread that sleeps, packets handled in batches. There it keeps
/// 512 packets in flight, and fewer only when packets arrive marked or stand in a queue for long.
#[derive(Debug)]
pub struct Steady {
    /// Bytes of packets in flight.
    window: f64,
    phase: Phase,
    /// When the phase began: what was sent before says nothing of it.
    phase_began: Instant,
    packet: LongestFrame,
    /// Whether the window of a short way has been too large.
    was_cut: bool,
    near: Near,
    flood: Flood,
    /// The share by which the window changes in a round.
    step: f64,
    /// Whether it grew last time.
    is_growing: bool,
    /// Rounds in a row in which it changed in the same direction.
    streak: u32,
    round: Round,
    notices: Notices,
    /// What arrived in each of the latest rounds, in bytes a second, and what had been delivered when this one began.
    arrived: [f64; ROUNDS],
    delivered: u64,
    /// The share of bytes that are lost by chance.
    chance: f64,
    /// Whether more was lost than by chance without a queue, and the window has become smaller to see why.
    is_suspect: bool,
    /// What had been delivered and lost when that share was last looked at.
    chunk_delivered: u64,
    chunk_lost: u64,
    rate: Option<Rate>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Each round trip's packets go in a train, three times as many as before, until a train is longer at the peer than
    /// here: that shows the bottleneck's rate long before its queue is full.
    Trains,
    /// The window grows, evenly paced, up to the rate that trains have shown, in bytes a second, and then more slowly.
    Ramp(f64),
    /// The window follows the queue.
    Cruise,
}

/// What was seen since the window changed.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Instant,
    /// The least delay in queues, of packets that were sent in this round, or earlier.
    queue: [Option<Duration>; 2],
    /// The most bytes that were in flight.
    peak: u64,
    /// Samples in a row that showed a queue.
    full: u32,
    /// When the first of them arrived at the peer, and the bytes that had been delivered by then.
    full_from: (Instant, u64),
    /// When the latest of them arrived at the peer.
    full_at: Instant,
}

/// Bytes in flight before anything is known of the network: twice what Linux sends in one piece
/// (`tcp_tso_autosize`), and more than the thirteen packets of path MTU 4096 after which an acknowledge comes.
const FIRST_WINDOW: f64 = 131072.0;

/// The least window, in bytes: one packet of path MTU 4096 and one on its way back.
const LEAST_WINDOW: f64 = 2.0 * 4300.0;

/// A shorter round trip than this is of a short way.
const NEAR: Duration = Duration::from_micros(500);

/// Packets in flight on a short way: they do not overrun a receiver's ring (`RecoverySettings::UNLIMITED_WINDOW`).
const NEAR_PACKETS: f64 = 512.0;

/// By how much the window grows on a short way, in the time in which a mark counts, after it had been too large: half as
/// much as a mark takes.
const NEAR_GAIN: f64 = 1.0 / 16.0;

/// Bytes of which a share of losses is computed: a hundred packets of path MTU 4096.
const CHUNK_BYTES: u64 = 430_000;

/// The share by which the window shrinks to see whether losses depend on it.
const SUSPICION: f64 = 0.03;

/// Delays that hosts cause themselves, in seconds: a thread that slept wakes up, and packets are handled in batches.
const HOST_DELAY: f64 = 100e-6;

/// The shortest time that counts as a round: in less there are too few samples to see through the noise of hosts.
pub(super) const SHORTEST_ROUND: Duration = Duration::from_micros(500);

/// The shortest round trip that is reckoned with: clocks of samples are no finer.
const SHORTEST: Duration = Duration::from_micros(1);

/// Rounds of which it is remembered what arrived.
const ROUNDS: usize = 4;

/// A queue of this queue pair's own is gone when what is in flight is what arrives in a round trip without queues; this
/// share of it is always in flight, whatever delays there are.
const ARRIVING: f64 = 0.9;

/// The largest change in a round.
const STEP_MAX: f64 = 0.015;

/// The same while there is no queue at all.
const EMPTY_STEP_MAX: f64 = 0.05;

/// The same after this many rounds in a row of growth: what is free is far.
const FAR_STEP_MAX: f64 = 0.2;
const EMPTY_ROUNDS: u32 = 9;

impl Default for Steady {
    /// A controller without history.
    fn default() -> Steady {
        Steady {
            window: FIRST_WINDOW,
            phase: Phase::Trains,
            phase_began: Instant::ZERO,
            packet: LongestFrame::default(),
            was_cut: false,
            near: Near::default(),
            flood: Flood::default(),
            step: 0.0,
            is_growing: true,
            streak: 0,
            round: Round::default(),
            notices: Notices::default(),
            arrived: [0.0; ROUNDS],
            delivered: 0,
            chance: 0.0,
            is_suspect: false,
            chunk_delivered: 0,
            chunk_lost: 0,
            rate: None,
        }
    }
}

impl Steady {
    /// The delay in queues that is aimed at.
    fn target(&self, base: Duration) -> f64 {
        let base = base.as_secs_f64();
        let gigabits = self.window / base * 8.0 / 1e9;
        let target = 300e-6 * gigabits.max(1e-6).powf(-0.25);
        (target.min(4e-3) * (base / 4e-3).sqrt().min(1.0)).max(HOST_DELAY)
    }

    fn begin_round(&mut self, flight: &Flight, now: Instant) {
        self.delivered = flight.delivered_bytes();
        self.round = Round { began: now, peak: flight.in_flight_bytes(), ..Round::default() };
    }

    fn begin_phase(&mut self, phase: Phase, flight: &Flight, now: Instant) {
        let drained = if let Phase::Ramp(rate) = phase {
            Duration::try_from_secs_f64(self.window / rate).unwrap_or_default()
        } else {
            Duration::ZERO
        };
        (self.phase, self.phase_began) = (phase, now + drained);
        self.begin_round(flight, now);
    }

    /// Takes what became of packets on a short way.
    fn take_near(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) {
        self.notices.take(flight, now);
        // Of a plain peer's packets nobody says how long they are; its own window is smaller.
        let most = (NEAR_PACKETS * self.packet.bytes()).max(LEAST_WINDOW);
        let gain = if self.was_cut { NEAR_GAIN * base.div_duration_f64(SHORTEST_ROUND) } else { 1.0 };
        self.window = (self.window + gain * progress.delivered_bytes as f64).min(most);
        self.rate = None;
        if let Some(kept) = self.near.take(flight, base, now) {
            self.window = (self.window * kept.max(0.5)).max(LEAST_WINDOW);
            self.was_cut = true;
        }
        if progress.sample.is_some_and(|sample| sample.is_marked) {
            self.notified(flight, now);
        }
        // If the way becomes longer, it is looked at from then on.
        self.begin_round(flight, now);
    }

    /// Keeps no more in flight than what arrives, in bytes a second.
    fn flooded(&mut self, arriving: f64, flight: &Flight, base: Duration, now: Instant) {
        let fit = arriving * base.max(SHORTEST_ROUND).as_secs_f64();
        self.window = fit.clamp(self.window / 2.0, self.window).max(LEAST_WINDOW);
        self.was_cut = true;
        if self.phase != Phase::Cruise {
            self.begin_phase(Phase::Cruise, flight, now);
        }
    }

    /// Takes a sample that may show a queue. Returns the rate at which packets come out of the queue when it does.
    fn find_queue(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) -> Option<f64> {
        let sample = progress.sample?;
        let queue = flight.queue(self.phase_began).filter(|_| sample.sent_at >= self.phase_began);
        if queue.is_none_or(|queue| queue.as_secs_f64() <= self.target(base)) {
            self.round.full = 0;
            return None;
        }
        let arrived_at = Instant::from_ns(now.as_ns().saturating_sub(sample.delay.as_nanos() as u64));
        // A train is longer than a few acknowledges.
        let gap = arrived_at.saturating_since(std::mem::replace(&mut self.round.full_at, arrived_at));
        self.round.full = if gap > base / 16 { 1 } else { self.round.full + 1 };
        if self.round.full == 1 {
            self.round.full_from = (arrived_at, flight.delivered_bytes());
        }
        let (from, delivered) = self.round.full_from;
        let span = (arrived_at - from).as_secs_f64();
        let rate = (flight.delivered_bytes() - delivered) as f64 / span;
        (self.round.full >= 3 && span > 0.0 && rate > 0.0).then_some(rate)
    }

    fn start(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) {
        let base_s = base.as_secs_f64();
        let found = self.find_queue(progress, flight, base, now);
        let is_limited = self.round.peak as f64 > self.window * 0.5;
        let delivered = if is_limited { progress.delivered_bytes as f64 } else { 0.0 };
        match (self.phase, found) {
            (Phase::Trains, Some(rate)) => {
                self.window = (self.window / 3.0).min(rate * base_s).max(LEAST_WINDOW);
                self.begin_phase(Phase::Ramp(rate), flight, now);
            }
            (Phase::Ramp(_), Some(rate)) => {
                self.window = self.window.min(rate * base_s).max(self.window * 0.7);
                self.begin_phase(Phase::Cruise, flight, now);
            }
            (Phase::Ramp(rate), None) => {
                let gain = match self.window / (rate * base_s) {
                    ..0.3 => 1.0,
                    0.3..0.9 => 0.4,
                    _ => 0.1,
                };
                self.window += gain * delivered;
            }
            (_, None) => self.window += 2.0 * delivered,
            (Phase::Cruise, Some(_)) => {}
        }
    }

    /// The share of bytes that were lost lately, and its standard error; `None` while they are too few.
    fn share_lost(&self, flight: &Flight) -> Option<(f64, f64)> {
        let lost = flight.lost_bytes() - self.chunk_lost;
        let all = lost + flight.delivered_bytes() - self.chunk_delivered;
        let share = lost as f64 / all as f64;
        let packets = all as f64 / LongestFrame::UNKNOWN;
        let error = (self.chance.max(share / 4.0) / packets).sqrt();
        (all > CHUNK_BYTES).then_some((share, error))
    }

    fn end_round(&mut self, flight: &Flight, base: Duration, now: Instant) {
        let base_s = base.as_secs_f64();
        let Some(queue) = self.round.queue[1].or(self.round.queue[0]) else { return };
        let queue = queue.as_secs_f64();
        self.arrived.rotate_left(1);
        let seconds = (now - self.round.began).as_secs_f64();
        self.arrived[ROUNDS - 1] = (flight.delivered_bytes() - self.delivered) as f64 / seconds;
        let target = self.target(base);
        let least = (target / base_s / 4.0).clamp(0.002, 0.02);
        let is_limited = self.round.peak as f64 > self.window * 0.8;
        let grows = queue < target;
        self.streak = if grows == self.is_growing { self.streak + 1 } else { 0 };
        self.is_growing = grows;
        let most = match self.streak {
            _ if queue >= target / 8.0 => STEP_MAX,
            0..EMPTY_ROUNDS => EMPTY_STEP_MAX,
            _ => FAR_STEP_MAX,
        };
        self.step = if self.streak >= 2 { (self.step * 2.0).min(most) } else { least };
        let is_full = queue > 2.0 * target;
        let share = self.share_lost(flight);
        let mut is_policed = false;
        if let Some((share, error)) = share {
            (self.chunk_delivered, self.chunk_lost) = (flight.delivered_bytes(), flight.lost_bytes());
            let is_more = share > self.chance + 0.01 + 4.0 * error;
            if is_more && !is_full && self.is_suspect {
                // As many are lost although less is sent: the loss is not of this queue pair's making.
                self.chance = share;
                self.window /= 1.0 - SUSPICION;
            } else if !is_more {
                self.chance += (share - self.chance) / 8.0;
            }
            is_policed = is_more && !self.is_suspect;
            self.is_suspect = is_policed && !is_full;
        }
        if is_full || is_policed {
            let excess = share.map_or(0.0, |(share, error)| (share - self.chance - 2.0 * error).max(0.0));
            let over = if is_full { (base_s + target) / (base_s + queue) } else { 1.0 - SUSPICION };
            let fit = self.window * over * (1.0 - excess);
            let arriving = self.arrived.into_iter().fold(0.0, f64::max) * base_s * ARRIVING;
            self.window = fit.max(arriving).clamp(self.window / 2.0, self.window);
        } else if grows && is_limited {
            self.window *= 1.0 + self.step;
        } else if !grows {
            self.window *= 1.0 - self.step;
        }
        self.window = self.window.max(LEAST_WINDOW);
        self.begin_round(flight, now);
    }
}

impl Controller for Steady {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let (Some(base), Some(smoothed)) = (flight.shortest(), flight.smoothed()) else { return };
        let base = base.max(SHORTEST);
        // A start overruns a queue for a round trip, and then sees it.
        let lasts = if base < NEAR || self.phase == Phase::Cruise { 1 } else { 2 };
        if let Some(arriving) = self.flood.take(flight, lasts, now) {
            self.flooded(arriving, flight, base, now);
        }
        if base < NEAR {
            return self.take_near(progress, flight, base, now);
        }
        self.round.peak = self.round.peak.max(flight.in_flight_bytes() + progress.delivered_bytes);
        if progress.sample.is_some() {
            for (least, since) in self.round.queue.iter_mut().zip([Instant::ZERO, self.round.began]) {
                *least = [*least, flight.queue(since)].into_iter().flatten().min();
            }
        }
        self.notices.take(flight, now);
        if progress.sample.is_some_and(|sample| sample.is_marked) {
            self.notified(flight, now);
        }
        if progress.forgotten_bytes as f64 > self.window * 0.5 && self.window > FIRST_WINDOW {
            // All of a window is gone: the network is another one than before. What trains have not shown, they still can.
            let known = Phase::Ramp(self.window / base.as_secs_f64());
            self.window = FIRST_WINDOW;
            self.begin_phase(if self.phase == Phase::Trains { Phase::Trains } else { known }, flight, now);
        }
        match self.phase {
            Phase::Trains | Phase::Ramp(_) => {
                self.start(progress, flight, base, now);
                if now - self.round.began > smoothed {
                    let Round { full, full_from, full_at, .. } = self.round;
                    self.begin_round(flight, now);
                    self.round = Round { full, full_from, full_at, ..self.round };
                }
            }
            Phase::Cruise if now - self.round.began > (smoothed * 9 / 8).max(SHORTEST_ROUND) => {
                self.end_round(flight, base, now)
            }
            Phase::Cruise => {}
        }
        let gain = if self.phase == Phase::Trains { 16.0 } else { 1.05 };
        let bits = self.window * 8.0 * gain / (base + flight.queue(Instant::ZERO).unwrap_or_default()).as_secs_f64();
        self.rate = Some(Rate::from_bits(bits as u64));
    }

    fn sent(&mut self, bytes: u64, _now: Instant) {
        self.packet.take(bytes);
    }

    fn notified(&mut self, flight: &Flight, now: Instant) {
        let Some(left) = self.notices.cut(self.window, flight, now) else { return };
        self.window = left.max(LEAST_WINDOW);
        self.was_cut = true;
        (self.step, self.streak, self.is_growing) = (0.0, 0, false);
        match self.phase {
            // A train can be marked long before it shows the bottleneck's rate: from here on it is looked for slowly.
            Phase::Trains => {
                let base = flight.shortest().unwrap_or_default().max(SHORTEST);
                self.begin_phase(Phase::Ramp(self.window / base.as_secs_f64()), flight, now);
            }
            Phase::Ramp(_) => self.begin_phase(Phase::Cruise, flight, now),
            Phase::Cruise => {}
        }
    }

    fn rate(&self) -> Option<Rate> {
        self.rate
    }

    fn window_bytes(&self) -> u64 {
        self.window as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const FRAME: u64 = 4206;

    /// What `rounds` round trips of 50 µs do, in each of which a whole window arrives; the queue takes `queue` of the last.
    fn pass(steady: &mut Steady, flight: &mut Flight, rounds: u64, queue: Duration, is_marked: bool) {
        let began = flight.delivered_bytes() + 1;
        for round in 0..rounds {
            let sent_at = Instant::from_ns(began * 1_000_000 + round * 50_000);
            let round_trip = Duration::from_micros(50) + if round + 1 == rounds { queue } else { Duration::ZERO };
            let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked };
            let delivered_bytes = steady.window_bytes();
            let progress = Progress { delivered_bytes, sample: Some(sample), ..Progress::default() };
            let now = sent_at + round_trip;
            steady.sent(FRAME, now);
            flight.take(&progress, 0, now);
            steady.take(&progress, flight, now);
        }
    }

    #[test]
    fn a_short_way_has_512_packets_in_flight_whatever_its_delays_are() {
        let (mut steady, mut flight) = (Steady::default(), Flight::default());
        for queue in [Duration::ZERO, Duration::from_millis(5), Duration::from_secs(1)] {
            pass(&mut steady, &mut flight, 20, queue, false);
            assert_eq!((steady.window_bytes(), steady.rate()), (512 * FRAME, None));
        }
    }

    #[test]
    fn marks_on_a_short_way_make_the_window_smaller_and_it_recovers_slowly() {
        let (mut steady, mut flight) = (Steady::default(), Flight::default());
        pass(&mut steady, &mut flight, 20, Duration::ZERO, false);
        pass(&mut steady, &mut flight, 200, Duration::ZERO, true);
        let marked = steady.window_bytes();
        assert!(marked < 512 * FRAME * 15 / 16, "{marked}");
        pass(&mut steady, &mut flight, 1, Duration::ZERO, false);
        assert_eq!(steady.window_bytes(), marked + marked / 160, "a tenth of 500 µs");
    }
}

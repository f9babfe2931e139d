use std::ops::Range;

use crate::time::{Duration, Instant};

use super::chance::{Chance, Verdict};
use super::climb::{Climb, Gait, Seen};
use super::contest::{Contest, Turn, View};
use super::delivery::Delivery;
use super::flood::{Flood, Look};
use super::lateness::Lateness;
use super::near::Near;
use super::notices::{self, Notices};
use super::probe_rtt::{Probe, ProbeRtt};
use super::retreat::{Course, Known, Retreat};
use super::{Controller, Flight, LongestFrame, Progress, Rate};

/// The controller of this project: it keeps a short queue in front of the bottleneck, whatever packets are lost by
/// chance.
///
/// On a way shorter than 500 µs delays are the hosts' own: a thread that sleeps, packets handled in batches. There it keeps
/// 512 packets in flight, and fewer only when packets arrive marked or stand in a queue for long.
///
/// Beside urgent messages of the same host it keeps to 97 to 100 % of what arrives, and the queue to 0.5 % of a round trip.
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
    /// `None` before the first sample of a long way.
    far: Option<Box<Far>>,
    round: Round,
    notices: Notices,
    delivery: Delivery,
    /// The rate of the bottleneck as trains have shown it, in bytes a second; infinite while they have not.
    line: f64,
    chance: Chance,
    /// Whether the window does not grow until it is clear why more was lost in the latest round.
    is_held: bool,
    rate: Option<Rate>,
    /// Whether urgent messages of this host are under way, which wait for what stands in queues.
    is_beside_urgent: bool,
    /// Whether its flow is of class scavenger, which leaves the line to others.
    is_scavenger: bool,
    /// What is allowed for this host's lateness, in seconds.
    allowance: f64,
    /// Whether packets [go evenly](Self::goes_evenly).
    is_even: bool,
}

/// What is kept of a long way alone.
#[derive(Debug)]
struct Far {
    climb: Climb,
    probe_rtt: ProbeRtt,
    contest: Contest,
    /// Of a flow of class scavenger, once it cruises.
    retreat: Option<Box<Retreat>>,
}

impl Far {
    /// What is kept from this climb on.
    fn new(climb: Climb) -> Box<Far> {
        Box::new(Far { climb, probe_rtt: ProbeRtt::default(), contest: Contest::default(), retreat: None })
    }
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
    /// When the first of the samples in a row that showed a queue arrived at the peer.
    queued_from: Instant,
    /// Samples in a row that showed a queue, none of them long after the one before.
    full: u32,
    /// When the first of them arrived at the peer, and the bytes that had been delivered by then.
    full_from: (Instant, u64),
    /// When the latest of them arrived at the peer.
    full_at: Instant,
}

/// Why flows have parted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parted {
    /// The way is short.
    Short,
    /// Enough fits for each of them to see something of each round trip.
    Large,
}

/// Bytes in flight before anything is known of the network: what Linux sends in one piece (`tcp_tso_autosize`), and more than
/// the thirteen packets of path MTU 4096 after which an acknowledge comes. Sixteen new flows overrun no buffer of 1 MB with it.
/// As soon as the way is known to be long it is twice those packets.
const FIRST_WINDOW: f64 = 65536.0;
const FIRST_FAR: f64 = 114688.0;

/// The least window, in bytes: one packet of path MTU 4096 and one on its way back.
const LEAST_WINDOW: f64 = 2.0 * 4300.0;

/// A shorter round trip than this is of a short way.
const NEAR: Duration = Duration::from_micros(500);

/// Packets in flight on a short way: they do not overrun a receiver's ring (`RecoverySettings::UNLIMITED_WINDOW`).
const NEAR_PACKETS: f64 = 512.0;

/// By how much the window grows on a short way, in [`SHORTEST_ROUND`], after it had been too large: half as much as a mark
/// takes.
const NEAR_GAIN: f64 = 1.0 / 16.0;

/// The part of the window that the first mark on a short way leaves: until then the window grows with all that arrives, and a
/// mark is heard of one or two round trips later.
const NEAR_FIRST: f64 = 0.25;

/// Delays that hosts cause themselves, in seconds: a thread that slept wakes up, and packets are handled in batches.
const HOST_DELAY: f64 = 100e-6;

/// The shortest time that counts as a round: in less there are too few samples to see through the noise of hosts.
pub(super) const SHORTEST_ROUND: Duration = Duration::from_micros(500);

/// The shortest round trip that is reckoned with: clocks of samples are no finer.
const SHORTEST: Duration = Duration::from_micros(1);

/// The delay in queues up to which a window grows on ways of 4 to 20 ms, in seconds: a fiftieth of 20 ms. On shorter and on
/// longer ways it goes with the root of the round trip: hosts add 0.6 to 0.9 ms to 100 ms at 500 Mb/s, whatever the window is.
const TARGET: f64 = 400e-6;
const TARGET_OF: Range<f64> = 4e-3..20e-3;

/// By how much more may stand there on a host that falls behind: it empties the queue more often than others.
const BEHIND_TARGET: f64 = 2.0;

/// What stands in the queue beside that: a part of what the pacer sends at once, up to this share of a round trip.
const BURST_BYTES: f64 = 16384.0;
const BURST_SHARE: f64 = 0.025;

/// The part of a window by which it grows at most in a round trip, since it overruns a queue by nearly twice as much; and
/// bytes that it may grow by all the same, so that small windows grow as large ones do.
const STEP: f64 = 1.0 / 48.0;
const STEP_BYTES: f64 = 65536.0;

/// The same in class scavenger, which makes no queue for others.
const SCAVENGER_STEP: f64 = 1.0 / 24.0;

/// Packets in flight beside the window: the peer reports once in thirteen, and the rate is to decide, not a report that is to
/// come.
const UNREPORTED: f64 = 13.0;

/// Their part of a window, at most, that does not surely arrive: the rate decides it, and not the window.
const UNREPORTED_MAX: f64 = 0.02;

/// The part of the line beyond which nobody else can need it: a flow that is alone loses what it does not count on.
const MOST: f64 = 0.6;

/// Packets go evenly in a window of such a part of the line: a larger one is that of a faster line, of which others took a part
/// while a train showed it.
const EVEN_OF: Range<f64> = MOST..1.2;

/// They do where the line takes longer for those that are reported together, and the host is late by no more than the pacer
/// catches up on any host, both in seconds.
const EVEN_FROM: f64 = 500e-6;
const EVEN_LATE: f64 = 1e-3;

/// What is in flight beside the window then, as a share of it, so that the window does not decide when a packet goes; and the part
/// of the target by which the queue grows at most in a round trip.
const EVEN_BESIDE: f64 = 0.01;
const EVEN_STEP: f64 = 0.2;

/// The part of a round trip for which a queue lasts that ends the start.
const RAMP_QUEUE: u32 = 8;

/// How fast windows are sent, in windows a round trip.
const TRAIN_PACE: f64 = 16.0;
const PACE: f64 = 1.05;

/// The same beside urgent messages: the rate is what fits, and no report that comes late is made up for.
const CALM_PACE: f64 = 1.0;

/// The bounds of a step towards a fair window beside them: a short queue tells little of it, and more than is free is queue.
const CALM_LESS: f64 = 0.98;
const CALM_MORE: f64 = 1.01;

/// Beside urgent messages, the delay in queues up to which a window grows: this share of a round trip, or a little more
/// than hosts add themselves, in seconds. Hosts add more where other programs have their processors. A flow that has so much of
/// the line, as trains have shown it, and not all, has no queue of its own then.
const CALM_SHARE: f64 = 0.005;
const CALM_LEAST: f64 = 1.5 * HOST_DELAY;
const CALM_LEAST_ALONE: f64 = 3.5 * HOST_DELAY;
const CALM_ALONE: Range<f64> = 0.4..0.85;

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
            far: None,
            round: Round::default(),
            notices: Notices::default(),
            delivery: Delivery::default(),
            line: f64::INFINITY,
            chance: Chance::default(),
            is_held: false,
            rate: None,
            is_beside_urgent: false,
            is_scavenger: false,
            allowance: 0.0,
            is_even: false,
        }
    }
}

impl Steady {
    /// Why so many flows that it is the controller of part; `None` when they do not.
    pub(super) fn parted(&self, parts: u32, flight: &Flight) -> Option<Parted> {
        if flight.shortest().is_some_and(|base| base < NEAR) {
            return Some(Parted::Short);
        }
        let is_small = self.packet.is_small(self.window / f64::from(parts));
        (self.phase == Phase::Cruise && !is_small).then_some(Parted::Large)
    }

    /// Bytes of one of so many flows that can be in flight where a rate decides; `None` where none does.
    pub(super) fn paced_part_bytes(&self, parts: u32) -> Option<u64> {
        let (part, beside) = (self.window / f64::from(parts), self.beside_window());
        (beside > 0.0).then_some((part + beside.min(part)) as u64)
    }

    /// The controller of one of so many flows that part, of which `flight` is known.
    pub(super) fn part(&self, parts: u32, flight: &Flight, now: Instant) -> Steady {
        let Steady { packet, is_beside_urgent, is_scavenger, allowance, .. } = *self;
        let mut part = Steady { packet, is_beside_urgent, is_scavenger, allowance, ..Steady::default() };
        if self.phase == Phase::Cruise {
            (part.line, part.was_cut) = (self.line, self.was_cut);
            part.window = (self.window / f64::from(parts)).max(LEAST_WINDOW);
            part.begin_phase(Phase::Cruise, flight, now);
        }
        part
    }

    /// Bytes in flight beside the window: where the rate decides, those that the peer has not reported.
    fn beside_window(&self) -> f64 {
        let is_away = self.far.as_ref().and_then(|far| far.retreat.as_ref()).is_some_and(|retreat| retreat.is_away());
        let is_paced = self.phase == Phase::Cruise && self.rate.is_some() && !is_away;
        let is_sent_evenly = if self.is_even { self.window * EVEN_BESIDE } else { 0.0 };
        if is_paced { UNREPORTED * self.packet.bytes() + is_sent_evenly } else { 0.0 }
    }

    /// The delay in queues up to which the window grows.
    fn target(&self, base: Duration) -> f64 {
        if self.is_calm() {
            let is_alone = CALM_ALONE.contains(&self.of_line(base));
            return (base.as_secs_f64() * CALM_SHARE).max(if is_alone { CALM_LEAST_ALONE } else { CALM_LEAST });
        }
        let most = if self.falls_behind(base) { BEHIND_TARGET } else { 1.0 };
        self.usual_target(base) * most
    }

    /// The same with no urgent messages under way, and at the start, which overruns a queue anyway.
    fn usual_target(&self, base: Duration) -> f64 {
        let base = base.as_secs_f64();
        let scale = (base / TARGET_OF.start).min(1.0) * (base / TARGET_OF.end).max(1.0);
        (TARGET * scale.sqrt()).max(HOST_DELAY) + (BURST_BYTES / self.line).min(base * BURST_SHARE)
    }

    fn begin_round(&mut self, flight: &Flight, now: Instant) {
        self.delivery.begin(flight, now);
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
        if phase == Phase::Cruise {
            let queue = flight.queue().unwrap_or_default();
            self.begin_climb(Climb::new(self.gait(), 0.0, now + queue));
        }
    }

    fn gait(&self) -> &'static Gait {
        match (self.is_beside_urgent, self.is_scavenger) {
            (true, _) => Gait::CALM,
            (false, true) => Gait::SCAVENGER,
            (false, false) => Gait::USUAL,
        }
    }

    /// Whether the queue is kept shorter than usual, since others wait for it.
    fn is_calm(&self) -> bool {
        self.is_beside_urgent || self.is_scavenger
    }

    /// What leaves the line to others, where it cruises in class scavenger.
    fn retreat_mut(&mut self) -> Option<&mut Retreat> {
        self.far.as_mut().filter(|_| self.phase == Phase::Cruise)?.retreat.as_deref_mut()
    }

    /// Leaves the line to others, in class scavenger. Returns whether that is all it does now.
    fn retreat(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) -> bool {
        if self.phase != Phase::Cruise || !self.is_scavenger {
            return false;
        }
        let (target, window, packet) = (self.target(base), self.window, self.packet.bytes());
        let known = Known { target, base, window, packet, now };
        let Some(far) = &mut self.far else { return false };
        let retreat = far.retreat.get_or_insert_with(|| Box::new(Retreat::new(now)));
        match retreat.take(progress, flight, &known) {
            Course::Usual => false,
            Course::Away => {
                self.window = retreat.probe_bytes();
                true
            }
            Course::Back(window) => {
                self.window = window.max(LEAST_WINDOW);
                self.delivery = Delivery::default();
                self.begin_phase(Phase::Cruise, flight, now);
                false
            }
        }
    }

    /// Bytes of what arrives that are not those of the window. A host that is late needs all that arrives: its own pauses
    /// look like a queue. So does a flow that has most of the line, as trains have shown it.
    fn unreported(&self, base: Duration) -> f64 {
        if self.is_late() || self.line.is_infinite() || self.of_line(base) > MOST {
            0.0
        } else {
            (UNREPORTED * self.packet.bytes()).min(self.window * UNREPORTED_MAX)
        }
    }

    /// The part of the line that the window is, as trains have shown it; 0 while they have not.
    fn of_line(&self, base: Duration) -> f64 {
        self.window / (self.line * base.as_secs_f64())
    }

    /// Whether packets go evenly, by the rate alone. Else reports decide, when the window is full, and the packets of one go
    /// together: on a slow line those stand in a queue of their own, which hides that of the window. One that has to share the line
    /// needs that its queue follows the window at once, since that tells a fair one.
    fn goes_evenly(&self, base: Duration) -> bool {
        let is_slow = UNREPORTED * self.packet.bytes() > EVEN_FROM * self.line;
        let is_usual = self.phase == Phase::Cruise && !self.is_calm() && self.allowance <= EVEN_LATE;
        is_usual && is_slow && !self.is_small(base) && EVEN_OF.contains(&self.of_line(base))
    }

    /// Whether this host is late: delays can be its own.
    fn is_late(&self) -> bool {
        self.allowance > HOST_DELAY
    }

    /// Whether this host is later than it may catch up for: its delays are longer than the queues that it keeps.
    fn falls_behind(&self, base: Duration) -> bool {
        self.is_late() && !self.is_beside_urgent && self.allowance >= (base / Lateness::SHARE).as_secs_f64()
    }

    fn begin_climb(&mut self, climb: Climb) {
        match &mut self.far {
            Some(far) => far.climb.restart(climb),
            None => self.far = Some(Far::new(climb)),
        }
    }

    /// Takes what became of packets on a short way.
    fn take_near(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) {
        self.notices.take(flight, now);
        // Of a plain peer's packets nobody says how long they are; its own window is smaller.
        let most = (NEAR_PACKETS * self.packet.bytes()).max(LEAST_WINDOW);
        let again = NEAR_GAIN * self.near.pace() * base.div_duration_f64(SHORTEST_ROUND);
        let gain = if self.was_cut { again } else { 1.0 };
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

    /// Whether the way is long, and too few packets are on it to see much of each round trip.
    fn is_small(&self, base: Duration) -> bool {
        base >= NEAR && self.packet.is_small(self.window)
    }

    /// Keeps no more in flight than what arrives, in bytes a second.
    fn flooded(&mut self, arriving: f64, flight: &Flight, base: Duration, now: Instant) {
        let fit = arriving * base.max(SHORTEST_ROUND).as_secs_f64();
        let is_small = self.is_small(base);
        let least = if is_small { 0.0 } else { self.window / 2.0 };
        self.window = fit.clamp(least, self.window).max(LEAST_WINDOW);
        self.was_cut = true;
        match self.phase {
            // Of many, each of which would overrun the queue again.
            Phase::Trains if is_small => self.begin_phase(Phase::Cruise, flight, now),
            // Of a train that is sent at once less arrives than of packets that are sent evenly.
            Phase::Trains => self.begin_phase(Phase::Ramp(2.0 * arriving), flight, now),
            Phase::Ramp(_) => self.begin_phase(Phase::Cruise, flight, now),
            Phase::Cruise => self.begin_climb(Climb::new(self.gait(), 0.0, now)),
        }
    }

    /// Takes a sample that may show a queue. Returns the rate at which packets come out of the queue when it does.
    fn find_queue(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) -> Option<f64> {
        let sample = progress.sample?;
        let queue = flight.queue_since(self.phase_began).filter(|_| sample.sent_at >= self.phase_began);
        if queue.is_none_or(|queue| queue.as_secs_f64() <= self.usual_target(base)) {
            self.round.full = 0;
            return None;
        }
        let arrived_at = Instant::from_ns(now.as_ns().saturating_sub(sample.delay.as_nanos() as u64));
        if self.round.full == 0 {
            self.round.queued_from = arrived_at;
        }
        // A train is longer than a few acknowledges. What is sent evenly by several is heard of seldom by each. A host that is
        // late looks at nothing meanwhile, and then what it took for that looks like a queue, but not for a round trip.
        let is_brief = self.is_late() && arrived_at.saturating_since(self.round.queued_from) < base;
        let gap = arrived_at.saturating_since(std::mem::replace(&mut self.round.full_at, arrived_at));
        let is_apart = gap > base / 16 && (self.phase == Phase::Trains || is_brief);
        self.round.full = if is_apart { 1 } else { self.round.full + 1 };
        if self.round.full == 1 {
            self.round.full_from = (arrived_at, flight.delivered_bytes());
        }
        let (from, delivered) = self.round.full_from;
        let span = arrived_at - from;
        let rate = (flight.delivered_bytes() - delivered) as f64 / span.as_secs_f64();
        // What is sent evenly fills a queue for long; what is sent again makes one for a moment.
        let lasts = if self.phase == Phase::Trains { Duration::ZERO } else { base / RAMP_QUEUE };
        (self.round.full >= 3 && span > lasts && rate > 0.0).then_some(rate)
    }

    /// Sends so many bytes in a time from now on.
    fn pace(&mut self, bytes: f64, time: Duration) {
        self.rate = Some(Rate::from_bits((bytes * 8.0 / time.as_secs_f64()) as u64));
    }

    /// Sends at the rate of its phase from now on.
    fn pace_by_phase(&mut self, flight: &Flight, base: Duration) {
        self.is_even = self.goes_evenly(base);
        let grows_by = self.far.as_ref().map_or(0.0, |far| far.climb.grows_by());
        let paced = match self.phase {
            Phase::Trains => self.window * TRAIN_PACE,
            Phase::Ramp(_) => self.window * PACE,
            Phase::Cruise if self.is_calm() => self.window * CALM_PACE,
            // A whole window goes next, which nothing makes room for: any faster it would stand in a queue.
            Phase::Cruise if flight.in_flight_bytes() == 0 => self.window,
            Phase::Cruise if self.is_even => self.window + grows_by,
            Phase::Cruise => self.window * PACE + grows_by,
        };
        // A host that falls behind is bounded by its window alone: its own delays are no queue, by which it would be slower.
        let queue = match self.phase {
            Phase::Cruise if self.falls_behind(base) => Duration::ZERO,
            _ => flight.queue().unwrap_or_default(),
        };
        self.pace(paced, base + queue);
    }

    /// Looks for the round trip without a queue that nobody has seen. Returns whether that is all it does now.
    fn probe(&mut self, flight: &Flight, smoothed: Duration, now: Instant) -> bool {
        let gait = self.gait();
        let far = self.far.get_or_insert_with(|| Far::new(Climb::new(gait, 0.0, now)));
        match far.probe_rtt.take(flight, self.window, self.packet, now) {
            Probe::None => return false,
            Probe::Less(window) => {
                self.window = window.max(LEAST_WINDOW);
                self.pace(self.window, smoothed);
                return true;
            }
            Probe::Over(window) => {
                self.window = window;
                self.begin_phase(self.phase, flight, now);
            }
            Probe::Found(window) => {
                self.window = window.max(LEAST_WINDOW);
                self.begin_phase(Phase::Cruise, flight, now);
            }
        }
        false
    }

    /// Competes with flows that fill the buffer, if there are any. Returns whether that is all it does now.
    fn compete(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) -> bool {
        // What it keeps in queues, urgent messages of this host wait for.
        let (can_compete, window) = (self.phase == Phase::Cruise && !self.is_beside_urgent, self.window);
        let Some(far) = &mut self.far else { return false };
        if !can_compete || far.retreat.is_some() || far.probe_rtt.is_crowded(window, self.packet) {
            far.contest.leave();
            return false;
        }
        let (line, chance) = (self.line, self.chance.share());
        let late = Duration::try_from_secs_f64(self.allowance).unwrap_or_default();
        let (queue, is_small) = (flight.queue().unwrap_or_default(), self.packet.is_small(window));
        match far.contest.take(&View { progress, flight, base, queue, line, chance, late, window, is_small, now }) {
            Turn::None => return false,
            Turn::Keep(window) => {
                self.window = window.max(LEAST_WINDOW);
                self.pace(self.window * PACE, base + queue);
                return true;
            }
            Turn::Over(window) => {
                self.window = window.max(LEAST_WINDOW);
                self.begin_phase(Phase::Cruise, flight, now);
            }
        }
        false
    }

    fn start(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) {
        let base_s = base.as_secs_f64();
        let found = self.find_queue(progress, flight, base, now);
        let is_limited = self.round.peak as f64 > self.window * 0.5;
        let delivered = if is_limited { progress.delivered_bytes as f64 } else { 0.0 };
        match (self.phase, found) {
            (Phase::Trains, Some(rate)) => {
                self.window = (self.window / 3.0).min(rate * base_s).max(LEAST_WINDOW);
                self.line = rate;
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

    /// Looks at what was lost in a round that ends.
    fn end_round(&mut self, flight: &Flight, base: Duration, now: Instant) {
        let Some(queue) = self.round.queue[1].or(self.round.queue[0]) else { return };
        self.delivery.end(flight, now);
        let verdict = self.chance.look(flight, queue.as_secs_f64() > 2.0 * self.usual_target(base));
        self.is_held = matches!(verdict, Verdict::Unclear | Verdict::Trial);
        match verdict {
            Verdict::Usual | Verdict::Unclear => {}
            Verdict::Trial => self.window *= 1.0 - Chance::TRIAL,
            Verdict::Innocent => self.window = self.before_trial(),
            Verdict::Excess => self.exceeded(self.delivery.sure(base), now),
            Verdict::Policed(part) => {
                let arrived = self.before_trial() * part;
                self.exceeded(arrived.max(self.delivery.sure(base)), now);
            }
        }
        self.window = self.window.max(LEAST_WINDOW);
        self.begin_round(flight, now);
    }

    /// The window before the trial that made it this one.
    fn before_trial(&self) -> f64 {
        self.window / (1.0 - Chance::TRIAL)
    }

    /// Keeps so many bytes in flight, since more were lost.
    fn exceeded(&mut self, fit: f64, now: Instant) {
        self.window = fit.clamp(self.window / 2.0, self.before_trial());
        self.begin_climb(Climb::new(self.gait(), self.window * STEP / 8.0, now));
    }

    fn cruise(&mut self, progress: &Progress, flight: &Flight, base: Duration, now: Instant) {
        let (target, is_late) = (self.target(base), self.is_late());
        // Of so short a way delays tell nothing of others: this host's own are longer.
        let delays_are_own = base < Lateness::SLICE && self.falls_behind(base);
        let Some(Far { climb, probe_rtt, retreat, .. }) = self.far.as_deref_mut() else { return };
        if !self.is_held && self.round.peak as f64 > self.window * 0.8 {
            let usual = (self.window * STEP).max(STEP_BYTES);
            let most = match retreat {
                Some(_) => self.window * SCAVENGER_STEP,
                None if self.is_even => {
                    // Of a train, too, chance has taken its part.
                    let room = self.chance.sent_for(self.line * base.as_secs_f64()) - self.window;
                    room.min(usual).max(self.line * target * EVEN_STEP)
                }
                None => usual,
            };
            self.window += climb.grow(most, base, now);
        } else {
            climb.rest(now);
        }
        let (Some(sample), Some(queue)) = (progress.sample, flight.queue()) else { return };
        let seen = Seen { queue: queue.as_secs_f64(), sent_at: sample.sent_at, target, base, now, delays_are_own };
        let Some(top) = climb.take(&seen, self.window) else { return };
        let is_crowded = probe_rtt.is_crowded(self.window, self.packet);
        // Beside urgent messages a part is left free of what surely arrives, too.
        let sure = match self.is_calm() {
            true => self.delivery.sure(base) * (1.0 - self.gait().free),
            // What chance takes of it was in flight, too.
            false if self.is_even => self.chance.sent_for(self.delivery.sure(base)),
            false => self.delivery.sure(base) - self.unreported(base),
        };
        let fit =
            if top.lasts && is_crowded { top.fit } else { top.fit.max(sure) }.clamp(self.window / 2.0, self.window);
        let mut share = top.share(fit, is_late || self.is_even);
        if self.is_beside_urgent {
            share = share.clamp(CALM_LESS, CALM_MORE);
        }
        if let Some(retreat) = self.retreat_mut() {
            retreat.top(fit / base.as_secs_f64());
        }
        // What others take over does not arrive again.
        self.delivery.leave(share.min(1.0));
        self.window = (fit * share).max(LEAST_WINDOW);
        self.begin_climb(Climb::after(&top, self.gait(), base, now));
    }
}

impl Controller for Steady {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let (Some(base), Some(smoothed)) = (flight.shortest(), flight.smoothed()) else {
            if progress.forgotten_bytes > 0 {
                // Nothing of the first window was heard of: others fill the way (RFC 5681, section 3.1).
                self.window = LEAST_WINDOW;
            }
            return;
        };
        let base = base.max(SHORTEST);
        // A start overruns a queue for a round trip, and then sees it.
        let look = match self.phase {
            _ if self.is_small(base) => Look::SMALL,
            Phase::Trains | Phase::Ramp(_) if base >= NEAR => Look::START,
            _ => Look::USUAL,
        };
        if let Some(arriving) = self.flood.take(flight, look, now) {
            self.flooded(arriving, flight, base, now);
        }
        if base < NEAR {
            return self.take_near(progress, flight, base, now);
        }
        // The first packets that arrive.
        if self.phase == Phase::Trains && flight.delivered_bytes() == progress.delivered_bytes {
            self.window = self.window.max(FIRST_FAR);
        }
        self.round.peak = self.round.peak.max(flight.in_flight_bytes() + progress.delivered_bytes);
        if progress.sample.is_some() {
            for (least, since) in self.round.queue.iter_mut().zip([Instant::ZERO, self.round.began]) {
                *least = [*least, flight.queue_since(since)].into_iter().flatten().min();
            }
        }
        self.notices.take(flight, now);
        if progress.sample.is_some_and(|sample| sample.is_marked) {
            self.notified(flight, now);
        }
        if progress.forgotten_bytes as f64 > self.window * 0.5 && self.window > FIRST_FAR {
            // All of a window is gone: the network is another one than before. What trains have not shown, they still can.
            let known = Phase::Ramp(self.window / base.as_secs_f64());
            self.window = FIRST_FAR;
            self.begin_phase(if self.phase == Phase::Trains { Phase::Trains } else { known }, flight, now);
        }
        if self.retreat(progress, flight, base, now) || self.probe(flight, smoothed, now) {
            return;
        }
        if self.compete(progress, flight, base, now) {
            return;
        }
        match self.phase {
            Phase::Trains | Phase::Ramp(_) => {
                self.start(progress, flight, base, now);
                if now - self.round.began > smoothed {
                    // Trains overrun queues, and so do many small windows.
                    if matches!(self.phase, Phase::Ramp(_)) && !self.is_small(base) {
                        self.chance.learn(flight);
                    }
                    let Round { queued_from, full, full_from, full_at, .. } = self.round;
                    self.begin_round(flight, now);
                    self.round = Round { queued_from, full, full_from, full_at, ..self.round };
                }
            }
            Phase::Cruise => {
                self.cruise(progress, flight, base, now);
                if now - self.round.began > (smoothed * 9 / 8).max(SHORTEST_ROUND) {
                    self.end_round(flight, base, now);
                }
            }
        }
        self.pace_by_phase(flight, base);
    }

    fn sent(&mut self, bytes: u64, now: Instant) -> bool {
        let is_longest = self.packet.take(bytes);
        let Some(retreat) = self.retreat_mut() else { return is_longest };
        if let Some(rate) = retreat.sent(bytes, now) {
            self.rate = Some(rate);
        }
        true
    }

    fn set_scavenger(&mut self, is_scavenger: bool, now: Instant) {
        // Each flow of a company says so.
        if is_scavenger == std::mem::replace(&mut self.is_scavenger, is_scavenger) {
            return;
        }
        if let Some(far) = &mut self.far {
            far.retreat = None;
        }
        if self.phase == Phase::Cruise {
            self.begin_climb(Climb::new(self.gait(), 0.0, now));
        }
    }

    fn set_beside_urgent(&mut self, is_beside: bool, flight: &Flight, now: Instant) {
        if is_beside == std::mem::replace(&mut self.is_beside_urgent, is_beside) {
            return;
        }
        if self.phase == Phase::Cruise {
            if let (true, Some(base)) = (is_beside, flight.shortest()) {
                let queue = flight.queue().unwrap_or_default();
                let fits = base.max(SHORTEST).div_duration_f64(base.max(SHORTEST) + queue);
                self.window = (self.window * fits).max(LEAST_WINDOW);
            }
            self.begin_climb(Climb::new(self.gait(), 0.0, now));
        }
    }

    fn set_lateness(&mut self, allowance: Duration) {
        self.allowance = allowance.as_secs_f64();
    }

    fn notified(&mut self, flight: &Flight, now: Instant) {
        let is_first = !self.was_cut && flight.shortest().is_some_and(|base| base < NEAR);
        let share = if is_first { NEAR_FIRST } else { notices::LEFT };
        let Some(left) = self.notices.cut(self.window, share, flight, now) else { return };
        self.window = left.max(LEAST_WINDOW);
        self.was_cut = true;
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
        (self.window + self.beside_window()) as u64
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
    fn what_stands_in_a_queue_goes_when_urgent_messages_begin_and_less_may_stand_there() {
        let (mut flight, ms) = (Flight::default(), Duration::from_millis);
        for round_trip in [30, 33].map(ms) {
            let sample = Sample { sent_at: Instant::ZERO, round_trip, delay: ms(0), path: 0, is_marked: false };
            flight.take(&Progress { sample: Some(sample), ..Progress::default() }, 0, Instant::ZERO + round_trip);
        }
        let mut steady = Steady { window: 1.1e6, phase: Phase::Cruise, ..Steady::default() };
        let usual = steady.target(ms(30));
        steady.set_beside_urgent(true, &flight, Instant::ZERO + ms(40));
        assert!((0.9999e6..1.0001e6).contains(&steady.window), "{steady:?}");
        assert!(steady.target(ms(30)) == CALM_LEAST && usual > 1.9 * CALM_LEAST, "{usual}");
        assert!((0.0049..0.0051).contains(&(steady.target(ms(100)) / 0.1)));
        steady.set_beside_urgent(false, &flight, Instant::ZERO + ms(50));
        assert!((0.9999e6..1.0001e6).contains(&steady.window) && steady.target(ms(30)) == usual, "{steady:?}");
    }

    /// Else 64 new flows send 64 windows at once again each time that nothing of the first ones arrived.
    #[test]
    fn who_has_heard_of_nothing_and_sends_again_begins_with_two_packets() {
        let (mut steady, mut flight) = (Steady::default(), Flight::default());
        let mut after = |progress: Progress| {
            flight.take(&progress, 0, Instant::ZERO);
            steady.take(&progress, &flight, Instant::ZERO);
            steady.window_bytes()
        };
        assert_eq!(after(Progress { lost_bytes: FRAME, ..Progress::default() }), FIRST_WINDOW as u64, "a NAK");
        assert_eq!(after(Progress { forgotten_bytes: FRAME, ..Progress::default() }), LEAST_WINDOW as u64);
    }

    /// A probe keeps to a quarter of the window, and afterwards a start goes on as before.
    #[test]
    fn a_start_that_loses_by_chance_goes_on_after_a_probe() {
        let ms = Duration::from_millis;
        let (mut flight, mut steady) = (Flight::default(), Steady::default());
        let mut windows = Vec::new();
        for number in 1..200 {
            let sent_at = Instant::from_ns(number * 2_000_000);
            let sample = Sample { sent_at, round_trip: ms(20), delay: ms(0), path: 0, is_marked: false };
            let progress =
                Progress { delivered_bytes: 100, lost_bytes: 400, sample: Some(sample), ..Progress::default() };
            flight.take(&progress, 0, sent_at + ms(20));
            steady.take(&progress, &flight, sent_at + ms(20));
            windows.push(steady.window_bytes());
        }
        // Of what is lost by then, 20 KB, no flood is known.
        let before = windows.iter().position(|window| *window < FIRST_FAR as u64).expect("a probe");
        assert_eq!(windows[before], FIRST_FAR as u64 / 4);
        assert_eq!(windows.iter().filter(|window| **window < FIRST_FAR as u64).count(), 20, "two round trips");
        assert_eq!((windows.last(), steady.phase), (Some(&(FIRST_FAR as u64)), Phase::Trains));
    }

    #[test]
    fn the_target_goes_with_the_root_of_the_round_trip_below_4_and_beyond_20_ms() {
        let steady = Steady::default();
        let of = |us: u64| (steady.target(Duration::from_micros(us)) * 1e6).round();
        assert_eq!([600, 1000, 4000, 20_000, 80_000].map(of), [155.0, 200.0, 400.0, 400.0, 800.0]);
    }

    #[test]
    fn what_the_rate_decides_is_not_sure_to_arrive_except_alone_or_on_a_late_host() {
        let ms = Duration::from_millis;
        let mut steady = Steady { window: 1e6, phase: Phase::Cruise, line: 1.25e9, ..Steady::default() };
        steady.sent(FRAME, Instant::ZERO);
        assert_eq!(steady.unreported(ms(20)), 20_000.0, "a 50th of the window");
        steady.window = 1e7;
        assert_eq!(steady.unreported(ms(20)), 13.0 * FRAME as f64);
        steady.window = 2e7;
        assert_eq!(steady.unreported(ms(20)), 0.0, "most of the 25 MB that the line has");
        assert!(steady.unreported(ms(40)) > 0.0, "not of 50 MB");
        steady.set_lateness(Duration::from_millis(3));
        assert_eq!(steady.unreported(ms(40)), 0.0, "a late host");
        let unknown = Steady { window: 1e7, packet: steady.packet, ..Steady::default() };
        assert_eq!(unknown.unreported(ms(40)), 0.0, "nobody knows the line");
    }

    /// Else the packets of a report go together, and stand in a queue that hides the window's own; but a fair window shows in a
    /// queue that follows the window at once.
    #[test]
    fn packets_go_evenly_over_a_slow_line_that_a_flow_has_for_itself() {
        let ms = Duration::from_millis;
        let alone = || {
            let mut steady = Steady { window: 1.2e6, phase: Phase::Cruise, line: 62.5e6, ..Steady::default() };
            steady.sent(FRAME, Instant::ZERO);
            steady
        };
        let is_even = |change: fn(&mut Steady)| {
            let mut steady = alone();
            change(&mut steady);
            steady.goes_evenly(ms(20))
        };
        assert!(is_even(|_| ()));
        assert!(!is_even(|steady| steady.window = 0.7e6), "of 1.25 MB");
        assert!(!is_even(|steady| (steady.window, steady.line) = (24e6, 1.25e9)), "of a fast line");
        assert!(!is_even(|steady| steady.line = f64::INFINITY), "of one that nobody knows");
        assert!(!is_even(|steady| steady.is_beside_urgent = true) && !is_even(|steady| steady.is_scavenger = true));
        assert!(!is_even(|steady| steady.set_lateness(Duration::from_millis(2))), "on a late host");
        assert!(is_even(|steady| steady.set_lateness(Duration::from_millis(1))));
        let (mut steady, mut flight) = (alone(), Flight::default());
        let sample = Sample { sent_at: Instant::ZERO, round_trip: ms(20), delay: ms(0), path: 0, is_marked: false };
        let progress = Progress { delivered_bytes: FRAME, sample: Some(sample), ..Progress::default() };
        flight.take(&progress, FRAME, Instant::ZERO + ms(20));
        steady.take(&progress, &flight, Instant::ZERO + ms(20));
        let grows_by = steady.far.as_ref().unwrap().climb.grows_by();
        let rate = steady.rate().unwrap().bytes() as f64;
        assert!((0.999..1.001).contains(&(rate * 0.02 / (steady.window + grows_by))), "{rate}");
        assert_eq!(steady.window_bytes(), (1.01 * steady.window) as u64 + 13 * FRAME);
    }

    /// Else its own delays, which look like a queue, leave a line of 2 ms idle for 4 % of the time.
    #[test]
    fn a_host_that_falls_behind_is_bounded_by_its_window_alone() {
        let us = Duration::from_micros;
        let rate = |allowance: Duration, is_beside_urgent: bool| {
            let mut flight = Flight::default();
            let mut steady = Steady { window: 1e6, phase: Phase::Cruise, is_beside_urgent, ..Steady::default() };
            steady.set_lateness(allowance);
            for (number, round_trip) in [2000, 2500].map(us).into_iter().enumerate() {
                let sent_at = Instant::from_ns(number as u64 * 5_000_000);
                let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
                let progress = Progress { delivered_bytes: FRAME, sample: Some(sample), ..Progress::default() };
                flight.take(&progress, FRAME, sent_at + round_trip);
                steady.take(&progress, &flight, sent_at + round_trip);
            }
            let grows_by = steady.far.as_ref().unwrap().climb.grows_by();
            let paced = if is_beside_urgent { steady.window * CALM_PACE } else { steady.window * PACE + grows_by };
            (paced, steady.rate().unwrap().bytes() as f64)
        };
        for (allowance, is_beside_urgent, takes) in
            [(us(0), false, 2500e-6), (us(249), false, 2500e-6), (us(250), false, 2000e-6), (us(250), true, 2500e-6)]
        {
            let (window, rate) = rate(allowance, is_beside_urgent);
            assert!((0.999..1.001).contains(&(rate * takes / window)), "{allowance:?} {is_beside_urgent}: {rate}");
        }
        let mut steady = Steady { line: 37.5e6, ..Steady::default() };
        let usual = steady.target(us(2000));
        steady.set_lateness(us(250));
        assert_eq!(steady.target(us(2000)), 2.0 * usual);
        assert_eq!(steady.target(us(4000)), steady.usual_target(us(4000)), "it may catch up for that");
    }

    /// Else it stands in a queue, which makes the window smaller after each pause of a flow that is alone.
    #[test]
    fn the_first_window_after_a_pause_goes_in_a_round_trip_and_others_faster() {
        let ms = Duration::from_millis;
        let (mut flight, now) = (Flight::default(), Instant::from_ns(20_000_000));
        let mut steady = Steady { window: 1e6, phase: Phase::Cruise, ..Steady::default() };
        let mut rate = |in_flight_bytes: u64| {
            let sample = Sample { sent_at: now, round_trip: ms(20), delay: ms(0), path: 0, is_marked: false };
            let progress = Progress { delivered_bytes: FRAME, sample: Some(sample), ..Progress::default() };
            flight.take(&progress, in_flight_bytes, now + ms(20));
            steady.take(&progress, &flight, now + ms(20));
            steady.rate().unwrap().bytes() as f64 / 50e6
        };
        let of_window = [FRAME, 0, FRAME].map(|in_flight_bytes| (rate(in_flight_bytes) * 100.0).round());
        assert_eq!(of_window, [105.0, 100.0, 105.0], "percent of a window in a round trip");
    }

    /// A start on a host that is late by so much, which hears of packets in intervals of a fifth of a round trip, and of a queue
    /// that becomes longer. Returns the number of the sample that ends it, of which the second is the last without a queue.
    fn end_of_start(late: Duration) -> Option<u64> {
        let (mut flight, ms) = (Flight::default(), Duration::from_millis);
        let mut steady = Steady { window: 1.1e6, phase: Phase::Ramp(37e6), ..Steady::default() };
        steady.set_lateness(late);
        (1..20).find(|number: &u64| {
            let sent_at = Instant::from_ns(number * 6_000_000);
            let round_trip = ms(30 + number.saturating_sub(2));
            let sample = Sample { sent_at, round_trip, delay: ms(0), path: 0, is_marked: false };
            let progress = Progress { delivered_bytes: 13 * FRAME, sample: Some(sample), ..Progress::default() };
            flight.take(&progress, 1_000_000, sent_at + round_trip);
            steady.take(&progress, &flight, sent_at + round_trip);
            steady.phase == Phase::Cruise
        })
    }

    /// Else flows that share a line with a deep buffer fill it: each hears of one in so many of its packets.
    #[test]
    fn a_start_ends_at_a_queue_that_is_heard_of_seldom() {
        assert_eq!(end_of_start(Duration::from_micros(50)), Some(5), "at the third that stood in a queue");
    }

    /// Else the start ends at the first pauses, and the window climbs for a hundred round trips.
    #[test]
    fn a_start_of_a_late_host_ends_at_a_queue_that_lasts_for_a_round_trip() {
        // From the third sample until a round trip later each is apart from the one before, and then three are needed.
        assert_eq!(end_of_start(Duration::from_millis(3)), Some(9));
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
        pass(&mut steady, &mut flight, 1, Duration::ZERO, true);
        assert_eq!(steady.window_bytes(), 128 * FRAME, "the first takes what was too much for some round trips");
        // From then on they count once in 100 µs.
        pass(&mut steady, &mut flight, 2, Duration::ZERO, true);
        let marked = steady.window_bytes();
        assert!((112 * FRAME..=114 * FRAME).contains(&marked), "an eighth less: {marked}");
        pass(&mut steady, &mut flight, 1, Duration::ZERO, false);
        assert_eq!(steady.window_bytes(), marked + marked / 160, "a tenth of 500 µs");
    }
}

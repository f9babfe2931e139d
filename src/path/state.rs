use std::fmt;

use arrayvec::ArrayVec;

use crate::recovery::RoundTrip;
use crate::time::{Duration, Instant};

/// The state of one path.
#[derive(Debug)]
pub(super) struct State {
    pub condition: PathCondition,
    /// The round trip as probes measure it.
    pub round_trip: RoundTrip,
    /// Probes in flight, oldest first: token and send time.
    probes: ArrayVec<(u32, Instant), PROBES_MAX>,
    /// When the next probe is due.
    pub probe_at: Instant,
    /// While dark: the interval from the latest probe to the next.
    pause: Duration,
    /// The latest send time of anything on the path that is known to have arrived, and the time at which that became
    /// known.
    alive_at: Instant,
    heard_at: Instant,
}

/// Whether a path carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathCondition {
    /// There is no next hop: the path is not even probed.
    Closed,
    /// Nothing is known of it yet, or it loses everything: it carries probes only.
    Dark,
    /// It carries packets.
    Good,
}

impl fmt::Display for PathCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathCondition::Closed => "closed",
            PathCondition::Dark => "dark",
            PathCondition::Good => "good",
        })
    }
}

/// How a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Whether it carries packets.
    pub condition: PathCondition,
    /// Its smoothed round trip, as probes measure it; `None` before the first.
    pub round_trip: Option<Duration>,
}

/// Upper bound on the probes in flight: twice those of a round trip.
const PROBES_MAX: usize = 16;

/// Probes of a good path in a round trip. Packets sent on a dark path until that is noticed are lost.
const PROBES_A_ROUND_TRIP: u32 = 8;

/// The minimum interval between two probes of a path.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The maximum interval, unless the round trip is longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Unanswered probes in a row after which a path is dark: one can be lost by chance.
const UNANSWERED_MAX: usize = 3;

/// Silence of a dark path, in intervals between probes. A good path answers every probe, even if later and later.
const QUIET_INTERVALS: u32 = 2;

/// Allowance for a host's answer, where an eighth of the round trip is less.
const ANSWERED_LATE: Duration = Duration::from_millis(1);

impl State {
    pub fn new(condition: PathCondition) -> State {
        State {
            condition,
            round_trip: RoundTrip::default(),
            probes: ArrayVec::new(),
            probe_at: Instant::ZERO,
            pause: PAUSE_MIN,
            alive_at: Instant::ZERO,
            heard_at: Instant::ZERO,
        }
    }

    /// The interval between two probes of a good path; `least` is its lower bound.
    pub fn interval(&self, least: Duration) -> Duration {
        let wanted = self.round_trip.smoothed().unwrap_or_default() / PROBES_A_ROUND_TRIP;
        wanted.clamp(PAUSE_MIN, PAUSE_MAX).max(least)
    }

    /// Makes the path dark: it carries only probes, and the first is due at once.
    pub fn darken(&mut self, now: Instant) {
        self.condition = PathCondition::Dark;
        self.pause = self.first_pause();
        self.probe_at = now;
        self.probes.clear();
    }

    fn first_pause(&self) -> Duration {
        self.round_trip.smoothed().unwrap_or_default().max(PAUSE_MIN)
    }

    /// Records that a probe is due; `least` is the lower bound of the interval to the next one.
    pub fn want_probe(&mut self, now: Instant, least: Duration) {
        if self.condition == PathCondition::Good {
            self.probe_at = now + self.interval(least);
        } else {
            self.probe_at = now + self.pause.max(least);
            self.pause = (self.pause * 2).min(PAUSE_MAX.max(self.first_pause()));
        }
    }

    /// Records that a probe with `token` leaves.
    pub fn probed(&mut self, token: u32, now: Instant) {
        if self.probes.is_full() {
            self.probes.remove(0);
        }
        self.probes.push((token, now));
    }

    /// Records that the probe with `token` was answered, which the peer delayed by `delay`. Returns when it was sent;
    /// `None` when there was none.
    pub fn answered(&mut self, token: u32, delay: Duration, now: Instant) -> Option<Instant> {
        let index = self.probes.iter().position(|(other, _)| *other == token)?;
        let (_, sent) = self.probes[index];
        // Those before it were lost, or are late: they say nothing more.
        self.probes.drain(..=index);
        self.round_trip.sample((now - sent).saturating_sub(delay));
        self.alive(sent, now);
        Some(sent)
    }

    /// Records that a packet sent at `sent` arrived, which is known now.
    pub fn alive(&mut self, sent: Instant, now: Instant) {
        (self.alive_at, self.heard_at) = (self.alive_at.max(sent), now);
    }

    /// Forgets the probes in flight, whose answers do not matter.
    pub fn forget_probes(&mut self) {
        self.probes.clear();
    }

    /// When too many probes in a row are overdue, unless something is heard until then; with the time at which the last of
    /// them was sent. `None` while they are too few. `least` is the minimum interval between two probes.
    ///
    /// Never while packets on the path are still heard of: then its queue grows.
    pub fn silence(&self, least: Duration) -> Option<(Instant, Instant)> {
        let round_trip = self.round_trip.smoothed()?;
        let &(_, sent) = self.probes.iter().filter(|(_, sent)| *sent > self.alive_at).nth(UNANSWERED_MAX - 1)?;
        let overdue = sent + round_trip + (round_trip / PROBES_A_ROUND_TRIP).max(ANSWERED_LATE);
        Some((overdue.max(self.heard_at + self.interval(least) * QUIET_INTERVALS), sent))
    }
}

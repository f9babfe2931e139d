use arrayvec::ArrayVec;

use crate::recovery::RoundTrip;
use crate::time::{Duration, Instant};

/// What is known of one path.
#[derive(Debug)]
pub(super) struct State {
    pub condition: Condition,
    /// Its policy leaves it alone until then.
    pub skipped_until: Instant,
    /// By probes.
    pub round_trip: RoundTrip,
    /// Probes on their way, the oldest first.
    probes: ArrayVec<(u32, Instant), PROBES_MAX>,
    /// When the next one is due.
    pub probe_at: Instant,
    /// It is due, and was not sent yet.
    pub is_due: bool,
    /// While dark: from the latest probe to the next.
    pause: Duration,
    /// The latest time at which something was sent over it that is known to have arrived, and when that was heard.
    alive_at: Instant,
    heard_at: Instant,
}

/// Whether a path carries packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// There is no way there: it is not even probed.
    Closed,
    /// Nothing of it is known yet, or it loses everything: it is probed, and carries nothing else.
    Dark,
    Good,
}

/// Probes on their way at the most: eight a round trip, and as much again.
const PROBES_MAX: usize = 16;

/// Probes of a good path for a round trip: what was sent on a dark one meanwhile is lost.
const PROBES_A_ROUND_TRIP: u32 = 8;

/// The shortest time between two probes of a path.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest, unless the round trip is longer.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Probes in a row that stay unanswered before a path is dark: one may be lost by chance.
const UNANSWERED_MAX: usize = 3;

/// How long nothing is heard of a path that is dark, in intervals between probes: every one of them is answered by a good one, if
/// later and later.
const QUIET_INTERVALS: u32 = 2;

/// What a host takes to answer, beside an eighth of the round trip.
const ANSWERED_LATE: Duration = Duration::from_millis(1);

impl State {
    pub fn new(condition: Condition) -> State {
        State {
            condition,
            skipped_until: Instant::ZERO,
            round_trip: RoundTrip::default(),
            probes: ArrayVec::new(),
            probe_at: Instant::ZERO,
            is_due: false,
            pause: PAUSE_MIN,
            alive_at: Instant::ZERO,
            heard_at: Instant::ZERO,
        }
    }

    /// From one probe of the path, while it is good, to the next, when `least` is the shortest possible.
    pub fn interval(&self, least: Duration) -> Duration {
        let wanted = self.round_trip.smoothed().unwrap_or_default() / PROBES_A_ROUND_TRIP;
        wanted.clamp(PAUSE_MIN, PAUSE_MAX).max(least)
    }

    /// It carries nothing from now on, and is probed at once.
    pub fn darken(&mut self, now: Instant) {
        self.condition = Condition::Dark;
        self.pause = self.first_pause();
        self.probe_at = now;
        self.probes.clear();
    }

    fn first_pause(&self) -> Duration {
        self.round_trip.smoothed().unwrap_or_default().max(PAUSE_MIN)
    }

    /// A probe is due; the shortest time to the next one is `least`.
    pub fn want_probe(&mut self, now: Instant, least: Duration) {
        self.is_due = true;
        if self.condition == Condition::Good {
            self.probe_at = now + self.interval(least);
        } else {
            self.probe_at = now + self.pause.max(least);
            self.pause = (self.pause * 2).min(PAUSE_MAX.max(self.first_pause()));
        }
    }

    /// A probe with `token` leaves.
    pub fn probed(&mut self, token: u32, now: Instant) {
        self.is_due = false;
        if self.probes.is_full() {
            self.probes.remove(0);
        }
        self.probes.push((token, now));
    }

    /// The probe with `token` was answered, `delay` after it had arrived. Returns when it was sent; `None` when there was
    /// none.
    pub fn answered(&mut self, token: u32, delay: Duration, now: Instant) -> Option<Instant> {
        let index = self.probes.iter().position(|(other, _)| *other == token)?;
        let (_, sent) = self.probes[index];
        // Those before it were lost, or are late: they say nothing more.
        self.probes.drain(..=index);
        self.round_trip.sample((now - sent).saturating_sub(delay));
        self.alive(sent, now);
        Some(sent)
    }

    /// Something sent at `sent` arrived, which is heard now.
    pub fn alive(&mut self, sent: Instant, now: Instant) {
        (self.alive_at, self.heard_at) = (self.alive_at.max(sent), now);
    }

    /// Forgets the probes on their way: nobody waited for their answers.
    pub fn forget_probes(&mut self) {
        self.probes.clear();
        self.is_due = false;
    }

    /// Whether too many probes in a row are unanswered, although one that was sent later over another path, at
    /// `elsewhere`, was answered. Not while anything is heard of what went over it: then a queue on its way grows. `least` is the
    /// shortest time between two probes.
    pub fn is_silent(&self, elsewhere: Instant, least: Duration, now: Instant) -> bool {
        if now - self.heard_at < self.interval(least) * QUIET_INTERVALS {
            return false;
        }
        let Some(round_trip) = self.round_trip.smoothed() else { return false };
        let due = round_trip + (round_trip / PROBES_A_ROUND_TRIP).max(ANSWERED_LATE);
        let overdue = |&&(_, sent): &&(u32, Instant)| sent > self.alive_at && sent + due <= now && sent < elsewhere;
        self.probes.iter().filter(overdue).count() >= UNANSWERED_MAX
    }
}

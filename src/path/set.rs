use std::cmp::Reverse;

use crate::time::{Duration, Instant};
use crate::tournament::Tournament;

use super::PathMask;
use super::policy::{Feedback, PathPolicy, Policy};
use super::state::{PathCondition, PathStatus, State};

/// The paths of one connection, numbered from 0, and the policy that spreads packets over them.
///
/// ```text
///             no next hop             first answered probe
///   Closed ◄───────────────► Dark ─────────────────────────► Good
///            next hop found    ▲   fails: overdue, unanswered  │
///                              └───────────────────────────────┘
/// ```
///
/// Path 0 is good from the beginning. The others become good with the first answered probe: until then no peer has
/// shown to be there. While the connection is in use, good paths are probed eight times a round trip. So a dark path is
/// noticed even by a side whose packets are not acknowledged (READ responses, acknowledges). Dark paths are probed less
/// and less often, down to ten times a second.
#[derive(Debug)]
pub struct PathSet {
    states: Vec<State>,
    kind: PathPolicy,
    policy: Box<dyn Policy>,
    /// Paths that are not closed; those of them that carry packets, and how many these are; and those of these that their
    /// policy does not leave alone.
    open: PathMask,
    good: PathMask,
    good_count: u16,
    usable: PathMask,
    /// The shortest round trip, where any is known, and the difference between the longest and that.
    shortest: Duration,
    spread: Duration,
    /// Until when the policy leaves paths alone.
    skips: Tournament<Reverse<Instant>>,
    /// The round trips of paths that are not closed, of these once more, and of good ones.
    slowest: Tournament<Duration>,
    fastest: Tournament<Reverse<Duration>>,
    fastest_good: Tournament<Reverse<Duration>>,
    /// Probing continues until then, and for so long after the connection was used.
    in_use_until: Instant,
    linger: Duration,
    /// When the next probe is due, while in use; and when that of each path is.
    tick_at: Option<Instant>,
    ticks: Tournament<Reverse<Instant>>,
    /// When too many probes of a good path are overdue, at the earliest.
    silences: Tournament<Reverse<Instant>>,
    /// Paths whose probes are due and not sent yet, and whether there are any.
    due: PathMask,
    is_probe_due: bool,
    /// When the two latest answered probes on different paths were sent.
    answered: [(u8, Instant); 2],
    /// The path for packets that must not be late, and the next path for copies of them.
    quickest: u8,
    next_copy: u8,
}

/// A probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path to probe.
    pub path: u8,
    /// The token that the answer must return.
    pub token: u32,
}

/// What the answer to a probe shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The round trip of the probe, without the peer's delay.
    pub round_trip: Duration,
    /// Whether the path was dark, and is good from now on.
    pub is_back: bool,
}

/// Minimum interval between two probes of a connection, over all paths.
const PROBE_EVERY: Duration = Duration::from_micros(50);

/// Probing continues for as many round trips after the connection was used, and for at least the time below.
const LINGER_ROUND_TRIPS: u32 = 4;
const LINGER_MIN: Duration = Duration::from_millis(20);

impl PathSet {
    /// Upper bound on the paths: a path's number has 8 bits.
    pub const MAX: u16 = 256;

    /// A set of `count` paths, 1 to [`MAX`](Self::MAX), of which the first is good.
    pub fn new(count: u16, policy: PathPolicy) -> PathSet {
        let count = usize::from(count.clamp(1, Self::MAX));
        let condition = |path| if path == 0 { PathCondition::Good } else { PathCondition::Dark };
        let first = PathMask::from_iter([0]);
        PathSet {
            states: (0..count).map(|path| State::new(condition(path))).collect(),
            kind: policy,
            policy: policy.start(count),
            open: (0..count).map(|path| path as u8).collect(),
            good: first,
            good_count: 1,
            usable: first,
            shortest: Duration::MAX,
            spread: Duration::ZERO,
            skips: Tournament::default(),
            slowest: Tournament::default(),
            fastest: Tournament::default(),
            fastest_good: Tournament::default(),
            in_use_until: Instant::ZERO,
            linger: LINGER_MIN,
            tick_at: None,
            ticks: Tournament::default(),
            silences: Tournament::default(),
            due: PathMask::default(),
            is_probe_due: false,
            answered: [(0, Instant::ZERO); 2],
            quickest: 0,
            next_copy: 0,
        }
    }

    /// Grows the set to `count` paths, if there are fewer; the new paths are closed.
    pub fn grow(&mut self, count: u16) {
        let count = usize::from(count.min(Self::MAX));
        if count > self.states.len() {
            self.states.resize_with(count, || State::new(PathCondition::Closed));
            self.policy = self.kind.start(count);
        }
    }

    /// The number of paths, closed and dark ones included.
    pub fn count(&self) -> u16 {
        self.states.len() as u16
    }

    /// The number of paths that carry packets.
    pub fn good(&self) -> u16 {
        self.good_count
    }

    /// Whether the path carries packets.
    pub fn is_good(&self, path: u8) -> bool {
        self.good.contains(path)
    }

    /// Whether more than one path has a next hop.
    pub fn has_several(&self) -> bool {
        self.open.len() > 1
    }

    /// How the paths stand, from 0 on.
    pub fn status(&self) -> impl Iterator<Item = PathStatus> {
        let of = |state: &State| PathStatus { condition: state.condition, round_trip: state.round_trip.smoothed() };
        self.states.iter().map(of)
    }

    /// The path of the next packet.
    pub fn choose(&mut self, now: Instant) -> u8 {
        if self.states.len() == 1 {
            return 0;
        }
        while let Some(path) = self.skips.take(Reverse(now)) {
            self.usable.set(path as u8, self.is_good(path as u8));
        }
        self.policy.choose(match () {
            _ if !self.usable.is_empty() => &self.usable,
            _ if !self.good.is_empty() => &self.good,
            // Something must go somewhere, or nothing is ever heard again.
            _ => &self.open,
        })
    }

    /// The path for acknowledges: the one with the shortest round trip. It changes only for a path that is shorter by
    /// an eighth, since packets on another path overtake.
    pub fn quickest(&self) -> u8 {
        self.quickest
    }

    /// Another path for a copy of a packet on the [quickest](Self::quickest), in turn; `None` when there is only one.
    pub fn another(&mut self) -> Option<u8> {
        let mut others = self.good;
        others.set(self.quickest, false);
        let path = others.next_from(self.next_copy)?;
        self.next_copy = ((usize::from(path) + 1) % self.states.len()) as u8;
        Some(path)
    }

    /// The difference between the longest and the shortest round trip.
    pub fn spread(&self) -> Duration {
        self.spread
    }

    /// Records that a packet on the path arrived, `took` before now, for its policy.
    pub fn arrived(&mut self, path: u8, took: Duration, marked: bool, now: Instant) {
        let Some(state) = self.states.get_mut(usize::from(path)) else { return };
        state.alive(Instant::from_ns(now.as_ns().saturating_sub(took.as_nanos() as u64)), now);
        let feedback = if marked { Feedback::Marked } else { Feedback::Arrived(took, self.shortest.min(took)) };
        self.tell(path, feedback, now);
    }

    /// Records that a packet on the path was lost.
    pub fn lost(&mut self, path: u8, now: Instant) {
        self.tell(path, Feedback::Lost, now);
    }

    fn tell(&mut self, path: u8, feedback: Feedback, now: Instant) {
        if self.policy.take(path, feedback)
            && let Some(state) = self.states.get(usize::from(path))
        {
            let until = now + state.round_trip.smoothed().unwrap_or_default();
            self.skips.set(path.into(), Some(Reverse(until)));
            self.usable.set(path, false);
        }
    }

    /// Makes a good path dark, since it loses everything. Returns whether it did: the last good path stays good.
    pub fn fail(&mut self, path: u8, now: Instant) -> bool {
        if !self.is_good(path) || self.good_count == 1 {
            return false;
        }
        self.states[usize::from(path)].darken(now);
        self.policy.forget(path);
        self.note(path);
        self.tick_at = self.tick_at.map(|at| at.min(now));
        true
    }

    /// Opens the path, which is dark until a probe is answered, or closes it.
    pub fn open(&mut self, path: u8, is_open: bool, now: Instant) {
        let Some(state) = self.states.get_mut(usize::from(path)) else { return };
        match (is_open, state.condition) {
            (true, PathCondition::Closed) => {
                *state = State::new(PathCondition::Dark);
                state.probe_at = now;
                self.note(path);
                self.tick_at = self.tick_at.map(|at| at.min(now));
            }
            (false, PathCondition::Good | PathCondition::Dark) => {
                state.condition = PathCondition::Closed;
                state.forget_probes();
                self.set_due(path, false);
                self.policy.forget(path);
                self.note(path);
            }
            _ => {}
        }
    }

    /// Records that the connection is in use: probing continues.
    pub fn touch(&mut self, now: Instant) {
        if self.states.len() == 1 {
            return;
        }
        self.in_use_until = now + self.linger;
        if self.tick_at.is_none() {
            self.begin_probing(now);
        }
    }

    #[cold]
    fn begin_probing(&mut self, now: Instant) {
        // Not all at the same moment.
        let least = self.least_interval();
        for (index, state) in self.states.iter_mut().enumerate() {
            let at = match state.condition {
                PathCondition::Good => now + state.interval(least) * index as u32 / 256,
                _ => now,
            };
            state.probe_at = state.probe_at.max(at);
            let is_open = state.condition != PathCondition::Closed;
            self.ticks.set(index, is_open.then_some(Reverse(state.probe_at)));
        }
        self.tick_at = Some(now);
    }

    /// The minimum interval between two probes of one path.
    fn least_interval(&self) -> Duration {
        PROBE_EVERY * self.states.len() as u32
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        self.tick_at
    }

    fn set_due(&mut self, path: u8, is_due: bool) {
        self.due.set(path, is_due);
        self.is_probe_due = !self.due.is_empty();
    }

    /// Whether [`poll_probe`](Self::poll_probe) would return a probe.
    pub fn is_probe_due(&self) -> bool {
        self.is_probe_due
    }

    /// Handles the time `now`: probes become due, and paths with unanswered probes become dark.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.tick_at.is_none_or(|at| at > now) {
            return;
        }
        if now >= self.in_use_until {
            (self.tick_at, self.silences) = (None, Tournament::default());
            (self.due, self.is_probe_due) = (PathMask::default(), false);
            self.states.iter_mut().for_each(State::forget_probes);
            return;
        }
        let least = self.least_interval();
        self.fail_silent(least, now);
        while let Some(path) = self.ticks.take(Reverse(now)) {
            let state = &mut self.states[path];
            state.want_probe(now, least);
            self.ticks.set(path, Some(Reverse(state.probe_at)));
            self.set_due(path as u8, true);
        }
        let next = self.ticks.greatest().map_or(self.in_use_until, |Reverse(at)| at);
        self.tick_at = Some(next.min(self.in_use_until));
    }

    /// Makes paths dark of which too many probes in a row are unanswered, although one that was sent later over another
    /// path was answered.
    fn fail_silent(&mut self, least: Duration, now: Instant) {
        let overdue: PathMask =
            std::iter::from_fn(|| self.silences.take(Reverse(now)).map(|path| path as u8)).collect();
        for path in overdue.iter() {
            let [latest, second] = self.answered;
            let elsewhere = if latest.0 == path { second.1 } else { latest.1 };
            let silence = self.states[usize::from(path)].silence(least);
            let is_silent = silence.is_some_and(|(from, sent)| from <= now && sent < elsewhere);
            if !(is_silent && self.fail(path, now)) {
                self.note_silence(path);
            }
        }
    }

    /// The next probe to send, with a token from `draw`; `None` when none is due.
    pub fn poll_probe(&mut self, now: Instant, draw: impl FnOnce() -> u32) -> Option<Probe> {
        let path = self.due.first()?;
        self.set_due(path, false);
        let token = draw();
        self.states[usize::from(path)].probed(token, now);
        self.note_silence(path);
        Some(Probe { path, token })
    }

    /// Records the answer to a probe on the path, which the peer delayed by `delay`. `None` when no such probe is in
    /// flight.
    pub fn answered(&mut self, path: u8, token: u32, delay: Duration, now: Instant) -> Option<Answered> {
        let least = self.least_interval();
        let state = self.states.get_mut(usize::from(path))?;
        let sent = state.answered(token, delay, now)?;
        let round_trip = (now - sent).saturating_sub(delay);
        let is_back = state.condition == PathCondition::Dark;
        if is_back {
            state.condition = PathCondition::Good;
            state.probe_at = now + state.interval(least);
            self.skips.set(path.into(), None);
            self.usable.set(path, true);
        }
        self.note_answer(path, sent);
        self.note(path);
        Some(Answered { round_trip, is_back })
    }

    /// Keeps the send times of the latest answered probes on two different paths.
    fn note_answer(&mut self, path: u8, sent: Instant) {
        let [latest, second] = &mut self.answered;
        if latest.0 == path {
            latest.1 = latest.1.max(sent);
        } else if sent > latest.1 {
            (*second, *latest) = (*latest, (path, sent));
        } else if sent > second.1 {
            *second = (path, sent);
        }
    }

    /// Takes over how a path stands, after a change.
    fn note(&mut self, path: u8) {
        let (index, state) = (usize::from(path), &self.states[usize::from(path)]);
        let (is_open, is_good) = (state.condition != PathCondition::Closed, state.condition == PathCondition::Good);
        // Of dark ones, too: the peer may know before us that one is back.
        let round_trip = state.round_trip.smoothed().filter(|_| is_open);
        self.slowest.set(index, round_trip);
        self.fastest.set(index, round_trip.map(Reverse));
        let longest = self.slowest.greatest().unwrap_or_default();
        self.linger = (longest * LINGER_ROUND_TRIPS).max(LINGER_MIN);
        self.shortest = self.fastest.greatest().map_or(Duration::MAX, |Reverse(shortest)| shortest);
        self.spread = longest.saturating_sub(self.shortest);
        self.fastest_good.set(index, round_trip.filter(|_| is_good).map(Reverse));
        self.ticks.set(index, is_open.then_some(Reverse(state.probe_at)));
        self.open.set(path, is_open);
        self.good.set(path, is_good);
        self.good_count = self.good.len();
        self.note_silence(path);
        if !is_good {
            self.usable.set(path, false);
        }
        self.choose_quickest();
    }

    /// Computes when too many probes of the path are overdue. When it is heard of, that comes later.
    fn note_silence(&mut self, path: u8) {
        let silence = self.states[usize::from(path)].silence(self.least_interval()).filter(|_| self.is_good(path));
        self.silences.set(path.into(), silence.map(|(from, _)| Reverse(from)));
    }

    fn choose_quickest(&mut self) {
        let least = self.fastest_good.greatest().zip(self.fastest_good.winner());
        let current = Some(&self.states[usize::from(self.quickest)]).filter(|_| self.is_good(self.quickest));
        let current_takes = current.map(|state| state.round_trip.smoothed().unwrap_or(Duration::MAX));
        match (current_takes, least) {
            (Some(takes), Some((Reverse(least), path))) if least < takes / 8 * 7 => self.quickest = path as u8,
            (None, Some((_, path))) => self.quickest = path as u8,
            (None, None) => self.quickest = self.good.first().unwrap_or(self.quickest),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

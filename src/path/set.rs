use crate::time::{Duration, Instant};

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
    good: u16,
    /// Probing continues until then.
    in_use_until: Instant,
    /// When the next probe is due, while in use.
    tick_at: Option<Instant>,
    /// Probes that are due and not sent yet.
    due: u16,
    /// When the two latest answered probes on different paths were sent.
    answered: [(u8, Instant); 2],
    /// The path for packets that must not be late, and the next path for copies of them.
    quickest: u8,
    next_copy: u8,
    /// The shortest and longest round trip of paths that are not closed.
    extremes: Option<(Duration, Duration)>,
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
        PathSet {
            states: (0..count).map(|path| State::new(condition(path))).collect(),
            kind: policy,
            policy: policy.start(count),
            good: 1,
            in_use_until: Instant::ZERO,
            tick_at: None,
            due: 0,
            answered: [(0, Instant::ZERO); 2],
            quickest: 0,
            next_copy: 0,
            extremes: None,
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
        self.good
    }

    /// Whether the path carries packets.
    pub fn is_good(&self, path: u8) -> bool {
        self.state(path).is_some_and(|state| state.condition == PathCondition::Good)
    }

    /// Whether more than one path has a next hop.
    pub fn has_several(&self) -> bool {
        self.states.iter().filter(|state| state.condition != PathCondition::Closed).count() > 1
    }

    /// How the paths stand, from 0 on.
    pub fn status(&self) -> impl Iterator<Item = PathStatus> {
        let of = |state: &State| PathStatus { condition: state.condition, round_trip: state.round_trip.smoothed() };
        self.states.iter().map(of)
    }

    fn state(&self, path: u8) -> Option<&State> {
        self.states.get(usize::from(path))
    }

    /// The path of the next packet.
    pub fn choose(&mut self, now: Instant) -> u8 {
        let states = &self.states;
        if states.len() == 1 {
            return 0;
        }
        let good = |path: u8| states[usize::from(path)].condition == PathCondition::Good;
        let open = |path: u8| good(path) && states[usize::from(path)].skipped_until <= now;
        let any_open = (0..states.len()).any(|path| open(path as u8));
        if any_open {
            self.policy.choose(states.len(), &open)
        } else if self.good > 0 {
            self.policy.choose(states.len(), &good)
        } else {
            // Something must go somewhere, or nothing is ever heard again.
            self.policy.choose(states.len(), &|path| states[usize::from(path)].condition != PathCondition::Closed)
        }
    }

    /// The path for acknowledges: the one with the shortest round trip. It changes only for a path that is shorter by
    /// an eighth, since packets on another path overtake.
    pub fn quickest(&self) -> u8 {
        self.quickest
    }

    /// Another path for a copy of a packet on the [quickest](Self::quickest), in turn; `None` when there is only one.
    pub fn another(&mut self) -> Option<u8> {
        for _ in 0..self.states.len() {
            let path = self.next_copy;
            self.next_copy = ((usize::from(path) + 1) % self.states.len()) as u8;
            if path != self.quickest && self.is_good(path) {
                return Some(path);
            }
        }
        None
    }

    /// The difference between the longest and the shortest round trip.
    pub fn spread(&self) -> Duration {
        self.extremes.map_or(Duration::ZERO, |(least, greatest)| greatest - least)
    }

    /// Records that a packet on the path arrived, `took` before now, for its policy.
    pub fn arrived(&mut self, path: u8, took: Duration, marked: bool, now: Instant) {
        let least = self.extremes.map_or(took, |(least, _)| least);
        let Some(state) = self.states.get_mut(usize::from(path)) else { return };
        state.alive(Instant::from_ns(now.as_ns().saturating_sub(took.as_nanos() as u64)), now);
        let feedback = if marked { Feedback::Marked } else { Feedback::Arrived(took, least.min(took)) };
        self.tell(path, feedback, now);
    }

    /// Records that a packet on the path was lost.
    pub fn lost(&mut self, path: u8, now: Instant) {
        self.tell(path, Feedback::Lost, now);
    }

    fn tell(&mut self, path: u8, feedback: Feedback, now: Instant) {
        if self.policy.take(path, feedback)
            && let Some(state) = self.states.get_mut(usize::from(path))
        {
            state.skipped_until = now + state.round_trip.smoothed().unwrap_or_default();
        }
    }

    /// Makes a good path dark, since it loses everything. Returns whether it did: the last good path stays good.
    pub fn fail(&mut self, path: u8, now: Instant) -> bool {
        if !self.is_good(path) || self.good == 1 {
            return false;
        }
        self.states[usize::from(path)].darken(now);
        self.policy.forget(path);
        self.survey();
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
                self.tick_at = self.tick_at.map(|at| at.min(now));
            }
            (false, PathCondition::Good | PathCondition::Dark) => {
                state.condition = PathCondition::Closed;
                state.forget_probes();
                self.policy.forget(path);
                self.survey();
            }
            _ => {}
        }
    }

    /// Records that the connection is in use: probing continues.
    pub fn touch(&mut self, now: Instant) {
        if self.states.len() == 1 {
            return;
        }
        let slowest = self.extremes.map_or(Duration::ZERO, |(_, greatest)| greatest);
        self.in_use_until = now + (slowest * LINGER_ROUND_TRIPS).max(LINGER_MIN);
        if self.tick_at.is_none() {
            // Not all at the same moment.
            let least = self.least_interval();
            for (index, state) in self.states.iter_mut().enumerate() {
                let at = match state.condition {
                    PathCondition::Good => now + state.interval(least) * index as u32 / 256,
                    _ => now,
                };
                state.probe_at = state.probe_at.max(at);
            }
            self.tick_at = Some(now);
        }
    }

    /// The minimum interval between two probes of one path.
    fn least_interval(&self) -> Duration {
        PROBE_EVERY * self.states.len() as u32
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        self.tick_at
    }

    /// Whether [`poll_probe`](Self::poll_probe) would return a probe.
    pub fn is_probe_due(&self) -> bool {
        self.due > 0
    }

    /// Handles the time `now`: probes become due, and paths with unanswered probes become dark.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.tick_at.is_none_or(|at| at > now) {
            return;
        }
        if now >= self.in_use_until {
            (self.tick_at, self.due) = (None, 0);
            self.states.iter_mut().for_each(State::forget_probes);
            return;
        }
        let least = self.least_interval();
        for path in 0..self.states.len() {
            let [latest, second] = self.answered;
            let elsewhere = if usize::from(latest.0) == path { second.1 } else { latest.1 };
            let state = &self.states[path];
            if state.condition == PathCondition::Good && state.is_silent(elsewhere, least, now) {
                self.fail(path as u8, now);
            }
        }
        let open = self.states.iter_mut().filter(|state| state.condition != PathCondition::Closed);
        let mut next = self.in_use_until;
        self.due = 0;
        for state in open {
            if state.probe_at <= now {
                state.want_probe(now, least);
            }
            self.due += u16::from(state.is_due);
            next = next.min(state.probe_at);
        }
        self.tick_at = Some(next);
    }

    /// The next probe to send, with a token from `draw`; `None` when none is due.
    pub fn poll_probe(&mut self, now: Instant, draw: impl FnOnce() -> u32) -> Option<Probe> {
        let due = |state: &State| state.is_due && state.condition != PathCondition::Closed;
        let Some(path) = self.states.iter().position(due) else {
            self.due = 0;
            return None;
        };
        self.due = self.due.saturating_sub(1);
        let token = draw();
        self.states[path].probed(token, now);
        Some(Probe { path: path as u8, token })
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
            state.skipped_until = now;
            state.probe_at = now + state.interval(least);
        }
        self.note_answer(path, sent);
        self.survey();
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

    /// Computes again how many paths are good, and which is quickest.
    fn survey(&mut self) {
        let all = self.states.iter().enumerate().filter(|(_, state)| state.condition != PathCondition::Closed);
        let timed = all.clone().filter_map(|(_, state)| state.round_trip.smoothed());
        // Dark ones, too: the peer may know before us that one is back.
        self.extremes = timed.clone().min().zip(timed.max());
        let good = all.filter(|(_, state)| state.condition == PathCondition::Good);
        self.good = good.clone().count() as u16;
        let least = good.clone().filter_map(|(path, state)| Some((state.round_trip.smoothed()?, path as u8))).min();
        let current = self.state(self.quickest).filter(|state| state.condition == PathCondition::Good);
        let current_takes = current.map(|state| state.round_trip.smoothed().unwrap_or(Duration::MAX));
        match (current_takes, least) {
            (Some(takes), Some((least, path))) if least < takes / 8 * 7 => self.quickest = path,
            (None, Some((_, path))) => self.quickest = path,
            (None, None) => {
                self.quickest = good.map(|(path, _)| path as u8).next().unwrap_or(self.quickest);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

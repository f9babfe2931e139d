use crate::time::{Duration, Instant};

use super::policy::{Feedback, PathPolicy, Policy};
use super::state::{Condition, State};

/// The paths of one connection, numbered from 0, and the policy that spreads packets over them.
///
/// ```text
///             no way there            first answered probe
///   Closed ◄───────────────► Dark ─────────────────────────► Good
///            a way was found   ▲   fails: overdue, unanswered  │
///                              └───────────────────────────────┘
/// ```
///
/// Path 0 is good from the beginning; the others when a probe has come back: until then nobody has shown to be there. While the
/// connection is in use, good paths are probed eight times a round trip, so that a dark one is noticed by who has nothing
/// acknowledged to tell (READ responses, acknowledges), and dark ones less and less often, down to ten times a second.
#[derive(Debug)]
pub struct PathSet {
    states: Vec<State>,
    kind: PathPolicy,
    policy: Box<dyn Policy>,
    good: u16,
    /// Probing goes on until then.
    in_use_until: Instant,
    /// When the next probe is due, while in use.
    tick_at: Option<Instant>,
    /// Probes that are due and were not sent yet.
    due: u16,
    /// The latest times at which a probe was sent that is answered, on two different paths.
    answered: [(u8, Instant); 2],
    /// The path for what must not be late, and the next one for copies of it.
    quickest: u8,
    next_copy: u8,
    /// The least and greatest round trip of paths that are not closed.
    extremes: Option<(Duration, Duration)>,
}

/// A probe to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Over which path.
    pub path: u8,
    /// What its answer must bring.
    pub token: u32,
}

/// What the answer to a probe said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// How long it took.
    pub round_trip: Duration,
    /// The path was dark, and is good from now on.
    pub is_back: bool,
}

/// What all probes of a connection together may be: one in so much time.
const PROBE_EVERY: Duration = Duration::from_micros(50);

/// Probing goes on for so many round trips after the connection was used, and at least for so long.
const LINGER_ROUND_TRIPS: u32 = 4;
const LINGER_MIN: Duration = Duration::from_millis(20);

impl PathSet {
    /// Paths at the most: a number has 8 bits.
    pub const MAX: u16 = 256;

    /// `count` paths, 1 to [`MAX`](Self::MAX), of which the first is good.
    pub fn new(count: u16, policy: PathPolicy) -> PathSet {
        let count = usize::from(count.clamp(1, Self::MAX));
        let condition = |path| if path == 0 { Condition::Good } else { Condition::Dark };
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

    /// There are `count` from now on, if there were fewer: the new ones are closed.
    pub fn grow(&mut self, count: u16) {
        let count = usize::from(count.min(Self::MAX));
        if count > self.states.len() {
            self.states.resize_with(count, || State::new(Condition::Closed));
            self.policy = self.kind.start(count);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        self.states.len() as u16
    }

    /// How many carry packets.
    pub fn good(&self) -> u16 {
        self.good
    }

    /// Whether the path carries packets.
    pub fn is_good(&self, path: u8) -> bool {
        self.state(path).is_some_and(|state| state.condition == Condition::Good)
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
        let good = |path: u8| states[usize::from(path)].condition == Condition::Good;
        let open = |path: u8| good(path) && states[usize::from(path)].skipped_until <= now;
        let any_open = (0..states.len()).any(|path| open(path as u8));
        if any_open {
            self.policy.choose(states.len(), &open)
        } else if self.good > 0 {
            self.policy.choose(states.len(), &good)
        } else {
            // Something must go somewhere, or nothing is ever heard again.
            self.policy.choose(states.len(), &|path| states[usize::from(path)].condition != Condition::Closed)
        }
    }

    /// The path for acknowledges: the quickest one. It only changes for one that is quicker by an eighth, since what goes
    /// over another path overtakes.
    pub fn quickest(&self) -> u8 {
        self.quickest
    }

    /// Another path for a copy of what goes over the [quickest](Self::quickest), in turn; `None` when there is only one.
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

    /// By how much the round trips of paths differ.
    pub fn spread(&self) -> Duration {
        self.extremes.map_or(Duration::ZERO, |(least, greatest)| greatest - least)
    }

    /// A packet that went over the path arrived, `took` before now: its policy learns of it.
    pub fn arrived(&mut self, path: u8, took: Duration, marked: bool, now: Instant) {
        let least = self.extremes.map_or(took, |(least, _)| least);
        let Some(state) = self.states.get_mut(usize::from(path)) else { return };
        state.alive(Instant::from_ns(now.as_ns().saturating_sub(took.as_nanos() as u64)), now);
        let feedback = if marked { Feedback::Marked } else { Feedback::Arrived(took, least.min(took)) };
        self.tell(path, feedback, now);
    }

    /// A packet that went over the path was lost.
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

    /// The path loses everything. Returns whether it carried packets until now; the last one always does.
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

    /// There is a way for the path, which is dark until a probe has come back; or there is none.
    pub fn open(&mut self, path: u8, is_open: bool, now: Instant) {
        let Some(state) = self.states.get_mut(usize::from(path)) else { return };
        match (is_open, state.condition) {
            (true, Condition::Closed) => {
                *state = State::new(Condition::Dark);
                state.probe_at = now;
                self.tick_at = self.tick_at.map(|at| at.min(now));
            }
            (false, Condition::Good | Condition::Dark) => {
                state.condition = Condition::Closed;
                state.forget_probes();
                self.policy.forget(path);
                self.survey();
            }
            _ => {}
        }
    }

    /// The connection is in use: probing goes on.
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
                    Condition::Good => now + state.interval(least) * index as u32 / 256,
                    _ => now,
                };
                state.probe_at = state.probe_at.max(at);
            }
            self.tick_at = Some(now);
        }
    }

    /// The shortest time between two probes of one path.
    fn least_interval(&self) -> Duration {
        PROBE_EVERY * self.states.len() as u32
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.tick_at
    }

    /// Whether [`poll_probe`](Self::poll_probe) has one.
    pub fn is_probe_due(&self) -> bool {
        self.due > 0
    }

    /// Time has passed: probes become due, and paths whose probes stay unanswered dark.
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
            if state.condition == Condition::Good && state.is_silent(elsewhere, least, now) {
                self.fail(path as u8, now);
            }
        }
        let open = self.states.iter_mut().filter(|state| state.condition != Condition::Closed);
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

    /// The next probe to be sent, with a token that `draw` gives.
    pub fn poll_probe(&mut self, now: Instant, draw: impl FnOnce() -> u32) -> Option<Probe> {
        let due = |state: &State| state.is_due && state.condition != Condition::Closed;
        let Some(path) = self.states.iter().position(due) else {
            self.due = 0;
            return None;
        };
        self.due = self.due.saturating_sub(1);
        let token = draw();
        self.states[path].probed(token, now);
        Some(Probe { path: path as u8, token })
    }

    /// A probe on the path was answered, `delay` after it had arrived. `None` when no such probe is on its way.
    pub fn answered(&mut self, path: u8, token: u32, delay: Duration, now: Instant) -> Option<Answered> {
        let least = self.least_interval();
        let state = self.states.get_mut(usize::from(path))?;
        let sent = state.answered(token, delay, now)?;
        let round_trip = (now - sent).saturating_sub(delay);
        let is_back = state.condition == Condition::Dark;
        if is_back {
            state.condition = Condition::Good;
            state.skipped_until = now;
            state.probe_at = now + state.interval(least);
        }
        self.note_answer(path, sent);
        self.survey();
        Some(Answered { round_trip, is_back })
    }

    /// Keeps the latest answered probes of two different paths.
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

    /// Looks at all paths again: how many are good, how quick they are.
    fn survey(&mut self) {
        let all = self.states.iter().enumerate().filter(|(_, state)| state.condition != Condition::Closed);
        let timed = all.clone().filter_map(|(_, state)| state.round_trip.smoothed());
        // Dark ones, too: the peer may know before us that one is back.
        self.extremes = timed.clone().min().zip(timed.max());
        let good = all.filter(|(_, state)| state.condition == Condition::Good);
        self.good = good.clone().count() as u16;
        let least = good.clone().filter_map(|(path, state)| Some((state.round_trip.smoothed()?, path as u8))).min();
        let current = self.state(self.quickest).filter(|state| state.condition == Condition::Good);
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

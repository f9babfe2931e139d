use crate::time::{Duration, Instant};

use super::cubic_window::CubicWindow;
use super::losses::Losses;
use super::{Flight, Progress, moments};

/// Competes with flows that fill a deep buffer, as TCP's do: who keeps the queue short beside them has nothing.
///
/// A queue that lasts is looked into by a [`Trial`]. If others fill it, the window is that of CUBIC, with two differences. Who has
/// less than half of the line yields less at a loss. And who sees that others do not yield does so less, too: BBR's flows go on
/// as before.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// The next moment at which is looked whether others fill the buffer; how many looks in a row have found that they do; and how
    /// many trials have found that they do not, and were in vain.
    next: Instant,
    found: u32,
    in_vain: u32,
    /// Trials in a row of a small window after which the queue was still there.
    doubted: u32,
    /// The least queue since the moment before.
    least: Option<Duration>,
    round: Round,
    trial: Option<Trial>,
    entered: Option<Box<Entered>>,
}

/// What is known at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub progress: &'a Progress,
    pub flight: &'a Flight,
    /// The round trip without queues, and the delay in queues now.
    pub base: Duration,
    pub queue: Duration,
    /// The rate of the bottleneck, in bytes a second; infinite while nobody knows it.
    pub line: f64,
    /// The share of packets that is lost by chance.
    pub chance: f64,
    /// By how much this host is late: so long can delays be its own.
    pub late: Duration,
    /// The window, in bytes, and whether it has few packets.
    pub window: f64,
    pub is_small: bool,
    pub now: Instant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Turn {
    /// To keep the queue short.
    None,
    /// To keep to so many bytes.
    Keep(f64),
    /// To go on with what fits, in bytes: nobody else fills the buffer.
    Over(f64),
}

/// A round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    began: Instant,
    losses: Losses,
    /// What arrived in the round before, and at most lately, in bytes a second.
    arriving: f64,
    fastest: f64,
    /// The share that was lost in the latest rounds.
    lost: f64,
}

/// Half of the window for two round trips: if the queue goes, it is that of flows like this one, all of which try at the same
/// moments by the clock.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Packets that are sent from then on tell of it, and until when.
    from: Instant,
    until: Instant,
    window: f64,
    /// The queue before, and the least one since.
    queue: Duration,
    least: Option<Duration>,
}

/// A contest under way.
#[derive(Debug)]
struct Entered {
    window: CubicWindow,
    /// Whether nothing has been lost yet: the window goes to a fair one.
    is_catching_up: bool,
    /// Losses before this are of the loss that is known.
    recovers_until: Instant,
    /// The longest queue.
    deepest: Duration,
    /// What others have in flight since the latest loss.
    others: Option<Others>,
    /// The part of a loss by which others yield, 0 to 1, as the latest ones have shown.
    others_yield: f64,
}

/// What others have in flight, in bytes: at a loss, and at most from some moment until another one.
#[derive(Clone, Copy, Debug)]
struct Others {
    before: f64,
    from: Instant,
    until: Instant,
    most: f64,
}

/// The powers of two by which the time between two looks is longer while others fill the buffer.
const FIRST_FOUND: u32 = 2;
const MOST_FOUND: u32 = 5;

/// Trials in vain after which the time between two does not become longer.
const MOST_IN_VAIN: u32 = 4;

/// Trials that it takes for a window of few packets: of many such flows not all have seen the round trip without a queue, and so
/// they do not try together until earlier trials have shown it to them.
const DOUBTED: u32 = 3;

/// The part of a round trip that is a queue which others fill.
const FILLED: u32 = 8;

/// The part of a line that is fair beside one other flow.
const FAIR: f64 = 0.5;

/// The part of the way to it that is gone in a round trip, until something is lost.
const CATCH_UP: f64 = 1.0 / 16.0;

/// It goes on beside others that yield by less than this part, while less than this share is lost.
const STUBBORN: f64 = 0.3;
const CATCH_UP_LOST: f64 = 0.02;

/// The part of the longest queue at which a loss tells of a full buffer.
const FULL: f64 = 0.75;

/// The most that is taken for chance: who came into a full buffer took its losses for that.
const CHANCE_MAX: f64 = 0.02;

/// The round trips after a loss in which the most that others have in flight tells whether they have yielded: before, all of
/// them wait for what was lost.
const YIELDS_FROM: u32 = 2;
const YIELDS_UNTIL: u32 = 6;

/// What a loss counts at least, however little others yield, and what is left of a window at least.
const YIELD_MIN: f64 = 0.2;
const CUT_MAX: f64 = 0.5;

/// Rounds over which the share of losses is averaged, and what arrived is forgotten.
const FORGETS: f64 = 8.0;

impl Round {
    /// The round that follows at `now`.
    fn next(&self, flight: &Flight, now: Instant) -> Round {
        let (delivered, lost) = self.losses.since(flight);
        let share = lost as f64 / (delivered + lost).max(1) as f64;
        let arriving = delivered as f64 / now.saturating_since(self.began).as_secs_f64();
        Round {
            began: now,
            losses: Losses::until(flight),
            arriving,
            fastest: arriving.max(self.fastest * (1.0 - 1.0 / FORGETS)),
            lost: self.lost + (share - self.lost) / FORGETS,
        }
    }
}

impl View<'_> {
    fn smoothed(&self) -> Duration {
        self.flight.smoothed().unwrap_or_default()
    }

    /// What all have in flight, in bytes.
    fn in_flight(&self) -> f64 {
        self.line * (self.base + self.queue).as_secs_f64()
    }
}

impl Contest {
    /// Ends it, whatever others do.
    pub fn leave(&mut self) {
        *self = Contest { in_vain: self.in_vain, ..Contest::default() };
    }

    /// Takes what became of packets on a long way.
    pub fn take(&mut self, view: &View<'_>) -> Turn {
        let View { flight, queue, now, .. } = *view;
        if self.next == Instant::ZERO {
            self.round = Round { began: now, losses: Losses::until(flight), ..Round::default() };
            self.wait(view);
        }
        self.least = [self.least, Some(queue)].into_iter().flatten().min();
        if let Some(turn) = self.take_trial(view) {
            return turn;
        }
        if let Some(entered) = &mut self.entered {
            entered.take(view, &self.round);
        }
        if now.saturating_since(self.round.began) >= view.smoothed() {
            self.round = self.round.next(flight, now);
        }
        let window = self.entered.as_ref().map(|entered| entered.bytes());
        if now >= self.next {
            let is_filled = self.least.take().is_some_and(|least| least > view.base / FILLED + view.late);
            if !is_filled {
                (self.in_vain, self.doubted) = (self.in_vain.saturating_sub(1), 0);
            }
            self.wait(view);
            if window.is_some() || is_filled {
                let (from, until) = (now + view.smoothed(), now + view.smoothed() * 2);
                let window = window.unwrap_or(view.window);
                self.trial = Some(Trial { from, until, window, queue, least: None });
                return Turn::Keep(window / 2.0);
            }
        }
        window.map_or(Turn::None, Turn::Keep)
    }

    /// Goes on with a trial, if there is one.
    fn take_trial(&mut self, view: &View<'_>) -> Option<Turn> {
        let trial = self.trial.as_mut()?;
        trial.least = [trial.least, view.flight.queue_since(trial.from)].into_iter().flatten().min();
        let (Some(least), true) = (trial.least, view.now >= trial.until) else {
            return Some(Turn::Keep(trial.window / 2.0));
        };
        let trial = *trial;
        (self.trial, self.least) = (None, None);
        self.round = Round { began: view.now, losses: Losses::until(view.flight), ..self.round };
        // Half of all that was in flight is left, if all of that was of flows like this one.
        let left = trial.queue.saturating_sub(view.base) / 2;
        if least <= left + trial.queue / FILLED {
            (self.found, self.doubted, self.entered) = (0, 0, None);
            self.in_vain = (self.in_vain + 1).min(MOST_IN_VAIN);
            self.wait(view);
            return Some(Turn::Over((self.round.fastest * view.base.as_secs_f64()).min(trial.window)));
        }
        self.doubted += 1;
        if self.entered.is_none() && view.is_small && self.doubted < DOUBTED {
            self.wait(view);
            return Some(Turn::Over(trial.window));
        }
        self.found = (self.found + 1).clamp(FIRST_FOUND, MOST_FOUND);
        self.in_vain = 0;
        self.wait(view);
        let entered = self.entered.get_or_insert_with(|| Box::new(Entered::new(trial.window, view.now)));
        // What the trial has changed is neither a loss nor growth.
        entered.recovers_until = view.now + view.smoothed();
        Some(Turn::Keep(trial.window))
    }

    /// Waits for the next moment.
    fn wait(&mut self, view: &View<'_>) {
        self.next = moments::next(view.base, self.found + self.in_vain, view.now);
    }
}

impl Entered {
    /// A contest that begins with a window of so many bytes.
    fn new(window: f64, now: Instant) -> Entered {
        Entered {
            window: CubicWindow::new(window / CubicWindow::SEGMENT),
            is_catching_up: true,
            recovers_until: now,
            deepest: Duration::ZERO,
            others: None,
            others_yield: 1.0,
        }
    }

    fn bytes(&self) -> f64 {
        self.window.packets() * CubicWindow::SEGMENT
    }

    fn take(&mut self, view: &View<'_>, round: &Round) {
        self.deepest = self.deepest.max(view.queue);
        self.look_at_others(view.in_flight() - self.bytes(), view.now);
        let chance = view.chance.min(CHANCE_MAX);
        let (delivered, lost) = round.losses.since(view.flight);
        let usual = chance * (delivered + lost) as f64;
        let is_loss =
            view.progress.lost_bytes > 0 && lost as f64 > 2.0 * (usual + (usual * CubicWindow::SEGMENT).sqrt());
        let is_full = view.queue.as_secs_f64() >= FULL * self.deepest.as_secs_f64();
        let excess = round.lost - chance;
        let is_known = view.now < self.recovers_until;
        if is_loss && is_full && !is_known {
            self.lose(view, (round.arriving / view.line / FAIR).min(1.0), excess);
            return;
        }
        let in_flight = view.flight.in_flight_bytes() + view.progress.delivered_bytes;
        if !is_known && in_flight as f64 > 0.5 * self.bytes() {
            self.grow(view, excess);
        }
    }

    /// Takes what others have in flight now, in bytes.
    fn look_at_others(&mut self, others: f64, now: Instant) {
        let Some(since) = self.others.as_mut().filter(|since| now >= since.from) else { return };
        since.most = since.most.max(others);
        if now >= since.until {
            let yielded = (1.0 - since.most / since.before) / (1.0 - CubicWindow::BETA);
            self.others_yield += (yielded.clamp(0.0, 1.0) - self.others_yield) / 2.0;
            self.others = None;
        }
    }

    /// Yields at a loss, as one that has this share of what is fair; where the buffer is always full, by as much as is lost.
    fn lose(&mut self, view: &View<'_>, share: f64, excess: f64) {
        // Of a line that nobody knows it counts as all.
        let share = if view.line.is_finite() { share } else { 1.0 };
        let cut = (1.0 - CubicWindow::BETA) * share * self.others_yield.max(YIELD_MIN);
        let before = view.in_flight() - self.bytes();
        if before > 0.0 && before.is_finite() && self.others.is_none() {
            let [from, until] = [YIELDS_FROM, YIELDS_UNTIL].map(|rounds| view.now + view.smoothed() * rounds);
            self.others = Some(Others { before, from, until, most: 0.0 });
        }
        self.window.lose(self.window.packets() * (1.0 - cut.max(excess).min(CUT_MAX)));
        self.is_catching_up = false;
        self.recovers_until = view.now + view.smoothed();
    }

    /// Grows by what arrived: to a fair window at once while others have not yielded for it, and else as CUBIC does.
    fn grow(&mut self, view: &View<'_>, excess: f64) {
        let stubborn = (1.0 - self.others_yield / STUBBORN).max(0.0) * (1.0 - excess / CATCH_UP_LOST).clamp(0.0, 1.0);
        let gain = if self.is_catching_up { CATCH_UP } else { CATCH_UP * stubborn };
        let fair = FAIR * view.in_flight() / CubicWindow::SEGMENT;
        let segments = view.progress.delivered_bytes as f64 / CubicWindow::SEGMENT;
        let more = (fair - self.window.packets()) * gain * segments / self.window.packets();
        if fair.is_finite() && more > 0.0 {
            self.window.set(self.window.packets() + more);
        } else {
            self.window.grow(segments, view.smoothed(), view.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    const BASE: Duration = Duration::from_millis(20);
    /// Bytes a second, and in a round trip without queues.
    const LINE: f64 = 12.5e6;
    const FITS: f64 = 250e3;

    /// A line with a queue of which others have `others` bytes in flight.
    struct Line {
        contest: Contest,
        flight: Flight,
        window: f64,
        others: f64,
        now: Instant,
        /// The queues of the latest milliseconds: packets tell of that when they were sent.
        queues: Vec<f64>,
    }

    impl Line {
        fn new(window: f64, others: f64) -> Line {
            let now = Instant::from_ns(1_000_000_000);
            Line { contest: Contest::default(), flight: Flight::default(), window, others, now, queues: Vec::new() }
        }

        /// A millisecond, in which so many bytes are lost.
        fn pass(&mut self, lost_bytes: u64) -> Turn {
            self.now = self.now + Duration::from_millis(1);
            self.queues.push((self.window + self.others - FITS).max(0.0) / LINE);
            let sent = self.queues.len().saturating_sub(1 + BASE.as_millis() as usize);
            let queue = self.queues[sent];
            let round_trip = if sent == 0 { BASE } else { BASE + Duration::from_secs_f64(queue) };
            let sent_at = Instant::from_ns(self.now.as_ns() - round_trip.as_nanos() as u64);
            let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
            let delivered_bytes = (self.window / round_trip.as_secs_f64() / 1000.0) as u64;
            let progress = Progress { delivered_bytes, lost_bytes, sample: Some(sample), ..Progress::default() };
            self.flight.take(&progress, self.window as u64, self.now);
            let (flight, now, window) = (&self.flight, self.now, self.window);
            let view = View {
                progress: &progress,
                flight,
                base: BASE,
                queue: flight.queue().unwrap_or_default(),
                line: LINE,
                chance: 0.0,
                late: Duration::ZERO,
                window,
                is_small: false,
                now,
            };
            let turn = self.contest.take(&view);
            if let Turn::Keep(window) | Turn::Over(window) = turn {
                self.window = window;
            }
            turn
        }

        /// What happens in so many milliseconds without losses, without what is the same as before.
        fn turns(&mut self, milliseconds: u32) -> Vec<Turn> {
            let mut turns: Vec<Turn> = (0..milliseconds).map(|_| self.pass(0)).collect();
            turns.dedup();
            turns
        }

        /// The part of the window that is left after a loss, when others have this part left of theirs then.
        fn left(&mut self, others: f64) -> f64 {
            let before = self.window;
            self.pass(4000);
            self.others *= others;
            self.window / before
        }
    }

    #[test]
    fn a_short_queue_and_one_that_comes_and_goes_is_nobody_elses() {
        assert_eq!(Line::new(270e3, 0.0).turns(2000), [Turn::None], "1.6 ms");
        let mut line = Line::new(100e3, 0.0);
        for others in [300e3, 100e3].repeat(10) {
            line.others = others;
            assert_eq!(line.turns(100), [Turn::None]);
        }
    }

    #[test]
    fn a_queue_that_goes_in_a_trial_is_that_of_flows_like_this_one() {
        let mut line = Line::new(450e3, 0.0);
        let turns = line.turns(1000);
        let [Turn::None, Turn::Keep(225e3), Turn::Over(fits), Turn::None] = turns[..] else { panic!("{turns:?}") };
        assert!((0.95..1.05).contains(&(fits / FITS)), "{fits}");
        assert!(line.contest.entered.is_none());
    }

    #[test]
    fn who_has_little_beside_others_goes_to_half_of_what_is_in_flight() {
        let mut line = Line::new(50e3, 350e3);
        line.turns(700);
        assert!(line.contest.entered.is_some());
        let of_all = |line: &Line| line.window / (line.window + line.others);
        let begins = of_all(&line);
        line.turns(3000);
        assert!(begins < 0.3 && (0.35..=0.6).contains(&of_all(&line)), "from {begins} to {}", of_all(&line));
    }

    /// A line on which the contest has begun, with others that have `part` of what is in flight.
    fn entered(part: f64) -> Line {
        let mut line = Line::new((1.0 - part) * 450e3, part * 450e3);
        (0..2000).find(|_| {
            line.pass(0);
            line.contest.entered.is_some()
                && line.contest.trial.is_none()
                && line.now >= line.contest.round.began + BASE
        });
        // The first round after the trial.
        (0..100).for_each(|_| {
            line.pass(0);
        });
        line
    }

    #[test]
    fn who_has_less_than_half_yields_less() {
        let half = entered(0.5).left(0.7);
        assert!((0.69..0.73).contains(&half), "as CUBIC: {half}");
        let mut tenth = entered(0.9);
        let left = tenth.left(0.7);
        assert!((0.85..0.97).contains(&left), "{left}");
    }

    #[test]
    fn beside_others_that_do_not_yield_losses_count_less() {
        let lefts = |others: f64| {
            let mut line = entered(0.5);
            let mut lefts = Vec::new();
            for _ in 0..5 {
                // Others have grown until the buffer was full.
                line.others = 450e3 - line.window;
                line.turns(60);
                lefts.push(line.left(others));
                line.turns(300);
            }
            lefts
        };
        let (yielding, stubborn) = (lefts(0.7), lefts(1.0));
        let later = |lefts: &[f64]| lefts[1..].iter().sum::<f64>() / 4.0;
        assert!(yielding[0] == stubborn[0] && later(&yielding) < 0.85, "{yielding:?}");
        assert!(later(&stubborn) > 0.9, "{stubborn:?}");
    }

    #[test]
    fn it_ends_when_others_are_gone() {
        let mut line = entered(0.5);
        line.others = 0.0;
        let turns = line.turns(5000);
        assert!(turns.iter().any(|turn| matches!(turn, Turn::Over(_))), "{turns:?}");
        assert!(line.contest.entered.is_none() && line.window < 1.1 * FITS, "{}", line.window);
    }
}

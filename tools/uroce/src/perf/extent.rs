#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::time::{Duration, Instant};

/// How long a test lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many messages on each queue pair.
    Iterations(u64),
    /// So long.
    Duration(Span),
}

/// The time of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub total: Duration,
    /// What of it is not counted at each end, since the two ends do not start and stop at the same moment: less than half.
    pub margin: Duration,
    /// Whether one such time follows the other, until a signal.
    pub repeats: bool,
}

impl Extent {
    /// Messages on each queue pair, without end when it is time that ends the test.
    pub fn iterations(self) -> u64 {
        match self {
            Extent::Iterations(count) => count,
            Extent::Duration(_) => u64::MAX,
        }
    }

    /// The clock of a test of given duration, started now.
    pub fn start(self) -> Option<Sampling> {
        match self {
            Extent::Iterations(_) => None,
            Extent::Duration(span) => Some(Sampling { start: Instant::now(), span, counted: 0, all: 0, cut_at: None }),
        }
    }
}

/// A test of given duration.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    start: Instant,
    span: Span,
    /// Within the time that counts.
    counted: u64,
    all: u64,
    /// When a signal ended it.
    cut_at: Option<Instant>,
}

impl Sampling {
    /// Counts what was done at `now`, if that is within the time that counts.
    pub fn count(&mut self, now: Instant, done: u64) {
        let at = now.saturating_duration_since(self.start);
        self.all += done;
        if at >= self.span.margin && at < self.span.total - self.span.margin {
            self.counted += done;
        }
    }

    /// Whether the time is over.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.start) >= self.span.total
    }

    /// Ends it before its time.
    pub fn cut(&mut self, now: Instant) {
        self.cut_at = Some(now);
    }

    /// Once the time is over: what was done in all of it, and how long it was. The next one begins.
    pub fn lap(&mut self, now: Instant) -> Option<(u64, Duration)> {
        let elapsed = now.saturating_duration_since(self.start);
        if !self.span.repeats || elapsed < self.span.total {
            return None;
        }
        let done = std::mem::take(&mut self.all);
        (self.start, self.counted) = (now, 0);
        Some((done, elapsed))
    }

    /// What was counted, and in what time. Of a test that was cut before anything counted, all that there is.
    pub fn result(&self) -> (u64, Duration) {
        let end = self.span.total - self.span.margin;
        match self.cut_at.map(|at| at.saturating_duration_since(self.start)) {
            None => (self.counted, end - self.span.margin),
            Some(elapsed) if self.counted == 0 || self.span.repeats => (self.all, elapsed),
            Some(elapsed) => (self.counted, elapsed.min(end).saturating_sub(self.span.margin)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(repeats: bool) -> Extent {
        Extent::Duration(Span { total: Duration::from_secs(4), margin: Duration::from_secs(1), repeats })
    }

    #[test]
    fn the_middle_of_the_time_counts() {
        let mut sampling = span(false).start().unwrap();
        let start = sampling.start;
        for milliseconds in [0, 999, 1000, 2000, 2999, 3000, 3999] {
            sampling.count(start + Duration::from_millis(milliseconds), 10);
        }
        assert_eq!(sampling.result(), (30, Duration::from_secs(2)));
        assert!(!sampling.is_over(start + Duration::from_millis(3999)));
        assert!(sampling.is_over(start + Duration::from_secs(4)));
        assert_eq!(sampling.lap(start + Duration::from_secs(5)), None);
    }

    #[test]
    fn of_a_test_that_is_cut_what_there_is_counts() {
        let mut sampling = span(false).start().unwrap();
        let at = |milliseconds| sampling.start + Duration::from_millis(milliseconds);
        let (early, late, later) = (at(500), at(1500), at(3500));
        sampling.count(early, 10);
        sampling.cut(early);
        assert_eq!(sampling.result(), (10, Duration::from_millis(500)));
        sampling.count(late, 10);
        sampling.cut(late);
        assert_eq!(sampling.result(), (10, Duration::from_millis(500)));
        sampling.cut(later);
        assert_eq!(sampling.result(), (10, Duration::from_secs(2)));
    }

    #[test]
    fn one_lap_follows_the_other() {
        let mut sampling = span(true).start().unwrap();
        let at = |milliseconds| sampling.start + Duration::from_millis(milliseconds);
        let (early, late, later) = (at(500), at(4500), at(5500));
        sampling.count(early, 10);
        assert_eq!(sampling.lap(early), None);
        assert_eq!(sampling.lap(late), Some((10, Duration::from_millis(4500))));
        sampling.count(later, 5);
        sampling.cut(later);
        assert_eq!(sampling.result(), (5, Duration::from_secs(1)));
    }

    #[test]
    fn iterations_have_no_clock() {
        assert!(Extent::Iterations(5).start().is_none());
    }
}

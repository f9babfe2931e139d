#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::time::{Duration, Instant};

use crate::Failure;
use crate::tcp::PeerProgram;

/// How long a test lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many messages on each queue pair.
    Iterations(u64),
    /// So long.
    Duration(Duration),
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
            Extent::Duration(total) => Some(Sampling { start: Instant::now(), total, counted: 0 }),
        }
    }
}

/// A test of given duration. A quarter of it at each end is not counted, since the two ends do not start and stop at the
/// same moment.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    start: Instant,
    total: Duration,
    counted: u64,
}

impl Sampling {
    /// Counts what was done at `now`, if that is within the time that counts.
    pub fn count(&mut self, now: Instant, done: u64) {
        let at = now.saturating_duration_since(self.start);
        if at >= self.margin() && at < self.total - self.margin() {
            self.counted += done;
        }
    }

    /// Whether the time is over.
    pub fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.start) >= self.total
    }

    /// What was counted, and in what time.
    pub fn result(&self) -> (u64, Duration) {
        (self.counted, self.total - 2 * self.margin())
    }

    fn margin(&self) -> Duration {
        self.total / 4
    }
}

/// Watches that something happens.
pub struct Watch {
    last: Instant,
    patience: Duration,
}

impl Watch {
    /// Gives up after `patience` without anything.
    pub fn new(patience: Duration) -> Watch {
        Watch { last: Instant::now(), patience }
    }

    /// Something happened.
    pub fn moved(&mut self, now: Instant) {
        self.last = now;
    }

    /// Nothing happened. `state` says how far things had come.
    pub fn nothing(&self, state: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.last.elapsed() > self.patience {
            true => Err(Box::new(Stalled { patience: self.patience, state: state() })),
            false => Ok(()),
        }
    }
}

/// Nothing happened for too long.
#[derive(Debug)]
pub struct Stalled {
    patience: Duration,
    /// How far things had come.
    state: String,
}

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nothing has come from the peer for {} s, {}", self.patience.as_secs(), self.state)
    }
}

impl std::error::Error for Stalled {}

impl Stalled {
    /// It, and what is known of the peer's program at an address.
    pub fn explain(&self, program: PeerProgram, at: &str) -> String {
        match program {
            PeerProgram::Ended => format!("{self}: the peer's program at {at} has ended; look at its output"),
            PeerProgram::Runs | PeerProgram::Unknown => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_of_the_time_counts() {
        let mut sampling = Extent::Duration(Duration::from_secs(4)).start().unwrap();
        let start = sampling.start;
        for milliseconds in [0, 999, 1000, 2000, 2999, 3000, 3999] {
            sampling.count(start + Duration::from_millis(milliseconds), 10);
        }
        assert_eq!(sampling.result(), (30, Duration::from_secs(2)));
        assert!(!sampling.is_over(start + Duration::from_millis(3999)));
        assert!(sampling.is_over(start + Duration::from_secs(4)));
    }

    #[test]
    fn iterations_have_no_clock() {
        assert!(Extent::Iterations(5).start().is_none());
    }
}

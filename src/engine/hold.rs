use crate::time::{Duration, Instant};

/// A time for which something is taken to go on, longer each time it comes back soon.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hold {
    until: Instant,
    length: Duration,
}

/// How long a [`Hold`] is.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldLengths {
    /// At first, and at most. Each time it is four times as long, if it comes back within `soon` of the end of the last.
    pub first: Duration,
    pub most: Duration,
    pub soon: Duration,
}

const LONGER: u32 = 4;

impl HoldLengths {
    /// For how long a program is not taken to go on as it did, after it has not once.
    pub const DOUBT: HoldLengths = HoldLengths {
        first: Duration::from_millis(10),
        most: Duration::from_millis(1000),
        soon: Duration::from_millis(1000),
    };
}

impl Hold {
    /// Whether it goes on.
    pub fn lasts(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Begins at `now`, when it does not go on.
    pub fn begin(&mut self, lengths: &HoldLengths, now: Instant) {
        let is_back = now.saturating_since(self.until) < lengths.soon;
        self.length = if is_back { (self.length * LONGER).clamp(lengths.first, lengths.most) } else { lengths.first };
        self.until = now + self.length;
    }
}

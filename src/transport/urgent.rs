use crate::time::{Duration, Instant};

/// How long urgent messages count as under way after the latest was posted: who reads waits no longer for a next word.
const LASTS: Duration = Duration::from_secs(5);

/// Until when urgent messages count as under way: those of this endpoint, and those of others on the same interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Urgent {
    own: Instant,
    others: Instant,
}

impl Urgent {
    /// Notes that an urgent message was posted.
    pub fn posted(&mut self, now: Instant) {
        self.own = now + LASTS;
    }

    /// Notes for how long those of others count: for as long as own ones would, at most.
    pub fn others(&mut self, now: Instant, left: Duration) {
        self.others = now + left.min(LASTS);
    }

    /// For how long own ones count.
    pub fn own_left(&self, now: Instant) -> Duration {
        self.own.saturating_since(now)
    }

    /// Whether some are under way.
    pub fn are_under_way(&self, now: Instant) -> bool {
        now < self.own.max(self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_others_count_as_own_ones_do_and_are_not_told_again() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut urgent = Urgent::default();
        assert!(!urgent.are_under_way(at(10)));
        urgent.others(at(10), Duration::from_secs(1));
        assert_eq!((urgent.are_under_way(at(10)), urgent.are_under_way(at(11))), (true, false));
        assert_eq!(urgent.own_left(at(10)), Duration::ZERO);
        // Whatever another program says.
        urgent.others(at(20), Duration::MAX);
        assert_eq!((urgent.are_under_way(at(24)), urgent.are_under_way(at(25))), (true, false));
        urgent.posted(at(23));
        assert_eq!((urgent.are_under_way(at(27)), urgent.own_left(at(27))), (true, Duration::from_secs(1)));
        urgent.others(at(27), Duration::ZERO);
        assert_eq!((urgent.are_under_way(at(27)), urgent.are_under_way(at(28))), (true, false));
    }
}

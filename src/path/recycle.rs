use super::PathMask;
use super::policy::{Feedback, Policy};
use super::round_robin::RoundRobin;

/// Recycles good paths: each packet that arrived unmarked allows one more on its path. When none has come back, each
/// path has its turn (as REPS recycles entropies, arXiv 2407.21625).
#[derive(Debug)]
pub(super) struct Recycle {
    /// Paths whose packets came back good, oldest first; a ring.
    good: Box<[u8]>,
    first: usize,
    count: usize,
    turns: RoundRobin,
    /// Packets that recycle a path before one goes to the path whose turn it is: otherwise nothing new is learned.
    until_turn: u32,
}

/// Recycled packets between two that go to the path whose turn it is.
const TURN_EVERY: u32 = 16;

/// Packets that are remembered for each path: few, so that old results do not count.
const REMEMBERED: usize = 8;

impl Recycle {
    pub fn new(count: usize) -> Recycle {
        let good = vec![0; count * REMEMBERED].into();
        Recycle { good, first: 0, count: 0, turns: RoundRobin::default(), until_turn: TURN_EVERY }
    }

    fn pop(&mut self) -> Option<u8> {
        self.count = self.count.checked_sub(1)?;
        let path = self.good[self.first];
        self.first = (self.first + 1) % self.good.len();
        Some(path)
    }

    fn push(&mut self, path: u8) {
        if self.count == self.good.len() {
            self.pop();
        }
        let at = (self.first + self.count) % self.good.len();
        self.good[at] = path;
        self.count += 1;
    }
}

impl Policy for Recycle {
    fn choose(&mut self, usable: &PathMask) -> u8 {
        if self.until_turn > 0 {
            while let Some(path) = self.pop() {
                if usable.contains(path) {
                    self.until_turn -= 1;
                    return path;
                }
            }
        }
        self.until_turn = TURN_EVERY;
        self.turns.turn(usable)
    }

    fn take(&mut self, path: u8, feedback: Feedback) -> bool {
        match feedback {
            Feedback::Arrived(..) => self.push(path),
            Feedback::Marked => return true,
            Feedback::Lost => {}
        }
        false
    }

    fn forget(&mut self, path: u8) {
        for _ in 0..self.count {
            match self.pop() {
                Some(other) if other != path => self.push(other),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const GOOD: Feedback = Feedback::Arrived(Duration::from_millis(1), Duration::from_millis(1));

    #[test]
    fn what_came_back_good_is_used_again() {
        let mut policy = Recycle::new(4);
        let all = (0..4).collect();
        assert_eq!([0; 4].map(|_| policy.choose(&all)), [0, 1, 2, 3]);
        assert!(!policy.take(2, GOOD) && !policy.take(1, GOOD));
        assert!(policy.take(3, Feedback::Marked), "a marked path is left alone");
        assert_eq!([0; 3].map(|_| policy.choose(&all)), [2, 1, 0]);
    }

    #[test]
    fn a_path_that_failed_is_not_remembered() {
        let mut policy = Recycle::new(4);
        for path in [1, 2, 1, 3] {
            policy.take(path, GOOD);
        }
        policy.forget(1);
        assert_eq!([0; 3].map(|_| policy.choose(&(0..4).collect())), [2, 3, 0]);
        for path in [1, 2] {
            policy.take(path, GOOD);
        }
        assert_eq!(policy.choose(&[0, 2, 3].into_iter().collect()), 2);
    }

    #[test]
    fn memory_is_bounded_and_every_path_still_has_its_turn() {
        let mut policy = Recycle::new(2);
        for _ in 0..100 {
            policy.take(0, GOOD);
        }
        assert_eq!(policy.count, 2 * REMEMBERED);
        let mut others = 0;
        for _ in 0..64 * (TURN_EVERY + 1) {
            let path = policy.choose(&(0..2).collect());
            others += u32::from(path == 1);
            policy.take(0, GOOD);
        }
        assert_eq!(others, 32);
    }
}

use super::PathMask;
use super::policy::{Feedback, Policy};

/// Takes one path after the other.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: u8,
}

impl RoundRobin {
    /// The next usable path, from the current one on.
    pub fn turn(&mut self, usable: &PathMask) -> u8 {
        let path = usable.next_from(self.next).unwrap_or(0);
        self.next = path.wrapping_add(1);
        path
    }
}

impl Policy for RoundRobin {
    fn choose(&mut self, usable: &PathMask) -> u8 {
        self.turn(usable)
    }

    fn take(&mut self, _path: u8, _feedback: Feedback) -> bool {
        false
    }

    fn forget(&mut self, _path: u8) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_turn() {
        let mut policy = RoundRobin::default();
        let (all, two) = ((0..3).collect(), [0, 2].into_iter().collect());
        assert_eq!([0; 7].map(|_| policy.choose(&all)), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!([0; 4].map(|_| policy.choose(&two)), [2, 0, 2, 0]);
        // All 256 of them.
        let mut policy = RoundRobin::default();
        let all = (0..=255).collect();
        let turns: Vec<u8> = (0..512).map(|_| policy.choose(&all)).collect();
        assert!(turns.iter().enumerate().all(|(turn, path)| turn % 256 == usize::from(*path)));
    }
}

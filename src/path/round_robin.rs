use super::policy::{Feedback, Policy};

/// Takes one path after the other.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: u8,
}

impl RoundRobin {
    /// The next usable path, from the current one on.
    pub fn turn(&mut self, count: usize, is_usable: &dyn Fn(u8) -> bool) -> u8 {
        let from = usize::from(self.next);
        let path = (from..from + count).map(|path| (path % count) as u8).find(|path| is_usable(*path)).unwrap_or(0);
        self.next = ((usize::from(path) + 1) % count) as u8;
        path
    }
}

impl Policy for RoundRobin {
    fn choose(&mut self, count: usize, is_usable: &dyn Fn(u8) -> bool) -> u8 {
        self.turn(count, is_usable)
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
        assert_eq!([0; 7].map(|_| policy.choose(3, &|_| true)), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!([0; 4].map(|_| policy.choose(3, &|path| path != 1)), [2, 0, 2, 0]);
        // All 256 of them.
        let mut policy = RoundRobin::default();
        let turns: Vec<u8> = (0..512).map(|_| policy.choose(256, &|_| true)).collect();
        assert!(turns.iter().enumerate().all(|(turn, path)| turn % 256 == usize::from(*path)));
    }
}

use super::PathMask;
use super::policy::{Feedback, Policy};

/// Takes the first path that works; the others are standby.
#[derive(Debug)]
pub(super) struct Single;

impl Policy for Single {
    fn choose(&mut self, usable: &PathMask) -> u8 {
        usable.first().unwrap_or(0)
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
    fn the_first_path_carries_everything_until_it_fails() {
        let mut policy = Single;
        let all = (0..4).collect();
        assert_eq!([0; 3].map(|_| policy.choose(&all)), [0; 3]);
        assert_eq!(policy.choose(&(2..4).collect()), 2);
        assert_eq!(policy.choose(&all), 0);
    }
}

use super::policy::{Feedback, Policy};

/// Takes the first path that works; the others are standby.
#[derive(Debug)]
pub(super) struct Single;

impl Policy for Single {
    fn choose(&mut self, count: usize, is_usable: &dyn Fn(u8) -> bool) -> u8 {
        (0..count).map(|path| path as u8).find(|path| is_usable(*path)).unwrap_or(0)
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
        assert_eq!([0; 3].map(|_| policy.choose(4, &|_| true)), [0; 3]);
        assert_eq!(policy.choose(4, &|path| path > 1), 2);
        assert_eq!(policy.choose(4, &|_| true), 0);
    }
}

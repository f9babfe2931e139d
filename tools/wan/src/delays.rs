use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer than this counts as this long.
const MAX: Duration = Duration::from_secs(3600);

/// How long frames took: by how much later than they should have they left, or what they waited in a queue. To a thousandth of
/// each value.
#[derive(Clone, Debug)]
pub struct Delays(Histogram<u64>);

impl Default for Delays {
    fn default() -> Delays {
        Delays(Histogram::new_with_max(MAX.as_nanos() as u64, 3).expect("the bounds and the precision are in range"))
    }
}

impl Delays {
    /// Counts one frame.
    pub fn note(&mut self, delay_ns: u64) {
        self.0.saturating_record(delay_ns);
    }

    /// How many frames were counted.
    pub fn frames(&self) -> u64 {
        self.0.len()
    }

    /// Those that were counted after `before`, which is an earlier state of these.
    pub fn since(&self, before: &Delays) -> Delays {
        let mut since = self.clone();
        since.0.subtract(&before.0).expect("both have the same bounds, and counts only grow");
        since
    }

    /// The mean of all; zero without frames.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// The largest of all; zero without frames.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// What no more than this `share` of frames exceeded; zero without frames.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }
}

/// The value that this `share` of all keep to; they are in order. `None` of none.
pub fn of_sorted<T>(all: &[T], share: f64) -> Option<&T> {
    all.get(((all.len() as f64 * share) as usize).min(all.len().saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_frames() {
        let mut delays = Delays::default();
        assert_eq!((delays.quantile(0.5), delays.max()), (Duration::ZERO, Duration::ZERO));
        (1..=100).for_each(|us| delays.note(us * 1000));
        let is_about = |quantile: Duration, us: u64| quantile.abs_diff(Duration::from_micros(us)) * 1000 <= quantile;
        assert!(is_about(delays.quantile(0.5), 50), "{delays:?}");
        assert!(is_about(delays.quantile(0.99), 99), "{delays:?}");
        assert!(is_about(delays.quantile(1.0), 100), "{delays:?}");
        delays.note(3_000_000_000);
        assert_eq!(delays.frames(), 101);
        assert!(is_about(delays.max(), 3_000_000) && is_about(delays.quantile(1.0), 3_000_000), "{delays:?}");
        let before = delays.clone();
        delays.note(7_000_000);
        delays.note(9_000_000);
        let since = delays.since(&before);
        assert!(since.frames() == 2 && is_about(since.mean(), 8000) && is_about(since.max(), 9000), "{since:?}");
        delays.note(u64::MAX);
        assert!(is_about(delays.max(), 3_600_000_000), "{delays:?}");
    }
}

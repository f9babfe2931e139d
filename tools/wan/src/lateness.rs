use std::time::Duration;

use hdrhistogram::Histogram;

/// Later than this counts as this late.
const MAX: Duration = Duration::from_secs(3600);

/// How much later than they should have frames left, to a thousandth of each value.
#[derive(Clone, Debug)]
pub struct Lateness(Histogram<u64>);

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness(Histogram::new_with_max(MAX.as_nanos() as u64, 3).expect("the bounds and the precision are in range"))
    }
}

impl Lateness {
    /// Counts one frame.
    pub fn note(&mut self, late_ns: u64) {
        self.0.saturating_record(late_ns);
    }

    /// How many frames were counted.
    pub fn frames(&self) -> u64 {
        self.0.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_frames() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.quantile(0.5), lateness.max()), (Duration::ZERO, Duration::ZERO));
        (1..=100).for_each(|us| lateness.note(us * 1000));
        let is_about = |quantile: Duration, us: u64| quantile.abs_diff(Duration::from_micros(us)) * 1000 <= quantile;
        assert!(is_about(lateness.quantile(0.5), 50), "{lateness:?}");
        assert!(is_about(lateness.quantile(0.99), 99), "{lateness:?}");
        assert!(is_about(lateness.quantile(1.0), 100), "{lateness:?}");
        lateness.note(3_000_000_000);
        assert_eq!(lateness.frames(), 101);
        assert!(is_about(lateness.max(), 3_000_000) && is_about(lateness.quantile(1.0), 3_000_000), "{lateness:?}");
        lateness.note(u64::MAX);
        assert!(is_about(lateness.max(), 3_600_000_000), "{lateness:?}");
    }
}

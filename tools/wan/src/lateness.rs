use std::time::Duration;

/// A step of the histogram.
const STEP_NS: u64 = 1_000;

/// Steps up to 20 ms; what is later counts as that late.
const STEPS: usize = 20_000;

/// How much later than they should have frames left: a histogram in steps of a microsecond up to 20 ms.
#[derive(Clone, Debug)]
pub struct Lateness {
    steps: Vec<u64>,
    frames: u64,
    max_ns: u64,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { steps: vec![0; STEPS + 1], frames: 0, max_ns: 0 }
    }
}

impl Lateness {
    /// Counts one frame.
    pub fn note(&mut self, late_ns: u64) {
        let step = usize::try_from(late_ns / STEP_NS).unwrap_or(STEPS).min(STEPS);
        self.steps[step] += 1;
        self.frames += 1;
        self.max_ns = self.max_ns.max(late_ns);
    }

    /// How many frames were counted.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The largest of all, exactly.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// What no more than this `share` of frames exceeded, rounded up to a step; zero without frames.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (self.frames as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        let step = self.steps.iter().position(|count| {
            below += count;
            below >= rank
        });
        step.map_or(Duration::ZERO, |step| Duration::from_nanos(((step as u64 + 1) * STEP_NS).min(self.max_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_frames() {
        let mut lateness = Lateness::default();
        assert_eq!((lateness.quantile(0.5), lateness.max()), (Duration::ZERO, Duration::ZERO));
        (1..=100).for_each(|us| lateness.note(us * 1000 - 1));
        assert_eq!(lateness.quantile(0.5), Duration::from_micros(50));
        assert_eq!(lateness.quantile(0.99), Duration::from_micros(99));
        assert_eq!(lateness.quantile(1.0), Duration::from_nanos(99_999));
        lateness.note(3_000_000_000);
        assert_eq!((lateness.frames(), lateness.max()), (101, Duration::from_secs(3)));
        assert!(lateness.quantile(1.0) > Duration::from_millis(20));
    }
}

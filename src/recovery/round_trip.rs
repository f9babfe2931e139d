use crate::time::Duration;

/// The round-trip time, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
    variation_ns: u64,
    least: Option<Duration>,
    /// What [`patience`](Self::patience) says after a sample: each packet asks for it.
    patience: Duration,
}

/// Allowance beside the round trip: the peer can be busy, and timers are not finer.
const GRANULARITY: Duration = Duration::from_millis(1);

impl RoundTrip {
    /// Takes the round-trip sample `rtt`.
    pub fn sample(&mut self, rtt: Duration) {
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        // In nanoseconds: arithmetic of durations takes several times as long.
        let ns = rtt.as_nanos() as u64;
        let (smoothed_ns, variation_ns) = match self.smoothed {
            None => (ns, ns / 2),
            Some(smoothed) => {
                let smoothed_ns = smoothed.as_nanos() as u64;
                ((smoothed_ns * 7 + ns) / 8, (self.variation_ns * 3 + smoothed_ns.abs_diff(ns)) / 4)
            }
        };
        (self.smoothed, self.variation_ns) = (Some(Duration::from_nanos(smoothed_ns)), variation_ns);
        self.patience = Duration::from_nanos(smoothed_ns + (variation_ns * 4).max(GRANULARITY.as_nanos() as u64));
    }

    /// The smoothed round-trip time; `None` before the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest round-trip sample; `None` before the first.
    pub fn least(&self) -> Option<Duration> {
        self.least
    }

    /// The time without a sign after which something counts as lost: a round trip and its variation (RFC 9002, 6.2.1).
    /// It is `first` before the first sample.
    pub fn patience(&self, first: Duration) -> Duration {
        self.smoothed.map_or(first, |_| self.patience)
    }
}

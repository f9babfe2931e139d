use crate::time::Duration;

/// The round-trip time, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
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
        match &mut self.smoothed {
            None => (self.smoothed, self.variation) = (Some(rtt), rtt / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                *smoothed = (*smoothed * 7 + rtt) / 8;
            }
        }
        self.patience = self.smoothed.unwrap_or_default() + (self.variation * 4).max(GRANULARITY);
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

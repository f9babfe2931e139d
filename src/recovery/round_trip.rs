use crate::time::Duration;

/// The round trip time, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Option<Duration>,
    variation: Duration,
    least: Option<Duration>,
}

/// What is waited for beside the round trip: the peer may be busy, and timers are no finer.
const GRANULARITY: Duration = Duration::from_millis(1);

impl RoundTrip {
    /// Takes a measurement.
    pub fn sample(&mut self, rtt: Duration) {
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        match &mut self.smoothed {
            None => (self.smoothed, self.variation) = (Some(rtt), rtt / 2),
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                *smoothed = (*smoothed * 7 + rtt) / 8;
            }
        }
    }

    /// The smoothed one.
    pub fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// The shortest one measured.
    pub fn least(&self) -> Option<Duration> {
        self.least
    }

    /// After how long without a sign something was lost: a round trip and what it varies by (RFC 9002, 6.2.1); `first`
    /// before the first measurement.
    pub fn patience(&self, first: Duration) -> Duration {
        self.smoothed.map_or(first, |smoothed| smoothed + (self.variation * 4).max(GRANULARITY))
    }
}

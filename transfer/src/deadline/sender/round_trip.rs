use uroce::recovery;
use uroce::time::Duration;

/// How long datagrams and their reports take.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: recovery::RoundTrip,
    newest: Duration,
}

/// Before the first sample nothing is lost that was sent less than this ago: three times what RFC 9002 begins with (6.2.2),
/// since a datagram that is sent too early takes the place of one that is needed.
const UNKNOWN: Duration = Duration::from_secs(1);

impl RoundTrip {
    pub fn take(&mut self, sample: Duration) {
        self.smoothed.sample(sample);
        self.newest = sample;
    }

    /// The shortest; zero before the first sample.
    pub fn least(&self) -> Duration {
        self.smoothed.least().unwrap_or_default()
    }

    /// A datagram that was sent so long ago is lost, when one that was sent later has arrived: as long as uroce's reliable
    /// connections wait for those that were overtaken.
    pub fn overtaken(&self) -> Duration {
        self.smoothed.smoothed().map_or(UNKNOWN, |smoothed| smoothed.max(self.newest) * 9 / 8)
    }

    /// A datagram that was sent so long before a report came that does not have it is lost.
    pub fn unreported(&self) -> Duration {
        self.smoothed.patience(UNKNOWN).max(self.newest) * 9 / 8
    }
}

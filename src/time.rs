//! Points in time as the transport sees them: nanoseconds on a monotonic clock whose owner passes them in.

use std::ops::{Add, Sub};
pub use std::time::Duration;

/// A point in time, in nanoseconds since an epoch that its owner chose.
///
/// The engine's epoch is the Unix epoch as read once at start, carried on by the monotonic clock, so that captures carry
/// true dates and time never runs backwards. The simulator's epoch is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

const NANOS_IN_A_SECOND: u64 = 1_000_000_000;

impl Instant {
    /// The epoch itself: zero nanoseconds.
    pub const ZERO: Instant = Instant(0);

    /// The point `ns` nanoseconds after the epoch.
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this point; zero when `earlier` is not earlier.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The earliest of several points in time, some of which may be never; `None` when all are.
pub(crate) fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
    // The last point that can be named stands for never: packets ask for their deadlines, and this takes no branches.
    let earliest = times.iter().fold(u64::MAX, |earliest, at| earliest.min(at.map_or(u64::MAX, Instant::as_ns)));
    (earliest != u64::MAX).then_some(Instant(earliest))
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Adds `rhs`; saturates at 2^64 − 1 ns (year 2554 on a Unix epoch).
    fn add(self, rhs: Duration) -> Instant {
        let ns = rhs.as_secs().saturating_mul(NANOS_IN_A_SECOND).saturating_add(rhs.subsec_nanos().into());
        Instant(self.0.saturating_add(ns))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    /// The time from `rhs` to this point; zero when `rhs` is later, as [`Instant::saturating_since`].
    fn sub(self, rhs: Instant) -> Duration {
        self.saturating_since(rhs)
    }
}

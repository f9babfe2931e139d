use crate::time::{Duration, Instant};

/// Decides when a queue pair sends its peer a congestion notification packet (CNP), since its packets arrive with
/// «congestion experienced» (IBTA A17.9.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NotificationPoint {
    is_owed: bool,
    /// When the next one can be sent.
    next_at: Instant,
}

/// The least time between two CNPs of a queue pair. DCQCN was published with 50 µs, and its reaction expects at most one
/// in that time; RNICs use 4 to 50 µs (mlx5's `min_time_between_cnps`).
const CNP_INTERVAL: Duration = Duration::from_micros(50);

impl NotificationPoint {
    /// Takes a mark. Those that follow a notification within the interval are part of the same news.
    pub fn take(&mut self, now: Instant) {
        self.is_owed |= now >= self.next_at;
    }

    /// Whether a notification is owed.
    pub fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// Records that the notification goes now.
    pub fn sent(&mut self, now: Instant) {
        (self.is_owed, self.next_at) = (false, now + CNP_INTERVAL);
    }

    /// Owes nothing any more.
    pub fn forget(&mut self) {
        self.is_owed = false;
    }
}

use crate::transport::attributes::QpAttributes;

/// The retries that a requester has left until there is progress (IBTA 9.9.2.4.1).
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    /// Timeouts for which the peer was silent, since the last progress.
    timeouts: u16,
    /// Whether the peer has ever answered.
    pub has_answered: bool,
    /// Whether it has answered a message of more than [`Cause::SMALL_BYTES`](crate::transport::Cause::SMALL_BYTES).
    pub has_answered_large: bool,
}

/// The RNR retry count that means no limit.
const FOR_EVER: u8 = 7;

impl Patience {
    pub fn configure(&mut self, attributes: &QpAttributes) {
        if let Some(count) = attributes.retry_count {
            (self.retry_count, self.retries_left) = (count, count);
        }
        if let Some(count) = attributes.rnr_retry {
            (self.rnr_retry, self.rnr_retries_left) = (count, count);
        }
    }

    /// Restores all retries, after progress.
    pub fn renew(&mut self) {
        self.has_answered = true;
        if !mutated!("retry-count-not-reset") {
            self.heard();
        }
        self.rnr_retries_left =
            if mutated!("rnr-retry-count-not-reset") { self.rnr_retries_left } else { self.rnr_retry };
        self.timeouts = 0;
    }

    /// Restores the retries, but not those after RNR NAKs: the peer answers. Its receive request can be missing for
    /// long, and packets are lost meanwhile.
    pub fn heard(&mut self) {
        self.has_answered = true;
        self.retries_left = self.retry_count;
    }

    /// Timeouts for which the peer was silent, since the last progress.
    pub fn timeouts(&self) -> u32 {
        self.timeouts.into()
    }

    /// Counts a timeout for which the peer was silent.
    pub fn timed_out(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1);
    }

    /// The retransmissions that are left.
    pub fn retries_left(&self) -> u8 {
        self.retries_left
    }

    /// The waits for a receive request of the peer that are left; seven when there is no limit.
    pub fn rnr_retries_left(&self) -> u8 {
        self.rnr_retries_left
    }

    /// Takes a retry. Returns whether there was one left.
    pub fn take_retry(&mut self) -> bool {
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or_default();
        left.is_some()
    }

    /// Takes a wait for a receive request of the peer (IBTA 9.7.5.2.8). Returns whether there was one left.
    pub fn take_rnr_retry(&mut self) -> bool {
        if self.rnr_retry == FOR_EVER {
            return true;
        }
        let left = self.rnr_retries_left.checked_sub(1);
        self.rnr_retries_left = left.unwrap_or_default();
        left.is_some()
    }
}

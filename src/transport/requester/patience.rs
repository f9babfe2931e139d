use crate::transport::attributes::QpAttributes;

/// How often a requester tries again, without progress between (IBTA 9.9.2.4.1).
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    retry_count: u8,
    rnr_retry: u8,
    retries_left: u8,
    rnr_retries_left: u8,
    /// How often the peer was silent for a timeout, without progress since.
    timeouts: u32,
}

/// The RNR retry count that means «for ever».
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

    /// There was progress: all patience starts anew.
    pub fn renew(&mut self) {
        if !mutated!("retry-count-not-reset") {
            self.heard();
        }
        self.rnr_retries_left =
            if mutated!("rnr-retry-count-not-reset") { self.rnr_retries_left } else { self.rnr_retry };
        self.timeouts = 0;
    }

    /// The peer is there, and has said so: it may be for long that it has no receive request, and packets are lost meanwhile.
    pub fn heard(&mut self) {
        self.retries_left = self.retry_count;
    }

    /// How often the peer was silent for a timeout, without progress since.
    pub fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// The peer was silent for a timeout.
    pub fn timed_out(&mut self) {
        self.timeouts += 1;
    }

    /// How often something may be sent again.
    pub fn retries_left(&self) -> u8 {
        self.retries_left
    }

    /// How often a receive request of the peer may be waited for; seven, for ever, counts as seven.
    pub fn rnr_retries_left(&self) -> u8 {
        self.rnr_retries_left
    }

    /// Whether something may be sent again once more.
    pub fn take_retry(&mut self) -> bool {
        let left = self.retries_left.checked_sub(1);
        self.retries_left = left.unwrap_or_default();
        left.is_some()
    }

    /// Whether a receive request of the peer may be waited for once more (IBTA 9.7.5.2.8).
    pub fn take_rnr_retry(&mut self) -> bool {
        if self.rnr_retry == FOR_EVER {
            return true;
        }
        let left = self.rnr_retries_left.checked_sub(1);
        self.rnr_retries_left = left.unwrap_or_default();
        left.is_some()
    }
}

use uroce::time::{Duration, Instant};

/// A token bucket without a queue: frames that exceed its rate by more than a burst are lost, and none waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// The rate of tokens, in bytes of Ethernet frames a second.
    pub bytes_per_second: u64,
    /// The size of the bucket, in bytes: at least a frame.
    pub burst_bytes: u64,
}

/// The state of a policer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    /// When the bucket will be full.
    full_at: Instant,
}

impl Bucket {
    /// Whether a frame of `bytes` finds enough tokens; it takes them.
    pub fn takes(&mut self, policer: &Policer, now: Instant, bytes: u64) -> bool {
        let time_of = |bytes: u64| Duration::from_nanos((bytes * 1_000_000_000).div_ceil(policer.bytes_per_second));
        let full_at = self.full_at.max(now) + time_of(bytes);
        let fits = full_at - now <= time_of(policer.burst_bytes);
        if fits {
            self.full_at = full_at;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let policer = Policer { bytes_per_second: 1_000_000, burst_bytes: 5000 };
        let mut bucket = Bucket::default();
        let mut passed = |ms: u64, frames: usize| {
            let now = Instant::from_ns(ms * 1_000_000);
            (0..frames).filter(|_| bucket.takes(&policer, now, 1000)).count()
        };
        assert_eq!(passed(0, 10), 5);
        assert_eq!(passed(2, 10), 2);
        assert_eq!((3..103).map(|ms| passed(ms, 3)).sum::<usize>(), 100);
        assert_eq!(passed(1000, 10), 5);
    }
}

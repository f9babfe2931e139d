use crate::time::{Duration, Instant};

use super::Rate;

/// Spaces packets out so that they keep to a rate.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    /// When all that was sent has been paid for.
    paid_at: Instant,
    /// The part of the rate that may be used: so many of so many.
    share: (u64, u64),
}

/// What may be sent at once after a pause: as long as timers are late, at the most.
const BURST: Duration = Duration::from_micros(50);

/// Ethernet's header: rates count it.
const ETHERNET_BYTES: u64 = 14;

impl Pacer {
    /// Keeps to `rate`.
    pub fn new(rate: Rate) -> Pacer {
        Pacer { rate, paid_at: Instant::ZERO, share: (1, 1) }
    }

    /// From now on it keeps to `part` of `whole` of the rate; both are at least 1.
    pub fn set_share(&mut self, part: u64, whole: u64) {
        self.share = (part.max(1), whole.max(1));
    }

    /// When the next packet may go, if that is later than now.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        (self.paid_at > now).then_some(self.paid_at)
    }

    /// An IP packet of `bytes` goes.
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        let (part, whole) = self.share;
        let bytes = (bytes as u64 + ETHERNET_BYTES) * whole;
        let ns = bytes.saturating_mul(1_000_000_000).div_ceil(self.rate.bytes().saturating_mul(part));
        let earliest = Instant::from_ns(now.as_ns().saturating_sub(BURST.as_nanos() as u64));
        self.paid_at = self.paid_at.max(earliest) + Duration::from_nanos(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_to_the_rate_and_a_pause_is_caught_up_a_little() {
        let mut pacer = Pacer::new(Rate::from_bits(8_000_000_000));
        let mut now = Instant::from_ns(1_000_000_000);
        let start = now;
        let mut bytes = 0;
        while now - start < Duration::from_millis(1) {
            match pacer.wait(now) {
                Some(at) => now = at,
                None => {
                    pacer.sent(now, 986);
                    bytes += 1000;
                }
            }
        }
        // A millisecond's worth, and a burst.
        assert!((1_049_000..=1_052_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_part_of_the_rate_is_kept_to_as_the_rate_is() {
        let mut pacer = Pacer::new(Rate::from_bits(8_000_000_000));
        pacer.set_share(7, 8);
        let now = Instant::from_ns(1_000_000_000);
        (0..70).for_each(|_| pacer.sent(now, 986));
        assert_eq!(pacer.wait(now), Some(Instant::from_ns(1_000_000_000 - 50_000 + 80_010)));
    }
}

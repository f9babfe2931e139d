use crate::time::{Duration, Instant};

use super::Rate;

/// Spaces packets out so that they keep to a rate.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    /// When all that was sent has been paid for.
    paid_at: Instant,
}

/// What may be sent at once after a pause: as long as timers are late, at the most.
const BURST: Duration = Duration::from_micros(50);

/// Ethernet's header: rates count it.
const ETHERNET_BYTES: u64 = 14;

impl Pacer {
    /// Keeps to `rate`.
    pub fn new(rate: Rate) -> Pacer {
        Pacer { rate, paid_at: Instant::ZERO }
    }

    /// When the next packet may go, if that is later than now.
    pub fn wait(&self, now: Instant) -> Option<Instant> {
        (self.paid_at > now).then_some(self.paid_at)
    }

    /// An IP packet of `bytes` goes.
    pub fn sent(&mut self, now: Instant, bytes: usize) {
        let ns = (bytes as u64 + ETHERNET_BYTES).saturating_mul(1_000_000_000).div_ceil(self.rate.bytes());
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
}

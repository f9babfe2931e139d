use uroce::time::{Duration, Instant};

/// Frames from elsewhere that take a part of the bottleneck, and slow down for nobody.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Background {
    /// Their rate while there are some, in bits of Ethernet frames a second.
    pub bps: u64,
    /// How long there are none, and how long there are some after that.
    pub off: Duration,
    pub on: Duration,
}

impl Background {
    /// Length of its frames, in bytes: as long as a flow's.
    pub const FRAME: u64 = super::super::goodput::FRAME;

    /// When its first frame comes.
    pub fn first(&self) -> Instant {
        Instant::ZERO + self.off
    }

    /// When the next frame comes, after one at `now`.
    pub fn next(&self, now: Instant) -> Instant {
        let next = now + Duration::from_nanos(Background::FRAME * 8 * 1_000_000_000 / self.bps);
        let period = (self.off + self.on).as_nanos() as u64;
        let into = next.as_ns() % period;
        if into < self.off.as_nanos() as u64 { Instant::from_ns(next.as_ns() - into) + self.off } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_at_the_rate_while_it_is_on() {
        let (off, on) = (Duration::from_millis(3), Duration::from_millis(1));
        let background = Background { bps: 1_000_000_000, off, on };
        let mut frames = Vec::new();
        let mut at = background.first();
        while at < Instant::from_ns(8_000_000) {
            frames.push(at.as_ns());
            at = background.next(at);
        }
        assert!(frames.iter().all(|at| (3_000_000..4_000_000).contains(&(at % 4_000_000))), "{frames:?}");
        let bytes = frames.len() as u64 * Background::FRAME;
        assert!((250_000..260_000).contains(&bytes), "{bytes} in 2 ms at 1 Gb/s");
    }
}

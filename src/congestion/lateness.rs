use crate::time::{Duration, Instant};

/// How late this host sees that a time has come, lately: its processor was with other programs. A host that is seldom late
/// has an allowance of nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    /// The most in the period before this one, and in this one.
    most: [Duration; 2],
    began: Instant,
}

/// What was seen is forgotten after one to two of these: many time slices.
const PERIOD: Duration = Duration::from_millis(100);

impl Lateness {
    /// The part of a round trip that is allowed for at most: what is sent late goes at once, and stands in a queue.
    pub const SHARE: u32 = 8;

    /// Upper bound on what is allowed for: a time slice of Linux, which another program takes before it gives the processor
    /// back (`sysctl_sched_base_slice` is 3 ms, and ends with a tick; there are 250 in a second).
    pub const SLICE: Duration = Duration::from_millis(4);

    /// Takes by how much this host was late.
    pub fn take(&mut self, late: Duration, now: Instant) {
        let passed = now.saturating_since(self.began);
        if passed > PERIOD {
            let before = if passed > PERIOD * 2 { Duration::ZERO } else { self.most[1] };
            (self.most, self.began) = ([before, Duration::ZERO], now);
        }
        self.most[1] = self.most[1].max(late);
    }

    /// What is to be allowed for on a way with this round trip without queues.
    pub fn allowance(&self, round_trip: Duration) -> Duration {
        self.most[0].max(self.most[1]).min(Lateness::SLICE).min(round_trip / Lateness::SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_most_lately_counts_up_to_a_time_slice_and_a_part_of_the_round_trip() {
        let mut lateness = Lateness::default();
        let now = Instant::from_ns(1_000_000_000);
        assert_eq!(lateness.allowance(LONG), Duration::ZERO);
        lateness.take(ms(2), now);
        lateness.take(ms(1), now + ms(10));
        assert_eq!(lateness.allowance(LONG), ms(2));
        assert_eq!(lateness.allowance(ms(8)), ms(1));
        lateness.take(ms(50), now + ms(20));
        assert_eq!(lateness.allowance(LONG), ms(4));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut lateness = Lateness::default();
        let now = Instant::from_ns(1_000_000_000);
        lateness.take(ms(3), now);
        lateness.take(ms(0), now + ms(150));
        assert_eq!(lateness.allowance(LONG), ms(3), "in the period before");
        lateness.take(ms(0), now + ms(300));
        assert_eq!(lateness.allowance(LONG), ms(0));
        lateness.take(ms(3), now + ms(310));
        lateness.take(ms(0), now + ms(1000));
        assert_eq!(lateness.allowance(LONG), ms(0), "nothing was looked at for long");
    }
}

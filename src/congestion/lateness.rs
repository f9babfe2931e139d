use crate::time::{Duration, Instant};

/// How late this host sees that a time has come, lately: its processor was with other programs. A host that is seldom late
/// has an allowance of nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    /// The two times by which it was latest in the period before this one, and in this one, the longer one first, in microseconds:
    /// each queue pair keeps them.
    most: [[u32; 2]; 2],
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
            let before = if passed > PERIOD * 2 { [0; 2] } else { self.most[1] };
            (self.most, self.began) = ([before, [0; 2]], now);
        }
        let late = u32::try_from(late.as_micros()).unwrap_or(u32::MAX);
        let [first, second] = &mut self.most[1];
        *second = late.clamp(*second, *first);
        *first = late.max(*first);
    }

    /// What is to be allowed for on a way with this round trip without queues.
    pub fn allowance(&self, round_trip: Duration) -> Duration {
        let [before, now] = self.most;
        // The second of all four.
        let second = before[0].min(now[0]).max(before[1]).max(now[1]);
        Duration::from_micros(second.into()).min(Lateness::SLICE).min(round_trip / Lateness::SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The allowance on a long way after these times by which a host was late, each this time after the first, in milliseconds.
    fn allowance(times: &[(u64, u64)]) -> Duration {
        let mut lateness = Lateness::default();
        times.iter().for_each(|(at, late)| lateness.take(ms(*late), Instant::from_ns((1000 + at) * 1_000_000)));
        lateness.allowance(LONG)
    }

    #[test]
    fn the_second_most_lately_counts_up_to_a_time_slice_and_a_part_of_the_round_trip() {
        assert_eq!(Lateness::default().allowance(LONG), Duration::ZERO);
        assert_eq!(allowance(&[(0, 2), (10, 1)]), ms(1));
        assert_eq!(allowance(&[(0, 2), (10, 1), (20, 2)]), ms(2));
        assert_eq!(allowance(&[(0, 1), (10, 2), (110, 3)]), ms(2), "of two periods");
        assert_eq!(allowance(&[(0, 2), (10, 3), (110, 1)]), ms(2), "both of the one before");
        assert_eq!(allowance(&[(0, 50), (20, 50)]), ms(4));
        let mut lateness = Lateness::default();
        (0..2).for_each(|_| lateness.take(ms(2), Instant::from_ns(1_000_000_000)));
        assert_eq!(lateness.allowance(ms(8)), ms(1));
    }

    /// What is caught up for it would stand in the queue, at once.
    #[test]
    fn a_host_that_was_late_once_is_on_time() {
        assert_eq!(allowance(&[(0, 3)]), Duration::ZERO);
        assert_eq!(allowance(&[(0, 3), (10, 0), (90, 0)]), Duration::ZERO);
        assert_eq!(allowance(&[(0, 3), (300, 3)]), Duration::ZERO);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        assert_eq!(allowance(&[(0, 3), (0, 3), (150, 0)]), ms(3), "in the period before");
        assert_eq!(allowance(&[(0, 3), (0, 3), (150, 0), (300, 0)]), ms(0));
        assert_eq!(allowance(&[(0, 3), (0, 3), (1000, 0)]), ms(0), "nothing was looked at for long");
    }
}

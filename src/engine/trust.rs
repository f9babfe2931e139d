use super::hold::{Hold, HoldLengths};
use crate::time::{Duration, Instant};

/// How long the background thread leaves the work to a program that polls, before it checks whether the program still
/// does.
pub(super) const PASSIVE: Duration = Duration::from_micros(500);

/// The same where a program has stepped all the time: each check costs it some 20 µs, and it goes on for about as long as it
/// has so far. It steps all the time when there are as many steps as this between two checks.
const PASSIVE_MOST: Duration = Duration::from_micros(4000);
const STEPS_EVERY: Duration = Duration::from_micros(100);

/// How long it cannot be so after the background thread has found frames that waited for it: a program that polls and computes
/// by turns lets them.
const DOUBT: Duration = Duration::from_millis(100);

/// The part of the time for which frames may wait while nobody looks: the kernel's threads take a processor for a millisecond
/// or two, some times a second. And how much beyond that is too much.
const ALLOWED: u32 = 50;
const LOST: Duration = Duration::from_millis(10);

/// How long it cannot be so when it is too much. Others need the program's processor then, for a time slice each time.
const BUSY: HoldLengths = HoldLengths {
    first: Duration::from_millis(1000),
    most: Duration::from_millis(16_000),
    soon: Duration::from_millis(1000),
};

/// How far the background thread trusts a program to go on polling.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    /// How much longer than [`PASSIVE`] the work is left to it.
    more: Duration,
    doubted_until: Instant,
    /// For how long frames have waited lately beyond what they may, as of a time.
    lost: (Duration, Instant),
    /// While it goes on, the machine counts as busy.
    busy: Hold,
}

impl Trust {
    /// How long the work is left to the program before the next check.
    pub fn patience(&self) -> Duration {
        PASSIVE + self.more
    }

    /// Notes that a check has found so many steps since the one before.
    pub fn stepped(&mut self, steps: u64, now: Instant) {
        let patience = self.patience();
        let steps_all_the_time = u128::from(steps) * STEPS_EVERY.as_nanos() >= patience.as_nanos();
        let is_trusted = steps_all_the_time && now >= self.doubted_until && !self.busy.lasts(now);
        self.more = if is_trusted { (patience * 2).min(PASSIVE_MOST) - PASSIVE } else { Duration::ZERO };
    }

    /// Notes that the background thread has done the work, and whether frames were there at first: they may have waited for as
    /// long as its patience was.
    pub fn did_not_step(&mut self, found_frames: bool, now: Instant) {
        if found_frames {
            self.doubted_until = now + DOUBT;
            self.frames_had_waited(self.patience(), now);
        }
        self.more = Duration::ZERO;
    }

    /// Notes that frames may have waited for so long lately, since nobody looked.
    pub fn frames_had_waited(&mut self, waited: Duration, now: Instant) {
        let (lost, before) = self.lost;
        let lost = lost.saturating_sub(now.saturating_since(before) / ALLOWED) + waited;
        self.lost = (lost, now);
        if lost >= LOST && !self.busy.lasts(now) {
            self.busy.begin(&BUSY, now);
            self.lost = (Duration::ZERO, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What patience is left after checks that found so many steps.
    fn patience(trust: Trust, checks: &[u64], now: Instant) -> Duration {
        let mut trust = trust;
        checks.iter().for_each(|steps| trust.stepped(*steps, now));
        trust.patience()
    }

    /// Else each check interrupts it; and frames that come when it has ended wait for long, if it did not step for long before.
    #[test]
    fn a_program_that_steps_all_the_time_is_checked_seldom() {
        let patience = |checks: &[u64]| patience(Trust::default(), checks, Instant::ZERO);
        assert_eq!(patience(&[4]), PASSIVE, "not all the time");
        assert_eq!([&[5][..], &[5, 10], &[5, 10, 20], &[5, 10, 20, 40]].map(patience), [1, 2, 4, 4].map(ms));
        assert_eq!(patience(&[5000, 10000, 19]), PASSIVE, "it has paused");
        let mut trust = Trust::default();
        trust.stepped(5000, Instant::ZERO);
        trust.did_not_step(false, Instant::ZERO);
        assert_eq!(trust.patience(), PASSIVE, "it does not step");
    }

    /// Else what comes when it computes waits for long.
    #[test]
    fn a_program_that_lets_frames_wait_is_checked_often_for_a_while() {
        let (mut trust, now) = (Trust::default(), Instant::ZERO + ms(1000));
        (0..3).for_each(|_| trust.stepped(5000, now));
        assert_eq!(trust.patience(), ms(4));
        trust.did_not_step(true, now);
        assert_eq!(patience(trust, &[5000; 4], now + ms(99)), PASSIVE);
        assert_eq!(patience(trust, &[5000; 4], now + DOUBT), PASSIVE_MOST);
    }

    /// What patience there is after 10 s in which nobody looks for so long, every so often.
    fn after_pauses(pause: Duration, every: Duration) -> Duration {
        let (mut trust, mut now) = (Trust::default(), Instant::ZERO + ms(1000));
        while now < Instant::ZERO + ms(11_000) {
            now = now + every;
            trust.frames_had_waited(pause, now);
        }
        patience(trust, &[5000; 4], now)
    }

    /// Else a program that loses its processor for a time slice, thirty times a second, sends nothing meanwhile.
    #[test]
    fn a_program_whose_processor_others_need_is_checked_often() {
        assert_eq!(after_pauses(ms(3), ms(33)), PASSIVE);
        assert_eq!(after_pauses(ms(1), ms(30)), PASSIVE);
        // The kernel's own threads.
        assert_eq!(after_pauses(ms(1), ms(100)), PASSIVE_MOST);
        assert_eq!(after_pauses(ms(6), ms(400)), PASSIVE_MOST);
    }

    #[test]
    fn a_machine_that_is_busy_again_soon_counts_as_busy_for_longer() {
        let (mut trust, mut now) = (Trust::default(), Instant::ZERO + ms(1000));
        for busy in [1000, 4000, 16_000, 16_000].map(ms) {
            trust.frames_had_waited(LOST, now);
            trust.frames_had_waited(LOST - ms(1), now + ms(50)); // while it is, that says nothing more
            assert_eq!(patience(trust, &[5000; 4], now + (busy - ms(1))), PASSIVE, "{busy:?}");
            assert_eq!(patience(trust, &[5000; 4], now + busy), PASSIVE_MOST, "{busy:?}");
            now = now + (busy + ms(999));
        }
        now = now + ms(1000);
        trust.frames_had_waited(LOST, now);
        assert_eq!(patience(trust, &[5000; 4], now + ms(1000)), PASSIVE_MOST, "that was long ago");
    }
}

use std::cell::Cell;

use super::hold::{Hold, HoldLengths};
use super::time_slice;
use crate::time::{Duration, Instant};

/// How long a poll that finds nothing sleeps at most, while others need its processor. A frame ends it earlier.
const REST: Duration = Duration::from_micros(100);

/// The same where frames have ended so many rests in a row, each within [`REST`]. It is as long as the kernel's ticks are apart,
/// on most machines. A timer that ends before the next tick takes up to 10 µs to set and to take back on virtual ones, which is
/// more than all else of a round trip.
const LONG_REST: Duration = Duration::from_millis(4);
const ENDED_EARLY: u32 = 16;

/// The longest time between two polls of a program that does nothing else.
const SPIN: Duration = Duration::from_micros(2);

/// Polls in a row that find nothing, at most [`SPIN`] apart, until it is taken for granted that the program only waits.
const SPINS: u32 = 4;

/// A time between two polls in which the thread can have waited for its processor.
const GAP: Duration = Duration::from_micros(20);

/// How often at most the kernel is asked for how long it did: that takes some 4 µs.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The part of the time that interrupts, the kernel's threads and waking up may take: it is no contention.
const ALLOWED: u32 = 8;

/// How much beyond that is. No more is remembered.
const LOST: Duration = Duration::from_micros(400);

/// How long it is then taken to go on. A rest on a processor that nobody else needs costs some 50 µs of waking up. To find out
/// that it still goes on takes the program's own time slice and those of others, up to 20 ms each. It is back when it comes
/// within some of them.
const HOLD: HoldLengths =
    HoldLengths { first: Duration::from_millis(5), most: Duration::from_millis(100), soon: Duration::from_millis(100) };

/// How long a program counts as one of several threads, after another one than before has polled or posted.
const SHARED: Duration = Duration::from_secs(10);

/// Whether other threads need the processor on which a program polls.
///
/// A program that spins keeps its processor until its time slice is over, and so does the next one: with two on one
/// processor, a round trip takes slices of 3 ms. One that sleeps is woken by its frame. On a processor that nobody else
/// needs, spinning is faster.
///
/// Threads that share a device often do so by a lock, which one has while it polls (UCX). If it slept then, the others would
/// get the lock tens of milliseconds later. So only programs rest that use the device by one thread.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// The last poll that found nothing, and how many there were in a row with nothing between them.
    polled_at: Instant,
    spins: u32,
    /// The thread that polled or posted last, and until when there is another beside it.
    thread: usize,
    shared_until: Instant,
    /// When the kernel was asked last.
    asked_at: Instant,
    /// The time that the program waited for its processor lately, beyond what is allowed.
    lost: Duration,
    /// While it goes on, polls rest.
    hold: Hold,
    /// How often one did.
    rests: u64,
    /// When the last rest began, until something is known of how it ended, and whether it could be long.
    resting: Option<(Instant, bool)>,
    /// Rests in a row that a frame ended within [`REST`]. While `doubt` goes on none is long: no frame ended a long one, and so the
    /// program can wait for something else.
    ended_early: u32,
    doubt: Hold,
}

impl Contention {
    /// Notes that a thread of the program polls or posts. It is told by a number of its own, which is not 0.
    pub fn used_by(&mut self, thread: usize, now: Instant) {
        let before = std::mem::replace(&mut self.thread, thread);
        if before != thread && before != 0 {
            self.shared_until = now + SHARED;
        }
    }

    /// Notes that a poll has found something at `now`: the program has to do.
    pub fn worked(&mut self, has_received: bool, now: Instant) {
        self.spins = 0;
        self.woken(has_received, now);
    }

    /// Notes how the last rest ended.
    fn woken(&mut self, has_received: bool, now: Instant) {
        let Some((began, is_long)) = self.resting.take() else { return };
        let is_early = has_received && now.saturating_since(began) < REST;
        self.ended_early = if is_early { self.ended_early.saturating_add(1) } else { 0 };
        if is_long && !has_received {
            self.doubt.begin(&HoldLengths::DOUBT, now);
        }
    }

    /// Notes that a poll has found nothing at `now`. Returns whether it shall [`rest`](Self::rest): not while nobody else needs
    /// the processor, nor while the program does other things between its polls. `waited` tells how long the calling thread
    /// has waited for its processor since it was asked last. Only threads that spin ask: it opens a file, which a program that
    /// sleeps between its polls shall not come to have at any moment.
    pub fn shall_rest(&mut self, now: Instant, waited: impl FnOnce() -> Duration) -> bool {
        self.woken(false, now);
        let apart = now.saturating_since(std::mem::replace(&mut self.polled_at, now));
        if apart > SPIN {
            let spun = std::mem::take(&mut self.spins) >= SPINS;
            let since = now.saturating_since(self.asked_at);
            if spun && apart >= GAP && since >= ASK_EVERY {
                self.asked_at = now;
                self.lost = (self.lost + waited()).saturating_sub(since / ALLOWED).min(LOST);
                if self.lost >= LOST && !self.hold.lasts(now) {
                    self.lost = Duration::ZERO;
                    self.hold.begin(&HOLD, now);
                }
            }
            return false;
        }
        self.spins = self.spins.saturating_add(1);
        self.hold.lasts(now) && self.spins >= SPINS && now >= self.shared_until
    }

    /// How long a poll sleeps, unless a frame arrives, that has nothing to do for a time of `idle` from `now` on; `None` when
    /// something is due. A long rest does not end for what becomes due after [`REST`]: that is what has no answer in time, and
    /// is then at most [`LONG_REST`] late.
    pub fn rest(&mut self, idle: Duration, now: Instant) -> Option<Duration> {
        let is_long = idle >= REST && self.ended_early >= ENDED_EARLY && !self.doubt.lasts(now);
        let rest = if is_long { LONG_REST } else { idle.min(REST) };
        if rest.is_zero() {
            return None;
        }
        self.rests += 1;
        self.resting = Some((now, is_long));
        Some(rest)
    }

    /// Polls that slept instead of spinning.
    pub fn rests(&self) -> u64 {
        self.rests
    }
}

/// A number of the calling thread, as long as it lives.
pub(super) fn this_thread() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

/// How long the calling thread has waited for a processor since it asked last (proc(5), `schedstat`). Nothing when it asks for
/// the first time, and where the kernel does not count it.
pub(super) fn waited() -> Duration {
    thread_local!(static BEFORE: Cell<Option<u64>> = const { Cell::new(None) });
    let total = waited_in_all();
    let before = BEFORE.replace(total);
    let new = total.zip(before).map_or(0, |(total, before)| total.saturating_sub(before));
    Duration::from_nanos(new)
}

fn waited_in_all() -> Option<u64> {
    let mut text = [0; 96];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/thread-self/schedstat", flags, rustix::fs::Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut text).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Has the calling thread wake early from its rests, once and for all: programs that never sleep keep it from the processor for
/// the rest of their time slice otherwise.
pub(super) fn wake_early() {
    thread_local!(static DOES: Cell<bool> = const { Cell::new(false) });
    if !DOES.replace(true) {
        time_slice::shorten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_nanos(500);

    /// A program that polls every half a microsecond, until its `time` is over. Of each `period` it loses the first `lost`, to
    /// another thread or, if not `to_others`, to its own work. Returns the part of the time in which it rested.
    fn rested(period: Duration, lost: Duration, to_others: bool, time: Duration) -> f64 {
        let (mut contention, start) = (Contention::default(), Instant::ZERO + Duration::from_millis(1000));
        let (mut now, mut next, mut rested) = (start, start + period, Duration::ZERO);
        let mut waited = Duration::ZERO;
        while now < start + time {
            now = now + STEP;
            if now >= next {
                now = now + lost;
                next = next + period;
                waited += if to_others { lost } else { Duration::ZERO };
            }
            if contention.shall_rest(now, || std::mem::take(&mut waited)) {
                now = now + REST;
                rested += REST;
            }
        }
        rested.div_duration_f64(time)
    }

    #[test]
    fn a_program_that_waits_for_its_processor_rests() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        // Another program that spins: slices of 3 ms by turns, so that half of the time is left.
        assert!(rested(ms(6), ms(3), true, ms(1000)) > 0.4);
        // One with precedence that takes a fourth of the time.
        assert!(rested(us(120), us(30), true, ms(1000)) > 0.5);
        // The kernel's own threads, and the program's own work, are no reason.
        assert_eq!(rested(ms(10), us(300), true, ms(10_000)), 0.0);
        assert_eq!(rested(ms(6), ms(3), false, ms(1000)), 0.0);
    }

    #[test]
    fn it_rests_only_when_it_waits_for_nothing_else_and_spins_again_afterwards() {
        let mut contention = Contention::default();
        let mut now = Instant::ZERO + Duration::from_millis(1000);
        let mut spin = |contention: &mut Contention, gap, count| {
            let mut rests = 0;
            for _ in 0..count {
                now = now + gap;
                rests += usize::from(contention.shall_rest(now, || gap));
            }
            rests
        };
        // The first time, it is not known since when the program has waited.
        for _ in 0..2 {
            assert_eq!(spin(&mut contention, STEP, 100), 0);
            spin(&mut contention, Duration::from_millis(3), 1);
        }
        assert_eq!(spin(&mut contention, STEP, SPINS as usize - 1), 0, "it may be that there is more to do");
        assert_eq!(spin(&mut contention, STEP, 1), 1);
        // A program that works between its polls is left alone, and one that has found something, too.
        assert_eq!(spin(&mut contention, 2 * SPIN, 1000), 0);
        spin(&mut contention, STEP, SPINS as usize - 1);
        contention.worked(true, Instant::ZERO);
        assert_eq!(spin(&mut contention, STEP, SPINS as usize - 1), 0);
        assert_eq!(spin(&mut contention, STEP, 1000), 1000);
        now = now + HOLD.most;
        assert!((0..1000).all(|_| {
            now = now + STEP;
            !contention.shall_rest(now, || Duration::ZERO)
        }));
    }

    /// Else one thread of the kernel that runs for half a millisecond makes a tenth of a second slow.
    #[test]
    fn it_rests_for_longer_the_more_often_others_come_back() {
        let ms = Duration::from_millis;
        // Interrupts each millisecond, and each fifth of a second a thread of the kernel, for a millisecond.
        let (mut contention, mut waited) = (Contention::default(), ms(0));
        let (mut now, mut rests) = (Instant::ZERO + ms(1000), ms(0));
        for at in 0..2000 {
            let lost = if at % 200 == 199 { ms(1) } else { GAP };
            (now, waited) = (now + lost, waited + lost);
            let until = now + ms(1);
            while now < until {
                let does_rest = contention.shall_rest(now, || std::mem::take(&mut waited));
                rests += if does_rest { REST } else { Duration::ZERO };
                now = now + if does_rest { REST } else { STEP };
            }
        }
        assert!((ms(40)..ms(60)).contains(&rests), "{rests:?} of 2 s, ten times 5 ms");
        // By turns with another one: 5, 20, 80 and then 100 ms, with a slice or two between them. Half of the time is the other
        // one's.
        let often = [3, 20].map(|slice| rested(ms(2 * slice), ms(slice), true, ms(5000)));
        assert!(often[0] > 0.45 && often[1] > 0.35, "{often:?}");
    }

    /// The rests of a program that each take so long until a frame or, if it is not `by_frame`, the rest itself ends them. `idle`
    /// is when something is due.
    fn rest(
        contention: &mut Contention,
        now: &mut Instant,
        by_frame: bool,
        length: Duration,
        idle: Duration,
    ) -> Duration {
        let rest = contention.rest(idle, *now).unwrap();
        if by_frame {
            *now = *now + length;
            contention.worked(true, *now);
        } else {
            *now = *now + rest;
            contention.shall_rest(*now, || Duration::ZERO);
        }
        rest
    }

    /// Else each of them sets a timer and takes it back, for longer than the round trip takes.
    #[test]
    fn rests_that_frames_end_are_long() {
        let us = Duration::from_micros;
        let after = |by_frame, length, idle| {
            let (mut contention, mut now) = (Contention::default(), Instant::ZERO + Duration::from_millis(1000));
            (0..ENDED_EARLY).for_each(|_| {
                assert!(rest(&mut contention, &mut now, by_frame, length, us(900)) <= REST);
            });
            contention.rest(idle, now).unwrap()
        };
        assert_eq!(after(true, us(10), us(900)), LONG_REST);
        assert_eq!(after(true, us(10), us(50)), us(50), "what is due soon is not late");
        assert_eq!(after(true, us(101), us(900)), REST, "frames that end them are far apart");
        assert_eq!(after(false, us(10), us(900)), REST, "no frames end them");
    }

    /// Else one that waits for something else each time, after some messages, is milliseconds late each time.
    #[test]
    fn a_long_rest_that_no_frame_ends_is_the_last_one_for_a_while() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        let (mut contention, start) = (Contention::default(), Instant::ZERO + ms(1000));
        let (mut now, mut late) = (start, Duration::ZERO);
        while now < start + ms(10_000) {
            for _ in 0..100 {
                rest(&mut contention, &mut now, true, us(10), us(900));
            }
            late += rest(&mut contention, &mut now, false, us(0), us(900)).saturating_sub(REST);
        }
        assert!((ms(40)..ms(60)).contains(&late), "{late:?}: after 10, 40, 160, 640 ms, and then each second");
    }

    #[test]
    fn only_threads_that_spin_ask_the_kernel() {
        let mut contention = Contention::default();
        let mut now = Instant::ZERO;
        for polls in [1, SPINS - 1, SPINS] {
            for _ in 0..polls {
                now = now + STEP;
                contention.shall_rest(now, || panic!("it spins"));
            }
            now = now + Duration::from_millis(1000);
            let mut asked = false;
            contention.shall_rest(now, || {
                asked = true;
                Duration::ZERO
            });
            assert_eq!(asked, polls == SPINS, "{polls} polls");
        }
    }

    /// Else a thread sleeps while it has the lock that others wait for.
    #[test]
    fn several_threads_do_not_rest() {
        let start = Instant::ZERO + Duration::from_millis(1000);
        let rests = |threads: [usize; 2], now: Instant| {
            let mut contention = Contention::default();
            contention.hold.begin(&HOLD, now);
            threads.into_iter().for_each(|thread| contention.used_by(thread, start));
            (0..=SPINS).map(|_| contention.shall_rest(now, || Duration::ZERO)).filter(|rests| *rests).count()
        };
        assert_eq!(rests([7, 7], start), 1);
        assert_eq!(rests([7, 8], start + (SHARED - Duration::from_nanos(1))), 0);
        assert_eq!(rests([7, 8], start + SHARED), 1);
        let other = std::thread::spawn(this_thread).join().unwrap();
        assert!(this_thread() == this_thread() && other != 0);
    }

    #[test]
    fn it_does_not_rest_when_something_is_due() {
        let (mut contention, now) = (Contention::default(), Instant::ZERO);
        assert_eq!(contention.rest(Duration::ZERO, now), None);
        let due = Duration::from_micros(7);
        let idle = Duration::from_millis(9);
        assert_eq!((contention.rest(due, now), contention.rest(idle, now)), (Some(due), Some(REST)));
        assert_eq!(contention.rests(), 2);
    }
}

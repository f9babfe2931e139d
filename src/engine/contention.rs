use std::cell::Cell;

use super::hold::{Hold, HoldLengths};
use super::time_slice;
use crate::time::{Duration, Instant};

/// How long a poll that finds nothing sleeps at most, while others need its processor. A frame ends it earlier.
const REST: Duration = Duration::from_micros(100);

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
}

impl Contention {
    /// Notes that a thread of the program polls or posts. It is told by a number of its own, which is not 0.
    pub fn used_by(&mut self, thread: usize, now: Instant) {
        let before = std::mem::replace(&mut self.thread, thread);
        if before != thread && before != 0 {
            self.shared_until = now + SHARED;
        }
    }

    /// Notes that a poll has found something: the program has to do.
    pub fn worked(&mut self) {
        self.spins = 0;
    }

    /// Notes that a poll has found nothing at `now`. Returns whether it shall [`rest`](Self::rest): not while nobody else needs
    /// the processor, nor while the program does other things between its polls. `waited` tells how long the calling thread
    /// has waited for its processor since it was asked last. Only threads that spin ask: it opens a file, which a program that
    /// sleeps between its polls shall not come to have at any moment.
    pub fn shall_rest(&mut self, now: Instant, waited: impl FnOnce() -> Duration) -> bool {
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

    /// How long a poll sleeps, unless a frame arrives, that has nothing to do for a time of `idle`; `None` when something is
    /// due.
    pub fn rest(&mut self, idle: Duration) -> Option<Duration> {
        let rest = Some(idle.min(REST)).filter(|rest| !rest.is_zero())?;
        self.rests += 1;
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
        contention.worked();
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
        let mut contention = Contention::default();
        assert_eq!(contention.rest(Duration::ZERO), None);
        let due = Duration::from_micros(7);
        assert_eq!((contention.rest(due), contention.rest(Duration::from_millis(9))), (Some(due), Some(REST)));
        assert_eq!(contention.rests(), 2);
    }
}

use std::io;
use std::os::fd::RawFd;

use super::event_fd::EventFd;
use super::trust::Trust;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{LockResult, Mutex, MutexGuard, thread};
use crate::time::{Duration, Instant};

/// How often frames wake the background thread while it leaves the work to the program, after it found some that waited
/// for `trust::PASSIVE`.
///
/// Programs poll for their own requests, and then wait for the peer's in memory, without a call (as `ib_write_lat`
/// does). A program that only polls is disturbed at most this often.
const WATCHFUL_WAITS: u32 = 16;

/// How long it then still leaves the frames to the program: the time of some polls, after the end of the step that the program is
/// at. Longer steps are those of a program that moves a lot, and goes on with it.
const GRACE: Duration = Duration::from_micros(5);
const LONG_STEP: Duration = Duration::from_micros(20);

/// Polls that find the core taken until the program yields. The holder of the core can be waiting for this very
/// processor: programs are often bound to one (by mpirun, for example), and their background thread with them. A step
/// takes up to some 100 µs, as many polls as this a microsecond or two.
const YIELD_EVERY: u64 = 32;

/// Who drives the core: the program's threads, or the background thread when none of them does.
pub(super) struct Turns {
    /// Threads that want the core for something urgent. Steppers let them pass: a mutex is not fair.
    waiting: AtomicUsize,
    /// Polls and posts by program threads.
    polls: AtomicU64,
    /// Those that stepped. Of polls the others found the core taken, or a thread waiting for it; posts step when nobody has
    /// for a while.
    steps: AtomicU64,
    /// Whether a poll is stepping right now.
    is_stepping: AtomicBool,
    /// Polls that did not step.
    misses: AtomicU64,
    /// Threads of the program that sleep between two polls, until a frame arrives.
    resting: AtomicUsize,
    /// Whether the background thread does the stepping now.
    background_is_active: AtomicBool,
    /// Completion queues with a requested notification, approximately: their programs sleep and do not step.
    sleepers: AtomicBool,
    stop: AtomicBool,
    /// For how long nobody had looked when a step of the program found frames, in nanoseconds, until the next check.
    unseen_ns: AtomicU64,
    /// Whether `wake` was signalled since the background thread last woke: another signal would be one system call more.
    is_woken: AtomicBool,
    wake: EventFd,
}

/// The result of a step of the background thread.
pub(super) struct Round {
    /// Whether frames had arrived.
    pub received: bool,
    /// Whether there can be more to do at once.
    pub worked: bool,
    /// How long there is nothing to do, unless something arrives.
    pub sleep: Duration,
}

impl Turns {
    pub fn new() -> io::Result<Turns> {
        Ok(Turns {
            waiting: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            is_stepping: AtomicBool::new(false),
            misses: AtomicU64::new(0),
            resting: AtomicUsize::new(0),
            background_is_active: AtomicBool::new(false),
            sleepers: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            unseen_ns: AtomicU64::new(0),
            is_woken: AtomicBool::new(false),
            wake: EventFd::new()?,
        })
    }

    /// Waits for the core, and locks it.
    pub fn lock<'a, T>(&self, core: &'a Mutex<T>) -> LockResult<MutexGuard<'a, T>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let locked = core.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        locked
    }

    /// Has a program that polls do a `step`, unless another thread has the core or waits for it. A step that worked returns
    /// true: it can have left something to a later one, such as an acknowledge or a timer.
    pub fn poll<T>(&self, core: &Mutex<T>, step: impl FnOnce(&mut T) -> bool) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Ok(mut core) = core.try_lock()
        {
            self.is_stepping.store(true, Ordering::Relaxed);
            self.count_step();
            let worked = step(&mut core);
            self.is_stepping.store(false, Ordering::Relaxed);
            drop(core);
            if worked && !mutated!("step-wakes-nobody", by "uroce-loom --test engine what_the_last_poll_before_a_sleep")
            {
                self.changed();
            }
        } else if self.misses.fetch_add(1, Ordering::Relaxed) % YIELD_EVERY == YIELD_EVERY - 1 {
            thread::yield_now();
        }
    }

    /// Has a program that polls sleep by `wait`, which frames end. They are left to it.
    pub fn rest(&self, wait: impl FnOnce()) {
        self.resting.fetch_add(1, Ordering::Relaxed);
        wait();
        self.resting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes that a program with the core has posted requests, and has `stepped` or not.
    pub fn posted(&self, stepped: bool) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if stepped {
            self.count_step();
        }
    }

    /// Nobody else counts: the caller has the core.
    fn count_step(&self) {
        self.steps.store(self.steps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes that a step of the program, which has the core, has found frames when nobody had looked for so long.
    pub fn frames_had_waited(&self, waited: Duration) {
        self.unseen_ns.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Announces that the core was changed, and given back: the background thread can have to wake earlier now.
    pub fn changed(&self) {
        if self.background_is_active.load(Ordering::Relaxed)
            && !mutated!("change-wakes-nobody", by "uroce --lib what_changes_wakes_the_background_thread")
        {
            self.wake_background();
        }
    }

    /// Announces that the program will sleep: the background thread must watch from now on. While it does, nobody is woken:
    /// there are programs that request a notification a hundred thousand times a second, and look in between (NIXL).
    pub fn will_sleep(&self) {
        if !mutated!("sleep-not-announced", by "uroce-loom --test engine a_program_that_goes_to_sleep") {
            self.sleepers.store(true, Ordering::Relaxed);
        }
        // Either this sees that the background thread has given its turn away, or that sees the sleeper.
        fence(Ordering::SeqCst);
        if !self.background_is_active.load(Ordering::Relaxed)
            && !mutated!("sleep-wakes-nobody", by "uroce-loom --test engine a_program_that_goes_to_sleep")
        {
            self.wake_background();
        }
    }

    /// Ends [`run_in_background`](Turns::run_in_background).
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        if !mutated!("end-wakes-nobody", by "uroce --lib what_changes_wakes_the_background_thread") {
            self.wake_background();
        }
    }

    fn wake_background(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.wake.signal();
        }
    }

    /// Has the background thread sleep until it is woken, until one of `fds` is readable, or for `timeout`.
    fn wait(&self, fds: &[RawFd], timeout: Duration) {
        self.wake.wait(fds, timeout);
        // Before it looks at what has changed: what changes from now on wakes it anew.
        if !mutated!("woken-once", by "uroce-loom --test engine") {
            self.is_woken.swap(false, Ordering::AcqRel);
        }
    }

    /// Does the stepping whenever no program does, by calls of `round`, which takes the core. Frames make `fds`
    /// readable.
    pub fn run_in_background(&self, fds: &[RawFd], now: impl Fn() -> Instant, mut round: impl FnMut() -> Round) {
        // Waits in which frames wake us, too: the program has left some lying lately.
        let mut watchful = 0;
        let mut trust = Trust::default();
        while !self.stop.load(Ordering::Acquire) {
            let before = self.steps.load(Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.sleepers.load(Ordering::Relaxed) {
                let watches = self.watches(watchful);
                self.wait(if watches { fds } else { &[] }, trust.patience());
                if watches && !self.watches(watchful) {
                    continue;
                }
                if watchful > 0 && self.steps.load(Ordering::Relaxed) == before {
                    self.let_the_program_go_first(before, &now);
                }
                let steps = self.steps.load(Ordering::Relaxed).wrapping_sub(before);
                if steps > 0 || self.is_stepping.load(Ordering::Relaxed) || self.rests() {
                    watchful = u32::saturating_sub(watchful, 1);
                    let now = now();
                    let unseen = self.unseen_ns.swap(0, Ordering::Relaxed);
                    if unseen > 0 {
                        trust.frames_had_waited(Duration::from_nanos(unseen), now);
                    }
                    trust.stepped(steps, now);
                    continue;
                }
            }
            self.background_is_active.store(true, Ordering::Release);
            let found_frames = self.step_until_programs_do(fds, &mut round);
            if found_frames {
                watchful = WATCHFUL_WAITS;
            }
            trust.did_not_step(found_frames, now());
            self.background_is_active.store(false, Ordering::Release);
        }
    }

    /// Whether frames wake the background thread, too, while it leaves the work to a program. A program that rests is woken by
    /// them itself; if another took them first, it would sleep on.
    fn watches(&self, watchful: u32) -> bool {
        watchful > 0 && !self.rests()
    }

    /// Whether a program rests: it will step soon, and is left the frames.
    fn rests(&self) -> bool {
        self.resting.load(Ordering::Relaxed) > 0
    }

    /// Waits, after frames arrived, for a program that polls to take them: for its next step, since the one that it is at can
    /// have looked for frames before. Who took them meanwhile would keep the program from the core, and find more next time.
    fn let_the_program_go_first(&self, before: u64, now: &impl Fn() -> Instant) {
        let start = now();
        let mut end = start + GRACE;
        while self.steps.load(Ordering::Relaxed) == before {
            let time = now();
            if time >= end {
                break;
            }
            if self.is_stepping.load(Ordering::Relaxed)
                && !mutated!("long-steps-are-interrupted", by "uroce --lib a_step_that_takes_long")
            {
                end = (time + GRACE).min(start + LONG_STEP);
            }
            thread::spin_loop();
        }
    }

    /// Steps until programs do. Returns whether frames had been waiting at first.
    fn step_until_programs_do(&self, fds: &[RawFd], round: &mut impl FnMut() -> Round) -> bool {
        let mut before = self.polls.load(Ordering::Relaxed);
        let mut found = None;
        while !self.stop.load(Ordering::Acquire) {
            let Round { received, worked, sleep } = round();
            found.get_or_insert(received);
            let polls = self.polls.load(Ordering::Relaxed);
            if self.sleepers.swap(false, Ordering::AcqRel)
                && !mutated!("last-poll-before-sleep-counts", by "uroce --lib a_program_that_has_polled_and_sleeps")
            {
                // They will sleep after polling for the last time.
                before = polls;
            } else if polls != before
                && (self.waiting.load(Ordering::Relaxed) == 0
                    || mutated!("background-rests-while-others-wait", by "uroce --lib polls_that_cannot_step_do_not"))
            {
                // They can step. While others wait for the core, theirs would come to nothing.
                break;
            }
            if !worked {
                self.wait(fds, sleep);
            }
        }
        found.unwrap_or(false)
    }
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turns({} polls, {} steps)", self.polls.load(Ordering::Relaxed), self.steps.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when many threads post without a pause: one of them always waits for the core, and polls come to nothing.
    #[test]
    fn polls_that_cannot_step_do_not_keep_the_background_thread_from_it() {
        let (turns, core) = (Turns::new().unwrap(), Mutex::new(0));
        let poll = || {
            turns.poll(&core, |steps| {
                *steps += 1;
                false
            })
        };
        let steps = || turns.steps.load(Ordering::Relaxed);
        turns.waiting.fetch_add(1, Ordering::Relaxed);
        poll();
        assert_eq!((steps(), *core.lock().unwrap()), (0, 0), "it stays the background thread's turn");
        // The program polls before each look, and the background thread goes on.
        let mut rounds = 0;
        let mut round = || {
            poll();
            rounds += 1;
            match rounds {
                100 => turns.stop(),
                50 => assert_eq!(turns.waiting.fetch_sub(1, Ordering::Relaxed), 1),
                _ => {}
            }
            Round { received: false, worked: true, sleep: Duration::ZERO }
        };
        turns.step_until_programs_do(&[], &mut round);
        assert_eq!(rounds, 50, "until nobody waits any more: then the program can step");
        poll();
        assert_eq!((steps(), *core.lock().unwrap()), (1, 1));
    }

    /// A poll shows that the program steps, but not when it was the last one before it sleeps.
    #[test]
    fn a_program_that_has_polled_and_sleeps_is_not_waited_for() {
        let (turns, core) = (Turns::new().unwrap(), Mutex::new(()));
        let mut rounds = 0;
        let mut round = || {
            rounds += 1;
            match rounds {
                5 => {
                    turns.poll(&core, |()| false);
                    turns.will_sleep();
                }
                10 => turns.poll(&core, |()| false),
                _ => {}
            }
            Round { received: false, worked: true, sleep: Duration::ZERO }
        };
        turns.step_until_programs_do(&[], &mut round);
        assert_eq!(rounds, 10, "until it polls without going to sleep");
    }

    /// A program that posts drives the core: the background thread leaves it the work, although it never finds the completion
    /// queue empty and so never polls.
    #[test]
    fn the_background_thread_leaves_the_work_to_a_program_that_posts() {
        let turns = Turns::new().unwrap();
        let mut rounds = 0;
        let mut round = || {
            rounds += 1;
            match rounds {
                5 => turns.posted(false),
                10 => turns.stop(),
                _ => {}
            }
            Round { received: false, worked: true, sleep: Duration::ZERO }
        };
        turns.step_until_programs_do(&[], &mut round);
        assert_eq!(rounds, 5, "until it posts");
    }

    /// Else the frame that wakes both can be gone when the program looks, and it sleeps on.
    #[test]
    fn frames_wake_either_the_background_thread_or_a_program_that_rests() {
        let turns = Turns::new().unwrap();
        let watches = || [0, 1].map(|watchful| turns.watches(watchful));
        let mut in_rest = [true; 2];
        turns.rest(|| in_rest = watches());
        assert_eq!((in_rest, watches()), ([false; 2], [false, true]));
    }

    /// Else the background thread takes the frames for which a program sleeps, and it sleeps on.
    #[test]
    fn the_background_thread_leaves_the_work_to_a_program_that_rests() {
        let (turns, waits) = (Turns::new().unwrap(), AtomicU64::new(0));
        let mut rounds = 0;
        let mut round = || {
            rounds += 1;
            turns.stop();
            Round { received: false, worked: true, sleep: Duration::ZERO }
        };
        let now = || {
            if waits.fetch_add(1, Ordering::Relaxed) == 10 {
                turns.stop();
            }
            Instant::ZERO
        };
        turns.rest(|| turns.run_in_background(&[], now, &mut round));
        assert_eq!((rounds, waits.load(Ordering::Relaxed)), (0, 11));
    }

    /// Else the background thread, which frames wake, would take more of them each time, and go on so.
    #[test]
    fn a_step_that_takes_long_is_no_reason_to_take_the_frames() {
        // A clock that advances a microsecond each time, and a program whose step ends, and whose next one begins, at these times.
        let waits_until = |ends: u64, begins: u64| {
            let (turns, time) = (Turns::new().unwrap(), AtomicU64::new(0));
            turns.is_stepping.store(ends > 0, Ordering::Relaxed);
            let now = || {
                let time = time.fetch_add(1, Ordering::Relaxed);
                turns.is_stepping.store(time < ends || time >= begins, Ordering::Relaxed);
                turns.steps.store((time >= begins).into(), Ordering::Relaxed);
                Instant::ZERO + Duration::from_micros(time)
            };
            turns.let_the_program_go_first(0, &now);
            time.load(Ordering::Relaxed) - 1
        };
        const NEVER: u64 = u64::MAX;
        assert_eq!(waits_until(0, NEVER), 5, "it does not step");
        assert_eq!(waits_until(0, 3), 3, "it steps soon");
        assert_eq!(waits_until(10, 13), 13, "it is at a step, and goes on");
        assert_eq!(waits_until(10, NEVER), 14, "it is at its last step");
        assert_eq!(waits_until(NEVER, NEVER), 20, "it is at a long one");
    }

    /// It sleeps for long: what is posted meanwhile, and the end, must not wait for that.
    #[test]
    fn what_changes_wakes_the_background_thread() {
        let (turns, rounds) = (Turns::new().unwrap(), AtomicU64::new(0));
        let wait_for = |what: &dyn Fn() -> bool| {
            let looks = (0..2000).any(|_| {
                std::thread::park_timeout(std::time::Duration::from_millis(5));
                what()
            });
            if !looks {
                turns.stop();
            }
            assert!(looks, "after ten seconds");
        };
        let has_ended = AtomicBool::new(false);
        let background = || {
            let round = || {
                rounds.fetch_add(1, Ordering::Relaxed);
                Round { received: false, worked: false, sleep: Duration::from_millis(20_000) }
            };
            turns.run_in_background(&[], || Instant::ZERO, round);
            has_ended.store(true, Ordering::Release);
        };
        std::thread::scope(|scope| {
            scope.spawn(background);
            wait_for(&|| rounds.load(Ordering::Relaxed) > 0);
            for _ in 0..3 {
                // Long after it has fallen asleep.
                std::thread::park_timeout(std::time::Duration::from_millis(20));
                let before = rounds.load(Ordering::Relaxed);
                turns.changed();
                wait_for(&|| rounds.load(Ordering::Relaxed) > before);
            }
            turns.stop();
            wait_for(&|| has_ended.load(Ordering::Acquire));
        });
    }
}

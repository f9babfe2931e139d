//! The engine's turns, and an event descriptor to wake its thread.

#[path = "../../../src/engine/hold.rs"]
mod hold;
#[path = "../../../src/engine/trust.rs"]
mod trust;
#[path = "../../../src/engine/turns.rs"]
mod turns;

mod event_fd {
    use std::cell::Cell;
    use std::os::fd::RawFd;

    use loom::sync::{Condvar, Mutex};

    use super::trust::PASSIVE;
    use crate::time::Duration;

    std::thread_local! {
        /// Whether short waits end by themselves. A model's threads are one of the system's.
        pub static TIME_PASSES: Cell<bool> = const { Cell::new(true) };
    }

    loom::lazy_static! {
        /// What ends the waits of a model's only event descriptor.
        static ref REASONS: Reasons = Reasons::default();
    }

    /// What ends a wait.
    #[derive(Default)]
    struct Reasons {
        /// A signal, and whether frames wait in a link.
        signal_and_frames: Mutex<(bool, bool)>,
        changed: Condvar,
    }

    /// As the real one, but that long waits end by a signal or frames only.
    pub struct EventFd;

    impl EventFd {
        pub fn new() -> std::io::Result<EventFd> {
            Ok(EventFd)
        }

        pub fn signal(&self) {
            REASONS.signal_and_frames.lock().unwrap().0 = true;
            REASONS.changed.notify_one();
        }

        pub fn wait(&self, fds: &[RawFd], timeout: Duration) {
            let ends = timeout <= PASSIVE && TIME_PASSES.get();
            if ends {
                // The others get on meanwhile.
                loom::thread::yield_now();
            }
            let mut reasons = REASONS.signal_and_frames.lock().unwrap();
            while !(ends || reasons.0 || reasons.1 && !fds.is_empty()) {
                reasons = REASONS.changed.wait(reasons).unwrap();
            }
            reasons.0 = false;
        }
    }

    /// Frames arrive: waits for the link's descriptors end.
    pub fn frames_arrive() {
        REASONS.signal_and_frames.lock().unwrap().1 = true;
        REASONS.changed.notify_one();
    }
}

/// The models.
pub mod models {
    use std::os::fd::RawFd;

    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::event_fd::{TIME_PASSES, frames_arrive};
    use super::turns::{Round, Turns};
    use crate::time::{Duration, Instant};

    /// What the turns are about: something that becomes due, and is done by whoever steps.
    #[derive(Default)]
    struct Core {
        is_due: bool,
        is_done: bool,
        steps: u64,
    }

    impl Core {
        fn step(&mut self) -> bool {
            self.steps += 1;
            self.is_done |= self.is_due;
            self.is_due
        }
    }

    struct Shared {
        turns: Turns,
        core: Mutex<Core>,
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared { turns: Turns::new().unwrap(), core: Mutex::new(Core::default()) })
    }

    /// A link's descriptor.
    const LINK: RawFd = 7;

    /// The background thread, which ends when all is done, and else sleeps for as long as it may.
    fn background(shared: &Shared) {
        let round = || {
            let mut core = shared.turns.lock(&shared.core).unwrap();
            core.step();
            if core.is_done {
                shared.turns.stop();
            }
            Round { received: false, worked: false, sleep: Duration::from_secs(1) }
        };
        shared.turns.run_in_background(&[LINK], || Instant::ZERO, round);
    }

    /// A program changes something, and never steps: the background thread does what has become due, however deep it sleeps.
    pub fn what_a_program_changes_is_seen_by_the_background_thread() {
        what_becomes_due_is_done(|_| ());
    }

    /// The same, although the background thread leaves a program that posts its turn.
    pub fn what_a_program_posts_is_seen_by_the_background_thread() {
        what_becomes_due_is_done(|turns| turns.posted(false));
    }

    fn what_becomes_due_is_done(with_the_core: fn(&Turns)) {
        let shared = shared();
        let program = shared.clone();
        let program = thread::spawn(move || {
            let mut core = program.turns.lock(&program.core).unwrap();
            core.is_due = true;
            with_the_core(&program.turns);
            drop(core);
            program.turns.changed();
        });
        background(&shared);
        program.join().unwrap();
        assert!(shared.core.lock().unwrap().is_done);
    }

    /// A program polls, frames come, and the program announces its sleep: the background thread sees to them, at once and although
    /// the program has just polled.
    pub fn a_program_that_goes_to_sleep_is_watched_for() {
        a_program_sleeps(false, |program| {
            program.turns.poll(&program.core, Core::step);
            program.core.lock().unwrap().is_due = true;
            frames_arrive();
        });
    }

    /// A program's poll leaves something to a later step, and the program announces its sleep: the background thread does it, also
    /// when it was asleep itself at the time of the poll.
    pub fn what_the_last_poll_before_a_sleep_leaves_is_done() {
        a_program_sleeps(true, |program| {
            let mut stepped = false;
            program.turns.poll(&program.core, |core| {
                (stepped, core.is_due) = (true, true);
                true
            });
            if !stepped {
                program.core.lock().unwrap().is_due = true;
                program.turns.changed();
            }
        });
    }

    /// Unless `time_passes`, the background thread is not awake before the program sleeps.
    fn a_program_sleeps(time_passes: bool, before: fn(&Shared)) {
        TIME_PASSES.set(time_passes);
        let shared = shared();
        let program = shared.clone();
        let program = thread::spawn(move || {
            before(&program);
            program.turns.will_sleep();
        });
        background(&shared);
        program.join().unwrap();
        assert!(shared.core.lock().unwrap().is_done);
    }

    /// Polls by several threads never step at once, and each step counts.
    pub fn polls_step_one_at_a_time() {
        let shared = shared();
        let other = shared.clone();
        let other = thread::spawn(move || other.turns.poll(&other.core, Core::step));
        shared.turns.poll(&shared.core, Core::step);
        other.join().unwrap();
        let steps = shared.core.lock().unwrap().steps;
        assert!((1..=2).contains(&steps));
        assert_eq!(format!("{:?}", shared.turns), format!("Turns(2 polls, {steps} steps)"));
    }
}

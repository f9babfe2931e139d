//! The engine's turns, and an event descriptor to wake its thread.

#[path = "../../../src/engine/turns.rs"]
mod turns;

mod event_fd {
    use std::cell::Cell;
    use std::os::fd::RawFd;

    use loom::sync::{Condvar, Mutex};

    use super::turns::PASSIVE;
    use crate::time::Duration;

    std::thread_local! {
        /// Whether short waits end by themselves. A model's threads are one of the system's.
        pub static TIME_PASSES: Cell<bool> = const { Cell::new(true) };
    }

    /// As the real one, but that long waits end by a signal only.
    pub struct EventFd {
        signalled: Mutex<bool>,
        changed: Condvar,
    }

    impl EventFd {
        pub fn new() -> std::io::Result<EventFd> {
            Ok(EventFd { signalled: Mutex::new(false), changed: Condvar::new() })
        }

        pub fn signal(&self) {
            *self.signalled.lock().unwrap() = true;
            self.changed.notify_one();
        }

        pub fn wait(&self, _fds: &[RawFd], timeout: Duration) {
            let ends = timeout <= PASSIVE && TIME_PASSES.get();
            if ends {
                // The others get on meanwhile.
                loom::thread::yield_now();
            }
            let mut signalled = self.signalled.lock().unwrap();
            while !*signalled && !ends {
                signalled = self.changed.wait(signalled).unwrap();
            }
            *signalled = false;
        }
    }
}

/// The models.
pub mod models {
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::event_fd::TIME_PASSES;
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
        fn step(&mut self) {
            self.steps += 1;
            self.is_done |= self.is_due;
        }
    }

    struct Shared {
        turns: Turns,
        core: Mutex<Core>,
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared { turns: Turns::new().unwrap(), core: Mutex::new(Core::default()) })
    }

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
        shared.turns.run_in_background(&[], || Instant::ZERO, round);
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

    /// A program polls, something comes that wakes nobody, and the program announces its sleep: the background thread sees to it,
    /// at once and although the program has just polled.
    pub fn a_program_that_goes_to_sleep_is_watched_for() {
        TIME_PASSES.set(false);
        let shared = shared();
        let program = shared.clone();
        let program = thread::spawn(move || {
            program.turns.poll(&program.core, Core::step);
            program.core.lock().unwrap().is_due = true;
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

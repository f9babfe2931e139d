/// Signals that a thread's own instructions raise. When they are blocked, the kernel ends the process instead of
/// calling a handler. Then no copy of vanished memory could fail.
const OWN: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Runs `spawn` with all signals blocked except [`OWN`], so that the thread it makes gets no other. Programs' handlers
/// must run in their own threads.
pub(crate) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are plain memory that the calls fill.
    unsafe {
        let mut others = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut others);
        let own = match mutated!("background-blocks-its-own-faults", by "uroce --lib a_thread_made_without_signals") {
            false => &OWN[..],
            true => &[],
        };
        for &signal in own {
            libc::sigdelset(&mut others, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &others, &mut before);
        let result = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

#[cfg(all(test, not(miri)))] // it has no signals
mod tests {
    use super::*;

    /// Whether the calling thread blocks these signals.
    fn blocks<const N: usize>(signals: [libc::c_int; N]) -> [bool; N] {
        // SAFETY: the set is plain memory, which the call fills.
        unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
            signals.map(|signal| libc::sigismember(&mask, signal) == 1)
        }
    }

    /// Else memory that vanishes would end the process, and programs' handlers would run in a thread that is not theirs.
    #[test]
    fn a_thread_made_without_signals_takes_those_that_its_own_instructions_raise() {
        const OTHERS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGUSR1, libc::SIGALRM];
        let before = blocks(OTHERS);
        let thread = without_signals(|| std::thread::spawn(|| (blocks(OWN), blocks(OTHERS))));
        assert_eq!(thread.join().unwrap(), ([false; 5], [true; 3]));
        assert_eq!(blocks(OTHERS), before, "who makes it blocks what it did before");
    }
}

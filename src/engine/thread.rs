use std::io;
use std::sync::{Arc, Barrier};
use std::thread::{Builder, JoinHandle};

/// Signals that a thread's own instructions raise. When they are blocked, the kernel ends the process instead of
/// calling a handler. Then no copy of vanished memory could fail.
const OWN: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Starts a thread of ours in a program: it blocks all signals except those that its own instructions can raise, since
/// programs' handlers must run in their own threads. It has begun when this returns.
///
/// What a thread begins with maps and unmaps memory: its stack for signals, the allocator's arena. Programs may write
/// other instructions over `mmap` and `munmap` as soon as they have a device, to learn what memory goes away (libfabric,
/// UCX). A thread that is in one of them then goes on in the middle of an instruction.
///
/// # Errors
/// [`io::Error`] when the kernel gives no thread.
pub(crate) fn start<T: Send + 'static>(
    thread: Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let begun = Arc::new(Barrier::new(2));
    let begins = begun.clone();
    let started = without_signals(|| {
        thread.spawn(move || {
            // The first of a thread's allocations makes its arena.
            drop(std::hint::black_box(Box::new(0_u64)));
            begins.wait();
            work()
        })
    })?;
    begun.wait();
    Ok(started)
}

/// Runs `spawn` with all signals blocked except [`OWN`], which the thread that it makes inherits.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
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
    use std::ffi::CStr;
    use std::os::unix::thread::JoinHandleExt;

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
        let thread = start(Builder::new(), || (blocks(OWN), blocks(OTHERS))).unwrap();
        assert_eq!(thread.join().unwrap(), ([false; 5], [true; 3]));
        assert_eq!(blocks(OTHERS), before, "who makes it blocks what it did before");
    }

    /// The last that a thread does before its work is to take its name.
    #[test]
    fn a_thread_has_begun_when_it_is_there() {
        for number in 0..100 {
            let name = format!("begun-{number}");
            let end = Arc::new(Barrier::new(2));
            let ends = end.clone();
            let thread = start(Builder::new().name(name.clone()), move || ends.wait()).unwrap();
            // A listing of all threads can lack one, since others end meanwhile.
            let mut buffer = [0; 16];
            // SAFETY: the thread has not been joined, and the buffer is as long as said.
            let error =
                unsafe { libc::pthread_getname_np(thread.as_pthread_t(), buffer.as_mut_ptr().cast(), buffer.len()) };
            assert_eq!(error, 0);
            assert_eq!(CStr::from_bytes_until_nul(&buffer).unwrap().to_str(), Ok(name.as_str()));
            end.wait();
            thread.join().unwrap();
        }
    }
}

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::time::Duration;

/// An event descriptor that wakes a sleeping thread.
pub(super) struct Wake {
    fd: OwnedFd,
}

impl Wake {
    pub fn new() -> io::Result<Wake> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(Wake { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Ends the current [`wait`](Wake::wait), or the next one.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: `one` is eight readable bytes. It can fail only when 2^64 signals are pending, which is as good.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Sleeps until a signal, until one of `fds` is readable, or for `timeout`.
    pub fn wait(&self, fds: &[RawFd], timeout: Duration) {
        /// Upper bound on a link's descriptors: its queues' sockets and netlink, for each of eight rails.
        const MAX_FDS: usize = 8 * 65 + 1;
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled: arrayvec::ArrayVec<libc::pollfd, MAX_FDS> = arrayvec::ArrayVec::new();
        polled.push(entry(self.fd.as_raw_fd()));
        polled.extend(fds.iter().take(MAX_FDS - 1).map(|&fd| entry(fd)));
        let limit = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as libc::c_long,
        };
        // SAFETY: `polled` and `limit` live until the call returns.
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &limit, std::ptr::null()) };
        self.clear();
    }

    /// Clears all signals so far.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: `count` is eight writable bytes; the descriptor does not block.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Signals that a thread's own instructions raise. When they are blocked, the kernel ends the process instead of
/// calling a handler. Then no copy of vanished memory could fail.
const OWN: [libc::c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Runs `spawn` with all signals blocked except [`OWN`], so that the thread it makes gets no other. Programs' handlers
/// must run in their own threads.
pub(super) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
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

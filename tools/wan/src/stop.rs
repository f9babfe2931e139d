//! The word to stop, from one thread to another that may be waiting for frames.
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once, and seen by all copies.
pub(crate) struct Stop {
    is_set: Arc<AtomicBool>,
    /// Readable once it is set.
    wake: OwnedFd,
}

impl Stop {
    /// # Errors
    /// When no more file descriptors are left.
    pub fn new() -> io::Result<Stop> {
        // SAFETY: no pointers; the descriptor is new, and ours alone.
        let wake = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
                fd if fd < 0 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Stop { is_set: Arc::default(), wake })
    }

    /// Another handle of the same.
    ///
    /// # Errors
    /// When no more file descriptors are left.
    pub fn try_clone(&self) -> io::Result<Stop> {
        Ok(Stop { is_set: Arc::clone(&self.is_set), wake: self.wake.try_clone()? })
    }

    /// Whether the thread is to stop.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Says stop, and wakes who waits on the descriptor.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes that live through the call. It cannot fail: nobody else writes.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

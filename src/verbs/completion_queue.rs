use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::engine::{Engine, Process};
use crate::transport::{self, Completion, Notify};

/// A completion queue. Polling it waits for no other thread, and drives the engine while the queue is empty.
#[derive(Debug)]
pub struct CompletionQueue {
    engine: Arc<Engine>,
    ring: Arc<transport::CompletionRing>,
    polls: AtomicU32,
}

/// One poll in so many drives the engine although there was a completion: a program that always finds one must not
/// starve its own acknowledges.
const STEP_EVERY: u32 = 16;

impl CompletionQueue {
    pub(super) fn new(engine: Arc<Engine>, ring: transport::CompletionRing) -> CompletionQueue {
        CompletionQueue { engine, ring: Arc::new(ring), polls: AtomicU32::new(0) }
    }

    pub(super) fn ring(&self) -> &Arc<transport::CompletionRing> {
        &self.ring
    }

    /// The oldest completion; `None` when there is none. A child of the process that opened the device never finds one.
    pub fn poll(&self) -> Option<Completion> {
        if self.engine.is_forked() {
            return None;
        }
        // Threads can lose each other's counts; that is harmless, and cheaper than an atomic addition at every poll.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(STEP_EVERY) {
            self.engine.step();
        }
        self.ring.poll().or_else(|| {
            self.engine.step();
            self.ring.poll()
        })
    }

    /// Changes the capacity to `capacity` completions; 0 counts as 1. Completions in the queue stay (IBTA 11.2.8.4).
    ///
    /// # Errors
    /// The number of completions in the queue, when it exceeds `capacity`; the queue is unchanged then.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        self.ring.resize(capacity)
    }

    /// Whether a completion was lost because the queue was full. The queue is in error from then on (IBTA 11.6.3.1).
    pub fn has_overflowed(&self) -> bool {
        self.ring.has_overflowed()
    }

    /// Requests one notification over the channel. Poll once more afterwards: a completion can have come just before.
    pub fn request_notification(&self, notify: Notify) {
        self.ring.request_notification(notify);
        self.engine.will_sleep();
    }
}

/// A descriptor that becomes readable when a completion queue notifies (an eventfd).
#[derive(Debug)]
pub struct CompletionChannel {
    fd: Arc<OwnedFd>,
    process: Process,
}

impl CompletionChannel {
    /// Makes a channel, an eventfd of its own.
    ///
    /// # Errors
    /// [`io::Error`] when the kernel gives no descriptor.
    pub fn new() -> io::Result<CompletionChannel> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Ok(CompletionChannel { fd: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }), process: Process::current() })
    }

    pub(super) fn notifier(&self) -> impl Fn() + Send + Sync + 'static {
        let fd = self.fd.clone();
        move || {
            let one = 1u64.to_ne_bytes();
            // SAFETY: `one` is eight readable bytes; the write can fail only when there are 2^64 notifications.
            unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Sleeps until a notification, a signal, or the end of `timeout` (in whole milliseconds), and takes all
    /// notifications. Returns their number; 0 without any.
    ///
    /// # Errors
    /// [`io::Error`] when poll(2) fails, except for a signal; and in a child of the process that made the channel,
    /// whose notifications are the parent's.
    pub fn wait(&self, timeout: Duration) -> io::Result<u64> {
        if Process::current() != self.process {
            return Err(forked());
        }
        poll_readable(self.as_fd(), timeout)?;
        let mut count = [0u8; 8];
        // SAFETY: `count` is eight writable bytes; the descriptor does not block.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        Ok(if read == 8 { u64::from_ne_bytes(count) } else { 0 })
    }
}

/// Sleeps until `fd` is readable, for `timeout`, or until a signal.
pub(super) fn poll_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `polled` lives until the call returns.
    if unsafe { libc::poll(&mut polled, 1, limit) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
    }
    Ok(())
}

/// The error for a child that waits for an object of its parent.
pub(super) fn forked() -> io::Error {
    io::Error::other("opened before fork(2), by the parent of this process: open it anew")
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Forked;
use crate::engine::{Engine, EventFd, Process, poll_readable};
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
    events: Arc<EventFd>,
    process: Process,
}

impl CompletionChannel {
    /// Makes a channel, an eventfd of its own.
    ///
    /// # Errors
    /// [`io::Error`] when the kernel gives no descriptor.
    pub fn new() -> io::Result<CompletionChannel> {
        Ok(CompletionChannel { events: Arc::new(EventFd::new()?), process: Process::current() })
    }

    pub(super) fn notifier(&self) -> impl Fn() + Send + Sync + 'static {
        let events = Arc::clone(&self.events);
        move || events.signal()
    }

    /// Sleeps until a notification, a signal, or the end of `timeout`, and takes all
    /// notifications. Returns their number; 0 without any.
    ///
    /// # Errors
    /// [`io::Error`] when poll(2) fails, except for a signal; and in a child of the process that made the channel,
    /// whose notifications are the parent's.
    pub fn wait(&self, timeout: Duration) -> io::Result<u64> {
        if Process::current() != self.process {
            return Err(io::Error::other(Forked));
        }
        poll_readable(self.as_fd(), timeout)?;
        Ok(self.events.take())
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

//! Events that programs wait for: a queue, and a descriptor that counts what is in it.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

/// A queue of events, and a descriptor from which each reading takes one. Programs poll it, make it non-blocking, or
/// sleep in [`take`](EventQueue::take), which reads it.
///
/// The descriptor never ends: who sleeps while the queue is destroyed goes on sleeping, as with the stock library.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    pending: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<EventQueue<T>> {
        // SAFETY: no pointers are involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(EventQueue { fd: unsafe { OwnedFd::from_raw_fd(fd) }, pending: Mutex::new(VecDeque::new()) })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    /// Adds an event, if `still` says so under the queue's lock.
    pub(crate) fn push(&self, event: T, still: impl FnOnce() -> bool) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if still() {
            pending.push_back(event);
            let one = 1u64.to_ne_bytes();
            // SAFETY: `one` is eight readable bytes; it fails only at 2^64 events.
            unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Waits for an event and takes it; `taken` sees it under the queue's lock. Without waiting when the program has made
    /// the descriptor non-blocking.
    pub(crate) fn take<R>(&self, taken: impl Fn(&T) -> R) -> io::Result<R> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: `count` is eight writable bytes.
            let read = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if read != 8 {
                return Err(io::Error::last_os_error());
            }
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            // Nothing there: what the reading was for has been removed.
            if let Some(event) = pending.pop_front() {
                return Ok(taken(&event));
            }
        }
    }

    /// Takes out the events that `which` picks, and as many counts. `end` runs under the queue's lock.
    pub(crate) fn remove(&self, which: impl Fn(&T) -> bool, end: impl FnOnce()) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        end();
        let before = pending.len();
        pending.retain(|event| !which(event));
        for _ in pending.len()..before {
            let mut count = [0u8; 8];
            let parts = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
            // Fails when a reader was faster: it will find nothing, and wait again.
            // SAFETY: one part of eight writable bytes.
            unsafe { libc::preadv2(self.fd(), &parts, 1, -1, libc::RWF_NOWAIT) };
        }
    }
}

/// How many events of an object the program was given, and how many of them it has acknowledged. Destruction waits until
/// both are the same (`ibv_destroy_cq`, `ibv_destroy_qp`, `ibv_destroy_srq`).
#[derive(Default)]
pub(crate) struct Acknowledged {
    /// Given and acknowledged.
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Acknowledged {
    pub(crate) fn given(&self) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
    }

    pub(crate) fn acknowledge(&self, events: u64) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).1 += events;
        self.changed.notify_all();
    }

    /// Sleeps until every event is acknowledged.
    pub(crate) fn wait(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        while counts.1 < counts.0 {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let mut polled = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure of ours.
        unsafe { libc::poll(&mut polled, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events_and_each_is_taken_once() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        (1..=4).for_each(|event| queue.push(event, || true));
        queue.push(5, || false);
        assert_eq!(queue.take(|event| *event).unwrap(), 1);
        queue.remove(|event| *event == 3, || {});
        assert_eq!([(); 2].map(|()| queue.take(|event| *event).unwrap()), [2, 4]);
        assert!(!is_readable(&queue), "what was removed is not counted any more");
        // SAFETY: a descriptor of ours.
        unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.take(|event| *event).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let acknowledged = std::sync::Arc::new(Acknowledged::default());
        acknowledged.wait();
        acknowledged.given();
        acknowledged.given();
        acknowledged.acknowledge(1);
        let waiting = acknowledged.clone();
        let thread = std::thread::spawn(move || waiting.wait());
        assert!(!thread.is_finished());
        acknowledged.acknowledge(1);
        thread.join().unwrap();
    }
}

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::time::Duration;

/// An event descriptor (eventfd(2)): signals wake who sleeps on it, and are counted until they are taken.
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// # Errors
    /// [`io::Error`] when the kernel gives no descriptor.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Ends the current [`wait`](EventFd::wait), or the next one.
    pub fn signal(&self) {
        // It can fail only when 2^64 signals are pending, which is as good.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Takes all signals so far, and returns their number.
    pub fn take(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }

    /// Sleeps until a signal, until one of `fds` is readable, or for `timeout`; then takes all signals.
    pub fn wait(&self, fds: &[RawFd], timeout: Duration) {
        poll_all(Some(self.fd.as_fd()), fds, timeout);
        self.take();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sleeps until one of a link's `fds` is readable, for `timeout`, or until a signal(7).
pub(crate) fn poll_any(fds: &[RawFd], timeout: Duration) {
    poll_all(None, fds, timeout);
}

fn poll_all(own: Option<BorrowedFd<'_>>, fds: &[RawFd], timeout: Duration) {
    /// Upper bound on a link's descriptors: its queues' sockets and netlink, for each of eight rails.
    const MAX_FDS: usize = 8 * 65 + 1;
    let mut polled: ArrayVec<PollFd<'_>, MAX_FDS> = ArrayVec::new();
    polled.extend(own.map(|own| PollFd::from_borrowed_fd(own, PollFlags::IN)));
    polled.extend(fds.iter().take(MAX_FDS - 1).map(|&fd| {
        // SAFETY: the descriptors of a link stay open as long as the device, which the caller has.
        PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN)
    }));
    // It ends for a signal(7), too.
    let _ = poll(&mut polled, Timespec::try_from(timeout).ok().as_ref());
}

/// Sleeps until `fd` is readable, for `timeout`, or until a signal(7).
///
/// # Errors
/// [`io::Error`] when poll(2) fails, except for a signal.
pub(crate) fn poll_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    match poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};

/// Until when urgent messages of the programs on an interface count as under way, as CLOCK_MONOTONIC in nanoseconds: a page
/// that all of them have, so that the flows of each give way to those of all.
///
/// Programs of one user believe each other. What one of them writes costs the others a few percent of their bulk flows'
/// goodput at most, and no program lets it count for longer than its own messages would.
#[derive(Debug)]
pub(super) struct Urgency {
    page: NonNull<AtomicU64>,
}

/// Length of the page: what the kernel maps at least.
const BYTES: usize = 4096;

impl Urgency {
    /// A new page, for programs to map.
    ///
    /// # Errors
    /// The kernel's, when it gives no memory.
    pub fn create() -> io::Result<OwnedFd> {
        let page = rustix::fs::memfd_create("uroce-urgency", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&page, BYTES as u64)?;
        // Nobody can make it shorter, which would end those that read it.
        rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(page)
    }

    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidInput`] for what [`create`](Self::create) has not made.
    pub fn map(page: &OwnedFd) -> io::Result<Urgency> {
        let seals = rustix::fs::fcntl_get_seals(page.as_fd())?;
        if !seals.contains(SealFlags::SHRINK) || rustix::fs::fstat(page)?.st_size != BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which nothing else knows.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, page.as_raw_fd(), 0) };
        match NonNull::new(address.cast()) {
            Some(page) if address != libc::MAP_FAILED => Ok(Urgency { page }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Tells for how long urgent messages of this program count as under way. Returns for how long those of all do.
    pub fn share(&self, own: Duration) -> Duration {
        let now = monotonic_ns();
        // SAFETY: the page is mapped as long as `self` lives, and aligned; all programs use it by atomic accesses only.
        let until = unsafe { self.page.as_ref() };
        let before = until.load(Ordering::Relaxed);
        let mine = now.saturating_add(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX));
        if !own.is_zero() && mine > before {
            until.fetch_max(mine, Ordering::Relaxed);
        }
        Duration::from_nanos(before.saturating_sub(now))
    }
}

/// CLOCK_MONOTONIC, which all processes share.
fn monotonic_ns() -> u64 {
    // SAFETY: the structure is plain memory that the call fills. It cannot fail for this clock.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Drop for Urgency {
    fn drop(&mut self) {
        // SAFETY: the mapping was made for this value alone.
        unsafe { libc::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

// SAFETY: the page is reached by atomic accesses only, from any thread.
unsafe impl Send for Urgency {}

#[cfg(all(test, not(miri)))] // it has no such memory
mod tests {
    use super::*;

    #[test]
    fn programs_tell_each_other_until_when() {
        let page = Urgency::create().unwrap();
        let [one, other] = [(); 2].map(|()| Urgency::map(&page).unwrap());
        assert_eq!(one.share(Duration::ZERO), Duration::ZERO);
        let (second, minute) = (Duration::from_millis(1000), Duration::from_millis(60_000));
        one.share(minute);
        let left = other.share(second);
        assert!((minute - second..=minute).contains(&left), "{left:?}");
        // A shorter time of another changes nothing.
        let later = one.share(Duration::ZERO);
        assert!(later <= left && later > minute - 2 * second, "{later:?} after {left:?}");
    }

    #[test]
    fn what_can_become_shorter_is_not_mapped() {
        let page = rustix::fs::memfd_create("uroce-test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&page, BYTES as u64).unwrap();
        assert_eq!(Urgency::map(&page).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(rustix::fs::ftruncate(Urgency::create().unwrap(), 0).is_err());
    }
}

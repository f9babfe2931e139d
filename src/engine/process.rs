use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A process: a child made by fork(2) is another one than its parent.
///
/// The check costs two loads, so that every poll can make it. The number of the process is in a page that the kernel
/// wipes in children (MADV_WIPEONFORK, Linux 4.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u64);

/// The page, once it is mapped.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// The number for the next process without one. A child's copy continues where its parent's stood, so that no process
/// takes a number of one of its ancestors.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Process {
    /// The calling process.
    pub fn current() -> Process {
        let Some(page) = page() else {
            // Above all numbers that are counted.
            return Process(1 << 63 | u64::from(std::process::id()));
        };
        match page.load(Ordering::Relaxed) {
            0 => {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                // Another thread may have been first.
                Process(
                    page.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                        .map_or_else(|n| n, |_| number),
                )
            }
            number => Process(number),
        }
    }
}

/// The page that is wiped in children; `None` where the kernel gives none.
fn page() -> Option<&'static AtomicU64> {
    const PAGE_BYTES: usize = 4096;
    let known = PAGE.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: once it is published, the page is never unmapped, and only used as this number.
        return Some(unsafe { &*known });
    }
    // SAFETY: a fresh anonymous mapping overlaps nothing; what is unmapped here was seen by nobody.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let fresh = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0);
        if fresh == libc::MAP_FAILED {
            return None;
        }
        let wiped = libc::madvise(fresh, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0;
        let null = std::ptr::null_mut();
        if !wiped || PAGE.compare_exchange(null, fresh.cast(), Ordering::AcqRel, Ordering::Acquire).is_err() {
            libc::munmap(fresh, PAGE_BYTES);
        }
        PAGE.load(Ordering::Acquire).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_and_so_is_its_child() {
        let parent = Process::current();
        assert_eq!(Process::current(), parent);
        // What a child finds, as its exit status: 0 when all is as it should be.
        let in_child = |check: &dyn Fn() -> bool| {
            // SAFETY: the child calls nothing but what is to be checked, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let right = check();
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(if right { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: `status` is ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status == 0
        };
        assert!(in_child(&|| {
            let child = Process::current();
            child != parent
                && child == Process::current()
                && in_child(&|| ![parent, child].contains(&Process::current()))
        }));
        assert_eq!(Process::current(), parent, "the parent stays what it was");
    }
}

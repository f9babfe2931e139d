use crate::time::Duration;

/// The shortest time slice that the kernel grants.
const SHORT: Duration = Duration::from_micros(100);

/// What sched_getattr(2) and sched_setattr(2) pass on; since Linux 6.12 `runtime` of an ordinary thread is its time slice.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for short time slices for the calling thread. It then wakes before threads with longer ones, whose slice (3 ms) it would
/// wait for otherwise, and has no more of the processor than before. Older kernels ignore it. Threads with another policy than
/// the ordinary one (`chrt`) stay as they are.
pub(super) fn shorten() {
    let mut attributes = Attributes { size: size_of::<Attributes>() as u32, ..Attributes::default() };
    let size = attributes.size;
    // SAFETY: both calls have a structure of this size, the first to fill. 0 is the calling thread.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) != 0
            || attributes.policy != libc::SCHED_OTHER as u32
        {
            return;
        }
        attributes.runtime = SHORT.as_nanos() as u64;
        // A kernel that refuses leaves the slice as it was.
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

#[cfg(all(test, not(miri)))] // it has no such calls
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        let mut attributes = Attributes::default();
        let size = size_of::<Attributes>() as u32;
        // SAFETY: the structure has this size.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        attributes
    }

    #[test]
    fn a_thread_with_short_slices_is_otherwise_as_before() {
        std::thread::spawn(|| {
            let before = attributes();
            shorten();
            let after = attributes();
            assert_eq!((after.policy, after.nice, after.flags), (before.policy, before.nice, before.flags));
            // Since Linux 6.12 it tells the slice; before, nothing.
            assert!(after.runtime == SHORT.as_nanos() as u64 || after.runtime == before.runtime, "{}", after.runtime);
        })
        .join()
        .unwrap();
    }
}

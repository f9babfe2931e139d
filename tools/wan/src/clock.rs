//! The clocks: that of the kernel's time stamps, and that of this thread's own work.

/// Nanoseconds on the clock that the kernel stamps frames with (`CLOCK_REALTIME`).
pub(crate) fn now_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Nanoseconds of processor that the calling thread has used: its own and the kernel's in its name.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call, which cannot fail for these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    to_ns(&time)
}

/// A point in time as nanoseconds.
pub(crate) fn to_ns(time: &libc::timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

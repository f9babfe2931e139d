//! Threads with fewer privileges.

/// Leaves the calling thread with these capabilities (bits of linux/capability.h).
pub fn keep_capabilities(bits: u64) {
    // struct __user_cap_header_struct of version 3, for this thread; then low and high halves of effective, permitted and
    // inheritable ones
    let header: [u32; 2] = [0x2008_0522, 0];
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    let data = [low, low, 0, high, high, 0];
    // SAFETY: both structures have the layout of capset(2), and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

//! Set-up of a socket's file descriptor that the socket library leaves to its user.

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Number of attempts, and interval between them, while the last owner is still releasing something.
///
/// A queue stays busy for 1 to 15 ms after its socket was closed. It stays so longer where the kernel's workers wait
/// for a processor themselves: opening alone takes up to 3 s with five busy processes a processor.
const BUSY_TRIES: u32 = 200;
const BUSY_WAIT: Duration = Duration::from_millis(5);

/// Socket option of Linux 6.17 (linux/if_xdp.h): packets that one call sends; 32 without it.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Retries an attempt that fails with EBUSY or EADDRINUSE. For set-up only: the link has no engine yet that could wait
/// for it.
#[allow(clippy::disallowed_methods)]
pub(super) fn while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..BUSY_TRIES {
        match attempt() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EADDRINUSE)) => {
                std::thread::sleep(BUSY_WAIT);
            }
            done => return done,
        }
    }
    attempt()
}

/// Closes the socket in programs that this process starts, and lets one call send as much as the ring holds.
pub(super) fn set_up(socket: RawFd, ring_entries: u32) {
    // SAFETY: plain system calls on a descriptor that is open; the option's value lives through the call. Older kernels
    // do not know the option, and need more calls.
    unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::setsockopt(
            socket,
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const ring_entries).cast(),
            size_of::<u32>() as libc::socklen_t,
        );
    }
}

/// Whether the driver reads and writes the socket's memory itself.
pub(super) fn is_zero_copy(socket: RawFd) -> bool {
    let mut options: libc::xdp_options = libc::xdp_options { flags: 0 };
    let mut len = size_of::<libc::xdp_options>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which is the struct's size.
    let asked =
        unsafe { libc::getsockopt(socket, libc::SOL_XDP, libc::XDP_OPTIONS, (&raw mut options).cast(), &raw mut len) };
    asked == 0 && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
}

/// Keeps the sockets' rings out of child processes: two processes at one ring would tear it.
///
/// The library keeps the rings' addresses to itself, so they are looked up by the sockets' inodes.
pub(super) fn keep_from_children(sockets: &[RawFd]) {
    let inodes: Vec<u64> = sockets.iter().filter_map(|&fd| inode(fd)).collect();
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for (from, to, inode) in maps.lines().filter_map(socket_mapping) {
        if inodes.contains(&inode) {
            // SAFETY: the range is a whole mapping of our own socket, as the kernel has just listed it; the advice
            // changes nothing in this process.
            unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTFORK) };
        }
    }
}

fn inode(fd: RawFd) -> Option<u64> {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// `from-to rw-s offset device inode  socket:[inode]`
fn socket_mapping(line: &str) -> Option<(usize, usize, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let inode = rest.rsplit_once("socket:[")?.1.strip_suffix(']')?.parse().ok()?;
    let (from, to) = range.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_mappings_are_told_from_others() {
        let line = "7f2e3c1d2000-7f2e3c1d7000 rw-s 80000000 00:08 48723                      socket:[48723]";
        assert_eq!(socket_mapping(line), Some((0x7f2e3c1d2000, 0x7f2e3c1d7000, 48723)));
        assert_eq!(socket_mapping("7f2e3c1d2000-7f2e3c1d7000 rw-s 0 00:01 5 /dev/zero (deleted)"), None);
    }

    #[test]
    fn busy_is_tried_again_and_other_errors_are_not() {
        let mut tries = 0;
        let busy_twice = while_busy(|| {
            tries += 1;
            if tries < 3 { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(tries) }
        });
        assert_eq!(busy_twice.unwrap(), 3);
        let mut tries = 0;
        let other = while_busy(|| -> io::Result<()> {
            tries += 1;
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        });
        assert_eq!((other.unwrap_err().raw_os_error(), tries), (Some(libc::EINVAL), 1));
    }
}

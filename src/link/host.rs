use std::fs;
use std::io;

/// What the whole host offers to links, and what is missing.
pub(super) struct Host {
    pub missing_capabilities: Vec<&'static str>,
    pub has_af_xdp: bool,
    /// Why the kernel refuses bpf(2) although no capability is missing; `None` when it does not refuse.
    pub bpf_refused: Option<String>,
    pub lockable_bytes: Option<u64>,
}

impl Host {
    pub fn read() -> Host {
        let missing_capabilities = missing_capabilities();
        let refused = if missing_capabilities.is_empty() { try_bpf().err() } else { None };
        Host {
            missing_capabilities,
            bpf_refused: refused.map(|error| error.to_string()),
            has_af_xdp: has_af_xdp(),
            lockable_bytes: lockable_bytes(),
        }
    }
}

/// The kernel's version, if it can be read.
pub(super) fn kernel() -> Option<(u32, u32)> {
    kernel_version(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// `6.18.4-generic` → (6, 18)
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Tries the first step of AF_XDP, a map of sockets by bpf(2): capabilities can be those of a user namespace, and a
/// sandbox can refuse the call with any capability.
fn try_bpf() -> io::Result<()> {
    /// From linux/bpf.h.
    const BPF_MAP_CREATE: libc::c_long = 0;
    const BPF_MAP_TYPE_XSKMAP: u32 = 17;
    // The first members of its `union bpf_attr`: type, size of keys, of values, number of entries. The rest is zero.
    let mut map = [0u32; 32];
    map[..4].copy_from_slice(&[BPF_MAP_TYPE_XSKMAP, 4, 4, 1]);
    // SAFETY: the kernel reads the array, whose size it is told; the new descriptor is nobody else's.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, map.as_ptr(), size_of_val(&map));
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::close(descriptor as libc::c_int);
    }
    Ok(())
}

fn has_af_xdp() -> bool {
    // SAFETY: makes a socket and closes it; the descriptor is used by nobody else.
    unsafe {
        let socket = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        if socket >= 0 {
            libc::close(socket);
            return true;
        }
    }
    // EPERM: it is there, but not for us.
    io::Error::last_os_error().raw_os_error() != Some(libc::EAFNOSUPPORT)
}

/// Memory that can be locked, in bytes; `None` for no limit.
fn lockable_bytes() -> Option<u64> {
    const IPC_LOCK: u32 = 14;
    if effective_capabilities().is_some_and(|bits| bits >> IPC_LOCK & 1 == 1) {
        return None;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The capabilities that AF_XDP needs and the calling thread does not have.
pub(crate) fn missing_capabilities() -> Vec<&'static str> {
    /// Bits from linux/capability.h.
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let Some(effective) = effective_capabilities() else { return Vec::new() };
    let has = |bit: u32| effective >> bit & 1 == 1;
    let mut missing = Vec::new();
    if !has(NET_RAW) {
        missing.push("CAP_NET_RAW");
    }
    if !has(NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if !has(BPF) && !has(SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    missing
}

/// The CapEff bits of the calling thread; `None` without /proc, where only an attempt shows.
fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_read() {
        assert_eq!(kernel_version("6.18.4-generic\n"), Some((6, 18)));
        assert_eq!(kernel_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.15"), Some((5, 15)));
        assert_eq!(kernel_version("?"), None);
    }
}

//! Devices: the interfaces that RoCE can run over.

use std::fs;

/// The capabilities AF_XDP needs that the calling thread does not have.
pub(crate) fn missing_capabilities() -> Vec<&'static str> {
    /// Bits of linux/capability.h.
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

/// The CapEff bits of the calling thread; `None` without /proc, where only trying tells.
fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

use std::fs;
use std::io;
use std::net::IpAddr;

use crate::link::device::DeviceError;
use crate::wire::ROCE_PORT;

/// Why a [`UdpLink`](super::UdpLink) could not be opened: each in one line that names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such interface, or the kernel did not say.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The interface is set down.
    #[error("{interface}: the interface is down; `ip link set {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// Somebody else has the port.
    #[error("{interface}: UDP port 4791 of {address} is taken by {holder}")]
    Taken {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
        /// Who has it, and what to do.
        holder: String,
    },
    /// None of its addresses can be used.
    #[error("{interface}: it has no IP address to send from; `ip address add 192.0.2.1/24 dev {interface}`, say")]
    NoAddress {
        /// The interface.
        interface: String,
    },
    /// Something else failed.
    #[error("{interface}: a UDP socket on port 4791 of {address}: {error}")]
    Socket {
        /// The interface.
        interface: String,
        /// The address.
        address: IpAddr,
        /// The kernel's answer.
        error: io::Error,
    },
}

/// Who has RoCE's port on `address`, and what to do, as far as this process may know.
pub(super) fn holder(address: IpAddr) -> String {
    if let Some((pid, name)) = inode_on(address).and_then(process_with) {
        return format!("process {pid} ({name}): end it first, since one process at a time can have it");
    }
    // The kernel's module is there, and no process has the socket.
    match fs::exists("/sys/module/rdma_rxe") {
        Ok(true) => {
            "the kernel's rxe, it seems: `rdma link` lists its links, `rdma link delete NAME` ends one".to_owned()
        }
        _ => "a process of another user or namespace: `ss -ulpn sport = :4791` as root says which".to_owned(),
    }
}

/// Whether anybody has RoCE's port on `address`.
pub(super) fn is_taken(address: IpAddr) -> bool {
    inode_on(address).is_some()
}

/// The socket that has the port on `address`, or on all.
fn inode_on(address: IpAddr) -> Option<u64> {
    let has_it = |(local, _): &(IpAddr, u64)| *local == address || local.is_unspecified();
    socket_inodes().into_iter().find(has_it).map(|(_, inode)| inode)
}

/// Addresses and inodes of the sockets on the port, in this network namespace.
fn socket_inodes() -> Vec<(IpAddr, u64)> {
    let mut found = Vec::new();
    for file in ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"] {
        let table = fs::read_to_string(file).unwrap_or_default();
        found.extend(table.lines().skip(1).filter_map(socket_inode));
    }
    found
}

/// `  12: 0100000A:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000  0 4711 …`: the local address is of
/// 32-bit words as they lie in memory, the inode is the tenth word.
fn socket_inode(line: &str) -> Option<(IpAddr, u64)> {
    let mut words = line.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_PORT {
        return None;
    }
    let inode = words.nth(7)?.parse().ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(8 * at..8 * at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        _ => {
            let mut bytes = [0; 16];
            for (at, out) in bytes.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&word(at)?);
            }
            IpAddr::from(bytes)
        }
    };
    Some((address, inode))
}

/// The process that has the socket open, and its name; `None` when this one may not see it.
fn process_with(inode: u64) -> Option<(u32, String)> {
    let target = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        if descriptors.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == target.as_str())) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim_end().to_owned()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_of_sockets_is_read() {
        let v4 =
            "  12: 0100000A:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000 0";
        assert_eq!(socket_inode(v4), Some((IpAddr::from([10, 0, 0, 1]), 4711)));
        let v6 = "  7: 000080FE00000000FF00780001000OFE:12B7 0:0 07 0:0 00:0 0 0 0 5 2 0 0";
        assert_eq!(socket_inode(v6), None, "a letter that is no digit");
        let v6 = "  7: 000080FE00000000FF007800010000FE:12B7 0:0 07 0:0 00:0 0 0 0 5 2 0 0";
        assert_eq!(socket_inode(v6), Some(("fe80::78:ff:fe00:1".parse().unwrap(), 5)));
        assert_eq!(socket_inode("  1: 0100000A:0035 0:0 07 0:0 00:0 0 0 0 5"), None);
        assert_eq!(socket_inode("nonsense"), None);
    }
}

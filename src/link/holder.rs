//! Who else takes RoCE from an interface: sockets on UDP port 4791, and programs over AF_XDP.
//!
//! An XDP program takes the frames that such sockets wait for, and neither end notices. So the two kinds of link check
//! for each other. An AF_XDP link claims the interface, and then looks for sockets. A UDP link binds its sockets, and
//! then looks for a claim. Of two that are opened at once at least one sees the other, and the UDP link gives way.
//! Programs that share the interface are no danger to each other: their claim says so.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::wire::ROCE_PORT;

/// The name of the process that shares an interface among programs.
const ARBITER: &str = "uroce-arbiter";

/// How long a claim takes to be made: two system calls of a thread that may lose its processor.
const CLAIMING: Duration = Duration::from_millis(20);

/// A claim on an interface for AF_XDP: a socket whose name only one process of the network namespace can have.
///
/// Every process there sees the name, without any privilege. The claim ends with its process.
pub(super) struct Claim {
    /// Says that other programs can have sockets on the interface: this one leaves them their packets. It is there only
    /// while the claim is.
    _is_shared: Option<UnixDatagram>,
    _socket: UnixDatagram,
}

impl Claim {
    /// Claims the interface in the calling thread's network namespace; EADDRINUSE when it is claimed.
    pub(super) fn new(interface: u32) -> io::Result<Claim> {
        Ok(Claim { _socket: named_socket(&claim_name(interface))?, _is_shared: None })
    }

    /// As [`new`](Self::new), for one of several programs that share the interface's addresses.
    pub(super) fn shared(interface: u32) -> io::Result<Claim> {
        let claim = Claim::new(interface)?;
        Ok(Claim { _is_shared: Some(named_socket(&shared_name(interface))?), ..claim })
    }
}

fn claim_name(interface: u32) -> String {
    format!("uroce-xdp-{interface}")
}

fn shared_name(interface: u32) -> String {
    format!("uroce-xdp-shared-{interface}")
}

fn named_socket(name: &str) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Whether the program over AF_XDP leaves others their packets.
pub(super) fn is_shared(interface: u32) -> bool {
    inode_named(&shared_name(interface)).is_some()
}

/// The process that has claimed the interface, in words; `None` when it is not claimed.
pub(super) fn claimant(interface: u32) -> Option<String> {
    Some(described(process_with(&[inode_named(&claim_name(interface))?])))
}

/// The process that has claimed the interface for itself alone, in words.
#[allow(clippy::disallowed_methods, reason = "waits for another process")]
pub(super) fn exclusive_claimant(interface: u32) -> Option<String> {
    let found = || claimant(interface).filter(|_| !is_shared(interface));
    // A claim that is just being made is not yet said to be shared.
    found().and_then(|_| {
        std::thread::sleep(CLAIMING);
        found()
    })
}

fn inode_named(name: &str) -> Option<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/unix").ok()?;
    let wanted = format!("@{name}");
    table.lines().find_map(|line| named_socket_inode(line, &wanted))
}

/// `0000000000000000: 00000002 00000000 00000000 0002 01 48723 @uroce-xdp-7`: the seventh word of the socket with that name.
fn named_socket_inode(line: &str, wanted: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    let inode = words.nth(6)?;
    if words.next()? == wanted { inode.parse().ok() } else { None }
}

fn described(process: Option<(u32, String)>) -> String {
    match process {
        Some((pid, name)) => format!("process {pid} ({name})"),
        None => "a process of another user or namespace".to_owned(),
    }
}

/// The owner of a program, in words.
pub(super) fn attached_by(program: Option<u32>, interface: &str) -> String {
    match program.and_then(|number| Some((number, program_owner(number)?))) {
        Some((number, owner)) => format!("number {number} by {owner}"),
        None => format!("by no process visible from here (`ip -d link show {interface}` shows its number)"),
    }
}

/// The process that has an XDP program open, by the program's number, in words. No process has one that `ip link`
/// attached.
fn program_owner(program: u32) -> Option<String> {
    let wanted = format!("prog_id:\t{program}");
    let has_it = |folder: &fs::DirEntry| {
        let infos = fs::read_dir(folder.path().join("fdinfo")).into_iter().flatten().flatten();
        let mut texts = infos.filter_map(|info| fs::read_to_string(info.path()).ok());
        texts.any(|text| text.lines().any(|line| line == wanted))
    };
    process_that(has_it).map(|process| described(Some(process)))
}

/// The process that has RoCE's port on `address`, and the remedy, as far as this process can see.
pub(super) fn port_holder(address: IpAddr) -> String {
    match inodes_on(address).as_slice() {
        [] => "a process that has ended by now: try again".to_owned(),
        inodes => port_owner(inodes),
    }
}

/// The process that has a socket of these, on RoCE's port, and the remedy.
fn port_owner(inodes: &[u64]) -> String {
    if let Some(process) = process_with(inodes) {
        return format!("{}: wait until it ends, or use another --dev", described(Some(process)));
    }
    // The kernel's module is there, and no process has the socket.
    match has_rxe() {
        true => {
            "the kernel's rxe, probably: `rdma link` lists its links, `rdma link delete NAME` removes one".to_owned()
        }
        false => "a process of another user or namespace: `ss -ulpn sport = :4791` as root shows which".to_owned(),
    }
}

fn has_rxe() -> bool {
    fs::exists("/sys/module/rdma_rxe").unwrap_or(false)
}

/// Whether any socket has RoCE's port on `address`.
pub(super) fn is_taken(address: IpAddr) -> bool {
    !inodes_on(address).is_empty()
}

/// The inodes of the sockets that have the port on `address`, or on all addresses.
fn inodes_on(address: IpAddr) -> Vec<u64> {
    let has_it = |(local, _): &(IpAddr, u64)| *local == address || local.is_unspecified();
    socket_inodes().into_iter().filter(has_it).map(|(_, inode)| inode).collect()
}

/// Sockets that would lose their packets to an XDP program on an interface with these addresses: the address of one,
/// and the inodes of all on it. The kernel's rxe has one socket on all addresses, for every interface.
pub(super) fn sockets_that_lose(interface: &str, addresses: &[IpAddr]) -> Option<(IpAddr, Vec<u64>)> {
    let loses = |(local, inode): &(IpAddr, u64)| match local.is_unspecified() {
        true => !has_rxe() || process_with(&[*inode]).is_some() || has_rxe_link(interface),
        false => addresses.contains(local),
    };
    let (address, _) = socket_inodes().into_iter().find(loses)?;
    Some((address, inodes_on(address)))
}

/// The owner of those sockets, in words.
pub(super) fn loser((_, inodes): &(IpAddr, Vec<u64>)) -> String {
    match process_with(inodes) {
        None if has_rxe() => "the kernel's rxe, probably (`rdma link` lists its links)".to_owned(),
        process => described(process),
    }
}

/// Whether sysfs shows an rxe link on the interface.
fn has_rxe_link(interface: &str) -> bool {
    let links = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut parents = links.filter_map(|link| fs::read_to_string(link.path().join("parent")).ok());
    parents.any(|parent| parent.trim_end() == interface)
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
    Some((address.to_canonical(), inode))
}

/// The process that has one of the sockets open, and its name; `None` when this process cannot see it. An arbiter has
/// them for other processes, which count first.
fn process_with(inodes: &[u64]) -> Option<(u32, String)> {
    let targets: Vec<OsString> = inodes.iter().map(|inode| format!("socket:[{inode}]").into()).collect();
    let has_one = |folder: &fs::DirEntry| {
        let descriptors = fs::read_dir(folder.path().join("fd")).into_iter().flatten().flatten();
        let mut open = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        open.any(|to| targets.iter().any(|target| target == to.as_os_str()))
    };
    let is_arbiter = |folder: &fs::DirEntry| name_of(folder) == ARBITER;
    process_that(|folder| has_one(folder) && !is_arbiter(folder)).or_else(|| process_that(has_one))
}

/// The first process whose folder in /proc fulfils `is_it`, and its name.
fn process_that(is_it: impl Fn(&fs::DirEntry) -> bool) -> Option<(u32, String)> {
    let number = |folder: &fs::DirEntry| folder.file_name().to_str().and_then(|name| name.parse().ok());
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let (pid, folder) = processes.filter_map(|folder| Some((number(&folder)?, folder))).find(|(_, it)| is_it(it))?;
    Some((pid, name_of(&folder)))
}

fn name_of(folder: &fs::DirEntry) -> String {
    fs::read_to_string(folder.path().join("comm")).unwrap_or_default().trim_end().to_owned()
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

    #[test]
    fn the_kernels_table_of_named_sockets_is_read() {
        let line = "0000000000000000: 00000002 00000000 00000000 0002 01 48723 @uroce-xdp-7";
        assert_eq!(named_socket_inode(line, "@uroce-xdp-7"), Some(48723));
        assert_eq!(named_socket_inode(line, "@uroce-xdp-77"), None);
        assert_eq!(named_socket_inode("0000000000000000: 00000002 00000000 00000000 0002 01 5", "@uroce-xdp-7"), None);
        assert_eq!(named_socket_inode("Num       RefCount Protocol", "@uroce-xdp-7"), None);
    }

    /// An interface that cannot be there: claims are of this process's namespace.
    #[test]
    fn a_claim_is_exclusive_and_names_its_process() {
        let interface = u32::MAX - std::process::id();
        assert_eq!(claimant(interface), None);
        let claim = Claim::new(interface).unwrap();
        assert_eq!(Claim::new(interface).err().and_then(|error| error.raw_os_error()), Some(libc::EADDRINUSE));
        let who = claimant(interface).expect("it is seen");
        assert!(who.starts_with(&format!("process {} (", std::process::id())), "{who}");
        drop(claim);
        assert_eq!(claimant(interface), None);
    }
}

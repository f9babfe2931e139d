//! The BPF program: loads it, attaches it to an interface, and sets which socket belongs to which queue.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use aya::maps::{Array, HashMap, Map, MapData, MapError, XskMap};
use aya::programs::{ProgramError, Xdp, XdpError, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};

use super::AttachMode;
use crate::link::Requests;

/// The program's object file; ELF parsers want it aligned.
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/uroce.bpf.o")));

#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

const PROGRAM: &str = "uroce";
const SOCKETS: &str = "xsks";
const ADDRESSES: &str = "addresses";
const SLOT: &str = "slot";
const SERVICES: &str = "services";

/// Upper bound on the addresses whose frames the program takes. A map of as many costs some 80 KiB; interfaces have a
/// few addresses, and programs join a few groups.
pub(super) const ADDRESSES_MAX: u32 = 1024;

/// A loaded program; dropping it detaches it.
pub(super) struct Program {
    ebpf: Ebpf,
    /// Whether it leaves what is for other slots to the kernel.
    is_shared: bool,
}

impl Program {
    /// Loads the program, with room for the sockets of `queues` queues.
    pub(super) fn load(queues: u32) -> io::Result<Program> {
        let mut loader = EbpfLoader::new();
        loader.map_max_entries(SOCKETS, queues.max(1)).map_max_entries(ADDRESSES, ADDRESSES_MAX);
        let mut ebpf = loader.load(&OBJECT.0).map_err(ebpf_error)?;
        xdp(&mut ebpf)?.load().map_err(program_error)?;
        Ok(Program { ebpf, is_shared: false })
    }

    /// Attaches the program. It stays until this value is dropped or the process ends.
    pub(super) fn attach(&mut self, interface: u32, mode: AttachMode) -> io::Result<()> {
        let mode = match mode {
            AttachMode::Native => XdpMode::Driver,
            AttachMode::Skb => XdpMode::Skb,
        };
        xdp(&mut self.ebpf)?.attach_to_if_index(interface, mode).map_err(program_error)?;
        Ok(())
    }

    /// Takes frames to `address` from now on; E2BIG when there are [`ADDRESSES_MAX`] already.
    pub(super) fn accept(&mut self, address: IpAddr) -> io::Result<()> {
        self.addresses()?.insert(key(address), 1, 0).map_err(map_error)
    }

    /// Leaves frames to `address` to the kernel from now on.
    pub(super) fn refuse(&mut self, address: IpAddr) -> io::Result<()> {
        self.addresses()?.remove(&key(address)).map_err(map_error)
    }

    /// Takes only what is for this slot, 1 to 63, from now on, and leaves the rest to the kernel.
    pub(super) fn set_slot(&mut self, slot: u8) -> io::Result<()> {
        let mut map: Array<_, u32> = Array::try_from(self.map(SLOT)?).map_err(map_error)?;
        map.set(0, u32::from(slot), 0).map_err(map_error)?;
        self.is_shared = true;
        Ok(())
    }

    /// Takes these requests for connections, although no slot is in them. What the map has no room for goes to the
    /// kernel, and reaches the program through a socket.
    pub(super) fn take(&mut self, requests: &Requests) {
        if let Some(key) = service_key(requests).filter(|_| self.is_shared) {
            let _ = self.services().and_then(|mut map| map.insert(key, 1, 0).map_err(map_error));
        }
    }

    /// Leaves these requests to the kernel from now on.
    pub(super) fn leave(&mut self, requests: &Requests) {
        if let Some(key) = service_key(requests).filter(|_| self.is_shared) {
            let _ = self.services().and_then(|mut map| map.remove(&key).map_err(map_error));
        }
    }

    fn addresses(&mut self) -> io::Result<HashMap<&mut MapData, [u8; 16], u8>> {
        HashMap::try_from(self.map(ADDRESSES)?).map_err(map_error)
    }

    fn services(&mut self) -> io::Result<HashMap<&mut MapData, [u8; 24], u8>> {
        HashMap::try_from(self.map(SERVICES)?).map_err(map_error)
    }

    fn map(&mut self, name: &str) -> io::Result<&mut Map> {
        self.ebpf.map_mut(name).ok_or_else(|| io::Error::other(format!("the program has no map `{name}`")))
    }

    /// Passes frames of queue `queue` to `socket` from now on.
    pub(super) fn add_socket(&mut self, queue: u32, socket: RawFd) -> io::Result<()> {
        let mut map = XskMap::try_from(self.map(SOCKETS)?).map_err(map_error)?;
        map.set(queue, socket, 0).map_err(map_error)
    }
}

/// The key of an address in the program's map: IPv4 addresses are mapped to IPv6.
fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The key of a service in the program's map: its number as it is in packets, and the address, or zeros for any.
/// `None` for what nobody listens for.
fn service_key(requests: &Requests) -> Option<[u8; 24]> {
    let Requests::For { service_id, address } = requests else { return None };
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&service_id.to_be_bytes());
    if let Some(address) = address {
        bytes[8..].copy_from_slice(&key(*address));
    }
    Some(bytes)
}

fn xdp(ebpf: &mut Ebpf) -> io::Result<&mut Xdp> {
    let program = ebpf.program_mut(PROGRAM).ok_or_else(|| io::Error::other("the object has no program"))?;
    program.try_into().map_err(program_error)
}

/// The kernel's error number, where there is one, for the caller to decide by.
fn program_error(error: ProgramError) -> io::Error {
    match error {
        ProgramError::SyscallError(error) => error.io_error,
        ProgramError::LoadError { io_error, .. } => io_error,
        ProgramError::XdpError(XdpError::NetlinkError(error)) => match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::other(error),
        },
        other => io::Error::other(one_line(&other)),
    }
}

fn map_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::CreateError { io_error, .. } => io_error,
        other => io::Error::other(one_line(&other)),
    }
}

fn ebpf_error(error: EbpfError) -> io::Error {
    match error {
        EbpfError::MapError(error) => map_error(error),
        EbpfError::ProgramError(error) => program_error(error),
        other => io::Error::other(one_line(&other)),
    }
}

fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an ELF64 little-endian object's section, found by name.
    fn section<'a>(object: &'a [u8], wanted: &str) -> &'a [u8] {
        let u16_at = |at: usize| u16::from_le_bytes(object[at..at + 2].try_into().unwrap()) as usize;
        let u32_at = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap()) as usize;
        let u64_at = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap()) as usize;
        let header = |index: usize| u64_at(0x28) + index * u16_at(0x3a);
        let bytes = |header: usize| &object[u64_at(header + 0x18)..][..u64_at(header + 0x20)];
        let names = bytes(header(u16_at(0x3e)));
        (0..u16_at(0x3c))
            .map(header)
            .find(|&h| names[u32_at(h)..].split(|&b| b == 0).next() == Some(wanted.as_bytes()))
            .map(bytes)
            .unwrap_or_else(|| panic!("no section {wanted}"))
    }

    fn compiler(object: &[u8]) -> String {
        let at = object.windows(14).position(|w| w == b"clang version ").expect("clang names itself");
        object[at..].iter().take_while(|&&b| b != 0).map(|&b| b as char).collect()
    }

    /// The program built here from the source and the committed one have the same instructions, when the same compiler
    /// built them. Where it is another, or there is none, that cannot be said; `cargo xtask test`, which installs it, sets UROCE_CI
    /// and wants it said. Mended by: `clang -O2 -g -target bpf -mcpu=v3 -fdebug-compilation-dir=. -c xdp/uroce.bpf.c -o
    /// xdp/uroce.bpf.o`.
    #[test]
    fn committed_program_is_the_one_the_source_gives() {
        let committed = include_bytes!("../../../xdp/uroce.bpf.o");
        let (ours, theirs) = match env!("UROCE_BPF_IS_BUILT") {
            "1" => (compiler(&OBJECT.0), compiler(committed)),
            _ => ("no compiler".to_owned(), compiler(committed)),
        };
        if ours != theirs {
            let why = format!("xdp/uroce.bpf.o was not compared: here is {ours}, it is from {theirs}");
            assert!(std::env::var_os("UROCE_CI").is_none(), "{why}; UROCE_CLANG names another");
            eprintln!("{why}");
            return;
        }
        for name in ["xdp.frags", ".maps", "license"] {
            assert!(section(&OBJECT.0, name) == section(committed, name), "{name} differs: commit the new object");
        }
        assert_eq!(section(committed, "license"), b"Dual MIT/GPL\0");
    }
}

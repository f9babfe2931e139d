//! `struct sockaddr`.

use std::ffi::c_void;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::abi::SocketAddress;
use crate::error::Failure;

/// The length of `struct sockaddr_in6`, the longest that is offered.
pub(super) const IN6_BYTES: usize = 28;

/// The length of `struct sockaddr_in`.
pub(super) const IN_BYTES: usize = 16;

/// Reads a program's `struct sockaddr`.
///
/// # Safety
/// `pointer` can be read for as many bytes as its family has.
pub(super) unsafe fn read(pointer: *const c_void) -> Result<SocketAddr, Failure> {
    // SAFETY: the caller's promise: every family has two bytes for itself.
    let family = unsafe { pointer.cast::<u16>().read_unaligned() };
    let bytes = match i32::from(family) {
        libc::AF_INET => IN_BYTES,
        libc::AF_INET6 => IN6_BYTES,
        _ => {
            let why = format_args!("address family {family}: only IPv4 (2) and IPv6 (10) are offered");
            return Err(Failure::new(libc::EAFNOSUPPORT, why));
        }
    };
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), bytes) };
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    Ok(match bytes.len() {
        IN_BYTES => SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]), port)),
        _ => {
            let flow = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let address: [u8; 16] = bytes[8..24].try_into().expect("16 bytes of 28");
            let scope = u32::from_ne_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope))
        }
    })
}

/// The address as a program reads it, and its length.
pub(super) fn storage(address: SocketAddr) -> (SocketAddress, usize) {
    let mut bytes = [0; 128];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let len = match address {
        SocketAddr::V4(address) => {
            bytes[4..8].copy_from_slice(&address.ip().octets());
            IN_BYTES
        }
        SocketAddr::V6(address) => {
            bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
            IN6_BYTES
        }
    };
    (SocketAddress(bytes), len)
}

/// The GID of an address: `::ffff:a.b.c.d` for IPv4.
pub(super) fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

//! Learns that nobody receives RoCE at a host: its kernel answers a datagram to port 4791 with an ICMP message then.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::sharing::drop_all;
use super::socket;
use crate::wire::ROCE_PORT;

/// A socket on one of our addresses and a port of its own. It sends datagrams to port 4791, and takes nothing but the
/// kernel's word that such a datagram was refused. So it works beside any link, and without privilege.
///
/// The kernel matches an ICMP message with the port that we sent from: a stranger has to guess it.
#[derive(Debug)]
pub(crate) struct RefusalProbe {
    fd: OwnedFd,
    scope: u32,
    address: IpAddr,
    port: u16,
}

impl RefusalProbe {
    /// A probe on an address, whose interface has the index `scope`.
    pub fn open(address: IpAddr, scope: u32) -> io::Result<RefusalProbe> {
        let fd = socket::new_socket(address)?;
        // As the link's sockets: what the kernel writes into the headers is known, and so the ICRC.
        let options: &[(libc::c_int, libc::c_int, libc::c_int)] = match address {
            IpAddr::V4(_) => &[
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
                (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
            ],
            IpAddr::V6(_) => &[(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)],
        };
        for &(level, name, value) in options {
            socket::set_option(fd.as_fd(), level, name, value)?;
        }
        drop_all(fd.as_fd())?;
        socket::bind(&fd, address, scope, 0)?;
        let port = socket::local_port(&fd)?;
        Ok(RefusalProbe { fd, scope, address, port })
    }

    /// The address that it sends from.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The port that it sends from.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends a datagram to port 4791 of `destination`. What the kernel does not take is lost.
    pub fn ask(&self, destination: IpAddr, payload: &[u8]) {
        let (peer, peer_bytes) = socket::socket_address(destination, self.scope, ROCE_PORT);
        // SAFETY: the payload and the address can be read for as many bytes.
        let _ = unsafe {
            let name = (&raw const peer).cast();
            libc::sendto(
                self.as_raw_fd(),
                payload.as_ptr().cast(),
                payload.len(),
                0,
                name,
                peer_bytes as libc::socklen_t,
            )
        };
    }

    /// The next host that refused a datagram; `None` when there is none.
    pub fn refused(&self) -> Option<IpAddr> {
        while let Some((destination, error)) = self.next_error() {
            let is_icmp = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&error.ee_origin);
            if is_icmp && error.ee_errno == libc::ECONNREFUSED as u32 && destination.1 == ROCE_PORT {
                return Some(destination.0);
            }
        }
        None
    }

    /// Takes the oldest error of the socket, and where the datagram that caused it went.
    fn next_error(&self) -> Option<((IpAddr, u16), libc::sock_extended_err)> {
        // SAFETY: all zeros are valid values of these plain structs.
        let (mut name, mut header): (libc::sockaddr_in6, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
        let mut control = [0_u64; 32];
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of_val(&control) as _; // usize with glibc, u32 with musl
        // SAFETY: the kernel writes no more than the lengths say.
        let got = unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE) };
        if got < 0 {
            return None;
        }
        let mut error = None;
        socket::for_each_control(&header, |level, kind, data| {
            let is_it = matches!(
                (level, kind),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            if is_it && data.len() >= size_of::<libc::sock_extended_err>() {
                // SAFETY: there are as many bytes, and any are a valid value of this plain struct.
                error = Some(unsafe { data.as_ptr().cast::<libc::sock_extended_err>().read_unaligned() });
            }
        });
        Some((socket::address_of(&name), error?))
    }
}

impl AsRawFd for RefusalProbe {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

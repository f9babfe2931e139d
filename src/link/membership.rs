//! Membership in multicast groups. The kernel reports it to the network (IGMP, MLD), lets the groups' frames pass the
//! interface's filter, and answers queries as long as the socket lives.

use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// Where a device joins groups: its interface, and the IPv4 address of that interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    interface: u32,
    address: Option<Ipv4Addr>,
}

impl Place {
    /// The place of an interface that has these addresses.
    pub fn new(interface: u32, addresses: impl IntoIterator<Item = IpAddr>) -> Place {
        let v4 = |address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        };
        Place { interface, address: addresses.into_iter().find_map(v4) }
    }

    /// The kernel's index of the interface.
    pub fn interface(self) -> u32 {
        self.interface
    }

    /// Makes the socket a member of `group` until it is closed.
    pub fn join(self, socket: BorrowedFd<'_>, group: IpAddr) -> io::Result<()> {
        // A copy of the descriptor; the membership is the socket's.
        let socket = UdpSocket::from(socket.try_clone_to_owned()?);
        match group {
            IpAddr::V4(group) => {
                let address = self.address.ok_or_else(|| io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))?;
                socket.join_multicast_v4(&group, &address)
            }
            IpAddr::V6(group) => socket.join_multicast_v6(&group, self.interface),
        }
    }
}

/// Groups of a link whose frames do not arrive through sockets. There is a socket for each, since the kernel allows one
/// socket twenty IPv4 groups.
#[derive(Debug)]
pub(super) struct Memberships {
    place: Place,
    sockets: Vec<(IpAddr, UdpSocket)>,
}

impl Memberships {
    pub fn new(place: Place) -> Memberships {
        Memberships { place, sockets: Vec::new() }
    }

    /// Joins a group; a second call for the same group does nothing.
    pub fn join(&mut self, group: IpAddr) -> io::Result<()> {
        if self.sockets.iter().any(|(of, _)| *of == group) {
            return Ok(());
        }
        let any: IpAddr = if group.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
        let socket = UdpSocket::bind((any, 0))?;
        self.place.join(socket.as_fd(), group)?;
        self.sockets.push((group, socket));
        Ok(())
    }

    /// The groups that are joined.
    pub fn groups(&self) -> Vec<IpAddr> {
        self.sockets.iter().map(|(group, _)| *group).collect()
    }

    /// Leaves a group; nothing happens when it is not joined.
    pub fn leave(&mut self, group: IpAddr) {
        self.sockets.retain(|(of, _)| *of != group);
    }
}

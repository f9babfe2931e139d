//! The kernel's interfaces, routes and neighbours, requested over rtnetlink.
//!
//! rtnetlink answers while the request is being sent, so nothing here waits: when the socket is empty after a request,
//! the kernel has not answered.

mod interface;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_core::{NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

pub use interface::{Interface, Vlan};

/// Size of one read, in bytes. The kernel fills a dump's reads up to 32 KiB (NLMSG_GOODSIZE, net/netlink/af_netlink.c).
const READ_BYTES: usize = 64 * 1024;

/// An Ethernet address (MAC), in the order on the wire.
pub type Mac = [u8; 6];

/// How a packet leaves, by the kernel's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) kind: RouteKind,
    /// The index of the interface that it leaves by.
    pub(crate) interface: u32,
    /// The address that it is handed to: the gateway, or the destination itself.
    pub(crate) next_hop: IpAddr,
}

/// What sort of destination a route has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteKind {
    Unicast,
    /// One of the host's own addresses.
    Local,
    Broadcast,
    Multicast,
    /// The route says that the destination is unreachable.
    Unreachable,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) interface: u32,
    pub(crate) address: IpAddr,
    /// The Ethernet address; `None` when it is not known, or declared dead.
    pub(crate) mac: Option<Mac>,
    pub(crate) state: Reachability,
}

/// How far a neighbour entry can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachability {
    /// Confirmed lately, being confirmed, or set by hand.
    Valid,
    /// Known, but to be confirmed when used.
    Stale,
    /// Being resolved.
    Incomplete,
    /// The neighbour did not answer.
    Failed,
    /// The kernel removed the entry: the interface changed, or there was no room.
    Gone,
}

/// A change that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Neighbour(Neighbour),
    /// Routes changed: look them up again.
    Routes,
    /// Interfaces or addresses changed, and with them possibly routes.
    Interfaces,
    /// Events were lost: request everything again.
    Lost,
}

/// A socket for rtnetlink requests.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; READ_BYTES].into() })
    }

    /// All interfaces, with their addresses.
    pub(crate) fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let mut interfaces: Vec<Interface> = Vec::new();
        self.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP, |message| {
            if let RouteNetlinkMessage::NewLink(link) = message {
                interfaces.push(Interface::of_message(&link));
            }
        })?;
        self.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP, |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && let Some(address) = usable_address(&message)
                && let Some(interface) = interfaces.iter_mut().find(|i| i.index == message.header.index)
                && !interface.addresses.contains(&address)
            {
                interface.addresses.push(address);
            }
        })?;
        Ok(interfaces)
    }

    /// The route of a packet from `source` to `destination`; `interface` limits it to routes by that interface.
    pub(crate) fn route(
        &mut self,
        source: IpAddr,
        destination: IpAddr,
        interface: Option<u32>,
    ) -> io::Result<Option<Route>> {
        let mut query = RouteMessage::default();
        let (family, bits) = family(destination);
        query.header.address_family = family;
        query.header.destination_prefix_length = bits;
        query.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
        if !source.is_unspecified() && source.is_ipv4() == destination.is_ipv4() {
            query.header.source_prefix_length = bits;
            query.attributes.push(RouteAttribute::Source(RouteAddress::from(source)));
        }
        if let Some(index) = interface {
            query.attributes.push(RouteAttribute::Oif(index));
        }
        let mut answer = None;
        let asked = self.request(RouteNetlinkMessage::GetRoute(query), 0, |message| {
            if let RouteNetlinkMessage::NewRoute(message) = message {
                answer = route(&message, destination);
            }
        });
        match asked {
            Ok(()) => Ok(answer),
            Err(error) => match error.raw_os_error() {
                // What the kernel says for "no route", a prohibiting one, and a source that is not ours.
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL | libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The interfaces by which the default routes of the main table leave, of either family.
    pub(crate) fn default_route_interfaces(&mut self) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        self.request(RouteNetlinkMessage::GetRoute(RouteMessage::default()), NLM_F_DUMP, |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message
                && route.header.destination_prefix_length == 0
                && route.header.kind == RouteType::Unicast
                && route.header.table == RouteHeader::RT_TABLE_MAIN
            {
                for attribute in &route.attributes {
                    match attribute {
                        RouteAttribute::Oif(index) => found.push(*index),
                        RouteAttribute::MultiPath(hops) => found.extend(hops.iter().map(|hop| hop.interface_index)),
                        _ => {}
                    }
                }
            }
        })?;
        Ok(found)
    }

    /// All neighbours, of every interface.
    pub(crate) fn neighbours(&mut self) -> io::Result<Vec<Neighbour>> {
        let mut all = Vec::new();
        self.request(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), NLM_F_DUMP, |message| {
            if let RouteNetlinkMessage::NewNeighbour(message) = message {
                all.extend(neighbour(&message));
            }
        })?;
        Ok(all)
    }

    /// Notifies the kernel that a packet is about to be sent to a neighbour. It resolves an unknown one, and confirms a
    /// stale one, as for its own packets. Needs CAP_NET_ADMIN.
    pub(crate) fn use_neighbour(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address).0;
        message.header.ifindex = interface;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        message.attributes.push(NeighbourAttribute::Destination(match address {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }));
        self.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_ACK, |_| ())
    }

    /// Sends a request and passes every message of the answer to `take`.
    fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut take: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let len = match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let mut done = false;
            for (header, payload) in messages(&self.buffer[..len.min(READ_BYTES)]) {
                if header.sequence_number != self.sequence {
                    // The rest of an answer that an earlier request gave up on.
                    continue;
                }
                match payload {
                    NetlinkPayload::Done(_) => done = true,
                    NetlinkPayload::Error(error) => match error.code {
                        Some(code) => return Err(io::Error::from_raw_os_error(-code.get())),
                        None => done = true,
                    },
                    NetlinkPayload::InnerMessage(inner) => {
                        take(inner);
                        // One message answers what is neither a dump nor acknowledged.
                        done |= flags & (NLM_F_DUMP | NLM_F_ACK) == 0;
                    }
                    _ => {}
                }
            }
            if done {
                return Ok(());
            }
        }
    }
}

/// A socket on which the kernel reports changes.
pub(crate) struct Events {
    socket: Socket,
    buffer: Box<[u8]>,
}

impl Events {
    /// Subscribes to changes of neighbours, routes, addresses and interfaces of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Events> {
        /// RTNLGRP_* from linux/rtnetlink.h: LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV6_IFADDR, IPV6_ROUTE.
        const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        Ok(Events { socket, buffer: vec![0; READ_BYTES].into() })
    }

    /// Passes events to `take`, from at most 64 reads, so that a storm of changes delays no caller.
    pub(crate) fn read(&mut self, mut take: impl FnMut(Event)) {
        for _ in 0..64 {
            match self.socket.recv(&mut &mut self.buffer[..], libc::MSG_DONTWAIT) {
                Ok(len) => {
                    for (_, payload) in messages(&self.buffer[..len.min(READ_BYTES)]) {
                        let NetlinkPayload::InnerMessage(message) = payload else { continue };
                        match message {
                            RouteNetlinkMessage::NewNeighbour(message) => {
                                if let Some(news) = neighbour(&message) {
                                    take(Event::Neighbour(news));
                                }
                            }
                            RouteNetlinkMessage::DelNeighbour(message) => {
                                if let Some(news) = neighbour(&message) {
                                    take(Event::Neighbour(Neighbour { mac: None, state: Reachability::Gone, ..news }));
                                }
                            }
                            RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => take(Event::Routes),
                            _ => take(Event::Interfaces),
                        }
                    }
                }
                // The socket's buffer ran over.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => take(Event::Lost),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The messages of one read. A message that cannot be parsed (newer kernels add attributes) is left out.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (NetlinkHeader, NetlinkPayload<RouteNetlinkMessage>)> + use<'_> {
    std::iter::from_fn(move || {
        loop {
            let len = NetlinkBuffer::new_checked(bytes).ok()?.length() as usize;
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes[..len]);
            // Messages begin at multiples of four bytes.
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
            if let Ok(message) = message {
                return Some((message.header, message.payload));
            }
        }
    })
}

fn family(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

/// The address, unless duplicate detection found it elsewhere. The peer's address of a point-to-point link is not ours:
/// IFA_LOCAL goes before IFA_ADDRESS.
fn usable_address(message: &AddressMessage) -> Option<IpAddr> {
    if message.header.flags.contains(AddressHeaderFlags::Dadfailed) {
        return None;
    }
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

fn route(message: &RouteMessage, destination: IpAddr) -> Option<Route> {
    let kind = match message.header.kind {
        RouteType::Unicast | RouteType::Anycast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast => RouteKind::Broadcast,
        RouteType::Multicast => RouteKind::Multicast,
        _ => RouteKind::Unreachable,
    };
    let mut interface = None;
    let mut next_hop = destination;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => next_hop = IpAddr::V4(*ip),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => next_hop = IpAddr::V6(*ip),
            RouteAttribute::Via(RouteVia::Inet(ip)) => next_hop = IpAddr::V4(*ip),
            RouteAttribute::Via(RouteVia::Inet6(ip)) => next_hop = IpAddr::V6(*ip),
            _ => {}
        }
    }
    Some(Route { kind, interface: interface?, next_hop })
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    use netlink_packet_route::neighbour::NeighbourAddress;
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(IpAddr::V4(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => address = Some(IpAddr::V6(*ip)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    let state = match message.header.state {
        NeighbourState::Reachable
        | NeighbourState::Delay
        | NeighbourState::Probe
        | NeighbourState::Permanent
        | NeighbourState::Noarp => Reachability::Valid,
        NeighbourState::Stale => Reachability::Stale,
        NeighbourState::Failed => Reachability::Failed,
        _ => Reachability::Incomplete,
    };
    if matches!(state, Reachability::Incomplete | Reachability::Failed) {
        mac = None;
    }
    Some(Neighbour { interface: message.header.ifindex, address: address?, mac, state })
}

/// The link-local IPv6 address that an Ethernet address gives (RFC 4291, appendix A: modified EUI-64).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The Ethernet address that a link-local IPv6 address was made from; `None` when it was not made from one.
pub(crate) fn mac_of_link_local(address: Ipv6Addr) -> Option<Mac> {
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] = address.octets() else { return None };
    Some([a ^ 2, b, c, d, e, f])
}

/// The Ethernet group address of an IP multicast address (RFC 1112 section 6.4, RFC 2464 section 7).
pub(crate) fn multicast_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = Ipv4Addr::octets(&ip);
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(ip) => {
            let o = ip.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 4291 appendix A's rule: the universal/local bit is flipped, ff:fe goes in between.
    #[test]
    fn link_local_address_is_made_from_the_mac_and_leads_back_to_it() {
        let mac = [0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde];
        assert_eq!(link_local(mac).to_string(), "fe80::3656:78ff:fe9a:bcde");
        assert_eq!(mac_of_link_local(link_local(mac)), Some(mac));
        assert_eq!(mac_of_link_local("fe80::1".parse().unwrap()), None);
        assert_eq!(mac_of_link_local("2001:db8::3656:78ff:fe9a:bcde".parse().unwrap()), None);
    }

    #[test]
    fn multicast_addresses_map_to_ethernet_groups() {
        assert_eq!(multicast_mac("239.129.2.3".parse().unwrap()), [0x01, 0x00, 0x5e, 1, 2, 3]);
        assert_eq!(multicast_mac("ff02::1:2".parse().unwrap()), [0x33, 0x33, 0, 1, 0, 2]);
    }

    #[test]
    fn own_loopback_interface_is_listed_with_its_address() {
        let mut netlink = Netlink::open().unwrap();
        let all = netlink.interfaces().unwrap();
        let lo = all.iter().find(|i| i.loopback).expect("every namespace has lo");
        assert_eq!((lo.name.as_str(), lo.mtu > 1280), ("lo", true));
    }
}

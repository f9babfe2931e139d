use std::net::{IpAddr, Ipv6Addr};

use super::netlink::{self, Interface};

/// An entry of a device's GID table. All are RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID; `::ffff:a.b.c.d` for an IPv4 address.
    pub address: Ipv6Addr,
    /// The name of the interface that has the address: the device's, or a VLAN interface on it.
    pub interface: String,
    /// The VLAN of packets from this GID; `None` for untagged ones.
    pub vlan: Option<u16>,
}

impl Gid {
    /// The address in packets: IPv4 for an IPv4-mapped GID.
    pub fn ip(&self) -> IpAddr {
        IpAddr::V6(self.address).to_canonical()
    }
}

/// The addresses of an interface and of the VLANs on top of it, as its GID table has them.
pub(super) fn addresses(interface: &Interface, all: &[Interface]) -> Vec<IpAddr> {
    gids(interface, all).iter().map(Gid::ip).collect()
}

/// The GID table as the kernel's RDMA core makes it.
///
/// First comes the link-local address made from the MAC, whether IPv6 is on or not, then IPv4 addresses, then the other
/// IPv6 ones. Those of VLAN interfaces follow the device's own.
pub(super) fn gids(interface: &Interface, all: &[Interface]) -> Vec<Gid> {
    let mut gids: Vec<Gid> = Vec::new();
    let mut add = |interface: &Interface, address: Ipv6Addr| {
        let gid = Gid { address, interface: interface.name.clone(), vlan: interface.vlan.map(|v| v.id) };
        if !gids.contains(&gid) {
            gids.push(gid);
        }
    };
    let uppers = all.iter().filter(|i| i.vlan.is_some_and(|v| v.lower == interface.index));
    for (at, on) in std::iter::once(interface).chain(uppers).enumerate() {
        if let (0, Some(mac)) = (at, on.mac) {
            add(on, netlink::link_local(mac));
        }
        for address in &on.addresses {
            if let IpAddr::V4(ip) = address {
                add(on, ip.to_ipv6_mapped());
            }
        }
        for address in &on.addresses {
            if let IpAddr::V6(ip) = address {
                add(on, *ip);
            }
        }
    }
    gids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::netlink::Vlan;

    #[test]
    fn gid_table_begins_with_the_mac_then_ipv4_then_ipv6_and_vlans_behind() {
        let eth =
            Interface::example(2, "eth0", &["2001:db8::1", "10.0.0.1", "fe80::ff:fe00:2", "fe80::77", "10.0.0.2"]);
        let mut vlan = Interface::example(3, "eth0.9", &["10.9.0.1"]);
        vlan.vlan = Some(Vlan { lower: 2, id: 9, ethertype: 0x8100 });
        let table = gids(&eth, &[eth.clone(), vlan]);
        let text: Vec<String> = table.iter().map(|g| format!("{} {} {:?}", g.ip(), g.interface, g.vlan)).collect();
        assert_eq!(
            text,
            [
                "fe80::ff:fe00:2 eth0 None",
                "10.0.0.1 eth0 None",
                "10.0.0.2 eth0 None",
                "2001:db8::1 eth0 None",
                "fe80::77 eth0 None",
                "10.9.0.1 eth0.9 Some(9)",
            ]
        );
        // IPv6 off, no address at all: GID 0 is still there.
        let bare = Interface::example(4, "eth1", &[]);
        assert_eq!(gids(&bare, &[]).len(), 1);
    }
}

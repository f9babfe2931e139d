//! What the name of a device stands for: an interface, or one address of it.

use std::net::IpAddr;

use super::device_error::DeviceError;
use super::gid::{Gid, gids};
use super::netlink::Interface;

/// An interface with its GIDs; all of them, or that of one address alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection<'a> {
    pub interface: &'a Interface,
    /// The only address; `None` for all.
    pub address: Option<IpAddr>,
    pub gids: Vec<Gid>,
}

impl<'a> Selection<'a> {
    /// All addresses of an interface, and of the VLANs on top of it.
    pub fn whole(interface: &'a Interface, all: &[Interface]) -> Selection<'a> {
        Selection { interface, address: None, gids: gids(interface, all) }
    }

    /// What `name` stands for. Of interfaces that have the same address it is the first.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] and [`DeviceError::NoAddress`].
    pub fn of(name: &str, all: &'a [Interface]) -> Result<Selection<'a>, DeviceError> {
        let devices = || all.iter().filter(|interface| interface.is_device());
        if let Some(interface) = devices().find(|interface| interface.name == name) {
            return Ok(Selection::whole(interface, all));
        }
        let Ok(address) = name.parse::<IpAddr>() else {
            let known = devices().map(|interface| interface.name.clone()).collect();
            return Err(DeviceError::Unknown { name: name.to_owned(), known });
        };
        let address = address.to_canonical();
        let found = devices().find_map(|interface| Selection::at(address, interface, all));
        found.ok_or(DeviceError::NoAddress { address })
    }

    /// One address of an interface; `None` when it is not one.
    fn at(address: IpAddr, interface: &'a Interface, all: &[Interface]) -> Option<Selection<'a>> {
        let mut gids = gids(interface, all);
        gids.retain(|gid| gid.ip() == address);
        // The kernel lists 127.0.0.1/8 only, and takes packets to every address of it.
        if let (IpAddr::V4(ip), true, true) = (address, gids.is_empty(), interface.loopback)
            && ip.is_loopback()
        {
            gids.push(Gid { address: ip.to_ipv6_mapped(), interface: interface.name.clone(), vlan: None });
        }
        if gids.is_empty() { None } else { Some(Selection { interface, address: Some(address), gids }) }
    }

    /// The addresses in packets, in the order of the GID table.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.gids.iter().map(Gid::ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::netlink::Vlan;

    #[test]
    fn a_name_is_an_interface_or_one_address_of_it() {
        let eth = Interface::example(2, "eth0", &["10.7.0.1", "10.7.0.2", "2001:db8::1"]);
        let mut vlan = Interface::example(3, "eth0.9", &["10.9.0.1"]);
        vlan.vlan = Some(Vlan { lower: 2, id: 9, ethertype: 0x8100 });
        let mut lo = Interface::example(1, "lo", &["127.0.0.1", "::1"]);
        (lo.loopback, lo.mac) = (true, None);
        let all = [lo, eth, vlan];
        let of = |name: &str| {
            let found = Selection::of(name, &all)?;
            let addresses: Vec<String> = found.addresses().map(|address| address.to_string()).collect();
            Ok::<_, DeviceError>(format!("{} {}", found.interface.name, addresses.join(" ")))
        };
        assert_eq!(of("eth0").unwrap(), "eth0 fe80::ff:fe00:2 10.7.0.1 10.7.0.2 2001:db8::1 10.9.0.1");
        for (name, one) in [
            ("10.7.0.2", "eth0 10.7.0.2"),
            ("::ffff:10.7.0.2", "eth0 10.7.0.2"),
            ("2001:db8::1", "eth0 2001:db8::1"),
            ("10.9.0.1", "eth0 10.9.0.1"),
            ("127.0.0.1", "lo 127.0.0.1"),
            ("127.9.8.7", "lo 127.9.8.7"),
            ("::1", "lo ::1"),
        ] {
            assert_eq!(of(name).unwrap(), one);
        }
        assert_eq!(of("10.7.0.3").unwrap_err().to_string(), "no device has the address 10.7.0.3: see `uroce devices`");
        assert_eq!(of("eth0.9").unwrap_err().to_string(), "no device eth0.9; there are lo, eth0");
    }
}

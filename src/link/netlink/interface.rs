use std::net::IpAddr;

use netlink_packet_route::link::{
    InfoData, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp, VlanProtocol,
};

use super::Mac;

/// A network interface, with the attributes that the kernel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's index of the interface.
    pub index: u32,
    /// The name of the interface.
    pub name: String,
    /// Its Ethernet address; `None` for other kinds of interface.
    pub mac: Option<Mac>,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// Whether the administrator has set it up.
    pub up: bool,
    /// Whether it has a carrier: a cable, or the other end of a pair, is there and up.
    pub carrier: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// The number of receive queues.
    pub rx_queues: u32,
    /// The number of transmit queues.
    pub tx_queues: u32,
    /// The kind of virtual interface; `None` for others.
    pub kind: Option<String>,
    /// The VLAN that it carries, if it is a VLAN interface.
    pub vlan: Option<Vlan>,
    /// The bridge or bond that it is a part of.
    pub master: Option<u32>,
    /// The number of the XDP program that is attached to it; `None` without one.
    pub xdp_program: Option<u32>,
    /// Its IP addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// Whether it is a device of its own: Ethernet, or the loopback while it is up. VLANs are part of the device below
    /// them.
    pub fn is_device(&self) -> bool {
        if self.loopback { self.up } else { self.mac.is_some() && self.vlan.is_none() }
    }

    /// An Ethernet interface that is up.
    #[cfg(test)]
    pub(in crate::link) fn example(index: u32, name: &str, addresses: &[&str]) -> Interface {
        Interface {
            name: name.into(),
            mac: Some([0x02, 0, 0, 0, 0, index as u8]),
            mtu: 1500,
            up: true,
            carrier: true,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ..Interface::new(index)
        }
    }

    /// An interface with this index and no other attributes.
    fn new(index: u32) -> Interface {
        Interface {
            index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: false,
            carrier: false,
            loopback: false,
            rx_queues: 1,
            tx_queues: 1,
            kind: None,
            vlan: None,
            master: None,
            xdp_program: None,
            addresses: Vec::new(),
        }
    }

    /// What a message says of an interface, whose addresses come in others.
    pub(super) fn of_message(link: &LinkMessage) -> Interface {
        let mut interface = Interface {
            up: link.header.flags.contains(LinkFlags::Up),
            carrier: link.header.flags.contains(LinkFlags::LowerUp),
            loopback: link.header.flags.contains(LinkFlags::Loopback),
            ..Interface::new(link.header.index)
        };
        let mut lower = None;
        let mut tag = None;
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => interface.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => interface.mtu = *mtu as usize,
                LinkAttribute::NumRxQueues(queues) => interface.rx_queues = (*queues).max(1),
                LinkAttribute::NumTxQueues(queues) => interface.tx_queues = (*queues).max(1),
                LinkAttribute::Link(index) => lower = Some(*index),
                LinkAttribute::Address(mac) if link.header.link_layer_type == LinkLayerType::Ether => {
                    interface.mac = mac.as_slice().try_into().ok();
                }
                LinkAttribute::Xdp(xdp) => {
                    let number = |attribute: &LinkXdp| match attribute {
                        LinkXdp::ProgId(id) if *id != 0 => Some(*id),
                        _ => None,
                    };
                    interface.xdp_program = xdp.iter().find_map(number);
                }
                LinkAttribute::Controller(index) => interface.master = Some(*index),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => interface.kind = Some(kind.to_string()),
                            LinkInfo::Data(InfoData::Vlan(data)) => tag = Some(vlan_tag(data)),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if let (Some(lower), Some((id, ethertype))) = (lower, tag) {
            interface.vlan = Some(Vlan { lower, id, ethertype });
        }
        interface
    }
}

/// The VLAN of an interface on top of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// The index of the interface below.
    pub lower: u32,
    /// The VLAN id, 0 to 4095.
    pub id: u16,
    /// The tag's EtherType: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub ethertype: u16,
}

fn vlan_tag(data: &[InfoVlan]) -> (u16, u16) {
    let (mut id, mut ethertype) = (0, 0x8100);
    for info in data {
        match info {
            InfoVlan::Id(vlan) => id = *vlan,
            InfoVlan::Protocol(VlanProtocol::Ieee8021Ad) => ethertype = 0x88a8,
            _ => {}
        }
    }
    (id, ethertype)
}

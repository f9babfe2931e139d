//! Devices: the interfaces that RoCE can use, their GIDs, and what prevents a link from being opened on them.

use std::fs;
use std::net::IpAddr;

use crate::wire::PathMtu;

use super::host::{self, Host};
use super::netlink::{Interface, Mac, Netlink};
use super::selection::Selection;
use super::udp::{self, UdpOpenError};
use super::xdp::{MULTI_BUFFER_PACKET_BYTES, SINGLE_BUFFER_PACKET_BYTES, XdpOpenError, XdpOptions};
use super::{Rails, holder};

pub use super::device_error::DeviceError;
pub use super::gid::Gid;

/// Upper bound on the length of a device's name (`IBV_SYSFS_NAME_MAX`, less the NUL and `uverbs-`).
const NAME_BYTES: usize = 56;

/// A network interface as an RDMA device of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's name: its interface's, or the one that was given with it.
    pub name: String,
    /// The interface's name.
    pub interface: String,
    /// The kernel's index of the interface.
    pub index: u32,
    /// The address that is the whole device; `None` when the device has all addresses of its interface.
    pub address: Option<IpAddr>,
    /// Its Ethernet address; zeros on the loopback.
    pub mac: Mac,
    /// Whether it is the loopback: a device for UDP sockets only.
    pub loopback: bool,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// Whether the administrator has set it up.
    pub up: bool,
    /// Whether it has a carrier: the other end is there.
    pub carrier: bool,
    /// Whether a default route leaves by it, or by what is on top of it (a VLAN, a bridge, a bond): the host may be
    /// reached through it.
    pub has_default_route: bool,
    /// The number of receive queues.
    pub rx_queues: u32,
    /// The memory node it is attached to; `None` for virtual interfaces and machines with one node.
    pub numa_node: Option<u32>,
    /// Speed in megabits a second; `None` where the interface does not report it.
    pub speed_mbps: Option<u32>,
    /// The GID table, from index 0 on.
    pub gids: Vec<Gid>,
    /// The largest payload of a packet in bytes, over AF_XDP where that is possible: 256, 512, 1024, 2048 or 4096.
    pub active_mtu: u32,
}

/// The speed of a lane, with the IBTA's code for it (PortInfo:LinkSpeedActive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the IBTA's names
pub enum LaneSpeed {
    Sdr = 1,
    Qdr = 4,
    Fdr10 = 8,
    Edr = 32,
    Hdr = 64,
    Ndr = 128,
}

impl LaneSpeed {
    /// The name, and the rate of a lane in units of 100 Mb/s, as the kernel prints them (rate_show in core/sysfs.c).
    pub fn name_and_rate(self) -> (&'static str, u32) {
        match self {
            LaneSpeed::Sdr => ("SDR", 25),
            LaneSpeed::Qdr => ("QDR", 100),
            LaneSpeed::Fdr10 => ("FDR10", 100),
            LaneSpeed::Edr => ("EDR", 250),
            LaneSpeed::Hdr => ("HDR", 500),
            LaneSpeed::Ndr => ("NDR", 1000),
        }
    }
}

/// A kind of link on a device, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkMode {
    /// The name of the link mode: `xdp` or `udp`.
    pub name: &'static str,
    /// What prevents it from being opened; one line each, with its remedy. Empty when nothing does.
    pub missing: Vec<String>,
    /// What works less well than it could; one line each.
    pub limits: Vec<String>,
}

impl Device {
    /// All Ethernet interfaces of the calling thread's network namespace, in the order of their index, usable or not.
    /// The loopback is last, while it is up.
    ///
    /// # Errors
    /// [`DeviceError::Netlink`] when the kernel does not answer.
    pub fn list() -> Result<Vec<Device>, DeviceError> {
        let around = Surroundings::read()?;
        let Surroundings { interfaces, .. } = &around;
        let whole = |interface| device(&Selection::whole(interface, interfaces), &around);
        let mut devices: Vec<Device> = interfaces.iter().filter(|i| i.is_device()).filter_map(whole).collect();
        devices.sort_by_key(|d| (d.loopback, d.index));
        Ok(devices)
    }

    /// The device that is taken when none is named: the first usable one, and the loopback only when there is no other.
    pub fn default_of(devices: &[Device]) -> Option<&Device> {
        let usable = |is_loopback| move |d: &&Device| d.is_usable() && d.loopback == is_loopback;
        devices.iter().find(usable(false)).or_else(|| devices.iter().find(usable(true)))
    }

    /// The index of the GID that is taken when none is chosen: the first IPv4 one, else the first one but that of the interface
    /// alone, else 0.
    pub fn default_gid_index(&self) -> usize {
        let first = |is_it: &dyn Fn(&Gid) -> bool| self.gids.iter().position(is_it);
        let routable = || first(&|gid| !gid.address.is_unicast_link_local());
        first(&|gid| gid.ip().is_ipv4()).or_else(routable).unwrap_or(0)
    }

    /// The device of that name, or the default one ([`Device::default_of`]). The name is that of an interface, or an
    /// address: then the device is that address of its interface alone, with one GID. `PLACE=NAME` gives the device
    /// another name.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] when there is no device of that name, and [`DeviceError::NoAddress`] when none has the
    /// address; [`DeviceError::Name`] when it cannot have the name; [`DeviceError::None`] when no name is given and none
    /// is usable; [`DeviceError::Netlink`] when the kernel does not answer.
    pub fn find(name: Option<&str>) -> Result<Device, DeviceError> {
        let Some(name) = name else {
            return Device::default_of(&Device::list()?).cloned().ok_or(DeviceError::None);
        };
        if let Some((place, name)) = name.split_once('=') {
            check_name(name)?;
            return Ok(Device { name: name.to_owned(), ..Device::find(Some(place))? });
        }
        let around = Surroundings::read()?;
        let Surroundings { interfaces, .. } = &around;
        let known = || interfaces.iter().filter(|i| i.is_device()).map(|i| i.name.clone()).collect();
        device(&Selection::of(name, interfaces)?, &around)
            .ok_or_else(|| DeviceError::Unknown { name: name.to_owned(), known: known() })
    }

    /// The link modes, and whether each can be opened now. That takes milliseconds: the descriptors of all processes are
    /// looked at when another one has the interface.
    ///
    /// # Errors
    /// [`DeviceError`] when the device is gone, or the kernel does not answer.
    pub fn link_modes(&self) -> Result<Vec<LinkMode>, DeviceError> {
        let interfaces = Netlink::open()?.interfaces()?;
        let selection = Selection::of(&self.place(), &interfaces)?;
        let mut xdp = self.xdp_mode(&Host::read());
        xdp.missing.extend(in_the_way(&selection));
        Ok(vec![xdp, udp_mode(&selection, &interfaces)])
    }

    /// What links open: the address that is the device, or the interface.
    pub(crate) fn place(&self) -> String {
        self.address.map_or_else(|| self.interface.clone(), |address| address.to_string())
    }

    /// The devices of those names, in that order: the interfaces of one device together. Without any name it is the
    /// default one.
    ///
    /// # Errors
    /// As [`find`](Device::find). [`DeviceError::Twice`] when a name is given twice, or an interface and an address of
    /// it; [`DeviceError::NotFirst`] when not only the first is given another name; [`DeviceError::TooMany`] when more
    /// than [`Rails::MAX`] are given.
    pub fn find_all(names: &[String]) -> Result<Vec<Device>, DeviceError> {
        if names.is_empty() {
            return Ok(vec![Device::find(None)?]);
        }
        if names.len() > Rails::MAX {
            return Err(DeviceError::TooMany { count: names.len() });
        }
        if let Some(name) = names.iter().skip(1).find(|name| name.contains('=')) {
            return Err(DeviceError::NotFirst { name: name.clone() });
        }
        let devices: Vec<Device> = names.iter().map(|name| Device::find(Some(name))).collect::<Result<_, _>>()?;
        let overlap = |a: &Device, b: &Device| a.gids.iter().any(|gid| b.gids.contains(gid));
        let twice = devices.iter().enumerate().find(|(at, device)| devices[..*at].iter().any(|b| overlap(device, b)));
        match twice {
            Some((at, _)) => Err(DeviceError::Twice { name: names[at].clone() }),
            None => Ok(devices),
        }
    }

    /// The devices that a program sees. `names`: those interfaces as one device, called after the first. Without any name:
    /// every usable interface, the default one first; the loopback only when there is no other.
    ///
    /// # Errors
    /// As [`find_all`](Device::find_all), except that no usable interface is no error.
    pub fn visible(names: &[String]) -> Result<Vec<Device>, DeviceError> {
        if !names.is_empty() {
            return Ok(Device::find_all(names)?.into_iter().take(1).collect());
        }
        let all = Device::list()?;
        let Some(default) = Device::default_of(&all) else { return Ok(Vec::new()) };
        let is_loopback = default.loopback;
        Ok(all.into_iter().filter(|device| device.is_usable() && device.loopback == is_loopback).collect())
    }

    /// The GUID: the MAC as an EUI-64, as the kernel's RDMA core makes it (RFC 4291, appendix A).
    pub fn guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The number of lanes and the speed of each that come nearest to the interface's from below, as the kernel's
    /// ib_get_eth_speed has it.
    pub fn lanes(&self) -> (u8, LaneSpeed) {
        match self.speed_mbps.unwrap_or(0) {
            ..10_000 => (1, LaneSpeed::Sdr),
            10_000..20_000 => (1, LaneSpeed::Fdr10),
            20_000..25_000 => (4, LaneSpeed::Qdr),
            25_000..40_000 => (1, LaneSpeed::Edr),
            40_000..50_000 => (4, LaneSpeed::Fdr10),
            50_000..100_000 => (1, LaneSpeed::Hdr),
            100_000..200_000 => (4, LaneSpeed::Edr),
            200_000..400_000 => (4, LaneSpeed::Hdr),
            400_000.. => (4, LaneSpeed::Ndr),
        }
    }

    /// Whether packets can pass: the device is up, with a carrier, and its MTU holds the smallest path MTU.
    pub fn is_usable(&self) -> bool {
        self.up && self.carrier && self.active_mtu > 0
    }

    /// What AF_XDP needs of the interface and of the host.
    fn xdp_mode(&self, host: &Host) -> LinkMode {
        let name = &self.interface;
        let mut xdp = LinkMode { name: "xdp", missing: Vec::new(), limits: Vec::new() };
        if !cfg!(feature = "xdp") {
            xdp.missing.push(XdpOpenError::NotBuilt.to_string());
        }
        if self.loopback {
            xdp.missing.push("the loopback is not an Ethernet interface".to_owned());
        }
        if let Some(address) = self.address {
            xdp.missing.push(format!("{address} is one address of {name}, and AF_XDP takes a whole interface"));
        }
        if !self.up {
            xdp.missing.push(format!("the interface is down: ip link set {name} up"));
        } else if !self.carrier {
            xdp.missing.push("no carrier: the cable, or the other end of the pair, is missing or down".to_owned());
        }
        if active_mtu(self.mtu) == 0 {
            xdp.missing.push(format!("MTU {} is too small for RoCE: ip link set {name} mtu 1500", self.mtu));
        }
        if !host.has_af_xdp {
            xdp.missing.push("this kernel has no AF_XDP: one with CONFIG_XDP_SOCKETS=y is needed".to_owned());
        }
        if !host.missing_capabilities.is_empty() {
            let missing = &host.missing_capabilities;
            xdp.missing.push(format!(
                "{} missing: run as root, or setcap {}+ep PROGRAM",
                missing.join(", "),
                missing.join(",").to_lowercase()
            ));
        }
        if let Some(error) = &host.bpf_refused {
            xdp.missing.push(format!(
                "the kernel refuses bpf(2) ({error}): capabilities of a user namespace are not enough, those of the host are needed"
            ));
        }
        let needed = XdpOptions::default().memory_bytes(self.rx_queues);
        if let Some(bytes) = host.lockable_bytes
            && bytes < needed
        {
            xdp.missing.push(format!(
                "only {} KiB of memory can be locked: raise it with ulimit -l {}, or grant CAP_IPC_LOCK",
                bytes / 1024,
                needed / 1024
            ));
        }
        if self.has_default_route {
            xdp.limits
                .push(format!("the default route uses it: opened over AF_XDP only if it is named (--dev {name})"));
        }
        if active_mtu(self.mtu) > self.active_mtu {
            let least = "kernel 6.6 or later (multi-buffer AF_XDP) removes this limit";
            let (possible, mtu) = (self.active_mtu, self.mtu);
            xdp.limits.push(format!("path MTU {possible} although the interface's MTU is {mtu}: {least}"));
        }
        xdp
    }
}

/// Whether a device can have the name: programs make the names of files of it, and keep 63 bytes.
fn check_name(name: &str) -> Result<(), DeviceError> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_name = name.bytes().all(is_good) && !name.starts_with('.') && (1..=NAME_BYTES).contains(&name.len());
    if is_name { Ok(()) } else { Err(DeviceError::Name { name: name.to_owned() }) }
}

/// The largest path MTU for IP packets of `max_packet_bytes`, in bytes; 0 when not even 256 bytes fit.
fn active_mtu(max_packet_bytes: usize) -> u32 {
    PathMtu::fitting(max_packet_bytes).map_or(0, |mtu| mtu.bytes() as u32)
}

/// What devices are made of.
struct Surroundings {
    /// The interfaces of the calling thread's network namespace.
    interfaces: Vec<Interface>,
    /// Those by which default routes leave.
    outward: Vec<u32>,
    kernel: Option<(u32, u32)>,
}

impl Surroundings {
    fn read() -> Result<Surroundings, DeviceError> {
        let mut netlink = Netlink::open()?;
        let interfaces = netlink.interfaces()?;
        // Kernels that do not tell have none.
        let outward = outward(&netlink.default_route_interfaces().unwrap_or_default(), &interfaces);
        Ok(Surroundings { interfaces, outward, kernel: host::kernel() })
    }
}

/// The device of a selection; `None` for an interface that is none.
fn device(selection: &Selection<'_>, around: &Surroundings) -> Option<Device> {
    let interface = selection.interface;
    let name = &interface.name;
    let multi_buffer = around.kernel.is_none_or(|version| version >= (6, 6));
    let limit = if multi_buffer { MULTI_BUFFER_PACKET_BYTES } else { SINGLE_BUFFER_PACKET_BYTES };
    Some(Device {
        name: name.clone(),
        interface: name.clone(),
        index: interface.index,
        address: selection.address,
        mac: if interface.loopback { [0; 6] } else { interface.mac? },
        loopback: interface.loopback,
        mtu: interface.mtu,
        up: interface.up,
        carrier: interface.carrier,
        has_default_route: around.outward.contains(&interface.index),
        rx_queues: interface.rx_queues,
        numa_node: sysfs(interface, "device/numa_node"),
        speed_mbps: sysfs(interface, "speed"),
        gids: selection.gids.clone(),
        active_mtu: active_mtu(interface.mtu.min(limit)),
    })
}

/// What UDP sockets on the interface's addresses need, and how well the ICRC can be checked over them.
fn udp_mode(selection: &Selection<'_>, interfaces: &[Interface]) -> LinkMode {
    let interface = selection.interface;
    let mut mode = LinkMode { name: "udp", missing: Vec::new(), limits: Vec::new() };
    let name = &interface.name;
    if !cfg!(feature = "udp") {
        mode.missing.push(UdpOpenError::NotBuilt.to_string());
    }
    if !interface.up {
        mode.missing.push(format!("the interface is down: ip link set {name} up"));
    } else if active_mtu(interface.mtu) == 0 {
        mode.missing.push(format!("MTU {} is too small for RoCE: ip link set {name} mtu 1500", interface.mtu));
    } else if let Some(error) = udp::obstacle(selection, interfaces) {
        mode.missing.push(error.to_string());
    }
    mode.limits.push(
        "ICRC over IPv4: 16 bits of check for a new peer, 25 once it was seen to count, 32 for one that does not; \
         over IPv6: 32"
            .to_owned(),
    );
    if let Some(bytes) = udp::small_socket_buffer() {
        mode.limits.push(format!(
            "sockets hold {} KiB of received packets: sysctl -w net.core.rmem_max={} loses fewer",
            bytes / 1024,
            udp::SOCKET_BUFFER_BYTES
        ));
    }
    mode
}

/// The process that prevents an AF_XDP link from being opened on the interface, with the remedy; `None` for none.
fn in_the_way(selection: &Selection<'_>) -> Option<String> {
    let interface = selection.interface;
    if interface.loopback {
        return None;
    }
    if let Some(holder) = holder::claimant(interface.index) {
        return Some(match udp::is_shared(interface.index) && holder::is_shared(interface.index) {
            true => format!("{holder} uses it over AF_XDP: others share it over UDP sockets"),
            false => format!("{holder} uses it over AF_XDP: only one program at a time can"),
        });
    }
    if interface.xdp_program.is_some() {
        let owner = holder::attached_by(interface.xdp_program, &interface.name);
        return Some(format!("another XDP program is attached, {owner}: --link udp, or another --dev"));
    }
    if udp::is_shared(interface.index) {
        return None;
    }
    let addresses: Vec<IpAddr> = selection.addresses().collect();
    let socket = holder::sockets_that_lose(&interface.name, &addresses)?;
    Some(format!("{} receives RoCE on UDP port 4791 of {}", holder::loser(&socket), socket.0))
}

/// The interfaces by which packets leave that leave by those in `routes`: these, the ones below them, and their parts.
fn outward(routes: &[u32], interfaces: &[Interface]) -> Vec<u32> {
    let mut found = routes.to_vec();
    let mut at = 0;
    while let Some(&index) = found.get(at) {
        at += 1;
        let lower = interfaces.iter().filter(|i| i.index == index).filter_map(|i| i.vlan).map(|vlan| vlan.lower);
        let parts = interfaces.iter().filter(|i| i.master == Some(index)).map(|i| i.index);
        let more: Vec<u32> = lower.chain(parts).filter(|index| !found.contains(index)).collect();
        found.extend(more);
    }
    found
}

/// A number from sysfs, if sysfs shows this interface: it is mounted for one namespace, which can be another one.
fn sysfs<T: std::str::FromStr>(interface: &Interface, file: &str) -> Option<T> {
    let folder = format!("/sys/class/net/{}", interface.name);
    let read = |file: &str| fs::read_to_string(format!("{folder}/{file}")).ok();
    let mac = interface.mac?.map(|b| format!("{b:02x}")).join(":");
    if read("ifindex")?.trim() != interface.index.to_string() || read("address")?.trim() != mac {
        return None;
    }
    // Unknown ones are -1.
    read(file)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::netlink::Vlan;

    #[test]
    fn path_mtu_is_the_largest_that_fits_with_all_headers() {
        for (mtu, expected) in [
            (300, 0),
            (335, 0),
            (336, 256),
            (1280, 1024),
            (1500, 1024),
            (2300, 2048),
            (4175, 2048),
            (4176, 4096),
            (9000, 4096),
        ] {
            assert_eq!(active_mtu(mtu), expected, "MTU {mtu}");
        }
        assert_eq!((active_mtu(SINGLE_BUFFER_PACKET_BYTES), active_mtu(MULTI_BUFFER_PACKET_BYTES)), (2048, 4096));
    }

    #[cfg(feature = "xdp")] // the first that is missing, otherwise
    #[test]
    fn what_is_missing_is_said_in_lines_with_a_remedy() {
        let host = Host {
            missing_capabilities: vec!["CAP_NET_RAW", "CAP_BPF"],
            has_af_xdp: false,
            bpf_refused: Some("Operation not permitted (os error 1)".into()),
            lockable_bytes: Some(20 << 20),
        };
        let mut eth = Interface::example(2, "eth0", &[]);
        (eth.up, eth.mtu) = (false, 9000);
        let around = Surroundings { interfaces: Vec::new(), outward: vec![2], kernel: Some((6, 1)) };
        let device = device(&Selection::whole(&eth, &[]), &around).unwrap();
        let xdp = device.xdp_mode(&host);
        assert_eq!(
            xdp.missing,
            [
                "the interface is down: ip link set eth0 up",
                "this kernel has no AF_XDP: one with CONFIG_XDP_SOCKETS=y is needed",
                "CAP_NET_RAW, CAP_BPF missing: run as root, or setcap cap_net_raw,cap_bpf+ep PROGRAM",
                "the kernel refuses bpf(2) (Operation not permitted (os error 1)): capabilities of a user namespace are not \
                 enough, those of the host are needed",
                "only 20480 KiB of memory can be locked: raise it with ulimit -l 65536, or grant CAP_IPC_LOCK",
            ]
        );
        assert_eq!(
            xdp.limits,
            [
                "the default route uses it: opened over AF_XDP only if it is named (--dev eth0)",
                "path MTU 2048 although the interface's MTU is 9000: kernel 6.6 or later (multi-buffer AF_XDP) removes this limit"
            ]
        );
        assert_eq!((device.active_mtu, device.is_usable(), device.has_default_route), (2048, false, true));
    }

    /// A default route by a VLAN on a bond of two: the bond and both parts lead out, another interface does not.
    #[test]
    fn what_is_below_a_default_route_leads_out() {
        let mut all: Vec<Interface> = (2..7).map(|index| Interface::example(index, "eth", &[])).collect();
        (all[0].master, all[1].master) = (Some(4), Some(4));
        all[3].vlan = Some(Vlan { lower: 4, id: 9, ethertype: 0x8100 });
        let mut found = outward(&[5], &all);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 4, 5]);
        assert_eq!(outward(&[], &all), Vec::<u32>::new());
    }

    #[test]
    fn the_default_device_is_the_first_usable_one_and_the_loopback_at_last() {
        let around = Surroundings { interfaces: Vec::new(), outward: Vec::new(), kernel: None };
        let made = |index, is_usable: bool, loopback| {
            let mut of = Interface::example(index, &format!("eth{index}"), &[]);
            (of.carrier, of.loopback) = (is_usable, loopback);
            device(&Selection::whole(&of, &[]), &around).unwrap()
        };
        let name = |devices: &[Device]| Device::default_of(devices).map(|device| device.name.clone());
        assert_eq!(name(&[made(2, false, false), made(3, true, false), made(1, true, true)]).as_deref(), Some("eth3"));
        assert_eq!(name(&[made(2, false, false), made(1, true, true)]).as_deref(), Some("eth1"));
        assert_eq!(name(&[made(2, false, false), made(1, false, true)]), None);
    }
}

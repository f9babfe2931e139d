//! What programs look for in `/dev/infiniband` and in sysfs before they ask libibverbs for devices.
//!
//! No kernel driver makes these files here, so `uroce run` writes them into its folder, and the preloaded library leads
//! the program's calls there (`tools/verbs/src/redirect.rs`). Formats are those of the kernel's
//! `drivers/infiniband/core/sysfs.c` and `uverbs_main.c`, values those of rxe where uroce has none of its own.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use uroce::verbs::{Device, PortCounter};

/// The version of the interface that libibverbs expects of the kernel (`IB_USER_VERBS_ABI_VERSION`).
const VERBS_ABI_VERSION: u32 = 6;

/// Writes the files of all `devices` below `root`, which is made.
///
/// # Errors
/// Those of the file system.
pub fn write(root: &Path, devices: &[Device]) -> io::Result<()> {
    let nodes = root.join("dev/infiniband");
    let verbs = root.join("sys/class/infiniband_verbs");
    let ibdevs = root.join("sys/class/infiniband");
    let [live, marks] = ["live", "marks"].map(|name| root.join(name));
    for folder in [&nodes, &verbs, &ibdevs, &live, &marks] {
        fs::create_dir_all(folder)?;
    }
    put(&verbs, "abi_version", VERBS_ABI_VERSION)?;
    for device in devices {
        let node = format!("uverbs-{}", device.name);
        // Programs ask whether it is a character device that they may read and write, and close it again.
        symlink("/dev/null", nodes.join(&node))?;
        let of_node = verbs.join(&node);
        fs::create_dir(&of_node)?;
        put(&of_node, "ibdev", &device.name)?;
        put(&of_node, "abi_version", 1)?;
        let folder = ibdevs.join(&device.name);
        fs::create_dir(&folder)?;
        write_device(&folder, device)?;
        symlink(folder.join("device"), of_node.join("device"))?;
    }
    Ok(())
}

fn write_device(folder: &Path, device: &Device) -> io::Result<()> {
    let guid = groups(&device.guid().to_be_bytes());
    put(folder, "node_type", "1: CA")?;
    put(folder, "node_guid", &guid)?;
    put(folder, "sys_image_guid", &guid)?;
    put(folder, "node_desc", &device.name)?;
    put(folder, "fw_ver", env!("CARGO_PKG_VERSION"))?;
    // Drivers for hardware say what it is.
    for (name, value) in [("hca_type", "uroce"), ("board_id", "uroce"), ("hw_rev", "0")] {
        put(folder, name, value)?;
    }
    write_parent(folder, device)?;
    let port = folder.join("ports/1");
    fs::create_dir_all(&port)?;
    write_port(&port, device)
}

/// The interface's own device, or, for interfaces without one, what programs read of it.
fn write_parent(folder: &Path, device: &Device) -> io::Result<()> {
    let real = Path::new("/sys/class/net").join(&device.interface).join("device");
    let parent = folder.join("device");
    if real.exists() {
        return symlink(real, parent);
    }
    fs::create_dir_all(parent.join("net").join(&device.interface))?;
    put(&parent, "numa_node", device.numa_node.map_or("-1".to_owned(), |node| node.to_string()))?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_else(|_| "0".to_owned());
    put(&parent, "local_cpulist", online.trim())?;
    put(&parent, "local_cpus", mask(online.trim()))
}

/// A list of processors (`0-2,4`) as sysfs has its masks: hexadecimal words of 32 bits, the highest first.
fn mask(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last {
            words.resize(words.len().max(cpu / 32 + 1), 0);
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

fn write_port(port: &Path, device: &Device) -> io::Result<()> {
    let is_up = device.up && device.carrier;
    put(port, "state", if is_up { "4: ACTIVE" } else { "1: DOWN" })?;
    put(port, "phys_state", if is_up { "5: LinkUp" } else { "3: Disabled" })?;
    put(port, "link_layer", "Ethernet")?;
    put(port, "rate", rate(device))?;
    put(port, "cap_mask", "0x04010000")?;
    for (name, value) in [("lid", "0x0"), ("sm_lid", "0x0"), ("lid_mask_count", "0"), ("sm_sl", "0")] {
        put(port, name, value)?;
    }
    let [gids, types, interfaces, keys] =
        ["gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"].map(|name| port.join(name));
    for folder in [&gids, &types, &interfaces, &keys] {
        fs::create_dir_all(folder)?;
    }
    put(&keys, "0", "0xffff")?;
    write_counters(port)?;
    for (index, gid) in device.gids.iter().enumerate() {
        let index = index.to_string();
        put(&gids, &index, groups(&gid.address.octets()))?;
        put(&types, &index, "RoCE v2")?;
        put(&interfaces, &index, &gid.interface)?;
    }
    Ok(())
}

/// The files of counters. The library puts the value in when a program opens one (`tools/verbs/src/live.rs`).
fn write_counters(port: &Path) -> io::Result<()> {
    for folder in ["counters", "hw_counters"] {
        fs::create_dir(port.join(folder))?;
    }
    // How long a value stays, in milliseconds, by the kernel's default (RDMA_HW_STATS_DEFAULT_LIFESPAN).
    put(&port.join("hw_counters"), "lifespan", 10)?;
    PortCounter::ALL.iter().try_for_each(|counter| put(&port.join(counter.folder), counter.name, 0))
}

/// The port's rate, by lanes; that of the interface is at least as much.
fn rate(device: &Device) -> String {
    let (lanes, speed) = device.lanes();
    let (name, rate) = speed.name_and_rate();
    let rate = rate * u32::from(lanes);
    format!("{}{} Gb/sec ({lanes}X {name})", rate / 10, if rate.is_multiple_of(10) { "" } else { ".5" })
}

/// Four hexadecimal digits a group, as sysfs shows GUIDs and GIDs.
fn groups(bytes: &[u8]) -> String {
    let groups = bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    groups.collect::<Vec<_>>().join(":")
}

fn put(folder: &Path, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    fs::write(folder.join(name), format!("{value}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_groups_are_those_of_sysfs() {
        assert_eq!(mask("0-2,4"), "00000017");
        assert_eq!(mask("0,33"), "00000002,00000001");
        assert_eq!(groups(&[0xfe, 0x80, 0, 1]), "fe80:0001");
        let mut device = Device::find(Some("127.0.0.1")).expect("a loopback that is up");
        for (mbps, text) in [
            (None, "2.5 Gb/sec (1X SDR)"),
            (Some(10_000), "10 Gb/sec (1X FDR10)"),
            (Some(25_000), "25 Gb/sec (1X EDR)"),
            (Some(100_000), "100 Gb/sec (4X EDR)"),
            (Some(400_000), "400 Gb/sec (4X NDR)"),
        ] {
            device.speed_mbps = mbps;
            assert_eq!(rate(&device), text);
        }
    }
}

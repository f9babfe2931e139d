//! `uroce devices`: usable interfaces, their GIDs, link modes, what is missing.

use std::process::ExitCode;

use clap::Args;
use comfy_table::Table;
use serde_json::{Value, json};
use uroce::link::device::{Device, LinkMode};

use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce devices                                  what --dev can name, and the default
  uroce devices --json | jq -r .name
  uroce devices --json | jq -r 'select(.default).gids[].gid'";

/// List interfaces, their GIDs, the link modes that work, and what is missing for those that do not
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Print one JSON object per device (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let devices = Device::list()?;
    let default = Device::default_of(&devices).map(|device| device.index);
    let is_default = |device: &Device| Some(device.index) == default;
    if arguments.json {
        for device in &devices {
            println!("{}", to_json(device, &device.link_modes()?, is_default(device)));
        }
        return Ok(ExitCode::SUCCESS);
    }
    if devices.is_empty() {
        eprintln!("uroce: no Ethernet interface found; `ip link` lists all interfaces");
    }
    for device in &devices {
        print(device, &device.link_modes()?, is_default(device));
    }
    Ok(ExitCode::SUCCESS)
}

fn print(device: &Device, modes: &[LinkMode], is_default: bool) {
    let state = match (device.up, device.carrier) {
        (false, _) => "down",
        (true, false) => "no carrier",
        (true, true) => "active",
    };
    println!(
        "{}{}: {state}, MAC {}, MTU {}, active_mtu {}, {} receive queue{}",
        device.name,
        if is_default { " (default)" } else { "" },
        mac_text(device.mac),
        device.mtu,
        device.active_mtu,
        device.rx_queues,
        if device.rx_queues == 1 { "" } else { "s" },
    );
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    for (index, gid) in device.gids.iter().enumerate() {
        let vlan = gid.vlan.map(|id| format!("VLAN {id} ({})", gid.interface)).unwrap_or_default();
        table.add_row([format!("  GID {index}"), gid.address.to_string(), "RoCE v2".to_owned(), vlan]);
    }
    println!("{table}");
    for mode in modes {
        let verdict = if mode.missing.is_empty() { "yes" } else { "no" };
        println!("  link {}: {verdict}", mode.name);
        for line in &mode.missing {
            println!("    missing: {line}");
        }
        for line in &mode.limits {
            println!("    limit: {line}");
        }
    }
}

fn to_json(device: &Device, modes: &[LinkMode], is_default: bool) -> Value {
    json!({
        "schema": "uroce.devices/1",
        "name": device.name,
        "index": device.index,
        "mac": mac_text(device.mac),
        "mtu": device.mtu,
        "up": device.up,
        "carrier": device.carrier,
        "usable": device.is_usable(),
        "default": is_default,
        "default_route": device.has_default_route,
        "rx_queues": device.rx_queues,
        "numa_node": device.numa_node,
        "speed_mbps": device.speed_mbps,
        "active_mtu": device.active_mtu,
        "gids": device.gids.iter().enumerate().map(|(index, gid)| json!({
            "index": index,
            "gid": gid.address.to_string(),
            "type": "RoCE v2",
            "interface": gid.interface,
            "vlan": gid.vlan,
        })).collect::<Vec<_>>(),
        "link_modes": modes.iter().map(|mode| json!({
            "name": mode.name,
            "usable": mode.missing.is_empty(),
            "missing": mode.missing,
            "limits": mode.limits,
        })).collect::<Vec<_>>(),
    })
}

/// As `ip link` writes it.
fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

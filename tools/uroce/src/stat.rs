//! `uroce stat`: what the running programs of this user do.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};
use uroce::verbs::Published;

use crate::Failure;

/// Show the queue pairs of this user's running programs: peers, rates, windows, round trips, retransmissions
///
/// It finds uroce's own commands, and programs under `uroce run`, in this network namespace. Rates are those of half a second,
/// counts those since the queue pair was created.
#[derive(Args)]
pub struct Arguments {
    /// Show only this process
    #[arg(value_name = "PID")]
    process: Option<u32>,

    /// Print one JSON object per program
    #[arg(long)]
    json: bool,
}

/// How long rates are measured.
const SAMPLE: Duration = Duration::from_millis(500);

const HEADER: [&str; 15] = [
    "program",
    "PID",
    "device",
    "queue pair",
    "peer",
    "state",
    "out Mb/s",
    "in Mb/s",
    "window kB",
    "round trip ms",
    "shortest ms",
    "paths",
    "retransmitted",
    "RNR",
    "marked",
];

/// The first column with numbers.
const FIRST_NUMBER: usize = 6;

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let all = Published::list()?;
    let wanted = all.iter().filter(|one| arguments.process.is_none_or(|process| one.process == process));
    let before: Vec<(Published, Value)> = wanted.filter_map(|one| Some((*one, ask(*one)?))).collect();
    if let Some(process) = arguments.process.filter(|_| before.is_empty()) {
        return Err(not_ours(process, &all).into());
    }
    wait(if before.is_empty() { Duration::ZERO } else { SAMPLE });
    let mut programs: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for (one, before) in &before {
        if let Some(now) = ask(*one) {
            programs.entry(one.process).or_default().push(with_rates(now, before));
        }
    }
    match arguments.json {
        true => programs.into_values().for_each(|devices| println!("{}", as_program(devices))),
        false if programs.is_empty() => eprintln!("uroce: no program of this user runs in this network namespace"),
        false => println!("{}", table(programs.into_values().flatten())),
    }
    Ok(ExitCode::SUCCESS)
}

/// What it answers; `None` when it is gone.
fn ask(one: Published) -> Option<Value> {
    let answer = one.ask();
    if let Err(error) = &answer
        && [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind())
    {
        eprintln!("uroce: process {} does not answer", one.process);
    }
    serde_json::from_str(&answer.ok()?).ok()
}

fn not_ours(process: u32, all: &[Published]) -> String {
    let mut ours: Vec<String> = all.iter().map(|one| one.process.to_string()).collect();
    ours.dedup();
    let ours = if ours.is_empty() { "there is none".to_owned() } else { format!("these do: {}", ours.join(", ")) };
    format!("no program of this user has a device open as process {process} in this network namespace; {ours}")
}

#[allow(clippy::disallowed_methods, reason = "rates need some time on the wall clock")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// The state of a device with the rates since `before`.
fn with_rates(mut now: Value, before: &Value) -> Value {
    let lasted_ns = count(&now["now_ns"]).saturating_sub(count(&before["now_ns"])).max(1);
    let grown = |now: &Value, before: &Value, name: &str| {
        count(&now["counters"][name]).saturating_sub(count(&before["counters"][name]))
    };
    let bps = |bytes: u64| json!(8e9 * bytes as f64 / lasted_ns as f64);
    for (name, counter) in [("sent_bps", "tx_bytes"), ("received_bps", "rx_bytes")] {
        now[name] = bps(grown(&now, before, counter));
    }
    let pairs = |device: &Value| device["queue_pairs"].as_array().cloned().unwrap_or_default();
    let earlier = pairs(before);
    let pairs = pairs(&now).into_iter().map(|mut pair| {
        // One that is new was at zero.
        let before = earlier.iter().find(|one| one["qpn"] == pair["qpn"]).unwrap_or(&Value::Null);
        for (name, counter) in [("sent_bps", "sent_bytes"), ("received_bps", "rcvd_bytes")] {
            pair[name] = bps(grown(&pair, before, counter));
        }
        pair
    });
    now["queue_pairs"] = pairs.collect();
    now
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A program with its devices.
fn as_program(mut devices: Vec<Value>) -> Value {
    let first = &devices[0];
    let (process, program) = (first["process"].clone(), first["program"].clone());
    for device in devices.iter_mut().filter_map(Value::as_object_mut) {
        device.remove("process");
        device.remove("program");
    }
    json!({ "process": process, "program": program, "devices": devices })
}

/// A line for each queue pair, and one for each device without any.
fn table(devices: impl Iterator<Item = Value>) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(HEADER);
    for device in devices {
        let own = [text(&device["program"]), count(&device["process"]).to_string(), text(&device["device"])];
        let none = Vec::new();
        let pairs = device["queue_pairs"].as_array().unwrap_or(&none);
        if pairs.is_empty() {
            table.add_row(own.iter().cloned().chain((own.len()..HEADER.len()).map(|_| "-".to_owned())));
        }
        for pair in pairs {
            table.add_row(own.iter().cloned().chain(cells(pair)));
        }
    }
    for column in table.column_iter_mut().skip(FIRST_NUMBER) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What a line says of its queue pair.
fn cells(pair: &Value) -> [String; HEADER.len() - 3] {
    let scaled = |value: &Value, unit: f64, digits: usize| {
        value.as_f64().map_or_else(|| "-".to_owned(), |value| format!("{:.digits$}", value / unit))
    };
    let sum = |names: [&str; 2]| names.iter().map(|name| count(&pair["counters"][name])).sum::<u64>().to_string();
    let qpn = |of: &Value| format!("{:#08x}", count(&of["qpn"]));
    let peer = match &pair["peer"] {
        Value::Null => "-".to_owned(),
        peer => format!("{} {}", text(&peer["address"]), qpn(peer)),
    };
    let flow = &pair["flow"];
    [
        format!("{} {}", text(&pair["service"]), qpn(pair)),
        peer,
        text(&pair["state"]),
        scaled(&pair["sent_bps"], 1e6, 1),
        scaled(&pair["received_bps"], 1e6, 1),
        scaled(&flow["window_bytes"], 1e3, 0),
        scaled(&flow["round_trip_ns"], 1e6, 3),
        scaled(&flow["shortest_ns"], 1e6, 3),
        paths(pair),
        count(&pair["counters"]["retransmitted"]).to_string(),
        sum(["rcvd_rnr_err", "send_rnr_err"]),
        sum(["np_ecn_marked_roce_packets", "rp_cnp_handled"]),
    ]
}

/// How many paths carry packets, of how many: `3/4`.
fn paths(pair: &Value) -> String {
    let Some(paths) = pair["paths"].as_array().filter(|paths| !paths.is_empty()) else { return "1".to_owned() };
    format!("{}/{}", paths.iter().filter(|path| path["condition"] == "good").count(), paths.len())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(now_ns: u64, sent_bytes: u64) -> Value {
        json!({
            "process": 7, "program": "ib_write_bw", "device": "eth0", "link": "udp", "now_ns": now_ns,
            "counters": { "tx_bytes": sent_bytes + 1_000_000 },
            "queue_pairs": [{
                "qpn": 17, "service": "RC", "state": "RTS", "class": "normal",
                "peer": { "address": "10.0.0.2", "qpn": 18 },
                "paths": [{ "condition": "good" }, { "condition": "dark" }, { "condition": "good" }],
                "flow": { "window_bytes": 300_000, "round_trip_ns": 20_500_000, "shortest_ns": null },
                "counters": { "sent_bytes": sent_bytes, "retransmitted": 3, "rcvd_rnr_err": 1, "send_rnr_err": 1 },
            }],
        })
    }

    #[test]
    fn rates_are_those_since_the_first_look() {
        let now = with_rates(device(500_000_000, 1_250_000), &device(0, 1_000_000));
        assert_eq!((&now["sent_bps"], &now["received_bps"]), (&json!(4e6), &json!(0.0)));
        assert_eq!(now["queue_pairs"][0]["sent_bps"], json!(4e6));
        // A queue pair that was not there has sent all of it since.
        let mut empty = device(0, 1_000_000);
        empty["queue_pairs"] = json!([]);
        let now = with_rates(device(500_000_000, 1_250_000), &empty);
        assert_eq!(now["queue_pairs"][0]["sent_bps"], json!(20e6));
    }

    #[test]
    fn a_line_says_how_a_queue_pair_stands() {
        let now = with_rates(device(500_000_000, 1_250_000), &device(0, 1_000_000));
        let expected =
            ["RC 0x000011", "10.0.0.2 0x000012", "RTS", "4.0", "0.0", "300", "20.500", "-", "2/3", "3", "2", "0"];
        assert_eq!(cells(&now["queue_pairs"][0]), expected);
        let program = as_program(vec![now.clone(), now]);
        assert_eq!((&program["process"], program["devices"].as_array().map(Vec::len)), (&json!(7), Some(2)));
        assert_eq!(program["devices"][0]["process"], Value::Null);
    }
}

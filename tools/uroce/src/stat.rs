//! `uroce stat`: what the running programs of this user do.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;
use uroce::verbs::Published;

use crate::running::{Look, count};
use crate::{Failure, metrics};

const EXAMPLES: &str = "\
Examples:
  uroce stat                                     all programs of this user here
  uroce stat 4711                                one of them
  uroce stat --json | jq .rate_bps              the rate of each queue pair, in bits a second
  uroce stat --metrics 127.0.0.1:9400            counters for Prometheus, until it is ended";

/// Show the queue pairs of this user's running programs: peers, rates, windows, round trips, retransmissions
///
/// It finds uroce's own commands, and programs under `uroce run`, in this network namespace. Rates are those of half a second,
/// counts those since the queue pair was created.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Show only this process
    #[arg(value_name = "PID")]
    process: Option<u32>,

    /// Print one JSON object per queue pair (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Serve the counters of all these programs as OpenMetrics at http://ADDRESS/metrics until this program is ended
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Output", conflicts_with_all = ["process", "json"])]
    metrics: Option<SocketAddr>,
}

/// How long rates are measured.
const SAMPLE: Duration = Duration::from_millis(500);

/// What a line says of a queue pair, in this order.
pub(crate) const HEADER: [&str; 15] = [
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
pub(crate) const FIRST_NUMBER: usize = 6;

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(address) = arguments.metrics {
        metrics::serve(address)?;
        loop {
            std::thread::park();
        }
    }
    let before = Look::now(arguments.process)?;
    if let Some(process) = arguments.process.filter(|_| before.is_empty()) {
        return Err(not_ours(process)?.into());
    }
    wait(if before.is_empty() { Duration::ZERO } else { SAMPLE });
    let rows = Look::now(arguments.process)?.rows_since(&before);
    match arguments.json {
        true => rows.iter().for_each(|row| println!("{row}")),
        false if rows.is_empty() => eprintln!("uroce: {NOTHING_RUNS}"),
        false => println!("{}", table(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What is said when there is nothing to show.
pub(crate) const NOTHING_RUNS: &str = "no program of this user runs in this network namespace";

fn not_ours(process: u32) -> Result<String, Failure> {
    let mut ours: Vec<String> = Published::list()?.iter().map(|one| one.process.to_string()).collect();
    ours.dedup();
    let ours = if ours.is_empty() { "there is none".to_owned() } else { format!("these do: {}", ours.join(", ")) };
    Ok(format!("no program of this user has a device open as process {process} in this network namespace; {ours}"))
}

#[allow(clippy::disallowed_methods, reason = "rates need some time on the wall clock")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

/// A line for each queue pair, and one for each device without any.
pub(crate) fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(HEADER);
    for row in rows {
        table.add_row(cells(row));
    }
    for column in table.column_iter_mut().skip(FIRST_NUMBER) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What a line says of its queue pair.
pub(crate) fn cells(row: &Value) -> [String; HEADER.len()] {
    let own = [text(&row["program"]), count(&row["pid"]).to_string(), text(&row["device"])];
    if row["qpn"].is_null() {
        let mut own = own.into_iter();
        return std::array::from_fn(|_| own.next().unwrap_or_else(|| "-".to_owned()));
    }
    let scaled = |value: &Value, unit: f64, digits: usize| {
        value.as_f64().map_or_else(|| "-".to_owned(), |value| format!("{:.digits$}", value / unit))
    };
    let qpn = |of: &Value| format!("{:#08x}", count(&of["qpn"]));
    let peer = match &row["peer"] {
        Value::Null => "-".to_owned(),
        peer => format!("{} {}", text(&peer["address"]), qpn(peer)),
    };
    let flow = &row["flow"];
    let [program, process, device] = own;
    [
        program,
        process,
        device,
        format!("{} {}", text(&row["service"]), qpn(row)),
        peer,
        text(&row["state"]),
        scaled(&row["sent_bps"], 1e6, 1),
        scaled(&row["received_bps"], 1e6, 1),
        scaled(&flow["window_bytes"], 1e3, 0),
        scaled(&flow["round_trip_ns"], 1e6, 3),
        scaled(&flow["shortest_ns"], 1e6, 3),
        paths(row),
        count(&row["retransmitted_pkts"]).to_string(),
        count(&row["rnr_naks"]).to_string(),
        count(&row["marked_pkts"]).to_string(),
    ]
}

/// How many paths carry packets, of how many: `3/4`.
fn paths(row: &Value) -> String {
    let Some(paths) = row["paths"].as_array().filter(|paths| !paths.is_empty()) else { return "1".to_owned() };
    format!("{}/{}", paths.iter().filter(|path| path["condition"] == "good").count(), paths.len())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::tests::rows_of_one;

    #[test]
    fn a_line_says_how_a_queue_pair_stands() {
        let rows = rows_of_one();
        let expected = [
            "ib_write_bw",
            "7",
            "eth0",
            "RC 0x000011",
            "10.0.0.2 0x000012",
            "RTS",
            "4.0",
            "0.0",
            "300",
            "20.500",
            "-",
            "2/3",
            "3",
            "2",
            "0",
        ];
        assert_eq!(cells(&rows[0]), expected);
        let mut alone = rows[0].clone();
        alone["qpn"] = Value::Null;
        assert_eq!(cells(&alone)[2..5], ["eth0", "-", "-"]);
    }
}

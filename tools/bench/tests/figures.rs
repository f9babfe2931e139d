//! Every figure of the bench can be taken, over real links and with real programs; what it says of them is not judged here.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use serde_json::Value;

/// Figures of each kind: bulk and round trips of the stack, what they are ratios to, unmodified programs, many threads, one
/// core, and busy cores.
const SOME: [&str; 12] = [
    "pipe-copy-crc-mtu4096",
    "write-64k-mtu1024-xdp",
    "read-1m-mtu2048-xdp",
    "send-64k-mtu4096-xdp",
    "write-64k-mtu4096-udp",
    "write-64b-rtt-xdp",
    "tcp-bulk",
    "iperf3-tcp",
    "ib_write_bw-64k-mtu4096",
    "write-64b-64-threads-xdp",
    "send-64b-rtt-xdp-one-core",
    "write-64k-mtu4096-xdp-busy",
];

/// It fails exactly when a figure could not be taken.
fn bench(only: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uroce-bench"));
    command.args(["--rounds", "1", "--seconds", "0.02", "--json"]).args(only);
    let output = command.output().unwrap();
    let is_whole = left_out(&output).is_empty();
    assert_eq!(output.status.success(), is_whole, "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The figures by name. Each is more than nothing, and the ratio that it has to the one it names.
fn figures(output: &Output) -> BTreeMap<String, Value> {
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let figures = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let figures: BTreeMap<_, _> = figures.map(|figure| (figure["name"].as_str().unwrap().to_owned(), figure)).collect();
    for figure in figures.values() {
        let value = figure["value"].as_f64().unwrap();
        assert!(value > 0.0, "{figure}");
        if let (Some(of), Some(ratio)) = (figure["of"].as_str(), figure["ratio"].as_f64()) {
            let of = &figures[of];
            assert!((ratio * of["value"].as_f64().unwrap() / value - 1.0).abs() < 1e-6, "{figure} of {of}");
        }
    }
    figures
}

/// The names of the figures that could not be taken.
fn left_out(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter(|line| line.contains(" not taken: "));
    lines.map(|line| line.split_whitespace().nth(4).unwrap().to_owned()).collect()
}

/// One that could not be taken, as on a machine with much else to do, can when it is asked for again.
#[test]
fn every_figure_can_be_taken() {
    let output = bench(&[]);
    let mut figures = figures(&output);
    for name in left_out(&output) {
        let again = bench(&["--only", &name]);
        assert!(!left_out(&again).contains(&name), "{}", String::from_utf8_lossy(&again.stderr));
        figures.extend(self::figures(&again));
    }
    for name in SOME {
        assert!(figures.contains_key(name), "{name} is not among {:?}", figures.keys());
    }
}

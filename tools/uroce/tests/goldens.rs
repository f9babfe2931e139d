//! Results that stay what they are, to the byte, whatever is rebuilt: tables of the simulator, packets by seed, replayed captures.
//!
//! Read a difference like code: it shows which cell fell by how much. This takes what is there now:
//! `INSTA_UPDATE=always cargo test -p uroce-cli --test cli goldens::`.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What `uroce` prints, which succeeds.
fn uroce(arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uroce"));
    let output = command.args(arguments.split(' ')).env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "uroce {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a script relies on: the flags, and what they say.
#[test]
fn help_of_stat() {
    insta::assert_snapshot!(uroce("stat --help"));
}

/// 1 % of loss at 1 ms: each operation and each recovery, losses one by one and in bursts.
#[test]
fn loss_by_round_trip() {
    insta::assert_snapshot!(uroce("sim loss-rtt --only loss=0.01,rtt_ms=1"));
}

#[test]
fn goodput_over_sixteen_paths() {
    insta::assert_snapshot!(uroce("sim paths --only op=write,loss=0.001"));
}

#[test]
fn a_path_that_goes_dark() {
    insta::assert_snapshot!(uroce("sim path-failure --only op=write,direction=both"));
}

/// Two of the scenarios, where nothing is controlled: 512 packets of each flow are in flight. And one with each controller.
#[test]
fn flows_that_share_a_bottleneck() {
    let mut table = uroce("sim congestion --congestion fixed --only scenario=incast|on-off");
    for controller in ["dcqcn", "swift", "timely", "nscc", "hpcc", "bbr", "cubic"] {
        table += &uroce(&format!("sim congestion --congestion {controller} --only scenario=incast"));
    }
    insta::assert_snapshot!(table);
}

/// What a line of 10 Gb/s lets a site serve, what it needs, and how far the table is from its packets.
#[test]
fn prompts_between_sites() {
    let hybrid = "rtt_ms=10,transport=uroce|uroce-go-back-n,model=Kimi-Linear-48B";
    let mut table = uroce(&format!("sim kv --only row=load,line_bps=10e9,{hybrid}"));
    table += &uroce(&format!("sim kv --only row=check,line_bps=10e9,{hybrid}"));
    insta::assert_snapshot!(table);
}

/// A cache that leaves while it is computed, with few short chunks on their way, and with the chosen ones.
#[test]
fn a_stream_by_its_chunks() {
    insta::assert_snapshot!(uroce("sim stream --only rtt_ms=10,model=Nemotron-Nano-9B,chunk=65536|chosen"));
}

/// Of each service: a change of any packet that is sent changes the count of some seed.
#[test]
fn packets_by_seed() {
    let mut table = String::new();
    for seed in 0..96 {
        let report: Value = serde_json::from_str(&uroce(&format!("sim chaos --json --seeds 1 --seed {seed}"))).unwrap();
        let services: Vec<_> = report["services"].as_object().unwrap().keys().map(String::as_str).collect();
        writeln!(table, "{seed:3} {:5} {:6} packets", services.join(" "), report["packets"]).unwrap();
    }
    insta::assert_snapshot!(table);
}

/// Every capture of a kernel peer: what was compared, what was as it had been, and what had to be assumed.
#[test]
fn replayed_captures() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let mut table = String::new();
    for folder in ["rxe-6.1", "uroce-rxe-6.1"] {
        let entries = std::fs::read_dir(captures.join(folder)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        for file in files {
            let report: Value = serde_json::from_str(&uroce(&format!("replay --json {}", file.display()))).unwrap();
            let count = |key: &str| report[key].as_array().map_or(0, Vec::len);
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            writeln!(
                table,
                "{name:30} {:4} compared, {:4} equal, {} explained, {} different, {} assumed",
                report["compared"],
                report["equal"],
                count("explained"),
                count("different"),
                count("assumed"),
            )
            .unwrap();
        }
    }
    assert!(table.lines().count() > 40, "captures are missing");
    insta::assert_snapshot!(table);
}

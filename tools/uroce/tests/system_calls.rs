//! The stack asks the kernel less than once a packet: strace counts what the client of a bandwidth test calls.

use std::fs;
use std::path::Path;

use crate::common::programs::{UROCE, start, uroce, wait_for_listener};
use rxe_rig::VethPair;
use serde_json::Value;

const PORT: u16 = 18515;

/// Calls of a client and its frames, both ways.
fn counted(pair: &VethPair, test: &str, link: &str, messages: &str) -> [u64; 2] {
    let words = ["perf", test, "--link", link, "-s", "65536", "-m", "4096", "-n", messages, "--json"];
    let server = uroce(&pair.a, &words);
    wait_for_listener(&pair.a, PORT);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("calls-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let host = VethPair::A.ipv4.to_string();
    let strace = ["-f", "-c", "-U", "calls,name", "-o", path, UROCE];
    let client = start(pair.b.command("strace"), &[&strace[..], &words, &[host.as_str()]].concat()).end().succeeded();
    server.end().succeeded();
    let summary = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let total = summary.lines().find_map(|line| line.trim().strip_suffix("total")).expect("a summary");
    let result: Value = serde_json::from_str(&client.stdout).unwrap();
    let counter = |name: &str| result["counters"][name].as_u64().unwrap();
    [total.trim().parse().unwrap(), counter("tx_frames") + counter("rx_frames")]
}

#[test]
fn there_is_less_than_one_system_call_a_packet() {
    let pair = VethPair::create(4500).unwrap();
    for link in ["xdp", "udp"] {
        for test in ["write-bw", "read-bw", "send-bw"] {
            let (start, all) = (counted(&pair, test, link, "5"), counted(&pair, test, link, "4000"));
            let [calls, frames] = [0, 1].map(|index| all[index] - start[index]);
            eprintln!("{test} over {link}: {calls} calls, {frames} frames; to begin and end: {} calls", start[0]);
            assert!(frames > 60_000 && calls < frames, "{test} over {link}: {calls} calls for {frames} frames");
        }
    }
}

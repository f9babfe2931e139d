//! Frames leave many at a time: strace counts the calls by which the client of a bandwidth test sends.

use std::fs;
use std::path::Path;

use crate::common::programs::{UROCE, start, uroce, wait_for_listener};
use rxe_rig::VethPair;
use serde_json::Value;

const PORT: u16 = 18515;

/// What sends frames: the kick of an AF_XDP ring, and messages of UDP sockets.
const SENDING: &str = "trace=sendto,sendmsg,sendmmsg";

/// Such calls of a client, and the frames that it sent. It waits for acknowledges for 4 s, not 67 ms: beside machines that
/// begin, a server has not answered for eight times that.
fn counted(pair: &VethPair, test: &str, link: &str) -> [u64; 2] {
    let words = ["perf", test, "--link", link, "-s", "65536", "-m", "4096", "-n", "4000", "-u", "20", "--json"];
    let server = uroce(&pair.a, &words);
    wait_for_listener(&pair.a, PORT);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("calls-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let host = VethPair::A.ipv4.to_string();
    let strace = ["-f", "-c", "-U", "calls,name", "-e", SENDING, "-o", path, UROCE];
    let client = start(pair.b.command("strace"), &[&strace[..], &words, &[host.as_str()]].concat()).end();
    let server = server.end();
    assert!(client.check().is_ok() && server.check().is_ok(), "{client:#?} {server:#?}");
    let summary = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let total = summary.lines().find_map(|line| line.trim().strip_suffix("total")).expect("a summary");
    let result: Value = serde_json::from_str(&client.stdout).unwrap();
    [total.trim().parse().unwrap(), result["counters"]["tx_frames"].as_u64().unwrap()]
}

#[test]
fn a_system_call_sends_several_packets() {
    let pair = VethPair::create(4500).unwrap();
    for link in ["xdp", "udp"] {
        for test in ["write-bw", "send-bw"] {
            let [calls, frames] = counted(&pair, test, link);
            eprintln!("{test} over {link}: {calls} calls, {frames} frames");
            assert!(frames > 60_000 && 2 * calls < frames, "{test} over {link}: {calls} calls for {frames} frames");
        }
    }
}

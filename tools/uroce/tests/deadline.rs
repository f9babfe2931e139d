//! Deadline mode over real frames: the C program of `transfer/c/examples` at both ends, by `uroce run` over AF_XDP and, as
//! nobody, over UDP sockets. It counts the symbols that arrive by the places of their bytes and compares the bitmap with
//! that, and every byte of whole blocks.
//!
//! Ten requests over each link; with UROCE_FULL=1 fifty.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rxe_rig::{Netns, VethPair};
use serde_json::Value;

use crate::common::captures::scratch;
use crate::common::compared::{OVER_UDP, OVER_XDP, Start};
use crate::common::compiled::program_at;
use crate::common::plays_all;
use crate::common::programs::{Running, UROCE, sent_packets, start};
use crate::common::small_disk::SmallDisk;

const PORT: u16 = 18620;
const LIMIT: Duration = Duration::from_secs(60);

/// Where cargo has put the library.
fn folder() -> PathBuf {
    Path::new(UROCE).with_file_name("deps")
}

fn program() -> String {
    let folder = folder().display().to_string();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../transfer/c/include").display().to_string();
    let (search, runtime) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    let flags = [&format!("-I{include}"), &search, &runtime, "-luroce_transfer_c", "-libverbs"];
    program_at("transfer/c/examples/deadline.c", &flags).display().to_string()
}

fn run((start, link): (Start, &str), namespace: &Netns, fault: &str, words: &str) -> Running {
    start(namespace, &format!("--link {link} --fault {fault} --trace -- {} {words}", program()))
}

fn serve(link: (Start, &str), pair: &VethPair, fault: &str, words: &str) -> Running {
    let mut server = run(link, &pair.a, fault, &format!("{words} serve"));
    server.listens(&pair.a, PORT, LIMIT).unwrap();
    server
}

fn fetch(link: (Start, &str), pair: &VethPair, fault: &str, words: &str) -> Running {
    run(link, &pair.b, fault, &format!("{words} fetch {}", VethPair::A.ipv4))
}

/// What a client printed of each request; all of it must be exact.
fn results(stdout: &str) -> Vec<Value> {
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert!(line["exact"] == true && line["contents_equal"] == true, "{line}");
    }
    lines
}

fn bitmaps_are_exact(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let shape = "-b 1000000 -k 30000";
    let requests = if plays_all() { 50 } else { 10 };
    let _server = serve(link, &pair, "loss=0.05,dup=0.02,reorder=0.02,seed=3", shape);
    // Time enough, and too little: with repair symbols and without.
    const ENOUGH_MS: u32 = 20_000;
    for (repair, seed) in [(0, 4), (120, 5)] {
        let words = format!("{shape} -r {repair} -t {ENOUGH_MS},2,{ENOUGH_MS},5,1 -n {}", requests / 2);
        let ended = fetch(link, &pair, &format!("loss=0.05,seed={seed}"), &words).end_within(LIMIT).unwrap();
        let results = results(&ended.stdout);
        assert_eq!(results.len(), requests / 2, "{ended:#?}");
        for (number, result) in results.iter().enumerate() {
            let is_complete = result["end"] == "complete";
            // In a millisecond not even an answer may have come, which is a failure.
            assert!(is_complete || [1, 3, 4].contains(&(number % 5)), "{result}");
            assert_eq!(is_complete, result["whole"] == result["wanted"], "{result}");
        }
        assert!(sent_packets(&ended.stderr) > 0, "{ended:#?}");
    }
}

#[test]
fn bitmaps_are_exact_over_af_xdp() {
    bitmaps_are_exact(OVER_XDP);
}

#[test]
fn bitmaps_are_exact_over_udp_sockets() {
    bitmaps_are_exact(OVER_UDP);
}

/// 16 MB, each block of which is written to the disk before the next: that takes a while.
const LARGE: &str = "-b 16000000 -k 16000 -t 60000";

const LOSS: &str = "loss=0.01,seed=1";

/// A file that a client keeps its blocks in.
fn kept(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["blocks", "blocks.map"] {
        let _ = std::fs::remove_file(folder.join(file));
    }
    folder.join("blocks")
}

/// Waits until the client has kept some blocks; returns how many.
fn has_kept(file: &Path, end: Instant) -> usize {
    loop {
        let map = std::fs::read(file.with_extension("map")).unwrap_or_default();
        let whole = map.iter().filter(|byte| **byte == b'1').count();
        if whole >= 20 {
            return whole;
        }
        assert!(Instant::now() < end, "nothing was kept");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Fetches the rest; only what is missing is asked for.
fn fetches_the_rest(pair: &VethPair, file: &Path) {
    let held = std::fs::read(file.with_extension("map")).unwrap().iter().filter(|byte| **byte == b'1').count();
    let words = format!("{LARGE} -f {}", file.display());
    let ended = fetch(OVER_XDP, pair, LOSS, &words).end_within(LIMIT).unwrap().succeeded();
    let result = &results(&ended.stdout)[0];
    assert!(held < 1000 && result["wanted"] == 1000 - held && result["end"] == "complete", "{held}: {result}");
    // Both runs' blocks are in the file, and are what the server has.
    let bytes = std::fs::read(file).unwrap();
    let value = |at: u64| {
        let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0xbf58_476d_1ce4_e5b9);
        (mixed >> 56) as u8
    };
    assert!(bytes.len() == 16_000_000 && (0..).map(value).zip(&bytes).all(|(expected, byte)| expected == *byte));
}

fn fails_as_silent(client: Running) {
    let ended = client.end_within(LIMIT).unwrap();
    let result = &results(&ended.stdout)[0];
    let error = result["error"].as_str().unwrap();
    assert!(result["end"] == "failed" && error.contains("has been silent"), "{ended:#?}");
}

#[test]
fn a_server_that_is_killed_is_an_error_and_the_rest_comes_from_the_next() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("deadline-server"));
    let server = serve(OVER_XDP, &pair, LOSS, LARGE);
    let client = fetch(OVER_XDP, &pair, LOSS, &format!("{LARGE} -f {}", file.display()));
    has_kept(&file, Instant::now() + LIMIT);
    server.stop();
    fails_as_silent(client);
    let _next = serve(OVER_XDP, &pair, LOSS, LARGE);
    fetches_the_rest(&pair, &file);
}

#[test]
fn a_path_that_is_cut_is_an_error_and_the_rest_comes_when_it_is_back() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("deadline-path"));
    let _server = serve(OVER_XDP, &pair, LOSS, LARGE);
    let client = fetch(OVER_XDP, &pair, LOSS, &format!("{LARGE} -f {}", file.display()));
    has_kept(&file, Instant::now() + LIMIT);
    pair.a.ip(&["link", "set", VethPair::A.interface, "down"]).unwrap();
    fails_as_silent(client);
    pair.a.ip(&["link", "set", VethPair::A.interface, "up"]).unwrap();
    fetches_the_rest(&pair, &file);
}

#[test]
fn a_client_that_is_killed_asks_only_for_the_rest_when_it_is_started_again() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("deadline-client"));
    let _server = serve(OVER_XDP, &pair, LOSS, LARGE);
    let client = fetch(OVER_XDP, &pair, LOSS, &format!("{LARGE} -f {}", file.display()));
    has_kept(&file, Instant::now() + LIMIT);
    client.stop();
    fetches_the_rest(&pair, &file);
}

#[test]
fn a_disk_that_is_full_is_an_error_and_what_is_kept_is_whole() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("deadline-kept"));
    let _server = serve(OVER_XDP, &pair, LOSS, LARGE);
    let disk = SmallDisk::mount("deadline-disk", 2 << 20);
    let words = format!("{LARGE} -f {}", disk.file("blocks").display());
    let ended = fetch(OVER_XDP, &pair, LOSS, &words).end_within(LIMIT).unwrap();
    assert!(ended.status.code() == Some(1) && ended.stdout.is_empty(), "{ended:#?}");
    assert!(ended.stderr.contains("deadline: keeping a block: No space left on device"), "{ended:#?}");
    disk.move_to(file.parent().unwrap());
    fetches_the_rest(&pair, &file);
}

/// Eight requests have the deadline that the program named, and the others one by what those before took. That can be no longer
/// than twice the longest of them. Both are printed to half a microsecond.
#[test]
fn deadlines_follow_what_earlier_requests_took() {
    let pair = VethPair::create(4500).unwrap();
    let shape = "-b 300000 -k 30000";
    let _server = serve(OVER_XDP, &pair, "loss=0.05,seed=7", shape);
    const FIRST_MS: f64 = 20_000.0;
    const PRINTED_MS: f64 = 0.0005;
    let words = format!("{shape} -t {FIRST_MS} -q 900 -n 30");
    let ended = fetch(OVER_XDP, &pair, "loss=0.05,seed=8", &words).end_within(LIMIT).unwrap();
    let results = results(&ended.stdout);
    assert_eq!(results.len(), 30, "{ended:#?}");
    let number = |result: &Value, name: &str| result[name].as_f64().unwrap();
    let mut known = Vec::new();
    for result in &results {
        let deadline = number(result, "deadline_ms");
        let longest = known.iter().copied().fold(0.0, f64::max);
        match known.len() {
            ..8 => assert_eq!(deadline, FIRST_MS, "{result}"),
            _ => assert!(
                deadline > 0.0 && deadline <= 2.0 * (longest + PRINTED_MS) + 2.0 * PRINTED_MS,
                "{result}: {longest}"
            ),
        }
        known.push(number(result, "milliseconds"));
    }
}

#[test]
fn python_moves_blocks_by_ctypes() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/deadline.py");
    let library = folder().join("liburoce_transfer_c.so");
    let namespace = Netns::create("deadline").unwrap();
    let words = [script.display().to_string(), library.display().to_string()];
    let ended = start(namespace.command("/usr/bin/python3"), &words.each_ref().map(String::as_str)).end().succeeded();
    assert_eq!(ended.stdout, "all transfers compared\n", "{ended:#?}");
}

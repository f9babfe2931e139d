//! Streams over real frames: the C program of `transfer/c/examples` at both ends, by `uroce run` over AF_XDP and, as nobody,
//! over UDP sockets. It compares every byte of what is whole.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rxe_rig::{Netns, VethPair};
use serde_json::Value;

use crate::common::captures::scratch;
use crate::common::compared::{OVER_UDP, OVER_XDP, Start};
use crate::common::compiled::program_at;
use crate::common::programs::{Running, UROCE, sent_packets, start};
use crate::common::small_disk::SmallDisk;

const PORT: u16 = 18630;
const LIMIT: Duration = Duration::from_secs(30);

/// Where cargo has put the library.
fn folder() -> PathBuf {
    Path::new(UROCE).with_file_name("deps")
}

/// The program; it is compiled once.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let folder = folder().display().to_string();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../transfer/c/include").display().to_string();
    let (search, runtime) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    let flags = [&format!("-I{include}"), &search, &runtime, "-luroce_transfer_c", "-libverbs"];
    program_at("transfer/c/examples/stream.c", &flags).display().to_string()
});

const LOSS: &str = "loss=0.005,dup=0.005,reorder=0.01,seed=2";

fn run((start, link): (Start, &str), namespace: &Netns, words: &str) -> Running {
    start(namespace, &format!("--link {link} --fault {LOSS} --trace -- {} {words}", *PROGRAM))
}

fn sends(link: (Start, &str), pair: &VethPair, words: &str) -> Running {
    let mut sender = run(link, &pair.a, &format!("{words} send"));
    sender.listens(&pair.a, PORT, LIMIT).unwrap();
    sender
}

fn fetches(link: (Start, &str), pair: &VethPair, words: &str) -> Running {
    run(link, &pair.b, &format!("{words} fetch {}", VethPair::A.ipv4))
}

fn lines(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a receiver printed of its only stream; all that is whole is as it was sent.
fn fetched(stdout: &str) -> Value {
    let [line]: [Value; 1] = lines(stdout).try_into().unwrap();
    assert_eq!(line["contents_equal"], true, "{line}");
    line
}

fn parts_arrive(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    // The first chunk length is chosen; the others are shorter than a part, no multiple of it, and longer than all.
    let chunks = [0u64, 30_000, 777_777, 1 << 26];
    let shape = "-l 40 -b 100000";
    let sender = sends(link, &pair, &format!("{shape} -x 500 -q 8 -c 0,30000,777777,67108864 -n 1"));
    let ended = fetches(link, &pair, &format!("{shape} -n 4")).end_within(LIMIT).unwrap().succeeded();
    let at_receiver = lines(&ended.stdout);
    assert!(sent_packets(&ended.stderr) > 0, "{ended:#?}");
    let ended = sender.end_within(LIMIT).unwrap().succeeded();
    let at_sender = lines(&ended.stdout);
    assert_eq!((at_receiver.len(), at_sender.len()), (4, 4), "{ended:#?}");
    for (number, (received, sent)) in at_receiver.iter().zip(&at_sender).enumerate() {
        assert!(received["end"] == "complete" && received["contents_equal"] == true, "{received}");
        assert!(received["whole_parts"] == 40 && received["fetched_bytes"] == 4_000_000, "{received}");
        assert!(sent["end"] == "complete" && sent["whole_parts"] == 40, "{sent}");
        assert!(sent["rate_bps"].as_f64().unwrap() > 0.0 && sent["round_trip_ms"].as_f64().unwrap() > 0.0, "{sent}");
        assert_eq!(sent["is_chosen"], number == 0, "{sent}");
        let chunk_bytes = sent["chunk_bytes"].as_u64().unwrap();
        let is_right = if number == 0 { chunk_bytes.is_power_of_two() } else { chunk_bytes == chunks[number] };
        assert!(is_right, "{sent}");
        // It is computed for 20 ms, whatever the machine is like.
        assert!(sent["total_ms"].as_f64().unwrap() >= 20.0, "{sent}");
    }
}

#[test]
fn parts_arrive_as_they_were_over_af_xdp() {
    parts_arrive(OVER_XDP);
}

#[test]
fn parts_arrive_as_they_were_over_udp_sockets() {
    parts_arrive(OVER_UDP);
}

/// 20 MB, which take 0.6 s to be computed. By IPv4: when a link comes back, IPv6 first looks for duplicates of its address.
const LARGE: &str = "-g 1 -l 200 -b 100000 -t 2000";
const LARGE_BYTES: u64 = 20_000_000;
const COMPUTED: &str = "-x 3000 -c 250000";

/// A file that a receiver keeps its bytes in.
fn kept(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["bytes", "bytes.held"] {
        let _ = std::fs::remove_file(folder.join(file));
    }
    folder.join("bytes")
}

fn held(file: &Path) -> u64 {
    let text = std::fs::read_to_string(file.with_extension("held")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn fetches_large(pair: &VethPair, file: &Path) -> Running {
    let client = fetches(OVER_XDP, pair, &format!("{LARGE} -f {}", file.display()));
    let end = Instant::now() + LIMIT;
    while held(file) < LARGE_BYTES / 20 {
        assert!(Instant::now() < end, "nothing was kept");
        std::thread::sleep(Duration::from_millis(2));
    }
    client
}

/// Fetches the rest, and no more.
#[track_caller]
fn fetches_the_rest(pair: &VethPair, file: &Path) {
    let before = held(file);
    let words = format!("{LARGE} -f {}", file.display());
    let ended = fetches(OVER_XDP, pair, &words).end_within(LIMIT).unwrap().succeeded();
    let result = fetched(&ended.stdout);
    assert!(result["end"] == "complete" && result["whole_parts"] == 200, "{result}");
    assert!(result["held"] == before && result["fetched_bytes"] == LARGE_BYTES - before, "{before}: {result}");
}

/// A receiver whose peer is gone fails with `words`, and keeps what is whole.
#[track_caller]
fn fails(client: Running, words: &str, file: &Path) {
    let ended = client.end_within(LIMIT).unwrap();
    let result = fetched(&ended.stdout);
    assert!(result["end"] == "failed" && result["error"].as_str().unwrap().contains(words), "{ended:#?}");
    assert!(result["whole_bytes"] == held(file) && ended.status.code() == Some(1), "{ended:#?}");
}

#[test]
fn a_sender_that_is_killed_is_an_error_and_the_rest_comes_from_the_next() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("stream-sender"));
    let words = format!("{LARGE} {COMPUTED}");
    let sender = sends(OVER_XDP, &pair, &words);
    let client = fetches_large(&pair, &file);
    sender.stop();
    fails(client, "the connection failed", &file);
    let _next = sends(OVER_XDP, &pair, &words);
    fetches_the_rest(&pair, &file);
}

#[test]
fn a_receiver_that_is_killed_gets_only_the_rest_when_it_is_started_again() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("stream-receiver"));
    let sender = sends(OVER_XDP, &pair, &format!("{LARGE} {COMPUTED} -n 3"));
    fetches_large(&pair, &file).stop();
    assert!(held(&file) < LARGE_BYTES, "all of it was there already");
    fetches_the_rest(&pair, &file);
    // Nothing is left.
    fetches_the_rest(&pair, &file);
    let sent = lines(&sender.end_within(LIMIT).unwrap().succeeded().stdout);
    assert!(sent[0]["end"] == "failed" && sent[0]["whole_parts"].as_u64().unwrap() < 200, "{sent:?}");
    assert!(sent[1]["end"] == "complete" && sent[2]["end"] == "complete", "{sent:?}");
}

#[test]
fn a_path_that_is_cut_is_an_error_at_both_ends_and_the_rest_comes_when_it_is_back() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("stream-path"));
    let sender = sends(OVER_XDP, &pair, &format!("{LARGE} {COMPUTED} -n 2"));
    let client = fetches_large(&pair, &file);
    pair.a.ip(&["link", "set", VethPair::A.interface, "down"]).unwrap();
    fails(client, "nothing came from the peer for", &file);
    pair.a.ip(&["link", "set", VethPair::A.interface, "up"]).unwrap();
    fetches_the_rest(&pair, &file);
    let sent = lines(&sender.end_within(LIMIT).unwrap().succeeded().stdout);
    assert!(sent[0]["end"] == "failed" && sent[1]["end"] == "complete", "{sent:?}");
}

#[test]
fn a_disk_that_is_full_is_an_error_and_what_is_kept_is_whole() {
    let (pair, file) = (VethPair::create(4500).unwrap(), kept("stream-kept"));
    let _sender = sends(OVER_XDP, &pair, &format!("{LARGE} {COMPUTED} -n 2"));
    let disk = SmallDisk::mount("stream-disk", 4 << 20);
    let words = format!("{LARGE} -f {}", disk.file("bytes").display());
    let ended = fetches(OVER_XDP, &pair, &words).end_within(LIMIT).unwrap();
    assert!(ended.status.code() == Some(1) && ended.stdout.is_empty(), "{ended:#?}");
    assert!(ended.stderr.contains("stream: keeping bytes: No space left on device"), "{ended:#?}");
    disk.move_to(file.parent().unwrap());
    assert!(held(&file) < 4 << 20, "more is held than there was room for");
    fetches_the_rest(&pair, &file);
}

#[test]
fn streams_that_do_not_fit_and_chunks_out_of_range_are_errors_that_say_so() {
    let pair = VethPair::create(4500).unwrap();
    let sender = sends(OVER_XDP, &pair, "-l 4 -b 1000 -n 3");
    for (words, error) in [
        ("-l 5 -b 1000", "5 parts here, and 4 at the peer"),
        ("-l 4 -b 1001", "of 4004 bytes in all here, and of 4000"),
        ("-l 4 -b 1000 -v 9", "version 9 here, and version 1"),
    ] {
        let ended = fetches(OVER_XDP, &pair, words).end_within(LIMIT).unwrap();
        let result = fetched(&ended.stdout);
        assert!(result["error"].as_str().unwrap().contains(error) && result["whole_parts"] == 0, "{result}");
        assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    }
    let stdout = sender.end_within(LIMIT).unwrap().succeeded().stdout;
    for words in ["4 parts here, and 5", "of 4000 bytes in all here, and of 4004", "version 1 here, and version 9"] {
        assert!(stdout.contains(words), "{stdout}");
    }
    let sender = sends(OVER_XDP, &pair, "-l 4 -b 1000 -c 2147483649");
    let client = fetches(OVER_XDP, &pair, "-l 4 -b 1000");
    let ended = sender.end_within(LIMIT).unwrap();
    assert!(ended.stderr.contains("chunks of 2147483649 bytes: 1 to 2147483648 are possible"), "{ended:#?}");
    assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    assert_eq!(fetched(&client.end_within(LIMIT).unwrap().stdout)["end"], "failed");
}

#[test]
fn python_moves_streams_by_ctypes() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stream.py");
    let library = folder().join("liburoce_transfer_c.so");
    let namespace = Netns::create("stream").unwrap();
    let words = [script.display().to_string(), library.display().to_string()];
    let ended = start(namespace.command("/usr/bin/python3"), &words.each_ref().map(String::as_str)).end().succeeded();
    assert_eq!(ended.stdout, "all streams compared\n", "{ended:#?}");
}

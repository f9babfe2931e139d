//! What users of perftest and iperf3 type, on the loopback of a namespace: perftest's flags and names, suffixes, a server that
//! stays, Ctrl-C, a client that is killed, and what is told of losses.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::common::captures::scratch;
use crate::common::processes::{kill, signal};
use crate::common::programs::{Ended, LIMIT, Running, run, uroce, wait_for_listener};
use rustix::process::Signal;
use rxe_rig::Netns;
use serde_json::Value;

const SERVER: [&str; 2] = ["--dev", "127.0.0.2"];
const CLIENT: [&str; 3] = ["--dev", "127.0.0.3", "127.0.0.2"];

fn begin(namespace: &Netns, words: &[&str]) -> Running {
    let server = uroce(namespace, &[words, &SERVER].concat());
    wait_for_listener(namespace, 18515);
    server
}

fn ask(namespace: &Netns, words: &[&str]) -> Running {
    uroce(namespace, &[words, &CLIENT].concat())
}

/// Client and server, given the same words.
fn play(namespace: &Netns, words: &[&str]) -> [Ended; 2] {
    let server = begin(namespace, words);
    [ask(namespace, words).end(), server.end()].map(Ended::succeeded)
}

/// A folder of this test's own.
fn folder() -> PathBuf {
    let folder = scratch("habits");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn objects(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))).collect()
}

/// Waits until a program with `--interval` has said how its test goes on.
fn goes_on(running: &mut Running) {
    running.prints(&[", round trip "], Duration::from_secs(30)).unwrap_or_else(|text| panic!("{text}"));
}

/// It ended with `status`, and said why on stderr, among other lines.
#[track_caller]
fn said(ended: &Ended, status: i32, words: &str) {
    assert!(ended.status.code() == Some(status) && ended.stderr.contains(words), "no {words:?}: {ended:#?}");
}

#[test]
fn names_and_suffixes_of_perftest_and_iperf_are_taken() {
    let namespace = Netns::create("habits").unwrap();
    for test in ["ib_write_bw", "write_bw", "write-bw"] {
        let [client, _] = play(&namespace, &["perf", test, "-n", "10", "-s", "64k", "--rate", "1Gbit", "--json"]);
        let found = &objects(&client)[0];
        assert_eq!((&found["size"], &found["test"]), (&65536.into(), &"write-bw".into()));
    }
    play(&namespace, &["perf", "send_lat", "-D", "1s", "-f", "100ms", "--patience", "1m"]);
    play(&namespace, &["pingpong", "-s", "2k", "-n", "50", "-m", "1k"]);
    for (words, said) in [
        (&["-s", "64q"][..], "1 to 1G bytes, as in 65536, 64k"),
        (&["-D", "soon"], "1s to 1000000s, as in 10 (seconds), 90s or 5m"),
        (&["--rate", "fast"], "500M, 2.5G or 1Gbit"),
        (&["--fault", "loss=101%"], "0.01 or 1%"),
        (&["--interval", "1ms"], "0.1 to 3600 seconds"),
    ] {
        uroce(&namespace, &[&["perf", "write-bw"], words].concat()).end().failed(2, &[said]);
    }
}

#[test]
fn flags_of_perftest_are_taken_ignored_or_refused_with_the_reason() {
    let namespace = Netns::create("habits").unwrap();
    let [client, _] = play(&namespace, &["perf", "write-bw", "-n", "20", "-I", "64", "-l", "4", "-F"]);
    for words in ["-I has no effect", "-l has no effect"] {
        assert_eq!(client.stderr.matches(words).count(), 1, "{client:#?}");
    }
    let refused = |words: &[&str], said: &str| {
        uroce(&namespace, &[&["perf"], words].concat()).end().failed(2, &[said]);
    };
    refused(&["write-bw", "-R"], "-R: uroce perf has no RDMA CM; `uroce run ib_write_bw -R` has");
    refused(&["send-lat", "-C"], "`uroce run ib_send_lat -C`");
    refused(&["read-bw", "-I", "1"], "READs and atomics carry no data");
    refused(&["write-bw", "-H"], "latency only");
    refused(&["send-lat", "-D", "1", "-H"], "-D only counts");
    refused(&["send-lat", "-l", "2"], "bandwidth only");
    refused(&["write-bw", "-D", "2", "-f", "1"], "leaves nothing");
    refused(&["write-bw", "--run_infinitely"], "a result for each -D");
    refused(&["write-bw", "--report-both"], "for -b only");
    assert!(uroce(&namespace, &["perf", "-V"]).end().succeeded().stdout.contains(env!("CARGO_PKG_VERSION")));

    let [client, server] = play(&namespace, &["perf", "write-bw", "-b", "--report-both", "-n", "20"]);
    for ended in [client, server] {
        let rows: Vec<f64> = ended.stdout.lines().filter_map(average).collect();
        assert!(rows.len() == 3 && (rows[0] - rows[1] - rows[2]).abs() < 0.03, "{ended:#?}");
        assert!(ended.stdout.contains(" Local results: ") && ended.stdout.contains(" Remote results: "));
    }

    // A bound that is not reached is a failure of both ends: the server knows the result.
    let words = ["perf", "write-bw", "-n", "20", "-w", "1e9"];
    let server = begin(&namespace, &words);
    said(&ask(&namespace, &words).end(), 1, "less than -w 1000000000");
    said(&server.end(), 1, "less than -w");

    let file = folder().join("found.json");
    let path = file.to_str().unwrap();
    let words = ["perf", "write-bw", "-n", "20", "--out_json", "--out_json_file", path];
    let server = begin(&namespace, &["perf", "write-bw", "-n", "20"]);
    let client = ask(&namespace, &words).end().succeeded();
    server.end().succeeded();
    let found: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert!(found["iterations"] == 20 && client.stdout.contains("BW average"), "{found}");
}

/// The average of a row of perftest's columns.
fn average(line: &str) -> Option<f64> {
    let words: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    (words.len() == 5).then(|| words[3])
}

/// `-H` and `-U` print what perftest prints: its own program, and ours.
#[test]
fn latencies_are_listed_as_perftest_lists_them() {
    let namespace = Netns::create("habits").unwrap();
    for flag in ["-H", "-U"] {
        let server = run(&namespace, &format!("--dev 127.0.0.2 ib_send_lat -x 0 -F -n 30 {flag}"));
        wait_for_listener(&namespace, 18515);
        let line = format!("--dev 127.0.0.3 ib_send_lat -x 0 -F -n 30 {flag} 127.0.0.2");
        let theirs = run(&namespace, &line).end().succeeded();
        server.end().succeeded();
        let [ours, _] = play(&namespace, &["perf", "send-lat", "-n", "30", flag]);
        let numbers = |ended: &Ended| -> Vec<usize> {
            let pairs = ended.stdout.lines().filter_map(|line| line.split_once(", "));
            pairs.filter_map(|(at, usec)| Some((at.parse().ok()?, usec.parse::<f64>().ok()?).0)).collect()
        };
        assert_eq!(numbers(&ours), numbers(&theirs), "{flag}: {ours:#?} {theirs:#?}");
        assert!(theirs.stdout.contains("#, usec") && ours.stdout.contains("#, usec"), "{ours:#?} {theirs:#?}");
    }
    let file = folder().join("latency.svg");
    let [client, _] =
        play(&namespace, &["perf", "send-lat", "-n", "200", "--histogram", "--svg", file.to_str().unwrap()]);
    assert!(client.stdout.contains("100.00 %"), "{client:#?}");
    let picture = std::fs::read_to_string(file).unwrap();
    assert!(picture.contains("<title>Latency of send-lat, 2 bytes</title>"), "{picture}");
}

#[test]
fn a_server_that_stays_outlives_its_clients() {
    let namespace = Netns::create("habits").unwrap();
    for words in [&["perf", "write-bw", "-n", "50"][..], &["pingpong", "-n", "50"]] {
        let mut server = begin(&namespace, &[words, &["--forever", "--json"]].concat());
        ask(&namespace, words).end().succeeded();
        // One with other flags, and one that dies in the middle of a word.
        ask(&namespace, &[&words[..words.len() - 1], &["60"]].concat()).end().failed(1, &["differ"]);
        let dead = namespace.run(|| std::net::TcpStream::connect("127.0.0.2:18515").unwrap());
        drop(dead);
        ask(&namespace, words).end().succeeded();
        // Its own last acknowledge comes up to some milliseconds after the client's end.
        server.has_results(2, "\"iterations\":50", LIMIT).unwrap_or_else(|text| panic!("{text}"));
        signal(server.id(), Signal::INT);
        let (stdout, stderr) = server.stop();
        let results = stdout.lines().filter(|line| line.contains("\"iterations\":50")).count();
        let failures = stdout.lines().filter(|line| line.contains("uroce.error/1")).count();
        assert_eq!((results, failures), (2, 2), "{stdout}{stderr}");
        assert!((1..=4).all(|number| stderr.contains(&format!("client {number} from 127.0.0.1"))), "{stderr}");
    }
}

#[test]
fn a_test_that_is_interrupted_prints_what_it_has() {
    let namespace = Netns::create("habits").unwrap();
    for (words, result) in [
        (&["perf", "send-bw", "-D", "600"][..], "\n 65536 "),
        (&["perf", "send-lat", "-n", "100000000"], "\n 2 "),
        (&["pingpong", "-n", "100000000"], "usec/iter"),
    ] {
        let words = [words, &["--interval", "0.5"]].concat();
        let server = begin(&namespace, &words);
        let mut client = ask(&namespace, &words);
        goes_on(&mut client);
        signal(client.id(), Signal::INT);
        let client = client.end();
        said(&client, 130, "only a part of the test");
        assert!(client.stdout.contains(result), "{client:#?}");
        // And the other end does not wait for what cannot come.
        let began = Instant::now();
        let server = server.end();
        assert!(server.stderr.contains("has ended") && server.status.code() == Some(1), "{server:#?}");
        assert!(began.elapsed() < Duration::from_secs(10), "{words:?}");
    }
}

#[test]
fn a_server_notices_that_its_client_was_killed() {
    let namespace = Netns::create("habits").unwrap();
    let words = ["perf", "send-bw", "-D", "600", "--interval", "0.5"];
    let server = begin(&namespace, &words);
    let mut client = ask(&namespace, &words);
    goes_on(&mut client);
    kill(client.id());
    let began = Instant::now();
    said(&server.end(), 1, "messages received: the peer's program at 127.0.0.1 has ended");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_test_without_end_prints_a_result_each_time() {
    let namespace = Netns::create("habits").unwrap();
    let words = ["perf", "write-bw", "-D", "1", "--run_infinitely"];
    let server = begin(&namespace, &words);
    // By then there was a result each second.
    let client = ask(&namespace, &[&words[..], &["--json"]].concat());
    std::thread::sleep(Duration::from_secs(3));
    signal(client.id(), Signal::TERM);
    let client = client.end();
    said(&client, 143, "only a part of the test");
    let found: Vec<Value> = objects(&client).into_iter().filter(|object| object["interval"].is_null()).collect();
    assert!(found.len() >= 2 && found[0]["partial"] == false && found[found.len() - 1]["partial"] == true, "{found:?}");
    said(&server.end(), 1, "its program ended");
}

#[test]
fn what_was_retransmitted_is_told() {
    let namespace = Netns::create("habits").unwrap();
    for words in [&["perf", "write-bw", "-n", "200", "-s", "16k"][..], &["pingpong", "-n", "200"]] {
        let lossy = [words, &["--fault", "loss=2%,seed=3"]].concat();
        let [client, _] = play(&namespace, &lossy);
        let line = client.stderr.lines().find(|line| line.starts_with("uroce: retransmitted"));
        let line = line.unwrap_or_else(|| panic!("{client:#?}"));
        assert!(line.contains(" packets (") && line.contains(" %)"), "{line}");
    }
}

//! `uroce perf` against itself, over AF_XDP on a veth between two namespaces: every test, what its flags change, and what
//! it says when it cannot.

use std::process::Command;

use crate::common::captures::scratch;
use crate::common::programs::{Ended, UROCE, uroce, wait_for_listener};
use rxe_rig::VethPair;
use serde_json::Value;

const PORT: u16 = 18515;

const TESTS: [&str; 8] =
    ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"];

/// One test: the same arguments on both sides, the client's host added. Client and server.
fn play(pair: &VethPair, arguments: &[&str]) -> [Ended; 2] {
    let words = [&["perf"], arguments, &["-u", "17"]].concat();
    let server = uroce(&pair.a, &words);
    wait_for_listener(&pair.a, PORT);
    let host = VethPair::A.ipv4.to_string();
    let client = uroce(&pair.b, &[&words[..], &[host.as_str()]].concat());
    [client.end(), server.end()].map(Ended::succeeded)
}

/// The results of one end.
fn results(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))).collect()
}

/// One test with `--json`: the results of client and server.
fn measure(pair: &VethPair, arguments: &[&str]) -> [Vec<Value>; 2] {
    play(pair, &[arguments, &["--json"]].concat()).map(|ended| results(&ended))
}

/// What a result says of sizes and iterations.
fn counts(result: &Value) -> (u64, u64) {
    (result["size"].as_u64().unwrap(), result["iterations"].as_u64().unwrap())
}

/// A counter of the device, in a result.
fn counter(result: &Value, name: &str) -> u64 {
    result["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}: {result}"))
}

#[test]
fn every_test_works_with_small_and_large_messages() {
    let pair = VethPair::create(4500).unwrap();
    for test in TESTS {
        let sizes: &[&str] = if test.starts_with("atomic") { &["8"] } else { &["1", "100000"] };
        for size in sizes {
            let [client, server] = measure(&pair, &[test, "-s", size, "-n", "50"]);
            assert_eq!(client.len(), 1, "{test}: {client:?}");
            assert_eq!(counts(&client[0]), (size.parse().unwrap(), 50), "{test}");
            let figure = if test.ends_with("lat") { "avg_usec" } else { "bw_average" };
            assert!(client[0][figure].as_f64().unwrap() > 0.0, "{test}: {client:?}");
            // Who only serves a READ's or an atomic's latency has nothing to say.
            let serves = ["read-lat", "atomic-lat"].contains(&test);
            assert_eq!(
                server.iter().map(counts).collect::<Vec<_>>(),
                if serves { vec![] } else { vec![counts(&client[0])] }
            );
        }
    }
}

#[test]
fn both_directions_several_queue_pairs_and_depths_work() {
    let pair = VethPair::create(1500).unwrap();
    for test in ["send-bw", "write-bw", "read-bw", "atomic-bw"] {
        for more in [&["-b", "-q", "2", "-t", "7", "-Q", "3"][..], &["-q", "3", "-t", "1", "-o", "1"]] {
            let size = if test == "atomic-bw" { "8" } else { "3000" };
            let [client, server] = measure(&pair, &[&[test, "-n", "200", "-s", size], more].concat());
            let queue_pairs = client[0]["queue_pairs"].as_u64().unwrap();
            assert_eq!(counts(&client[0]).1, 200 * queue_pairs, "{test} {more:?}");
            if more.contains(&"-b") {
                // Each end adds what the other found.
                let of = |result: &[Value]| result[0]["bw_average"].as_f64().unwrap();
                assert!((of(&client) / of(&server) - 1.0).abs() < 1e-9, "{test} {more:?}: {client:?} {server:?}");
            }
        }
    }
}

#[test]
fn all_sizes_come_one_after_the_other() {
    let pair = VethPair::create(4500).unwrap();
    let sizes: Vec<(u64, u64)> = (1..=23).map(|power| (1 << power, 5)).collect();
    for arguments in [&["send-bw", "-b"][..], &["send-lat"], &["write-bw", "-b"], &["write-lat"], &["read-bw"]] {
        let [client, server] = measure(&pair, &[arguments, &["-a", "-n", "5"]].concat());
        assert_eq!(client.iter().map(counts).collect::<Vec<_>>(), sizes, "{arguments:?}");
        // A server that only serves is told the last one.
        let told = match arguments[0] {
            "read-bw" => &sizes[22..],
            _ => &sizes,
        };
        assert_eq!(server.iter().map(counts).collect::<Vec<_>>(), told, "{arguments:?}");
    }
    let datagrams: Vec<(u64, u64)> = (1..=12).map(|power| (1 << power, 5)).collect();
    for test in ["send-bw", "send-lat"] {
        let [client, _] = measure(&pair, &[test, "-a", "-n", "5", "-c", "UD"]);
        assert_eq!(client.iter().map(counts).collect::<Vec<_>>(), datagrams, "{test}");
    }
}

#[test]
fn every_gid_every_service_and_events_work() {
    let pair = VethPair::create(1500).unwrap();
    for (gid, service) in [("0", "RC"), ("1", "UC"), ("2", "UD")] {
        play(&pair, &["send-bw", "-x", gid, "-n", "50", "-s", "1000", "-c", service]);
    }
    for service in ["UC", "UD"] {
        play(&pair, &["send-bw", "-c", service, "-s", "1000", "-n", "100", "-b"]);
        play(&pair, &["send-lat", "-c", service, "-s", "1000", "-n", "100"]);
    }
    play(&pair, &["write-bw", "-c", "uc", "-s", "5000", "-n", "50", "-t", "8"]);
    play(&pair, &["write-lat", "-c", "uc", "-s", "5000", "-n", "50"]);
    for test in ["send-bw", "send-lat", "read-bw", "atomic-lat"] {
        play(&pair, &[test, "-e", "-n", "100"]);
    }
    play(&pair, &["atomic-bw", "-A", "CMP_AND_SWAP", "-n", "100"]);
}

#[test]
fn a_test_by_time_counts_what_is_done_in_its_middle() {
    let pair = VethPair::create(1500).unwrap();
    for test in ["send-bw", "send-lat", "write-lat", "read-bw"] {
        let [client, _] = measure(&pair, &[test, "-D", "1"]);
        let (_, iterations) = counts(&client[0]);
        assert!(iterations > 0, "{test}: {client:?}");
        if test.ends_with("bw") {
            // Half a second counts.
            let rate = client[0]["message_rate_mpps"].as_f64().unwrap() * 1e6;
            assert!((rate * 0.5 / iterations as f64 - 1.0).abs() < 1e-6, "{test}: {client:?}");
        }
    }
    play(&pair, &["send-bw", "-D", "1", "-b", "-s", "2000", "-q", "2"]);
}

/// --interval tells what goes on meanwhile: lines on stderr, or of JSON among the results.
#[test]
fn at_intervals_it_is_told_what_the_device_does() {
    let pair = VethPair::create(1500).unwrap();
    let [client, server] = measure(&pair, &["write-bw", "-D", "2", "--interval", "0.5"]);
    for (end, direction) in [(&client, "sent_bps"), (&server, "received_bps")] {
        let (told, results): (Vec<&Value>, Vec<&Value>) = end.iter().partition(|line| line["interval"] == true);
        assert!(told.len() >= 3 && results.len() == 1, "{end:#?}");
        assert!(told.iter().any(|line| line[direction].as_f64().unwrap() > 1e6), "{told:#?}");
        let at: Vec<f64> = told.iter().map(|line| line["elapsed_s"].as_f64().unwrap()).collect();
        assert!(at.is_sorted() && at[0] >= 0.5, "{at:?}");
    }
    let has_flow = |line: &Value| line["window_bytes"].as_u64() > Some(0) && line["rtt_ns"].as_u64() > Some(0);
    assert!(client.iter().any(has_flow), "{client:#?}");
    let end_of_json = client;
    let [client, _] = play(&pair, &["write-bw", "-D", "2", "--interval", "0.5"]);
    let lines: Vec<&str> = client.stderr.lines().filter(|line| line.contains(" s: out ")).collect();
    assert!(lines.len() >= 3 && lines.iter().any(|line| line.contains("round trip")), "{client:#?}");
    // Both can be drawn; what is no such line is said.
    let [file, picture] = ["told", "told.svg"].map(scratch);
    let plot = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Command::new(UROCE).args(["plot".as_ref(), file.as_os_str(), picture.as_os_str()]).output().unwrap()
    };
    let told: String = end_of_json.iter().map(|line| format!("{line}\n")).collect();
    for text in [client.stderr.as_str(), told.as_str()] {
        assert!(plot(text).status.success());
        let drawn = std::fs::read_to_string(&picture).unwrap();
        assert!(["rate, ", "window, ", "round trip, "].iter().all(|panel| drawn.contains(panel)), "{drawn}");
    }
    let refused = plot("nothing\n");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("told: no line is of an interval"), "{said}");
}

/// The time runs out while an end has the peer's answer, and the acknowledge of its own message was lost: there is no room
/// for another one, and none is to be posted. 1 in 20 packets is lost, so that each end soon waits out a timeout of half a
/// second, and another, past the end.
#[test]
fn a_test_by_time_ends_although_an_acknowledge_is_missing() {
    let pair = VethPair::create(1500).unwrap();
    for test in ["send-lat", "write-lat"] {
        for seed in 1..=4 {
            play(&pair, &[test, "-D", "1", "--fault", &format!("loss=0.05,seed={seed}")]);
        }
    }
}

#[test]
fn receive_requests_may_be_in_one_queue_for_all() {
    let pair = VethPair::create(4500).unwrap();
    for more in [&["-q", "3", "-r", "10"][..], &["-b", "-q", "2"], &["-c", "UD", "-s", "1000"], &["-a"]] {
        let [client, _] = measure(&pair, &[&["send-bw", "--use-srq", "-n", "100"], more].concat());
        let queue_pairs = client[0]["queue_pairs"].as_u64().unwrap();
        assert_eq!(counts(client.last().unwrap()).1, 100 * queue_pairs, "{more:?}");
    }
    play(&pair, &["send-lat", "--use-srq", "-n", "100", "-s", "5000"]);
    play(&pair, &["send-bw", "--use-srq", "-D", "1", "-q", "2"]);
    let [_, server] = play(&pair, &["send-bw", "--use-srq", "-n", "10"]);
    assert!(server.stdout.contains("Using SRQ       : ON"), "{server:#?}");
}

#[test]
fn what_is_lost_is_sent_again_and_the_numbers_stay_whole() {
    let pair = VethPair::create(1500).unwrap();
    for test in ["send-bw", "write-bw", "read-bw", "write-lat"] {
        let fault = ["-s", "20000", "-n", "50", "--fault", "loss=0.01,seed=3"];
        let [client, server] = measure(&pair, &[&[test][..], &fault].concat());
        assert_eq!(counts(&client[0]), (20000, 50), "{test}");
        let lost = |results: &[Value]| counter(&results[0], "fault_tx_lost") + counter(&results[0], "fault_rx_lost");
        let dropped = lost(&client) + lost(&server);
        assert!(dropped > 0, "{test}: nothing was lost: {client:?}");
    }
}

#[test]
fn the_columns_are_those_of_perftest() {
    let pair = VethPair::create(1500).unwrap();
    let row = |ended: &Ended, columns: usize| -> Vec<f64> {
        let line = ended.stdout.lines().rev().nth(1).unwrap_or_else(|| panic!("no result: {ended:#?}"));
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(numbers.len(), columns, "{ended:#?}");
        numbers
    };
    let has = |ended: &Ended, words: &[&str]| {
        for word in words {
            assert!(ended.stdout.contains(word), "no {word:?}: {ended:#?}");
        }
    };
    let [client, server] = play(&pair, &["write-bw", "-n", "100", "-s", "4096"]);
    has(&client, &["#bytes", "#iterations", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]"]);
    let numbers = row(&client, 5);
    assert_eq!(numbers[..2], [4096.0, 100.0]);
    assert!(numbers[2] >= numbers[3] && numbers[3] > 0.0, "the peak is no less than the average: {numbers:?}");
    // MB/s = messages/µs × bytes / 1.048576.
    assert!((numbers[4] * 4096.0 / 1.048_576 - numbers[3]).abs() < 0.02 * numbers[3] + 0.01, "{numbers:?}");
    assert_eq!(row(&server, 5), numbers, "the server prints what the client found");
    let [client, _] = play(&pair, &["write-bw", "-n", "100", "--report_gbits", "-N"]);
    has(&client, &["BW peak[Gb/sec]", "BW average[Gb/sec]"]);
    assert_eq!(row(&client, 5)[2], 0.0, "-N does not measure the peak");
    let [client, _] = play(&pair, &["send-lat", "-n", "100"]);
    has(&client, &["t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]", "99% percentile"]);
    let numbers = row(&client, 9);
    assert_eq!(numbers[..2], [2.0, 100.0]);
    assert!(numbers[2] <= numbers[4] && numbers[4] <= numbers[7] && numbers[7] <= numbers[8], "{numbers:?}");
    let [client, _] = play(&pair, &["read-lat", "-D", "1"]);
    has(&client, &["t_avg[usec]", "tps average"]);
    row(&client, 4);
}

#[test]
fn what_cannot_be_is_said_in_one_line_with_its_remedy() {
    let pair = VethPair::create(1500).unwrap();
    let fails = |arguments: &[&str], status, words: &[&str]| {
        uroce(&pair.a, &[&["perf"], arguments].concat()).end().failed(status, words);
    };
    fails(&["write-lat", "-b"], 2, &["write-lat", "-b", "bandwidth"]);
    fails(&["send-lat", "-q", "2"], 2, &["-q"]);
    fails(&["write-bw", "-e"], 2, &["-e", "WRITE"]);
    fails(&["write-bw", "-c", "UD"], 2, &["UD", "SEND"]);
    fails(&["read-bw", "-c", "UC"], 2, &["READ", "reliable"]);
    fails(&["read-lat", "--use-srq"], 2, &["--use-srq", "SEND"]);
    fails(&["send-bw", "--use-srq", "-q", "3", "-r", "2"], 2, &["--use-srq", "-r"]);
    fails(&["atomic-bw", "-a"], 2, &["-a", "8 bytes"]);
    fails(&["atomic-lat", "-s", "16"], 2, &["-s", "8 bytes"]);
    fails(&["send-bw", "-D", "1", "-n", "10"], 2, &["-n", "-D"]);
    fails(&["send-bw", "-D", "1", "-a"], 2, &["-a", "-D"]);
    fails(&["send-bw", "-n", "4"], 2, &["--iters", "4"]);
    fails(&["no-such"], 2, &["no-such", "send-bw"]);
    fails(&["send-bw", "-m", "4096"], 1, &["uroce0", "active MTU of 1024", "ip link set"]);
    fails(&["send-bw", "-x", "9"], 1, &["-x 9", "3 GIDs"]);
    fails(&["send-bw", "-p", "7", "10.78.0.2"], 1, &["10.78.0.2 port 7", "is the server running"]);

    // A peer that is given another test, or other flags, or is none.
    let against = |flags: [&[&str]; 2], words: &[&str]| {
        let server = uroce(&pair.a, &[&["perf"], flags[0], &["--patience", "2"]].concat());
        wait_for_listener(&pair.a, PORT);
        let client = uroce(&pair.b, &[&["perf"], flags[1], &["10.78.0.1", "--patience", "2"]].concat());
        let said = [client.end(), server.end()];
        assert!(said.iter().any(|ended| ended.status.code() == Some(1)), "{said:#?}");
        let all: String = said.iter().map(|ended| ended.stderr.as_str()).collect();
        words.iter().for_each(|word| assert!(all.contains(word), "no {word:?}: {said:#?}"));
    };
    against([&["send-bw", "-q", "1"], &["send-bw", "-q", "2"]], &["same test and flags"]);
    against(
        [&["send-bw", "-n", "10", "-s", "100"], &["send-bw", "-n", "10", "-s", "200"]],
        &["-s 100", "-s 200", "differ"],
    );
    against([&["send-bw", "-c", "UD", "-s", "2000"], &["send-bw", "-c", "UD"]], &["2000", "1024", "-s 1024"]);
    let other = uroce(&pair.a, &["pingpong", "--patience", "2"]);
    wait_for_listener(&pair.a, PORT);
    uroce(&pair.b, &["perf", "send-bw", "10.78.0.1", "--patience", "2"]).end().failed(1, &["version", "program ended"]);
    other.end().failed(1, &["perf and perftest", "the same program"]);
}

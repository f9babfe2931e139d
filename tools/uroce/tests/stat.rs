//! `uroce stat`: what it says of real programs, of whom it says it, and what is left of those that end.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::time::Duration;

use common::processes::{kill, program_of, signal, wait_until};
use common::programs::{AS_NOBODY, Running, run, start, uroce, uroce_as_nobody, wait_for_listener};
use rustix::process::Signal;
use rxe_rig::{Netns, VethPair};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

const SECONDS: &str = "20";

/// What it prints with `--json`, by process.
fn stat(namespace: &Netns, more: &[&str]) -> Vec<Value> {
    let ended = uroce(namespace, &[&["stat", "--json"], more].concat()).end().succeeded();
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// That of a process, once it has a queue pair that sends or receives more than 1 Mb/s.
#[track_caller]
fn busy(namespace: &Netns, process: u32) -> Value {
    let find = || {
        let is_it = |one: &Value| one["process"] == process && pair(one)["peer"] != Value::Null && rate(one) > 1e6;
        stat(namespace, &[]).into_iter().find(is_it)
    };
    wait_until(|| format!("{process} is not busy: {:?}", stat(namespace, &[])), LIMIT, || find().is_some());
    find().unwrap()
}

fn pair(program: &Value) -> &Value {
    &program["devices"][0]["queue_pairs"][0]
}

fn rate(program: &Value) -> f64 {
    ["sent_bps", "received_bps"].iter().filter_map(|name| pair(program)[*name].as_f64()).fold(0.0, f64::max)
}

/// `uroce perf` on the loopback, for a time.
fn perf(namespace: &Netns, own: &str, more: &[&str]) -> Running {
    uroce(namespace, &[&["perf", "write-bw", "--dev", own, "-D", SECONDS], more].concat())
}

/// Two of uroce's own commands, and an unmodified program, at once.
#[test]
fn running_programs_are_shown_with_their_peers_rates_and_windows() {
    let pair_of_hosts = VethPair::create(4500).unwrap();
    let host = &pair_of_hosts.a;
    let server = perf(host, "127.0.0.2", &[]);
    wait_for_listener(host, 18515);
    let client = perf(host, "127.0.0.3", &["127.0.0.2"]);
    let line = format!("ib_write_bw -F -u 17 -D {SECONDS} -p 18600");
    let mut other = run(&pair_of_hosts.b, &line);
    other.listens(&pair_of_hosts.b, 18600, LIMIT).unwrap();
    let unmodified = run(host, &format!("{line} {}", VethPair::B.ipv4));
    let (client_state, server_state) = (busy(host, client.id()), busy(host, server.id()));
    let unmodified_state = busy(host, program_of(&unmodified));
    assert_eq!((&client_state["program"], &unmodified_state["program"]), (&"uroce".into(), &"ib_write_bw".into()));
    // Each is the other's peer, and what one sends the other receives.
    for (one, other, address) in
        [(&client_state, &server_state, "127.0.0.2"), (&server_state, &client_state, "127.0.0.3")]
    {
        assert_eq!(pair(one)["peer"]["address"], address, "{one}");
        assert_eq!(pair(one)["peer"]["qpn"], pair(other)["qpn"], "{one} {other}");
        assert_eq!((&pair(one)["service"], &pair(one)["state"]), (&"RC".into(), &"RTS".into()), "{one}");
    }
    let rate_of = |one: &Value, name: &str| pair(one)[name].as_f64().unwrap();
    assert!(rate_of(&client_state, "sent_bps") > 20.0 * rate_of(&client_state, "received_bps"), "{client_state}");
    assert!(rate_of(&server_state, "received_bps") > 20.0 * rate_of(&server_state, "sent_bps"), "{server_state}");
    let flow = &pair(&client_state)["flow"];
    for name in ["window_bytes", "round_trip_ns", "shortest_ns", "delivered_bytes"] {
        assert!(flow[name].as_u64().unwrap() > 0, "{name}: {client_state}");
    }
    assert_eq!(unmodified_state["devices"][0]["device"], "uroce0", "{unmodified_state}");
    assert_eq!(pair(&unmodified_state)["peer"]["address"], VethPair::B.ipv4.to_string(), "{unmodified_state}");
    // A line each, below the header.
    let table = uroce(host, &["stat"]).end().succeeded();
    let lines: Vec<Vec<&str>> = table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["program", "PID", "device"], "{table:#?}");
    for state in [&client_state, &server_state, &unmodified_state] {
        let process = state["process"].to_string();
        let qpn = format!("{:#08x}", pair(state)["qpn"].as_u64().unwrap());
        assert_eq!(lines.iter().filter(|line| line[1] == process && line[4] == qpn).count(), 1, "{table:#?}");
    }
    // One of them alone.
    let alone = stat(host, &[&client.id().to_string()]);
    assert_eq!(alone.iter().map(|one| &one["process"]).collect::<Vec<_>>(), [client.id()]);
    // A program that is stopped answers all the same when it goes on, and holds nobody up until then.
    signal(client.id(), Signal::STOP);
    let ended = uroce(host, &["stat", "--json"]).end_within(Duration::from_secs(20)).unwrap().succeeded();
    assert!(ended.stderr.contains(&format!("process {} does not answer", client.id())), "{ended:#?}");
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:#?}");
    signal(client.id(), Signal::CONT);
    busy(host, client.id());
}

/// Other users' programs are not shown, nor those that were killed.
#[test]
fn only_programs_of_the_user_that_live_are_shown() {
    let pair = VethPair::create(4500).unwrap();
    let host = &pair.a;
    let nothing = uroce(host, &["stat"]).end().succeeded();
    assert_eq!((nothing.stdout.as_str(), nothing.stderr.contains("no program of this user runs")), ("", true));
    uroce(host, &["stat", "1"]).end().failed(1, &["as process 1", "there is none"]);
    let server = perf(host, "127.0.0.2", &[]);
    wait_for_listener(host, 18515);
    let shown = stat(host, &[]);
    assert_eq!(shown.iter().map(|one| &one["process"]).collect::<Vec<_>>(), [server.id()]);
    let strangers = uroce_as_nobody(host, &["stat"]).end().succeeded();
    assert!(strangers.stdout.is_empty() && strangers.stderr.contains("no program of this user runs"), "{strangers:#?}");
    uroce(host, &["stat", "1"]).end().failed(1, &["as process 1", &format!("these do: {}", server.id())]);
    // Who knows the name of its socket gets nothing.
    let name = format!("\\0uroce-stat-1-0-{}-0", server.id());
    let connect = |user: &[&str]| {
        let script =
            format!("import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"{name}\"); print(len(s.recv(9)))");
        let words = [user, &["/usr/bin/python3", "-c", &script]].concat();
        start(host.command(words[0]), &words[1..]).end().succeeded().stdout
    };
    assert_eq!((connect(&["env"]), connect(&AS_NOBODY)), ("9\n".to_owned(), "0\n".to_owned()));
    kill(server.id());
    wait_until(|| "it is still shown".to_owned(), LIMIT, || stat(host, &[]).is_empty());
}

//! `uroce stat`: what it says of real programs, of whom it says it, and what is left of those that end.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::fs;
use std::time::Duration;

use crate::common::captures::scratch;
use crate::common::processes::{begun_by, kill, program_of, signal, wait_until};
use crate::common::programs::{AS_NOBODY, Running, run, start, uroce, uroce_as_nobody, wait_for_listener};
use rustix::process::Signal;
use rxe_rig::{Netns, VethPair};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

const SECONDS: &str = "20";

/// What it prints with `--json`: a queue pair each.
fn stat(namespace: &Netns, more: &[&str]) -> Vec<Value> {
    let ended = uroce(namespace, &[&["stat", "--json"], more].concat()).end().succeeded();
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A process's queue pair, once it sends or receives more than 1 Mb/s.
#[track_caller]
fn busy(namespace: &Netns, process: u32) -> Value {
    let find = || {
        let is_it = |one: &Value| one["pid"] == process && one["peer"] != Value::Null && rate(one) > 1e6;
        stat(namespace, &[]).into_iter().find(is_it)
    };
    wait_until(|| format!("{process} is not busy: {:?}", stat(namespace, &[])), LIMIT, || find().is_some());
    find().unwrap()
}

fn rate(row: &Value) -> f64 {
    row["rate_bps"].as_f64().unwrap()
}

/// `uroce perf` on the loopback, for a time.
fn perf(namespace: &Netns, own: &str, more: &[&str]) -> Running {
    uroce(namespace, &[&["perf", "write-bw", "--dev", own, "-D", SECONDS], more].concat())
}

/// One program's flow of class bulk, and what it does while another on the same interface has urgent messages.
#[test]
fn a_flow_that_gives_way_to_another_programs_urgent_messages_says_so() {
    let pair = VethPair::create(4500).unwrap();
    let host = &pair.b;
    let at = VethPair::A.ipv4.to_string();
    let bulk = ["perf", "write-bw", "-D", SECONDS, "--tclass", "40"];
    let _server = uroce(&pair.a, &bulk);
    wait_for_listener(&pair.a, 18515);
    let client = uroce(host, &[&bulk[..], &[&at]].concat());
    assert_eq!(busy(host, client.id())["flow"]["gives_way"], false);
    let urgent = ["pingpong", "-n", "100", "--tclass", "184", "-p", "18602"];
    let server = uroce(&pair.a, &urgent);
    wait_for_listener(&pair.a, 18602);
    uroce(host, &[&urgent[..], &[&at]].concat()).end().succeeded();
    server.end().succeeded();
    // For five seconds after the last message.
    for expected in [true, false] {
        let row = || stat(host, &[&client.id().to_string()]).pop().unwrap_or_default();
        wait_until(|| format!("not {expected}: {}", row()), LIMIT, || row()["flow"]["gives_way"] == expected);
    }
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
        assert_eq!(one["peer"]["address"], address, "{one}");
        assert_eq!(one["peer"]["qpn"], other["qpn"], "{one} {other}");
        assert_eq!((&one["service"], &one["state"]), (&"RC".into(), &"RTS".into()), "{one}");
    }
    let rate_of = |one: &Value, name: &str| one[name].as_f64().unwrap();
    assert!(rate_of(&client_state, "sent_bps") > 20.0 * rate_of(&client_state, "received_bps"), "{client_state}");
    assert!(rate_of(&server_state, "received_bps") > 20.0 * rate_of(&server_state, "sent_bps"), "{server_state}");
    let flow = &client_state["flow"];
    for name in ["window_bytes", "round_trip_ns", "shortest_ns", "delivered_bytes"] {
        assert!(flow[name].as_u64().unwrap() > 0, "{name}: {client_state}");
    }
    assert_eq!(unmodified_state["device"], "uroce0", "{unmodified_state}");
    assert_eq!(unmodified_state["peer"]["address"], VethPair::B.ipv4.to_string(), "{unmodified_state}");
    for name in ["recovery", "controller"] {
        assert_eq!(client_state[name], if name == "recovery" { "selective" } else { "steady" }, "{client_state}");
    }
    assert!(
        client_state["sent_pkts"].as_u64().unwrap() > 0 && client_state["rtt_ns"].as_u64().unwrap() > 0,
        "{client_state}"
    );
    // A line each, below the header.
    let table = uroce(host, &["stat"]).end().succeeded();
    let lines: Vec<Vec<&str>> = table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["program", "PID", "device"], "{table:#?}");
    for state in [&client_state, &server_state, &unmodified_state] {
        let process = state["pid"].to_string();
        let qpn = format!("{:#08x}", state["qpn"].as_u64().unwrap());
        assert_eq!(lines.iter().filter(|line| line[1] == process && line[4] == qpn).count(), 1, "{table:#?}");
    }
    // One of them alone.
    let alone = stat(host, &[&client.id().to_string()]);
    assert_eq!(alone.iter().map(|one| &one["pid"]).collect::<Vec<_>>(), [client.id()]);
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
    assert_eq!(shown.iter().map(|one| &one["pid"]).collect::<Vec<_>>(), [server.id()]);
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

/// The same over HTTP, on a signal, and in a terminal.
#[test]
fn counters_are_served_printed_on_a_signal_and_shown_live() {
    let pair = VethPair::create(4500).unwrap();
    let host = &pair.a;
    let mut server = perf(host, "127.0.0.2", &["--metrics", "127.0.0.1:9400"]);
    server.prints(&["metrics at http://127.0.0.1:9400/metrics"], LIMIT).unwrap();
    wait_for_listener(host, 18515);
    let client = perf(host, "127.0.0.3", &["127.0.0.2"]);
    let row = busy(host, server.id());
    let get = |path: &str, method: &str| {
        let script = format!(
            "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9400, timeout=10); c.request('{method}', '{path}'); \
             r = c.getresponse(); print(r.status, r.getheader('content-type')); print(r.read().decode())"
        );
        start(host.command("/usr/bin/python3"), &["-c", &script]).end().succeeded().stdout
    };
    let text = get("/metrics", "GET");
    assert!(text.starts_with("200 application/openmetrics-text; version=1.0.0"), "{text}");
    for part in ["# TYPE uroce_rx_bytes counter", "uroce_queue_pair_rcvd_bytes_total{", "# EOF"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    // Both programs are in it, and each with the counters of its own.
    let of = |process: u32| {
        format!("uroce_rcvd_bytes_total{{pid=\"{process}\",program=\"uroce\",device=\"lo\",link=\"udp\"}} ")
    };
    for process in [server.id(), client.id()] {
        let line =
            text.lines().find(|line| line.starts_with(&of(process))).unwrap_or_else(|| panic!("{process}: {text}"));
        assert!(line.rsplit(' ').next().unwrap().parse::<u64>().unwrap() > 0, "{line}");
    }
    assert!(get("/other", "GET").starts_with("404 ") && get("/metrics", "POST").starts_with("405 "));
    uroce(host, &["stat", "--metrics", "127.0.0.1:9400"])
        .end()
        .failed(1, &["cannot serve metrics on 127.0.0.1:9400", "in use"]);
    // Programs that print on a signal go on.
    signal(server.id(), Signal::USR1);
    server.prints(&["uroce: lo: ", "rcvd_pkts"], LIMIT).unwrap();
    // In a terminal: keys end it. The table goes to whatever is no terminal.
    let terminal = scratch("terminal");
    let shown = |part: &str| fs::read_to_string(&terminal).unwrap_or_default().contains(part);
    let line = format!("stty rows 40 columns 160; {} top --interval 0.2", crate::common::programs::UROCE);
    let keys = r#"(until grep -q newest "$2"; do sleep 0.1; done; printf q) | script -qefc "$1" "$2""#;
    fs::write(&terminal, "").unwrap();
    start(host.command("sh"), &["-c", keys, "sh", &line, terminal.to_str().unwrap()]).end().succeeded();
    for part in ["uroce top", "q ends", "0x", "recovery", "newest"] {
        assert!(shown(part), "{part} is not on {:?}", fs::read_to_string(&terminal));
    }
    // A signal ends it as well, and leaves the terminal as it was.
    let (begins, ends) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
    fs::write(&terminal, "").unwrap();
    let line = format!("exec {} top", crate::common::programs::UROCE);
    let script = start(host.command("script"), &["-qefc", &line, terminal.to_str().unwrap()]);
    wait_until(|| "it shows nothing".to_owned(), LIMIT, || shown(begins));
    signal(begun_by(&script).unwrap(), Signal::TERM);
    assert_eq!(script.end().status.code(), Some(128 + 15));
    assert!(shown(ends), "{:?}", fs::read_to_string(&terminal));
    let table = uroce(host, &["top", "--interval", "0.1", "--count", "2"]).end().succeeded().stdout;
    let qpn = format!("{:#08x}", row["qpn"].as_u64().unwrap());
    assert_eq!(table.lines().filter(|line| line.contains(&format!("RC {qpn}"))).count(), 2, "{table}");
}

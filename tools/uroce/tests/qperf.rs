//! qperf, unmodified, by `uroce run`. It knows LIDs and no GIDs, so that no RoCE device takes what it does: not the kernel's
//! rxe, and not uroce. With `--lids`, uroce's devices have some.

use std::time::Duration;

use crate::common::programs::{Ended, Running, uroce, uroce_as_nobody, wait_for_listener};
use rxe_rig::{Lab, LabOptions, Netns, VethPair};

/// Where its server listens.
const PORT: u16 = 19765;

/// Carries its path MTU of 2048.
const MTU: u16 = 4500;

/// Each test a second long.
const TESTS: [&str; 5] = ["-t", "1", "rc_bw", "rc_lat", "ud_lat"];

type Start = fn(&Netns, &[&str]) -> Running;

/// Its client in one namespace asks its server in the other. Returns what the server wrote as well.
fn play(pair: &VethPair, start: Start, options: &[&str], tests: &[&str]) -> (Ended, String) {
    let host = VethPair::A.ipv4.to_string();
    let words = |rest: &[&str]| -> Vec<String> {
        [&["run"], options, &["qperf"], rest].concat().into_iter().map(str::to_owned).collect()
    };
    let run =
        |namespace: &Netns, words: Vec<String>| start(namespace, &words.iter().map(String::as_str).collect::<Vec<_>>());
    let server = run(&pair.a, words(&[]));
    wait_for_listener(&pair.a, PORT);
    let client = run(&pair.b, words(&[&[host.as_str()], tests].concat())).end();
    let (stdout, stderr) = server.stop();
    (client, stdout + &stderr)
}

/// The numbers that it printed, by test: `bw = 1.2 GB/sec`, `latency = 10 us`.
fn results(text: &str) -> Vec<(String, f64)> {
    let mut test = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(':') {
            test = name.to_owned();
        } else if let Some((_, value)) = line.split_once('=') {
            let number = value.split_whitespace().next().and_then(|word| word.parse().ok());
            found.push((test.clone(), number.unwrap_or_else(|| panic!("no number in {line:?}"))));
        }
    }
    found
}

#[test]
fn with_lids_it_measures_over_xdp_and_as_nobody_over_udp() {
    let pair = VethPair::create(MTU).unwrap();
    for (start, link) in [(uroce as Start, "xdp"), (uroce_as_nobody, "udp")] {
        let ended = play(&pair, start, &["--lids", "--link", link], &TESTS).0.succeeded();
        let results = results(&ended.stdout);
        let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["rc_bw", "rc_lat", "ud_lat"], "{ended:#?}");
        assert!(results.iter().all(|(_, number)| *number > 0.0), "{ended:#?}");
    }
}

/// What it says when a device wants GIDs, by test.
const REFUSALS: [(&str, &str); 3] = [
    ("rc_bw", "failed to modify QP to RTR: Invalid argument"),
    ("rc_lat", "failed to modify QP to RTR: Invalid argument"),
    ("ud_lat", "failed to create address handle: Invalid argument"),
];

#[test]
fn without_lids_it_is_refused_and_the_trace_says_what_to_do() {
    let pair = VethPair::create(MTU).unwrap();
    for (test, refusal) in REFUSALS {
        // Whoever is first tells the other.
        let (ended, server) = play(&pair, uroce, &["--trace"], &[test]);
        let said = format!("{}{}{server}", ended.stdout, ended.stderr);
        assert!(!ended.status.success() && said.contains(refusal), "{ended:#?}{server}");
        assert!(said.contains("uroce run --lids"), "{ended:#?}{server}");
    }
}

/// The kernel's rxe says the same, and lets only those through that the connection manager connects.
#[test]
fn rxe_refuses_it_in_the_same_words() {
    let lab = Lab::start(&LabOptions { mtu: MTU, ..LabOptions::default() }).unwrap_or_else(|e| panic!("no lab: {e}"));
    let vm = lab.vm(0);
    let limit = Duration::from_secs(180);
    let server = vm.spawn("qperf", limit).unwrap();
    vm.check("until ss -ltn | grep -q :19765; do sleep 0.1; done", limit).unwrap();
    let ask = |words: &str| vm.run(&format!("qperf {} -t 1 {words}", vm.ipv4()), limit).unwrap();
    for (test, refusal) in REFUSALS {
        let output = ask(test);
        let said = format!("{}{}", output.text, server.text());
        eprintln!("rxe: {test}: {said}");
        assert!(output.status != 0 && said.contains(refusal), "{said}");
    }
    let output = ask("-cm1 rc_lat");
    eprintln!("rxe: {}", output.text);
    assert!(output.status == 0 && results(&output.text).len() == 1, "{output:?}");
    server.kill().unwrap();
}

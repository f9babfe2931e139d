//! qperf, unmodified, by `uroce run`. It knows LIDs and no GIDs, so that no RoCE device takes what it does: not the kernel's
//! rxe, and not uroce. With `--lids`, uroce's devices have some.

use crate::common::programs::{Ended, Running, uroce, uroce_as_nobody, wait_for_listener};
use crate::common::qperf::{REFUSALS, results};
use rxe_rig::{Netns, VethPair};

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

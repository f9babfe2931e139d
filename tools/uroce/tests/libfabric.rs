//! libfabric's fi_pingpong, as Debian has it, at both ends by `uroce run`: its provider for verbs with connected endpoints and
//! datagrams, and the layers that make reliable datagrams of each. It compares every message, and the frames are counted.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::programs::{Running, run, run_as_nobody, sent_packets};
use crate::common::tally::Tally;
use rxe_rig::{Netns, VethPair};

/// Where a server waits for its client, over TCP.
const PORT: u16 = 47592;

const LIMIT: Duration = Duration::from_secs(60);

/// Provider, kind of endpoint, and how many packets each end sends at least: of the largest size ten messages, which is 1 MiB,
/// or for plain datagrams the path MTU of 4096.
const GAMES: [(&str, &str, u64); 4] = [
    ("verbs", "msg", 10 * (1 << 20) / 4096),
    ("verbs;ofi_rxm", "rdm", 10 * (1 << 20) / 4096),
    ("verbs;ofi_rxd", "rdm", 10 * (1 << 20) / 4096),
    ("verbs", "dgram", 10),
];

fn play(
    start: fn(&Netns, &str) -> Running,
    pair: &VethPair,
    link: &str,
    game: (&str, &str, u64),
) -> Result<(), String> {
    let (provider, endpoint, fewest) = game;
    let line = |host: &str| format!("--link {link} --trace -- fi_pingpong -p {provider} -e {endpoint} -c {host}");
    let mut server = start(&pair.a, &line(""));
    server.listens(&pair.a, PORT, LIMIT)?;
    let client = start(&pair.b, &line(&VethPair::A.ipv4.to_string()));
    let client = client.end_within(LIMIT)?;
    let server = server.end_within(LIMIT)?;
    // The one that failed first is seldom the one that is asked first.
    if client.check().and(server.check()).is_err() {
        return Err(format!("{client:#?}\n{server:#?}"));
    }
    for ended in [client, server] {
        // It prints a line for each size, and the last is that of the largest.
        let sizes = ended.stdout.lines().filter(|line| line.split_whitespace().nth(1) == Some("10")).count();
        let sent = sent_packets(&ended.stderr);
        if sizes < 4 || sent < fewest {
            return Err(format!("{sizes} sizes, {sent} packets, not {fewest}: {ended:#?}"));
        }
    }
    Ok(())
}

fn play_all(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let mut tally = Tally::begin();
    for game in GAMES {
        let name = format!("fi_pingpong -p {} -e {} over {link}", game.0, game.1);
        tally.play(&format!("{} {}", game.0, game.1), link, &name, || play(start, &pair, link, game));
    }
    tally.end();
}

#[test]
fn every_kind_of_endpoint_works_over_af_xdp() {
    play_all(run, "xdp");
}

#[test]
fn every_kind_of_endpoint_works_as_nobody_over_udp_sockets() {
    play_all(run_as_nobody, "udp");
}

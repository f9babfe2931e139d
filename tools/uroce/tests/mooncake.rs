//! Mooncake's transfer engine, from its wheel, in two namespaces by `uroce run`: each end compares every byte that was written
//! or read. The engine takes TCP in silence when it finds no device, so the frames are counted.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::time::Duration;

use common::programs::{Ended, Running, python, run, run_as_nobody, sent_packets};
use rxe_rig::{Netns, VethPair};

const PORT: u16 = 18800;
const LIMIT: Duration = Duration::from_secs(90);

/// What is written, and read: 16 MiB at the path MTU of 4096. The client sends the first, the server the second.
const FEWEST_PACKETS: u64 = (16 << 20) / 4096;

fn play(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let program = python("mooncake", "mooncake_engine.py");
    let [a, b] = [VethPair::A, VethPair::B]
        .map(|end| format!("--link {link} --trace -- {program} {} {} {PORT}", end.interface, end.ipv4));
    let mut server = start(&pair.a, &a);
    server.listens(&pair.a, PORT, LIMIT).unwrap();
    let client = start(&pair.b, &format!("{b} {}", VethPair::A.ipv4));
    let ended = [client, server].map(|program| program.end_within(LIMIT).unwrap());
    for ended in ended.map(Ended::succeeded) {
        assert!(ended.stdout.ends_with("all bytes compared\n"), "{ended:#?}");
        let sent = sent_packets(&ended.stderr);
        assert!(sent >= FEWEST_PACKETS, "{sent} packets, not {FEWEST_PACKETS}: {ended:#?}");
    }
}

#[test]
fn engines_write_and_read_16_mib_over_af_xdp() {
    play(run, "xdp");
}

#[test]
fn engines_write_and_read_16_mib_as_nobody_over_udp_sockets() {
    play(run_as_nobody, "udp");
}

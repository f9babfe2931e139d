//! NIXL's agents, from its wheel and with the UCX that is in it, in two namespaces by `uroce run`: each compares every byte that
//! it got by WRITE or READ. UCX takes TCP in silence, so the frames are counted.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::time::Duration;

use common::programs::{Ended, Running, python, run, run_as_nobody, sent_packets};
use rxe_rig::{Netns, VethPair};

const PORT: u16 = 18700;
const LIMIT: Duration = Duration::from_secs(90);

/// What is written, and read: 64 MiB at the path MTU of 4096. The client sends the first, the server the second.
const FEWEST_PACKETS: u64 = (64 << 20) / 4096;

fn play(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let program = python("nixl", "nixl_agent.py");
    let line = |device: &str, host: &str| {
        let variables = format!("UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES={device}:1");
        format!("--link {link} --trace -- env {variables} {program} {PORT} {host}")
    };
    let mut server = start(&pair.a, &line(VethPair::A.interface, ""));
    server.listens(&pair.a, PORT, LIMIT).unwrap();
    let client = start(&pair.b, &line(VethPair::B.interface, &VethPair::A.ipv4.to_string()));
    let ended = [client, server].map(|program| program.end_within(LIMIT).unwrap());
    for ended in ended.map(Ended::succeeded) {
        assert!(ended.stdout.ends_with("all bytes compared\n"), "{ended:#?}");
        let sent = sent_packets(&ended.stderr);
        assert!(sent >= FEWEST_PACKETS, "{sent} packets, not {FEWEST_PACKETS}: {ended:#?}");
    }
}

#[test]
fn agents_write_and_read_64_mib_over_af_xdp() {
    play(run, "xdp");
}

#[test]
fn agents_write_and_read_64_mib_as_nobody_over_udp_sockets() {
    play(run_as_nobody, "udp");
}

//! Nothing leaks: connections that are made and ended again and again leave no memory, descriptor or thread behind, and
//! programs that have ended no process and no socket. Ordinarily 200 connections, with UROCE_FULL=1 10,000.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::compiled::program;
use crate::common::plays_all;
use crate::common::processes::{reports, wait_until_nothing_is_left};
use crate::common::programs::{Running, run, run_as_nobody};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(300);

/// KiB that a program can have more after all connections than after a tenth of them. A connection waits four seconds for
/// late packets, and takes some 4 KiB until then: 200 take four seconds at the most, and of 10,000 as many wait at a time. One
/// that kept 1 KiB for good would cost 9 MiB in the full test.
const GROWTH_KIB: i64 = 4096;

fn connect_again_and_again(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let (binary, host) = (program("reconnect"), VethPair::A.ipv4);
    let count = if plays_all() { 10_000 } else { 200 };
    let line = |role: &str| format!("--link {link} -- {} {count} {host}{role}", binary.display());
    let mut server = start(&pair.a, &line(" serve"));
    server.prints(&["listens"], LIMIT).unwrap();
    let client = start(&pair.b, &line(""));
    for ended in [client, server].map(|program| program.end_within(LIMIT).unwrap().succeeded()) {
        let [early, late] = reports(&ended);
        eprintln!("{link}, {count} connections: {early:?}, then {late:?}");
        assert_eq!(early[1..], late[1..], "descriptors and threads: {ended:#?}");
        assert!(late[0] - early[0] < GROWTH_KIB, "{early:?}, then {late:?} KiB");
    }
    for namespace in [&pair.a, &pair.b] {
        wait_until_nothing_is_left(namespace, LIMIT);
    }
}

#[test]
fn connections_leave_nothing_behind_as_nobody_over_udp_sockets() {
    connect_again_and_again(run_as_nobody, "udp");
}

#[test]
fn connections_leave_nothing_behind_over_af_xdp() {
    connect_again_and_again(run, "xdp");
}

//! A program unmaps memory in the middle of its transfers, by `uroce run`, on both links, within one process and between two
//! hosts. Each transfer ends once, with an error or with all its bytes, and the program by itself: never with a signal.
//!
//! With UROCE_FULL=1 a thousand of each kind; without, some.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::compiled::program;
use crate::common::programs::{Running, uroce, uroce_as_nobody};
use rxe_rig::{Netns, VethPair};

type Start = fn(&Netns, &[&str]) -> Running;

/// Both links: AF_XDP, and UDP sockets, which need no capability.
const LINKS: [(Start, &str); 2] = [(uroce, "xdp"), (uroce_as_nobody, "udp")];

/// Who meets the vanished pages: the library's own thread, or threads of the program's that block every signal.
const WHO: [&str; 2] = ["engine", "blocked"];

/// Transfers of each kind: WRITE, SEND and READ, whose memory goes at the requester or at the responder.
fn count() -> u32 {
    if std::env::var_os("UROCE_FULL").is_some() { 1000 } else { 10 }
}

/// Six lines, one for each kind. Every other transfer finds the memory gone; in the rest it goes in the middle.
fn check(output: &str) {
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.len(), 6, "{output}");
    for line in lines {
        let (_, numbers) = line.split_once(": ").unwrap();
        let numbers: Vec<u32> = numbers.split(", ").map(|n| n.split(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(numbers.iter().sum::<u32>(), count(), "{line}");
        assert!(numbers[0] >= count() / 2, "{output}");
        eprintln!("{line}");
    }
}

#[test]
fn memory_that_vanishes_within_a_process_fails_transfers_and_kills_nobody() {
    let (pair, file, count) = (VethPair::create(1500).unwrap(), program("vanish").display().to_string(), count());
    for (start, link) in LINKS {
        for who in WHO {
            eprintln!("one process, {link}, {who}");
            let words = ["run", "--link", link, &file, "both", who, &count.to_string()];
            check(&start(&pair.a, &words).end().succeeded().stdout);
        }
    }
}

#[test]
fn memory_that_vanishes_at_one_of_two_hosts_fails_transfers_and_kills_nobody() {
    let (pair, file, count) = (VethPair::create(1500).unwrap(), program("vanish").display().to_string(), count());
    let address = VethPair::B.ipv4.to_string();
    for (port, (start, link)) in (18600..).step_by(10).zip(LINKS) {
        for (port, who) in (port..).zip(WHO) {
            eprintln!("two hosts, {link}, {who}");
            let (count, number) = (count.to_string(), port.to_string());
            let end = |at: &Netns, to: &str| start(at, &["run", "--link", link, &file, to, who, &count, &number]);
            let mut server = end(&pair.b, "serve");
            server.listens(&pair.b, port, Duration::from_secs(20)).unwrap();
            let client = end(&pair.a, &address);
            // Whoever fails takes the other one along: the test shows both.
            let (client, server) = (client.end(), server.end());
            eprintln!("{client:?}\n{server:?}");
            check(&client.succeeded().stdout);
            server.succeeded();
        }
    }
}

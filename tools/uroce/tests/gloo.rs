//! gloo's transport for verbs, as Debian has it, between two namespaces by `uroce run`: sums whose elements are all compared.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::captures::folder_for_all;
use crate::common::compiled::program_in_cxx;
use crate::common::programs::{Running, run, run_as_nobody, sent_packets};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(90);

/// Three sums of 400,000 bytes, at the path MTU of 4096 or a smaller one.
const FEWEST_PACKETS: u64 = 3 * 400_000 / 4096;

fn play(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let program = program_in_cxx("gloo", &["-O1", "-lgloo", "-libverbs", "-lpthread"]);
    // Where the ranks find each other's addresses.
    let folder = folder_for_all(&format!("gloo-{link}"));
    let line = |rank: usize, device: &str| {
        format!("--link {link} --trace -- {} {rank} {device} {}", program.display(), folder.display())
    };
    let ranks = [start(&pair.a, &line(0, VethPair::A.interface)), start(&pair.b, &line(1, VethPair::B.interface))];
    let ended = ranks.map(|rank| rank.end_within(LIMIT).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    for ended in ended {
        let ended = ended.succeeded();
        assert_eq!(ended.stdout, "3 rounds checked\n", "{ended:#?}");
        let sent = sent_packets(&ended.stderr);
        assert!(sent >= FEWEST_PACKETS, "{sent} packets, not {FEWEST_PACKETS}: {ended:#?}");
    }
}

#[test]
fn sums_are_right_over_af_xdp() {
    play(run, "xdp");
}

#[test]
fn sums_are_right_as_nobody_over_udp_sockets() {
    play(run_as_nobody, "udp");
}

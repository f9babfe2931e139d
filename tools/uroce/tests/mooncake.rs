//! Mooncake's transfer engine, from its wheel, in two namespaces by `uroce run`: each end compares every byte that was written
//! or read.

use crate::common::compared::{Compared, OVER_UDP, OVER_XDP, Start};
use crate::common::programs::python;
use rxe_rig::VethPair;

/// What is written, and read: 16 MiB at the path MTU of 4096. The client sends the first, the server the second.
const FEWEST_PACKETS: u64 = (16 << 20) / 4096;

fn play(link: (Start, &str)) {
    const PORT: u16 = 18800;
    let pair = VethPair::create(4500).unwrap();
    let program = python("mooncake", "mooncake_engine.py");
    let [server, client] =
        [VethPair::A, VethPair::B].map(|end| format!("{program} {} {} {PORT}", end.interface, end.ipv4));
    let lines = [server, format!("{client} {}", VethPair::A.ipv4)];
    Compared { lines, port: PORT, fewest_packets: FEWEST_PACKETS }.play(link, [&pair.a, &pair.b], ["", ""]);
}

#[test]
fn engines_write_and_read_16_mib_over_af_xdp() {
    play(OVER_XDP);
}

#[test]
fn engines_write_and_read_16_mib_as_nobody_over_udp_sockets() {
    play(OVER_UDP);
}

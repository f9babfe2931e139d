//! NIXL's agents, from its wheel and with the UCX that is in it, in two namespaces by `uroce run`: each compares every byte that
//! it got by WRITE or READ.

use crate::common::compared::{Compared, OVER_UDP, OVER_XDP, Start};
use crate::common::programs::python;
use rxe_rig::VethPair;

/// What is written, and read: 64 MiB at the path MTU of 4096. The client sends the first, the server the second.
const FEWEST_PACKETS: u64 = (64 << 20) / 4096;

fn play(link: (Start, &str)) {
    const PORT: u16 = 18700;
    let pair = VethPair::create(4500).unwrap();
    let program = python("nixl", "nixl_agent.py");
    let [server, client] = [VethPair::A, VethPair::B].map(|end| {
        let variables = format!("UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES={}:1", end.interface);
        format!("env {variables} {program} {PORT}")
    });
    let lines = [server, format!("{client} {}", VethPair::A.ipv4)];
    Compared { lines, port: PORT, fewest_packets: FEWEST_PACKETS }.play(link, [&pair.a, &pair.b], ["", ""]);
}

#[test]
fn agents_write_and_read_64_mib_over_af_xdp() {
    play(OVER_XDP);
}

#[test]
fn agents_write_and_read_64_mib_as_nobody_over_udp_sockets() {
    play(OVER_UDP);
}

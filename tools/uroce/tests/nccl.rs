//! NCCL's network for verbs, from its wheel, without a GPU: a program calls the functions that NCCL itself calls, at both ends by
//! `uroce run`. Messages of 4 MiB go both ways at once, and every byte is compared.
//!
//! The wheel has 480 MB: these tests are of `cargo xtask test --full programs`, which fetches it.

mod common;

use std::path::{Path, PathBuf};

use common::compared::{Compared, OVER_UDP, OVER_XDP, Start};
use common::compiled::program_by;
use rxe_rig::{Netns, VethPair};

const PORT: u16 = 18900;

/// 8 rounds of 4 messages of 4 MiB, at the path MTU of 4096; each end sends as many.
const FEWEST_PACKETS: u64 = 8 * 4 * (4 << 20) / 4096;

/// The library in the environment that the set-up makes.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    let environments =
        std::fs::read_dir(target.join("nccl/lib")).expect("target/nccl (cargo xtask test --full programs)");
    let found = environments.flatten().map(|python| python.path().join("site-packages/nvidia/nccl/lib/libnccl.so.2"));
    found.filter(|library| library.exists()).last().expect("libnccl.so.2 is in target/nccl")
}

fn play(link: (Start, &str), namespaces: [&Netns; 2], interfaces: [&str; 2]) {
    let program = program_by("cc", "nccl", &["-O1", "-ldl"]);
    let line = |end: usize| {
        let variables = format!("NCCL_SOCKET_IFNAME={}", interfaces[end]);
        format!("env {variables} {} {} {PORT}", program.display(), library().display())
    };
    let lines = [line(0), format!("{} {}", line(1), VethPair::A.ipv4)];
    let devices = interfaces.map(|interface| format!("--dev {interface}"));
    let compared = Compared { lines, port: PORT, fewest_packets: FEWEST_PACKETS };
    compared.play(link, namespaces, devices.each_ref().map(String::as_str));
}

#[test]
fn two_hosts_exchange_messages_over_both_links() {
    let pair = VethPair::create(4500).unwrap();
    for link in [OVER_XDP, OVER_UDP] {
        play(link, [&pair.a, &pair.b], [VethPair::A.interface, VethPair::B.interface]);
    }
}

#[test]
fn two_programs_on_one_device_exchange_messages_over_both_links() {
    let pair = VethPair::create(4500).unwrap();
    for link in [OVER_XDP, OVER_UDP] {
        play(link, [&pair.a, &pair.a], [VethPair::A.interface; 2]);
    }
}

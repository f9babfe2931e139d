//! The binary alone in an empty folder, as `cargo install` leaves it: `uroce run` plays with the library that is in it.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;

use common::captures::scratch;
use common::programs::{UROCE, start, wait_for_listener};
use rxe_rig::VethPair;

const PORT: u16 = 18515;

#[test]
fn the_binary_alone_runs_two_programs_and_leaves_nothing() {
    let pair = VethPair::create(1500).unwrap();
    let (folder, temporary) = (scratch("alone"), scratch("alone-temporary"));
    for made in [&folder, &temporary] {
        let _ = fs::remove_dir_all(made);
        fs::create_dir_all(made).unwrap();
    }
    let binary = folder.join("uroce");
    fs::copy(UROCE, &binary).unwrap();
    let play = |words: &[&str]| {
        let mut command = pair.a.command(binary.to_str().unwrap());
        command.env("TMPDIR", &temporary);
        let ours = ["run", "--link", "udp", "--dev", "lo", "ibv_rc_pingpong", "-g", "0", "-n", "100"];
        start(command, &[&ours, words].concat())
    };
    let server = play(&[]);
    wait_for_listener(&pair.a, PORT);
    let client = play(&["127.0.0.1"]);
    for side in [client, server] {
        let ended = side.end().succeeded();
        assert!(ended.stdout.contains("100 iters"), "{ended:#?}");
    }
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "a folder was left");
}

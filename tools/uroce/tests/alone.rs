//! The binary alone in an empty folder, as `cargo install` leaves it: `uroce run` plays with the library that is in it.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

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

/// Runs `sh` under uroce where `noexec` are mounted so; what it preloads is on stdout.
fn preloaded(noexec: &[&Path], variables: [(&str, &Path); 3]) -> Output {
    let script = "for folder in \"$@\"; do mount -t tmpfs -o noexec none \"$folder\"; done
        exec \"$UROCE\" run --dev lo sh -c 'echo \"$LD_PRELOAD\"'";
    let folder = scratch("alone-noexec-binary");
    let _ = fs::create_dir_all(&folder);
    let binary = folder.join("uroce");
    fs::copy(UROCE, &binary).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]).args(noexec).envs(variables).env("UROCE", &binary);
    command.output().unwrap()
}

#[test]
fn where_the_temporary_folder_is_noexec_the_library_goes_elsewhere_or_it_is_said_what_was_tried() {
    let [temporary, runtime, cache] = ["tmp", "run", "cache"].map(|name| scratch(&format!("alone-noexec-{name}")));
    for folder in [&temporary, &runtime, &cache] {
        fs::create_dir_all(folder).unwrap();
    }
    let variables = [("TMPDIR", &*temporary), ("XDG_RUNTIME_DIR", &*runtime), ("XDG_CACHE_HOME", &*cache)];
    let output = preloaded(&[&temporary], variables);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(Path::new(said.trim()).starts_with(runtime.canonicalize().unwrap()), "{output:?}");
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0, "a folder was left");
    let shared = Path::new("/dev/shm");
    let output = preloaded(&[&temporary, &runtime, shared], variables);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(Path::new(said.trim()).starts_with(cache.canonicalize().unwrap()), "{output:?}");
    let all = [&*temporary, &*runtime, shared, &*cache];
    let output = preloaded(&all, variables);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    for folder in all {
        assert!(said.contains(&folder.canonicalize().unwrap().display().to_string()), "{said}");
    }
}

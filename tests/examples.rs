//! The examples as programs of their own. Each compares what arrived with what was sent, and fails when that differs.
//!
//! Those that end by themselves have no capability here, and a loopback of their own where the kernel gives one to who asks. The
//! one of two programs needs root, for two hosts.
#![allow(clippy::disallowed_methods, reason = "programs on the wall clock")]

#[allow(unused_macros, reason = "for tests of the transport")]
mod common;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};

/// Where cargo leaves it: beside the folder that this test is in.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its file");
    let file = own.parent().and_then(|deps| deps.parent()).expect("target/…/deps").join("examples").join(name);
    assert!(file.exists(), "{} is not there: `cargo build --examples` makes it", file.display());
    file
}

/// A network namespace of one's own, in which nobody else has the loopback's port; and no capabilities.
const ALONE: &[&str] = &["unshare", "--map-root-user", "--net", "sh", "-c"];
const SCRIPT: &str = "ip link set lo up && exec setpriv --bounding-set=-all --inh-caps=-all \"$0\"";

fn is_alone_possible() -> bool {
    let tried = Command::new(ALONE[0]).args(&ALONE[1..]).args([SCRIPT, "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// What it prints, if it succeeds.
fn check(name: &str, output: &Output) -> String {
    let [said, complained] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{name}: {}\n{said}{complained}", output.status);
    said
}

#[test]
fn examples_that_end_by_themselves_do_and_what_they_sent_arrived() {
    let is_alone = is_alone_possible();
    for (name, says) in [
        ("write", "11 bytes written over lo (udp)"),
        ("events", "8 messages of 1000 bytes received"),
        ("sans_io", "10000 bytes written in "),
    ] {
        let mut command = match is_alone {
            true => Command::new(ALONE[0]),
            false => Command::new(example(name)),
        };
        if is_alone {
            command.args(&ALONE[1..]).arg(SCRIPT).arg(example(name));
        }
        for variable in ["UROCE_DEV", "UROCE_LINK", "UROCE_CAPTURE", "UROCE_FAULT"] {
            command.env_remove(variable);
        }
        let said = check(name, &command.output().unwrap_or_else(|error| panic!("{name}: {error}")));
        assert!(said.contains(says), "{name} says {said:?}, not {says:?}");
    }
}

#[test]
fn two_programs_find_each_other_by_a_line_of_text() {
    let pair = Pair::new(PairOptions::default());
    let play = |arguments: &[&str]| {
        let mut command = Command::new(example("pingpong"));
        command.args(arguments).env("UROCE_DEV", "veth0").env("UROCE_LINK", "udp");
        command
    };
    let mut serve = play(&[]);
    let server = pair.spawn(0, move || serve.output().expect("it starts"));
    let start = Instant::now();
    let client = loop {
        let mut join = play(&["10.7.0.1"]);
        let output = pair.within(1, move || join.output().expect("it starts"));
        let is_early = String::from_utf8_lossy(&output.stderr).contains("ConnectionRefused");
        if !is_early || start.elapsed() > Duration::from_secs(60) {
            break output;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    for (name, output) in [("client", client), ("server", server.join().unwrap())] {
        let said = check(name, &output);
        assert!(said.contains("1000 round trips of 1000 bytes"), "{name} says {said:?}");
    }
}

//! UCX, as Debian has it, on this stack: it looks for the device's node before it asks libibverbs, and takes TCP in silence
//! when that is missing. So the frames are counted.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use crate::common::programs::{Ended, Running, UROCE, run, run_as_nobody, sent_packets, wait_for_listener};
use rxe_rig::{Netns, VethPair};

const PORT: u16 = 13337;

/// UCX's tests of tagged messages, RDMA and active messages, and how many times each is played.
const TESTS: [(&str, u64); 5] =
    [("tag_lat", 2000), ("tag_bw", 500), ("ucp_put_bw", 500), ("ucp_get", 500), ("ucp_am_bw", 500)];

/// Plays each test between both hosts; `before` are words before each program, given its device.
fn play(start: impl Fn(&Netns, &str) -> Running, before: impl Fn(&str) -> String, pair: &VethPair, link: &str) {
    for (test, iterations) in TESTS {
        let line = |device: &str, host: &str| {
            let before = before(device);
            format!("--link {link} --trace -- {before} ucx_perftest -t {test} -s 10000 -n {iterations} -w 10 {host}")
        };
        let server = start(&pair.a, &line(VethPair::A.interface, ""));
        wait_for_listener(&pair.a, PORT);
        let client = start(&pair.b, &line(VethPair::B.interface, &VethPair::A.ipv4.to_string()));
        let ended = [client.end(), server.end()].map(Ended::succeeded);
        // Each message of 10,000 bytes takes three packets or more at path MTU 4096, from one side or the other.
        let sent: u64 = ended.iter().map(|ended| sent_packets(&ended.stderr)).sum();
        assert!(sent > 3 * iterations, "{test}: {sent} packets: {ended:#?}");
    }
}

fn verbs_only(device: &str) -> String {
    format!("env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES={device}:1")
}

#[test]
fn ucx_finds_the_device_by_itself_over_af_xdp() {
    play(run, verbs_only, &VethPair::create(4500).unwrap(), "xdp");
}

/// In namespaces of their own for processes and for what these have in common, as containers have them: elsewhere UCX
/// rightly takes shared memory. TCP would do, too.
#[test]
fn ucx_without_any_variable_chooses_the_device_between_containers() {
    let apart = |_: &str| "unshare --ipc --pid --fork --mount-proc --kill-child".to_owned();
    play(run, apart, &VethPair::create(4500).unwrap(), "xdp");
}

#[test]
fn ucx_finds_the_device_by_itself_as_nobody_over_udp_sockets() {
    play(run_as_nobody, verbs_only, &VethPair::create(4500).unwrap(), "udp");
}

/// `uroce run` tells UCX from where on to send without a copy and how its threads wait, unless somebody else has, and says so
/// once.
#[test]
fn what_is_set_for_ucx_is_said_once_and_only_when_it_was_set() {
    let pair = VethPair::create(4500).unwrap();
    let told = run(&pair.a, "--link xdp -- ucx_info -d").end().succeeded();
    let both = "uroce: UCX_ZCOPY_THRESH=8256, UCX_USE_MT_MUTEX=y for UCX";
    assert_eq!(told.stderr.matches(both).count(), 1, "{told:#?}");
    // Set for `uroce run` itself, they stay what they are.
    let with = |variables: &[(&str, &str)]| {
        let mut command = pair.a.command(UROCE);
        command.envs(variables.iter().copied()).args(["run", "--link", "xdp", "ucx_info", "-d"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let one = with(&[("UCX_ZCOPY_THRESH", "auto")]);
    assert!(one.contains("uroce: UCX_USE_MT_MUTEX=y for UCX"), "{one}");
    let none = with(&[("UCX_ZCOPY_THRESH", "auto"), ("UCX_USE_MT_MUTEX", "n")]);
    assert!(!none.contains("for UCX"), "{none}");
}

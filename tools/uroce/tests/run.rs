//! `uroce run`: Debian's verbs programs, as they are, on this stack, over AF_XDP on a veth between two namespaces; C programs
//! for what those leave out; and what it says when it cannot.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::programs::{Ended, run, run_as_nobody, uroce, wait_for_listener};
use rxe_rig::VethPair;

const PORT: u16 = 18515;

/// Options of every perftest program: processors may be slow, and busy for long (a timeout of half a second).
const PERFTEST: &str = "-F -u 17";

/// A program of a server and a client: the same line on both sides, the client's host added.
fn play(pair: &VethPair, line: &str) -> [Ended; 2] {
    let server = run(&pair.a, line);
    wait_for_listener(&pair.a, PORT);
    let client = run(&pair.b, &format!("{line} {}", VethPair::A.ipv4));
    [client.end(), server.end()].map(Ended::succeeded)
}

/// Compiles a C program, with `flags` at the end of the line.
fn compile(name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("cc");
    command
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-g", "-o"])
        .arg(&binary)
        .arg(source)
        .args(flags);
    let compiled = command.output().unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "libibverbs-dev is needed (cargo xtask setup): {errors}");
    binary
}

fn program(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    compile(name, &source, &["-libverbs", "-lpthread"])
}

/// Compiles a program of one line.
fn little(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    compile(name, &source, flags)
}

#[test]
fn devices_are_listed_and_described() {
    let pair = VethPair::create(4500).unwrap();
    let listed = run(&pair.a, "ibv_devices").end().succeeded();
    assert!(listed.stdout.contains("uroce0") && listed.stdout.contains("007800fffe000001"), "{listed:#?}");
    let described = run(&pair.a, "--mtu 2048 ibv_devinfo -v").end().succeeded();
    for words in
        ["hca_id:\turoce0", "PORT_ACTIVE", "active_mtu:\t\t2048", "::ffff:10.78.0.1, RoCE v2", "fd78::1, RoCE v2"]
    {
        assert!(described.stdout.contains(words), "no {words:?}: {described:#?}");
    }
}

#[test]
fn the_pingpongs_of_every_transport_play_polling_and_sleeping() {
    let pair = VethPair::create(1500).unwrap();
    for program in ["rc", "uc", "ud", "srq"] {
        for options in ["-g 1", "-g 2 -e"] {
            play(&pair, &format!("ibv_{program}_pingpong {options} -n 300 -s 1024"));
        }
    }
    let [client, _] = play(&pair, "ibv_rc_pingpong -g 1 -c -s 100000 -n 50");
    assert!(!client.stdout.contains("invalid data"), "{client:#?}");
}

#[test]
fn perftest_measures_every_operation() {
    let pair = VethPair::create(4500).unwrap();
    for operation in ["write", "read", "send", "atomic"] {
        for kind in ["bw", "lat"] {
            play(&pair, &format!("ib_{operation}_{kind} {PERFTEST} -n 200"));
        }
    }
    for line in [
        "ib_write_bw -n 5 -a -q 2 -b",
        "ib_read_bw -n 100 -q 4 -x 2",
        "ib_send_bw -n 200 -e",
        "ib_send_lat -n 200 --use-srq",
        "ib_send_bw -n 200 -c UD",
        "ib_write_bw -n 200 -c UC",
        "ib_send_lat -D 1",
    ] {
        play(&pair, &format!("{line} {PERFTEST}"));
    }
}

#[test]
fn a_user_without_any_capability_runs_them_over_udp_sockets() {
    let pair = VethPair::create(4500).unwrap();
    let listed = run_as_nobody(&pair.a, "ibv_devices").end().succeeded();
    assert!(listed.stdout.contains("uroce0"), "{listed:#?}");
    let described = run_as_nobody(&pair.a, "ibv_devinfo -v").end().succeeded();
    assert!(described.stdout.contains("active_mtu:\t\t4096"), "{described:#?}");
    let pingpongs = ["rc", "uc", "ud", "srq"].into_iter().flat_map(|program| {
        ["-g 1", "-g 2 -e"].map(|options| format!("ibv_{program}_pingpong {options} -n 100 -s 1000"))
    });
    let others = ["ibv_rc_pingpong -g 1 -c -n 200", "ib_write_bw -n 200 -F -u 17", "ib_read_lat -n 200 -F -u 17"];
    let lines = pingpongs.chain(others.map(str::to_owned));
    for line in lines {
        let server = run_as_nobody(&pair.a, &line);
        wait_for_listener(&pair.a, PORT);
        let client = run_as_nobody(&pair.b, &format!("{line} {}", VethPair::A.ipv4));
        for side in [client, server] {
            let ended = side.end().succeeded();
            assert!(ended.stderr.contains("over UDP sockets"), "{ended:#?}");
        }
    }
}

#[test]
fn uroces_own_pingpong_plays_with_ibv_rc_pingpong() {
    let pair = VethPair::create(1500).unwrap();
    let server = run(&pair.a, "ibv_rc_pingpong -g 1 -c -n 200");
    wait_for_listener(&pair.a, PORT);
    let client = uroce(&pair.b, &["pingpong", "-c", "-n", "200", &VethPair::A.ipv4.to_string()]);
    let _ = [client.end(), server.end()].map(Ended::succeeded);
}

#[test]
fn a_capture_has_every_frame_although_the_program_just_exits() {
    let pair = VethPair::create(1500).unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run.pcap");
    let server = run(&pair.a, "ibv_rc_pingpong -g 1 -n 100 -s 100");
    wait_for_listener(&pair.a, PORT);
    let line = format!("--capture {} ibv_rc_pingpong -g 1 -n 100 -s 100 {}", file.display(), VethPair::A.ipv4);
    let client = run(&pair.b, &line);
    let _ = [client.end(), server.end()].map(Ended::succeeded);
    let decoded = Command::new(env!("CARGO_BIN_EXE_uroce")).args(["decode", "--json"]).arg(&file).output().unwrap();
    assert!(decoded.status.success(), "{decoded:#?}");
    let sends: Vec<serde_json::Value> = String::from_utf8(decoded.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|frame: &serde_json::Value| frame["opcode"] == "RC_SEND_ONLY")
        .collect();
    // A hundred messages to the peer and a hundred back; one may be sent again on a busy machine.
    assert!(sends.len() >= 200, "{} SENDs in the capture", sends.len());
}

#[test]
fn handles_that_are_none_are_errors_and_never_a_crash() {
    let pair = VethPair::create(1500).unwrap();
    let ended = run(&pair.a, &program("handles").display().to_string()).end().succeeded();
    assert_eq!(ended.stdout, "all handles checked\n", "{ended:#?}");
}

#[test]
fn extended_verbs_and_events_work_between_queue_pairs_of_one_program() {
    let pair = VethPair::create(1500).unwrap();
    let ended = run(&pair.a, &program("extended").display().to_string()).end().succeeded();
    assert_eq!(ended.stdout, "all extended verbs checked\n", "{ended:#?}");
}

#[test]
fn it_exits_as_the_program_does() {
    let pair = VethPair::create(1500).unwrap();
    for (code, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)] {
        let ended = uroce(&pair.a, &["run", "--", "sh", "-c", code]).end();
        assert_eq!(ended.status.code(), Some(expected), "{ended:#?}");
    }
    // A signal that is sent to uroce is meant for the program.
    let sleeper = run(&pair.a, "sleep 100");
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let children = format!("/proc/{0}/task/{0}/children", sleeper.id());
    while std::fs::read_to_string(&children).unwrap_or_default().is_empty() {
        assert!(std::time::Instant::now() < end, "the program did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: a process of ours.
    unsafe { libc::kill(sleeper.id() as i32, libc::SIGTERM) };
    assert_eq!(sleeper.end().status.code(), Some(143));
}

#[test]
fn why_a_program_cannot_run_is_one_line() {
    let pair = VethPair::create(1500).unwrap();
    let fails = |line: &str, words: &[&str]| run(&pair.a, line).end().failed(125, words);
    fails("--dev nosuch ibv_devices", &["nosuch", "uroce0"]);
    fails("no-such-program", &["no-such-program", "PATH"]);
    fails("/no/such/program", &["/no/such/program", "No such file"]);
    fails("/etc/passwd", &["/etc/passwd", "executable"]);
    let main = "int main(void) { return 0; }\n";
    let fixed = little("static-program", main, &["-static"]);
    fails(&fixed.display().to_string(), &["static", "dynamically"]);
    // A program of a later libibverbs: linked with one that has more.
    let later = "void ibv_of_the_future(void) {}\n";
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("future.map");
    std::fs::write(&script, "IBVERBS_1.99 { global: ibv_of_the_future; };\n").unwrap();
    let version = format!("-Wl,--version-script={}", script.display());
    let future = little("libfuture.so", later, &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &version]);
    let caller = "void ibv_of_the_future(void); int main(void) { ibv_of_the_future(); return 0; }\n";
    let caller = little("future", caller, &[&future.display().to_string()]);
    fails(&caller.display().to_string(), &["future", "IBVERBS_1.99"]);
    // The system's library as well, by its path.
    let both = "#include <dlfcn.h>\n#include <infiniband/verbs.h>\n\
                int main(void) { int n; return !dlopen(\"/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\", RTLD_NOW) \
                || !ibv_get_device_list(&n); }\n";
    let both = little("both", both, &["-libverbs"]);
    fails(&both.display().to_string(), &["libibverbs.so.1.14", "beside"]);
    run(&pair.a, "--mtu 1500 true").end().failed(2, &["256"]);
}

#[test]
fn a_setuid_program_of_another_user_is_refused() {
    let pair = VethPair::create(1500).unwrap();
    let binary = little("setuid-program", "int main(void) { return 0; }\n", &[]);
    std::os::unix::fs::chown(&binary, Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(&binary, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    run(&pair.a, &binary.display().to_string()).end().failed(125, &["setuid"]);
}

#[test]
fn the_trace_says_why_a_verb_failed() {
    let pair = VethPair::create(1500).unwrap();
    // Without -g the GID is all zeros, which RoCE cannot use: the program only says that it failed.
    let server = run(&pair.a, "--trace ibv_rc_pingpong -n 1");
    wait_for_listener(&pair.a, PORT);
    let client = run(&pair.b, &format!("ibv_rc_pingpong -n 1 {}", VethPair::A.ipv4));
    let (client, server) = (client.end(), server.end());
    assert!(!client.status.success() && !server.status.success(), "{client:#?}{server:#?}");
    for words in ["ibv_open_device: 0x", "ibv_modify_qp: is_global is 0"] {
        assert!(server.stderr.contains(words), "no {words:?}: {server:#?}");
    }
}

#[test]
fn the_trace_ends_with_what_was_counted() {
    let pair = VethPair::create(1500).unwrap();
    let [client, server] = play(&pair, "--trace ibv_uc_pingpong -g 1 -n 20 -s 5000");
    for (side, name) in [(client, "uroce1"), (server, "uroce0")] {
        let last = side.stderr.lines().find(|line| line.starts_with(&format!("uroce: {name}: ")));
        // Twenty messages of five packets each way.
        let counts = last.is_some_and(|line| line.contains(" sent_pkts 100, rcvd_pkts 100,"));
        assert!(counts, "{side:#?}");
    }
    // Who opens no link has counted nothing.
    let ended = run(&pair.a, "--trace ibv_devinfo").end().succeeded();
    assert!(!ended.stderr.contains("sent_pkts"), "{ended:#?}");
}

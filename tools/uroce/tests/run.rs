//! `uroce run`: Debian's verbs programs, as they are, on this stack, over AF_XDP on a veth between two namespaces; and what it
//! says when it cannot.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::captures::scratch;
use crate::common::compiled::little;
use crate::common::programs::{Ended, Running, UROCE, run, run_as_nobody, start, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair};

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
fn it_exits_as_the_program_does() {
    let pair = VethPair::create(1500).unwrap();
    for (code, expected) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)] {
        let ended = uroce(&pair.a, &["run", "--", "sh", "-c", code]).end();
        assert_eq!(ended.status.code(), Some(expected), "{ended:#?}");
    }
    // A signal that is sent to uroce is meant for the program.
    let sleeper = run(&pair.a, "sleep 100");
    let end = std::time::Instant::now() + Duration::from_secs(20);
    // Its first child looks at the program's symbols: a signal that comes that early ends uroce, and no program starts.
    let children = format!("/proc/{0}/task/{0}/children", sleeper.id());
    let is_program =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    while !std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().any(is_program) {
        assert!(std::time::Instant::now() < end, "the program did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
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
    // What Go's linker leaves in its programs.
    let note = "__asm__(\".section .note.go.buildid,\\\"a\\\",@note\\n.long 4, 4, 4\\n.asciz \\\"Go\\\"\\n.byte 0\\n.long 7\\n.text\");\n";
    let go = little("go-program", &format!("{note}{main}"), &["-static"]);
    fails(&go.display().to_string(), &["Go program", "CGO_ENABLED=1"]);
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

#[test]
fn the_trace_leaves_out_that_there_is_no_event_yet() {
    let pair = VethPair::create(1500).unwrap();
    let text = "#include <errno.h>\n#include <fcntl.h>\n#include <infiniband/verbs.h>\n\
                int main(void) { int n; struct ibv_context *c = ibv_open_device(ibv_get_device_list(&n)[0]);\n\
                struct ibv_comp_channel *h = ibv_create_comp_channel(c); struct ibv_cq *q; void *x;\n\
                struct ibv_async_event e; fcntl(h->fd, F_SETFL, O_NONBLOCK); fcntl(c->async_fd, F_SETFL, O_NONBLOCK);\n\
                for (n = 0; n < 9; n++) if (ibv_get_cq_event(h, &q, &x) != -1 || errno != EAGAIN\n\
                || ibv_get_async_event(c, &e) != -1 || errno != EAGAIN) return 1;\n\
                ibv_get_cq_event(h, 0, 0); ibv_get_async_event(c, 0); return 0; }\n";
    let file = little("no-event", text, &["-libverbs"]);
    let ended = run(&pair.a, &format!("--trace {}", file.display())).end().succeeded();
    for verb in ["ibv_get_cq_event", "ibv_get_async_event"] {
        // What is wrong is said all the same.
        let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains(verb)).collect();
        assert!(lines.len() == 1 && lines[0].contains("NULL"), "{lines:#?}");
    }
}

/// `uroce run` in a PID namespace of its own, where no other program's number means anything, with a folder for temporary
/// files that others use.
fn run_in_a_pid_namespace(namespace: &Netns, temporary: &Path, words: &[&str]) -> Running {
    let mut command = namespace.command("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", UROCE, "run"]).env("TMPDIR", temporary);
    start(command, words)
}

/// The folders in which programs find our library.
fn library_folders(temporary: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(temporary).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.join("libibverbs.so.1").exists()).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_containers_with_one_folder_for_temporary_files_do_not_meet() {
    let pair = VethPair::create(1500).unwrap();
    let temporary = scratch("two-containers");
    std::fs::create_dir_all(&temporary).unwrap();
    // Each is the same process of its own namespace.
    let go_on = temporary.join("go-on");
    std::fs::write(&go_on, "").unwrap();
    let script = format!("while [ -e {} ]; do sleep 0.01; done", go_on.display());
    let both = [0, 1].map(|_| run_in_a_pid_namespace(&pair.a, &temporary, &["sh", "-c", &script]));
    wait_until("each has a folder of its own", || library_folders(&temporary).len() == 2);
    std::fs::remove_file(&go_on).unwrap();
    for one in both {
        let ended = one.end().succeeded();
        assert_eq!(ended.stderr, "", "{ended:#?}");
    }
    assert_eq!(library_folders(&temporary), Vec::<PathBuf>::new());
}

#[test]
fn the_library_of_a_running_program_stays_and_that_of_a_dead_one_goes() {
    let pair = VethPair::create(1500).unwrap();
    let temporary = scratch("swept");
    std::fs::create_dir_all(&temporary).unwrap();
    // A folder of somebody else that is called alike.
    let others = temporary.join("uroce-run-abcdef");
    std::fs::create_dir_all(others.join("precious")).unwrap();
    let mut command = pair.a.command(UROCE);
    command.env("TMPDIR", &temporary);
    let sleeper = start(command, &["run", "sleep", "300"]);
    wait_until("its folder is there", || library_folders(&temporary).len() == 1);
    let folder = library_folders(&temporary).remove(0);
    run_in_a_pid_namespace(&pair.a, &temporary, &["true"]).end().succeeded();
    assert_eq!(library_folders(&temporary), std::slice::from_ref(&folder), "another namespace's program swept it");
    // Killed, it cannot tidy up; the next one does.
    sleeper.stop();
    wait_until("it is gone", || {
        let mut command = pair.a.command(UROCE);
        command.env("TMPDIR", &temporary);
        start(command, &["run", "true"]).end().succeeded();
        library_folders(&temporary).is_empty()
    });
    assert!(others.join("precious").exists());
}

#[test]
fn the_library_stays_for_what_the_program_left_running() {
    let pair = VethPair::create(1500).unwrap();
    let temporary = scratch("left-running");
    std::fs::create_dir_all(&temporary).unwrap();
    let go_on = temporary.join("go-on");
    // The child, and what it executes, outlive the program; its outputs are closed, so that the program's end is seen.
    let script = format!("(while [ -e {} ]; do sleep 0.01; done) >/dev/null 2>&1 &", go_on.display());
    std::fs::write(&go_on, "").unwrap();
    let in_folder = |words: &[&str]| {
        let mut command = pair.a.command(UROCE);
        command.env("TMPDIR", &temporary);
        start(command, &[&["run"], words].concat()).end().succeeded()
    };
    in_folder(&["sh", "-c", &script]);
    assert_eq!(library_folders(&temporary).len(), 1, "uroce has ended, the child goes on");
    in_folder(&["true"]);
    assert_eq!(library_folders(&temporary).len(), 1, "a later one left it alone");
    std::fs::remove_file(&go_on).unwrap();
    wait_until("the child has ended", || {
        in_folder(&["true"]);
        library_folders(&temporary).is_empty()
    });
}

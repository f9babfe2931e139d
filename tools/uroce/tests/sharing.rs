//! Several programs of one user on one device: they come and go in any order, and are killed; packets and requests for
//! connections find their program. With `--link xdp` the first has the interface over AF_XDP, and the others share it
//! over UDP sockets.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::processes::{kill, processes, program_of, signal, wait_until};
use crate::common::programs::{
    Running, UROCE, library, run, run_as_nobody, start, uroce, uroce_as_nobody, wait_for_listener,
};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until nobody shares a device in the namespace.
#[track_caller]
fn wait_for_the_end_of_the_arbiter(namespace: &Netns) {
    let is_gone = || processes(namespace, "uroce-arbiter").is_empty();
    wait_until(|| "the arbiter does not end".to_owned(), LIMIT, is_gone);
}

/// Starts an unmodified program over the link: as root over AF_XDP, as nobody over UDP sockets.
fn run_over(link: &str, place: &Netns, line: &str) -> Running {
    let line = format!("--link {link} -- {line}");
    if link == "udp" { run_as_nobody(place, &line) } else { run(place, &line) }
}

/// A server in namespace `a` that waits for a client at `port`.
fn serve(pair: &VethPair, link: &str, line: &str, port: u16) -> Running {
    let mut server = run_over(link, &pair.a, &format!("{line} -p {port}"));
    server.listens(&pair.a, port, LIMIT).unwrap();
    server
}

/// Its client.
fn ask(place: &Netns, link: &str, line: &str, port: u16) -> Running {
    run_over(link, place, &format!("{line} -p {port} {}", VethPair::A.ipv4))
}

#[test]
fn one_of_four_is_killed_and_the_others_go_on() {
    one_is_killed("udp", 1);
}

#[test]
fn one_of_four_is_killed_and_the_others_go_on_beside_one_over_xdp() {
    one_is_killed("xdp", 1);
}

/// The others have sockets, and go on over them. Who comes next has AF_XDP again.
#[test]
fn the_one_over_xdp_is_killed_and_the_others_go_on() {
    one_is_killed("xdp", 0);
}

/// Two pairs of ib_write_bw and a conversation on one host, at once. The server of one pair is killed.
fn one_is_killed(link: &str, victim: usize) {
    let pair = VethPair::create(4500).unwrap();
    let write = "ib_write_bw -F -D 4 -s 65536";
    let mut pairs: Vec<(Running, Running)> = Vec::new();
    for port in [18601, 18602] {
        pairs.push((serve(&pair, link, write, port), ask(&pair.b, link, write, port)));
    }
    let pingpong = "ibv_rc_pingpong -g 1 -n 4000 -c";
    let local = (serve(&pair, link, pingpong, 18603), ask(&pair.a, link, pingpong, 18603));
    std::thread::sleep(Duration::from_millis(1500));
    kill(program_of(&pairs[victim].0));
    // Its slot and its place in the group are free, and another program comes at once.
    let third = (serve(&pair, link, pingpong, 18604), ask(&pair.b, link, pingpong, 18604));
    let (server, client) = pairs.remove(victim);
    for (server, client) in [third, local, pairs.remove(0)] {
        client.end().succeeded();
        server.end().succeeded();
    }
    // 128 and SIGKILL, as a shell says it.
    assert_eq!(server.end().status.code(), Some(137));
    assert!(!client.end().status.success());
    for namespace in [&pair.a, &pair.b] {
        wait_for_the_end_of_the_arbiter(namespace);
    }
    // Nothing is left: AF_XDP has the device now, and nobody else has any of it.
    let line = ["pingpong", "-c", "-n", "100", "--link", "xdp", "--exclusive"];
    let server = uroce(&pair.a, &line);
    wait_for_listener(&pair.a, 18515);
    uroce(&pair.b, &[&line[..], &[&VethPair::A.ipv4.to_string()]].concat()).end().succeeded();
    server.end().succeeded();
}

/// One that takes no packets any more, while its peer goes on sending, fills its own socket or ring, and nobody else's.
#[test]
fn a_stopped_program_does_not_stop_the_others() {
    for link in ["udp", "xdp"] {
        let pair = VethPair::create(4500).unwrap();
        let flood = "ib_send_bw -c UC -F -D 120 -s 65536";
        let stopped = (serve(&pair, link, flood, 18601), ask(&pair.b, link, flood, 18601));
        std::thread::sleep(Duration::from_millis(1000));
        signal(program_of(&stopped.0), Signal::STOP);
        let pingpong = "ibv_rc_pingpong -g 1 -n 500 -c";
        for place in [&pair.b, &pair.a] {
            let server = serve(&pair, link, pingpong, 18602);
            ask(place, link, pingpong, 18602).end().succeeded();
            server.end().succeeded();
        }
        // Both still ran while the others did.
        for program in [stopped.0, stopped.1] {
            kill(program_of(&program));
            program.stop();
        }
    }
}

#[test]
fn connections_go_on_without_the_arbiter_and_newcomers_are_told() {
    let pair = VethPair::create(4500).unwrap();
    // Long enough for a newcomer to come while they last, on a busy machine, too.
    let line = "ibv_rc_pingpong -g 1 -n 20000 -c";
    let two: Vec<Running> = [18601, 18602].map(|port| serve(&pair, "udp", line, port)).into();
    let arbiters = processes(&pair.a, "uroce-arbiter");
    assert_eq!(arbiters.len(), 1);
    let clients = [18601, 18602].map(|port| ask(&pair.b, "udp", line, port));
    kill(arbiters[0]);
    let refused = uroce_as_nobody(&pair.a, &["pingpong", "--link", "udp", "-p", "18700"]).end();
    refused.failed(1, &["uroce0", "ibv_rc_pingpong", "4791"]);
    for program in clients.into_iter().chain(two) {
        program.end().succeeded();
    }
    let server = serve(&pair, "udp", line, 18603);
    ask(&pair.b, "udp", line, 18603).end().succeeded();
    server.end().succeeded();
}

#[test]
fn other_users_and_who_wants_it_alone_are_refused() {
    let pair = VethPair::create(1500).unwrap();
    let second = ["pingpong", "--link", "udp", "-p", "18700"];
    let server = uroce(&pair.a, &["pingpong", "--link", "udp"]);
    wait_for_listener(&pair.a, 18515);
    uroce_as_nobody(&pair.a, &second).end().failed(1, &["uroce0", "of another user"]);
    let exclusive = [&second[..], &["--exclusive"]].concat();
    let name = format!("process {} (uroce)", server.id());
    uroce(&pair.a, &exclusive).end().failed(1, &["uroce0", &name]);
    server.stop();
    wait_for_the_end_of_the_arbiter(&pair.a);
    // The other way round.
    let server = uroce(&pair.a, &["pingpong", "--link", "udp", "--exclusive"]);
    wait_for_listener(&pair.a, 18515);
    let name = format!("process {} (uroce)", server.id());
    uroce(&pair.a, &second).end().failed(1, &["uroce0", &name]);
    assert!(processes(&pair.a, "uroce-arbiter").is_empty());
    server.stop();
}

/// REQs find who listens, replies who asked; what nobody listens for is rejected, also when its listener was killed.
#[test]
fn requests_for_connections_find_the_program_that_listens() {
    requests_find_who_listens("udp");
}

#[test]
fn requests_for_connections_find_the_program_that_listens_beside_one_over_xdp() {
    requests_find_who_listens("xdp");
}

fn requests_find_who_listens(link: &str) {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let listen = |port: u16| {
        let mut server = run(&pair.a, &format!("--link {link} --trace -- rping -s -p {port} -C 20 -V"));
        server.prints(&["rdma_listen: done", "rdma_listen: "], LIMIT).unwrap();
        server
    };
    let connect =
        |place: &Netns, port: u16| run(place, &format!("--link {link} -- rping -c -a {host} -p {port} -C 20 -V"));
    let is_rejected = |place: &Netns, port: u16| {
        let ended = connect(place, port).end();
        assert!((ended.stderr.clone() + &ended.stdout).contains("RDMA_CM_EVENT_REJECTED, error 8"), "{ended:#?}");
    };
    let servers = [7001, 7002].map(listen);
    let ended = run(&pair.a, &format!("--link {link} -- rping -s -p 7002")).end();
    assert!(!ended.status.success() && ended.stderr.contains("Address already in use"), "{ended:#?}");
    let stays = listen(7003);
    is_rejected(&pair.b, 7004);
    is_rejected(&pair.a, 7004);
    // From another host, and from a program on the same device.
    for (port, server) in [7001, 7002].into_iter().zip(servers) {
        let place = if port == 7001 { &pair.b } else { &pair.a };
        connect(place, port).end().succeeded();
        server.end().succeeded();
    }
    let killed = listen(7005);
    kill(program_of(&killed));
    assert_eq!(killed.end().status.code(), Some(137));
    is_rejected(&pair.b, 7005);
    connect(&pair.b, 7003).end().succeeded();
    stays.end().succeeded();
}

/// A program that starts the arbiter gets no child by it, and no descriptor of its stays open.
#[test]
fn the_arbiter_is_nobodys_child_and_holds_nobodys_pipes() {
    let pair = VethPair::create(1500).unwrap();
    // The shell reads until the last writer of the pipe is gone, and `wait` waits for all children.
    let line = format!(
        "{0} pingpong --link udp & server=$!; sleep 1; timeout 20 {0} pingpong --link udp -p 18700 >/dev/null 2>&1 & \
         sleep 1; kill $server; wait $server; echo gone",
        crate::common::programs::UROCE
    );
    let began = Instant::now();
    let ended = start(pair.a.command("sh"), &["-c", &line]).end();
    assert!(ended.stdout.contains("gone"), "{ended:#?}");
    assert!(began.elapsed() < Duration::from_secs(10), "its output was closed when it ended: {:?}", began.elapsed());
    // The second program shares the device, so its arbiter is there.
    let arbiters = processes(&pair.a, "uroce-arbiter");
    assert_eq!(arbiters.len(), 1);
    let status = fs::read_to_string(format!("/proc/{}/status", arbiters[0])).unwrap();
    assert!(status.lines().any(|line| line.starts_with("PPid:") && line.ends_with("\t1")), "{status}");
    processes(&pair.a, "uroce").into_iter().for_each(kill);
    wait_for_the_end_of_the_arbiter(&pair.a);
}

/// Who rebuilds uroce deletes the file that programs start the arbiter from. They have the device alone then, at once.
#[test]
fn an_arbiter_that_cannot_be_executed_is_not_waited_for() {
    let pair = VethPair::create(1500).unwrap();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sharing-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let copy = folder.join("uroce");
    fs::hard_link(UROCE, &copy).unwrap();
    fs::hard_link(library(), folder.join("liburoce_verbs.so")).unwrap();
    let line = format!("rm {}; exec ibv_devinfo -v", copy.display());
    let began = Instant::now();
    let ended = start(pair.a.command(&copy), &["run", "--link", "udp", "--", "sh", "-c", &line]).end().succeeded();
    let elapsed = began.elapsed();
    assert!(ended.stdout.contains("PORT_ACTIVE"), "{ended:#?}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}: {ended:#?}");
    assert!(processes(&pair.a, "uroce-arbiter").is_empty());
    fs::remove_dir_all(&folder).unwrap();
}

/// Runs of packets for two programs, the second of which comes while the first is busy: neither sees a packet that is
/// not its own or that is merged with another's. They cross the cable as one, or are cut apart by the sender's kernel
/// and merged as they arrive.
#[test]
fn runs_of_packets_find_their_program() {
    for (checksums, merges) in [("on", "off"), ("off", "on")] {
        let pair = VethPair::create(4500).unwrap();
        pair.b.exec("ethtool", &["-K", VethPair::B.interface, "tx", checksums]).unwrap();
        pair.a.exec("ethtool", &["-K", VethPair::A.interface, "gro", merges]).unwrap();
        let write = |seconds: &'static str, port: &'static str| {
            ["perf", "write-bw", "--link", "udp", "-s", "64k", "-D", seconds, "-p", port, "--json"]
        };
        let host = VethPair::A.ipv4.to_string();
        let mut games = Vec::new();
        for (words, port) in [(write("3", "18601"), 18601), (write("1", "18602"), 18602)] {
            let server = uroce(&pair.a, &words);
            wait_for_listener(&pair.a, port);
            games.push((server, uroce(&pair.b, &[&words[..], &[host.as_str()]].concat())));
            std::thread::sleep(Duration::from_millis(500));
        }
        let mut in_runs = Vec::new();
        for (server, client) in games {
            let client = client.end().succeeded();
            let server = server.end().succeeded();
            let counted = |text: &str, name: &str| {
                let result: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
                result["counters"][name].as_u64().unwrap_or(0)
            };
            for name in ["unknown_qpn", "bad_icrc", "malformed", "rx_too_long", "rx_identification_refused"] {
                let counts = [&client, &server].map(|side| counted(&side.stdout, name));
                assert_eq!(counts, [0, 0], "{name}: {client:#?} {server:#?}");
            }
            in_runs.push((counted(&client.stdout, "tx_run_frames"), counted(&server.stdout, "rx_run_frames")));
        }
        // The first was alone for a while, and with runs that cross the cable as one it took some.
        let [(sent, received), (others_sent, _)] = in_runs[..] else { panic!("{in_runs:?}") };
        assert!(sent > 0 && others_sent > 0 && (checksums == "off" || received > 0), "{in_runs:?}");
    }
}

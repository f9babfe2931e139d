//! Several programs of one user on one device, over UDP sockets: they come and go in any order, and are killed; packets and
//! requests for connections find their program.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::programs::{Running, run, run_as_nobody, start, uroce, uroce_as_nobody, wait_for_listener};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(60);

/// Processes whose numbers the kernel tells in the namespace, by their names.
fn processes(namespace: &Netns, name: &str) -> Vec<u32> {
    let network = |process: PathBuf| fs::read_link(process.join("ns/net"));
    let own = namespace.run(|| network("/proc/thread-self".into())).unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_it = |process: &PathBuf| {
        fs::read_to_string(process.join("comm")).is_ok_and(|text| text.trim_end() == name)
            && network(process.clone()).is_ok_and(|its| its == own)
    };
    all.filter(is_it).filter_map(|process| process.file_name()?.to_str()?.parse().ok()).collect()
}

fn kill(process: u32) {
    let process = rustix::process::Pid::from_raw(process as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// Waits until nobody shares a device in the namespace.
#[track_caller]
fn wait_for_the_end_of_the_arbiter(namespace: &Netns) {
    let end = Instant::now() + LIMIT;
    while !processes(namespace, "uroce-arbiter").is_empty() {
        assert!(Instant::now() < end, "the arbiter does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server in namespace `a` that waits for a client at `port`.
fn serve(pair: &VethPair, line: &str, port: u16) -> Running {
    let mut server = run_as_nobody(&pair.a, &format!("--link udp -- {line} -p {port}"));
    server.listens(&pair.a, port, LIMIT).unwrap();
    server
}

#[test]
fn one_of_four_is_killed_and_the_others_go_on() {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let ask =
        |place: &Netns, line: &str, port: u16| run_as_nobody(place, &format!("--link udp -- {line} -p {port} {host}"));
    let write = "ib_write_bw -F -D 4 -s 65536";
    let first = (serve(&pair, write, 18601), ask(&pair.b, write, 18601));
    let second = (serve(&pair, write, 18602), ask(&pair.b, write, 18602));
    let pingpong = "ibv_rc_pingpong -g 1 -n 4000 -c";
    let local = (serve(&pair, pingpong, 18603), ask(&pair.a, pingpong, 18603));
    std::thread::sleep(Duration::from_millis(1500));
    // The second one's server: it is the newest of that name.
    let servers = processes(&pair.a, "ib_write_bw");
    assert_eq!(servers.len(), 2, "both serve");
    kill(*servers.iter().max().unwrap());
    // Its slot and its place in the group are free, and another program comes at once.
    let third = (serve(&pair, pingpong, 18604), ask(&pair.b, pingpong, 18604));
    for (server, client) in [third, local, first] {
        client.end().succeeded();
        server.end().succeeded();
    }
    let (server, client) = second;
    // 128 and SIGKILL, as a shell says it.
    assert_eq!(server.end().status.code(), Some(137));
    assert!(!client.end().status.success());
    for namespace in [&pair.a, &pair.b] {
        wait_for_the_end_of_the_arbiter(namespace);
    }
    // Nothing is left: AF_XDP has the device now.
    let server = uroce(&pair.a, &["pingpong", "-c", "-n", "100", "--link", "xdp"]);
    wait_for_listener(&pair.a, 18515);
    uroce(&pair.b, &["pingpong", "-c", "-n", "100", "--link", "xdp", &host]).end().succeeded();
    server.end().succeeded();
}

#[test]
fn connections_go_on_without_the_arbiter_and_newcomers_are_told() {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let line = "ibv_rc_pingpong -g 1 -n 3000 -c";
    let two: Vec<Running> = [18601, 18602].map(|port| serve(&pair, line, port)).into();
    let arbiters = processes(&pair.a, "uroce-arbiter");
    assert_eq!(arbiters.len(), 1);
    let clients = [18601, 18602].map(|port| run_as_nobody(&pair.b, &format!("--link udp -- {line} -p {port} {host}")));
    kill(arbiters[0]);
    let refused = uroce_as_nobody(&pair.a, &["pingpong", "--link", "udp", "-p", "18700"]).end();
    refused.failed(1, &["uroce0", "ibv_rc_pingpong", "4791"]);
    for program in clients.into_iter().chain(two) {
        program.end().succeeded();
    }
    let server = serve(&pair, line, 18603);
    run_as_nobody(&pair.b, &format!("--link udp -- {line} -p 18603 {host}")).end().succeeded();
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
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let listen = |port: u16| {
        let mut server = run(&pair.a, &format!("--link udp --trace -- rping -s -p {port} -C 20 -V"));
        server.prints(&["rdma_listen: done", "rdma_listen: "], LIMIT).unwrap();
        server
    };
    let connect =
        |place: &Netns, port: u16| run(place, &format!("--link udp -- rping -c -a {host} -p {port} -C 20 -V"));
    let is_rejected = |place: &Netns, port: u16| {
        let ended = connect(place, port).end();
        assert!((ended.stderr.clone() + &ended.stdout).contains("RDMA_CM_EVENT_REJECTED, error 8"), "{ended:#?}");
    };
    let servers = [7001, 7002].map(listen);
    let ended = run(&pair.a, "--link udp -- rping -s -p 7002").end();
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
    kill(*processes(&pair.a, "rping").iter().max().unwrap());
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
        common::programs::UROCE
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

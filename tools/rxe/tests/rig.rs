//! The rig itself: namespaces that come and go, machines that are reached from our side, captures, commands.
#![allow(clippy::disallowed_methods, reason = "tests of a rig on the wall clock")]

use rxe_rig::{Lab, LabOptions, VethPair, lab::PEER, netns, process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_veth_pair_carries_datagrams_and_leaves_nothing_behind() {
    let pair = VethPair::create(4500).unwrap();
    let names = [pair.a.name().to_string(), pair.b.name().to_string()];
    let receiver = pair.b.run(|| std::net::UdpSocket::bind((VethPair::B.ipv4, 7)).unwrap());
    let sender = pair.a.run(|| std::net::UdpSocket::bind((VethPair::A.ipv4, 0)).unwrap());
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    sender.send_to(&[7; 4000], (VethPair::B.ipv4, 7)).unwrap();
    let mut buffer = [0; 5000];
    assert_eq!(receiver.recv_from(&mut buffer).unwrap().0, 4000);
    if netns::ipv6_on_this_host() {
        let target = VethPair::B.ipv6;
        pair.b.run(|| std::net::UdpSocket::bind((target, 7)).unwrap());
    }
    // A program inside sees its own interface under /sys, and not the other end's.
    let listed = pair.a.exec("ls", &["/sys/class/net"]).unwrap();
    let mut listed: Vec<_> = listed.split_whitespace().collect();
    listed.sort_unstable();
    assert_eq!(listed, ["lo", VethPair::A.interface]);
    // What is pinned for BPF on this host is seen inside too.
    let file_system = ["-f", "-c", "%T", "/sys/fs/bpf"];
    let outside = process::run_args("stat", &file_system).unwrap();
    assert_eq!(pair.a.exec("stat", &file_system).unwrap(), outside);
    let features = pair.a.exec("ethtool", &["-k", VethPair::A.interface]).unwrap();
    assert!(features.contains("tx-checksumming: off"), "{features}");
    drop(pair);
    for name in names {
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name} is still there");
    }
}

/// It plays both parts: started by itself with this variable, it makes a pair, says so, and waits for the signal.
#[test]
fn a_program_that_is_interrupted_leaves_no_namespace_behind() {
    const ROLE: &str = "UROCE_RIG_INTERRUPTED";
    if std::env::var_os(ROLE).is_some() {
        let pair = VethPair::create(1500).unwrap();
        println!("made {} {}", pair.a.name(), pair.b.name());
        std::thread::sleep(LIMIT);
        unreachable!("nobody has interrupted it");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let test = "a_program_that_is_interrupted_leaves_no_namespace_behind";
    command.args(["--exact", test, "--nocapture"]).env(ROLE, "1").stdout(Stdio::piped());
    let mut program = process::spawn(command).unwrap();
    let lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.contains("made ")).expect("it makes its namespaces");
    let names: Vec<&str> = line.split_once("made ").unwrap().1.split_whitespace().collect();
    let is_there = |name: &&str| Path::new("/run/netns").join(name).exists();
    assert!(names.len() == 2 && names.iter().all(is_there), "{line}");
    // SAFETY: no pointers; the process is ours, and not yet waited for.
    unsafe { libc::kill(program.id() as libc::pid_t, libc::SIGINT) };
    assert_eq!(program.wait().unwrap().code(), Some(128 + libc::SIGINT));
    assert!(!names.iter().any(is_there), "{line}: still there");
}

#[test]
fn a_machine_is_booted_reached_captured_and_taken_down() {
    let share = Some(env!("CARGO_MANIFEST_DIR").into());
    let options = LabOptions { share, mtu: 4500, counts_instructions: true, ..LabOptions::default() };
    let lab = Lab::start(&options).unwrap_or_else(|e| panic!("no lab: {e}"));
    let vm = lab.vm(0);
    eprintln!("booted in {:.1} s", vm.boot_time().as_secs_f64());

    // commands: status, text, time limit, two at a time
    let output = vm.run("echo out; echo err >&2; exit 7", LIMIT).unwrap();
    assert_eq!((output.status, output.text.as_str()), (7, "out\nerr\n"));
    assert!(vm.check("false", LIMIT).unwrap_err().to_string().contains("status 1"));
    assert_eq!(vm.run("sleep 100", Duration::from_secs(1)).unwrap().status, 124);
    let waiting = vm.spawn("echo begun; sleep 100; echo never", LIMIT).unwrap();
    waiting.wait_for("begun", LIMIT).unwrap();
    assert!(!waiting.ended());
    waiting.kill().unwrap();
    assert_eq!(waiting.join().unwrap().text, "begun\n");

    // instructions: a loop of the shell takes some hundreds each time
    let count = |times: u32| {
        let before = vm.instructions().unwrap();
        vm.check(&format!("i=0; while [ $i -lt {times} ]; do i=$((i+1)); done"), LIMIT).unwrap();
        vm.instructions().unwrap() - before
    };
    let each = (count(101_000) - count(1_000)) / 100_000;
    assert!((100..20_000).contains(&each), "{each} instructions");

    // files both ways, and a program of this host
    vm.put(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path(), "/tmp/a/Cargo.toml").unwrap();
    vm.check("cmp /tmp/a/Cargo.toml /share/Cargo.toml", LIMIT).unwrap();
    let back = std::env::temp_dir().join(format!("uroce-get-{}-0", std::process::id()));
    vm.get("/tmp/a/Cargo.toml", &back).unwrap();
    assert!(std::fs::read_to_string(&back).unwrap().contains("rxe-rig"));
    std::fs::remove_file(&back).unwrap();
    vm.put_program(&std::env::current_exe().unwrap(), "/root/test").unwrap();
    assert!(vm.check("/root/test --list", LIMIT).unwrap().contains("a_machine_is_booted"));

    let config = vm.check("cat /boot/config-$(uname -r)", LIMIT).unwrap();
    assert!(config.contains("CONFIG_XDP_SOCKETS=y"), "AF_XDP can be tried in the machine");

    // our side
    assert_eq!(lab.peer().exec("cat", &["/sys/class/net/uroce0/mtu"]).unwrap().trim(), "4500");
    vm.check(&format!("ping -c 1 -W 30 -s 4400 {}", PEER.ipv4), LIMIT).unwrap();
    if netns::ipv6_on_this_host() {
        vm.check(&format!("ping6 -c 1 -W 30 {}", PEER.ipv6), LIMIT).unwrap();
    }

    // rules on the bridge
    let ping = format!("ping -c 1 -W 3 {}", PEER.ipv4);
    lab.rule("iifname tap0 ip protocol icmp counter drop").unwrap();
    assert_eq!(vm.run(&ping, LIMIT).unwrap().status, 1);
    assert!(lab.rules().unwrap().contains("counter packets 1 "), "{}", lab.rules().unwrap());
    lab.remove_rules().unwrap();
    vm.check(&ping, LIMIT).unwrap();

    // RoCE on the bridge: a UD pingpong of the machine's to our address, which nobody answers, is seen
    let file = std::env::temp_dir().join(format!("uroce-capture-{}-0", std::process::id()));
    let capture = lab.capture(&file).unwrap();
    let mut agent = lab.agent(0).unwrap();
    assert_eq!(agent.active_mtu().unwrap(), 4096);
    let cq = agent.cq(16).unwrap();
    let mr = agent.mr(4096, "local_write").unwrap();
    let qp = agent.qp(&rxe_rig::agent::QpOptions::new(rxe_rig::agent::Transport::Ud, cq)).unwrap();
    agent.ready_datagram(qp, 0).unwrap();
    let gid = PEER.ipv4.to_ipv6_mapped().octets();
    let ah = agent.ah(&gid, 1).unwrap();
    let send = rxe_rig::agent::Send::new(rxe_rig::agent::Operation::Send, 1, &[mr.sge(0, 100)]);
    agent.post_send(qp, &rxe_rig::agent::Send { to: Some((ah, 5, 6)), ..send }).unwrap();
    assert_eq!(agent.poll(cq, 1, LIMIT).unwrap().len(), 1);
    let said = capture.stop().unwrap();
    assert!(said.contains("1 packet captured"), "{said}");
    assert!(std::fs::metadata(&file).unwrap().len() > 100);
    std::fs::remove_file(&file).unwrap();

    let (pid, names) = (vm.pid(), [lab.bridge().name().to_string(), lab.peer().name().to_string()]);
    drop(lab);
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "QEMU lives on");
    for name in names {
        assert!(!Path::new("/run/netns").join(&name).exists(), "{name} is still there");
    }
}

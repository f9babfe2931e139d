//! Two of us on Linux 6.1, in a machine: AF_XDP without multi-buffer, so that the active MTU is 2048 on interfaces of any
//! MTU, over a veth between two namespaces, with the driver's XDP and the generic one.
#![allow(clippy::disallowed_methods, reason = "a machine is on the wall clock")]

use std::path::Path;
use std::time::Duration;

use rxe_rig::{Lab, LabOptions, Output, Vm};
use serde_json::Value;

/// Emulated programs are slow to start.
const LIMIT: Duration = Duration::from_secs(120);

/// What `arguments` give in namespace `name` of the machine.
fn uroce(vm: &Vm, name: &str, arguments: &str) -> Output {
    vm.run(&format!("ip netns exec {name} uroce {arguments}"), LIMIT).unwrap()
}

/// Both ends play; their outputs, which are to be successes.
fn play(vm: &Vm, arguments: &str) -> [String; 2] {
    play_over(vm, ["xdp"; 2], arguments)
}

/// Both ends play, each over its own kind of link.
fn play_over(vm: &Vm, links: [&str; 2], arguments: &str) -> [String; 2] {
    let [here, there] = links;
    let server = vm.spawn(&format!("ip netns exec a uroce pingpong --link {here} {arguments}"), LIMIT).unwrap();
    vm.check("until ip netns exec a ss -ltn | grep -q :18515; do usleep 20000; done", LIMIT).unwrap();
    let client = uroce(vm, "b", &format!("pingpong --link {there} {arguments} 10.9.0.1"));
    [client, server.join().unwrap()].map(|Output { status, text }| {
        assert_eq!(status, 0, "pingpong {arguments}: {text}");
        text
    })
}

fn set_mtu(vm: &Vm, mtu: u32) {
    vm.check(&format!("ip -n a link set veth0 mtu {mtu} && ip -n b link set veth1 mtu {mtu}"), LIMIT).unwrap();
}

/// One line with all of `words`.
fn assert_fails_with(output: &Output, words: &[&str]) {
    let Output { status, text } = output;
    assert_eq!((*status, text.trim_end().lines().count()), (1, 1), "{text}");
    assert!(text.starts_with("uroce: ") && words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
}

#[test]
fn without_multi_buffer_the_active_mtu_is_2048_and_messages_come_back_whole() {
    let started = std::time::Instant::now();
    let lab = Lab::start(&LabOptions { rxe: false, ..LabOptions::default() }).unwrap_or_else(|e| panic!("no lab: {e}"));
    let vm = lab.vm(0);
    let release = vm.check("uname -r", LIMIT).unwrap();
    assert!(release.starts_with("6.1."), "the machine runs Linux {release}");
    vm.put_program(Path::new(env!("CARGO_BIN_EXE_uroce")), "/usr/bin/uroce").unwrap();
    println!("{:.0} s: the program is in the machine", started.elapsed().as_secs_f32());
    vm.check(
        "modprobe veth; ip netns add a && ip netns add b && \
         ip link add veth0 netns a type veth peer name veth1 netns b && \
         for end in 'a veth0 1' 'b veth1 2'; do set -- $end; \
           ip netns exec $1 ethtool -K $2 tx off rx off && ip -n $1 address add 10.9.0.$3/24 dev $2 && \
           ip -n $1 link set lo up && ip -n $1 link set $2 up || exit 1; done",
        LIMIT,
    )
    .unwrap();

    // The driver's XDP is what is taken if nothing is said.
    let modes = ["", "--xdp-mode skb", "--xdp-mode native"];
    for (mtu, active_mtu, modes) in [(1500, 1024, &modes[..1]), (3000, 2048, &modes[..]), (9000, 2048, &modes[1..2])] {
        set_mtu(vm, mtu);
        let devices = uroce(vm, "a", "devices --json").text;
        let lines = devices.lines().filter(|line| line.starts_with('{'));
        let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let device = lines.iter().find(|line| line["name"] == "veth0").unwrap_or_else(|| panic!("{devices}"));
        assert_eq!(device["active_mtu"], active_mtu, "at MTU {mtu}: {device}");
        for mode in modes {
            let arguments = format!("-c -n 50 -s 10000 -m {active_mtu} --timeout 18 {mode}");
            let [client, _] = play(vm, &arguments);
            assert!(client.contains("1000000 bytes in"), "{client}");
        }
        println!(
            "{:.0} s: MTU {mtu}: active MTU {active_mtu}, messages come back whole",
            started.elapsed().as_secs_f32()
        );
        let more = uroce(vm, "a", &format!("pingpong -m {}", 2 * active_mtu));
        assert_fails_with(&more, &["veth0", &format!("active MTU of {active_mtu}")]);
    }

    // This kernel too writes identification 0 into what its UDP sockets send: AF_XDP sees it, and checks every bit.
    for links in [["udp", "xdp"], ["xdp", "udp"]] {
        for gid in ["0", "1"] {
            play_over(vm, links, &format!("-c -n 50 -s 10000 -g {gid} --timeout 18"));
        }
    }
    println!("{:.0} s: over UDP sockets too", started.elapsed().as_secs_f32());

    // What is missing is said in one line.
    let down = vm.run("ip -n a link set veth0 down && ip netns exec a uroce pingpong -d veth0", LIMIT).unwrap();
    assert_fails_with(&down, &["veth0", "ip link set veth0 up"]);
    // A program in a user namespace of its own has no capabilities outside of it.
    let nobody = "ip -n a link set veth0 up && ip netns exec a unshare -U uroce pingpong -d veth0 --link xdp";
    assert_fails_with(&vm.run(nobody, LIMIT).unwrap(), &["veth0", "CAP_NET_RAW", "root"]);
}

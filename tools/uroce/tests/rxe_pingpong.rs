//! Unmodified `ibv_rc_pingpong` on a kernel rxe peer, as server and as client, against `uroce pingpong` over AF_XDP.

mod common;

use common::programs::{LIMIT, uroce, wait_for_listener};
use rxe_rig::{Lab, LabOptions, lab::PEER, netns};

/// Path MTU × GID × size, in both roles.
fn matrix(interface_mtu: u16, path_mtu: &str) {
    let lab = Lab::start(&LabOptions { mtu: interface_mtu, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let vm = lab.vm(0);
    // GID 0 is link-local, 1 IPv4, 2 global IPv6, on both sides.
    let gids: &[&str] = if netns::ipv6_on_this_host() { &["0", "1", "2"] } else { &["1"] };
    let mut port = 18600;
    for gid in gids {
        for (size, iterations) in [("1", "50"), ("4096", "50"), ("1048576", "4")] {
            // A new port each time: the one before may still be in TIME_WAIT.
            port += 1;
            let port_text = port.to_string();
            let options = format!("-g {gid} -m {path_mtu} -s {size} -n {iterations} -p {port} -c");
            // The machine is slow: 4.096 µs × 2^18 = 1.07 s before anything counts as lost.
            let ours = ["-g", gid, "-m", path_mtu, "-s", size, "-n", iterations, "-p", &port_text, "-c"];
            let words = [&["pingpong", "--timeout", "18"], &ours[..]].concat();

            // They serve.
            let server = vm.spawn(&format!("ibv_rc_pingpong {options}"), LIMIT).unwrap();
            vm.check(&format!("until ss -ltn | grep -q :{port}; do sleep 0.1; done"), LIMIT).unwrap();
            let host = vm.ipv4().to_string();
            let client = uroce(lab.peer(), &[&words[..], &[host.as_str()]].concat()).end().succeeded();
            let served = server.join().unwrap();
            assert_eq!(served.status, 0, "{}\n{client:#?}", served.text);
            assert!(!served.text.contains("invalid data") && served.text.contains(" iters in "), "{}", served.text);

            // We serve.
            let server = uroce(lab.peer(), &words);
            wait_for_listener(lab.peer(), port);
            let client = vm.check(&format!("ibv_rc_pingpong {options} {}", PEER.ipv4), LIMIT).unwrap();
            assert!(!client.contains("invalid data") && client.contains(" iters in "), "{client}");
            server.end().succeeded();
            eprintln!("path MTU {path_mtu} GID {gid} size {size}: ibv_rc_pingpong as server and as client");
        }
    }
}

#[test]
fn ibv_rc_pingpong_in_both_roles_at_path_mtu_1024() {
    matrix(1500, "1024");
}

#[test]
fn ibv_rc_pingpong_in_both_roles_at_path_mtu_4096() {
    matrix(4500, "4096");
}

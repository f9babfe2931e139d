//! `--dev ADDRESS`: one address is the whole device. Programs of several users on the loopback of a namespace that has nothing
//! else, and on one address of an interface; each game counts its packets.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::programs::{
    Running, UROCE, run, run_as_nobody, sent_packets, start, uroce, uroce_as_nobody, wait_for_listener,
};
use rxe_rig::{Netns, VethPair};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts `uroce` as a user of that number, without any capability.
fn uroce_as(user: &str, namespace: &Netns, arguments: &[&str]) -> Running {
    let who = ["--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--no-new-privs", UROCE];
    start(namespace.command("setpriv"), &[&who[..], arguments].concat())
}

#[test]
fn two_unprivileged_programs_play_on_a_loopback_by_two_addresses() {
    let namespace = Netns::create("addr").unwrap();
    for users in [["65534", "65534"], ["1234", "65534"], ["65534", "0"]] {
        let server = uroce_as(users[0], &namespace, &["pingpong", "-c", "-n", "200", "--dev", "127.0.0.2"]);
        wait_for_listener(&namespace, 18515);
        let client = ["pingpong", "-c", "-n", "200", "--dev", "127.0.0.3", "127.0.0.2"];
        let client = uroce_as(users[1], &namespace, &client).end().succeeded();
        let server = server.end().succeeded();
        assert!(client.stderr.contains("uroce: 127.0.0.3, udp, GID 0 127.0.0.3"), "{client:#?}");
        assert!(server.stdout.contains("GID ::ffff:127.0.0.2"), "{server:#?}");
    }
    let server = uroce_as_nobody(&namespace, &["perf", "write-bw", "-n", "100", "--dev", "127.0.0.2"]);
    wait_for_listener(&namespace, 18515);
    let client = ["perf", "write-bw", "-n", "100", "--dev", "127.0.0.3", "127.0.0.2"];
    uroce_as_nobody(&namespace, &client).end().succeeded();
    server.end().succeeded();
}

#[test]
fn unmodified_programs_see_a_device_of_one_gid() {
    let namespace = Netns::create("addr").unwrap();
    let described = run_as_nobody(&namespace, "--dev 127.0.0.2 ibv_devinfo -v").end().succeeded();
    assert!(described.stdout.contains("GID[  0]:\t\t::ffff:127.0.0.2, RoCE v2"), "{described:#?}");
    assert!(!described.stdout.contains("GID[  1]"), "{described:#?}");
    let file = "cat /sys/class/infiniband/lo/ports/1/gids/0";
    let read = run_as_nobody(&namespace, &format!("--dev 127.0.0.2 {file}")).end().succeeded();
    assert_eq!(read.stdout, "0000:0000:0000:0000:0000:ffff:7f00:0002\n");
    let pingpong = "--trace ibv_rc_pingpong -g 0 -c -n 100";
    let server = run_as_nobody(&namespace, &format!("--dev 127.0.0.2 {pingpong}"));
    wait_for_listener(&namespace, 18515);
    let client = run_as_nobody(&namespace, &format!("--dev 127.0.0.3 {pingpong} 127.0.0.2"));
    for side in [client, server] {
        // Two messages of four packets at least, and an acknowledge for each.
        assert!(sent_packets(&side.end().succeeded().stderr) >= 400);
    }
}

#[test]
fn rping_connects_two_addresses_of_a_loopback() {
    let namespace = Netns::create("addr").unwrap();
    // The client's kernel would send from 127.0.0.1, which is not its device's.
    for bound in ["", "-a 127.0.0.2"] {
        let mut server = run_as_nobody(&namespace, &format!("--dev 127.0.0.2 --trace rping -s -C 20 -V {bound}"));
        server.prints(&["rdma_listen: done"], LIMIT).unwrap();
        let client = run_as_nobody(&namespace, "--dev 127.0.0.3 --trace rping -c -a 127.0.0.2 -C 20 -V");
        for side in [client, server] {
            assert!(sent_packets(&side.end().succeeded().stderr) > 40);
        }
    }
}

#[test]
fn users_share_an_interface_by_addresses_and_not_an_address() {
    let pair = VethPair::create(1500).unwrap();
    pair.a.ip(&["address", "add", "10.78.0.8/24", "dev", "uroce0"]).unwrap();
    let server = |user: &str, port: &str, device: &str| {
        let mut server = uroce_as(user, &pair.a, &["pingpong", "-n", "100", "-c", "-p", port, "--dev", device]);
        server.listens(&pair.a, port.parse().unwrap(), LIMIT).unwrap();
        server
    };
    let first = server("1234", "18601", "10.78.0.1");
    // The same user's next program shares the address, and another user has the other one.
    let (second, third) = (server("1234", "18602", "10.78.0.1"), server("65534", "18603", "10.78.0.8"));
    for device in ["10.78.0.1", "uroce0"] {
        let refused = uroce_as_nobody(&pair.a, &["pingpong", "--link", "udp", "-p", "18700", "--dev", device]).end();
        refused.failed(1, &["uroce0", "UDP port 4791 of 10.78.0.1", "of another user"]);
    }
    // AF_XDP would take the packets of all.
    let refused = uroce(&pair.a, &["pingpong", "--link", "xdp", "-p", "18700", "--dev", "uroce0"]).end();
    refused.failed(1, &["uroce0", "4791"]);
    for (server, port) in [(third, "18603"), (second, "18602"), (first, "18601")] {
        let host = if port == "18603" { "10.78.0.8" } else { "10.78.0.1" };
        let arguments = ["pingpong", "--link", "udp", "-n", "100", "-c", "-p", port, "--dev", "10.78.0.2", host];
        uroce_as_nobody(&pair.b, &arguments).end().succeeded();
        server.end().succeeded();
    }
}

#[test]
fn what_an_address_cannot_be_is_said() {
    let pair = VethPair::create(1500).unwrap();
    let xdp = uroce(&pair.a, &["pingpong", "--link", "xdp", "--dev", "10.78.0.1"]).end();
    xdp.failed(1, &["10.78.0.1", "one address of uroce0", "AF_XDP", "--link udp"]);
    uroce(&pair.a, &["pingpong", "--dev", "10.78.0.9"]).end().failed(1, &["no device has the address 10.78.0.9"]);
    run(&pair.a, "--dev 10.78.0.9 true").end().failed(125, &["no device has the address 10.78.0.9"]);
    uroce(&pair.a, &["pingpong", "--dev", "uroce0,10.78.0.1"]).end().failed(1, &["10.78.0.1 is named twice"]);
    let ended = run(&pair.a, "--dev 10.78.0.1 --link xdp ibv_rc_pingpong -g 0").end();
    assert!(!ended.status.success() && ended.stderr.contains("one address of uroce0"), "{ended:#?}");
}

//! `uroce pingpong` against itself, over AF_XDP on a veth between two namespaces, and what it says when it cannot.

use crate::common::programs::{Ended, uroce, wait_for_listener};
use rxe_rig::VethPair;

const PORT: u16 = 18515;

/// One game: the same arguments on both sides, the client's host added.
fn play(pair: &VethPair, arguments: &[&str]) -> [Ended; 2] {
    let words = [&["pingpong", "--timeout", "17"], arguments].concat();
    let server = uroce(&pair.a, &words);
    wait_for_listener(&pair.a, PORT);
    let host = VethPair::A.ipv4.to_string();
    let client = uroce(&pair.b, &[&words[..], &[host.as_str()]].concat());
    [client.end().succeeded(), server.end().succeeded()]
}

#[test]
fn messages_of_all_sizes_come_back_whole_at_every_path_mtu() {
    let pair = VethPair::create(4500).unwrap();
    for mtu in ["256", "1024", "2048", "4096"] {
        for (size, iterations) in [("0", "10"), ("1", "100"), ("4096", "1000"), ("1048576", "20")] {
            play(&pair, &["-c", "-m", mtu, "-s", size, "-n", iterations]);
        }
    }
}

#[test]
fn every_transport_works() {
    let pair = VethPair::create(4500).unwrap();
    for transport in ["uc", "ud", "srq"] {
        for gid in ["1", "2"] {
            play(&pair, &["--transport", transport, "-c", "-n", "500", "-g", gid]);
        }
        play(&pair, &["--transport", transport, "-c", "-n", "200", "-e"]);
    }
    play(&pair, &["--transport", "ud", "-c", "-n", "50", "-s", "4096"]);
    play(&pair, &["--transport", "srq", "-c", "-n", "300", "-q", "3", "-r", "4", "-s", "100000"]);
}

#[test]
fn every_gid_works() {
    let pair = VethPair::create(1500).unwrap();
    for gid in ["0", "1", "2"] {
        play(&pair, &["-c", "-g", gid, "-n", "100"]);
    }
}

#[test]
fn events_skb_mode_and_service_levels_work() {
    let pair = VethPair::create(1500).unwrap();
    for arguments in [&["-e"][..], &["--xdp-mode", "skb"], &["--xdp-mode", "native"], &["-l", "3"], &["-r", "1"]] {
        play(&pair, &[arguments, &["-c", "-n", "200"]].concat());
    }
}

#[test]
fn the_report_is_that_of_ibv_rc_pingpong_and_comes_as_json() {
    let pair = VethPair::create(1500).unwrap();
    let [client, _] = play(&pair, &["-n", "100"]);
    for words in [
        "local address:  LID 0x0000, QPN 0x",
        "remote address: LID 0x0000, QPN 0x",
        "819200 bytes in ",
        "100 iters in ",
    ] {
        assert!(client.stdout.contains(words), "no {words:?}: {client:#?}");
    }
    let [client, _] = play(&pair, &["-n", "100", "--json"]);
    let result: serde_json::Value = serde_json::from_str(&client.stdout).unwrap();
    assert_eq!((&result["iterations"], &result["bytes"]), (&100.into(), &819_200.into()));
    assert!(result["round_trip_usec"]["p50"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_cannot_be_is_said_in_one_line_with_its_remedy() {
    let pair = VethPair::create(1500).unwrap();
    let fails = |arguments: &[&str], status, words: &[&str]| {
        uroce(&pair.a, &[&["pingpong"], arguments].concat()).end().failed(status, words);
    };
    fails(&["-d", "nosuch0"], 1, &["nosuch0", "uroce0"]);
    fails(&["-m", "4096"], 1, &["uroce0", "active MTU of 1024", "ip link set"]);
    fails(&["-g", "9"], 1, &["-g 9", "3 GIDs"]);
    fails(&["-m", "1000"], 2, &["1000", "256, 512, 1024, 2048 or 4096"]);
    fails(&["-n", "0"], 2, &["--iters", "0"]);
    fails(&["-p", "7", "10.78.0.2"], 1, &["10.78.0.2 port 7", "is the server running"]);
    let taken = pair.a.run(|| std::net::TcpListener::bind(("::", PORT)).unwrap());
    fails(&[], 1, &["TCP port 18515", "-p"]);
    drop(taken);
    for interface in ["uroce0", "lo"] {
        pair.a.ip(&["link", "set", interface, "down"]).unwrap();
    }
    fails(&[], 1, &["no usable device", "ip link"]);
    fails(&["-d", "uroce0"], 1, &["uroce0", "down", "ip link set uroce0 up"]);
}

#[test]
fn devices_lists_gids_and_what_is_missing() {
    let pair = VethPair::create(4500).unwrap();
    let listed = uroce(&pair.a, &["devices", "--json"]).end().succeeded();
    let devices: Vec<serde_json::Value> =
        listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // The loopback comes last.
    let names: Vec<_> = devices.iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uroce0", "lo"], "{listed:#?}");
    let device = &devices[0];
    assert_eq!(
        (&device["name"], &device["active_mtu"], &device["usable"]),
        (&"uroce0".into(), &4096.into(), &true.into())
    );
    let gids: Vec<_> = device["gids"].as_array().unwrap().iter().map(|gid| gid["gid"].as_str().unwrap()).collect();
    assert_eq!(gids, ["fe80::78:ff:fe00:1", "::ffff:10.78.0.1", "fd78::1"]);
    pair.a.ip(&["link", "set", "uroce0", "down"]).unwrap();
    let listed = uroce(&pair.a, &["devices"]).end().succeeded();
    assert!(listed.stdout.contains("missing") && listed.stdout.contains("ip link set uroce0 up"), "{listed:#?}");
}

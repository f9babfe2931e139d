//! `uroce pingpong` over UDP sockets: as a user without any capability, against AF_XDP, with every ICRC right on the wire;
//! and what it says when it cannot.

use std::path::Path;

use crate::common::captures::scratch;
use crate::common::programs::{Ended, Running, UROCE, uroce, uroce_as_nobody, wait_for_listener};
use rxe_rig::{Capture, Netns, VethPair};
use uroce_verify::{Tools, verify};

const PORT: u16 = 18515;

type Start = fn(&Netns, &[&str]) -> Running;

/// One game: each side started in its own way with words of its own before the common ones.
fn play(pair: &VethPair, sides: [(Start, &[&str]); 2], common: &[&str]) -> [Ended; 2] {
    let words = [&["pingpong", "--timeout", "17", "-c"], common].concat();
    let [(serve, server_words), (ask, client_words)] = sides;
    let server = serve(&pair.a, &[&words[..], server_words].concat());
    wait_for_listener(&pair.a, PORT);
    let host = VethPair::A.ipv4.to_string();
    let client = ask(&pair.b, &[&words[..], client_words, &[host.as_str()]].concat());
    [client.end().succeeded(), server.end().succeeded()]
}

const OVER_UDP: &[&str] = &["--link", "udp"];
const OVER_XDP: &[&str] = &["--link", "xdp"];

#[test]
fn a_user_without_any_capability_plays_every_transport_over_every_gid() {
    let pair = VethPair::create(4500).unwrap();
    let nobody: (Start, &[&str]) = (uroce_as_nobody, &[]);
    for transport in ["rc", "uc", "ud", "srq"] {
        for gid in ["0", "1", "2"] {
            // UC and UD lose what the sockets have no room for: one message at a time.
            let [client, server] =
                play(&pair, [nobody; 2], &["--transport", transport, "-g", gid, "-n", "300", "-s", "2000"]);
            for side in [client, server] {
                assert!(side.stderr.contains("over UDP sockets"), "{side:#?}");
            }
        }
        play(&pair, [nobody; 2], &["--transport", transport, "-n", "100", "-s", "1000", "-e"]);
    }
    for mtu in ["256", "1024", "2048", "4096"] {
        play(&pair, [nobody; 2], &["-m", mtu, "-s", "1048576", "-n", "10"]);
    }
}

#[test]
fn udp_and_xdp_play_with_each_other() {
    let pair = VethPair::create(4500).unwrap();
    for sides in [[(uroce as Start, OVER_UDP), (uroce, OVER_XDP)], [(uroce, OVER_XDP), (uroce, OVER_UDP)]] {
        for gid in ["0", "1", "2"] {
            for transport in ["rc", "uc", "ud", "srq"] {
                play(&pair, sides, &["--transport", transport, "-g", gid, "-n", "300", "-s", "3000"]);
            }
            play(&pair, sides, &["-g", gid, "-s", "500000", "-n", "20"]);
        }
    }
}

/// Both directions as tcpdump sees them, IPv4 and IPv6: uroce's own decoder, tshark, scapy and the rules agree that every
/// ICRC is right.
#[test]
fn every_icrc_is_right_on_the_wire() {
    let pair = VethPair::create(1500).unwrap();
    let target = Path::new(UROCE).parent().and_then(Path::parent).unwrap();
    let tools = Tools::find(UROCE.into(), target).unwrap_or_else(|e| panic!("{e}"));
    for gid in ["0", "1", "2"] {
        let file = scratch(&format!("udp-{gid}.pcap"));
        let capture = Capture::start(&pair.a, VethPair::A.interface, "udp port 4791", &file).unwrap();
        play(&pair, [(uroce, OVER_UDP); 2], &["-g", gid, "-n", "20", "-s", "5000"]);
        play(&pair, [(uroce, OVER_UDP); 2], &["--transport", "ud", "-g", gid, "-n", "20", "-s", "1000"]);
        let said = capture.stop().unwrap();
        let verdict = verify(&tools, &file).unwrap_or_else(|e| panic!("{e}"));
        // Twenty messages of five packets and twenty of one, both ways, and acknowledges.
        assert!(verdict.is_clean() && verdict.packets >= 240, "{verdict:#?} {said}");
    }
}

/// Two servers and a client: of WRITEs that leave over UDP sockets as runs of packets, whoever cuts them apart and
/// whatever receives them, none is lost, and no ICRC is wrong.
#[test]
fn runs_of_packets_reach_peers_over_both_links() {
    for (mtu, path_mtu, checksums) in [(1500, "1024", "on"), (9000, "4096", "on"), (4500, "4096", "off")] {
        let pair = VethPair::create(mtu).unwrap();
        for (namespace, end) in [(&pair.a, VethPair::A), (&pair.b, VethPair::B)] {
            // As veth comes: runs cross it in one piece. Without, the sender's kernel cuts them apart.
            namespace.exec("ethtool", &["-K", end.interface, "tx", checksums, "rx", checksums]).unwrap();
        }
        for (link, gid) in [("udp", "1"), ("udp", "2"), ("xdp", "1"), ("xdp", "2")] {
            let words = ["perf", "write-bw", "-m", path_mtu, "-s", "64k", "-n", "300", "-x", gid, "--json"];
            let server = uroce(&pair.a, &[&words[..], &["--link", link]].concat());
            wait_for_listener(&pair.a, PORT);
            let host = VethPair::A.ipv4.to_string();
            let client = uroce(&pair.b, &[&words[..], OVER_UDP, &[host.as_str()]].concat()).end().succeeded();
            let server = server.end().succeeded();
            let counted = |ended: &Ended, name: &str| {
                let result: serde_json::Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
                result["counters"][name].as_u64().unwrap_or(0)
            };
            let what = format!("MTU {mtu}, GID {gid}, to {link}: {} {}", client.stdout, server.stdout);
            // Of a message's packets all but the first can be in one run.
            let in_runs = counted(&client, "tx_run_frames") as f64 / counted(&client, "tx_frames") as f64;
            assert!(in_runs > 0.8, "{in_runs}: {what}");
            for name in ["bad_icrc", "malformed", "rx_identification_refused", "tx_errors", "tx_runs_refused"] {
                assert_eq!([&client, &server].map(|side| counted(side, name)), [0, 0], "{name}: {what}");
            }
        }
    }
}

/// Messages in runs of packets, some of which are lost, doubled, damaged, late or overtaken: all arrive whole.
#[test]
fn runs_with_faults_arrive_whole() {
    let pair = VethPair::create(4500).unwrap();
    let faults = ["--link", "udp", "--fault", "loss=1%,dup=1%,reorder=2%,corrupt=1%,delay=200us,delay_share=2%,seed=5"];
    for gid in ["1", "2"] {
        let sides: [(Start, &[&str]); 2] = [(uroce, &faults), (uroce, OVER_UDP)];
        play(&pair, sides, &["-g", gid, "-s", "300000", "-n", "20"]);
    }
}

/// What the link's own capture says is what tcpdump saw.
#[test]
fn its_own_capture_is_that_of_the_wire() {
    let pair = VethPair::create(1500).unwrap();
    let (own, wire) = (scratch("udp-own.pcap"), scratch("udp-wire.pcap"));
    let capture = Capture::start(&pair.a, VethPair::A.interface, "udp port 4791", &wire).unwrap();
    let own_name = own.to_str().unwrap();
    let tapped = ["--link", "udp", "--capture", own_name];
    play(&pair, [(uroce, &tapped[..]), (uroce, OVER_UDP)], &["-g", "1", "-n", "30", "-s", "3000"]);
    capture.stop().unwrap();
    let packets = |file: &Path| {
        let frames = uroce::pcap::Reader::open(file).unwrap().map(|frame| frame.unwrap().bytes[14..].to_vec());
        let mut frames: Vec<Vec<u8>> = frames.collect();
        // A socket does not show whether a received packet had a UDP checksum.
        let received = frames.iter_mut().filter(|packet| packet[12..16] != VethPair::A.ipv4.octets());
        received.for_each(|packet| packet[26..28].fill(0));
        frames.sort();
        frames
    };
    let (own, wire) = (packets(&own), packets(&wire));
    assert!(own.len() > 100 && own == wire, "{} frames in ours, {} on the wire", own.len(), wire.len());
}

#[test]
fn a_taken_port_is_said_with_who_has_it() {
    let pair = VethPair::create(1500).unwrap();
    let server = uroce(&pair.a, &["pingpong", "--link", "udp"]);
    wait_for_listener(&pair.a, PORT);
    let second = ["pingpong", "--link", "udp", "-p", "18600", "--exclusive"];
    uroce(&pair.a, &second).end().failed(1, &["uroce0", "UDP port 4791", "process ", "(uroce)"]);
    // Nobody sees other users' processes.
    let said = uroce_as_nobody(&pair.a, &second).end();
    said.failed(1, &["UDP port 4791", "ss -ulpn"]);
    server.stop();
}

#[test]
fn devices_lists_the_loopback_and_how_well_the_icrc_is_checked() {
    let pair = VethPair::create(4500).unwrap();
    pair.a.ip(&["link", "set", "lo", "up"]).unwrap();
    let listed = uroce_as_nobody(&pair.a, &["devices", "--json"]).end().succeeded();
    let devices: Vec<serde_json::Value> =
        listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = devices.iter().map(|device| device["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uroce0", "lo"], "{listed:#?}");
    for (device, mtu) in devices.iter().zip([4096, 4096]) {
        assert_eq!(device["active_mtu"], mtu);
        let modes = device["link_modes"].as_array().unwrap();
        let usable: Vec<_> =
            modes.iter().map(|mode| (mode["name"].as_str().unwrap(), mode["usable"] == true)).collect();
        assert_eq!(usable, [("xdp", false), ("udp", true)], "{device}");
        assert!(modes[1]["limits"][0].as_str().unwrap().contains("16 bits"), "{device}");
    }
}

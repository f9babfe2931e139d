//! `--dev a,b` and `--paths`: programs over several interfaces at once, ours and unmodified ones, over AF_XDP and UDP sockets;
//! and what is said when that cannot be.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::captures::scratch;
use crate::common::programs::{Ended, LIMIT, Running, run, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair};
use serde_json::Value;
use uroce::pcap::Reader;
use uroce::wire::{AcknowledgeTrailer, Packet, RoceFrame};

const PORT: u16 = 18515;

fn two_cables() -> VethPair {
    let pair = VethPair::create(4500).unwrap();
    pair.second_cable(4500).unwrap();
    pair
}

/// The same words on both sides, each with its own interfaces.
fn start(pair: &VethPair, words: &[&str]) -> [Running; 2] {
    let server = uroce(&pair.a, &[words, &["-d", "uroce0,uroce2"]].concat());
    wait_for_listener(&pair.a, PORT);
    let client = uroce(&pair.b, &[words, &["-d", "uroce1,uroce3", &VethPair::A.ipv4.to_string()]].concat());
    [client, server]
}

fn play(pair: &VethPair, words: &[&str]) -> [Ended; 2] {
    start(pair, words).map(|side| side.end().succeeded())
}

fn result(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))
}

fn counter(result: &Value, name: &str) -> u64 {
    result["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}: {result}"))
}

/// Frames that an interface has sent, as its kernel has it.
fn sent(namespace: &Netns, interface: &str) -> u64 {
    let file = format!("/sys/class/net/{interface}/statistics/tx_packets");
    namespace.run(|| std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"))).trim().parse().unwrap()
}

#[test]
fn both_interfaces_carry_a_test_over_af_xdp_and_over_udp_sockets() {
    let pair = two_cables();
    for (link, mode) in [("xdp", "xdp-native-copy+xdp-native-copy"), ("udp", "udp+udp")] {
        for test in ["write-bw", "read-bw", "send-bw"] {
            let words = ["perf", test, "--json", "--link", link, "-n", "400", "-u", "17", "--rate", "500M"];
            for ended in play(&pair, &words) {
                let result = result(&ended);
                assert_eq!(result["link_mode"], mode, "{test}");
                let rails = ["rail0_tx_packets", "rail1_tx_packets"].map(|name| counter(&result, name));
                assert!(rails.iter().all(|count| *count > 20), "{test} over {link}: {rails:?}");
            }
        }
    }
}

#[test]
fn an_unmodified_program_sees_one_device_and_uses_both_interfaces() {
    let pair = two_cables();
    let listed = run(&pair.a, "--dev uroce2,uroce0 ibv_devices").end().succeeded();
    assert!(listed.stdout.contains("uroce2") && !listed.stdout.contains("uroce0"), "{listed:#?}");
    let program = "ib_write_bw -F -u 17 -n 800";
    let before = [sent(&pair.b, "uroce1"), sent(&pair.b, "uroce3")];
    let server = run(&pair.a, &format!("--dev uroce0,uroce2 --rate 500M {program}"));
    wait_for_listener(&pair.a, PORT);
    let client = run(&pair.b, &format!("--dev uroce1,uroce3 --rate 500M --trace {program} {}", VethPair::A.ipv4));
    let [client, _] = [client.end(), server.end()].map(Ended::succeeded);
    // The client's end tells what each carried.
    for words in ["rail0_tx_packets", "rail1_tx_packets"] {
        assert!(client.stderr.contains(words), "no {words}: {client:#?}");
    }
    let after = [sent(&pair.b, "uroce1"), sent(&pair.b, "uroce3")];
    assert!(before.iter().zip(after).all(|(before, after)| after > before + 1000), "{before:?} {after:?}");
}

/// The kernel's own `ip link set down` on one of two, for either end, while programs run: they end as if nothing had been.
#[test]
fn programs_do_not_notice_that_an_interface_goes_down_and_comes_back() {
    let pair = two_cables();
    for link in ["xdp", "udp"] {
        let words = ["perf", "write-bw", "--json", "--link", link, "-D", "6", "-u", "17", "--rate", "200M"];
        let sides = start(&pair, &words);
        let until_sent = |interface: &str, count: u64| {
            let (goal, start) = (sent(&pair.b, interface) + count, Instant::now());
            while sent(&pair.b, interface) < goal {
                assert!(start.elapsed() < LIMIT, "{interface} carries nothing over {link}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until_sent("uroce3", 500);
        pair.b.ip(&["link", "set", "uroce3", "down"]).unwrap();
        until_sent("uroce1", 1000);
        pair.b.ip(&["link", "set", "uroce3", "up"]).unwrap();
        for (side, ended) in sides.map(|side| side.end().succeeded()).iter().enumerate() {
            assert!(counter(&result(ended), "rail1_tx_packets") > 0, "side {side} over {link}");
        }
    }
}

/// With `--paths` there are several source ports on each interface; the peer, which is given no number, probes as many.
#[test]
fn paths_have_source_ports_of_their_own() {
    let pair = two_cables();
    let file = scratch("rails-paths.pcap");
    let capture = file.to_str().unwrap();
    let words = ["perf", "write-bw", "--json", "-n", "200", "-u", "17", "--rate", "500M"];
    let server = uroce(&pair.a, &[&words[..], &["-d", "uroce0,uroce2", "--path-policy", "recycle"]].concat());
    wait_for_listener(&pair.a, PORT);
    let host = VethPair::A.ipv4.to_string();
    let more = ["-d", "uroce1,uroce3", "--paths", "6", "--capture", capture, "--path-policy", "round-robin", &host];
    let client = uroce(&pair.b, &[&words[..], &more].concat());
    let [_, _] = [client.end(), server.end()].map(Ended::succeeded);
    let (mut ways, mut probed) = (BTreeSet::new(), BTreeSet::new());
    for frame in Reader::open(&file).unwrap() {
        let frame = frame.unwrap();
        let roce = RoceFrame::parse(frame.bytes[..].into()).unwrap();
        assert!(roce.icrc_ok());
        let source = roce.ip.addresses().source();
        if [VethPair::B.ipv4.into(), VethPair::SECOND_B.ipv4.into()].contains(&source) {
            ways.insert((source, roce.flow().source_port));
        } else if let Some(AcknowledgeTrailer::Probe(probe)) = trailer(&Packet::parse(roce.ib).unwrap())
            && !probe.is_answer
        {
            probed.insert(probe.path);
        }
    }
    let interfaces: BTreeSet<_> = ways.iter().map(|(source, _)| *source).collect();
    assert_eq!((ways.len(), interfaces.len()), (6, 2), "{ways:?}");
    assert_eq!(probed.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

fn trailer(packet: &Packet<'_>) -> Option<AcknowledgeTrailer> {
    packet.split_tag()?.0.acknowledge_trailer()
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let pair = two_cables();
    let fails = |words: &[&str], status, named: &[&str]| uroce(&pair.a, words).end().failed(status, named);
    fails(&["perf", "write-bw", "-d", "uroce0,nope"], 1, &["nope", "uroce2"]);
    fails(&["perf", "write-bw", "-d", "uroce0,uroce0"], 1, &["uroce0", "twice"]);
    fails(&["perf", "write-bw", "-d", "uroce0,uroce2", "--link", "udp", "--paths", "4"], 1, &["--paths", "4791", "2"]);
    fails(&["perf", "write-bw", "--paths", "257"], 2, &["--paths", "257"]);
    fails(&["perf", "write-bw", "--path-policy", "fastest"], 2, &["fastest", "recycle"]);
    run(&pair.a, "--dev uroce0,nope ibv_devices").end().failed(125, &["nope", "uroce2"]);
    run(&pair.a, "--paths 0 ibv_devices").end().failed(2, &["--paths"]);
    pair.a.ip(&["link", "set", "uroce2", "down"]).unwrap();
    for link in ["xdp", "udp"] {
        fails(&["perf", "write-bw", "-d", "uroce0,uroce2", "--link", link], 1, &["uroce2", "ip link set uroce2 up"]);
    }
}

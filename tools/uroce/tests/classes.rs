//! The DSCP that each way of asking for one puts on the wire, at both ends: read from captures of frames.

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::captures::scratch;
use common::programs::{UROCE, run, uroce, wait_for_listener};
use rxe_rig::VethPair;

/// The port at which the servers listen for their clients.
const PORT: u16 = 18515;

/// The number of frames of each sender by DSCP.
fn seen(file: &std::path::Path) -> BTreeMap<(String, u8), u32> {
    let decoded = Command::new(UROCE).args(["decode", "--json"]).arg(file).output().unwrap();
    let mut seen = BTreeMap::new();
    for line in String::from_utf8(decoded.stdout).unwrap().lines() {
        let frame: serde_json::Value = serde_json::from_str(line).unwrap();
        let key = (frame["ip_src"].as_str().unwrap().to_owned(), frame["dscp"].as_u64().unwrap() as u8);
        *seen.entry(key).or_insert(0) += 1;
    }
    seen
}

#[test]
fn every_packet_of_both_ends_has_the_dscp_that_was_asked_for() {
    let pair = VethPair::create(1500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let games = [
        ("pingpong --tclass 184 -n 20", 46),
        ("pingpong --transport ud --tclass 184 -n 20", 46),
        ("pingpong --tclass 40 -l 5 -n 20", 10),
        ("pingpong -l 5 -n 20", 40),
        ("pingpong -l 9 -n 20", 0),
        ("perf write-bw -n 20 --tclass 4", 1),
    ];
    for (index, (line, dscp)) in games.into_iter().enumerate() {
        let file = scratch(&format!("{index}.pcap"));
        let words: Vec<&str> = line.split(' ').collect();
        let server = uroce(&pair.a, &words);
        wait_for_listener(&pair.a, PORT);
        let more = ["--capture", file.to_str().unwrap(), &host];
        uroce(&pair.b, &[&words[..], &more].concat()).end().succeeded();
        server.end().succeeded();
        let seen = seen(&file);
        assert_eq!(seen.len(), 2, "two senders, one DSCP: {seen:?}");
        assert!(seen.keys().all(|(_, found)| *found == dscp), "{line}: {seen:?}");
    }
}

/// By service level, by traffic class, and by RDMA CM's type of service, which the server learns from the request.
#[test]
fn unmodified_programs_ask_by_the_standard_attributes() {
    let pair = VethPair::create(1500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let games = [
        ("ib_send_lat -F -x 1 -n 20 -S 5", "-S 5", 40),
        ("ib_write_lat -F -x 1 -n 20 --tclass=32", "--tclass=32", 8),
        ("ib_send_lat -F -R -n 20", "-T 184", 46),
    ];
    for (index, (line, class, dscp)) in games.into_iter().enumerate() {
        let file = scratch(&format!("run{index}.pcap"));
        let mut server = run(&pair.a, &format!("--trace -- {line}"));
        let is_cm = line.contains("-R");
        match is_cm {
            true => server.prints(&["rdma_listen: done"], common::programs::LIMIT).unwrap(),
            false => wait_for_listener(&pair.a, PORT),
        }
        let client = format!("--capture {} -- {line} {class} {host}", file.display());
        run(&pair.b, &client).end().succeeded();
        server.end().succeeded();
        let seen = seen(&file);
        let own = VethPair::B.ipv4.to_string();
        let counts: Vec<_> = seen.iter().filter(|((source, _), _)| *source == own).collect();
        assert!(counts.iter().any(|((_, found), count)| *found == dscp && **count >= 20), "{line} {class}: {seen:?}");
        assert!(is_cm || seen.keys().all(|(_, found)| *found == dscp), "{line} {class}: {seen:?}");
        assert!(seen.keys().filter(|(source, _)| *source == host).any(|(_, found)| *found == dscp), "{seen:?}");
    }
}

//! The DSCP that each way of asking for one puts on the wire, at both ends: read from captures of frames.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::captures::scratch;
use crate::common::programs::{UROCE, run, uroce, wait_for_listener};
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
            true => server.prints(&["rdma_listen: done"], crate::common::programs::LIMIT).unwrap(),
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

/// A policy in a file of this name.
fn policy(name: &str, text: &str) -> String {
    let file = scratch(name);
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// By program, by peer and port of the connection manager, and by the first message: rules about others come first.
#[test]
fn a_policy_decides_for_unmodified_programs() {
    let pair = VethPair::create(1500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let own = VethPair::B.ipv4.to_string();
    let of_program = policy(
        "program.toml",
        "[[rule]]\nprogram = \"ib_write_lat\"\ndscp = 9\n[[rule]]\nprogram = \"ib_send_lat\"\nclass = \"scavenger\"\n",
    );
    let of_peer = policy(
        "peer.toml",
        &format!("[[rule]]\nport = 4420\ndscp = 9\n[[rule]]\npeer = \"{host}/31\"\nport = 18515\nclass = \"urgent\"\n"),
    );
    let of_message = policy(
        "message.toml",
        "[[rule]]\nfirst_message_max_bytes = 8\ndscp = 9\n[[rule]]\nfirst_message_min_bytes = 9\ndscp = 34\n",
    );
    let games = [
        (&of_program, "ib_send_lat -F -x 1 -n 20", 1),
        (&of_peer, "ib_send_lat -F -R -n 20", 46),
        (&of_peer, "ib_send_lat -F -x 1 -n 20", 0),
        (&of_message, "ib_send_lat -F -x 1 -n 20 -s 8", 9),
        (&of_message, "ib_send_lat -F -x 1 -n 20 -s 9", 34),
        (&of_program, "ib_send_lat -F -c UD -x 1 -n 20", 1),
    ];
    for (index, (policy, line, dscp)) in games.into_iter().enumerate() {
        let file = scratch(&format!("policy{index}.pcap"));
        let mut server = run(&pair.a, &format!("--trace -- {line}"));
        match line.contains("-R") {
            true => server.prints(&["rdma_listen: done"], crate::common::programs::LIMIT).unwrap(),
            false => wait_for_listener(&pair.a, PORT),
        }
        let client = format!("--policy {policy} --capture {} -- {line} {host}", file.display());
        run(&pair.b, &client).end().succeeded();
        server.end().succeeded();
        let seen = seen(&file);
        let counts: Vec<_> = seen.iter().filter(|((source, _), _)| *source == own).collect();
        assert!(counts.iter().any(|((_, found), count)| *found == dscp && **count >= 20), "{line} {policy}: {seen:?}");
        // The server has no policy.
        assert!(seen.keys().filter(|(source, _)| *source == host).all(|(_, found)| *found == 0), "{line}: {seen:?}");
    }
}

/// A veth says that it has 10 Gb/s: of that, a hundredth, whatever the program posts.
#[test]
fn a_cap_in_percent_of_the_line_is_kept_to() {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    let caps = [
        policy("cap.toml", "[[rule]]\nprogram = \"uroce\"\ncap = \"1%\"\n"),
        policy("scavengers.toml", "scavenger_cap = \"1%\"\n[[rule]]\nclass = \"scavenger\"\n"),
    ];
    for cap in caps {
        let words = ["perf", "write-bw", "-D", "2", "-q", "1", "--json"];
        let server = uroce(&pair.a, &words);
        wait_for_listener(&pair.a, PORT);
        let client = uroce(&pair.b, &[&words[..], &["--policy", &cap, &host]].concat()).end().succeeded();
        server.end().succeeded();
        let result: serde_json::Value = serde_json::from_str(client.stdout.lines().last().unwrap()).unwrap();
        let bits = result["bits_per_second"].as_f64().unwrap_or_else(|| panic!("{result}"));
        assert!((30e6..=102e6).contains(&bits), "{cap}: {result}");
    }
}

#[test]
fn a_policy_that_is_wrong_is_refused_with_its_place_before_the_program_starts() {
    let pair = VethPair::create(1500).unwrap();
    let file = policy("wrong.toml", "# tokens first\n[[rule]]\npeer = \"10.0.0.0/8\"\nclass = \"high\"\n");
    let words = [file.as_str(), ":4:9: `high` is not a class: use urgent, normal, bulk or scavenger"].concat();
    run(&pair.a, &format!("--policy {file} -- ib_devinfo")).end().failed(125, &[&words]);
    uroce(&pair.a, &["pingpong", "--policy", &file]).end().failed(1, &[&words]);
    run(&pair.a, "--policy /nowhere.toml -- ib_devinfo")
        .end()
        .failed(125, &["cannot read the policy /nowhere.toml: No"]);
    // The loopback has no rate.
    let percent = policy("percent.toml", "scavenger_cap = \"20%\"\n");
    let words = ["pingpong", "--policy", &percent, "--dev", "127.0.0.2"];
    uroce(&pair.a, &words).end().failed(1, &["lo reports no rate: write the cap as a rate, as in 500M or 2.5G"]);
}

//! Unmodified perftest (ib_send_bw and its like) on a kernel rxe peer, as server and as client, against `uroce perf` over
//! AF_XDP; and once over UDP sockets, which send runs of packets.

use crate::common::perftest::{Game, SLOW, all_games, some_games};
use crate::common::programs::{LIMIT, STARVED, uroce, wait_for_listener};
use crate::common::tally::tell;
use crate::common::{is_wanted, plays_all};
use rxe_rig::{Lab, LabOptions, lab::PEER, netns};
use serde_json::Value;

/// Ours printed an object for each size.
fn check_ours(game: &Game, stdout: &str, serves: bool) {
    let results: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"))).collect();
    let sizes: Vec<u64> = results.iter().map(|result| result["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, game.printed(serves), "{}: {stdout}", game.line());
    for result in &results {
        assert!(game.is_right(result["iterations"].as_u64().unwrap()), "{}: {result}", game.line());
    }
}

/// One game in each role.
fn both_roles(lab: &Lab, port: u16, game: &Game) {
    let vm = lab.vm(0);
    let port_text = port.to_string();
    let flags = [&game.flags[..], &["-p", &port_text], &SLOW].concat();
    let theirs = format!("{} {}", game.program(), flags.join(" "));
    let ours = [&["perf", game.test, "--json"], &flags[..]].concat();

    // They serve.
    let server = vm.spawn(&theirs, LIMIT).unwrap();
    vm.check(&format!("until ss -ltn | grep -q :{port}; do sleep 0.1; done"), LIMIT).unwrap();
    let host = vm.ipv4().to_string();
    let client = uroce(lab.peer(), &[&ours[..], &[host.as_str()]].concat()).end();
    let served = server.join().unwrap();
    assert!(client.status.success() && served.status == 0, "{theirs}: {served:?}\n{client:#?}");
    game.check_theirs(&served.text, true).unwrap_or_else(|e| panic!("{theirs}: {e}"));
    check_ours(game, &client.stdout, false);

    // We serve.
    let server = uroce(lab.peer(), &ours);
    wait_for_listener(lab.peer(), port);
    let client = vm.run(&format!("{theirs} {}", PEER.ipv4), LIMIT).unwrap();
    if client.status == STARVED {
        panic!("{theirs} did not end: {}; ours said: {:?}", client.text, server.stop());
    }
    let served = server.end();
    assert!(served.status.success() && client.status == 0, "{theirs}: {client:?}\n{served:#?}");
    game.check_theirs(&client.text, false).unwrap_or_else(|e| panic!("{theirs}: {e}"));
    check_ours(game, &served.stdout, true);
    eprintln!("{theirs} as server and as client");
}

/// WRITEs to rxe over UDP sockets: they leave in runs of packets, as one as far as the machine's interface, which have UDP's
/// checksum. rxe takes each packet, or the WRITEs would not be complete.
fn runs_over_udp_sockets(lab: &Lab, port: u16) {
    let vm = lab.vm(0);
    lab.peer().exec("ethtool", &["-K", PEER.interface, "tx", "on"]).unwrap();
    for gid in ["1", "2"] {
        let port_text = port.to_string();
        let flags = [&["-s", "65536", "-n", "20", "-x", gid, "-p", &port_text][..], &SLOW].concat();
        let theirs = format!("ib_write_bw {}", flags.join(" "));
        let server = vm.spawn(&theirs, LIMIT).unwrap();
        vm.check(&format!("until ss -ltn | grep -q :{port}; do sleep 0.1; done"), LIMIT).unwrap();
        let host = vm.ipv4().to_string();
        let ours = [&["perf", "write-bw", "--json", "--link", "udp"][..], &flags, &[host.as_str()]].concat();
        let client = uroce(lab.peer(), &ours).end();
        let served = server.join().unwrap();
        assert!(client.status.success() && served.status == 0, "{theirs}: {served:?}\n{client:#?}");
        let result: Value = serde_json::from_str(client.stdout.lines().last().unwrap()).unwrap();
        let counted = |name: &str| result["counters"][name].as_u64().unwrap_or(0);
        assert!(counted("tx_run_frames") > counted("tx_frames") / 2 && counted("tx_runs_refused") == 0, "{result}");
        eprintln!("{theirs}: {} of {} packets in runs", counted("tx_run_frames"), counted("tx_frames"));
    }
    lab.peer().exec("ethtool", &["-K", PEER.interface, "tx", "off"]).unwrap();
}

#[test]
fn perftest_in_both_roles() {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let games = if plays_all() { all_games(netns::gids()) } else { some_games() };
    // A new port each time, since the one before may still be in TIME_WAIT.
    let mut played = 0;
    for (port, game) in (18700..).zip(games.iter().filter(|game| is_wanted(&game.line()))) {
        both_roles(&lab, port, game);
        played += 2;
    }
    runs_over_udp_sockets(&lab, 18690);
    tell(played, played, 0);
}

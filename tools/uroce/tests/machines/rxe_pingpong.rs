//! Unmodified `ibv_{rc,uc,ud,srq}_pingpong` on a kernel rxe peer, as server and as client, against `uroce pingpong` over AF_XDP
//! and over UDP sockets.

use std::path::Path;

use crate::common::captures::{latest, scratch};
use crate::common::offer::only_offers;
use crate::common::plays_all;
use crate::common::programs::{LIMIT, STARVED, uroce, wait_for_listener};
use crate::common::tally::{bound_excuses, tell};
use rxe_rig::{Lab, LabOptions, lab::PEER, netns};

/// The games of a test: how many there were, and how many were played twice.
#[derive(Default)]
struct Games {
    played: usize,
    excused: usize,
}

/// One game in each role. `program` is theirs; ours is named by `transport`.
fn both_roles(
    lab: &Lab,
    games: &mut Games,
    port: u16,
    link: &str,
    game: [&str; 2],
    arguments: &[&str],
    may_starve: bool,
) {
    let [program, transport] = game;
    let vm = lab.vm(0);
    let port_text = port.to_string();
    let common = [arguments, &["-p", &port_text]].concat();
    // ibv_srq_pingpong knows no -c: its client's buffer is all zeros, which ours checks.
    let check = if transport == "srq" { "" } else { " -c" };
    let theirs = format!("{program} {}{check}", common.join(" "));
    // The machine is slow: 4.096 µs × 2^18 = 1.07 s before anything counts as lost.
    // Other tests use the same ports, each in a laboratory of its own.
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    let capture = scratch(&format!("{test}-{port}.pcapng"));
    let file = capture.to_str().unwrap();
    let flags = ["pingpong", "--link", link, "--transport", transport, "--timeout", "18", "-c", "--capture", file];
    let ours = [&flags[..], &common[..]].concat();
    let good = |text: &str| !text.contains("invalid data") && text.contains(" iters in ");

    // They serve.
    let server = vm.spawn(&theirs, LIMIT).unwrap();
    vm.check(&format!("until ss -ltn | grep -q :{port}; do sleep 0.1; done"), LIMIT).unwrap();
    let host = vm.ipv4().to_string();
    let client = uroce(lab.peer(), &[&ours[..], &[host.as_str()]].concat()).end();
    let served = server.join().unwrap();
    if client.stderr.contains("nothing has come from the peer") && may_starve {
        stalled(games, &theirs, &capture, &client);
        return both_roles(lab, games, port + 1000, link, game, arguments, false);
    }
    assert!(client.check().is_ok(), "{client:#?}\n{theirs}: {served:?}");
    assert!(served.status == 0 && good(&served.text), "{}\n{client:#?}", served.text);
    was_only_offered(&capture, transport);

    // We serve.
    let server = uroce(lab.peer(), &ours);
    wait_for_listener(lab.peer(), port);
    let client = vm.run(&format!("{theirs} {}", PEER.ipv4), LIMIT).unwrap();
    if client.status == STARVED && may_starve {
        stalled(games, &theirs, &capture, &server.stop());
        return both_roles(lab, games, port + 1000, link, game, arguments, false);
    }
    assert!(client.status == 0 && good(&client.text), "{client:?}");
    server.end().succeeded();
    was_only_offered(&capture, transport);
    std::fs::remove_file(&capture).unwrap();
    games.played += 2;
    eprintln!("{program} {} as server and as client over {link}", arguments.join(" "));
}

/// rxe notices nothing of the extension, since it is sent nothing of it but offers, and soon not these.
fn was_only_offered(capture: &Path, transport: &str) {
    let tally = only_offers(capture, transport != "srq");
    assert_eq!(tally.offers > 0, matches!(transport, "rc" | "srq"), "{tally:?}");
    assert!(tally.sent > 0 && tally.received > 0, "{tally:?}");
}

/// A game stood still, which happens on a machine that is given too little of a busy processor: rxe's 68 ms timeout cannot be
/// set from the command line, and with the retry count of 7 that these programs use it sends again for ever, also when ours
/// has given up. Such a game is played once more; a second time is a failure, and so are too many of them. What was on the
/// wire is kept and told.
fn stalled(games: &mut Games, theirs: &str, capture: &Path, ours: &dyn std::fmt::Debug) {
    games.excused += 1;
    eprintln!("{theirs} stood still; once more. Ours said: {ours:?}; {}", latest(capture));
}

impl Games {
    /// All were played.
    fn end(self) {
        let Games { played, excused } = self;
        tell(played, played, excused);
        bound_excuses(excused, played);
    }
}

/// A laboratory whose interfaces have that MTU.
fn lab(mtu: u16) -> Lab {
    Lab::start(&LabOptions { mtu, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"))
}

/// Path MTU × GID × size, in both roles; a new port each time, since the one before may still be in TIME_WAIT.
fn over_af_xdp(lab: &Lab, path_mtu: &str, gids: &[&str], first_port: u16) {
    let (mut ports, mut games) = (first_port.., Games::default());
    let mut play = |program, transport, arguments: &[&str]| {
        both_roles(lab, &mut games, ports.next().unwrap(), "xdp", [program, transport], arguments, true);
    };
    for gid in gids {
        for (size, iterations) in [("1", "50"), ("4096", "50"), ("1048576", "4")] {
            play("ibv_rc_pingpong", "rc", &["-g", gid, "-m", path_mtu, "-s", size, "-n", iterations]);
        }
        // Without retransmission, over a bridge that loses nothing.
        play("ibv_uc_pingpong", "uc", &["-g", gid, "-m", path_mtu, "-s", "20000", "-n", "30"]);
        play("ibv_ud_pingpong", "ud", &["-g", gid, "-s", path_mtu, "-n", "50"]);
        play("ibv_srq_pingpong", "srq", &["-g", gid, "-m", path_mtu, "-s", "4096", "-n", "100"]);
    }
    for (program, transport) in
        [("ibv_rc_pingpong", "rc"), ("ibv_uc_pingpong", "uc"), ("ibv_ud_pingpong", "ud"), ("ibv_srq_pingpong", "srq")]
    {
        play(program, transport, &["-g", "1", "-n", "30", "-e"]);
    }
    games.end();
}

/// Over IPv4 rxe counts its identifications, which a socket does not show: they are solved for.
fn over_udp_sockets(lab: &Lab, gids: &[&str], first_port: u16) {
    let (mut ports, mut games) = (first_port.., Games::default());
    let mut play = |program, transport, arguments: &[&str]| {
        both_roles(lab, &mut games, ports.next().unwrap(), "udp", [program, transport], arguments, true);
    };
    for gid in gids {
        for (path_mtu, size, iterations) in [("1024", "1", "100"), ("1024", "100000", "10"), ("4096", "100000", "10")] {
            play("ibv_rc_pingpong", "rc", &["-g", gid, "-m", path_mtu, "-s", size, "-n", iterations]);
        }
        play("ibv_uc_pingpong", "uc", &["-g", gid, "-m", "4096", "-s", "20000", "-n", "30"]);
        play("ibv_ud_pingpong", "ud", &["-g", gid, "-s", "4096", "-n", "50"]);
        play("ibv_srq_pingpong", "srq", &["-g", gid, "-m", "1024", "-s", "4096", "-n", "100"]);
    }
    games.end();
}

#[test]
fn the_ibv_pingpongs_in_both_roles_at_path_mtu_1024() {
    over_af_xdp(&lab(1500), "1024", netns::gids(), 18600);
}

/// Each kind of GID over one of the links, unless all is played.
#[test]
fn the_ibv_pingpongs_in_both_roles_at_path_mtu_4096_and_over_udp_sockets() {
    let lab = lab(4500);
    let gids = netns::gids();
    let (ipv4, ipv6) = if plays_all() { (gids, gids) } else { gids.split_at(1) };
    over_af_xdp(&lab, "4096", ipv6, 18600);
    over_udp_sockets(&lab, ipv4, 18700);
}

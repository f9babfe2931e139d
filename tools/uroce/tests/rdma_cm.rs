//! Unmodified programs that connect by RDMA CM, at both ends by `uroce run`: over AF_XDP as root, and over UDP sockets as
//! nobody. Ordinarily some are played, with UROCE_FULL=1 all; with loss, too.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::{Duration, Instant};

use crate::common::compiled::program;
use crate::common::plays_all;
use crate::common::programs::{Ended, Running, counted, run, run_as_nobody};
use crate::common::tally::Tally;
use rxe_rig::{Netns, VethPair};

const GAME_LIMIT: Duration = Duration::from_secs(120);

/// A server's and a client's line; `{}` is the server's address.
type Game = (String, String);

/// Packets that a program sent and received, by what is printed at its end. Who only listens to a group sends none.
fn packets(stderr: &str) -> u64 {
    ["sent_pkts", "rcvd_pkts"].iter().filter_map(|name| counted(stderr, name)).sum()
}

fn perftests() -> Vec<Game> {
    let tests = ["send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"];
    let line = |test: &str| format!("ib_{test} -R -F -n 100");
    let mut games: Vec<Game> = tests.map(|test| (line(test), line(test) + " {}")).to_vec();
    games.push((line("send_bw -c UD"), line("send_bw -c UD") + " {}"));
    games
}

/// What each program is asked to check: -V compares every byte, and the others end with a status.
fn all_games(v4: &str, v6: &str) -> Vec<Game> {
    let mut games = Vec::new();
    for (any, host) in [("0.0.0.0", v4), ("::", v6)] {
        games.push((format!("rping -s -a {any} -C 20 -V"), format!("rping -c -a {host} -C 20 -V")));
        let family = if host == v6 { "-f ip6 " } else { "" };
        games.push((format!("ucmatose -b {any}"), format!("ucmatose {family}-s {host}")));
        games.push((format!("udaddy -b {any}"), format!("udaddy -s {host}")));
    }
    games.push(("rdma_server".to_owned(), format!("rdma_client -s {v4}")));
    let many = "ucmatose -c 20 -C 3 -S 1000";
    games.push((many.to_owned(), format!("{many} -s {v4}")));
    games.push(("mckey -m 239.7.7.7 -C 10".to_owned(), "mckey -m 239.7.7.7 -s -C 10".to_owned()));
    games.extend(perftests().into_iter().map(|(server, client)| (server, client.replace("{}", v4))));
    games
}

fn some_games(v4: &str, v6: &str) -> Vec<Game> {
    let wanted = ["rping", "udaddy -s", "rdma_client", "ib_send_bw", "ib_write_lat"];
    all_games(v4, v6).into_iter().filter(|(_, client)| wanted.iter().any(|word| client.starts_with(word))).collect()
}

/// One game. The client begins when the server listens, or has joined its group.
fn play(
    start: fn(&Netns, &str) -> Running,
    pair: &VethPair,
    options: &str,
    (server_line, client_line): &Game,
) -> Result<[Ended; 2], String> {
    let words = |line: &str| format!("{options} --trace -- {line}");
    let mut server = start(&pair.a, &words(server_line));
    server.prints(&["rdma_listen: done", "rdma_join_multicast_ex: done"], GAME_LIMIT)?;
    let client = start(&pair.b, &words(client_line)).end_within(GAME_LIMIT)?;
    client.check().map_err(|reason| format!("client: {reason}"))?;
    let server = server.end_within(GAME_LIMIT)?;
    server.check().map_err(|reason| format!("server: {reason}"))?;
    Ok([client, server])
}

fn play_all(start: fn(&Netns, &str) -> Running, link: &str) {
    let pair = VethPair::create(4500).unwrap();
    // A group's address is resolved by the kernel's routes, as any other.
    for (namespace, end) in [(&pair.a, VethPair::A), (&pair.b, VethPair::B)] {
        namespace.ip(&["route", "add", "224.0.0.0/4", "dev", end.interface]).unwrap();
    }
    let (v4, v6) = (VethPair::A.ipv4.to_string(), VethPair::A.ipv6.to_string());
    let games = if plays_all() { all_games(&v4, &v6) } else { some_games(&v4, &v6) };
    let mut tally = Tally::begin();
    for game in &games {
        let program = game.1.split(' ').next().unwrap_or_default();
        tally.play(program, link, &game.1, || {
            let ended = play(start, &pair, &format!("--link {link}"), game)?;
            // Messages of the connection manager, at least, or a group's datagrams.
            match ended.iter().all(|ended| packets(&ended.stderr) >= 2) {
                true => Ok(()),
                false => Err(format!("hardly a frame: {ended:#?}")),
            }
        });
    }
    tally.end();
}

#[test]
fn programs_connect_over_af_xdp() {
    play_all(run, "xdp");
}

#[test]
fn programs_connect_as_nobody_over_udp_sockets() {
    play_all(run_as_nobody, "udp");
}

/// Messages of the connection manager are lost as others are: rping loses some of its five in most of these runs.
#[test]
fn a_tenth_of_all_frames_is_lost_and_connections_begin_and_end() {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    for seed in 0..if plays_all() { 20 } else { 4 } {
        let game = ("rping -s -C 20 -V".to_owned(), format!("rping -c -a {host} -C 20 -V"));
        let options = format!("--link xdp --fault loss=0.1,seed={seed}");
        play(run, &pair, &options, &game).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
    }
}

#[test]
fn a_client_whom_nobody_expects_is_rejected() {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4.to_string();
    // Somebody listens, at another port.
    let mut server = run(&pair.a, "--link xdp --trace -- rping -s -p 9000");
    server.prints(&["rdma_listen: done"], GAME_LIMIT).unwrap();
    let client = run(&pair.b, &format!("--link xdp -- rping -c -a {host} -C 1")).end();
    assert!(!client.status.success(), "{client:#?}");
    // The reason on the wire: invalid service id.
    assert!((client.stderr.clone() + &client.stdout).contains("RDMA_CM_EVENT_REJECTED, error 8"), "{client:#?}");
}

/// Its kernel says so (ICMP port unreachable), over either link; without that word the attempt takes a minute.
#[test]
fn a_client_of_a_host_without_a_program_is_told_at_once() {
    let pair = VethPair::create(4500).unwrap();
    for host in [VethPair::A.ipv4.to_string(), VethPair::A.ipv6.to_string()] {
        let line = |link: &str| format!("--link {link} -- rping -c -a {host} -C 1");
        for (start, link) in [(run as fn(&Netns, &str) -> Running, "xdp"), (run_as_nobody, "udp")] {
            let began = Instant::now();
            let client = start(&pair.b, &line(link)).end();
            let said = client.stderr.clone() + &client.stdout;
            assert!(said.contains("RDMA_CM_EVENT_UNREACHABLE"), "{client:#?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}: {client:#?}", began.elapsed());
        }
    }
}

/// The server takes the request, ends its listener, and accepts ten seconds later: the client waits, since MRAs say so.
#[test]
fn a_server_that_accepts_after_ten_seconds_has_its_client_wait() {
    const SECONDS: u64 = 10;
    let binary = program("late");
    let play = |(start, link): (fn(&Netns, &str) -> Running, &str)| {
        let pair = VethPair::create(4500).unwrap();
        let line =
            |role: &str| format!("--link {link} --trace -- {} {SECONDS} {}{role}", binary.display(), VethPair::A.ipv4);
        let mut server = start(&pair.a, &line(" serve"));
        server.prints(&["listens"], GAME_LIMIT).unwrap();
        let client = start(&pair.b, &line("")).end_within(GAME_LIMIT).unwrap().succeeded();
        let server = server.end_within(GAME_LIMIT).unwrap().succeeded();
        let took: f64 = client.stdout.trim().parse().unwrap();
        assert!((SECONDS as f64 - 0.5..SECONDS as f64 + 20.0).contains(&took), "{took} s: {client:#?}");
        // The request came twice, and the second one's MRA held the client back for longer than the server took.
        assert_eq!(
            (counted(&client.stderr, "cm_retransmitted"), counted(&server.stderr, "cm_duplicate")),
            (Some(1), Some(1)),
            "{client:#?} {server:#?}"
        );
        assert!(
            counted(&server.stderr, "cm_sent") >= Some(3) && packets(&client.stderr) >= 6,
            "{client:#?} {server:#?}"
        );
    };
    std::thread::scope(|scope| {
        for over in [(run as fn(&Netns, &str) -> Running, "xdp"), (run_as_nobody, "udp")] {
            scope.spawn(move || play(over));
        }
    });
}

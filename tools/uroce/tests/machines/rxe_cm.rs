//! Unmodified programs that connect by RDMA CM, at both ends: by `uroce run` over AF_XDP and, as nobody, over UDP sockets; and on
//! a kernel rxe peer with the kernel's own connection manager, as server and as client. Ordinarily a few games are played, with
//! UROCE_FULL=1 all.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::compared::{OVER_UDP, OVER_XDP, Start};
use crate::common::perftest::SLOW;
use crate::common::plays_all;
use crate::common::programs::sent_packets;
use crate::common::tally::Tally;
use rxe_rig::lab::PEER;
use rxe_rig::{Lab, LabOptions};

const GAME_LIMIT: Duration = Duration::from_secs(240);

/// A server's line and a client's, of which `{}` is the server's address.
struct Game {
    server: String,
    client: String,
    is_ipv6: bool,
}

impl Game {
    fn new(server: &str, client: &str, is_ipv6: bool) -> Game {
        Game { server: server.to_owned(), client: client.to_owned(), is_ipv6 }
    }
}

fn all_games() -> Vec<Game> {
    let mut games = vec![
        Game::new("rping -s -C 10 -V", "rping -c -a {} -C 10 -V", false),
        Game::new("rping -s -a :: -C 10 -V", "rping -c -a {} -C 10 -V", true),
        Game::new("ucmatose", "ucmatose -s {}", false),
        Game::new("ucmatose -b ::", "ucmatose -f ip6 -s {}", true),
        Game::new("udaddy", "udaddy -s {}", false),
        Game::new("udaddy -b ::", "udaddy -s {}", true),
        Game::new("rdma_server", "rdma_client -s {}", false),
    ];
    for test in ["send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"] {
        let line = format!("ib_{test} -R -n 20 {}", SLOW.join(" "));
        games.push(Game::new(&line, &format!("{line} {{}}"), false));
    }
    // After a connection at a port the server listens for datagrams there.
    let line = format!("ib_send_bw -R -c UD -n 20 {}", SLOW.join(" "));
    games.push(Game::new(&line, &format!("{line} {{}}"), false));
    games
}

/// A game with one end as the server.
type Play = fn(&Lab, (Start, &str), &Game) -> Result<(), String>;

/// A few over each link.
fn some_games(link: &str) -> Vec<Game> {
    let wanted: &[&str] = if link == "xdp" { &["rping", "udaddy", "ib_write_bw"] } else { &["rping", "udaddy"] };
    all_games().into_iter().filter(|game| wanted.iter().any(|word| game.client.starts_with(word))).collect()
}

/// Messages of the connection manager, and what the programs send: they went over uroce.
fn check_packets(stderr: &str) -> Result<(), String> {
    match sent_packets(stderr) {
        0..2 => Err(format!("hardly a packet: {stderr}")),
        _ => Ok(()),
    }
}

fn they_serve(lab: &Lab, (start, link): (Start, &str), game: &Game) -> Result<(), String> {
    let vm = lab.vm(0);
    let failed = |error: rxe_rig::RigError| error.to_string();
    let host = if game.is_ipv6 { vm.ipv6().to_string() } else { vm.ipv4().to_string() };
    let job = vm.spawn(&game.server, GAME_LIMIT).map_err(failed)?;
    vm.check("until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done", GAME_LIMIT).map_err(failed)?;
    let line = format!("--link {link} --trace -- {}", game.client.replace("{}", &host));
    let client = start(lab.peer(), &line).end_within(GAME_LIMIT);
    if !client.as_ref().is_ok_and(|client| client.check().is_ok()) {
        let _ = job.kill();
    }
    let theirs = job.join().map_err(failed)?;
    let checked = client.and_then(|client| client.check().and_then(|()| check_packets(&client.stderr)));
    checked.map_err(|reason| format!("ours: {reason}; theirs: {theirs:?}"))?;
    if theirs.status == 0 { Ok(()) } else { Err(format!("theirs: {theirs:?}")) }
}

fn we_serve(lab: &Lab, (start, link): (Start, &str), game: &Game) -> Result<(), String> {
    let host = if game.is_ipv6 { PEER.ipv6.to_string() } else { PEER.ipv4.to_string() };
    let mut ours = start(lab.peer(), &format!("--link {link} --trace -- {}", game.server));
    ours.prints(&["rdma_listen: done"], GAME_LIMIT)?;
    let theirs = lab.vm(0).run(&game.client.replace("{}", &host), GAME_LIMIT).map_err(|error| error.to_string())?;
    if theirs.status != 0 {
        return Err(format!("theirs: {theirs:?}; ours: {:?}", ours.stop()));
    }
    let ours = ours.end_within(GAME_LIMIT)?;
    let checked = ours.check().and_then(|()| check_packets(&ours.stderr));
    checked.map_err(|reason| format!("ours: {reason}; theirs: {theirs:?}"))
}

#[test]
fn programs_connect_with_a_kernels_connection_manager_in_both_roles() {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let mut tally = Tally::begin();
    for link in [OVER_XDP, OVER_UDP] {
        let games = if plays_all() { all_games() } else { some_games(link.1) };
        for game in &games {
            let program = game.client.split(' ').next().unwrap_or_default();
            let mut play = |who: &str, one: Play| {
                let column = format!("{who} over {}", link.1);
                tally.play(program, &column, &format!("{}, {column}", game.client), || one(&lab, link, game));
            };
            play("rxe serves", they_serve);
            play("uroce serves", we_serve);
        }
    }
    tally.end();
}

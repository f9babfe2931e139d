//! Unmodified programs that connect by RDMA CM, at both ends: by `uroce run` over AF_XDP, and on a kernel rxe peer with the
//! kernel's own connection manager, as server and as client. Ordinarily a few games are played, with UROCE_FULL=1 all.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::time::Duration;

use common::perftest::SLOW;
use common::plays_all;
use common::programs::run;
use common::tally::Tally;
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
        Game::new("rdma_server", "rdma_client -s {}", false),
    ];
    for test in ["send_bw", "send_lat", "write_bw", "write_lat", "read_bw", "read_lat", "atomic_bw", "atomic_lat"] {
        let line = format!("ib_{test} -R -n 20 {}", SLOW.join(" "));
        games.push(Game::new(&line, &format!("{line} {{}}"), false));
    }
    games
}

fn some_games() -> Vec<Game> {
    let wanted = ["rping", "udaddy", "ib_write_bw"];
    all_games().into_iter().filter(|game| wanted.iter().any(|word| game.client.starts_with(word))).collect()
}

fn they_serve(lab: &Lab, game: &Game) -> Result<(), String> {
    let vm = lab.vm(0);
    let failed = |error: rxe_rig::RigError| error.to_string();
    let host = if game.is_ipv6 { vm.ipv6().to_string() } else { vm.ipv4().to_string() };
    let job = vm.spawn(&game.server, GAME_LIMIT).map_err(failed)?;
    vm.check("until rdma resource show cm_id | grep -q LISTEN; do sleep 0.1; done", GAME_LIMIT).map_err(failed)?;
    let line = format!("--link xdp --trace -- {}", game.client.replace("{}", &host));
    let client = run(lab.peer(), &line).end_within(GAME_LIMIT);
    if !client.as_ref().is_ok_and(|client| client.check().is_ok()) {
        let _ = job.kill();
    }
    let theirs = job.join().map_err(failed)?;
    client.and_then(|client| client.check()).map_err(|reason| format!("ours: {reason}; theirs: {theirs:?}"))?;
    if theirs.status == 0 { Ok(()) } else { Err(format!("theirs: {theirs:?}")) }
}

fn we_serve(lab: &Lab, game: &Game) -> Result<(), String> {
    let host = if game.is_ipv6 { PEER.ipv6.to_string() } else { PEER.ipv4.to_string() };
    let mut ours = run(lab.peer(), &format!("--link xdp --trace -- {}", game.server));
    ours.prints(&["rdma_listen: done"], GAME_LIMIT)?;
    let theirs = lab.vm(0).run(&game.client.replace("{}", &host), GAME_LIMIT).map_err(|error| error.to_string())?;
    if theirs.status != 0 {
        return Err(format!("theirs: {theirs:?}; ours: {:?}", ours.stop()));
    }
    ours.end_within(GAME_LIMIT)?.check().map_err(|reason| format!("ours: {reason}; theirs: {theirs:?}"))
}

#[test]
fn programs_connect_with_a_kernels_connection_manager_in_both_roles() {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let games = if plays_all() { all_games() } else { some_games() };
    let mut tally = Tally::begin();
    for game in &games {
        let program = game.client.split(' ').next().unwrap_or_default();
        tally.play(program, "rxe serves", &format!("{}, rxe serves", game.client), || they_serve(&lab, game));
        tally.play(program, "uroce serves", &format!("{}, uroce serves", game.client), || we_serve(&lab, game));
    }
    tally.end();
}

//! Debian's perftest, as it is, by `uroce run` at both ends, between two namespaces: each of its eight programs with each flag
//! that it allows, by every kind of GID, over AF_XDP and, as nobody, over UDP sockets. Ordinarily a sample is played, with
//! UROCE_FULL=1 everything.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::time::Duration;

use crate::common::perftest::{Game, TESTS};
use crate::common::plays_all;
use crate::common::programs::{Running, run, run_as_nobody};
use crate::common::tally::Tally;
use rxe_rig::{Netns, VethPair, netns};

const PORT: u16 = 18515;

/// Programs without a flag, and with one of these.
const FLAGS: [&[&str]; 9] =
    [&[], &["-a"], &["-b"], &["-q", "4"], &["-D", "2"], &["-e"], &["--use-srq"], &["-c", "UD"], &["-c", "UC"]];

const LATENCY: &[&str] = &["send-lat", "write-lat", "read-lat", "atomic-lat"];
const WRITE: &[&str] = &["write-bw", "write-lat"];
const ATOMIC: &[&str] = &["atomic-bw", "atomic-lat"];
const READ_AND_ATOMIC: &[&str] = &["read-bw", "read-lat", "atomic-bw", "atomic-lat"];
const ALL_BUT_SEND: &[&str] = &["write-bw", "write-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"];

/// What perftest 4.5 does not allow, and what it says then: its own words when it is asked to, and src/perftest_parameters.c
/// (parser, change_conn_type, force_dependecies).
const REFUSED: [(&[&str], &[&str], &str); 7] = [
    (&["-a"], ATOMIC, "Message size cannot be changed for Atomic tests"),
    (&["-b"], LATENCY, "Bidirectional is only available in BW test"),
    (&["-q", "4"], LATENCY, "Multiple QPs only available on bw tests"),
    (&["-e"], WRITE, "Events feature not available on WRITE verb"),
    (&["--use-srq"], ALL_BUT_SEND, "Using SRQ only avavilible in SEND tests"),
    (&["-c", "UD"], ALL_BUT_SEND, "UD connection only possible in SEND verb"),
    (&["-c", "UC"], READ_AND_ATOMIC, "UC connection not possible in READ/ATOMIC verbs"),
];

/// A busy machine: 4.096 µs × 2^17 = 0.54 s before anything counts as lost, and a clock whose speed is found uneven.
const PATIENT: &str = "-u 17 -F";

/// Games take one to four seconds, those of all sizes ten (at each result perftest measures its clock's speed), or ten times
/// that where much else runs. perftest gives up by itself after one or two minutes without a message.
const GAME_LIMIT: Duration = Duration::from_secs(150);

/// How perftest refuses a flag, if it does.
fn refusal(test: &str, flags: &[&str]) -> Option<&'static str> {
    let refused = REFUSED.iter().find(|(refused, tests, _)| *refused == flags && tests.contains(&test));
    refused.map(|(_, _, words)| *words)
}

/// All tests with all flags.
fn pairs() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    FLAGS.into_iter().flat_map(|flags| TESTS.into_iter().map(move |test| (test, flags)))
}

/// What is played with a flag: so many messages and of such a size as perftest chooses itself, but for -a, where a thousand of
/// each size would be 16 GB, and for floods of unreliable messages, of which nobody sends again what finds no room while the
/// receiver has no processor: perftest then waits for ever. They are no more than all the room there is.
fn game(test: &'static str, flags: &'static [&'static str], link: &str) -> Game {
    match (test, flags, link) {
        (_, ["-a"], _) => Game::all_sizes(test, "5", &[]),
        (_, ["-D", _], _) => Game::by_time(test),
        (_, ["-q", "4"], _) => Game::by_default(test, flags).on_queue_pairs(4),
        // 6400 packets of two chunks, of 14,400 chunks.
        ("send-bw", ["-c", "UC"], "xdp") => Game::new(test, "65536", "400", flags),
        // Of each packet 8.3 KiB count, of 416 KiB where net.core.rmem_max is what Linux sets.
        ("send-bw", ["-c", _], "udp") => Game::new(test, "4096", "40", flags),
        _ => Game::by_default(test, flags),
    }
}

/// How a program is started over a link.
type Start = fn(&Netns, &str) -> Running;

/// Whoever may have AF_XDP is root; UDP sockets need no right at all.
const LINKS: [(&str, Start); 2] = [("xdp", run), ("udp", run_as_nobody)];

fn play(pair: &VethPair, (link, start): (&str, Start), gid: &str, game: &Game) -> Result<(), String> {
    let line = format!("--link {link} {} -x {gid} {PATIENT}", game.line());
    let mut server = start(&pair.a, &line);
    server.listens(&pair.a, PORT, GAME_LIMIT)?;
    let client = start(&pair.b, &format!("{line} {}", VethPair::A.ipv4)).end_within(GAME_LIMIT);
    let client = match client.and_then(|client| client.check().map(|()| client)) {
        Ok(client) => client,
        Err(text) => return Err(format!("client: {text}; server: {:?}", server.stop())),
    };
    let server = server.end_within(GAME_LIMIT)?;
    server.check().map_err(|text| format!("server: {text}"))?;
    game.check_theirs(&client.stdout, false).map_err(|text| format!("client: {text}"))?;
    game.check_theirs(&server.stdout, true).map_err(|text| format!("server: {text}"))
}

#[test]
fn each_program_plays_with_each_flag_that_it_allows() {
    // Path MTU 4096.
    let pair = VethPair::create(4500).unwrap();
    let gids = netns::gids();
    let mut tally = Tally::begin();
    for (number, (test, flags)) in pairs().filter(|(test, flags)| refusal(test, flags).is_none()).enumerate() {
        for (link_number, link) in LINKS.into_iter().enumerate() {
            let game = game(test, flags, link.0);
            for (gid_number, gid) in gids.iter().enumerate() {
                // Each sixth game over one link, and others over the other one; the long ones over AF_XDP only.
                let is_in_sample = number % 6 == [4, 1][link_number]
                    && number / 6 % gids.len() == gid_number
                    && (link.0 == "xdp" || flags != ["-a"]);
                if plays_all() || is_in_sample {
                    let name = format!("{} -x {gid} over {}", game.line(), link.0);
                    let row = format!("{} over {}", game.program(), link.0);
                    let column = if flags.is_empty() { "plain".to_owned() } else { flags.join(" ") };
                    tally.play(&row, &column, &name, || play(&pair, link, gid, &game));
                }
            }
        }
    }
    tally.end();
}

/// What is left out above is left out because perftest refuses it.
#[test]
fn what_perftest_does_not_allow_it_says() {
    let pair = VethPair::create(1500).unwrap();
    let mut refused = 0;
    for (test, flags) in pairs() {
        if let Some(words) = refusal(test, flags) {
            let line = Game::by_default(test, flags).line();
            let ended = run(&pair.a, &line).end();
            assert!(ended.status.code() == Some(1), "{ended:#?}");
            assert!(ended.stdout.contains(words) || ended.stderr.contains(words), "no {words:?}: {ended:#?}");
            refused += 1;
        }
    }
    assert_eq!(refused, REFUSED.iter().map(|(_, tests, _)| tests.len()).sum::<usize>());
}

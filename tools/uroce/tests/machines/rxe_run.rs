//! Unmodified programs at both ends: Debian's pingpongs and perftest by `uroce run` over AF_XDP, against the same on a kernel rxe
//! peer, as server and as client. Ordinarily a few games are played, with UROCE_FULL=1 all of them.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::Path;
use std::time::Duration;

use crate::common::captures::{latest, scratch};
use crate::common::perftest::{self, Game, SLOW};
use crate::common::plays_all;
use crate::common::programs::{STARVED, run};
use crate::common::tally::Tally;
use rxe_rig::{Lab, LabOptions, lab::PEER, netns};

/// Games take a few seconds, those of all sizes twenty, and several times that where much else runs.
const GAME_LIMIT: Duration = Duration::from_secs(240);

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    Theirs,
    Ours,
}

/// The laboratory, and the machine in it, which is replaced when its network stands still.
struct Table {
    options: LabOptions,
    lab: Lab,
    /// Machines that were replaced.
    replaced: usize,
}

/// So many machines may be replaced: more are no accident.
const REPLACED_MAX: usize = 2;

impl Table {
    fn lay(options: LabOptions) -> Table {
        let lab = Lab::start(&options).unwrap_or_else(|e| panic!("{e}"));
        Table { options, lab, replaced: 0 }
    }

    /// Whether the machine answers nothing any more, not even ARP: an emulated network card that lost an interrupt, say. What
    /// the machine has to say of it is printed, and another one takes its place.
    fn replace_if_dead(&mut self) -> bool {
        let host = self.lab.vm(0).ipv4().to_string();
        let ping = self.lab.peer().command("busybox").args(["ping", "-c", "3", "-W", "5", &host]).output();
        if self.replaced == REPLACED_MAX || ping.is_ok_and(|ping| ping.status.success()) {
            return false;
        }
        let words = "dmesg | tail -20; head -3 /proc/meminfo; cat /proc/net/dev /proc/net/softnet_stat; \
                     grep virtio /proc/interrupts; sleep 1; grep virtio /proc/interrupts";
        let said = self.lab.vm(0).run(words, GAME_LIMIT);
        eprintln!("the machine's network stands still; another machine takes its place. It says: {said:?}");
        self.replaced += 1;
        self.lab = Lab::start(&self.options).unwrap_or_else(|e| panic!("{e}"));
        true
    }
}

/// What an end printed has to pass this; told whether it served.
type Check<'a> = &'a dyn Fn(&str, bool) -> Result<(), String>;

/// One game; both ends are given the same line. What was on the wire is told of one that did not pass.
fn play(lab: &Lab, port: u16, line: &str, server: Server, check: Check<'_>) -> Result<(), String> {
    let capture = scratch(&format!("rxe-run-{port}.pcapng"));
    let played = play_captured(lab, port, line, server, check, &capture);
    if played.is_ok() {
        let _ = std::fs::remove_file(&capture);
    }
    played.map_err(|reason| if capture.exists() { format!("{reason}; {}", latest(&capture)) } else { reason })
}

fn play_captured(
    lab: &Lab,
    port: u16,
    line: &str,
    server: Server,
    check: Check<'_>,
    capture: &Path,
) -> Result<(), String> {
    let vm = lab.vm(0);
    let line = format!("{line} -p {port}");
    // Only pingpongs are excused; a capture of what perftest sends would be of gigabytes.
    let options = match line.starts_with("ibv_") {
        true => format!("--link xdp --capture {}", capture.display()),
        false => "--link xdp".to_owned(),
    };
    let ours = format!("{options} {line}");
    let failed = |error: rxe_rig::RigError| error.to_string();
    let good = |status: i32, text: &str, serves| match status {
        0 => check(text, serves).map_err(|reason| format!("theirs: {reason}")),
        STARVED => Err(format!("theirs did not end: {text}")),
        _ => Err(format!("theirs ended with status {status}: {text}")),
    };
    let (theirs, ours) = match server {
        Server::Theirs => {
            let job = vm.spawn(&line, GAME_LIMIT).map_err(failed)?;
            vm.check(&format!("until ss -ltn | grep -q :{port}; do sleep 0.1; done"), GAME_LIMIT).map_err(failed)?;
            let client = run(lab.peer(), &format!("{ours} {}", vm.ipv4())).end_within(GAME_LIMIT);
            if client.as_ref().is_ok_and(|client| client.check().is_ok()) {
                (job.join().map_err(failed)?, client?)
            } else {
                let _ = job.kill();
                let theirs = job.join().map_err(failed)?;
                return Err(format!("ours: {client:?}; theirs: {theirs:?}"));
            }
        }
        Server::Ours => {
            let mut ours = run(lab.peer(), &ours);
            ours.listens(lab.peer(), port, GAME_LIMIT)?;
            let client = vm.run(&format!("{line} {}", PEER.ipv4), GAME_LIMIT).map_err(failed)?;
            if client.status == STARVED {
                return Err(format!("theirs did not end: {client:?}; ours: {:?}", ours.stop()));
            }
            if client.status != 0 {
                return Err(format!("theirs: {client:?}; ours: {:?}", ours.stop()));
            }
            (client, ours.end_within(GAME_LIMIT)?)
        }
    };
    good(theirs.status, &theirs.text, server == Server::Theirs)?;
    ours.check()?;
    check(&ours.stdout, server == Server::Ours).map_err(|reason| format!("ours: {reason}"))
}

/// A pingpong's end says how many iterations it made, and nothing of bad data.
fn pingpong_is_good(text: &str, _serves: bool) -> Result<(), String> {
    match text.contains(" iters in ") && !text.contains("invalid data") {
        true => Ok(()),
        false => Err(format!("not what a pingpong prints: {text}")),
    }
}

/// Whether the machine was given too little of a busy processor: the pingpongs wait 67 ms, eight times, which cannot be set from
/// the command line, and rxe, which takes their retry count for endless, still sends when ours has given up.
fn may_have_starved(reason: &str) -> bool {
    ["transport retry counter exceeded", "did not end"].iter().any(|words| reason.contains(words))
}

/// Every pingpong by every kind of GID and at path MTU 1024 and 4096, polling and sleeping on events. -c looks at the data, which
/// ibv_srq_pingpong cannot. Sizes are bounded where lost messages stay lost: the machine's receive ring holds 256 packets.
fn all_pingpongs() -> Vec<String> {
    let mut lines = Vec::new();
    for gid in netns::gids() {
        for events in ["", " -e"] {
            for mtu in ["1024", "4096"] {
                for size_and_iterations in ["-s 1 -n 50", "-s 4096 -n 50", "-s 100000 -n 10"] {
                    lines.push(format!("ibv_rc_pingpong -c -g {gid} -m {mtu} {size_and_iterations}{events}"));
                }
                lines.push(format!("ibv_uc_pingpong -c -g {gid} -m {mtu} -s 20000 -n 30{events}"));
                lines.push(format!("ibv_srq_pingpong -g {gid} -m {mtu} -s 4096 -n 100{events}"));
            }
            lines.push(format!("ibv_ud_pingpong -c -g {gid} -s 4096 -n 50{events}"));
        }
    }
    lines
}

fn some_pingpongs() -> Vec<String> {
    ["rc_pingpong -c -m 1024", "uc_pingpong -c -m 4096 -e", "ud_pingpong -c -e", "srq_pingpong -m 4096"]
        .map(|words| format!("ibv_{words} -g 1 -n 50"))
        .to_vec()
}

fn some_perftests() -> Vec<Game> {
    vec![
        Game::new("write-bw", "65536", "20", &["-x", "1"]),
        Game::new("send-lat", "1024", "20", &["-c", "UD"]),
        Game::new("read-bw", "4096", "20", &["-q", "4"]).on_queue_pairs(4),
        Game::new("atomic-lat", "8", "20", &["-e"]),
    ]
}

#[test]
fn unmodified_programs_play_with_those_of_a_kernel_peer_in_both_roles() {
    let mut table = Table::lay(LabOptions { mtu: 4500, ..LabOptions::default() });
    let (pingpongs, games) = match plays_all() {
        true => (all_pingpongs(), perftest::all_games(netns::gids())),
        false => (some_pingpongs(), some_perftests()),
    };
    let mut tally = Tally::begin();
    // A new port each time, since the one before may still be in TIME_WAIT.
    let mut ports = 19000..;
    let mut in_both_roles = |program: &str, line: &str, is_excused: fn(&str) -> bool, check: Check<'_>| {
        for (server, column) in [(Server::Theirs, "rxe serves"), (Server::Ours, "uroce serves")] {
            let name = format!("{line}, {column}");
            tally.play_again_if(is_excused, [program, column, &name], || {
                let mut play = |table: &Table| {
                    play(&table.lab, ports.next().expect("there are more ports than games"), line, server, check)
                };
                let played = play(&table);
                if played.is_err() && table.replace_if_dead() { play(&table) } else { played }
            });
        }
    };
    for line in &pingpongs {
        let program = line.split(' ').next().unwrap_or_default();
        in_both_roles(program, line, may_have_starved, &pingpong_is_good);
    }
    for game in &games {
        let line = format!("{} {}", game.line(), SLOW.join(" "));
        in_both_roles(&game.program(), &line, |_| false, &|text, serves| game.check_theirs(text, serves));
    }
    if table.replaced > 0 {
        eprintln!("{} machines were replaced", table.replaced);
    }
    tally.end();
}

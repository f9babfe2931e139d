//! Unmodified perftest (ib_send_bw and its like) on a kernel rxe peer, as server and as client, against `uroce perf` over
//! AF_XDP.

mod common;

use common::programs::{LIMIT, uroce, wait_for_listener};
use rxe_rig::{Lab, LabOptions, lab::PEER, netns};
use serde_json::Value;

/// What `timeout` in the machine ends with.
const STARVED: i32 = 124;

/// The machine is slow: 4.096 µs × 2^18 = 1.07 s before anything counts as lost; and perftest, which measures the speed of its
/// clock at each result, ends when it finds that uneven, but for -F.
const SLOW: [&str; 3] = ["-u", "18", "-F"];

/// What is played: uroce's name of a test, and flags, which are the same for both.
struct Game {
    test: &'static str,
    flags: Vec<&'static str>,
    /// The results: sizes, and iterations on all queue pairs; with -D, none are expected.
    sizes: Vec<u64>,
    iterations: Option<u64>,
}

impl Game {
    fn new(test: &'static str, size: &'static str, iterations: &'static str, more: &[&'static str]) -> Game {
        let flags = [&["-s", size, "-n", iterations], more].concat();
        let sizes = vec![size.parse().unwrap()];
        Game { test, flags, sizes, iterations: iterations.parse().ok() }
    }

    /// 2 to 2^23 bytes.
    fn all_sizes(test: &'static str, more: &[&'static str]) -> Game {
        let sizes = (1..=23).map(|power| 1 << power).collect();
        Game { test, flags: [&["-a", "-n", "5"], more].concat(), sizes, iterations: Some(5) }
    }

    /// 2 to 4096 bytes, the path MTU.
    fn all_datagrams(test: &'static str) -> Game {
        let sizes = (1..=12).map(|power| 1 << power).collect();
        Game { sizes, ..Game::all_sizes(test, &["-c", "UD"]) }
    }

    /// Two seconds, of which perftest counts all and we the middle one.
    fn by_time(test: &'static str) -> Game {
        let size = match test {
            "atomic-bw" | "atomic-lat" => 8,
            test if test.ends_with("lat") => 2,
            _ => 65536,
        };
        Game { test, flags: vec!["-D", "2"], sizes: vec![size], iterations: None }
    }

    fn on_queue_pairs(self, count: u64) -> Game {
        Game { iterations: self.iterations.map(|iterations| iterations * count), ..self }
    }

    fn program(&self) -> String {
        format!("ib_{}", self.test.replace('-', "_"))
    }

    /// The sizes that an end prints: one that only serves is told the last result, or nothing.
    fn printed(&self, serves: bool) -> &[u64] {
        match (serves, self.test) {
            (true, "read-lat" | "atomic-lat") => &[],
            (true, "write-bw" | "read-bw" | "atomic-bw") if !self.flags.contains(&"-b") => {
                &self.sizes[self.sizes.len() - 1..]
            }
            _ => &self.sizes,
        }
    }

    /// Theirs printed a row for each size.
    fn check_theirs(&self, text: &str, serves: bool) {
        let rows = |size: &u64| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&size.to_string())
                    && words.next().and_then(|word| word.parse().ok()) == self.iterations
                    && words.next().is_some_and(|word| word.parse::<f64>().is_ok())
            })
        };
        for size in self.printed(serves) {
            assert!(
                self.iterations.is_none() || rows(size),
                "{} {:?}: no row for {size}: {text}",
                self.test,
                self.flags
            );
        }
    }

    /// Ours printed an object for each size.
    fn check_ours(&self, stdout: &str, serves: bool) {
        let results: Vec<Value> =
            stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {stdout}"))).collect();
        let sizes: Vec<u64> = results.iter().map(|result| result["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, self.printed(serves), "{} {:?}: {stdout}", self.test, self.flags);
        for result in &results {
            let iterations = result["iterations"].as_u64().unwrap();
            let good = self.iterations.map_or(iterations > 0, |wanted| iterations == wanted);
            assert!(good, "{} {:?}: {result}", self.test, self.flags);
        }
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
    game.check_theirs(&served.text, true);
    game.check_ours(&client.stdout, false);

    // We serve.
    let server = uroce(lab.peer(), &ours);
    wait_for_listener(lab.peer(), port);
    let client = vm.run(&format!("{theirs} {}", PEER.ipv4), LIMIT).unwrap();
    if client.status == STARVED {
        panic!("{theirs} did not end: {}; ours said: {:?}", client.text, server.stop());
    }
    let served = server.end();
    assert!(served.status.success() && client.status == 0, "{theirs}: {client:?}\n{served:#?}");
    game.check_theirs(&client.text, false);
    game.check_ours(&served.stdout, true);
    eprintln!("{theirs} as server and as client");
}

/// Every test, and of sizes, directions and services some.
fn some_games() -> Vec<Game> {
    vec![
        Game::new("send-bw", "65536", "20", &[]),
        Game::new("send-lat", "1024", "20", &["-c", "UD"]),
        Game::new("write-bw", "4096", "20", &["-b", "-q", "2"]).on_queue_pairs(2),
        Game::new("write-lat", "2", "20", &[]),
        Game::new("read-bw", "65536", "20", &[]),
        Game::new("read-lat", "4096", "20", &[]),
        Game::new("atomic-bw", "8", "20", &["-q", "2"]).on_queue_pairs(2),
        Game::new("atomic-lat", "8", "20", &[]),
    ]
}

/// Every test with sizes, all sizes, both directions, queue pairs, services, events and time, as perftest allows them.
fn all_games() -> Vec<Game> {
    let mut games = Vec::new();
    for test in ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat"] {
        for size in ["2", "4096", "65536"] {
            games.push(Game::new(test, size, "20", &[]));
        }
        games.push(Game::all_sizes(test, &[]));
    }
    games.push(Game::new("atomic-lat", "8", "20", &[]));
    for test in ["send-bw", "write-bw", "read-bw", "atomic-bw"] {
        let size = if test == "atomic-bw" { "8" } else { "4096" };
        games.push(Game::new(test, size, "20", &[]));
        games.push(Game::new(test, size, "20", &["-q", "2"]).on_queue_pairs(2));
        games.push(Game::new(test, size, "20", &["-b", "-q", "2"]).on_queue_pairs(2));
    }
    for test in ["send-bw", "write-bw", "read-bw"] {
        games.push(Game::all_sizes(test, &["-b"]));
    }
    for test in ["send-bw", "send-lat"] {
        games.push(Game::all_datagrams(test));
    }
    games.push(Game::new("send-bw", "1024", "20", &["-c", "UD"]));
    games.push(Game::new("send-bw", "1024", "20", &["-c", "UD", "-b"]));
    games.push(Game::new("send-lat", "1024", "20", &["-c", "UD"]));
    games.push(Game::new("send-lat", "1024", "20", &["-c", "UC"]));
    games.push(Game::new("write-bw", "4096", "20", &["-c", "UC"]));
    games.push(Game::new("write-bw", "4096", "20", &["-x", "1", "-m", "1024"]));
    for gid in if netns::ipv6_on_this_host() { &["0", "2"][..] } else { &[] } {
        games.push(Game::new("send-bw", "4096", "20", &["-x", gid]));
    }
    for test in ["send-bw", "send-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"] {
        let size = if test.starts_with("atomic") { "8" } else { "4096" };
        games.push(Game::new(test, size, "20", &["-e"]));
    }
    games.push(Game::new("atomic-bw", "8", "20", &["-A", "CMP_AND_SWAP"]));
    for test in ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"] {
        games.push(Game::by_time(test));
    }
    games
}

/// `cargo xtask test --full` sets it.
const FULL: &str = "UROCE_FULL";

#[test]
fn perftest_in_both_roles() {
    let lab = Lab::start(&LabOptions { mtu: 4500, ..LabOptions::default() }).unwrap_or_else(|e| panic!("{e}"));
    let games = if std::env::var_os(FULL).is_some() { all_games() } else { some_games() };
    // A new port each time, since the one before may still be in TIME_WAIT.
    for (port, game) in (18700..).zip(&games) {
        both_roles(&lab, port, game);
    }
}

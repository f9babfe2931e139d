//! What perftest (ib_send_bw and its like) is to play, and what it prints then.

/// The machine is slow: 4.096 µs × 2^18 = 1.07 s before anything counts as lost; and perftest, which measures the speed of its
/// clock at each result, ends when it finds that uneven, but for -F.
pub const SLOW: [&str; 3] = ["-u", "18", "-F"];

/// The eight tests, as `uroce perf` names them.
pub const TESTS: [&str; 8] =
    ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"];

/// What is played: uroce's name of a test, and flags, which are the same for both.
#[derive(Clone, Debug)]
pub struct Game {
    pub test: &'static str,
    pub flags: Vec<&'static str>,
    /// The results: sizes, and iterations on all queue pairs; with -D, any number of them.
    pub sizes: Vec<u64>,
    pub iterations: Option<u64>,
}

impl Game {
    pub fn new(test: &'static str, size: &'static str, iterations: &'static str, more: &[&'static str]) -> Game {
        let flags = [&["-s", size, "-n", iterations], more].concat();
        let sizes = vec![size.parse().unwrap()];
        Game { test, flags, sizes, iterations: iterations.parse().ok() }
    }

    /// 2 to 2^23 bytes.
    pub fn all_sizes(test: &'static str, iterations: &'static str, more: &[&'static str]) -> Game {
        let sizes = (1..=23).map(|power| 1 << power).collect();
        Game { test, flags: [&["-a", "-n", iterations], more].concat(), sizes, iterations: iterations.parse().ok() }
    }

    /// 2 to 4096 bytes, the path MTU.
    pub fn all_datagrams(test: &'static str) -> Game {
        let sizes = (1..=12).map(|power| 1 << power).collect();
        Game { sizes, ..Game::all_sizes(test, "5", &["-c", "UD"]) }
    }

    /// Sizes and iterations that perftest chooses itself, at a path MTU of 4096.
    pub fn by_default(test: &'static str, flags: &[&'static str]) -> Game {
        let size = match test {
            "atomic-bw" | "atomic-lat" => 8,
            test if test.ends_with("lat") => 2,
            _ if flags.contains(&"UD") => 4096,
            _ => 65536,
        };
        let iterations = if test == "write-bw" { 5000 } else { 1000 };
        Game { test, flags: flags.to_vec(), sizes: vec![size], iterations: Some(iterations) }
    }

    /// Two seconds, of which perftest counts all and we the middle one.
    pub fn by_time(test: &'static str) -> Game {
        Game { iterations: None, ..Game::by_default(test, &["-D", "2"]) }
    }

    pub fn on_queue_pairs(self, count: u64) -> Game {
        Game { iterations: self.iterations.map(|iterations| iterations * count), ..self }
    }

    /// Perftest's program.
    pub fn program(&self) -> String {
        format!("ib_{}", self.test.replace('-', "_"))
    }

    /// The program and its flags.
    pub fn line(&self) -> String {
        [&[self.program().as_str()], &self.flags[..]].concat().join(" ")
    }

    /// The sizes that an end prints: one that only serves is told the last result, or nothing.
    pub fn printed(&self, serves: bool) -> &[u64] {
        match (serves, self.test) {
            (true, "read-lat" | "atomic-lat") => &[],
            (true, "write-bw" | "read-bw" | "atomic-bw") if !self.flags.contains(&"-b") => {
                &self.sizes[self.sizes.len() - 1..]
            }
            _ => &self.sizes,
        }
    }

    /// Whether perftest printed a row for each size, or which one is missing.
    pub fn check_theirs(&self, text: &str, serves: bool) -> Result<(), String> {
        let has_row = |size: &u64| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some(&size.to_string())
                    && words.next().and_then(|word| word.parse().ok()).is_some_and(|count| self.is_right(count))
                    && words.next().is_some_and(|word| word.parse::<f64>().is_ok())
            })
        };
        match self.printed(serves).iter().find(|size| !has_row(size)) {
            // Who is told the results is not told those of a test by time.
            Some(size) if self.iterations.is_some() || !serves => Err(format!("no row for {size} bytes: {text}")),
            _ => Ok(()),
        }
    }

    /// Whether so many iterations were to be made.
    pub fn is_right(&self, iterations: u64) -> bool {
        self.iterations.map_or(iterations > 0, |wanted| iterations == wanted)
    }
}

/// Of what a kernel rxe peer in a machine is to play: every test, and of sizes, directions and services some.
pub fn some_games() -> Vec<Game> {
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

/// Every test with sizes, all sizes, both directions, queue pairs, services, shared receive queues, kinds of GID, events and
/// time, as perftest allows them. Nobody sends unreliable messages again: so few, each in one packet, that the machine's
/// receive ring of 256 packets holds all there can be.
pub fn all_games(gids: &[&'static str]) -> Vec<Game> {
    let mut games = Vec::new();
    for test in ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat"] {
        for size in ["2", "4096", "65536"] {
            games.push(Game::new(test, size, "20", &[]));
        }
        games.push(Game::all_sizes(test, "5", &[]));
    }
    games.push(Game::new("atomic-lat", "8", "20", &[]));
    for test in ["send-bw", "write-bw", "read-bw", "atomic-bw"] {
        let size = if test == "atomic-bw" { "8" } else { "4096" };
        games.push(Game::new(test, size, "20", &[]));
        games.push(Game::new(test, size, "20", &["-b"]));
        games.push(Game::new(test, size, "20", &["-q", "4"]).on_queue_pairs(4));
        games.push(Game::new(test, size, "20", &["-b", "-q", "2"]).on_queue_pairs(2));
    }
    for test in ["send-bw", "write-bw", "read-bw"] {
        games.push(Game::all_sizes(test, "5", &["-b"]));
    }
    for test in ["send-bw", "send-lat"] {
        games.push(Game::all_datagrams(test));
        games.push(Game::new(test, "1024", "20", &["-c", "UD"]));
        games.push(Game::new(test, "4096", "20", &["--use-srq"]));
    }
    games.push(Game::new("send-bw", "1024", "20", &["-c", "UD", "-b"]));
    for test in ["send-bw", "send-lat", "write-bw", "write-lat"] {
        games.push(Game::new(test, "4096", "20", &["-c", "UC"]));
    }
    games.push(Game::new("write-bw", "4096", "20", &["-x", "1", "-m", "1024"]));
    // Those above are by the first IPv4 one, which perftest and uroce choose.
    for gid in gids.iter().filter(|gid| **gid != "1") {
        for test in TESTS {
            let size = if test.starts_with("atomic") { "8" } else { "4096" };
            games.push(Game::new(test, size, "20", &["-x", gid]));
        }
    }
    for test in ["send-bw", "send-lat", "read-bw", "read-lat", "atomic-bw", "atomic-lat"] {
        let size = if test.starts_with("atomic") { "8" } else { "4096" };
        games.push(Game::new(test, size, "20", &["-e"]));
    }
    games.push(Game::new("atomic-bw", "8", "20", &["-A", "CMP_AND_SWAP"]));
    games.extend(TESTS.map(Game::by_time));
    games
}

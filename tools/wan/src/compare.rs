//! What programs make of the same network, one after the other: RDMA WRITEs over uroce, by its own program and by perftest's
//! as Debian has it, with selective repeat and with go-back-N, and TCP.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rxe_rig::process;
use serde_json::Value;

use crate::measure::{congestion_controls, measure_tcp};
use crate::network::{Side, Wan};

/// Bytes of a WRITE, and how many are outstanding: 8 MiB, 3 bandwidth-delay products of 500 Mb/s × 40 ms.
pub(crate) const MESSAGE_BYTES: u64 = 65536;
const DEPTH: u64 = 128;

/// Bandwidth-delay products that all flows have outstanding together that fill a line, and the least WRITEs of each: what waits
/// behind a lost packet must not leave the line idle.
const OUTSTANDING_BDP: u64 = 8;
const DEPTH_MIN: u64 = 16;

/// A local ACK timeout of half a second: a round trip, and what a busy machine adds to it, fits well into it.
const TIMEOUT: u8 = 17;

/// The port of the handshake.
const PORT: u16 = 18515;

/// How long a server may take to listen, and a game to end beyond its time: opening a link on a busy machine, a handshake in
/// whose middle segments are lost, and a queue pair that retries seven times.
const PATIENCE: Duration = Duration::from_secs(40);

/// How it is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program `uroce`, with its library beside it.
    pub uroce: PathBuf,
    /// How long each game takes, in seconds; at least 4.
    pub seconds: u64,
    /// How often each is played, in turn.
    pub rounds: usize,
    /// What uroce's queue pairs do not exceed, in bits a second of frames; `None` for what their controller finds.
    pub rate_bps: Option<u64>,
}

/// A line of the table.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Who sends.
    pub program: String,
    /// How losses are dealt with: `selective`, `go-back-n`, or TCP's congestion control.
    pub recovery: String,
    /// Payload a second, in bits, by round; `None` where the program failed.
    pub goodput_bps: Vec<Option<f64>>,
    /// What the last program that failed said.
    pub failure: Option<String>,
}

impl Compared {
    /// The median over all rounds; those that failed count as nothing.
    pub fn median_bps(&self) -> f64 {
        let mut all: Vec<f64> = self.goodput_bps.iter().map(|bps| bps.unwrap_or(0.0)).collect();
        all.sort_by(f64::total_cmp);
        match all.len() {
            0 => 0.0,
            count if count % 2 == 1 => all[count / 2],
            count => (all[count / 2 - 1] + all[count / 2]) / 2.0,
        }
    }
}

/// A game to play.
#[derive(Clone, Debug)]
pub(crate) enum Game {
    /// `uroce perf write-bw`.
    Perf(Writes),
    /// perftest's `ib_write_bw`, unmodified, under `uroce run`.
    Perftest(Writes),
    Tcp {
        control: String,
    },
}

/// What a program for WRITEs is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writes {
    pub recovery: &'static str,
    /// The queue pairs, and the WRITEs that each has outstanding.
    pub flows: u16,
    pub depth: u64,
    /// What `uroce perf` sends its packets with: the DSCP in the upper six bits.
    pub traffic_class: u8,
}

impl Writes {
    /// So many queue pairs that fill a line of this bandwidth-delay product, with selective repeat.
    pub fn filling(bdp_bytes: u64, flows: u16) -> Writes {
        let depth = (OUTSTANDING_BDP * bdp_bytes / MESSAGE_BYTES / u64::from(flows.max(1))).max(DEPTH_MIN);
        Writes { recovery: "selective", flows, depth, traffic_class: 0 }
    }
}

/// Why nothing was played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// What the system says.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The network could not be made, or failed.
    #[error(transparent)]
    Network(#[from] crate::WanError),
    /// The network has no bottleneck to share.
    #[error("no one bottleneck: use a single --path with a rate, as in delay=10ms,rate=100M, and one rail")]
    NoBottleneck,
}

impl Game {
    /// Who sends.
    pub fn program(&self) -> &'static str {
        match self {
            Game::Perf(_) => "uroce perf write-bw",
            Game::Perftest(_) => "ib_write_bw",
            Game::Tcp { .. } => "TCP",
        }
    }

    fn line(&self) -> Compared {
        let recovery = match self {
            Game::Perf(writes) | Game::Perftest(writes) => writes.recovery,
            Game::Tcp { control } => control.as_str(),
        };
        let (program, recovery) = (self.program().to_owned(), recovery.to_owned());
        Compared { program, recovery, goodput_bps: Vec::new(), failure: None }
    }
}

/// Plays all games, round by round, and tells of each as it is done.
///
/// # Errors
/// When `uroce` is not there, or what the system says about TCP's sockets. A program that fails is in the result.
pub fn compare(wan: &Wan, options: &Options, mut tell: impl FnMut(&Compared)) -> io::Result<Vec<Compared>> {
    is_built(options)?;
    let uroce =
        ["selective", "go-back-n"].map(|recovery| Writes { recovery, flows: 1, depth: DEPTH, traffic_class: 0 });
    let games: Vec<Game> = uroce
        .into_iter()
        .flat_map(|writes| [Game::Perf(writes), Game::Perftest(writes)])
        .chain(congestion_controls(wan).into_iter().map(|control| Game::Tcp { control }))
        .collect();
    let mut lines: Vec<Compared> = games.iter().map(Game::line).collect();
    for _ in 0..options.rounds {
        for (game, line) in games.iter().zip(&mut lines) {
            match play(wan, options, game)? {
                Ok(bps) => line.goodput_bps.push(Some(bps)),
                Err(text) => {
                    line.goodput_bps.push(None);
                    line.failure = Some(text);
                }
            }
            tell(line);
        }
    }
    Ok(lines)
}

/// That `uroce` is there.
pub(crate) fn is_built(options: &Options) -> io::Result<()> {
    if options.uroce.is_file() {
        return Ok(());
    }
    let text = format!("{} is not there: cargo build --release --workspace makes it", options.uroce.display());
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

/// Plays one game: bits of payload a second, or why there are none.
pub(crate) fn play(wan: &Wan, options: &Options, game: &Game) -> io::Result<Result<f64, String>> {
    let told = |writes: &Writes| {
        let Writes { flows, depth, .. } = writes;
        format!("-s {MESSAGE_BYTES} -t {depth} -q {flows} -D {} -u {TIMEOUT}", options.seconds)
    };
    match game {
        Game::Tcp { control } => {
            // Half of a game's time counts, as with perftest.
            let figures = measure_tcp(wan, 0, control, options.seconds as f64 / 2.0)?;
            Ok(Ok(figures.goodput_bps))
        }
        Game::Perf(writes) => {
            let words = format!("perf write-bw --json --tclass {} {}", writes.traffic_class, told(writes));
            let played = meet(wan, options, writes.recovery, &words);
            Ok(played.and_then(|output| perf_goodput(&String::from_utf8_lossy(&output.stdout))))
        }
        Game::Perftest(writes) => {
            let words = format!("run ib_write_bw -F --report_gbits {}", told(writes));
            let played = meet(wan, options, writes.recovery, &words);
            Ok(played.and_then(|output| perftest_goodput(&String::from_utf8_lossy(&output.stdout))))
        }
    }
}

/// Starts the same program on both hosts, the server at B, and waits for both ends; the client's output.
fn meet(wan: &Wan, options: &Options, recovery: &str, words: &str) -> Result<Output, String> {
    let start = |side: Side, more: &[&str]| {
        let mut command = wan.namespace(side).command(&options.uroce);
        command.args(words.split(' ')).args(more).envs(variables(wan, options, recovery, side));
        spawn(command)
    };
    let mut server = Guard(Some(start(Side::B, &[])?));
    let end = Instant::now() + PATIENCE;
    while !listens(wan)? {
        if let Some(status) = server.ended()? {
            return Err(format!("the server ended ({status}): {}", server.output()?));
        }
        if Instant::now() > end {
            return Err("the server does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let host = wan.host(Side::B, 0).ipv4.to_string();
    let mut client = Guard(Some(start(Side::A, &[host.as_str()])?));
    let end = Instant::now() + Duration::from_secs(options.seconds) + PATIENCE;
    while client.ended()?.is_none() {
        if Instant::now() > end {
            return Err("the client does not end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = client.finish()?;
    if !output.status.success() {
        return Err(format!("the client failed ({}): {}", output.status, last_line(&output.stderr)));
    }
    Ok(output)
}

/// What both programs are told in the environment: the interfaces, and how to send. Others of `UROCE_*` come from ours.
fn variables(wan: &Wan, options: &Options, recovery: &str, side: Side) -> Vec<(&'static str, String)> {
    let rails = 0..wan.plan().rails.len();
    let interfaces: Vec<String> = rails.map(|rail| wan.host(side, rail).interface).collect();
    // Towards peers that do not know it, selective repeat is go-back-N: the default.
    let recovery = if recovery == "selective" { "auto" } else { recovery };
    let mut variables = vec![("UROCE_DEV", interfaces.join(",")), ("UROCE_RECOVERY", recovery.to_owned())];
    variables.extend(options.rate_bps.map(|rate| ("UROCE_RATE", rate.to_string())));
    variables
}

/// What all of the network's ways from A to B carry together, if that is limited.
pub fn capacity_bps(wan: &Wan) -> Option<u64> {
    wan.plan().rails.iter().flat_map(|rail| &rail.there).map(|path| path.rate_bps).sum()
}

fn spawn(mut command: Command) -> Result<Child, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn(command).map_err(|error| format!("cannot start it: {error}"))
}

/// A program that is ended when nobody waits for it any more.
struct Guard(Option<Child>);

impl Guard {
    fn ended(&mut self) -> Result<Option<std::process::ExitStatus>, String> {
        let child = self.0.as_mut().ok_or("it was waited for")?;
        child.try_wait().map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<Output, String> {
        let child = self.0.take().ok_or("it was waited for")?;
        child.wait_with_output().map_err(|error| error.to_string())
    }

    fn output(&mut self) -> Result<String, String> {
        self.finish().map(|output| last_line(&output.stderr))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").to_owned()
}

/// Whether the server listens.
fn listens(wan: &Wan) -> Result<bool, String> {
    let wanted = format!(":{PORT:04X} ");
    let table = wan.namespace(Side::B).run(|| {
        // IPv6 may be off.
        ["tcp", "tcp6"].map(|file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default())
    });
    // Local address, remote address, state 0A is LISTEN.
    Ok(table.iter().flat_map(|table| table.lines()).any(|line| line.contains(&wanted) && line.contains(" 0A ")))
}

/// What `uroce perf --json` says: bits a second.
fn perf_goodput(stdout: &str) -> Result<f64, String> {
    let line = stdout.lines().last().ok_or("it printed nothing")?;
    let value: Value = serde_json::from_str(line).map_err(|error| format!("it printed {line:?}: {error}"))?;
    // MB/s are 2^20 bytes.
    let megabytes = value["bw_average"].as_f64().ok_or_else(|| format!("no bw_average in {line}"))?;
    Ok(megabytes * f64::from(1 << 20) * 8.0)
}

/// What perftest's table says with `--report_gbits`: bits a second. Its line has size, iterations, peak, average and rate.
fn perftest_goodput(stdout: &str) -> Result<f64, String> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>().ok();
    let row = stdout.lines().rev().filter_map(numbers).find(|row| row.len() >= 5);
    row.map(|row| row[3] * 1e9).ok_or_else(|| format!("it printed no result: {}", last_line(stdout.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_in_what_programs_print() {
        let text = "---\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                    65536      6400             0.00               0.42   \t\t   0.000801\n-----\n";
        assert_eq!(perftest_goodput(text), Ok(0.42e9));
        assert!(perftest_goodput("failed to connect\n").unwrap_err().contains("failed to connect"));
        assert_eq!(perf_goodput("{\"bw_average\": 2.0}\n"), Ok(2.0 * 8.0 * 1_048_576.0));
        assert!(perf_goodput("{}\n").is_err() && perf_goodput("").is_err());
    }

    #[test]
    fn the_median_counts_failures_as_nothing() {
        let of = |rounds: &[Option<f64>]| {
            let line = Game::Perf(Writes::filling(0, 1)).line();
            Compared { goodput_bps: rounds.to_vec(), ..line }.median_bps()
        };
        assert_eq!(of(&[Some(3.0), Some(1.0), Some(2.0)]), 2.0);
        assert_eq!(of(&[Some(3.0), None, None]), 0.0);
        assert_eq!(of(&[Some(3.0), Some(1.0)]), 2.0);
        assert_eq!(of(&[]), 0.0);
    }
}

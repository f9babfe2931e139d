//! `uroce-wan`: two hosts in namespaces with a wide area network between them, to try things in or to be measured.
//! `cargo xtask wan` builds this program and passes its options on.
#![allow(clippy::disallowed_methods, reason = "it lives on the wall clock")]

use std::ops::RangeInclusive;
use std::process::ExitCode;

use clap::Parser;
use wan::{Conditions, Direction, Plan, Rail, Report, Side, Wan, beside, compare, grid, measure};

/// Two namespaces with a wide area network between them: a shell or a command in one of them, or its own measure
#[derive(Parser)]
#[command(name = "cargo xtask wan")]
struct Arguments {
    /// A path: delay=20ms,jitter=1ms,overtaking,loss=0.01,burst=8,rate=500M,queue=2M,ecn=200k. Several are parallel;
    /// addresses and ports decide which one a frame takes
    #[arg(long = "path", value_name = "LIST", default_value = "delay=20ms")]
    paths: Vec<Conditions>,

    /// The paths of the way back, when they are other ones
    #[arg(long = "back", value_name = "LIST")]
    back: Vec<Conditions>,

    /// Pairs of interfaces, each with all of these paths
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    rails: u8,

    /// The hosts' MTU; 4200 carries path MTU 4096
    #[arg(long, default_value_t = 4200, value_parser = clap::value_parser!(u16).range(1280..))]
    mtu: u16,

    /// Decides all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Forward as an ordinary thread instead of before all of those (SCHED_RR)
    #[arg(long)]
    ordinary: bool,

    /// Measure delay, loss, rate and TCP with probes of the network's own, so many seconds a figure, and print them; no
    /// shell then
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = within(0.1..=3600.0),
          conflicts_with = "command")]
    measure: Option<f64>,

    /// Have programs send over it one after the other, so many seconds each (at least 4): `uroce perf write-bw` and Debian's
    /// ib_write_bw on uroce, with selective repeat and with go-back-N, and TCP; print what each reached. No shell then. More
    /// options for uroce are UROCE_* variables, such as UROCE_PATHS
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "6", conflicts_with_all = ["command", "measure"],
          value_parser = clap::value_parser!(u64).range(4..=3600))]
    compare: Option<u64>,

    /// Play all of the wide area instead: each combination of --rtt, --buffer and --loss at 500 Mb/s, each program so many
    /// seconds (at least 4): `uroce perf write-bw` with --flows queue pairs, Debian's ib_write_bw on uroce, TCP CUBIC and BBR
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "8", value_parser = clap::value_parser!(u64).range(4..=3600),
          conflicts_with_all = ["command", "measure", "compare", "paths", "back", "rails"])]
    grid: Option<u64>,

    /// Round trips of --grid, in milliseconds
    #[arg(long, value_name = "MS,…", value_delimiter = ',', default_value = "20,40,100", requires = "grid",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    rtt: Vec<u16>,

    /// Buffers of --grid, in bandwidth-delay products
    #[arg(long, value_name = "BDP,…", value_delimiter = ',', default_value = "0.1,1", requires = "grid", value_parser = within(0.01..=100.0))]
    buffer: Vec<f64>,

    /// The shares of packets that --grid loses each way
    #[arg(long, value_name = "SHARE,…", value_delimiter = ',', default_value = "0,0.001,0.01,0.05", requires = "grid",
          value_parser = within(0.0..=0.5))]
    loss: Vec<f64>,

    /// Queue pairs of `uroce perf write-bw` in --grid
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,64", requires = "grid",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    flows: Vec<u16>,

    /// Have flows share it instead, each mix so many seconds (a multiple of 8, of which the middle half counts): one queue pair of
    /// `uroce perf write-bw`, TCP CUBIC and TCP BBR, alone and beside each other; then the scavenger class beside TCP that
    /// sends for 2 s and pauses for 2 s. Takes one --path with a rate
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "32", value_parser = whole_periods,
          conflicts_with_all = ["command", "measure", "compare", "grid"])]
    beside: Option<u64>,

    /// How often --compare plays each game; the median counts
    #[arg(long, default_value_t = 1, requires = "compare", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// What --compare has uroce's queue pairs not exceed, in bits a second of frames; default: what their controller finds
    #[arg(long, value_name = "BITS", requires = "compare")]
    rate: Option<u64>,

    /// One JSON object a line instead of tables
    #[arg(long)]
    json: bool,

    /// What to run in host A's namespace (`$THERE` runs a command in B's); default: a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// What went wrong, in one line.
type Failure = Box<dyn std::error::Error>;

/// What reads a number of this range.
fn within(range: RangeInclusive<f64>) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is none of {} to {}", range.start(), range.end())),
    }
}

/// What reads seconds whose middle half has as many periods of TCP that sends and pauses as pauses.
fn whole_periods(text: &str) -> Result<u64, String> {
    let half = 2 * beside::PAUSES.as_secs();
    let seconds =
        text.parse().ok().filter(|seconds: &u64| (1..=3600).contains(seconds) && seconds.is_multiple_of(2 * half));
    seconds.ok_or_else(|| format!("{text:?} is no multiple of {} up to 3600", 2 * half))
}

fn megabits(bps: f64) -> String {
    format!("{:.1} Mb/s", bps / 1e6)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("wan: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let back = if arguments.back.is_empty() { &arguments.paths } else { &arguments.back };
    let rail = Rail { there: arguments.paths.clone(), back: back.clone() };
    let rails = vec![rail; usize::from(arguments.rails)];
    let plan = Plan { mtu: arguments.mtu, rails, seed: arguments.seed, realtime: !arguments.ordinary };
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        return Err("network namespaces and packet sockets need root: run it with sudo".into());
    }
    if let Some(seconds) = arguments.grid {
        return play_grid(&plan, arguments, seconds);
    }
    if let Some(seconds) = arguments.beside {
        return play_beside(&plan, arguments, seconds);
    }
    let mut wan = Wan::start(plan)?;
    if let Some(seconds) = arguments.measure {
        let report = Report::of_figures(measure::measure(&wan, seconds)?);
        // Had it failed meanwhile, this says so.
        wan.stop()?;
        println!("{}", if arguments.json { report.to_json_lines() } else { report.to_text() });
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(seconds) = arguments.compare {
        let report = play(&mut wan, arguments, seconds)?;
        println!("{}", if arguments.json { report.to_json_lines() } else { report.to_text() });
        return Ok(ExitCode::SUCCESS);
    }
    describe(&wan);
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
    let (program, rest) = arguments.command.split_first().map_or((shell.as_str(), &[][..]), |(p, rest)| (p, rest));
    let mut command = wan.namespace(Side::A).command(program);
    command.args(rest).env("THERE", format!("ip netns exec {}", wan.namespace(Side::B).name()));
    let status = command.status().map_err(|e| format!("cannot start {program}: {e}"))?;
    let report = Report::of_counts(wan.stop()?);
    if arguments.json {
        println!("{}", report.to_json_lines());
    } else {
        // Standard output is the command's.
        eprintln!("{}", report.to_text());
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn compare_options(arguments: &Arguments, seconds: u64) -> Result<compare::Options, Failure> {
    let own = std::env::current_exe().map_err(|e| format!("cannot tell where this program is: {e}"))?;
    let uroce = own.with_file_name("uroce");
    Ok(compare::Options { uroce, seconds, rounds: usize::from(arguments.rounds), rate_bps: arguments.rate })
}

/// Has programs send over all of the wide area. The status is 1 when one of them failed.
fn play_grid(plan: &Plan, arguments: &Arguments, seconds: u64) -> Result<ExitCode, Failure> {
    let Arguments { rtt, buffer, loss, flows, .. } = arguments;
    let cells = grid::Grid {
        round_trips_ms: rtt.clone(),
        buffers_bdp: buffer.clone(),
        losses: loss.clone(),
        flows: flows.clone(),
    };
    let tell = |row: &grid::Row| {
        let grid::Cell { round_trip, buffer_bdp, loss } = row.cell;
        let reached = row.goodput_bps.as_ref().map_or_else(String::clone, |bps| megabits(*bps));
        eprintln!("{round_trip:?}, {buffer_bdp} BDP, {loss}: {} × {}: {reached}", row.flows, row.program);
        if arguments.json {
            println!("{}", row.to_json());
        }
    };
    let rows = cells.play(&compare_options(arguments, seconds)?, plan, tell)?;
    if !arguments.json {
        println!("{}", grid::table(&rows));
    }
    Ok(if rows.iter().all(|row| row.goodput_bps.is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has uroce and TCP share the network. The status is 1 when a program failed.
fn play_beside(plan: &Plan, arguments: &Arguments, seconds: u64) -> Result<ExitCode, Failure> {
    let tell = |row: &beside::Row| {
        eprintln!("{}", row.to_line());
        if arguments.json {
            println!("{}", row.to_json());
        }
    };
    let rows = beside::play(&compare_options(arguments, seconds)?, plan, tell)?;
    if !arguments.json {
        println!("{}", beside::tables(&rows));
    }
    Ok(if rows.iter().all(|row| row.failure().is_none()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has programs send over the network.
fn play(wan: &mut Wan, arguments: &Arguments, seconds: u64) -> Result<Report, Failure> {
    let options = compare_options(arguments, seconds)?;
    let tell = |line: &compare::Compared| {
        let last = line.goodput_bps.last().copied().flatten();
        let text = match (last, &line.failure) {
            (None, Some(why)) => why.clone(),
            (last, _) => megabits(last.unwrap_or(0.0)),
        };
        eprintln!("{}, {}: {text}", line.program, line.recovery);
    };
    let compared = compare::compare(wan, &options, tell)?;
    let capacity_bps = compare::capacity_bps(wan);
    // Had forwarding failed meanwhile, this says so.
    Ok(Report::of_compared(compared, capacity_bps, wan.stop()?))
}

/// Says where everything is.
fn describe(wan: &Wan) {
    for rail in 0..wan.plan().rails.len() {
        let (a, b) = (wan.host(Side::A, rail), wan.host(Side::B, rail));
        eprintln!("here: {} {} {}; there: {} {} {}", a.interface, a.ipv4, a.ipv6, b.interface, b.ipv4, b.ipv6);
        for direction in [Direction::AToB, Direction::BToA] {
            let paths = wan.plan().rails[rail].paths(direction);
            paths.iter().for_each(|conditions| eprintln!("  {}: {conditions}", direction.name()));
        }
    }
    eprintln!("`$THERE command` runs a command there (namespace {})", wan.namespace(Side::B).name());
}

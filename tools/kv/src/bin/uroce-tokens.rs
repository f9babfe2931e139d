//! `uroce-tokens`: messages of 64 bytes beside KV transfers at full rate, over real frames.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use kv::{Beside, TokenPlan, TokensPlayed, play_tokens};
use uroce::verbs::LinkKind;
use wan::Conditions;

/// How long messages of 64 bytes take through an emulated wide area network that is one queue: alone, beside WRITEs at full
/// rate of class bulk, and beside the same in one class
#[derive(Parser)]
#[command(name = "uroce-tokens")]
struct Arguments {
    /// The path, the same both ways: delay=15ms,rate=300M,loss=0.001
    #[arg(long, value_name = "LIST", default_value = "delay=15ms,rate=300M")]
    path: Conditions,

    /// Messages that are measured
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    tokens: u32,

    /// The mean time between two, in microseconds; default: a 40th of the round trip
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    every: Option<u64>,

    /// Queue pairs that WRITE beside them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    flows: u8,

    /// Decides which frames are lost, and when messages go
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// What carries frames: auto, xdp or udp
    #[arg(long, default_value = "auto")]
    link: LinkKind,

    /// Have transfers open the device once more, as another program would
    #[arg(long)]
    apart: bool,

    /// Print one JSON object per run instead of a table (docs/schemas/kv.tokens.json)
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tokens: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        return Err("network namespaces need root: run it with sudo".into());
    }
    let every =
        arguments.every.map_or(arguments.path.delay / 20, Duration::from_micros).max(Duration::from_micros(100));
    let plan = TokenPlan {
        path: arguments.path,
        tokens: arguments.tokens as usize,
        every,
        flows: arguments.flows.into(),
        warm_up: Duration::from_secs(4).div_duration_f64(every) as usize + 1,
        seed: arguments.seed,
        link: arguments.link,
        apart: arguments.apart.then(uroce).transpose()?,
    };
    let mut idle: Option<TokensPlayed> = None;
    for beside in Beside::ALL {
        let played = play_tokens(&plan, beside)?;
        let idle = idle.get_or_insert_with(|| played.clone());
        match arguments.json {
            true => println!("{}", played.to_json(&plan, idle)),
            false => println!("{}", describe(&plan, &played, idle)),
        }
    }
    Ok(())
}

/// The program `uroce`, which programs share a device by.
fn uroce() -> Result<PathBuf, String> {
    let path = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("uroce");
    match path.exists() {
        true => Ok(path),
        false => Err(format!("--apart needs {}: build it by cargo build --release -p uroce-cli", path.display())),
    }
}

fn describe(plan: &TokenPlan, played: &TokensPlayed, idle: &TokensPlayed) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let late = [0.5, 0.99, 1.0].map(|share| played.lateness.quantile(share).as_micros());
    format!(
        "{:9}  median {:8.3} ms  p99 {:8.3} ms, {:5.2} % of the round trip over idle  goodput {:6.1} Mb/s  \
         frames late by {} µs (median), {} (99 %), {} (most)",
        played.beside,
        ms(played.quantile(0.5)),
        ms(played.quantile(0.99)),
        100.0 * played.over_of_rtt(plan, idle),
        played.goodput_bps / 1e6,
        late[0],
        late[1],
        late[2],
    )
}

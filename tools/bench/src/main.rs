//! `uroce-bench`: this stack beside the bare AF_XDP pipe, UDP and TCP, on one veth cable in one run.
//!
//! Machines differ and are noisy, so no figure means much alone: all figures are taken in rounds, one after the other,
//! and each is also given as a ratio to the figure it should be measured by, taken in the same round. `cargo xtask bench`
//! builds this program and passes its options on.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

mod bare;
mod ends;
mod figure;
mod iperf;
mod machines;
mod perftest;
mod program;
mod rig;
mod soak;
mod sockets;
mod threads;
mod verbs;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use uroce::link::xdp::AttachMode;
use uroce::verbs::LinkKind;

use figure::{Figure, Series};
use rig::Rig;

/// This stack, the bare AF_XDP pipe, UDP and TCP on the same veth, as ratios
#[derive(Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// One JSON object a figure instead of a table
    #[arg(long)]
    json: bool,

    /// How often each figure is taken; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Seconds a figure and round
    #[arg(long, default_value_t = 0.4, value_parser = parse_seconds)]
    seconds: f64,

    /// Only figures whose names contain this, and those they are ratios to; of --soak, links
    #[arg(long)]
    only: Option<String>,

    /// Where XDP programs are attached
    #[arg(long, value_enum, default_value_t = Mode::Native)]
    mode: Mode,

    /// Receive each side's frames on its own core (RPS) instead of the sender's; implies --mode skb
    #[arg(long)]
    balanced: bool,

    /// Run before all other programs (SCHED_RR): steadier figures, but the rest of the machine stands still meanwhile
    #[arg(long)]
    realtime: bool,

    /// Show what the stack counted, on stderr
    #[arg(long)]
    counters: bool,

    /// Instead of figures: sixteen queue pairs send for so many seconds over each link, 0.1 % of frames are lost, every byte is
    /// compared, and memory is watched
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with_all = ["rounds", "seconds"])]
    soak: Option<f64>,

    /// Instead of figures: instructions and frames of a message between two emulated machines, the kernel's rxe beside this stack
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "only", "soak"])]
    machines: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// In the driver
    Native,
    /// In the kernel's stack
    Skb,
}

/// What went wrong, in one line.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("{text:?} is none of 0.01 to 3600")),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.machines {
        let lines = machines::run()?;
        match arguments.json {
            true => lines.iter().for_each(|line| println!("{line}")),
            false => println!("{}", machines::table(&lines)),
        }
        return Ok(());
    }
    let figures = selected(figure::all(), arguments.only.as_deref())?;
    let mode = match arguments.mode {
        Mode::Native if !arguments.balanced => AttachMode::Native,
        _ => AttachMode::Skb,
    };
    let rig = Rig::new(mode, arguments.balanced, arguments.realtime, arguments.counters)?;
    eprintln!("{}", rig.description());
    if let Some(seconds) = arguments.soak {
        let is_wanted = |name: &str| arguments.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
        for (_, link) in
            [("xdp", LinkKind::Xdp), ("udp", LinkKind::Udp)].into_iter().filter(|(name, _)| is_wanted(name))
        {
            println!("{}", soak::run(&rig, link, seconds)?);
        }
        return Ok(());
    }
    let mut series: Vec<Series> = figures.iter().map(|_| Series::default()).collect();
    for round in 1..=arguments.rounds {
        for (figure, series) in figures.iter().zip(&mut series) {
            // One that could not be taken is missing in its round: hours of others are not lost with it.
            let sample = figure.take(&rig, arguments.seconds);
            let said = sample.as_ref().map_or_else(|e| format!("not taken: {e}"), |sample| figure.show(sample.value));
            eprintln!("round {round} of {}: {:<24} {said}", arguments.rounds, figure.name);
            series.push(sample.ok());
        }
    }
    if arguments.json {
        println!("{}", rig.to_json());
        for line in figure::json_lines(&figures, &series) {
            println!("{line}");
        }
    } else {
        println!("{}\n{}", rig.description(), figure::table(&figures, &series));
    }
    let missing = figures.iter().zip(&series).filter(|(_, series)| series.is_empty());
    let names: Vec<_> = missing.map(|(figure, _)| figure.name.as_str()).collect();
    match names[..] {
        [] => Ok(()),
        _ => Err(format!("never taken: {}", names.join(", ")).into()),
    }
}

/// The figures whose names contain `only`, and those they refer to.
fn selected(all: Vec<Figure>, only: Option<&str>) -> Result<Vec<Figure>, Failure> {
    let Some(only) = only else { return Ok(all) };
    let matches = |figure: &Figure| figure.name.contains(only);
    let wanted: Vec<String> = all
        .iter()
        .filter(|figure| matches(figure))
        .flat_map(|figure| [Some(figure.name.clone()), figure.of.clone(), figure.bare.clone()])
        .flatten()
        .collect();
    if wanted.is_empty() {
        let names: Vec<_> = all.iter().map(|figure| figure.name.as_str()).collect();
        return Err(format!("no figure's name contains {only:?}; there are {}", names.join(", ")).into());
    }
    Ok(all.into_iter().filter(|figure| wanted.contains(&figure.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_brings_what_its_ratios_are_to() {
        let names = |only| {
            let figures =
                selected(figure::all(), Some(only)).map(|f| f.into_iter().map(|f| f.name).collect::<Vec<_>>());
            figures.unwrap_or_default()
        };
        assert_eq!(names("write-64k-mtu1024"), ["pipe-mtu1024", "pipe-copy-crc-mtu1024", "write-64k-mtu1024-xdp"]);
        assert_eq!(names("udp-rtt"), ["pipe-rtt", "udp-rtt"]);
        assert!(names("nothing").is_empty());
    }
}

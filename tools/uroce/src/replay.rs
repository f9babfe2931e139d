//! `uroce replay`: a capture against our own state machine.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;
use uroce::pcap::{CapturedFrame, ReadError, Reader};
use uroce_laboratory::replay::{Finding, Report, Roles, replay};

use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce replay capture.pcap                      our packets beside those of both ends
  uroce replay --as responder capture.pcap       only our answers
  uroce replay --json capture.pcap | jq .different";

/// Drive this stack with one side of a capture, and compare its packets with those of the other side.
///
/// The comparison covers opcode, PSN, syndrome, MSN and payload. What the capture does not show (regions, receive
/// requests, frames that were lost behind the capture) is inferred and listed. Exit status 1 when anything differs, or the
/// file cannot be read to its end.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A pcap or pcapng file with Ethernet frames; `-` is standard input.
    file: PathBuf,
    /// The role that this stack plays. Default: both, one after the other.
    #[arg(long = "as", value_name = "ROLE")]
    role: Option<Role>,
    /// Print one JSON object (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    /// Sends the requests.
    Requester,
    /// Answers the requests.
    Responder,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    compared: u64,
    equal: u64,
    different: Vec<JsonFinding<'a>>,
    explained: Vec<JsonFinding<'a>>,
    assumed: &'a [String],
    conversations: u64,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    frame: u64,
    rule: &'a str,
    text: &'a str,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::from(format!("{}: {error}", arguments.file.display()));
    let frames = if arguments.file.as_os_str() == "-" {
        Reader::new(io::stdin().lock()).and_then(Iterator::collect::<Result<Vec<CapturedFrame>, ReadError>>)
    } else {
        Reader::open(&arguments.file).and_then(Iterator::collect)
    };
    let frames = frames.map_err(|error| named(&error))?;
    let roles = match arguments.role {
        Some(Role::Requester) => Roles::Requester,
        Some(Role::Responder) => Roles::Responder,
        None => Roles::Both,
    };
    let report = replay(&frames, roles).map_err(|error| named(&error))?;
    print(&report, arguments.json, io::stdout().lock()).map_err(|error| format!("standard output: {error}"))?;
    Ok(ExitCode::from(u8::from(!report.different.is_empty())))
}

fn print(report: &Report, json: bool, mut out: impl Write) -> io::Result<()> {
    if json {
        let Report { compared, equal, explained, different, assumed, conversations } = report;
        let (different, explained) = (findings(different), findings(explained));
        let (compared, equal, conversations) = (*compared, *equal, *conversations);
        let schema = "uroce.replay/1";
        let found = Json { schema, compared, equal, different, explained, assumed, conversations };
        serde_json::to_writer(&mut out, &found)?;
        return writeln!(out);
    }
    for line in &report.assumed {
        writeln!(out, "assumed    {line}")?;
    }
    for (word, list) in [("explained", &report.explained), ("DIFFERENT", &report.different)] {
        for Finding { frame, rule, text } in list {
            writeln!(out, "{word}  frame {frame}: {rule}: {text}")?;
        }
    }
    let Report { compared, equal, explained, different, conversations, .. } = report;
    writeln!(
        out,
        "{conversations} conversations: {compared} compared, {equal} equal, {} explained (docs/INTEROP.md), {} different",
        explained.len(),
        different.len()
    )
}

fn findings(list: &[Finding]) -> Vec<JsonFinding<'_>> {
    list.iter().map(|Finding { frame, rule, text }| JsonFinding { frame: *frame, rule, text }).collect()
}

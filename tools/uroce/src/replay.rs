//! `uroce replay`: a capture against our own state machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::ValueEnum;
use serde::Serialize;
use uroce::pcap::{CapturedFrame, ReadError};
use uroce_laboratory::replay::{Finding, Report, Roles, replay};

use crate::Failure;
use crate::capture_file;
use crate::filter::{self, Filter};
use crate::marks::Streams;
use crate::report;

/// Drive this stack with one side of a capture, and compare its packets with those of the other side.
///
/// The comparison covers opcode, PSN, syndrome, MSN and payload. What the capture does not show (regions, receive
/// requests, frames that were lost behind the capture) is inferred, and listed with -v. Exit status 1 when anything
/// differs, or the file cannot be read to its end.
///
/// Connections that repeat selectively (docs/EXTENSIONS.md) are replayed without their retransmissions; -v says what of
/// them is not compared.
#[derive(clap::Args)]
#[command(after_long_help = AFTER_HELP.as_str())]
pub(crate) struct Arguments {
    /// A pcap or pcapng file with Ethernet frames, or captured on `any`, perhaps compressed (gzip, zstd); `-` is standard
    /// input.
    file: PathBuf,
    /// The role that this stack plays. Default: both, one after the other.
    #[arg(long = "as", value_name = "ROLE")]
    role: Option<Role>,
    /// Print one JSON object (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Also print what was assumed, and what was not compared.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    filter: Filter,
}

static AFTER_HELP: LazyLock<String> = LazyLock::new(|| {
    filter::after_help(
        "  uroce replay capture.pcapng
  uroce replay -v --as responder capture.pcap.gz
  uroce replay --qp 0x42 --json capture.pcap | jq .different\n",
    )
});

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
    /// Where the rule stands.
    source: &'static str,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::from(format!("{}: {error}", arguments.file.display()));
    let frames = frames(&arguments.file).map_err(|error| named(&error))?;
    let frames = selected(frames, &arguments.filter);
    let roles = match arguments.role {
        Some(Role::Requester) => Roles::Requester,
        Some(Role::Responder) => Roles::Responder,
        None => Roles::Both,
    };
    let report = replay(&frames, roles).map_err(|error| named(&error))?;
    print(&report, arguments, io::stdout().lock()).map_err(|error| format!("standard output: {error}"))?;
    Ok(ExitCode::from(u8::from(!report.different.is_empty())))
}

fn frames(file: &Path) -> Result<Vec<CapturedFrame>, ReadError> {
    capture_file::open(file)?.collect()
}

/// The frames that the filter selects; their senders are known from the beginning.
fn selected(frames: Vec<CapturedFrame>, filter: &Filter) -> Vec<CapturedFrame> {
    let Some(start) = frames.first().map(|frame| frame.time).filter(|_| !filter.is_empty()) else { return frames };
    let mut streams = Streams::with_pairs(Streams::pairs_of(frames.iter()));
    let mut matches = |frame: &CapturedFrame| {
        report::Report::next(frame, &mut streams, start).is_some_and(|report| filter.matches(&report))
    };
    frames.into_iter().filter(|frame| matches(frame)).collect()
}

fn print(report: &Report, arguments: &Arguments, mut out: impl Write) -> io::Result<()> {
    let Report { compared, equal, explained, different, assumed, conversations } = report;
    let (compared, equal, conversations) = (*compared, *equal, *conversations);
    if arguments.json {
        let (different, explained) = (findings(different), findings(explained));
        let schema = "uroce.replay/1";
        let found = Json { schema, compared, equal, different, explained, assumed, conversations };
        serde_json::to_writer(&mut out, &found)?;
        return writeln!(out);
    }
    let verdict = match (different.len(), explained.len(), compared) {
        (_, _, 0) => "NOTHING COMPARED",
        (0, 0, _) => "EQUAL",
        (0, ..) => "EQUAL, except what is explained",
        _ => "DIFFERENT",
    };
    writeln!(
        out,
        "{verdict}: {conversations} conversations: {compared} compared, {equal} equal, {} explained, {} different",
        explained.len(),
        different.len()
    )?;
    for (word, list) in [("DIFFERENT", different), ("explained", explained)] {
        for Finding { frame, rule, text } in list {
            writeln!(out, "{word}  frame {frame}: {rule} ({}): {text}", source(rule))?;
        }
    }
    match assumed.len() {
        0 => Ok(()),
        _ if arguments.verbose => assumed.iter().try_for_each(|line| writeln!(out, "assumed    {line}")),
        lines => writeln!(out, "{lines} assumptions, or what was not compared: -v lists them"),
    }
}

fn findings(list: &[Finding]) -> Vec<JsonFinding<'_>> {
    list.iter()
        .map(|Finding { frame, rule, text }| JsonFinding { frame: *frame, rule, text, source: source(rule) })
        .collect()
}

/// Where a rule stands.
fn source(rule: &str) -> &'static str {
    match rule {
        "nak-after-rnr" | "send-too-long" | "invalidate-of-a-region" => "docs/INTEROP.md",
        "trigger" | "received" | "tag" => "docs/EXTENSIONS.md",
        "opcode" => "IBTA Table 38",
        "psn" => "IBTA 9.7.2",
        "syndrome" | "missing-answer" | "unexpected-answer" => "IBTA 9.7.5",
        "msn" => "IBTA 9.7.7.1",
        "rnr-delay" => "IBTA 9.7.5.2.8",
        "delivery" => "IBTA 9.8",
        _ => "IBTA 9.7",
    }
}

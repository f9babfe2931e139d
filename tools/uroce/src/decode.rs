//! `uroce decode`: a line a packet.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use uroce::pcap::{CapturedFrame, ReadError, Reader};
use uroce::time::{Duration, Instant};
use uroce_laboratory::dissection::{Dissection, Icrc};

use crate::Failure;
use crate::report::Report;

const EXAMPLES: &str = "\
Examples:
  uroce decode capture.pcap | less -S
  uroce decode --json capture.pcap | jq 'select(.icrc != \"ok\")'
  tcpdump -w - -i eth0 udp port 4791 | uroce decode -";

/// Print the RoCE v2 packets of a capture, one per line: headers, and whether the ICRC is right.
///
/// Exit status 1 when any packet is malformed or its ICRC wrong, or the file cannot be read to its end. Reserved opcodes,
/// transport versions other than 0 and foreign P_Keys are shown, and are not failures. Other traffic is skipped.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A pcap or pcapng file with Ethernet frames; `-` is standard input.
    file: PathBuf,
    /// Print one JSON object per packet, with all its fields (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// What was seen.
#[derive(Default)]
struct Tally {
    packets: u64,
    skipped: u64,
    malformed: u64,
    icrc_bad: u64,
    icrc_absent: u64,
    first: Option<Instant>,
}

/// Why no more is printed.
enum Stop {
    Read(ReadError),
    Write(io::Error),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut tally = Tally::default();
    let out = BufWriter::new(io::stdout().lock());
    let result = if arguments.file.as_os_str() == "-" {
        Reader::new(io::stdin().lock()).map_err(Stop::Read).and_then(|frames| tally.print(frames, arguments.json, out))
    } else {
        Reader::open(&arguments.file).map_err(Stop::Read).and_then(|frames| tally.print(frames, arguments.json, out))
    };
    let Tally { packets, skipped, malformed, icrc_bad, icrc_absent, .. } = tally;
    match result {
        Ok(()) => {}
        Err(Stop::Write(error)) => return Err(format!("standard output: {error}").into()),
        Err(Stop::Read(error)) => return Err(format!("{}: {error}", arguments.file.display()).into()),
    }
    eprintln!(
        "{packets} RoCE packets: {malformed} malformed, {icrc_bad} with a wrong ICRC, {icrc_absent} without; \
         {skipped} other frames skipped"
    );
    Ok(tally.status())
}

impl Tally {
    fn print(
        &mut self,
        frames: impl Iterator<Item = Result<CapturedFrame, ReadError>>,
        json: bool,
        mut out: impl Write,
    ) -> Result<(), Stop> {
        let result = frames.map(|frame| frame.map_err(Stop::Read)).try_for_each(|frame| {
            let frame = frame?;
            let start = *self.first.get_or_insert(frame.time);
            let whole = frame.padded();
            let Some(dissection) = Dissection::of(&whole, frame.bytes.len()) else {
                self.skipped += 1;
                return Ok(());
            };
            self.count(&dissection);
            let report = Report::of(&frame, &dissection);
            write_report(&mut out, &report, json, frame.time.saturating_since(start)).map_err(Stop::Write)
        });
        // What was good before a failure is shown.
        out.flush().map_err(Stop::Write).and(result)
    }

    fn count(&mut self, dissection: &Dissection<'_>) {
        self.packets += 1;
        self.malformed += u64::from(dissection.malformed.is_some());
        self.icrc_bad += u64::from(dissection.icrc == Icrc::Bad);
        self.icrc_absent += u64::from(dissection.icrc == Icrc::Absent);
    }

    fn status(&self) -> ExitCode {
        ExitCode::from(u8::from(self.malformed > 0 || self.icrc_bad > 0))
    }
}

fn write_report(out: &mut impl Write, report: &Report, json: bool, since_start: Duration) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, report)?;
        writeln!(out)
    } else {
        writeln!(out, "{:>5} {:>12.6} {report}", report.frame, since_start.as_secs_f64())
    }
}

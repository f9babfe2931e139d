//! `uroce decode`: a line a packet.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::ColorChoice;
use uroce::pcap::ReadError;

use crate::Failure;
use crate::capture_file;
use crate::failure;
use crate::filter::{self, Filter};
use crate::marks::{Mark, Pairs, Streams};
use crate::packet_line::PacketLine;
use crate::report::Report;

/// Print the RoCE v2 packets of captures, one per line: headers, what is wrong, and what comes again.
///
/// Exit status 1 when any printed packet is malformed or its ICRC wrong, or a file cannot be read to its end. Reserved
/// opcodes, transport versions other than 0 and foreign P_Keys are shown, and are not failures. Other traffic is skipped.
///
/// Marks follow each queue pair: [retransmission of frame 3], [duplicate of frame 3], [gap: PSN 5 to 7 missing], [out of
/// order]. PSNs are printed as pingpong and perf print them, and in brackets as Wireshark does.
#[derive(clap::Args)]
#[command(after_long_help = AFTER_HELP.as_str())]
pub(crate) struct Arguments {
    /// pcap or pcapng files with Ethernet frames, or captured on `any`, perhaps compressed (gzip, zstd); `-` is standard
    /// input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print one JSON object per packet, with all its fields (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// In brackets, print how far a PSN is behind the first one of its connection in the capture.
    #[arg(long, help_heading = "Output")]
    relative: bool,
    /// Red NAKs, yellow retransmissions, bold damaged packets. `auto`: on a terminal, unless NO_COLOR is set.
    #[arg(long, help_heading = "Output", value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    #[command(flatten)]
    filter: Filter,
}

static AFTER_HELP: LazyLock<String> = LazyLock::new(|| {
    filter::after_help(
        "  uroce decode capture.pcapng | less -S
  uroce decode --qp 0x42 --from 100 --to 1.5s a.pcap b.pcap.gz
  uroce decode -Y 'nak || retransmission || gap' capture.pcap.zst
  tcpdump -i eth0 -w - udp port 4791 | uroce decode -\n",
    )
});

/// What was printed, and what was seen.
#[derive(Default)]
struct Tally {
    seen: u64,
    packets: u64,
    skipped: u64,
    malformed: u64,
    icrc_bad: u64,
    icrc_absent: u64,
    naks: u64,
    retransmissions: u64,
    duplicates: u64,
    gaps: u64,
    out_of_order: u64,
}

/// Why no more is printed.
enum Stop {
    Read(ReadError),
    Write(io::Error),
}

/// How packets are printed.
struct Printer<'a, W> {
    arguments: &'a Arguments,
    is_coloured: bool,
    out: W,
    line: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut tally = Tally::default();
    let is_coloured = match arguments.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
    };
    let out = BufWriter::new(io::stdout().lock());
    let mut printer = Printer { arguments, is_coloured, out, line: String::new() };
    let mut is_whole = true;
    for (index, file) in arguments.files.iter().enumerate() {
        match printer.file(file, index, &mut tally) {
            Ok(()) => {}
            Err(Stop::Write(error)) => return Err(format!("standard output: {error}").into()),
            Err(Stop::Read(error)) => {
                failure::tell(&format!("{}: {error}", file.display()).into(), arguments.json);
                is_whole = false;
            }
        }
    }
    if is_whole || tally.seen > 0 {
        eprintln!("{}", tally.summary(!arguments.filter.is_empty()));
    }
    Ok(ExitCode::from(u8::from(!is_whole || tally.malformed > 0 || tally.icrc_bad > 0)))
}

impl<W: Write> Printer<'_, W> {
    /// Prints a file. What was good before a failure is shown.
    fn file(&mut self, file: &Path, index: usize, tally: &mut Tally) -> Result<(), Stop> {
        let result = self.packets(file, index, tally);
        self.out.flush().map_err(Stop::Write).and(result)
    }

    fn packets(&mut self, file: &Path, index: usize, tally: &mut Tally) -> Result<(), Stop> {
        let Arguments { files, json, filter, .. } = self.arguments;
        let is_one_of_several = files.len() > 1;
        if is_one_of_several && !json {
            let separator = if index > 0 { "\n" } else { "" };
            writeln!(self.out, "{separator}==> {} <==", file.display()).map_err(Stop::Write)?;
        }
        let pairs = if filter.asks_for_queue_pairs() && file.is_file() { pairs(file) } else { Pairs::default() };
        let mut streams = Streams::with_pairs(pairs);
        let mut start = None;
        for frame in capture_file::open(file).map_err(Stop::Read)? {
            let frame = frame.map_err(Stop::Read)?;
            let start = *start.get_or_insert(frame.time);
            if filter.is_over(frame.number, frame.time.saturating_since(start)) {
                break;
            }
            let Some(mut report) = Report::next(&frame, &mut streams, start) else {
                tally.skipped += 1;
                continue;
            };
            tally.seen += 1;
            if !filter.matches(&report) {
                continue;
            }
            tally.count(&report);
            report.file = (is_one_of_several && *json).then(|| file.display().to_string());
            self.packet(&report).map_err(Stop::Write)?;
        }
        Ok(())
    }

    fn packet(&mut self, report: &Report) -> io::Result<()> {
        if self.arguments.json {
            serde_json::to_writer(&mut self.out, report)?;
            return writeln!(self.out);
        }
        let line = PacketLine { report, is_relative: self.arguments.relative };
        match line.style().filter(|_| self.is_coloured) {
            // Colours end with the line: `less -R` wants it so.
            Some(style) => writeln!(self.out, "{style}{line}{style:#}"),
            None => {
                self.line.clear();
                let _ = writeln!(self.line, "{line}");
                self.out.write_all(self.line.as_bytes())
            }
        }
    }
}

/// Who sends to whom in a file, as far as it can be read.
fn pairs(file: &Path) -> Pairs {
    Streams::pairs_of(capture_file::open(file).into_iter().flatten().map_while(Result::ok))
}

impl Tally {
    fn count(&mut self, report: &Report) {
        self.packets += 1;
        self.malformed += u64::from(report.malformed);
        self.icrc_bad += u64::from(report.icrc == "bad");
        self.icrc_absent += u64::from(report.icrc == "absent");
        self.naks += u64::from(report.is_nak());
        match report.place.mark {
            Some(Mark::Retransmission { .. }) => self.retransmissions += 1,
            Some(Mark::Duplicate { .. }) => self.duplicates += 1,
            Some(Mark::Gap { .. }) => self.gaps += 1,
            Some(Mark::OutOfOrder) => self.out_of_order += 1,
            None => {}
        }
    }

    /// Says of everything that is not as it should be how much there is; of the ICRCs also that all are right.
    fn summary(&self, is_filtered: bool) -> String {
        let Tally { seen, packets, skipped, icrc_bad, icrc_absent, .. } = self;
        let mut text = match is_filtered {
            true => format!("{packets} of {seen} RoCE packets: "),
            false => format!("{packets} RoCE packets: "),
        };
        text += &match (*icrc_bad, *icrc_absent) {
            _ if *packets == 0 => "none to judge".to_owned(),
            (0, 0) => "all ICRCs ok".to_owned(),
            (0, absent) => format!("all other ICRCs ok, {absent} without"),
            (bad, 0) => format!("{bad} with a wrong ICRC"),
            (bad, absent) => format!("{bad} with a wrong ICRC, {absent} without"),
        };
        let remarks = [
            (self.malformed, "malformed", "malformed"),
            (self.naks, "NAK", "NAKs"),
            (self.retransmissions, "retransmission", "retransmissions"),
            (self.duplicates, "duplicate", "duplicates"),
            (self.gaps, "gap", "gaps"),
            (self.out_of_order, "out of order", "out of order"),
        ];
        for (count, one, many) in remarks.into_iter().filter(|(count, ..)| *count > 0) {
            let _ = write!(text, ", {count} {}", if count == 1 { one } else { many });
        }
        if *skipped > 0 {
            let _ = write!(text, "; {skipped} other frames skipped");
        }
        text
    }
}

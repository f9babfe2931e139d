//! `uroce perf`: the peer of perftest (ib_send_bw and its like), with its flags, its handshake and its columns.

mod bandwidth;
mod conversation;
mod distribution;
mod exchange;
mod extent;
mod flags;
mod keys;
mod latency;
mod report;
mod settings;
mod side;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use uroce::verbs::PathMtu;

use crate::device_arguments::DeviceArguments;
use crate::failure::Usage;
use crate::{Failure, choices};
use flags::ForeignFlags;
use settings::Settings;
use test::Test;

const EXAMPLES: &str = "\
Examples:
  uroce perf write-bw                          a server, also for perftest's ib_write_bw
  uroce perf ib_write_bw -D 10s -q 4 10.0.0.1  its client: four queue pairs for ten seconds
  uroce perf send-lat -s 64 --histogram --svg latency.svg 10.0.0.1";

/// Measure bandwidth and latency with another uroce, or with perftest (ib_send_bw, …) on an RNIC or rxe.
///
/// Run both ends with the same test and flags.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The test; perftest's names (ib_write_bw, write_bw) are taken, too
    #[arg(value_enum)]
    test: Test,

    /// Host of the server; omit to be the server
    host: Option<String>,

    /// Messages on each queue pair: 5 to 100000000. Default: 1000, or 5000 for write-bw
    #[arg(short = 'n', long = "iters", value_name = "N", help_heading = "Test",
          value_parser = clap::value_parser!(u64).range(5..=100_000_000))]
    iterations: Option<u64>,

    /// Run for a time, 1s to 1000000s, as in 10 (seconds), 90s or 5m. The first and the last quarter do not count
    #[arg(short = 'D', long, value_name = "TIME", help_heading = "Test", value_parser = choices::parse_duration)]
    duration: Option<Duration>,

    /// With -D: what does not count at each end. Default: a quarter of the time
    #[arg(short = 'f', long, value_name = "TIME", help_heading = "Test", value_parser = choices::parse_margin)]
    margin: Option<Duration>,

    /// Run until Ctrl-C, and print a result for each -D; bandwidth only
    #[arg(long = "run_infinitely", help_heading = "Test")]
    infinitely: bool,

    /// Both directions at once; bandwidth only
    #[arg(short = 'b', long, help_heading = "Test")]
    bidirectional: bool,

    /// Fail when the average is below this rate, in the unit of the report; bandwidth only
    #[arg(short = 'w', long = "limit_bw", value_name = "RATE", help_heading = "Test", value_parser = choices::parse_limit)]
    least_bandwidth: Option<f64>,

    /// Fail when there are fewer millions of messages a second; bandwidth only
    #[arg(short = 'y', long = "limit_msgrate", value_name = "RATE", help_heading = "Test",
          value_parser = choices::parse_limit)]
    least_message_rate: Option<f64>,

    /// Message size: 1 to 1G bytes, as in 65536 or 64k. Default: 64k for bandwidth, 2 for latency, 8 for atomics
    #[arg(short = 's', long, value_name = "BYTES", help_heading = "Messages", value_parser = choices::parse_size)]
    size: Option<u32>,

    /// All sizes, from 2 to 2^23 bytes
    #[arg(short = 'a', long, help_heading = "Messages")]
    all: bool,

    /// Send requests outstanding on a queue pair: 1 to 15000. Default: 128, or 1 for latency
    #[arg(short = 't', long = "tx-depth", value_name = "N", help_heading = "Messages",
          value_parser = clap::value_parser!(u32).range(1..=15000))]
    send_depth: Option<u32>,

    /// Receive requests posted on a queue pair: 1 to 16384. Default: 512, or 16000 for UC and UD
    #[arg(short = 'r', long = "rx-depth", value_name = "N", help_heading = "Messages",
          value_parser = clap::value_parser!(u32).range(1..=16384))]
    receive_depth: Option<u32>,

    /// Use one shared receive queue of --rx-depth requests for all queue pairs
    #[arg(long, help_heading = "Messages")]
    use_srq: bool,

    /// One completion for this many send requests: 1 to 1024. Default: 100, or 1 above 8192 bytes
    #[arg(short = 'Q', long = "cq-mod", value_name = "N", help_heading = "Messages",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    moderation: Option<u32>,

    /// READs and atomics outstanding on a queue pair: 1 to 128. Default: 16
    #[arg(short = 'o', long = "outs", value_name = "N", help_heading = "Messages",
          value_parser = clap::value_parser!(u8).range(1..=128))]
    outstanding: Option<u8>,

    /// The atomic operation
    #[arg(
        short = 'A',
        long = "atomic_type",
        value_name = "NAME",
        value_enum,
        ignore_case = true,
        default_value = "FETCH_AND_ADD",
        help_heading = "Messages"
    )]
    atomic: AtomicType,

    /// Sleep on completion events instead of polling
    #[arg(short = 'e', long, help_heading = "Messages")]
    events: bool,

    /// The transport service
    #[arg(
        short = 'c',
        long,
        value_name = "NAME",
        value_enum,
        ignore_case = true,
        default_value = "RC",
        help_heading = "Connection"
    )]
    connection: Connection,

    /// Queue pairs, 1 to 1024; bandwidth only
    #[arg(short = 'q', long = "qp", value_name = "N", default_value_t = 1, help_heading = "Connection",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    queue_pairs: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096; the smaller one of both ends is used. Default: the device's
    #[arg(short = 'm', long, value_name = "BYTES", help_heading = "Connection", value_parser = choices::parse_mtu)]
    mtu: Option<PathMtu>,

    /// TCP port of the handshake
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515, help_heading = "Connection")]
    port: u16,

    /// Local ACK timeout: 4.096 µs × 2^N, N from 0 (none) to 31
    #[arg(short = 'u', long = "qp-timeout", value_name = "N", default_value_t = 14, help_heading = "Connection",
          value_parser = clap::value_parser!(u8).range(0..=31))]
    timeout: u8,

    /// Service level, 0 to 15: 1 to 7 become the class selector of that number, unless --tclass has a DSCP
    #[arg(short = 'S', long = "sl", value_name = "N", default_value_t = 0, help_heading = "Connection",
          value_parser = clap::value_parser!(u8).range(0..=15))]
    service_level: u8,

    /// Traffic class, 0 to 255: DSCP in the upper six bits, ECN in the lower two
    #[arg(long = "tclass", value_name = "N", default_value_t = 0, help_heading = "Connection")]
    traffic_class: u8,

    /// Give up after this time without progress, as in 60 (seconds) or 2m
    #[arg(long, value_name = "TIME", default_value = "60s", help_heading = "Connection",
          value_parser = choices::parse_patience)]
    patience: Duration,

    /// A server that serves one client after the other until a signal ends it
    #[arg(long, help_heading = "Connection", conflicts_with = "host")]
    forever: bool,

    #[command(flatten)]
    device: DeviceArguments,

    /// Index of the local GID. Default: the first IPv4 one, otherwise the first that is not link-local, otherwise 0
    #[arg(short = 'x', long, value_name = "N", help_heading = "Device")]
    gid_index: Option<usize>,

    /// Device port; there is only 1
    #[arg(short = 'i', long = "ib-port", value_name = "N", default_value_t = 1, help_heading = "Device",
          value_parser = clap::value_parser!(u8).range(1..=1))]
    _ib_port: u8,

    /// Do not measure the peak
    #[arg(short = 'N', long = "noPeak", help_heading = "Output")]
    no_peak: bool,

    /// Report Gb/s instead of MB/s (2^20 bytes)
    #[arg(long = "report_gbits", help_heading = "Output")]
    gigabits: bool,

    /// With -b: also what each end found
    #[arg(long = "report-both", help_heading = "Output")]
    report_both: bool,

    /// Print the latency of each message, sorted
    #[arg(short = 'H', long = "report-histogram", help_heading = "Output")]
    samples: bool,

    /// Print the latency of each message, in the order of the messages
    #[arg(short = 'U', long = "report-unsorted", help_heading = "Output")]
    unsorted: bool,

    /// Print how latencies are distributed
    #[arg(long, help_heading = "Output")]
    histogram: bool,

    /// Draw how latencies are distributed into this SVG file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,

    /// Print one JSON object per result instead of perftest's lines (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Also write what --json prints into the file of --out_json_file
    #[arg(long = "out_json", help_heading = "Output")]
    out_json: bool,

    /// The file of --out_json
    #[arg(long = "out_json_file", value_name = "FILE", default_value = "perftest_out.json", help_heading = "Output")]
    out_json_file: PathBuf,

    #[command(flatten)]
    foreign: ForeignFlags,
}

/// The transport services that perftest knows and we have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Connection {
    /// Reliable connection
    Rc,
    /// Unreliable connection: SEND and WRITE; a lost message ends the test
    Uc,
    /// Unreliable datagrams: SEND; a lost message ends the test
    Ud,
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE")]
pub enum AtomicType {
    /// Adds 1
    FetchAndAdd,
    /// Compares with 0, and stores 0
    CmpAndSwap,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let settings = Settings::new(arguments).map_err(Usage)?;
    for note in arguments.foreign.notes(settings.test).map_err(Usage)? {
        eprintln!("uroce: {note}");
    }
    conversation::run(arguments, settings)
}

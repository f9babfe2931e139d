//! `uroce perf`: the peer of perftest (ib_send_bw and its like), with its flags, its handshake and its columns.

mod bandwidth;
mod conversation;
mod exchange;
mod extent;
mod keys;
mod latency;
mod report;
mod settings;
mod side;
mod test;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use uroce::verbs::PathMtu;

use crate::Failure;
use crate::choices::parse_mtu;
use crate::device_arguments::DeviceArguments;
use settings::Settings;
use test::Test;

/// Measure bandwidth and latency with another uroce, or with perftest (ib_send_bw, …) on an RNIC or rxe.
///
/// Run both ends with the same test and flags.
#[derive(Args)]
pub struct Arguments {
    /// The test to run
    #[arg(value_enum)]
    test: Test,

    /// Host of the server; omit to be the server
    host: Option<String>,

    #[command(flatten)]
    device: DeviceArguments,

    /// Index of the local GID. Default: the first IPv4 one, otherwise the first that is not link-local, otherwise 0
    #[arg(short = 'x', long)]
    gid_index: Option<usize>,

    /// Device port; there is only 1
    #[arg(short = 'i', long = "ib-port", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=1))]
    _ib_port: u8,

    /// TCP port of the handshake
    #[arg(short = 'p', long, default_value_t = 18515)]
    port: u16,

    /// The transport service
    #[arg(short = 'c', long, value_enum, ignore_case = true, default_value = "RC")]
    connection: Connection,

    /// Message size in bytes. Default: 65536 for bandwidth, 2 for latency, 8 for atomics
    #[arg(short = 's', long, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    size: Option<u32>,

    /// All sizes, from 2 to 2^23 bytes
    #[arg(short = 'a', long)]
    all: bool,

    /// Messages on each queue pair. Default: 1000, or 5000 for write-bw
    #[arg(short = 'n', long = "iters", value_parser = clap::value_parser!(u64).range(5..=100_000_000))]
    iterations: Option<u64>,

    /// Run for this many seconds; only the middle half counts
    #[arg(short = 'D', long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    duration: Option<u64>,

    /// Both directions at once
    #[arg(short = 'b', long)]
    bidirectional: bool,

    /// Queue pairs
    #[arg(short = 'q', long = "qp", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    queue_pairs: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096; default: the device's. The smaller of both ends is used
    #[arg(short = 'm', long, value_parser = parse_mtu)]
    mtu: Option<PathMtu>,

    /// Send requests outstanding on a queue pair. Default: 128, or 1 for latency
    #[arg(short = 't', long = "tx-depth", value_parser = clap::value_parser!(u32).range(1..=15000))]
    send_depth: Option<u32>,

    /// Receive requests posted on a queue pair. Default: 512, or 16000 for UC and UD
    #[arg(short = 'r', long = "rx-depth", value_parser = clap::value_parser!(u32).range(1..=16384))]
    receive_depth: Option<u32>,

    /// Use one shared receive queue of --rx-depth requests for all queue pairs
    #[arg(long)]
    use_srq: bool,

    /// Request one completion per this many send requests. Default: 100, or 1 above 8192 bytes
    #[arg(short = 'Q', long = "cq-mod", value_parser = clap::value_parser!(u32).range(1..=1024))]
    moderation: Option<u32>,

    /// READs and atomics outstanding on a queue pair. Default: 16
    #[arg(short = 'o', long = "outs", value_parser = clap::value_parser!(u8).range(1..=128))]
    outstanding: Option<u8>,

    /// The atomic operation
    #[arg(short = 'A', long = "atomic_type", value_enum, ignore_case = true, default_value = "FETCH_AND_ADD")]
    atomic: AtomicType,

    /// Sleep on completion events instead of polling
    #[arg(short = 'e', long)]
    events: bool,

    /// Do not measure the peak
    #[arg(short = 'N', long = "noPeak")]
    no_peak: bool,

    /// Report Gb/s instead of MB/s
    #[arg(long = "report_gbits")]
    gigabits: bool,

    /// No effect: accepted for perftest, where it suppresses a warning
    #[arg(short = 'F', long = "CPU-freq")]
    _cpu_frequency: bool,

    /// Local ACK timeout code: 4.096 µs × 2^code
    #[arg(short = 'u', long = "qp-timeout", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    timeout: u8,

    /// Service level: 1 to 7 become the class selector of that number, unless --tclass has a DSCP
    #[arg(short = 'S', long = "sl", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    service_level: u8,

    /// Traffic class of the packets: DSCP in the upper six bits, ECN in the lower two
    #[arg(long = "tclass", value_name = "N", default_value_t = 0)]
    traffic_class: u8,

    /// Give up after this many seconds without progress
    #[arg(long, default_value_t = 60)]
    patience: u64,

    /// Print one JSON object per result instead of perftest's lines
    #[arg(long)]
    json: bool,
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
    let settings = Settings::new(arguments)
        .unwrap_or_else(|text| clap::Error::raw(ErrorKind::ArgumentConflict, format!("{text}\n")).exit());
    conversation::run(arguments, settings)?;
    Ok(ExitCode::SUCCESS)
}

//! `uroce sim stream`: KV caches that are sent in chunks while they are computed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::inference::{MODELS, Model};
use uroce_laboratory::sim::kv::{Conditions, OUTSTANDING, Sending, StreamCell, Streamed, Workload};
use uroce_laboratory::sim::{Line, TransferError};

use crate::Failure;

use super::cells::{self, Cell, Options};
use super::stream_picture::{self, Curve};

const EXAMPLES: &str = "\
Examples:
  uroce sim stream --only rtt_ms=30,chunk=chosen
  uroce sim stream --only rtt_ms=30,model=Kimi-Linear-48B --svg stream.svg";

/// KV caches that leave in chunks while they are computed, over a line of 10 Gb/s: the time by the length of a chunk, and with
/// the chosen one.
///
/// Exit status 1 when a chosen length takes more than 5 % longer than is possible: the longer of compute and transfer, one chunk
/// and a round trip; or, where repairs take longer, what an ideal selective repeat needs in the longest of 1000 runs.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// The parts in which a prompt is computed, each through all layers, 1 to 64.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    micro_batches: u32,
    /// Run only matching cells: rtt_ms=2|10|30|40, loss=0|0.01%|0.05%|0.1%, model=NAME, prompt_tokens=N,
    /// chunk=chosen|65536|262144|1048576|4194304|16777216|67108864; conditions separated by commas. A key that is not given
    /// matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Also draw the times by the length of a chunk into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

/// The round trip in milliseconds, and the share of frames lost each way.
const PATHS: [(u64, f64); 4] = [(2, 0.0), (10, 0.0001), (30, 0.001), (40, 0.0005)];

/// The line, in bits of Ethernet frames a second.
const LINE_BPS: u64 = 10_000_000_000;

/// Prompts of which compute takes longer than the transfer, and one of which it does not.
const PROMPTS: [(Model, usize); 3] = [(MODELS[2], 32 << 10), (MODELS[3], 8 << 10), (MODELS[0], 2 << 10)];

/// The lengths of chunks, in bytes.
const CHUNKS: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// How much more than is possible a chosen length may take.
const TOLERANCE: f64 = 0.05;

type Outcome = Result<Streamed, TransferError>;

fn all(micro_batches: u32) -> Vec<StreamCell> {
    let mut cells = Vec::new();
    for (rtt_ms, loss) in PATHS {
        for (model, tokens) in PROMPTS {
            for chunk_bytes in CHUNKS.map(Some).into_iter().chain([None]) {
                let round_trip = Duration::from_millis(rtt_ms);
                let line = Line { bps: LINE_BPS, host_bps: 4 * LINE_BPS, round_trip, loss };
                let workload = Workload::new(model, tokens, Sending::Layers);
                cells.push(StreamCell { line, workload, micro_batches, chunk_bytes });
            }
        }
    }
    cells
}

fn ms(time: Duration) -> f64 {
    (time.as_nanos() as f64 / 1e4).round() / 1e2
}

/// A length as people write it.
pub(super) fn length(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

impl Cell for StreamCell {
    type Outcome = Outcome;

    const SCHEMA: &'static str = "uroce.sim.stream/1";

    const KEYS: &'static [&'static str] = &["rtt_ms", "loss", "model", "prompt_tokens", "chunk"];

    fn which(&self) -> Value {
        let chunk = self.chunk_bytes.map_or_else(|| json!("chosen"), |bytes| json!(bytes));
        json!({
            "line_bps": self.line.bps,
            "rtt_ms": ms(self.line.round_trip),
            "loss": self.line.loss,
            "model": self.workload.model.name,
            "prompt_tokens": self.workload.tokens,
            "cache_bytes": self.workload.cache_bytes(),
            "micro_batches": self.micro_batches,
            "outstanding": OUTSTANDING,
            "chunk": chunk,
        })
    }

    fn fields(&self, outcome: &Outcome) -> Value {
        match outcome {
            Ok(streamed) => json!({
                "chunk_bytes": streamed.chunk_bytes,
                "chunks": streamed.chunks,
                "compute_ms": ms(streamed.compute),
                "transfer_ms": ms(streamed.transfer),
                "total_ms": ms(streamed.total),
                "expected_ms": ms(streamed.expected),
                "bound_ms": ms(streamed.bound),
                "beyond": streamed.beyond(),
                "ideal_ms": ms(streamed.ideal.median),
                "ideal_max_ms": ms(streamed.ideal.max),
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Outcome) -> String {
        let name = format!(
            "{:2} ms {:4} %  {:16} {:6} tokens",
            ms(self.line.round_trip),
            super::in_percent(self.line.loss),
            self.workload.model.name,
            self.workload.tokens,
        );
        match outcome {
            Ok(streamed) => format!(
                "{name}  {:>8}{} {:5} chunks  {:7.1} ms (expected {:7.1}), compute {:6.1}, transfer {:6.1}: {:+6.1} % of {:7.1}, ideal {:7.1} to {:7.1}",
                length(streamed.chunk_bytes),
                if self.chunk_bytes.is_none() { ", chosen," } else { "         " },
                streamed.chunks,
                ms(streamed.total),
                ms(streamed.expected),
                ms(streamed.compute),
                ms(streamed.transfer),
                100.0 * streamed.beyond(),
                ms(streamed.bound),
                ms(streamed.ideal.median),
                ms(streamed.ideal.max),
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Outcome) -> bool {
        let is_late = |streamed: &Streamed| self.chunk_bytes.is_none() && streamed.beyond_possible() > TOLERANCE;
        outcome.as_ref().map_or(true, is_late)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = all(arguments.micro_batches);
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    let mut lines: Vec<Line> = Vec::new();
    for cell in &cells {
        if !lines.contains(&cell.line) {
            lines.push(cell.line);
        }
    }
    eprintln!("measuring {} lines", lines.len());
    let measured: Vec<(Line, Result<Conditions, TransferError>)> =
        lines.into_iter().map(|line| (line, StreamCell::conditions(line, seed))).collect();
    let conditions = |cell: &StreamCell| {
        let found = measured.iter().find(|(line, _)| *line == cell.line);
        found.map_or_else(|| StreamCell::conditions(cell.line, seed), |(_, conditions)| conditions.clone())
    };
    let sheet = cells::play(&cells, &arguments.options, |cell| cell.run(&conditions(cell)?, seed));
    if let Some(file) = &arguments.svg {
        let fine =
            cells.iter().zip(&sheet.outcomes).filter_map(|(cell, outcome)| Some((*cell, *outcome.as_ref().ok()?)));
        stream_picture::draw(file, &Curve::all(fine)).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(sheet.exit_code())
}

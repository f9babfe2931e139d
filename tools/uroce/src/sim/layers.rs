//! `uroce sim layers`: what a tensor is worth at a deadline, with precision layers and without.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};
use uroce_laboratory::sim::layers::{LOSS, LayersCell, Quality, ROUND_TRIP, TOKENS};

use super::cells::{self, Cell, Options};
use super::layers_picture;
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce sim layers --only element=float16 --svg layers.svg
  uroce sim layers --json | jq 'select(.layered) | [.element, .deadline_ms, .relative_l2]'";

/// What 32 tokens of Llama 3 8B's KV cache are worth at a deadline, over 300 Mb/s, 100 ms and 1 % of loss: with the upper
/// halves of all elements first, and with whole elements.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching cells: element=float16|bfloat16|float32, deadline_ms=120|140|160|180|200|240|300|400; conditions
    /// separated by commas. A key that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Also draw the error by the deadline into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

impl Cell for LayersCell {
    type Outcome = Quality;

    const SCHEMA: &'static str = "uroce.sim.layers/1";

    const KEYS: &'static [&'static str] = &["element", "deadline_ms"];

    fn which(&self) -> Value {
        json!({
            "element": self.element.name(),
            "layered": self.layered,
            "deadline_ms": self.deadline.as_millis() as u64,
            "tokens": TOKENS,
            "bytes": self.bytes(),
            "serialisation_ms": self.serialisation().as_secs_f64() * 1e3,
            "rtt_ms": ROUND_TRIP.as_millis() as u64,
            "loss": LOSS,
        })
    }

    fn fields(&self, quality: &Quality) -> Value {
        json!({
            "exact_fraction": quality.exact,
            "coarse_fraction": quality.coarse,
            "relative_l2": quality.relative_l2,
            "relative_max": quality.relative_max,
        })
    }

    fn describe(&self, quality: &Quality) -> String {
        format!(
            "{:8} {:14} {:3} ms  exact {:5.1} %  coarse {:5.1} %  error: L2 {:.5}  max {:.5}",
            self.element.name(),
            if self.layered { "halves first" } else { "whole elements" },
            self.deadline.as_millis(),
            100.0 * quality.exact,
            100.0 * quality.coarse,
            quality.relative_l2,
            quality.relative_max,
        )
    }

    fn is_wrong(&self, _quality: &Quality) -> bool {
        false
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut cells = LayersCell::table();
    cells::keep(&mut cells, &arguments.only)?;
    let seed = arguments.options.seed;
    let sheet = cells::play(&cells, &arguments.options, |cell: &LayersCell| cell.run(seed));
    if let Some(file) = &arguments.svg {
        let played: Vec<_> = cells.into_iter().zip(sheet.outcomes.iter().copied()).collect();
        layers_picture::draw(file, &played).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(sheet.exit_code())
}

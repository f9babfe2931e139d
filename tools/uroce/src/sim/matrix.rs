//! `uroce sim matrix`: how long the flows of a connection matrix take over a fat tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce::congestion::CongestionControl;
use uroce::path::PathPolicy;
use uroce_laboratory::sim::TransferError;
use uroce_laboratory::sim::matrix::{ConnectionMatrix, FatTree, FlowTimes, MatrixCell};

use super::cells::{self, Cell, Options};
use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce sim matrix --congestion nscc
  uroce sim matrix --congestion dcqcn --only matrix=incast --one-queue
  uroce sim matrix --matrix perm_32n_32c_2MB.cm --only tree=oversubscribed --json | jq .last_us";

/// How long the flows of a connection matrix take over a fat tree of links of 100 Gb/s, as in uet-htsim.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Play this connection matrix of 16 or 32 hosts, in uet-htsim's form (.cm), instead of a permutation and an incast.
    #[arg(long, value_name = "FILE", help_heading = "Test")]
    matrix: Option<PathBuf>,
    /// Run only matching cells: matrix=permutation|incast, tree=two-tiers|oversubscribed|three-tiers; conditions separated by commas.
    /// A key that is not given matches all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// What decides on the rate of each flow: steady, dcqcn, swift, timely, nscc, hpcc, bbr, cubic (as TCP) or fixed.
    #[arg(long, value_name = "NAME", help_heading = "Test", default_value_t = CongestionControl::Steady, value_parser = super::congestion::controller)]
    congestion: CongestionControl,
    /// Number of paths of each flow, 1 to 256.
    #[arg(long, value_name = "N", help_heading = "Test", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    paths: u16,
    /// How a flow spreads its packets over its paths: single, round-robin, weighted or recycle.
    #[arg(long, value_name = "POLICY", help_heading = "Test", default_value_t = PathPolicy::Recycle)]
    path_policy: PathPolicy,
    /// Acknowledges wait behind data in the queues of switches. Otherwise they have a queue of their own there, as in uet-htsim.
    #[arg(long, help_heading = "Test")]
    one_queue: bool,
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

impl Cell for MatrixCell {
    type Outcome = Result<FlowTimes, TransferError>;

    const SCHEMA: &'static str = "uroce.sim.matrix/1";

    const KEYS: &'static [&'static str] = &["matrix", "tree"];

    fn which(&self) -> Value {
        json!({
            "matrix": self.name,
            "tree": self.tree.name,
            "controller": self.control.name(),
            "flows": self.matrix.flows.len(),
            "bytes": self.matrix.bytes(),
            "paths": self.paths,
            "policy": self.policy.name(),
            "acknowledges_first": self.acknowledges_first,
            "rtt_us": us(self.tree.round_trip()),
        })
    }

    fn fields(&self, outcome: &Self::Outcome) -> Value {
        match outcome {
            Ok(result) => json!({
                "first_us": us(result.first()),
                "mean_us": us(result.mean()),
                "last_us": us(result.last),
                "flow_us": result.times.iter().copied().map(us).collect::<Vec<_>>(),
                "sent": result.sent,
                "resent": result.resent,
                "dropped": result.dropped,
                "marked": result.marked,
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Self::Outcome) -> String {
        let name = format!("{:12} {:14} {:7}", self.name, self.tree.name, self.control.name());
        match outcome {
            Ok(result) => format!(
                "{name} {:3} flows  first {:7.1}  mean {:7.1}  last {:7.1} µs  resent {} of {}  dropped {}  marked {:.1} %",
                result.times.len(),
                us(result.first()),
                us(result.mean()),
                us(result.last),
                result.resent,
                result.sent,
                result.dropped,
                result.marked * 100.0,
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Self::Outcome) -> bool {
        outcome.is_err()
    }
}

/// The cells of a file, named like it.
fn read(file: &Path, control: CongestionControl) -> Result<Vec<MatrixCell>, Failure> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let matrix = ConnectionMatrix::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let cells = MatrixCell::of(&name, &matrix, control);
    if cells.is_empty() {
        let known: BTreeSet<usize> = FatTree::ALL.iter().map(FatTree::host_count).collect();
        return Err(format!("{}: {} hosts; there are trees of {known:?}", file.display(), matrix.hosts).into());
    }
    Ok(cells)
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let seed = arguments.options.seed;
    let mut cells = match &arguments.matrix {
        Some(file) => read(file, arguments.congestion)?,
        None => MatrixCell::table(arguments.congestion, seed),
    };
    for cell in &mut cells {
        (cell.paths, cell.policy, cell.acknowledges_first) =
            (arguments.paths, arguments.path_policy, !arguments.one_queue);
    }
    cells::keep(&mut cells, &arguments.only)?;
    let sheet = cells::play(&cells, &arguments.options, |cell: &MatrixCell| cell.run(seed));
    Ok(sheet.exit_code())
}

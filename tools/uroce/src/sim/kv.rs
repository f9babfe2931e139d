//! `uroce sim kv`: KV caches between two sites, and how many prompts a second a site then serves in time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::inference::{H100, MODELS};
use uroce_laboratory::sim::kv::{Check, Compared, Fluid, Fluids, KvTransport, Sending, Workload};
use uroce_laboratory::sim::{Line, TransferError};

use crate::Failure;

use super::cells::{self, Cell, Options};
use super::kv_picture::{self, Square};

const EXAMPLES: &str = "\
Examples:
  uroce sim kv --only 'row=load,model=Kimi-Linear-48B,prompt_tokens=32768,send=layers'
  uroce sim kv --only 'row=link,transport=uroce' --json | jq '[.model, .prompt_tokens, .rtt_ms, .needs_bps]'
  uroce sim kv --svg kv.svg";

/// How many prompts a second a prefill site serves in time, when their KV caches cross a wide area network.
///
/// Prompts arrive at random, an H100 (or eight) computes them by equations, and their caches go to a decode site. Transports
/// are played packet by packet at up to 10 Gb/s, and as fluids with what they reached there beyond.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub options: Options,
    /// Run only matching rows: row=path|load|link|check, transport=uroce|uroce-go-back-n|cubic|bbr|pooled-cubic|pooled-bbr,
    /// rtt_ms=2|10|30|40, loss=0|0.01%|0.05%|0.1%, line_bps=1e9|2.5e9|10e9|40e9|100e9, model=NAME,
    /// prompt_tokens=1024|8192|32768|131072, send=layers|after; conditions separated by commas. A key that is not given matches
    /// all its values.
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',', help_heading = "Test")]
    only: Vec<String>,
    /// Also draw the loads of prompts of 32,768 tokens into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    svg: Option<PathBuf>,
}

/// A path between two sites: the round trip in milliseconds, and the share of frames lost each way.
type Path = (u64, f64);

/// Two sites of a city; two cities; an ocean; two coasts.
const PATHS: [Path; 4] = [(2, 0.0), (10, 0.0001), (30, 0.001), (40, 0.0005)];

/// The lines that are played packet by packet, in bits a second, slowest first.
const MEASURED_BPS: [u64; 3] = [1_000_000_000, 2_500_000_000, 10_000_000_000];

/// The lines that are loaded.
const LOADED_BPS: [u64; 2] = [10_000_000_000, 100_000_000_000];

/// The lines among which the one is searched for that a site needs.
const LINKS_BPS: [u64; 7] =
    [1_000_000_000, 2_500_000_000, 10_000_000_000, 25_000_000_000, 40_000_000_000, 100_000_000_000, 400_000_000_000];

/// A line on which a fluid that was measured on slower ones is compared with packets, and the longest round trip for that.
const FORECAST_BPS: u64 = 40_000_000_000;
const FORECAST_RTT_MS: u64 = 10;

const PROMPT_TOKENS: [usize; 4] = [1 << 10, 8 << 10, 32 << 10, 128 << 10];

/// The prompts whose caches are sent after the prefill, too, and that are drawn.
const NAMED_TOKENS: usize = 32 << 10;

/// What is compared packet by packet: caches of 66 MB.
const CHECKED_TOKENS: usize = 8 << 10;
const CHECKED_PROMPTS: usize = 32;

/// The load at which a line is looked for, as a part of what the site can compute, and what it may add to the 90th percentile.
const LINK_LOAD: f64 = 0.5;
const LINK_ADDS: f64 = 0.05;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    path: Path,
    transport: KvTransport,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// What a transport reaches over a path and a line.
    Path { bps: u64 },
    /// How many prompts a second are served in time.
    Load { bps: u64, workload: Workload },
    /// Which line a site needs.
    Link { workload: Workload },
    /// How far fluids differ from their packets.
    Check { bps: u64, workload: Workload },
}

/// What a row came to.
enum Found {
    Path(Fluid),
    Load { fluid: Fluid, unloaded: Duration, objective: Duration, per_s: f64, ideal_per_s: f64 },
    Link { per_s: f64, added: Vec<f64> },
    Check(Compared),
}

type Outcome = Result<Found, TransferError>;

impl Row {
    fn all() -> Vec<Row> {
        let of = |path, kind: &dyn Fn(KvTransport) -> Kind| {
            KvTransport::ALL.map(|transport| Row { path, transport, kind: kind(transport) })
        };
        let (mut measured, mut loads, mut links, mut checks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for path in PATHS {
            measured.extend(MEASURED_BPS.iter().flat_map(|bps| of(path, &|_| Kind::Path { bps: *bps })));
            for model in MODELS {
                for tokens in PROMPT_TOKENS {
                    let workload = Workload::new(model, tokens, Sending::Layers);
                    links.extend(of(path, &|_| Kind::Link { workload }));
                    let after = Workload { sending: Sending::After, ..workload };
                    let all = [workload, after]
                        .into_iter()
                        .filter(|w| tokens == NAMED_TOKENS || w.sending == Sending::Layers);
                    for (workload, bps) in all.flat_map(|workload| LOADED_BPS.map(|bps| (workload, bps))) {
                        loads.extend(of(path, &|_| Kind::Load { bps, workload }));
                    }
                }
            }
            let kimi = MODELS[2];
            let workload = Workload::new(kimi, CHECKED_TOKENS, Sending::Layers);
            for bps in [MEASURED_BPS[2], FORECAST_BPS] {
                if bps <= MEASURED_BPS[2] || path.0 <= FORECAST_RTT_MS {
                    checks.extend(of(path, &|_| Kind::Check { bps, workload }));
                }
            }
        }
        [measured, loads, links, checks].concat()
    }

    fn line(&self, bps: u64) -> Line {
        Line { bps, host_bps: 4 * bps, round_trip: self.round_trip(), loss: self.path.1 }
    }

    fn round_trip(&self) -> Duration {
        Duration::from_millis(self.path.0)
    }

    /// The lines that must be played packet by packet for it.
    fn measured_bps(&self) -> &'static [u64] {
        let (Kind::Path { bps } | Kind::Load { bps, .. } | Kind::Check { bps, .. }) = self.kind else {
            return &MEASURED_BPS;
        };
        match MEASURED_BPS.iter().position(|measured| *measured == bps) {
            Some(at) => &MEASURED_BPS[at..=at],
            // The two fastest tell whether goodput follows the line.
            None => &MEASURED_BPS[1..],
        }
    }

    /// What was measured for it.
    fn fluids(&self, measured: &[(Row, Outcome)]) -> Result<Fluids, TransferError> {
        let of_path = measured.iter().filter(|(row, _)| (row.path, row.transport) == (self.path, self.transport));
        let mut fluids = Vec::new();
        for (row, outcome) in of_path {
            let Kind::Path { bps } = row.kind else { continue };
            match outcome {
                Ok(Found::Path(fluid)) if self.measured_bps().contains(&bps) => fluids.push((bps, fluid.clone())),
                Err(error) if self.measured_bps().contains(&bps) => return Err(error.clone()),
                _ => {}
            }
        }
        fluids.sort_by_key(|(bps, _)| *bps);
        Ok(Fluids { transport: self.transport, round_trip: self.round_trip(), measured: fluids })
    }

    fn run(&self, measured: &[(Row, Outcome)], seed: u64) -> Outcome {
        let fluids = self.fluids(measured)?;
        Ok(match self.kind {
            Kind::Path { bps } => Found::Path(fluids.at(bps)),
            Kind::Load { bps, workload } => self.load(&workload, bps, fluids.at(bps), seed),
            Kind::Link { workload } => self.link(&workload, &fluids, seed),
            Kind::Check { bps, workload } => {
                let check =
                    Check { line: self.line(bps), transport: self.transport, workload, prompts: CHECKED_PROMPTS };
                Found::Check(check.run(&fluids.at(bps), seed)?)
            }
        })
    }

    fn load(&self, workload: &Workload, bps: u64, fluid: Fluid, seed: u64) -> Found {
        let (ideal, round_trip) = (Fluid::ideal(&self.line(bps)), self.round_trip());
        let objective = workload.objective(&ideal, round_trip);
        let per_s = |fluid| workload.lambda_max(objective, fluid, round_trip, seed);
        let unloaded = workload.unloaded(&fluid, round_trip, seed);
        Found::Load { unloaded, objective, per_s: per_s(&fluid), ideal_per_s: per_s(&ideal), fluid }
    }

    fn link(&self, workload: &Workload, fluids: &Fluids, seed: u64) -> Found {
        let (per_s, round_trip) = (LINK_LOAD * workload.most_per_s(), self.round_trip());
        let p90 = |fluid: &Fluid| workload.p90(per_s, fluid, round_trip, seed).as_secs_f64();
        let none = p90(&Fluid { goodput_bps: f64::INFINITY, delays: vec![round_trip] });
        Found::Link { per_s, added: LINKS_BPS.iter().map(|bps| p90(&fluids.at(*bps)) / none - 1.0).collect() }
    }

    fn workload(&self) -> Option<Workload> {
        match self.kind {
            Kind::Path { .. } => None,
            Kind::Load { workload, .. } | Kind::Link { workload } | Kind::Check { workload, .. } => Some(workload),
        }
    }
}

/// The first line that adds no more than it may.
fn needs(added: &[f64]) -> Option<u64> {
    LINKS_BPS.iter().zip(added).find(|(_, added)| **added <= LINK_ADDS).map(|(bps, _)| *bps)
}

fn ms(time: Duration) -> f64 {
    (time.as_nanos() as f64 / 1e4).round() / 1e2
}

impl Cell for Row {
    type Outcome = Outcome;

    const SCHEMA: &'static str = "uroce.sim.kv/1";

    const KEYS: &'static [&'static str] =
        &["row", "transport", "rtt_ms", "loss", "line_bps", "model", "prompt_tokens", "send"];

    fn which(&self) -> Value {
        let (row, bps) = match self.kind {
            Kind::Path { bps } => ("path", Some(bps)),
            Kind::Load { bps, .. } => ("load", Some(bps)),
            Kind::Link { .. } => ("link", None),
            Kind::Check { bps, .. } => ("check", Some(bps)),
        };
        let mut which = json!({
            "row": row,
            "transport": self.transport.name(),
            "rtt_ms": self.path.0,
            "loss": self.path.1,
        });
        if let Some(bps) = bps {
            which["line_bps"] = json!(bps);
        }
        if let Some(workload) = self.workload() {
            let fields = json!({
                "model": workload.model.name,
                "accelerator": H100.name,
                "accelerators": workload.model.accelerators,
                "prompt_tokens": workload.tokens,
                "send": workload.sending.name(),
                "cache_bytes": workload.cache_bytes(),
                "prefill_ms": ms(workload.prefill()),
            });
            which = cells::object(which, fields);
        }
        which
    }

    fn fields(&self, outcome: &Outcome) -> Value {
        match outcome {
            Ok(Found::Path(fluid)) => json!({
                "goodput_bps": fluid.goodput_bps.round(),
                "delay_p50_ms": ms(fluid.delay(0.5)),
                "delay_p90_ms": ms(fluid.delay(0.9)),
            }),
            Ok(Found::Load { fluid, unloaded, objective, per_s, ideal_per_s }) => json!({
                "goodput_bps": fluid.goodput_bps.round(),
                "ttft_ms": ms(*unloaded),
                "objective_ms": ms(*objective),
                "lambda_max": per_s,
                "ideal_lambda_max": ideal_per_s,
            }),
            Ok(Found::Link { per_s, added }) => json!({
                "load_per_s": per_s,
                "lines_bps": LINKS_BPS,
                "added": added,
                "needs_bps": needs(added),
            }),
            Ok(Found::Check(compared)) => json!({
                "load_per_s": compared.per_s,
                "prompts": CHECKED_PROMPTS,
                "packets_p50_ms": ms(compared.packets[0]),
                "packets_p90_ms": ms(compared.packets[1]),
                "fluid_p50_ms": ms(compared.fluid[0]),
                "fluid_p90_ms": ms(compared.fluid[1]),
                "difference_p50": compared.difference()[0],
                "difference_p90": compared.difference()[1],
            }),
            Err(error) => json!({ "violation": error.to_string() }),
        }
    }

    fn describe(&self, outcome: &Outcome) -> String {
        let which = self.which();
        let text = |key: &str| which[key].as_str().unwrap_or_default().to_owned();
        let line = which["line_bps"].as_f64().map_or_else(String::new, |bps| format!("{:.4} Gb/s", bps / 1e9));
        let prompt = self.workload().map_or_else(String::new, |workload| {
            format!("{:16} {:6} {:6}", workload.model.name, workload.tokens, workload.sending.name())
        });
        let name = format!(
            "{:5} {:15} {:2} ms {:4} % {line:>8} {prompt:30}",
            text("row"),
            self.transport.name(),
            self.path.0,
            super::in_percent(self.path.1),
        );
        match outcome {
            Ok(Found::Path(fluid)) => format!(
                "{name}  {:7.3} Gb/s, acknowledged after {:.1} ms (90 %: {:.1})",
                fluid.goodput_bps / 1e9,
                ms(fluid.delay(0.5)),
                ms(fluid.delay(0.9)),
            ),
            Ok(Found::Load { unloaded, objective, per_s, ideal_per_s, .. }) => format!(
                "{name}  alone {:8.1} ms, objective {:8.1}  {per_s:8.3} prompts/s of {ideal_per_s:8.3}",
                ms(*unloaded),
                ms(*objective),
            ),
            Ok(Found::Link { per_s, added }) => {
                let needs = needs(added).map_or("more".to_owned(), |bps| format!("{} Gb/s", bps as f64 / 1e9));
                format!("{name}  {per_s:8.3} prompts/s need {needs}")
            }
            Ok(Found::Check(compared)) => format!(
                "{name}  packets {:.1} ms (90 %: {:.1}), fluid {:.1} ({:.1}): {:+.1} % ({:+.1} %)",
                ms(compared.packets[0]),
                ms(compared.packets[1]),
                ms(compared.fluid[0]),
                ms(compared.fluid[1]),
                100.0 * compared.difference()[0],
                100.0 * compared.difference()[1],
            ),
            Err(error) => format!("{name}  {error}"),
        }
    }

    fn is_wrong(&self, outcome: &Outcome) -> bool {
        outcome.is_err()
    }
}

/// Plays packet by packet what the rows need, each once.
fn measure(rows: &[Row], options: &Options) -> Vec<(Row, Outcome)> {
    let mut needed: Vec<Row> = Vec::new();
    for row in rows {
        for bps in row.measured_bps() {
            let path = Row { kind: Kind::Path { bps: *bps }, ..*row };
            if !needed.contains(&path) {
                needed.push(path);
            }
        }
    }
    let measure = |row: &Row| {
        let bps = row.measured_bps()[0];
        Ok(Found::Path(Fluid::measure(row.line(bps), row.transport, options.seed)?))
    };
    let outcomes = cells::run_all(&needed, options.threads, measure);
    needed.into_iter().zip(outcomes).collect()
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut rows = Row::all();
    cells::keep(&mut rows, &arguments.only)?;
    let options = &arguments.options;
    let measured = measure(&rows, options);
    let sheet = cells::play(&rows, options, |row| row.run(&measured, options.seed));
    if let Some(file) = &arguments.svg {
        let squares: Vec<Square> = sheet.lines.iter().filter_map(|line| Square::of(line, NAMED_TOKENS)).collect();
        kv_picture::draw(file, &squares).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(sheet.exit_code())
}

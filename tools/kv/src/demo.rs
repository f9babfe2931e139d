//! Streaming, priority and deadlines over one path: what each gives, over real frames.

use std::path::Path as File;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uroce::verbs::LinkKind;
use wan::{Plan, Side, Wan};

use crate::conversation::{Tools, by_uroce};
use crate::profile::{LINE_BPS, Path};
use crate::site::Site;
use crate::stream::{self, Prompt};
use crate::tokens::{Beside, TokenPlan, TokensPlayed, play_tokens};

/// How much of everything is played.
#[derive(Clone, Debug)]
pub struct DemoPlan {
    /// The path.
    pub path: Path,
    /// Whose cache leaves while it is computed.
    pub prompt: Prompt,
    /// Messages of 64 bytes that are measured, and before them.
    pub tokens: [usize; 2],
    /// What is fetched by a deadline, in bytes.
    pub object_bytes: u64,
    /// Deadlines, in milliseconds.
    pub deadlines_ms: Vec<u64>,
    /// Decides which frames are lost.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Demo {
    /// What was played.
    pub plan: DemoPlan,
    /// What the site that sent said of a stream in chunks of the chosen length, and of the same cache as one message.
    pub streams: [Value; 2],
    /// What messages met: with nothing beside them, beside bulk, and beside the same in one class.
    pub tokens: Vec<TokensPlayed>,
    /// What was whole at each deadline: without repair symbols, and with [`REPAIR_PER_MILLE`].
    pub fetched: [Vec<Fetched>; 2],
}

/// What was whole of an object at a deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetched {
    /// The deadline, in milliseconds since the request.
    pub deadline_ms: u64,
    /// Blocks that were whole, and all.
    pub whole: u64,
    /// All of them.
    pub blocks: u64,
}

/// The share of messages whose latency is shown: at 0.1 % of loss the slowest tenth has waited for repairs, and those behind them.
pub const DEMO_SHARE: f64 = 0.9;

/// Repair symbols for a thousand.
pub const REPAIR_PER_MILLE: u64 = 60;

/// Where the end that serves listens, and how long it may take to begin.
const PORT: u16 = 18620;
const PATIENCE: Duration = Duration::from_secs(20);

/// The deadline of the first request of a connection, which opens it: what it fetches does not count.
const FIRST_MS: u64 = 3000;

impl DemoPlan {
    /// The demonstration: a path that loses one frame in a thousand, a prompt that takes a second, and twice that for its tokens.
    pub fn usual(seed: u64) -> DemoPlan {
        DemoPlan {
            path: Path { rtt: Duration::from_millis(30), loss: 0.001 },
            prompt: stream::PROMPTS[0],
            tokens: [3000, 3000],
            object_bytes: 8 << 20,
            deadlines_ms: vec![100, 150, 200, 250, 300, 400],
            seed,
        }
    }

    /// Plays all of it.
    ///
    /// # Errors
    /// What went wrong.
    pub fn play(self, tools: &Tools) -> Result<Demo, String> {
        let streams = self.streams(tools)?;
        let [tokens, warm_up] = self.tokens;
        let (path, seed) = (self.path.conditions(), self.seed);
        let plan = TokenPlan {
            path,
            tokens,
            every: path.delay / 20,
            flows: 1,
            warm_up,
            seed,
            link: LinkKind::Auto,
            apart: None,
        };
        let tokens = Beside::ALL.into_iter().map(|beside| play_tokens(&plan, beside)).collect::<Result<_, _>>()?;
        let program = stream::program(tools, "deadline")?;
        let fetched = [self.fetch(tools, &program, 0)?, self.fetch(tools, &program, REPAIR_PER_MILLE)?];
        Ok(Demo { plan: self, streams, tokens, fetched })
    }

    fn wan(&self) -> Result<Wan, String> {
        Wan::start(Plan::simple(self.path.conditions(), self.seed)).map_err(|error| error.to_string())
    }

    fn streams(&self, tools: &Tools) -> Result<[Value; 2], String> {
        let program = stream::program(tools, "stream")?;
        let chunks = [0, self.prompt.bytes() as u64];
        let said = stream::play(&self.wan()?, tools, &program, &self.prompt, &chunks)?;
        let sent: Vec<Value> = said.into_iter().map(|[sent, _]| sent).collect();
        sent.try_into().map_err(|sent| format!("not two streams: {sent:?}"))
    }

    /// Fetches the object once for each deadline.
    fn fetch(&self, tools: &Tools, program: &File, repair_per_mille: u64) -> Result<Vec<Fetched>, String> {
        let wan = self.wan()?;
        let start = |side: Side, words: &[String]| {
            let mut command = by_uroce(&wan, tools, side, &[]);
            command.arg(program).arg("-b").arg(self.object_bytes.to_string());
            command.arg("-r").arg(repair_per_mille.to_string()).args(words);
            Site::start(command)
        };
        let _serves = start(Side::A, &["serve".to_owned()])?;
        listens(&wan)?;
        let deadlines: Vec<String> =
            std::iter::once(FIRST_MS).chain(self.deadlines_ms.iter().copied()).map(|ms| ms.to_string()).collect();
        let words = ["-n", &deadlines.len().to_string(), "-t", &deadlines.join(","), "fetch"].map(str::to_owned);
        let host = wan.host(Side::A, 0).ipv4.to_string();
        let fetches = start(Side::B, &[&words[..], &[host]].concat())?;
        let end = Instant::now() + PATIENCE + Duration::from_millis(FIRST_MS);
        let mut fetched = Vec::new();
        while let Some(line) = fetches.next(end)? {
            let (Some(whole), Some(blocks)) = (line["whole"].as_u64(), line["blocks"].as_u64()) else { continue };
            if line["exact"] != true || line["contents_equal"] != true || line["end"] == "failed" {
                return Err(format!("a fetch by a deadline went wrong: {line}"));
            }
            fetched.push((whole, blocks));
        }
        fetches.finish()?;
        if fetched.len() != deadlines.len() {
            return Err(format!("{} fetches of {} ended", fetched.len(), deadlines.len()));
        }
        let of_deadline = |(deadline_ms, (whole, blocks))| Fetched { deadline_ms, whole, blocks };
        Ok(self.deadlines_ms.iter().copied().zip(fetched.into_iter().skip(1)).map(of_deadline).collect())
    }
}

/// Waits until the end that serves does.
fn listens(wan: &Wan) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let text = wan.namespace(Side::A).exec("ss", &["-Hltn"]).map_err(|error| error.to_string())?;
        if text.contains(&format!(":{PORT} ")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("the site that serves does not begin".into())
}

impl Demo {
    /// A time of the stream in chunks, in milliseconds.
    pub fn streamed_ms(&self, field: &str) -> f64 {
        self.streams[0][field].as_f64().unwrap_or_default()
    }

    /// How long the cache takes as one message once it is computed, in milliseconds.
    pub fn after_ms(&self) -> f64 {
        self.streams[1]["total_ms"].as_f64().unwrap_or_default()
    }

    /// As docs/schemas/kv.demo.json has it.
    pub fn to_json(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let DemoPlan { path, prompt, object_bytes, seed, .. } = &self.plan;
        let tokens = self.tokens.iter().map(|played| {
            json!({
                "beside": played.beside.to_string(),
                "messages": played.latencies.len(),
                "median_ms": ms(played.quantile(0.5)),
                "p90_ms": ms(played.quantile(DEMO_SHARE)),
                "goodput_bps": played.goodput_bps.round(),
            })
        });
        let fetched = [0, REPAIR_PER_MILLE].into_iter().zip(&self.fetched).flat_map(|(repair, fetched)| {
            fetched.iter().map(move |fetched| {
                json!({
                    "repair_per_mille": repair,
                    "deadline_ms": fetched.deadline_ms,
                    "whole": fetched.whole,
                    "blocks": fetched.blocks,
                })
            })
        });
        json!({
            "schema": "uroce.kv.demo/1",
            "seed": seed,
            "rtt_ms": path.rtt_ms(),
            "loss": path.loss,
            "line_bps": LINE_BPS,
            "model": prompt.model.name,
            "prompt_tokens": prompt.tokens,
            "cache_bytes": prompt.bytes(),
            "chunk_bytes": self.streams[0]["chunk_bytes"],
            "compute_ms": self.streamed_ms("compute_ms"),
            "streamed_ms": self.streamed_ms("total_ms"),
            "after_ms": self.after_ms(),
            "tokens": tokens.collect::<Vec<Value>>(),
            "object_bytes": object_bytes,
            "fetched": fetched.collect::<Vec<Value>>(),
        })
    }
}

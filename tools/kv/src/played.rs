use serde_json::{Value, json};
use uroce_laboratory::inference::H100;
use uroce_laboratory::sim::batches::Times;
use wan::of_sorted;

use crate::cell::{Program, UcxChoice};
use crate::cells::{BATCH_BYTES, Play, Shows};
use crate::conversation::Outcome;
use crate::profile::{LINE_BPS, Path, Profile, SLOWER};

/// A cell that was played over a path.
#[derive(Clone, Debug)]
pub struct Played {
    /// The profile that the path is of.
    pub profile: Profile,
    /// The path.
    pub path: Path,
    /// The cell.
    pub play: Play,
    /// What it came to.
    pub outcome: Outcome,
    /// What an ideal selective repeat takes for a batch; `None` for a cell without batches.
    pub ideal: Option<Times>,
}

/// Where the time of a prompt went, in milliseconds, from its request at the decode site to its first token there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstToken {
    /// The prompt's way to the prefill site, and the word that the cache is there back from it: half a round trip each.
    pub path_ms: f64,
    /// The prefill.
    pub compute_ms: f64,
    /// What the transfer took longer than the prefill, acknowledged.
    pub transfer_ms: f64,
    /// The step that makes the token.
    pub step_ms: f64,
}

impl FirstToken {
    /// All of it.
    pub fn total_ms(&self) -> f64 {
        self.path_ms + self.compute_ms + self.transfer_ms + self.step_ms
    }
}

impl Played {
    /// A cell and what it came to, beside the ideal.
    pub fn new(profile: Profile, path: Path, play: Play, outcome: Outcome) -> Played {
        let ideal = (play.shows == Shows::Batches).then(|| path.ideal(BATCH_BYTES as u64));
        Played { profile, path, play, outcome, ideal }
    }

    /// The transfer on the warm connection, or, without one, the first.
    fn transfer(&self) -> Option<&Value> {
        self.outcome.end("warm").or_else(|| self.outcome.end("cold")).filter(|_| self.play.shows == Shows::Bulk)
    }

    /// Bytes that arrived a second, in bits: of a transfer that was cut, of what had arrived until then.
    pub fn goodput_bps(&self) -> Option<f64> {
        let end = self.transfer().filter(|_| self.outcome.failure.is_none())?;
        Some(8e3 * end["arrived_bytes"].as_f64()? / end["transfer_ms"].as_f64()?)
    }

    /// What UCX's own limits let pass in a round trip, as bits a second.
    pub fn window_bps(&self) -> Option<f64> {
        self.play.cell.window_bytes().map(|bytes| 8.0 * bytes as f64 / self.path.rtt.as_secs_f64())
    }

    /// How long each batch took, in order of length.
    pub fn batches_ms(&self) -> Vec<f64> {
        let spans = self.outcome.end("batches").and_then(|end| end["spans_ms"].as_array());
        let mut spans: Vec<f64> = spans.into_iter().flatten().filter_map(Value::as_f64).collect();
        spans.sort_by(f64::total_cmp);
        spans
    }

    /// The median of an ideal selective repeat's batches, and what 99 of 100 keep to, in milliseconds.
    pub fn ideal_ms(&self) -> Option<[f64; 2]> {
        self.ideal.map(|times| [times.median, times.p99].map(|time| time.as_secs_f64() * 1e3))
    }

    /// Each prompt's way to its first token, shortest first.
    pub fn first_tokens(&self) -> Vec<FirstToken> {
        let Shows::Prompt { model, tokens } = &self.play.shows else { return Vec::new() };
        let compute_ms = 1e3 * SLOWER * model.prefill_s(*tokens, &H100);
        let step_ms = 1e3 * SLOWER * model.first_token_s(*tokens, &H100);
        let layers = self.layers();
        let last = layers.iter().filter_map(|layers| layers.iter().map(|layer| layer[2]).reduce(f64::max));
        let first_token = |last_ms: f64| FirstToken {
            path_ms: self.path.rtt_ms(),
            compute_ms,
            transfer_ms: last_ms - compute_ms,
            step_ms,
        };
        let mut all: Vec<FirstToken> = last.map(first_token).collect();
        all.sort_by(|one, other| one.total_ms().total_cmp(&other.total_ms()));
        all
    }

    /// Of each prompt that arrived whole the layers.
    pub fn layers(&self) -> Vec<Vec<[f64; 3]>> {
        self.outcome.pieces()
    }

    /// As docs/schemas/kv.json has it.
    pub fn to_json(&self) -> Value {
        let cell = &self.play.cell;
        let transfer = self.transfer();
        let batches = self.batches_ms();
        let tokens = self.first_tokens();
        let (model, prompt_tokens) = match &self.play.shows {
            Shows::Prompt { model, tokens } => (Some(model.name), Some(*tokens)),
            _ => (None, None),
        };
        let is_over_verbs = cell.is_over_verbs();
        let sockets = self.outcome.sockets.as_ref();
        let token = |share: f64| of_sorted(&tokens, share).map(|token| rounded(token.total_ms()));
        let has_batches = !batches.is_empty();
        let ideal = self.ideal_ms().filter(|_| has_batches);
        json!({
            "schema": "uroce.kv/1",
            "program": cell.program.to_string(),
            "transport": cell.transport_name(),
            "op": cell.op.to_string(),
            "ucx": (cell.program == Program::Nixl && is_over_verbs)
                .then_some(if cell.ucx == UcxChoice::Own { "own" } else { "uroce" }),
            "profile": self.profile.to_string(),
            "rtt_ms": self.path.rtt_ms(),
            "loss": self.path.loss,
            "line_bps": LINE_BPS,
            "request_bytes": cell.block_bytes,
            "bytes": transfer.map(|end| end["bytes"].clone()),
            "arrived_bytes": transfer.map(|end| end["arrived_bytes"].clone()),
            "transfer_ms": transfer.and_then(|end| end["transfer_ms"].as_f64()).map(rounded),
            "goodput_bps": self.goodput_bps().map(f64::round),
            "window_bps": self.window_bps().map(f64::round),
            "cold_ms": self.outcome.end("cold").and_then(|end| end["transfer_ms"].as_f64()).map(rounded),
            "cold_bytes": self.outcome.end("cold").map(|end| end["bytes"].clone()),
            "cut": self.outcome.ends.iter().any(|end| end["cut"] == true),
            "contents_equal": self.contents_equal(),
            "batches": has_batches.then_some(batches.len()),
            "transfer_p50_ms": of_sorted(&batches, 0.5).copied().map(rounded),
            "transfer_p99_ms": of_sorted(&batches, 0.99).copied().map(rounded),
            "ideal_p50_ms": ideal.map(|[median, _]| rounded(median)),
            "ideal_p99_ms": ideal.map(|[_, p99]| rounded(p99)),
            "model": model,
            "prompt_tokens": prompt_tokens,
            "ttft_ms": token(0.5),
            "ttft_p90_ms": token(0.9),
            "congestion_control": sockets.map(|sockets| sockets.controls.join(",")),
            "data_sockets": sockets.map(|sockets| sockets.count),
            "queue_pairs": is_over_verbs.then_some(self.outcome.queue_pairs.len()),
            "failure": self.outcome.failure,
        })
    }

    /// Whether all that was said to be moved arrived as it was; `None` when nothing was.
    fn contents_equal(&self) -> Option<bool> {
        let all: Vec<bool> = self.outcome.ends.iter().filter_map(|end| end["contents_equal"].as_bool()).collect();
        (!all.is_empty()).then(|| all.iter().all(|equal| *equal))
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

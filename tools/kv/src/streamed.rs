use serde_json::{Value, json};

use crate::profile::{LINE_BPS, Path, Profile};
use crate::stream::{OUTSTANDING, Prompt};

/// The streams of a prompt over a path with chunks of a length.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The profile that the path is of.
    pub profile: Profile,
    /// The path.
    pub path: Path,
    /// The prompt.
    pub prompt: Prompt,
    /// The length of a chunk in bytes; `None` for the chosen one.
    pub chunk: Option<u64>,
    /// What the sites said of each stream: the one that sends, and the other.
    pub said: Vec<[Value; 2]>,
    /// How long the cache takes as one message, once it is computed.
    pub transfer_ms: Option<f64>,
    /// Why it is no result.
    pub failure: Option<String>,
}

impl Streamed {
    /// The stream that took the median time, as the site said that sent it.
    pub fn median(&self) -> Option<&Value> {
        let mut sent: Vec<&Value> = self.said.iter().map(|[sent, _]| sent).collect();
        let total = |line: &Value| line["total_ms"].as_f64().unwrap_or(f64::MAX);
        sent.sort_by(|one, other| total(one).total_cmp(&total(other)));
        sent.get(sent.len().checked_sub(1)? / 2).copied()
    }

    /// A field of it.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.median()?[field].as_f64()
    }

    /// How long the cache took at least as one message, of streams whose chunks are longer than it.
    pub fn transfer_ms(path: &Path, said: &[[Value; 2]]) -> Option<f64> {
        let after = |sent: &Value| Some(sent["total_ms"].as_f64()? - sent["compute_ms"].as_f64()? - path.rtt_ms());
        said.iter().filter_map(|[sent, _]| after(sent)).reduce(f64::min)
    }

    /// The longer of compute and transfer, a chunk or a part, whichever takes longer, and a round trip, in milliseconds.
    pub fn bound_ms(&self) -> Option<f64> {
        let (compute, transfer) = (self.number("compute_ms")?, self.transfer_ms?);
        let last = self.number("chunk_bytes")?.max(self.prompt.part_bytes() as f64).min(self.prompt.bytes() as f64);
        Some(compute.max(transfer) + transfer * last / self.prompt.bytes() as f64 + self.path.rtt_ms())
    }

    /// How much longer the median took than the bound, as a share of it; below 0 where it took less.
    pub fn beyond(&self) -> Option<f64> {
        Some(self.number("total_ms")? / self.bound_ms()? - 1.0)
    }

    /// As docs/schemas/kv.stream.json has it.
    pub fn to_json(&self) -> Value {
        let longest = self.said.iter().filter_map(|[sent, _]| sent["total_ms"].as_f64()).reduce(f64::max);
        let fields = |name: &str| self.median().map_or(Value::Null, |line| line[name].clone());
        json!({
            "schema": "uroce.kv.stream/1",
            "profile": self.profile.to_string(),
            "rtt_ms": self.path.rtt_ms(),
            "loss": self.path.loss,
            "line_bps": LINE_BPS,
            "model": self.prompt.model.name,
            "prompt_tokens": self.prompt.tokens,
            "cache_bytes": self.prompt.bytes(),
            "parts": self.prompt.parts(),
            "outstanding": OUTSTANDING,
            "chunk": self.chunk.map_or_else(|| json!("chosen"), |bytes| json!(bytes)),
            "streams": self.said.len(),
            "chunk_bytes": fields("chunk_bytes"),
            "rate_bps": fields("rate_bps"),
            "round_trip_ms": fields("round_trip_ms"),
            "compute_ms": fields("compute_ms"),
            "transfer_ms": self.transfer_ms,
            "expected_ms": fields("expected_ms"),
            "bound_ms": self.bound_ms(),
            "total_ms": fields("total_ms"),
            "longest_ms": longest,
            "beyond": self.beyond(),
            "contents_equal": (!self.said.is_empty()).then(|| self.said.iter().all(|[_, got]| got["contents_equal"] == true)),
            "failure": self.failure,
        })
    }

    /// The line of a table.
    pub(crate) fn row(&self) -> Vec<String> {
        let written = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
        let ms = |field: &str| written(self.number(field));
        let chunk = self.number("chunk_bytes").map_or_else(|| "-".to_owned(), |bytes| length(bytes as u64));
        vec![
            self.path.to_string(),
            format!("{} × {}", self.prompt.model.name, self.prompt.tokens),
            if self.chunk.is_none() { format!("{chunk}, chosen") } else { chunk },
            format!("{} / {}", ms("compute_ms"), written(self.transfer_ms)),
            self.failure.as_ref().map_or_else(|| ms("total_ms"), |why| format!("failed: {why}")),
            written(self.bound_ms()),
            self.beyond().map_or_else(|| "-".to_owned(), |beyond| format!("{:+.1} %", 100.0 * beyond)),
            self.number("rate_bps").map_or_else(|| "-".to_owned(), |bps| format!("{:.0}", bps / 1e6)),
        ]
    }
}

/// A length as people write it.
pub(crate) fn length(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::PROMPTS;

    #[test]
    fn the_median_stream_counts() {
        let line = |total: f64| {
            [json!({"total_ms": total, "compute_ms": 40.0, "chunk_bytes": 1 << 30}), json!({"contents_equal": true})]
        };
        let mut streamed = Streamed {
            profile: Profile::Metro,
            path: Profile::Metro.paths()[0],
            prompt: PROMPTS[0],
            chunk: None,
            said: vec![line(130.0), line(101.0), line(105.0)],
            transfer_ms: None,
            failure: None,
        };
        assert_eq!(streamed.number("total_ms"), Some(105.0));
        // 101 without compute and 2 of the path; the bound is that twice, since the chunk is all of it.
        streamed.transfer_ms = Streamed::transfer_ms(&streamed.path, &streamed.said);
        assert_eq!((streamed.transfer_ms, streamed.bound_ms()), (Some(59.0), Some(120.0)));
        assert!((streamed.beyond().unwrap() + 0.125).abs() < 1e-9);
        assert_eq!(streamed.to_json()["longest_ms"], 130.0);
        streamed.said.clear();
        assert_eq!((streamed.median(), streamed.to_json()["contents_equal"].is_null()), (None, true));
    }
}

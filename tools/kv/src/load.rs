use std::time::Duration;

use serde_json::{Value, json};
use uroce_laboratory::inference::{Model, PAGE_TOKENS};
use uroce_laboratory::sim::kv::{
    Computed, Fluid, OBJECTIVE_SHARE, Sending, Workload, bisected, most_that_keeps, share,
};
use uroce_laboratory::sim::{Line, Random};

use crate::cell::{Cell, LateLimit, Op, Program, Step, Transport};
use crate::cells::cell;
use crate::conversation::Outcome;
use crate::profile::{LINE_BPS, Path, Profile};

/// A prompt of [`TOKENS`](Self::TOKENS), scaled to the emulated line: the cache is as much smaller as the line is slower than one of
/// [`STANDS_FOR_BPS`](Self::STANDS_FOR_BPS), and then cache and compute are so many times smaller again that a hundred prompts take
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaledPrompt {
    /// What is played.
    pub workload: Workload,
}

/// What a site serves in time over a path.
#[derive(Clone, Debug)]
pub struct Served {
    /// The profile that the path is of, and the path.
    pub profile: Profile,
    /// The path.
    pub path: Path,
    /// The prompts.
    pub prompt: ScaledPrompt,
    /// What carried their caches.
    pub transport: Transport,
    /// The time to the first token that 90 of 100 prompts are to keep to.
    pub objective: Duration,
    /// The most prompts a second of which 90 of 100 keep to it over an ideal transport.
    pub ideal_per_s: f64,
    /// The same over this one; 0 when it is less than two fifths of the ideal.
    pub lambda_max_per_s: f64,
    /// The loads that were played.
    pub loads: Vec<Load>,
    /// Why it is no result.
    pub failure: Option<String>,
}

/// A load that was played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Prompts a second.
    pub per_s: f64,
    /// What 90 of 100 prompts kept to; `None` when the cell ended before the last one had arrived.
    pub p90: Option<Duration>,
}

/// Prompts of a load: one in ten may miss the objective.
const PROMPTS: usize = 100;

/// The least load that an ideal transport is asked for, as a part of what the site can compute: the line can carry less.
const IDEAL_LEAST_SHARE: f64 = 0.01;

/// The least load that is played, as a part of the ideal one: a hundred prompts take longer the fewer come.
const LEAST_SHARE: f64 = 0.4;

/// How far below the ideal the next load is, when that is too much, as a part of it.
const FIRST_BELOW: f64 = 0.04;

/// Prompts whose caches have places of their own.
const PLACES: usize = 8;

/// The time that a cell gets beyond its prompts: objectives, and for the first transfer of a connection.
const OBJECTIVES_MORE: u32 = 3;
const COLD_LIMIT: Duration = Duration::from_secs(15);

impl ScaledPrompt {
    /// The length of the prompt.
    pub const TOKENS: usize = 32 << 10;

    /// The line that the emulated one stands for, in bits a second.
    pub const STANDS_FOR_BPS: u64 = 10_000_000_000;

    /// The prompt of a model, so many times shorter beyond the line.
    pub fn new(model: Model, shorter: f64) -> ScaledPrompt {
        let share = LINE_BPS as f64 / Self::STANDS_FOR_BPS as f64 / shorter;
        let pages = (Self::TOKENS as f64 * share / PAGE_TOKENS as f64).round().max(1.0);
        let cached_tokens = pages as usize * PAGE_TOKENS;
        let whole = Workload::new(model, Self::TOKENS, Sending::Layers);
        ScaledPrompt { workload: Workload { shorter, cached_tokens, ..whole } }
    }

    /// The most prompts a second that a site serves in time, over a transport whose cells are played by `play`. The times of arrival
    /// are those of `seed`.
    pub fn serve(
        self,
        (profile, path): (Profile, Path),
        transport: Transport,
        seed: u64,
        mut play: impl FnMut(&Cell) -> Outcome,
    ) -> Served {
        let workload = self.workload;
        let line = Line { bps: LINE_BPS, host_bps: 10 * LINE_BPS, round_trip: path.rtt, loss: 0.0 };
        let ideal = Fluid::ideal(&line);
        let objective = workload.objective(&ideal, path.rtt);
        let prompts = |per_s| workload.compute(Workload::arrivals(per_s, PROMPTS, seed));
        let p90 = |computed: &Computed, ends: &[Duration]| {
            share(&workload.first_tokens(computed, ends, path.rtt), OBJECTIVE_SHARE)
        };
        let most = workload.most_per_s();
        let ideal_per_s = most_that_keeps([IDEAL_LEAST_SHARE * most, most], |per_s| {
            let computed = prompts(per_s);
            // All of its delays are the same.
            p90(&computed, &ideal.carry(&computed.pieces, &mut Random::new(0, 0))) <= objective
        });
        let (mut loads, mut failure) = (Vec::new(), None);
        let mut keeps = |per_s: f64| {
            if failure.is_some() {
                return false;
            }
            let computed = prompts(per_s);
            let outcome = play(&self.cell((transport, path), &computed, objective));
            failure = outcome.failure.clone();
            let ends = outcome.pieces().pop().map(|pieces| pieces.iter().map(|piece| ms(piece[2])).collect::<Vec<_>>());
            let kept_to = ends.map(|ends| p90(&computed, &ends));
            loads.push(Load { per_s, p90: kept_to });
            kept_to.is_some_and(|p90| p90 <= objective)
        };
        // Most are near the ideal, or far from it: each next load is twice as far.
        let (mut low, mut high, mut below) = (ideal_per_s, ideal_per_s, FIRST_BELOW);
        let lambda_max_per_s = loop {
            if keeps(low) {
                break bisected([low, high], keeps);
            }
            if low <= LEAST_SHARE * ideal_per_s {
                break 0.0;
            }
            (low, high) = (ideal_per_s * (1.0 - below).max(LEAST_SHARE), low);
            below *= 2.0;
        };
        Served { profile, path, prompt: self, transport, objective, ideal_per_s, lambda_max_per_s, loads, failure }
    }

    /// What it is called, over a transport.
    pub fn line(&self, transport: Transport) -> String {
        format!("{} over {}", self.workload.model.name, transport_name(transport))
    }

    /// NIXL's WRITEs of these prompts' layers. It ends when so many prompts are late that the objective is missed.
    fn cell(&self, (transport, path): (Transport, Path), computed: &Computed, objective: Duration) -> Cell {
        let (model, layer_blocks) = (self.workload.model, self.workload.cached_tokens / PAGE_TOKENS);
        let of_a_prompt = layer_blocks * model.kv_layers;
        let bytes = PLACES * of_a_prompt * model.page_bytes();
        let mut cell = cell(Program::Nixl, transport, Op::Write, model.page_bytes(), bytes);
        let at_ms: Vec<f64> = computed.pieces.iter().map(|piece| piece.at.as_secs_f64() * 1e3).collect();
        let last = computed.pieces.last().map(|piece| piece.at).unwrap_or_default();
        cell.limit_s = (last + objective * OBJECTIVES_MORE + COLD_LIMIT).as_secs();
        cell.steps = vec![
            Step::Transfer { name: "cold", blocks: of_a_prompt },
            Step::Pieces { piece_blocks: layer_blocks, at_ms, limit: Some(self.limit(path, computed, objective)) },
        ];
        cell
    }

    /// The last piece of a prompt is to be there early enough for the word of it and the first step.
    fn limit(&self, path: Path, computed: &Computed, objective: Duration) -> LateLimit {
        let left_ms = (objective.saturating_sub(path.rtt + self.workload.step())).as_secs_f64() * 1e3;
        let pieces = computed.pieces.len() / computed.arrivals.len();
        let due_ms = |piece: usize| {
            let arrival = computed.arrivals[piece / pieces];
            (piece % pieces == pieces - 1).then_some(arrival.as_secs_f64() * 1e3 + left_ms)
        };
        let prompts = computed.arrivals.len();
        let count = prompts - 1 - (prompts as f64 * OBJECTIVE_SHARE) as usize;
        LateLimit { due_ms: (0..computed.pieces.len()).map(due_ms).collect(), count }
    }
}

fn transport_name(transport: Transport) -> String {
    cell(Program::Nixl, transport, Op::Write, 1, 1).transport_name()
}

fn ms(value: f64) -> Duration {
    Duration::from_secs_f64(value / 1e3)
}

impl Served {
    /// As docs/schemas/kv.load.json has it.
    pub fn to_json(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let per_s = |value: f64| (value * 1e3).round() / 1e3;
        let workload = &self.prompt.workload;
        let loads = self.loads.iter().map(|load| json!({"per_s": per_s(load.per_s), "p90_ms": load.p90.map(ms)}));
        json!({
            "schema": "uroce.kv.load/1",
            "program": Program::Nixl.to_string(),
            "transport": self.transport_name(),
            "profile": self.profile.to_string(),
            "rtt_ms": self.path.rtt_ms(),
            "loss": self.path.loss,
            "line_bps": LINE_BPS,
            "model": workload.model.name,
            "prompt_tokens": ScaledPrompt::TOKENS,
            "stands_for_bps": ScaledPrompt::STANDS_FOR_BPS,
            "shorter": workload.shorter,
            "cache_bytes": workload.cache_bytes(),
            "prefill_ms": ms(workload.prefill()),
            "prompts": PROMPTS,
            "objective_ms": ms(self.objective),
            "ideal_per_s": per_s(self.ideal_per_s),
            "lambda_max_per_s": self.failure.is_none().then(|| per_s(self.lambda_max_per_s)),
            "loads": loads.collect::<Vec<Value>>(),
            "failure": self.failure,
        })
    }

    /// The transport's name in tables.
    pub fn transport_name(&self) -> String {
        transport_name(self.transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uroce_laboratory::inference::{H100, MODELS};

    const PATH: Path = Path { rtt: Duration::from_millis(30), loss: 0.001 };

    fn prompt() -> ScaledPrompt {
        ScaledPrompt::new(MODELS[2], 8.0)
    }

    /// 264 MB are a 33rd and an eighth: 0.99 MB, or eight pages of seven layers. The prefill takes 0.58 s, and an eighth of it here.
    #[test]
    fn a_prompt_is_as_much_smaller_as_the_line() {
        let workload = prompt().workload;
        assert_eq!((workload.cached_tokens, workload.cache_bytes()), (128, 128 * 8064));
        let prefill_s = MODELS[2].prefill_s(ScaledPrompt::TOKENS, &H100);
        assert!((workload.prefill().as_secs_f64() - prefill_s / 8.0).abs() < 1e-6, "{:?}", workload.prefill());
    }

    #[test]
    fn an_ideal_transport_serves_some_of_all_prompts_that_are_played() {
        for (prompt, _) in crate::cells::loads() {
            let served = prompt.serve((Profile::Lossy, PATH), Transport::Uroce, 1, |cell| play(cell, 10_000.0));
            assert!(served.ideal_per_s > 0.0 && served.lambda_max_per_s == 0.0, "{served:?}");
        }
    }

    /// 2 × 3e9 bytes of weights and 264 MB of cache, at 2.345e12 a second: 2.7 ms, and an eighth of it here.
    #[test]
    fn a_step_is_as_much_shorter_as_the_rest() {
        let step = prompt().workload.step();
        assert!((0.000_32..0.000_35).contains(&step.as_secs_f64()), "{step:?}");
    }

    /// What a transport that needs `stretch` as long for each piece after it is computed comes to.
    fn play(cell: &Cell, delay_ms: f64) -> Outcome {
        let Some(Step::Pieces { at_ms, .. }) = cell.steps.last() else { panic!("no pieces: {cell:?}") };
        let spans: Vec<[f64; 3]> = at_ms.iter().map(|at| [*at, *at, at + delay_ms]).collect();
        let end = json!({"name": "pieces", "cut": false, "spans_ms": spans});
        Outcome { ends: vec![end], ..Outcome::default() }
    }

    /// A cell that ends at its limit misses its objective, and one with as many late prompts as there may be does not.
    #[test]
    fn the_limit_is_where_the_objective_is_missed() {
        let workload = prompt().workload;
        let computed = workload.compute(Workload::arrivals(3.0, PROMPTS, 1));
        let objective = Duration::from_millis(400);
        let limit = prompt().limit(PATH, &computed, objective);
        let late_by = |late: usize| {
            let mut left = late;
            let ends = limit.due_ms.iter().map(|due| match due {
                Some(due) if left > 0 => {
                    left -= 1;
                    ms(due + 0.1)
                }
                Some(due) => ms(due - 0.1),
                None => Duration::ZERO,
            });
            share(&workload.first_tokens(&computed, &ends.collect::<Vec<_>>(), PATH.rtt), OBJECTIVE_SHARE)
        };
        assert!(late_by(limit.count) <= objective && late_by(limit.count + 1) > objective, "{limit:?}");
    }

    #[test]
    fn a_transport_that_delays_serves_less_and_one_that_fails_says_why() {
        let serve =
            |delay_ms: f64| prompt().serve((Profile::Lossy, PATH), Transport::Uroce, 1, |cell| play(cell, delay_ms));
        let [quick, slow, never] = [31.0, 100.0, 10_000.0].map(serve);
        assert_eq!((quick.lambda_max_per_s, quick.loads.len()), (quick.ideal_per_s, 1), "{quick:?}");
        assert!(slow.lambda_max_per_s < 0.9 * slow.ideal_per_s && slow.lambda_max_per_s > 0.0, "{slow:?}");
        assert_eq!((never.lambda_max_per_s, never.loads.len()), (0.0, 6), "{never:?}");
        let failed = prompt().serve((Profile::Lossy, PATH), Transport::Uroce, 1, |_| Outcome {
            failure: Some("no".into()),
            ..Outcome::default()
        });
        assert_eq!((failed.to_json()["failure"].as_str(), failed.loads.len()), (Some("no"), 1), "{failed:?}");
        assert_eq!(failed.to_json()["lambda_max_per_s"], Value::Null);
    }
}

use uroce::time::Duration;

use crate::inference::{H100, Model};
use crate::sim::random::Random;

use super::{Fluid, Piece, share};

/// Prompts of one length that arrive at a prefill site at random. The site computes one at a time, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// What is computed, on [`H100`]s.
    pub model: Model,
    /// The length of each prompt.
    pub tokens: usize,
    /// When the cache leaves.
    pub sending: Sending,
    /// By how much all compute is shorter than on an [`H100`]: 1, unless a slower line stands for a fast one.
    pub shorter: f64,
    /// The tokens whose cache is sent: all of them, or fewer for such a line.
    pub cached_tokens: usize,
}

/// When the parts of a cache are handed to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Each layer when it is computed, while the next ones are.
    Layers,
    /// All of it after the prefill.
    After,
}

/// Prompts in a row of which the site has computed all.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// When each prompt arrived at the site.
    pub arrivals: Vec<Duration>,
    /// What is handed to the transport, of each prompt as many.
    pub pieces: Vec<Piece>,
}

/// Prompts of which the share is looked at that keeps to the objective.
const PROMPTS: usize = 2000;

/// What the objective is, in times of a prompt that meets no other, over a line that loses nothing.
const OBJECTIVE: u32 = 2;

/// For which share of prompts it holds.
pub const OBJECTIVE_SHARE: f64 = 0.9;

/// How exactly the load is searched for, and the least one that counts, as a part of what the site can compute.
const PRECISION: f64 = 0.02;
const LEAST_LOAD: f64 = 0.001;

impl Sending {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Sending::Layers => "layers",
            Sending::After => "after",
        }
    }
}

impl Workload {
    /// Prompts of a model as they are.
    pub fn new(model: Model, tokens: usize, sending: Sending) -> Workload {
        Workload { model, tokens, sending, shorter: 1.0, cached_tokens: tokens }
    }

    /// How long the site computes a prompt.
    pub fn prefill(&self) -> Duration {
        Duration::from_secs_f64(self.model.prefill_s(self.tokens, &H100) / self.shorter)
    }

    /// How long the step takes that makes the first token.
    pub fn step(&self) -> Duration {
        Duration::from_secs_f64(self.model.first_token_s(self.tokens, &H100) / self.shorter)
    }

    /// The cache of a prompt, in bytes.
    pub fn cache_bytes(&self) -> u64 {
        (self.cached_tokens * self.model.token_bytes()) as u64
    }

    /// The prompts that a site can compute in a second.
    pub fn most_per_s(&self) -> f64 {
        1.0 / self.prefill().as_secs_f64()
    }

    /// Prompts that arrive at random, `per_s` of them a second. The same seed gives the same gaps, as much longer as there are
    /// fewer prompts.
    pub fn arrivals(per_s: f64, prompts: usize, seed: u64) -> Vec<Duration> {
        let mut random = Random::new(seed, 21);
        let mut at = 0.0;
        let next = |_| {
            at += random.gap_s(per_s);
            Duration::from_secs_f64(at)
        };
        (0..prompts).map(next).collect()
    }

    /// What the site does with prompts that arrive at these times.
    pub fn compute(&self, arrivals: Vec<Duration>) -> Computed {
        let (layers, prefill) = (self.model.kv_layers as u32, self.prefill());
        let mut free = Duration::ZERO;
        let mut pieces = Vec::new();
        for arrival in &arrivals {
            let begin = free.max(*arrival);
            free = begin + prefill;
            match self.sending {
                Sending::Layers => pieces.extend((1..=layers).map(|layer| Piece {
                    at: begin + prefill * layer / layers,
                    bytes: self.cache_bytes() / u64::from(layers),
                })),
                Sending::After => pieces.push(Piece { at: free, bytes: self.cache_bytes() }),
            }
        }
        Computed { arrivals, pieces }
    }

    /// The times to the first token, in order of length, over a path of this round trip on which pieces are acknowledged at
    /// `ends`: the prompt's way, queue, prefill, what of the transfer is not hidden behind it, the word that all is there, and
    /// the first step.
    pub fn first_tokens(&self, computed: &Computed, ends: &[Duration], round_trip: Duration) -> Vec<Duration> {
        let step = self.step();
        let pieces = computed.pieces.len() / computed.arrivals.len();
        let last = ends.iter().skip(pieces - 1).step_by(pieces);
        let mut all: Vec<Duration> =
            computed.arrivals.iter().zip(last).map(|(arrival, end)| *end - *arrival + round_trip + step).collect();
        all.sort_unstable();
        all
    }

    /// The time to the first token of a prompt that meets no other: the median of some.
    pub fn unloaded(&self, fluid: &Fluid, round_trip: Duration, seed: u64) -> Duration {
        const ALONE: u32 = 101;
        // Nothing of one is left when the next one comes.
        let bytes = self.cache_bytes() as f64;
        let apart = 2 * (self.prefill() + Duration::from_secs_f64(8.0 * bytes / fluid.goodput_bps) + fluid.delay(1.0));
        let arrivals = (0..ALONE).map(|number| apart * number).collect();
        share(&self.play(arrivals, fluid, round_trip, seed), 0.5)
    }

    /// What 90 of 100 prompts keep to at this load.
    pub fn p90(&self, per_s: f64, fluid: &Fluid, round_trip: Duration, seed: u64) -> Duration {
        let arrivals = Workload::arrivals(per_s, PROMPTS, seed);
        share(&self.play(arrivals, fluid, round_trip, seed), OBJECTIVE_SHARE)
    }

    /// The time that 90 of 100 prompts are to keep to: twice that of a prompt that meets no other over an ideal fluid, and
    /// whose layers leave when they are computed.
    pub fn objective(&self, ideal: &Fluid, round_trip: Duration) -> Duration {
        // Of an ideal fluid all delays are the same: the seed decides nothing.
        OBJECTIVE * Workload { sending: Sending::Layers, ..*self }.unloaded(ideal, round_trip, 0)
    }

    /// The most prompts a second of which 90 of 100 keep to the objective, to 2 %; zero when fewer than one in a thousand of
    /// those that the site can compute.
    pub fn lambda_max(&self, objective: Duration, fluid: &Fluid, round_trip: Duration, seed: u64) -> f64 {
        let keeps = |per_s: f64| self.p90(per_s, fluid, round_trip, seed) <= objective;
        most_that_keeps([LEAST_LOAD * self.most_per_s(), self.most_per_s()], keeps)
    }

    fn play(&self, arrivals: Vec<Duration>, fluid: &Fluid, round_trip: Duration, seed: u64) -> Vec<Duration> {
        let computed = self.compute(arrivals);
        let ends = fluid.carry(&computed.pieces, &mut Random::new(seed, 22));
        self.first_tokens(&computed, &ends, round_trip)
    }
}

/// The highest of the loads between two that keeps to an objective, to 2 %, when the greater of the two does not; 0 when the lesser
/// does not either.
pub fn most_that_keeps([low, high]: [f64; 2], mut keeps: impl FnMut(f64) -> bool) -> f64 {
    if keeps(low) { bisected([low, high], keeps) } else { 0.0 }
}

/// The same when the lesser one does.
pub fn bisected([mut low, mut high]: [f64; 2], mut keeps: impl FnMut(f64) -> bool) -> f64 {
    while high - low > PRECISION * high {
        let middle = (low + high) / 2.0;
        if keeps(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::MODELS;

    const ROUND_TRIP: Duration = Duration::from_millis(30);

    fn fluid(goodput_bps: f64) -> Fluid {
        Fluid { goodput_bps, delays: vec![ROUND_TRIP] }
    }

    fn workload(sending: Sending) -> Workload {
        Workload::new(MODELS[2], 32 << 10, sending)
    }

    /// 264 MB at 10 Gb/s are 211 ms, and a layer of them is a seventh.
    #[test]
    fn a_prompt_alone_takes_what_is_not_hidden() {
        let fixed = |workload: &Workload| (workload.prefill() + 2 * ROUND_TRIP + workload.step()).as_secs_f64();
        for (sending, layers) in [(Sending::Layers, 1.0), (Sending::After, 7.0)] {
            let workload = workload(sending);
            let exposed = layers * workload.cache_bytes() as f64 * 8.0 / 7.0 / 10e9;
            let took = workload.unloaded(&fluid(10e9), ROUND_TRIP, 1).as_secs_f64();
            assert!((took - fixed(&workload) - exposed).abs() < 1e-5, "{sending:?}: {took}, exposed {exposed}");
        }
    }

    /// With nothing but compute the site is a queue with one server and a fixed time of service: of it the 90th percentile is
    /// known (M/D/1: at a load of 0.5 one in ten waits longer than 1.09 services or so).
    #[test]
    fn queues_are_those_of_a_server_with_a_fixed_time() {
        let workload = Workload::new(MODELS[2], 128 << 10, Sending::After);
        let (service, none) = (workload.prefill().as_secs_f64(), Duration::from_nanos(1));
        let endless = Fluid { goodput_bps: 1e15, delays: vec![none] };
        let alone = workload.unloaded(&endless, none, 1).as_secs_f64();
        let mut means = Vec::new();
        for seed in 0..20 {
            let computed = workload.compute(Workload::arrivals(0.5 / service, 2000, seed));
            let ends = endless.carry(&computed.pieces, &mut Random::new(seed, 0));
            let all = workload.first_tokens(&computed, &ends, none);
            means.push(all.iter().map(Duration::as_secs_f64).sum::<f64>() / all.len() as f64 - alone);
        }
        // Pollaczek and Khinchine: ρ ÷ (2 (1 − ρ)) services.
        let mean = means.iter().sum::<f64>() / means.len() as f64 / service;
        assert!((0.47..0.53).contains(&mean), "seeds 0 to 19: {mean} services");
    }

    #[test]
    fn the_greatest_load_is_at_the_objective() {
        let workload = workload(Sending::Layers);
        let objective = workload.objective(&fluid(10e9), ROUND_TRIP);
        let most = workload.lambda_max(objective, &fluid(10e9), ROUND_TRIP, 1);
        assert!(workload.p90(most, &fluid(10e9), ROUND_TRIP, 1) <= objective, "seed 1");
        assert!(workload.p90(1.021 * most, &fluid(10e9), ROUND_TRIP, 1) > objective, "seed 1");
        let slow = workload.lambda_max(objective, &fluid(2e9), ROUND_TRIP, 1);
        assert!(0.0 < slow && slow < most, "seed 1: {slow} of {most}");
        assert_eq!(workload.lambda_max(objective, &fluid(1e8), ROUND_TRIP, 1), 0.0, "seed 1");
    }
}

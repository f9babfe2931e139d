use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::time::Duration;

/// The only source of randomness in a simulation: a stream of numbers that a seed decides.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream number `stream` of `seed`; different streams are independent.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream);
        Random(random)
    }

    /// A number of 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number of 32 random bits.
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// A number below `limit`, which is at least 1. Its bias is at most `limit` / 2^64.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, both inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A time from zero to `limit`, both inclusive, in whole nanoseconds.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.below(limit.as_nanos() as u64 + 1))
    }

    /// The seconds until the next of events that come at random, `per_s` of them a second (a Poisson process).
    pub fn gap_s(&mut self, per_s: f64) -> f64 {
        // Never the logarithm of zero.
        -((f64::from(self.u32()) + 1.0) / (1u64 << 32) as f64).ln() / per_s
    }

    /// True with the given probability, 0 to 1: never for 0, always for 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        const TWO_TO_THE_32: f64 = (1u64 << 32) as f64;
        probability > 0.0 && f64::from(self.0.next_u32()) < probability * TWO_TO_THE_32
    }

    /// One of `choices`, which must not be empty.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

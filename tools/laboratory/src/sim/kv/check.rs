use uroce::time::Duration;

use crate::sim::line::Line;
use crate::sim::random::Random;
use crate::sim::transfer::TransferError;

use super::fluid::share;
use super::pool::{Depth, Pool};
use super::workload::OBJECTIVE_SHARE;
use super::{Fluid, KvTransport, Workload};

/// The same prompts packet by packet and as a fluid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// What the packets cross.
    pub line: Line,
    /// What carries them.
    pub transport: KvTransport,
    /// Which prompts.
    pub workload: Workload,
    /// How many, at least 1.
    pub prompts: usize,
}

/// What a [`Check`] came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The load, in prompts a second.
    pub per_s: f64,
    /// The median time to the first token packet by packet, and what 90 of 100 keep to.
    pub packets: [Duration; 2],
    /// The same of the fluid.
    pub fluid: [Duration; 2],
}

/// How often the fluid is played over the same prompts: which of its delays a prompt meets is chance.
const FLUID_RUNS: usize = 20;

/// The load, as a part of what the slower of the site and the fluid can do.
const LOAD: f64 = 0.5;

impl Check {
    /// Plays both.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, or the received bytes differ.
    pub fn run(&self, fluid: &Fluid, seed: u64) -> Result<Compared, TransferError> {
        let Check { line, transport, workload, prompts } = *self;
        let fluid_per_s = fluid.goodput_bps / (8 * workload.cache_bytes()) as f64;
        let per_s = LOAD * workload.most_per_s().min(fluid_per_s);
        let computed = workload.compute(Workload::arrivals(per_s, prompts, seed));
        let mut pool = Pool::warm(line, transport, Depth::ample(&line, transport), seed)?;
        let ends = pool.carry(&computed.pieces)?;
        pool.finish()?;
        let packets = workload.first_tokens(&computed, &ends, line.round_trip);
        let mut random = Random::new(seed, 23);
        let played = |_| workload.first_tokens(&computed, &fluid.carry(&computed.pieces, &mut random), line.round_trip);
        let mut fluids: Vec<Duration> = (0..FLUID_RUNS).flat_map(played).collect();
        fluids.sort_unstable();
        let both = |sorted: &[Duration]| [share(sorted, 0.5), share(sorted, OBJECTIVE_SHARE)];
        Ok(Compared { per_s, packets: both(&packets), fluid: both(&fluids) })
    }
}

impl Compared {
    /// How much longer the fluid takes than its packets, as shares: the median and what 90 of 100 keep to.
    pub fn difference(&self) -> [f64; 2] {
        [0, 1].map(|which: usize| self.fluid[which].div_duration_f64(self.packets[which]) - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::MODELS;
    use crate::sim::kv::Sending;

    /// 66 MB a prompt over 2.5 Gb/s, of which one packet in a thousand is lost.
    #[test]
    fn a_fluid_takes_as_long_as_its_packets() {
        let workload = Workload::new(MODELS[2], 8 << 10, Sending::Layers);
        let bps = 2_500_000_000;
        let line = Line { bps, host_bps: 4 * bps, round_trip: Duration::from_millis(10), loss: 0.001 };
        for transport in [KvTransport::Uroce, KvTransport::GoBackN] {
            let fluid = Fluid::measure(line, transport, 1).unwrap();
            let compared = Check { line, transport, workload, prompts: 8 }.run(&fluid, 1).unwrap();
            let [median, p90] = compared.difference();
            assert!(median.abs() < 0.1 && p90.abs() < 0.1, "seed 1, {transport:?}: {compared:?}");
        }
    }
}

use crate::pcap::Direction;
use crate::time::Duration;

use super::fate::FLIPPED_BITS_MAX;
use super::{Corruption, Fate, FaultSpec};

/// Decides what happens to each frame.
///
/// The fates of a direction's frames follow from the seed and their order alone, without clock or length. Each kind of
/// fault has random numbers of its own, so that more duplicates do not change which frames are lost.
#[derive(Clone, Debug)]
pub struct FaultEngine {
    spec: FaultSpec,
    sent: Chances,
    received: Chances,
}

#[derive(Clone, Debug)]
struct Chances {
    loss: Random,
    duplicate: Random,
    reorder: Random,
    delay: Random,
    corrupt: Random,
    bits: Random,
}

impl Chances {
    fn new(seed: u64, direction: u64) -> Chances {
        // A generator for the seeds of the generators: neighbouring seeds give unlike streams.
        let mut seeds = Random(seed ^ direction.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let mut next = || Random(seeds.next());
        Chances { loss: next(), duplicate: next(), reorder: next(), delay: next(), corrupt: next(), bits: next() }
    }
}

impl FaultEngine {
    /// An engine before its first frame.
    pub fn new(spec: FaultSpec) -> FaultEngine {
        FaultEngine { spec, sent: Chances::new(spec.seed, 1), received: Chances::new(spec.seed, 2) }
    }

    /// The specification that the engine follows.
    pub fn spec(&self) -> &FaultSpec {
        &self.spec
    }

    /// The fate of the next frame that goes `direction`.
    pub fn decide(&mut self, direction: Direction) -> Fate {
        let spec = &self.spec;
        if !spec.direction.includes(direction) {
            return Fate::default();
        }
        let chances = match direction {
            Direction::Sent => &mut self.sent,
            Direction::Received => &mut self.received,
        };
        // Every chance is taken for every frame, so that the streams stay in step.
        let is_lost = chances.loss.is_below(spec.loss);
        let is_duplicated = chances.duplicate.is_below(spec.duplicate);
        let is_overtaken = chances.reorder.is_below(spec.reorder);
        let is_delayed = chances.delay.is_below(spec.delay_share);
        let corruption = chances.corrupt.is_below(spec.corrupt).then(|| {
            let mut draw = || chances.bits.next() as u32;
            Corruption { count: 1 + draw() as usize % FLIPPED_BITS_MAX, draws: [draw(), draw(), draw()] }
        });
        if is_lost {
            return Fate { is_lost, ..Fate::default() };
        }
        Fate {
            is_lost,
            is_duplicated,
            corruption,
            delay: if is_delayed { spec.delay } else { Duration::ZERO },
            overtaken_by: if is_overtaken { spec.reorder_by } else { 0 },
        }
    }
}

/// SplitMix64: 64 bits of state, passes BigCrush, and every seed is as good as any (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with the given probability: never for 0, always for 1.
    fn is_below(&mut self, probability: f64) -> bool {
        const TWO_TO_THE_53: f64 = (1u64 << 53) as f64;
        ((self.next() >> 11) as f64) < probability * TWO_TO_THE_53
    }
}

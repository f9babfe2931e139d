//! Chance from a seed.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    /// One of them.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// Where `len` bytes of a message lie, from `base` on: up to `pieces` pieces in order, with gaps between them.
    pub fn layout(&mut self, base: usize, len: usize, pieces: usize) -> Vec<(usize, usize)> {
        let mut cuts: Vec<_> = (1..pieces).map(|_| self.below(len + 1)).chain([0, len]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut gap = 0;
        let piece = |ends: &[usize]| {
            let piece = (base + ends[0] + gap, ends[1] - ends[0]);
            gap += 1 + self.below(40);
            piece
        };
        cuts.windows(2).map(piece).collect()
    }
}

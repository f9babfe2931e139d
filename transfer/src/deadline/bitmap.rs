/// A set of blocks: a bit for each, from the least significant of each word on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    len: u32,
    ones: u32,
}

impl Bitmap {
    /// The empty set of `len` blocks.
    pub fn new(len: u32) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64) as usize], len, ones: 0 }
    }

    /// The number of blocks that can be in the set.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no block is in the set.
    pub fn is_empty(&self) -> bool {
        self.ones == 0
    }

    /// The number of blocks in the set.
    pub fn count(&self) -> u32 {
        self.ones
    }

    /// Whether the block is in the set.
    pub fn has(&self, block: u32) -> bool {
        block < self.len && self.words[block as usize / 64] >> (block % 64) & 1 == 1
    }

    /// Puts a block below [`len`](Self::len) into the set; returns whether it was not in it.
    pub(super) fn insert(&mut self, block: u32) -> bool {
        let word = &mut self.words[block as usize / 64];
        let is_new = *word >> (block % 64) & 1 == 0;
        *word |= 1 << (block % 64);
        self.ones += u32::from(is_new);
        is_new
    }

    /// The words of the set: block 64 i + j is bit j of word i.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_in_the_set_once() {
        let mut bitmap = Bitmap::new(70);
        assert!(bitmap.is_empty() && !bitmap.has(69) && !bitmap.has(70));
        assert!(bitmap.insert(69) && !bitmap.insert(69) && bitmap.insert(0));
        assert_eq!((bitmap.count(), bitmap.words()), (2, &[1, 1 << 5][..]));
        assert!(bitmap.has(69) && bitmap.has(0) && !bitmap.has(5));
    }
}

/// The input, read from its start; zeros when it has ended.
pub struct Input<'a> {
    rest: &'a [u8],
    /// How often of 256 times something is wrong on purpose.
    pub wildness: u8,
}

#[allow(dead_code, reason = "not every target needs all of it")]
impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes, wildness: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes([(); 4].map(|()| self.byte()))
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// A number below `count`, which is 1 to 256.
    pub fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// True for `of_256` bytes of 256.
    pub fn chance(&mut self, of_256: u8) -> bool {
        self.byte() < of_256
    }

    /// Whether to do something wrong here. False when the input has ended.
    pub fn is_wild(&mut self) -> bool {
        255 - self.byte() < self.wildness
    }
}

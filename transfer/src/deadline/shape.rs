use std::ops::Range;

/// How an object is cut: into blocks, and those into symbols, which a datagram carries one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    bytes: u64,
    block_bytes: u32,
    symbol_bytes: u16,
}

/// Why an object cannot be cut like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the numbers are
pub enum ShapeError {
    /// There is nothing to transfer.
    #[error("an object of 0 bytes: it needs at least one")]
    Empty,
    /// The length of a block is out of range.
    #[error("blocks of {0} bytes: 1 to {max} are possible", max = Shape::BLOCK_BYTES_MAX)]
    Block(u32),
    /// The length of a symbol is out of range.
    #[error("symbols of {0} bytes: a multiple of 64 from 64 to {max} is possible", max = Shape::SYMBOL_BYTES_MAX)]
    Symbol(u16),
    /// There are too many blocks.
    #[error("{0} blocks: at most {max} are possible; make them larger", max = Shape::BLOCKS_MAX)]
    Blocks(u64),
    /// There are too many symbols in a block.
    #[error("{0} symbols a block: at most {max} are possible; make blocks smaller", max = Shape::SYMBOLS_MAX)]
    Symbols(u32),
}

impl Shape {
    /// Upper bound on the length of a block: a bitmap of larger ones says too little.
    pub const BLOCK_BYTES_MAX: u32 = 64 << 20;
    /// Upper bound on the length of a symbol: a datagram of path MTU 4096 holds 63 × 64 bytes beside its header.
    pub const SYMBOL_BYTES_MAX: u16 = 4032;
    /// Upper bound on the number of blocks: the receiver keeps a slot for each.
    pub const BLOCKS_MAX: u32 = 1 << 20;
    /// Upper bound on the number of symbols of a block: the code takes as many beside its repair symbols.
    pub const SYMBOLS_MAX: u32 = 1 << 14;

    /// An object of `bytes`, in blocks of `block_bytes` but the last, in symbols of `symbol_bytes` but each block's last.
    ///
    /// # Errors
    /// [`ShapeError`] when a number is out of range.
    pub fn new(bytes: u64, block_bytes: u32, symbol_bytes: u16) -> Result<Shape, ShapeError> {
        if bytes == 0 {
            return Err(ShapeError::Empty);
        }
        if block_bytes == 0 || block_bytes > Shape::BLOCK_BYTES_MAX {
            return Err(ShapeError::Block(block_bytes));
        }
        if symbol_bytes == 0 || !symbol_bytes.is_multiple_of(64) || symbol_bytes > Shape::SYMBOL_BYTES_MAX {
            return Err(ShapeError::Symbol(symbol_bytes));
        }
        let blocks = bytes.div_ceil(u64::from(block_bytes));
        if blocks > u64::from(Shape::BLOCKS_MAX) {
            return Err(ShapeError::Blocks(blocks));
        }
        let symbols = block_bytes.div_ceil(u32::from(symbol_bytes));
        if symbols > Shape::SYMBOLS_MAX {
            return Err(ShapeError::Symbols(symbols));
        }
        Ok(Shape { bytes, block_bytes, symbol_bytes })
    }

    /// Length of the object, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Length of every block but the last, in bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Length of every symbol but each block's last, in bytes.
    pub fn symbol_bytes(&self) -> u16 {
        self.symbol_bytes
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u32 {
        self.bytes.div_ceil(u64::from(self.block_bytes)) as u32
    }

    /// Where a block begins in the object.
    pub fn offset(&self, block: u32) -> u64 {
        u64::from(block) * u64::from(self.block_bytes)
    }

    /// Length of a block, in bytes.
    pub fn block_len(&self, block: u32) -> usize {
        (self.bytes - self.offset(block)).min(u64::from(self.block_bytes)) as usize
    }

    /// The number of symbols of a block, without repair symbols.
    pub fn symbols(&self, block: u32) -> u32 {
        self.block_len(block).div_ceil(usize::from(self.symbol_bytes)) as u32
    }

    /// The bytes of its block that a symbol is.
    pub fn symbol(&self, block: u32, symbol: u32) -> Range<usize> {
        let begin = symbol as usize * usize::from(self.symbol_bytes);
        begin..self.block_len(block).min(begin + usize::from(self.symbol_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_and_its_last_symbol_are_shorter() {
        let shape = Shape::new(2500, 1000, 256).unwrap();
        assert_eq!((shape.blocks(), shape.block_len(1), shape.block_len(2)), (3, 1000, 500));
        assert_eq!((shape.symbols(0), shape.symbols(2), shape.offset(2)), (4, 2, 2000));
        assert_eq!((shape.symbol(0, 3), shape.symbol(2, 1)), (768..1000, 256..500));
    }

    #[test]
    fn what_cannot_be_cut_is_an_error_with_its_number() {
        let cases = [
            ((0, 1, 64), ShapeError::Empty),
            ((1, 0, 64), ShapeError::Block(0)),
            ((1, (64 << 20) + 1, 64), ShapeError::Block((64 << 20) + 1)),
            ((1, 1, 63), ShapeError::Symbol(63)),
            ((1, 1, 4096), ShapeError::Symbol(4096)),
            ((2 << 20, 1, 64), ShapeError::Blocks(2 << 20)),
            ((2 << 20, 2 << 20, 64), ShapeError::Symbols(1 << 15)),
        ];
        for ((bytes, block_bytes, symbol_bytes), error) in cases {
            assert_eq!(Shape::new(bytes, block_bytes, symbol_bytes), Err(error));
        }
    }
}

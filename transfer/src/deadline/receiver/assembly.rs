use super::super::coding;
use super::super::wire::Data;

/// A block of which some symbols are there.
#[derive(Debug)]
pub(super) struct Assembly {
    crc: u32,
    symbols: u32,
    repairs: u32,
    symbol_bytes: usize,
    /// All symbols, the last padded with zeros.
    bytes: Vec<u8>,
    /// A bit for each symbol that is there, repair symbols after the others.
    has: Vec<u64>,
    /// How many are there, repair symbols too.
    count: u32,
    /// Repair symbols by their numbers, from 0 on.
    repair: Vec<(u32, Vec<u8>)>,
    /// Whether its symbols tell different checksums.
    is_mixed: bool,
}

/// What became of a symbol.
pub(super) enum Placed {
    /// It was here before.
    Duplicate,
    /// It was placed, and others are missing.
    Symbol {
        /// How many more are needed.
        missing: u32,
    },
    /// It was placed, and the block has all that it needs: so many of its symbols were computed.
    Enough {
        /// How many were computed.
        decoded: u32,
    },
}

impl Assembly {
    /// Nothing of a block with this checksum.
    pub fn new(crc: u32, symbols: u32, repairs: u32, symbol_bytes: u16) -> Assembly {
        let symbol_bytes = usize::from(symbol_bytes);
        Assembly {
            crc,
            symbols,
            repairs,
            symbol_bytes,
            bytes: vec![0; symbols as usize * symbol_bytes],
            has: vec![0; (symbols + repairs).div_ceil(64) as usize],
            count: 0,
            repair: Vec::new(),
            is_mixed: false,
        }
    }

    fn has(&self, symbol: u32) -> bool {
        self.has[symbol as usize / 64] >> (symbol % 64) & 1 == 1
    }

    /// Takes a symbol of the block, whose number and length are right.
    pub fn place(&mut self, data: &Data<'_>) -> Placed {
        if self.has(data.symbol)
            && !uroce::mutated!("deadline-duplicate-counts", by "uroce-transfer --test oracle every_bitmap")
        {
            return Placed::Duplicate;
        }
        self.is_mixed |= data.crc != self.crc;
        self.has[data.symbol as usize / 64] |= 1 << (data.symbol % 64);
        self.count += 1;
        match data.symbol.checked_sub(self.symbols) {
            None => {
                let begin = data.symbol as usize * self.symbol_bytes;
                self.bytes[begin..begin + data.payload.len()].copy_from_slice(data.payload);
            }
            Some(repair) => self.repair.push((repair, data.payload.to_vec())),
        }
        match self.symbols.saturating_sub(self.count) {
            0 => Placed::Enough { decoded: self.decode() },
            missing => Placed::Symbol { missing },
        }
    }

    /// Computes what is missing; returns how many symbols that were.
    fn decode(&mut self) -> u32 {
        let missing = self.symbols.saturating_sub(self.count - self.repair.len() as u32);
        if missing > 0 {
            let (has, repair) = (std::mem::take(&mut self.has), std::mem::take(&mut self.repair));
            let is_there = |symbol: u32| has[symbol as usize / 64] >> (symbol % 64) & 1 == 1;
            coding::decode(&mut self.bytes, is_there, &repair, self.repairs);
        }
        missing
    }

    /// The bytes of the block, which is `len` long; `None` when they are not those that its checksum is of.
    pub fn finish(mut self, len: usize) -> Option<Vec<u8>> {
        self.bytes.truncate(len);
        let is_right = !self.is_mixed && crc32fast::hash(&self.bytes) == self.crc;
        let is_believed =
            uroce::mutated!("deadline-checksum-ignored", by "uroce-transfer --test conversation values_that_change");
        (is_right || is_believed).then_some(self.bytes)
    }
}

//! Repair symbols: a block of k symbols is whole with any k of its symbols and repair symbols (Reed–Solomon).

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use super::Shape;

/// The number of repair symbols of a block with `symbols` symbols, at so many for a thousand: rounded down, so that the
/// share is never exceeded.
pub(super) fn repairs(symbols: u32, per_mille: u16) -> u32 {
    symbols * u32::from(per_mille) / 1000
}

/// The repair symbols of a block, one after the other. `bytes` are the block's.
pub(super) fn encode(shape: &Shape, bytes: &[u8], repairs: u32) -> Vec<u8> {
    let symbol_bytes = usize::from(shape.symbol_bytes());
    let symbols = bytes.len().div_ceil(symbol_bytes);
    let mut encoder =
        ReedSolomonEncoder::new(symbols, repairs as usize, symbol_bytes).expect("a request's numbers were checked");
    let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % symbol_bytes);
    for symbol in whole.chunks_exact(symbol_bytes) {
        encoder.add_original_shard(symbol).expect("no more than the block's");
    }
    if !rest.is_empty() {
        let mut last = vec![0; symbol_bytes];
        last[..rest.len()].copy_from_slice(rest);
        encoder.add_original_shard(last).expect("the last of the block's");
    }
    let encoded = encoder.encode().expect("all of the block's");
    encoded.recovery_iter().flatten().copied().collect()
}

/// Whether a block of `symbols` can have so many repair symbols.
pub(super) fn is_possible(symbols: u32, repairs: u32) -> bool {
    repairs == 0 || ReedSolomonEncoder::supports(symbols as usize, repairs as usize)
}

/// Computes the missing symbols of a block from its repair symbols.
///
/// `block` has the symbols, the last padded with zeros; `has` says which are there. `repair` are numbered from 0 on, of
/// `repairs` that exist, and at least as many as are missing.
pub(super) fn decode(block: &mut [u8], has: impl Fn(u32) -> bool, repair: &[(u32, Vec<u8>)], repairs: u32) {
    let symbol_bytes = repair[0].1.len();
    let symbols = block.len() / symbol_bytes;
    let mut decoder =
        ReedSolomonDecoder::new(symbols, repairs as usize, symbol_bytes).expect("a request's numbers were checked");
    for (number, symbol) in block.chunks_exact(symbol_bytes).enumerate().filter(|(number, _)| has(*number as u32)) {
        decoder.add_original_shard(number, symbol).expect("each once");
    }
    for (number, symbol) in repair {
        decoder.add_recovery_shard(*number as usize, symbol).expect("each once");
    }
    let decoded = decoder.decode().expect("enough symbols are there");
    for (number, symbol) in decoded.restored_original_iter() {
        block[number * symbol_bytes..][..symbol_bytes].copy_from_slice(symbol);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_symbols_that_are_enough_make_the_block() {
        let shape = Shape::new(1000, 1000, 64).unwrap();
        let bytes: Vec<u8> = (0..1000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let (symbols, repairs) = (16u32, repairs(16, 250));
        assert_eq!(repairs, 4);
        let encoded = encode(&shape, &bytes, repairs);
        let mut padded = bytes.clone();
        padded.resize(1024, 0);
        for lost in 0..symbols - 3 {
            let is_lost = |number: u32| (lost..lost + 4).contains(&number);
            let mut block = padded.clone();
            (lost..lost + 4).for_each(|number| block[number as usize * 64..][..64].fill(0xee));
            let repair: Vec<_> = (0..4).map(|n| (n, encoded[n as usize * 64..][..64].to_vec())).collect();
            decode(&mut block, |number| !is_lost(number), &repair, repairs);
            assert_eq!(block, padded, "lost from {lost} on");
        }
    }

    #[test]
    fn shares_are_never_exceeded() {
        assert_eq!([8, 9, 260, 0].map(|symbols| repairs(symbols, 120)), [0, 1, 31, 0]);
    }
}

//! The byte pattern that both ends of a test agree on, from a seed and an absolute offset, so that any sub-range can be
//! made and checked by itself. `guest/verbs-agent.c` has the same one (`fill`, `check`).
//!
//! Byte `i` is byte `i % 8`, little-endian, of SplitMix64's output number `i / 8` from the seed.

/// SplitMix64's increment: 2^64 over the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(GAMMA.wrapping_mul(index.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The pattern's byte at an absolute offset, in bytes.
///
/// ```
/// // SplitMix64 from seed 0 begins with e220a8397b1dcdaf.
/// assert_eq!(rxe_rig::pattern::byte(0, 0), 0xaf);
/// assert_eq!(rxe_rig::pattern::byte(0, 7), 0xe2);
/// ```
pub fn byte(seed: u64, offset: u64) -> u8 {
    word(seed, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

/// Fills `buffer` with the pattern as it is from `offset` (bytes) on.
pub fn fill(buffer: &mut [u8], offset: u64, seed: u64) {
    let mut current = None;
    for (i, out) in (offset..).zip(buffer.iter_mut()) {
        let index = i / 8;
        let bytes = match current {
            Some((at, bytes)) if at == index => bytes,
            _ => {
                let bytes = word(seed, index).to_le_bytes();
                current = Some((index, bytes));
                bytes
            }
        };
        *out = bytes[(i % 8) as usize];
    }
}

/// The absolute offset of the first byte of `buffer` (which begins at `offset`) that differs from the pattern, or `None`.
pub fn check(buffer: &[u8], offset: u64, seed: u64) -> Option<u64> {
    (offset..).zip(buffer).find(|&(i, &have)| have != byte(seed, i)).map(|(i, _)| i)
}

/// The hash that the agent's `hash` command answers: 64-bit FNV-1a.
pub fn hash(buffer: &[u8]) -> u64 {
    buffer.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sub_range_is_the_same_as_in_the_whole() {
        let mut whole = [0u8; 100];
        fill(&mut whole, 0, 7);
        for from in 0..40 {
            let mut part = [0u8; 33];
            fill(&mut part, from as u64, 7);
            assert_eq!(part, whole[from..from + 33]);
            assert_eq!(check(&part, from as u64, 7), None);
            part[5] ^= 1;
            assert_eq!(check(&part, from as u64, 7), Some(from as u64 + 5));
        }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}

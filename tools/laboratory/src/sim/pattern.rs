//! Patterns: the bytes of messages depend on a name and their position, so that any misplaced byte is noticed.

/// The word at `index` of the pattern `name` (SplitMix64's output function).
fn word(name: u64, index: u64) -> u64 {
    let mut z = name.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The byte at `index` of the pattern `name`.
pub(super) fn byte(name: u64, index: usize) -> u8 {
    word(name, index as u64 / 8).to_le_bytes()[index % 8]
}

/// Fills `out` with the bytes of the pattern `name` from position `start` on.
pub(super) fn fill(name: u64, start: usize, out: &mut [u8]) {
    let before = (start.wrapping_neg() % 8).min(out.len());
    let (head, body) = out.split_at_mut(before);
    for (i, byte_out) in head.iter_mut().enumerate() {
        *byte_out = byte(name, start + i);
    }
    let first = ((start + before) / 8) as u64;
    for (chunk, index) in body.chunks_mut(8).zip(first..) {
        chunk.copy_from_slice(&word(name, index).to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_pattern_are_those_of_the_whole() {
        let mut whole = [0; 100];
        fill(7, 0, &mut whole);
        for start in 0..40 {
            for len in 0..60 {
                let mut part = vec![0; len];
                fill(7, start, &mut part);
                assert_eq!(part, whole[start..start + len]);
            }
        }
        assert!((0..100).all(|i| byte(7, i) == whole[i]));
        assert_ne!(byte(8, 0), whole[0]);
    }
}

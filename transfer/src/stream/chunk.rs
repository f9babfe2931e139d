use std::time::Duration;

/// Bytes that are computed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// When they are there, since the beginning of the stream; no earlier than the part before.
    pub ready: Duration,
    /// How many bytes.
    pub bytes: u64,
}

/// Bytes that leave as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it begins in the stream, in bytes.
    pub offset: u64,
    /// Its length in bytes, at least 1.
    pub bytes: u64,
    /// When all of it is there: the last part of which it has bytes.
    pub ready: Duration,
    /// The number of parts that are whole at the receiver when it has this chunk and those before.
    pub whole: usize,
}

/// The chunks of a stream, in order: each of `chunk_bytes`, and the last one of what is left. A chunk can have bytes of several
/// parts, and a part can be in several chunks.
///
/// # Panics
/// When `chunk_bytes` is 0.
pub fn chunks(parts: &[Part], chunk_bytes: u64) -> impl Iterator<Item = Chunk> {
    assert!(chunk_bytes > 0, "a chunk has at least one byte");
    let total: u64 = parts.iter().map(|part| part.bytes).sum();
    // The part that is reached, and where it ends.
    let (mut reached, mut end) = (0, 0);
    let mut whole = 0;
    (0..total.div_ceil(chunk_bytes)).map(move |number| {
        let offset = number * chunk_bytes;
        let bytes = chunk_bytes.min(total - offset);
        while end < offset + bytes {
            end += parts[reached].bytes;
            reached += 1;
        }
        if end == offset + bytes {
            // Parts without bytes are whole with the one before.
            reached += parts[reached..].iter().take_while(|part| part.bytes == 0).count();
            whole = reached;
        } else {
            whole = whole.max(reached - 1);
        }
        Chunk { offset, bytes, ready: parts[reached - 1].ready, whole }
    })
}

/// The parts that are left to send when the first `held` bytes of a stream are at the receiver already. Those that are there have
/// no bytes.
pub fn rest(parts: &[Part], held: u64) -> Vec<Part> {
    let mut held = held;
    let left = |part: &Part| {
        let there = part.bytes.min(held);
        held -= there;
        Part { bytes: part.bytes - there, ..*part }
    };
    parts.iter().map(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ready_ms: u64, bytes: u64) -> Part {
        Part { ready: Duration::from_millis(ready_ms), bytes }
    }

    fn of(parts: &[Part], chunk_bytes: u64) -> Vec<(u64, u64, u64, usize)> {
        let fields = |chunk: Chunk| (chunk.offset, chunk.bytes, chunk.ready.as_millis() as u64, chunk.whole);
        chunks(parts, chunk_bytes).map(fields).collect()
    }

    #[test]
    fn a_chunk_waits_for_its_last_byte_and_makes_parts_whole() {
        let parts = [part(1, 10), part(2, 10), part(3, 5)];
        assert_eq!(of(&parts, 5), [(0, 5, 1, 0), (5, 5, 1, 1), (10, 5, 2, 1), (15, 5, 2, 2), (20, 5, 3, 3)]);
        assert_eq!(of(&parts, 12), [(0, 12, 2, 1), (12, 12, 3, 2), (24, 1, 3, 3)]);
        assert_eq!(of(&parts, 100), [(0, 25, 3, 3)]);
    }

    #[test]
    fn parts_without_bytes_take_no_chunk() {
        assert_eq!(of(&[part(1, 4), part(2, 0), part(3, 4)], 4), [(0, 4, 2, 2), (4, 4, 3, 3)]);
        assert_eq!(of(&[part(1, 0)], 4), []);
        assert_eq!(of(&[], 4), []);
    }

    #[test]
    fn what_is_held_is_not_left() {
        let parts = [part(1, 4), part(2, 3), part(3, 2)];
        assert_eq!(rest(&parts, 0), parts);
        assert_eq!(rest(&parts, 5), [part(1, 0), part(2, 2), part(3, 2)]);
        assert_eq!(rest(&parts, 9), [part(1, 0), part(2, 0), part(3, 0)]);
    }
}

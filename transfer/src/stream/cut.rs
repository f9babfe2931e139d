use std::ops::Range;

/// The chunks that a connection carries of a stream: all of `chunk_bytes`, and the last one of what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    from: u64,
    bytes: u64,
    chunk_bytes: u32,
}

/// Why a stream cannot be cut into such chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The length of a chunk is out of range.
    #[error("chunks of {0} bytes: 1 to {max} are possible", max = Cut::CHUNK_BYTES_MAX)]
    Length(u64),
    /// There are too many chunks.
    #[error("{0} chunks: at most {max} are possible; make them longer", max = Cut::CHUNKS_MAX)]
    Count(u64),
}

impl Cut {
    /// Upper bound on the length of a chunk: the longest message (IBTA 9.7.7).
    pub const CHUNK_BYTES_MAX: u64 = 1 << 31;
    /// Upper bound on the number of chunks: 4 KiB of each make 64 GiB, and longer streams gain nothing from shorter ones.
    pub const CHUNKS_MAX: u64 = 1 << 24;

    /// The bytes of a stream of `bytes` from `from` on, in chunks of `chunk_bytes`.
    ///
    /// # Errors
    /// [`CutError`] when the length of a chunk is out of range, or there are too many.
    pub(super) fn new(from: u64, bytes: u64, chunk_bytes: u64) -> Result<Cut, CutError> {
        let short = u32::try_from(chunk_bytes).ok().filter(|_| (1..=Cut::CHUNK_BYTES_MAX).contains(&chunk_bytes));
        let cut = Cut { from, bytes, chunk_bytes: short.ok_or(CutError::Length(chunk_bytes))? };
        match cut.count() {
            count if count > Cut::CHUNKS_MAX => Err(CutError::Count(count)),
            _ => Ok(cut),
        }
    }

    /// Length of every chunk but the last, in bytes.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// The number of chunks; 0 when there is nothing left to send.
    pub fn count(&self) -> u64 {
        self.bytes.saturating_sub(self.from).div_ceil(u64::from(self.chunk_bytes))
    }

    /// How many bytes of the stream are there with the first `count` chunks.
    pub fn end(&self, count: u64) -> u64 {
        (self.from + count * u64::from(self.chunk_bytes)).min(self.bytes)
    }

    /// The bytes of the stream that a chunk is, which is one of these.
    pub fn chunk(&self, number: u64) -> Range<u64> {
        self.end(number)..self.end(number + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_begin_where_the_receiver_has_bytes_up_to() {
        let cut = Cut::new(3, 20, 8).unwrap();
        assert_eq!((cut.count(), cut.end(0), cut.end(3)), (3, 3, 20));
        assert_eq!([0, 1, 2].map(|number| cut.chunk(number)), [3..11, 11..19, 19..20]);
        assert_eq!(Cut::new(20, 20, 8).unwrap().count(), 0);
    }

    #[test]
    fn lengths_and_counts_out_of_range_are_errors() {
        for length in [0, (1 << 31) + 1, u64::MAX] {
            assert_eq!(Cut::new(0, 10, length), Err(CutError::Length(length)));
        }
        assert_eq!(Cut::new(0, 1 << 40, 1 << 31).unwrap().count(), 512);
        assert_eq!(Cut::new(0, (1 << 24) + 1, 1), Err(CutError::Count((1 << 24) + 1)));
        assert_eq!(Cut::new(1, (1 << 24) + 1, 1).unwrap().count(), 1 << 24);
    }
}

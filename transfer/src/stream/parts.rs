/// The lengths of a stream's parts, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Where each ends in the stream.
    ends: Vec<u64>,
}

/// Why lengths make no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// There is nothing to send.
    #[error("a stream of 0 bytes: it needs at least one")]
    Empty,
    /// There are too many parts.
    #[error("{0} parts: at most {max} are possible; make them larger", max = Parts::COUNT_MAX)]
    Count(usize),
    /// There are too many bytes.
    #[error("more than {max} bytes: send several streams", max = Parts::BYTES_MAX)]
    Bytes,
}

impl Parts {
    /// Upper bound on the number of parts: each end keeps 8 bytes for each.
    pub const COUNT_MAX: usize = 1 << 20;
    /// Upper bound on the bytes of all: no address space has more.
    pub const BYTES_MAX: u64 = 1 << 57;

    /// Parts of these lengths, in bytes. A part can have none.
    ///
    /// # Errors
    /// [`PartsError`] when there is no byte, or there are too many parts or bytes.
    pub fn new(lengths: &[u64]) -> Result<Parts, PartsError> {
        if lengths.len() > Parts::COUNT_MAX {
            return Err(PartsError::Count(lengths.len()));
        }
        let mut bytes = 0u64;
        let mut ends = Vec::with_capacity(lengths.len());
        for length in lengths {
            bytes = bytes.checked_add(*length).filter(|bytes| *bytes <= Parts::BYTES_MAX).ok_or(PartsError::Bytes)?;
            ends.push(bytes);
        }
        if bytes == 0 { Err(PartsError::Empty) } else { Ok(Parts { ends }) }
    }

    /// The number of parts, at least 1.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Length of all, in bytes, at least 1.
    pub fn bytes(&self) -> u64 {
        self.end(self.count())
    }

    /// Length of the first `count` parts, in bytes; of all when there are not as many.
    pub fn end(&self, count: usize) -> u64 {
        count.min(self.count()).checked_sub(1).map_or(0, |last| self.ends[last])
    }

    /// How many of the first parts the first `bytes` of the stream make whole.
    pub fn whole(&self, bytes: u64) -> usize {
        self.ends.partition_point(|end| *end <= bytes)
    }

    /// The CRC-32 of where the parts end, as numbers of 64 bits in network byte order.
    pub(super) fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        self.ends.iter().for_each(|end| hasher.update(&end.to_be_bytes()));
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_with_their_last_byte() {
        let parts = Parts::new(&[0, 10, 0, 5]).unwrap();
        assert_eq!((parts.count(), parts.bytes()), (4, 15));
        assert_eq!([0, 1, 2, 4, 9].map(|count| parts.end(count)), [0, 0, 10, 15, 15]);
        assert_eq!([0, 9, 10, 14, 15].map(|bytes| parts.whole(bytes)), [1, 1, 3, 3, 4]);
    }

    #[test]
    fn lengths_that_make_no_stream_are_errors() {
        assert_eq!(Parts::new(&[]), Err(PartsError::Empty));
        assert_eq!(Parts::new(&[0, 0]), Err(PartsError::Empty));
        assert_eq!(Parts::new(&[Parts::BYTES_MAX, 1]), Err(PartsError::Bytes));
        assert_eq!(Parts::new(&[u64::MAX, u64::MAX]), Err(PartsError::Bytes));
        assert_eq!(Parts::new(&vec![1; Parts::COUNT_MAX + 1]), Err(PartsError::Count(Parts::COUNT_MAX + 1)));
    }

    #[test]
    fn the_checksum_tells_lengths_apart() {
        let of = |lengths: &[u64]| Parts::new(lengths).unwrap().checksum();
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        assert_eq!(of(&[1]), crc32fast::hash(&[0, 0, 0, 0, 0, 0, 0, 1]));
    }
}

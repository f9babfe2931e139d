use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::Run;
use super::{Malformed, prefix, put};

/// After the header, 24 bytes; ranges of 8 bytes follow, and then words of 12.
///
/// ```text
/// byte 0  sequence:32      one more for each report
///      4  left:32          microseconds until the deadline
///      8  newest:32        the number that arrived last; zero when none has
///     12  delay:32         microseconds since then
///     16  ranges:16        how many
///     18  words:16         how many
///     20  zero:32
///     24  ranges, each     first:32  count:32           numbers that arrived, the newest first
///         words, each      index:32  bits:64            blocks that are whole: bit i is block 64 index + i
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    sequence: U32,
    left_us: U32,
    newest: U32,
    delay_us: U32,
    ranges: U16,
    words: U16,
    zero: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Range {
    first: U32,
    count: U32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Word {
    index: U32,
    bits: U64,
}

const _: () = assert!(size_of::<Layout>() == 24 && size_of::<Range>() == 8 && size_of::<Word>() == 12);

/// What arrived at the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One more for each report.
    pub sequence: u32,
    /// Microseconds until the deadline.
    pub left_us: u32,
    /// The number that arrived last; 0 when none has.
    pub newest: u32,
    /// Microseconds since then.
    pub delay_us: u32,
    /// Numbers of datagrams that arrived, the newest first: as many ranges as there is room for.
    pub arrived: Vec<Run>,
    /// Blocks that are whole: those that became so lately first.
    pub words: Vec<WholeWord>,
}

/// Which of 64 blocks are whole. A bit that is not set says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeWord {
    /// Block 64 `index` is the least significant bit.
    pub index: u32,
    /// A bit for each block that is whole.
    pub bits: u64,
}

impl Report {
    /// Upper bound on the ranges: at 1 % of loss, those of 6400 datagrams.
    pub const RANGES_MAX: usize = 64;
    /// Upper bound on the words. The report then fits into a path MTU of 1024.
    pub const WORDS_MAX: usize = 32;

    pub(super) fn parse(bytes: &[u8]) -> Result<Report, Malformed> {
        let (layout, rest) = prefix::<Layout>(bytes)?;
        let (ranges, words) = (usize::from(layout.ranges.get()), usize::from(layout.words.get()));
        if layout.zero.get() != 0 {
            return Err(Malformed::Zero);
        }
        if ranges > Report::RANGES_MAX || words > Report::WORDS_MAX {
            return Err(Malformed::Field("ranges or words"));
        }
        let need = size_of::<Layout>() + ranges * size_of::<Range>() + words * size_of::<Word>();
        let short = Malformed::Short { need, have: bytes.len() };
        let (ranges, rest) = <[Range]>::ref_from_prefix_with_elems(rest, ranges).map_err(|_| short)?;
        let (words, rest) = <[Word]>::ref_from_prefix_with_elems(rest, words).map_err(|_| short)?;
        if !rest.is_empty() {
            return Err(Malformed::Long { need, have: bytes.len() });
        }
        let arrived: Vec<Run> =
            ranges.iter().map(|range| Run { first: range.first.get(), count: range.count.get() }).collect();
        if arrived.iter().any(|run| run.count == 0 || run.first.checked_add(run.count).is_none()) {
            return Err(Malformed::Field("ranges"));
        }
        Ok(Report {
            sequence: layout.sequence.get(),
            left_us: layout.left_us.get(),
            newest: layout.newest.get(),
            delay_us: layout.delay_us.get(),
            arrived,
            words: words.iter().map(|word| WholeWord { index: word.index.get(), bits: word.bits.get() }).collect(),
        })
    }

    pub(super) fn write(&self, into: &mut [u8]) -> Option<usize> {
        let layout = Layout {
            sequence: U32::new(self.sequence),
            left_us: U32::new(self.left_us),
            newest: U32::new(self.newest),
            delay_us: U32::new(self.delay_us),
            ranges: U16::new(self.arrived.len() as u16),
            words: U16::new(self.words.len() as u16),
            zero: U32::ZERO,
        };
        let range = |run: &Run| Range { first: U32::new(run.first), count: U32::new(run.count) };
        let word = |word: &WholeWord| Word { index: U32::new(word.index), bits: U64::new(word.bits) };
        let ranges: Vec<Range> = self.arrived.iter().map(range).collect();
        let words: Vec<Word> = self.words.iter().map(word).collect();
        put(into, &[layout.as_bytes(), ranges.as_bytes(), words.as_bytes()])
    }
}

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::{Run, Shape};
use super::{Malformed, prefix, put};

/// After the header, 40 bytes; runs of 8 bytes follow.
///
/// ```text
/// byte 0  object:64
///      8  version:64
///     16  bytes:64             of the object
///     24  block bytes:32
///     28  symbol bytes:16
///     30  repair:16            repair symbols for a thousand symbols of a block, rounded down
///     32  left:32              microseconds until the deadline
///     36  part:8               which of the request's datagrams this is
///     37  parts:8              how many there are
///     38  runs:16              in this one
///     40  runs, each           first:32  count:32    the blocks that are wanted, the most important first
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    object: U64,
    version: U64,
    bytes: U64,
    block_bytes: U32,
    symbol_bytes: U16,
    repair: U16,
    left_us: U32,
    part: u8,
    parts: u8,
    runs: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RunLayout {
    first: U32,
    count: U32,
}

const _: () = assert!(size_of::<Layout>() == 40 && size_of::<RunLayout>() == 8);

/// A part of a request for blocks: all its parts say the same, except which blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart {
    /// The object.
    pub object: u64,
    /// The version that is wanted; another one is of no use.
    pub version: u64,
    /// How the object is cut.
    pub shape: Shape,
    /// Repair symbols for a thousand symbols of a block, rounded down; at most 1000.
    pub repair_per_mille: u16,
    /// Microseconds until the deadline.
    pub left_us: u32,
    /// Which part this is, from 0 on.
    pub part: u8,
    /// How many parts there are.
    pub parts: u8,
    /// The blocks of this part, the most important first.
    pub runs: Vec<Run>,
}

impl RequestPart {
    /// Length of the headers before the runs, in bytes.
    pub(crate) const HEADER_BYTES: usize = super::header::BYTES + size_of::<Layout>();
    /// Length of a run, in bytes.
    pub(crate) const RUN_BYTES: usize = size_of::<RunLayout>();

    pub(super) fn parse(bytes: &[u8]) -> Result<RequestPart, Malformed> {
        let (layout, rest) = prefix::<Layout>(bytes)?;
        let count = usize::from(layout.runs.get());
        let need = size_of::<Layout>() + count * size_of::<RunLayout>();
        let (runs, rest) = <[RunLayout]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| Malformed::Short { need, have: bytes.len() })?;
        if !rest.is_empty() {
            return Err(Malformed::Long { need, have: bytes.len() });
        }
        let shape = Shape::new(layout.bytes.get(), layout.block_bytes.get(), layout.symbol_bytes.get())
            .map_err(|_| Malformed::Field("bytes, block bytes or symbol bytes"))?;
        if layout.part >= layout.parts {
            return Err(Malformed::Field("part"));
        }
        if layout.repair.get() > 1000 {
            return Err(Malformed::Field("repair"));
        }
        let runs: Vec<Run> = runs.iter().map(|run| Run { first: run.first.get(), count: run.count.get() }).collect();
        let is_within =
            |run: &Run| run.count > 0 && run.first.checked_add(run.count).is_some_and(|end| end <= shape.blocks());
        if runs.is_empty() || !runs.iter().all(is_within) {
            return Err(Malformed::Field("runs"));
        }
        Ok(RequestPart {
            object: layout.object.get(),
            version: layout.version.get(),
            shape,
            repair_per_mille: layout.repair.get(),
            left_us: layout.left_us.get(),
            part: layout.part,
            parts: layout.parts,
            runs,
        })
    }

    pub(super) fn write(&self, into: &mut [u8]) -> Option<usize> {
        let layout = Layout {
            object: U64::new(self.object),
            version: U64::new(self.version),
            bytes: U64::new(self.shape.bytes()),
            block_bytes: U32::new(self.shape.block_bytes()),
            symbol_bytes: U16::new(self.shape.symbol_bytes()),
            repair: U16::new(self.repair_per_mille),
            left_us: U32::new(self.left_us),
            part: self.part,
            parts: self.parts,
            runs: U16::new(self.runs.len() as u16),
        };
        let run = |run: &Run| RunLayout { first: U32::new(run.first), count: U32::new(run.count) };
        let runs: Vec<RunLayout> = self.runs.iter().map(run).collect();
        put(into, &[layout.as_bytes(), runs.as_bytes()])
    }
}

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, prefix, put};

/// After the header, 24 bytes; the payload follows.
///
/// ```text
/// byte 0  version:64
///      8  number:32
///     12  block:32
///     16  symbol:32
///     20  checksum:32
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    version: U64,
    number: U32,
    block: U32,
    symbol: U32,
    crc: U32,
}

const _: () = assert!(size_of::<Layout>() == 24);

/// A symbol of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    /// The version of the object.
    pub version: u64,
    /// The datagram's number in the request: each has another one, whatever it carries.
    pub number: u32,
    /// The block.
    pub block: u32,
    /// The symbol of the block; from the number of its symbols on, a repair symbol.
    pub symbol: u32,
    /// CRC-32 (IEEE 802.3) of the whole block.
    pub crc: u32,
    /// The bytes of the symbol: all of it, or those that the block's last one has.
    pub payload: &'a [u8],
}

impl Data<'_> {
    /// Length of the headers before the payload, in bytes.
    pub const HEADER_BYTES: usize = super::header::BYTES + size_of::<Layout>();

    pub(super) fn parse(bytes: &[u8]) -> Result<Data<'_>, Malformed> {
        let (layout, payload) = prefix::<Layout>(bytes)?;
        if payload.is_empty() {
            return Err(Malformed::Short { need: size_of::<Layout>() + 1, have: bytes.len() });
        }
        Ok(Data {
            version: layout.version.get(),
            number: layout.number.get(),
            block: layout.block.get(),
            symbol: layout.symbol.get(),
            crc: layout.crc.get(),
            payload,
        })
    }

    pub(super) fn write(&self, into: &mut [u8]) -> Option<usize> {
        let layout = Layout {
            version: U64::new(self.version),
            number: U32::new(self.number),
            block: U32::new(self.block),
            symbol: U32::new(self.symbol),
            crc: U32::new(self.crc),
        };
        put(into, &[layout.as_bytes(), self.payload])
    }
}

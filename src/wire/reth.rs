use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Key;

/// The RDMA extended transport header, 16 bytes in the first packet of a WRITE and in a READ request (IBTA 9.3.3).
///
/// ```text
/// byte 0  virtual address:64
///      8  R_Key:32
///     12  DMA length:32 (the whole message, in bytes, at most 2^31)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reth {
    address: U64,
    key: U32,
    length: U32,
}

const _: () = assert!(size_of::<Reth>() == 16);

impl Reth {
    /// A header for `length` bytes at `address` in the region of `key`.
    pub fn new(address: u64, key: Key, length: u32) -> Reth {
        Reth { address: U64::new(address), key: U32::new(key.0), length: U32::new(length) }
    }

    /// The remote virtual address of the first byte.
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// The R_Key of the remote region.
    pub fn key(&self) -> Key {
        Key(self.key.get())
    }

    /// Length of the whole message, in bytes.
    pub fn length(&self) -> u32 {
        self.length.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_the_layout_says_and_read_back() {
        let reth = Reth::new(0x0102_0304_0506_0708, Key(0x1112_1314), 0x2122_2324);
        assert_eq!(reth.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
        assert_eq!((reth.address(), reth.key(), reth.length()), (0x0102_0304_0506_0708, Key(0x1112_1314), 0x2122_2324));
    }
}

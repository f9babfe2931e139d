use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Key;

/// The atomic extended transport header, 28 bytes in an atomic request (IBTA 9.3.4).
///
/// ```text
/// byte 0  virtual address:64 (a multiple of 8)
///      8  R_Key:32
///     12  swap value, or the value to add:64
///     20  compare value:64 (zero for fetch and add)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicEth {
    address: U64,
    key: U32,
    swap_or_add: U64,
    compare: U64,
}

const _: () = assert!(size_of::<AtomicEth>() == 28);

impl AtomicEth {
    /// A header for the eight bytes at `address` in the region of `key`.
    pub fn new(address: u64, key: Key, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth {
            address: U64::new(address),
            key: U32::new(key.0),
            swap_or_add: U64::new(swap_or_add),
            compare: U64::new(compare),
        }
    }

    /// The remote virtual address of the eight bytes.
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// The R_Key of the remote region.
    pub fn key(&self) -> Key {
        Key(self.key.get())
    }

    /// The value to store (compare and swap) or to add (fetch and add).
    pub fn swap_or_add(&self) -> u64 {
        self.swap_or_add.get()
    }

    /// The value to compare with.
    pub fn compare(&self) -> u64 {
        self.compare.get()
    }
}

/// The atomic acknowledge extended header: the eight bytes before the operation (IBTA 9.3.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicAckEth {
    original: U64,
}

const _: () = assert!(size_of::<AtomicAckEth>() == 8);

impl AtomicAckEth {
    /// A header with the original value.
    pub fn new(original: u64) -> AtomicAckEth {
        AtomicAckEth { original: U64::new(original) }
    }

    /// The value before the operation.
    pub fn original(&self) -> u64 {
        self.original.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_the_layout_says_and_read_back() {
        let eth = AtomicEth::new(0x0102_0304_0506_0708, Key(0x1112_1314), 0x21, 0x31);
        let mut bytes = [0; 28];
        bytes[..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14]);
        (bytes[19], bytes[27]) = (0x21, 0x31);
        assert_eq!(eth.as_bytes(), bytes);
        assert_eq!((eth.address(), eth.key()), (0x0102_0304_0506_0708, Key(0x1112_1314)));
        assert_eq!((eth.swap_or_add(), eth.compare()), (0x21, 0x31));
        assert_eq!(AtomicAckEth::new(0x0102).as_bytes(), [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(AtomicAckEth::new(7).original(), 7);
    }
}

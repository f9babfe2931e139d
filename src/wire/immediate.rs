use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Key;

/// Immediate data: four bytes that go to the receiver's completion, not to memory (IBTA 9.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ImmDt {
    data: U32,
}

const _: () = assert!(size_of::<ImmDt>() == 4);

impl ImmDt {
    /// A header with `data`, in host order.
    pub fn new(data: u32) -> ImmDt {
        ImmDt { data: U32::new(data) }
    }

    /// The data, in host order.
    pub fn data(&self) -> u32 {
        self.data.get()
    }
}

/// The invalidate extended transport header: the R_Key for the receiver to invalidate (IBTA 9.3.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ieth {
    key: U32,
}

const _: () = assert!(size_of::<Ieth>() == 4);

impl Ieth {
    /// A header that invalidates `key`.
    pub fn new(key: Key) -> Ieth {
        Ieth { key: U32::new(key.0) }
    }

    /// The R_Key to invalidate.
    pub fn key(&self) -> Key {
        Key(self.key.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_big_endian_and_read_back() {
        assert_eq!(ImmDt::new(0x0102_0304).as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Ieth::new(Key(0x0102_0304)).as_bytes(), [1, 2, 3, 4]);
        assert_eq!((ImmDt::new(9).data(), Ieth::new(Key(9)).key()), (9, Key(9)));
    }
}

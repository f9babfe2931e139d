use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The FLUSH extended transport header, 4 bytes before the RETH of a FLUSH (IBTA A19.4.1; rxe's struct `rxe_feth`).
///
/// ```text
/// bits 31-6  reserved, zero
///       5-4  selectivity level: 0 the range that the RETH names, 1 the whole region
///       3-0  placement type: 1 global visibility, 2 persistence, 3 both
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Feth {
    bits: U32,
}

const _: () = assert!(size_of::<Feth>() == 4);

bitflags::bitflags! {
    /// What a FLUSH guarantees for earlier WRITEs; the values of `enum ibv_placement_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Placement: u8 {
        /// Global visibility: every reader of the memory sees them.
        const GLOBAL = 1;
        /// Persistence: they survive a power failure.
        const PERSISTENT = 2;
    }
}

/// Which bytes a FLUSH covers; the values of `enum ibv_selectivity_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selectivity {
    /// The bytes that the RETH names.
    Range,
    /// The whole region of the RETH's key; the RETH's address and length are ignored.
    Region,
    /// A reserved value, 2 or 3.
    Unknown(u8),
}

impl Selectivity {
    /// The selectivity level with the number `value`; its low two bits count.
    pub const fn new(value: u8) -> Selectivity {
        match value & 3 {
            0 => Selectivity::Range,
            1 => Selectivity::Region,
            reserved => Selectivity::Unknown(reserved),
        }
    }

    /// The number of the selectivity level on the wire, 0 to 3.
    pub const fn value(self) -> u8 {
        match self {
            Selectivity::Range => 0,
            Selectivity::Region => 1,
            Selectivity::Unknown(value) => value & 3,
        }
    }
}

impl Feth {
    /// A header with this placement and selectivity; reserved placement bits are kept.
    pub fn new(placement: Placement, selectivity: Selectivity) -> Feth {
        Feth { bits: U32::new(u32::from(placement.bits() & 0xf) | u32::from(selectivity.value()) << 4) }
    }

    /// The requested placement; reserved bits are kept.
    pub fn placement(&self) -> Placement {
        Placement::from_bits_retain((self.bits.get() & 0xf) as u8)
    }

    /// Which bytes the FLUSH covers.
    pub fn selectivity(&self) -> Selectivity {
        Selectivity::new((self.bits.get() >> 4) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_the_layout_says_and_read_back() {
        let feth = Feth::new(Placement::PERSISTENT, Selectivity::Region);
        assert_eq!(feth.as_bytes(), [0, 0, 0, 0x12]);
        assert_eq!((feth.placement(), feth.selectivity()), (Placement::PERSISTENT, Selectivity::Region));
        for bits in 0..64u8 {
            let feth = Feth::read_from_bytes(&[0xff, 0xff, 0xff, 0xc0 | bits][..]).unwrap();
            let again = Feth::new(feth.placement(), feth.selectivity());
            assert_eq!(
                again.as_bytes(),
                [0, 0, 0, bits],
                "reserved placements and levels are kept, other bits are not"
            );
        }
    }
}

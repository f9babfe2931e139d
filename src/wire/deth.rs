use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{QKey, Qpn};

/// The datagram extended transport header, 8 bytes in every UD packet (IBTA 9.3.2).
///
/// ```text
/// byte 0  Q_Key:32
///      4  reserved:8
///      5  source QPN:24
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Deth {
    q_key: U32,
    reserved: u8,
    source: [u8; 3],
}

const _: () = assert!(size_of::<Deth>() == 8);

impl Deth {
    /// A header with the receiver's Q_Key and the sender's QPN.
    pub fn new(q_key: QKey, source: Qpn) -> Deth {
        Deth { q_key: U32::new(q_key.0), reserved: 0, source: source.to_be_bytes() }
    }

    /// The queue key (Q_Key) that the sender claims for the receiver.
    pub fn q_key(&self) -> QKey {
        QKey(self.q_key.get())
    }

    /// The QPN of the sender.
    pub fn source(&self) -> Qpn {
        Qpn::from_be_bytes(self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_where_the_layout_says_and_read_back() {
        let deth = Deth::new(QKey(0x0102_0304), Qpn::new(0x111213));
        assert_eq!(deth.as_bytes(), [1, 2, 3, 4, 0, 0x11, 0x12, 0x13]);
        assert_eq!((deth.q_key(), deth.source()), (QKey(0x0102_0304), Qpn::new(0x111213)));
    }
}

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Msn, RnrTimer};

/// The acknowledge extended transport header, 4 bytes in every ACK, NAK and most READ responses (IBTA 9.3.5).
///
/// ```text
/// byte 0  syndrome:8
///      1  MSN:24
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Aeth {
    syndrome_msn: U32,
}

const _: () = assert!(size_of::<Aeth>() == 4);

/// The syndrome of an AETH (IBTA 9.7.5.1, Table 44): bits 6..5 are the kind, bits 4..0 its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledge; the credit code 0 to 30, or 31 for «no credit limit».
    Ack {
        /// End-to-end credits, coded as in IBTA Table 46.
        credits: u8,
    },
    /// Receiver not ready: the requester may retransmit after this delay.
    RnrNak(RnrTimer),
    /// Negative acknowledge, with its reason.
    Nak(NakCode),
    /// The reserved kind, or a byte with bit 7 set; holds the whole byte.
    Unknown(u8),
}

/// Why a responder refused a request (IBTA Table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A PSN is missing; the AETH's packet carries the PSN expected.
    PsnSequenceError,
    /// The request breaks a rule: opcode sequence, length, resources.
    InvalidRequest,
    /// The key, address, length or access right is wrong.
    RemoteAccessError,
    /// The responder failed through its own fault.
    RemoteOperationalError,
    /// Invalid RD request: reliable datagrams only.
    InvalidRdRequest,
    /// A reserved code, 5 to 31.
    Unknown(u8),
}

impl Syndrome {
    /// An acknowledge without credit limit, as every known RoCE device sends it.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// The syndrome as a byte on the wire.
    pub fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer.code(),
            Syndrome::Nak(code) => {
                0x60 | match code {
                    NakCode::PsnSequenceError => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccessError => 2,
                    NakCode::RemoteOperationalError => 3,
                    NakCode::InvalidRdRequest => 4,
                    NakCode::Unknown(code) => code & 0x1f,
                }
            }
            Syndrome::Unknown(byte) => byte,
        }
    }

    /// The syndrome with the value `byte` on the wire.
    pub fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: value },
            1 => Syndrome::RnrNak(RnrTimer::new(value)),
            3 => Syndrome::Nak(match value {
                0 => NakCode::PsnSequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccessError,
                3 => NakCode::RemoteOperationalError,
                4 => NakCode::InvalidRdRequest,
                other => NakCode::Unknown(other),
            }),
            _ => Syndrome::Unknown(byte),
        }
    }
}

impl Aeth {
    /// A header with this syndrome and message sequence number.
    pub fn new(syndrome: Syndrome, msn: Msn) -> Aeth {
        Aeth { syndrome_msn: U32::new(u32::from(syndrome.to_byte()) << 24 | msn.value()) }
    }

    /// The syndrome: acknowledge, RNR NAK, or NAK with its reason.
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::from_byte((self.syndrome_msn.get() >> 24) as u8)
    }

    /// The message sequence number: the responder's count of completed messages, modulo 2^24.
    pub fn msn(&self) -> Msn {
        Msn::new(self.syndrome_msn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_reads_back() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn fields_land_where_the_layout_says_and_read_back() {
        let aeth = Aeth::new(Syndrome::Nak(NakCode::RemoteAccessError), Msn::new(0x010203));
        assert_eq!(aeth.as_bytes(), [0x62, 1, 2, 3]);
        assert_eq!(aeth.syndrome(), Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!(aeth.msn(), Msn::new(0x010203));
        assert_eq!(Aeth::new(Syndrome::ACK, Msn::new(0)).as_bytes()[0], 0x1f);
        assert_eq!(Aeth::new(Syndrome::RnrNak(RnrTimer::new(12)), Msn::new(0)).as_bytes()[0], 0x2c);
    }
}

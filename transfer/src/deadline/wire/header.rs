use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::prefix;

/// What every datagram begins with, 16 bytes.
///
/// ```text
/// byte 0  magic:32     "uDL1": deadline mode, version 1
///      4  kind:8
///      5  zero:24
///      8  request:64
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: U32,
    kind: u8,
    zero: u8,
    zeros: U16,
    request: U64,
}

pub(super) const BYTES: usize = size_of::<Header>();
const _: () = assert!(BYTES == 16);

const MAGIC: u32 = u32::from_be_bytes(*b"uDL1");

/// What kind of datagram it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named for what they are
pub enum Kind {
    Request,
    Data,
    Report,
    End,
    Refusal,
    Here,
    Unknown(u8),
}

/// Why bytes are no datagram of this mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is shorter than its headers and lists.
    #[error("{have} bytes, where {need} are needed")]
    Short {
        /// Bytes that are needed from the same place on.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// It is longer than its headers and lists.
    #[error("{have} bytes, where only {need} have a meaning")]
    Long {
        /// Bytes that have a meaning.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// It begins otherwise.
    #[error("it begins with {0:#010x}, not with uDL1")]
    Magic(u32),
    /// There is no such kind.
    #[error("kind {0}: 1 to 6 are known")]
    Kind(u8),
    /// Bytes that must be zero are not.
    #[error("bytes that must be zero are not")]
    Zero,
    /// A number is one that the field cannot have; holds the field.
    #[error("the field {0} is out of range")]
    Field(&'static str),
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Kind::Request => 1,
            Kind::Data => 2,
            Kind::Report => 3,
            Kind::End => 4,
            Kind::Refusal => 5,
            Kind::Here => 6,
            Kind::Unknown(code) => code,
        }
    }
}

impl From<u8> for Kind {
    fn from(code: u8) -> Kind {
        match code {
            1 => Kind::Request,
            2 => Kind::Data,
            3 => Kind::Report,
            4 => Kind::End,
            5 => Kind::Refusal,
            6 => Kind::Here,
            code => Kind::Unknown(code),
        }
    }
}

impl Header {
    pub fn new(kind: Kind, request: u64) -> Header {
        Header { magic: U32::new(MAGIC), kind: kind.code(), zero: 0, zeros: U16::ZERO, request: U64::new(request) }
    }

    /// The header, and what follows it.
    pub fn read(bytes: &[u8]) -> Result<(&Header, &[u8]), Malformed> {
        let (header, rest) = prefix::<Header>(bytes)?;
        if header.magic.get() != MAGIC {
            return Err(Malformed::Magic(header.magic.get()));
        }
        if header.zero != 0 || header.zeros.get() != 0 {
            return Err(Malformed::Zero);
        }
        Ok((header, rest))
    }

    pub fn write(&self, into: &mut [u8]) {
        into.copy_from_slice(self.as_bytes());
    }

    pub fn kind(&self) -> Kind {
        self.kind.into()
    }

    pub fn request(&self) -> u64 {
        self.request.get()
    }
}

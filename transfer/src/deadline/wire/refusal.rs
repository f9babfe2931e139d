use std::fmt;

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Malformed, prefix, put};

/// After the header, 24 bytes.
///
/// ```text
/// byte 0  reason:8
///      1  zero:24
///      4  block bytes:32
///      8  version:64
///     16  bytes:64
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    reason: u8,
    zero: u8,
    zeros: U16,
    block_bytes: U32,
    version: U64,
    bytes: U64,
}

const _: () = assert!(size_of::<Layout>() == 24);

/// Why the sender does not send, or no more; with what it has, zero where it has nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in `Shape` and `Values`
pub struct Refusal {
    pub reason: Reason,
    pub version: u64,
    pub bytes: u64,
    pub block_bytes: u32,
}

/// Why the sender does not send, or no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has no object of that name.
    NoObject,
    /// It has another version of the object.
    OtherVersion,
    /// It has the object in another shape.
    OtherShape,
    /// The request asks for what cannot be: a block twice, or parts that contradict each other.
    Contradiction,
    /// It serves as many requests as it can.
    Busy,
    /// The object was replaced or withdrawn while it was sent.
    Withdrawn,
    /// It knows nothing of the request, of which it got a report: it was started anew.
    NoRequest,
    /// The symbols do not fit into a datagram of its path.
    LongSymbols,
    /// A reason that this version does not know.
    Unknown(u8),
}

impl Reason {
    fn code(self) -> u8 {
        match self {
            Reason::NoObject => 1,
            Reason::OtherVersion => 2,
            Reason::OtherShape => 3,
            Reason::Contradiction => 4,
            Reason::Busy => 5,
            Reason::Withdrawn => 6,
            Reason::NoRequest => 7,
            Reason::LongSymbols => 8,
            Reason::Unknown(code) => code,
        }
    }
}

impl From<u8> for Reason {
    fn from(code: u8) -> Reason {
        match code {
            1 => Reason::NoObject,
            2 => Reason::OtherVersion,
            3 => Reason::OtherShape,
            4 => Reason::Contradiction,
            5 => Reason::Busy,
            6 => Reason::Withdrawn,
            7 => Reason::NoRequest,
            8 => Reason::LongSymbols,
            code => Reason::Unknown(code),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { reason, version, bytes, block_bytes } = self;
        match reason {
            Reason::NoObject => f.write_str("it has no object of that name"),
            Reason::OtherVersion => write!(f, "it has version {version}: ask for that one"),
            Reason::OtherShape => write!(f, "it has {bytes} bytes in blocks of {block_bytes}: ask for these"),
            Reason::Contradiction => {
                f.write_str("the request asks for a block twice, or its parts do not fit together")
            }
            Reason::Busy => f.write_str("it serves as many requests as it can: ask later"),
            Reason::Withdrawn => {
                write!(f, "the object was replaced or withdrawn meanwhile; it has version {version} now")
            }
            Reason::NoRequest => f.write_str("it does not know the request, since it was started anew: ask again"),
            Reason::LongSymbols => f.write_str("symbols do not fit into its path MTU: ask for shorter ones"),
            Reason::Unknown(code) => write!(f, "reason {code}, which this version does not know"),
        }
    }
}

impl Refusal {
    pub(super) fn parse(bytes: &[u8]) -> Result<Refusal, Malformed> {
        let (layout, rest) = prefix::<Layout>(bytes)?;
        if !rest.is_empty() {
            return Err(Malformed::Long { need: size_of::<Layout>(), have: bytes.len() });
        }
        if layout.zero != 0 || layout.zeros.get() != 0 {
            return Err(Malformed::Zero);
        }
        Ok(Refusal {
            reason: layout.reason.into(),
            version: layout.version.get(),
            bytes: layout.bytes.get(),
            block_bytes: layout.block_bytes.get(),
        })
    }

    pub(super) fn write(&self, into: &mut [u8]) -> Option<usize> {
        let layout = Layout {
            reason: self.reason.code(),
            zero: 0,
            zeros: U16::ZERO,
            block_bytes: U32::new(self.block_bytes),
            version: U64::new(self.version),
            bytes: U64::new(self.bytes),
        };
        put(into, &[layout.as_bytes()])
    }
}

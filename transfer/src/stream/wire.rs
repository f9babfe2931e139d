//! The messages with which two ends of a stream agree: docs/EXTENSIONS.md has the same. All fields are big-endian.

use std::fmt;

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Place, Terms};

/// A message, 64 bytes. What follows byte 40 depends on the kind.
///
/// ```text
/// byte 0  magic:32        "uST1": streams, version 1
///      4  kind:8          1 invitation, 2 begin, 3 refusal
///      5  zero:24
///      8  stream:64       its name
///     16  version:64
///     24  bytes:64        of all parts
///     32  parts:32
///     36  checksum:32     CRC-32 of where the parts end, 64 bits each
///     40  from:64         bytes that the receiver has; zero in a refusal
///
///         invitation           begin                 refusal
///     48  address:64           chunk bytes:32        reason:32
///     52                       zero:96               zero:96
///     56  rkey:32
///     60  outstanding:32
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: U32,
    kind: u8,
    zero: [u8; 3],
    name: U64,
    version: U64,
    bytes: U64,
    parts: U32,
    checksum: U32,
    from: U64,
    /// Of the kind.
    words: [U32; 4],
}

/// Length of a message, in bytes.
pub const MESSAGE_BYTES: usize = size_of::<Layout>();
const _: () = assert!(MESSAGE_BYTES == 64);

const MAGIC: u32 = u32::from_be_bytes(*b"uST1");

const INVITATION: u8 = 1;
const BEGIN: u8 = 2;
const REFUSAL: u8 = 3;

/// A message, and the stream that it is about as its sender has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The stream.
    pub terms: Terms,
    /// What is said of it.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The receiver is ready: it has so many bytes, and the others go to a place.
    Invitation {
        /// Bytes of the stream that it has, from the first on.
        held: u64,
        /// Where the stream goes.
        place: Place,
    },
    /// The sender begins.
    Begin {
        /// Where the first chunk begins: what the receiver said that it has.
        from: u64,
        /// Length of a chunk, in bytes.
        chunk_bytes: u32,
    },
    /// An end does not go on.
    Refusal(Reason),
}

/// Why an end does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The ends do not have the same stream.
    Terms,
    /// The chunks cannot be.
    Chunks,
    /// The message came at a wrong time.
    Order,
    /// A reason that this version does not know.
    Unknown(u32),
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It has another length.
    #[error("{0} bytes, where a message has {MESSAGE_BYTES}")]
    Length(usize),
    /// It begins otherwise.
    #[error("it begins with {0:#010x}, not with uST1")]
    Magic(u32),
    /// There is no such kind.
    #[error("kind {0}: 1 to 3 are known")]
    Kind(u8),
    /// Bytes that must be zero are not.
    #[error("bytes that must be zero are not")]
    Zero,
    /// A number is one that the field cannot have; holds the field.
    #[error("the field {0} is out of range")]
    Field(&'static str),
}

impl Reason {
    fn code(self) -> u32 {
        match self {
            Reason::Terms => 1,
            Reason::Chunks => 2,
            Reason::Order => 3,
            Reason::Unknown(code) => code,
        }
    }
}

impl From<u32> for Reason {
    fn from(code: u32) -> Reason {
        match code {
            1 => Reason::Terms,
            2 => Reason::Chunks,
            3 => Reason::Order,
            code => Reason::Unknown(code),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Terms => f.write_str("it has another stream"),
            Reason::Chunks => f.write_str("chunks of that length cannot be"),
            Reason::Order => f.write_str("the message came when none was to come"),
            Reason::Unknown(code) => write!(f, "reason {code}, which this version does not know"),
        }
    }
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// [`Malformed`] when it has another length or magic, an unknown kind, or a number that cannot be.
    pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
        let layout = Layout::ref_from_bytes(bytes).map_err(|_| Malformed::Length(bytes.len()))?;
        if layout.magic.get() != MAGIC {
            return Err(Malformed::Magic(layout.magic.get()));
        }
        if layout.zero != [0; 3] {
            return Err(Malformed::Zero);
        }
        let terms = Terms {
            name: layout.name.get(),
            version: layout.version.get(),
            bytes: layout.bytes.get(),
            parts: layout.parts.get(),
            checksum: layout.checksum.get(),
        };
        let from = layout.from.get();
        if from > terms.bytes {
            return Err(Malformed::Field("from"));
        }
        let [first, second, third, fourth] = layout.words.map(U32::get);
        let has_one = [second, third, fourth] == [0; 3];
        let body = match layout.kind {
            INVITATION => {
                let place =
                    Place { address: u64::from(first) << 32 | u64::from(second), rkey: third, outstanding: fourth };
                place.check(terms.bytes).map_err(Malformed::Field)?;
                Body::Invitation { held: from, place }
            }
            BEGIN if has_one => Body::Begin { from, chunk_bytes: first },
            REFUSAL if has_one && from == 0 => Body::Refusal(first.into()),
            BEGIN | REFUSAL => return Err(Malformed::Zero),
            kind => return Err(Malformed::Kind(kind)),
        };
        Ok(Message { terms, body })
    }

    /// The bytes of the message.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let (kind, from, words) = match self.body {
            Body::Invitation { held, place: Place { address, rkey, outstanding } } => {
                (INVITATION, held, [(address >> 32) as u32, address as u32, rkey, outstanding])
            }
            Body::Begin { from, chunk_bytes } => (BEGIN, from, [chunk_bytes, 0, 0, 0]),
            Body::Refusal(reason) => (REFUSAL, 0, [reason.code(), 0, 0, 0]),
        };
        let layout = Layout {
            magic: U32::new(MAGIC),
            kind,
            zero: [0; 3],
            name: U64::new(self.terms.name),
            version: U64::new(self.terms.version),
            bytes: U64::new(self.terms.bytes),
            parts: U32::new(self.terms.parts),
            checksum: U32::new(self.terms.checksum),
            from: U64::new(from),
            words: words.map(U32::new),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.copy_from_slice(layout.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Message> {
        let terms = Terms { name: 1 << 60, version: 2, bytes: 3000, parts: 4, checksum: 0xdead_beef };
        let place = Place { address: 0x1234_5678_9abc_def0, rkey: 0x0bad_cafe, outstanding: 64 };
        let bodies = [
            Body::Invitation { held: 3000, place },
            Body::Begin { from: 7, chunk_bytes: 1 << 31 },
            Body::Refusal(Reason::Chunks),
            Body::Refusal(Reason::Unknown(77)),
        ];
        bodies.map(|body| Message { terms, body }).into()
    }

    #[test]
    fn what_is_written_is_read() {
        for message in samples() {
            let bytes = message.to_bytes();
            assert_eq!(Message::parse(&bytes), Ok(message));
            assert_eq!(Message::parse(&bytes[1..]), Err(Malformed::Length(63)));
        }
    }

    #[test]
    fn what_is_none_is_said_to_be() {
        let changed = |sample: usize, at: usize, value: u8| {
            let mut bytes = samples()[sample].to_bytes();
            bytes[at] = value;
            Message::parse(&bytes)
        };
        assert_eq!(changed(0, 3, b'2'), Err(Malformed::Magic(0x7553_5432)));
        assert_eq!(changed(0, 4, 9), Err(Malformed::Kind(9)));
        assert_eq!(changed(0, 7, 1), Err(Malformed::Zero));
        assert_eq!(changed(0, 63, 0), Err(Malformed::Field("outstanding")));
        assert_eq!(changed(0, 46, 12), Err(Malformed::Field("from")));
        assert_eq!(changed(1, 63, 1), Err(Malformed::Zero));
        assert_eq!(changed(2, 47, 1), Err(Malformed::Zero));
        let mut high = samples()[0].to_bytes();
        high[48..56].fill(0xff);
        assert_eq!(Message::parse(&high), Err(Malformed::Field("address")));
    }
}

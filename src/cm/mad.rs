use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::{Message, MessageError};

/// Length of a management datagram in bytes (IBTA 13.4.2).
pub const MAD_BYTES: usize = 256;

/// The header of every management datagram, 24 bytes (IBTA 13.4.3).
///
/// ```text
/// byte 0  base version     4  status:16          16  attribute:16
///      1  class            6  class specific:16  18  reserved:16
///      2  class version    8  transaction:64     20  attribute modifier:32
///      3  method
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    base_version: u8,
    class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction: U64,
    attribute: U16,
    reserved: U16,
    modifier: U32,
}

const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 24);

/// The bytes of a message, after the header.
pub(super) const MESSAGE_BYTES: usize = MAD_BYTES - HEADER_BYTES;

/// The only base version.
const BASE_VERSION: u8 = 1;
/// The communication management class (IBTA 16.7.1), and its version.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// The method Send: all messages of the class use it (IBTA 16.7.2).
/// An attribute that every class has.
const CLASS_PORT_INFO: u16 = 0x0001;
const SEND: u8 = 3;

/// A management datagram of the communication management class: a message, and the transaction that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The number that an answer repeats. Peers are told apart by their communication ids, not by it.
    pub transaction: u64,
    /// The message.
    pub message: Message,
}

/// Why a datagram to QP1 is no message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Its length is not that of a management datagram.
    #[error("{0} bytes are not a management datagram, which has {MAD_BYTES}")]
    Length(usize),
    /// The base version is not 1.
    #[error("base version {0}; only 1 is known")]
    BaseVersion(u8),
    /// The class is another one, or of another version.
    #[error("class {class:#04x}, version {version}: connection management is class 0x07, version 2")]
    Class {
        /// The management class.
        class: u8,
        /// The version of the class.
        version: u8,
    },
    /// The method is not Send.
    #[error("method {0:#04x}; connection management uses only Send, 0x03")]
    Method(u8),
    /// The message cannot be right.
    #[error(transparent)]
    Message(#[from] MessageError),
}

impl Mad {
    /// Reads the payload of a datagram to QP1.
    ///
    /// # Errors
    /// [`MadError`] when its length, class, version, method or attribute is another, or a field of the message has no
    /// meaning.
    pub fn parse(bytes: &[u8]) -> Result<Mad, MadError> {
        let bytes: &[u8; MAD_BYTES] = bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
        let (header, body) = Header::read_from_prefix(bytes).expect("the array is longer");
        if header.base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(header.base_version));
        }
        if (header.class, header.class_version) != (CLASS, CLASS_VERSION) {
            return Err(MadError::Class { class: header.class, version: header.class_version });
        }
        if header.method != SEND {
            return Err(MadError::Method(header.method));
        }
        let body = body.try_into().expect("the rest of a datagram");
        let message = Message::parse(header.attribute.get(), body)?;
        Ok(Mad { transaction: header.transaction.get(), message })
    }

    /// A datagram of the class that every connection manager ignores: it sends the attribute ClassPortInfo, which is only
    /// asked for (IBTA 16.7.3).
    pub fn of_no_meaning() -> [u8; MAD_BYTES] {
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: SEND,
            attribute: U16::new(CLASS_PORT_INFO),
            ..Header::default()
        };
        let mut bytes = [0; MAD_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes
    }

    /// The bytes of the datagram.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let header = Header {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: SEND,
            transaction: U64::new(self.transaction),
            attribute: U16::new(self.message.attribute()),
            ..Header::default()
        };
        let mut bytes = [0; MAD_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes[HEADER_BYTES..].copy_from_slice(&self.message.to_bytes());
        bytes
    }
}

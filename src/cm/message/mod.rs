//! The messages of connection management (IBTA 12.6 and 12.11), each with its layout.

mod datagram_reply;
mod datagram_request;
mod disconnect;
mod ready;
mod received;
mod reject;
mod reply;
mod request;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::mad::MESSAGE_BYTES;

pub use datagram_reply::{DatagramReply, DatagramStatus};
pub use datagram_request::DatagramRequest;
pub use disconnect::{DisconnectReply, DisconnectRequest};
pub use ready::ReadyToUse;
pub use received::Received;
pub use reject::{Reason, Reject, Rejected};
pub use reply::Reply;
pub use request::{Request, Transport};

/// A message of connection management. Each names the communication ids of one or both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ: asks for a connection.
    Request(Box<Request>),
    /// MRA: a message was received, and the answer takes time.
    Received(Received),
    /// REJ: there is no connection, or none any more.
    Reject(Box<Reject>),
    /// REP: the connection is accepted.
    Reply(Box<Reply>),
    /// RTU: the reply has arrived.
    ReadyToUse(ReadyToUse),
    /// DREQ: ends the connection.
    DisconnectRequest(DisconnectRequest),
    /// DREP: the end is known.
    DisconnectReply(DisconnectReply),
    /// SIDR_REQ: asks for the queue pair of a datagram service.
    DatagramRequest(Box<DatagramRequest>),
    /// SIDR_REP: names it, or says why not.
    DatagramReply(Box<DatagramReply>),
}

/// Why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The attribute is none of ours. LAP and APR (alternate paths) are among these: RoCE has none.
    #[error("attribute {0:#06x} is no message of connection management that RoCE uses")]
    Attribute(u16),
    /// The transport service is neither RC nor UC.
    #[error("transport service type {0}: only RC (0) and UC (1) are offered")]
    Transport(u8),
    /// The code of the path MTU is none.
    #[error("path MTU code {0}: 1 to 5 are known")]
    PathMtu(u8),
}

impl Message {
    /// The attribute that says which message it is (IBTA 16.7.3).
    pub fn attribute(&self) -> u16 {
        match self {
            Message::Request(_) => 0x10,
            Message::Received(_) => 0x11,
            Message::Reject(_) => 0x12,
            Message::Reply(_) => 0x13,
            Message::ReadyToUse(_) => 0x14,
            Message::DisconnectRequest(_) => 0x15,
            Message::DisconnectReply(_) => 0x16,
            Message::DatagramRequest(_) => 0x17,
            Message::DatagramReply(_) => 0x18,
        }
    }

    pub(super) fn parse(attribute: u16, body: &[u8; MESSAGE_BYTES]) -> Result<Message, MessageError> {
        Ok(match attribute {
            0x10 => Message::Request(Box::new(Request::from_wire(read(body))?)),
            0x11 => Message::Received(Received::from_wire(read(body))),
            0x12 => Message::Reject(Box::new(Reject::from_wire(read(body)))),
            0x13 => Message::Reply(Box::new(Reply::from_wire(read(body)))),
            0x14 => Message::ReadyToUse(ReadyToUse::from_wire(read(body))),
            0x15 => Message::DisconnectRequest(DisconnectRequest::from_wire(read(body))),
            0x16 => Message::DisconnectReply(DisconnectReply::from_wire(read(body))),
            0x17 => Message::DatagramRequest(Box::new(DatagramRequest::from_wire(read(body)))),
            0x18 => Message::DatagramReply(Box::new(DatagramReply::from_wire(read(body)))),
            other => return Err(MessageError::Attribute(other)),
        })
    }

    pub(super) fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        match self {
            Message::Request(message) => write(&message.to_wire()),
            Message::Received(message) => write(&message.to_wire()),
            Message::Reject(message) => write(&message.to_wire()),
            Message::Reply(message) => write(&message.to_wire()),
            Message::ReadyToUse(message) => write(&message.to_wire()),
            Message::DisconnectRequest(message) => write(&message.to_wire()),
            Message::DisconnectReply(message) => write(&message.to_wire()),
            Message::DatagramRequest(message) => write(&message.to_wire()),
            Message::DatagramReply(message) => write(&message.to_wire()),
        }
    }
}

/// Each layout is as long as a message: its private data goes to the end.
fn read<T: FromBytes + KnownLayout + Immutable>(body: &[u8; MESSAGE_BYTES]) -> T {
    const { assert!(size_of::<T>() == MESSAGE_BYTES) };
    T::read_from_bytes(body).expect("a layout of this length")
}

fn write<T: IntoBytes + Immutable>(layout: &T) -> [u8; MESSAGE_BYTES] {
    const { assert!(size_of::<T>() == MESSAGE_BYTES) };
    layout.as_bytes().try_into().expect("a layout of this length")
}

/// Three bytes as a number.
fn number([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

/// The low 24 bits as bytes.
fn bytes(number: u32) -> [u8; 3] {
    let [_, a, b, c] = number.to_be_bytes();
    [a, b, c]
}

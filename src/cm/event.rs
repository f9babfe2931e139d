use crate::wire::Addresses;

use super::connection::Id;
use super::listener::Listener;
use super::message::{DatagramReply, DatagramRequest, Reject, Reply, Request};

/// Something that the program must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// The connection.
    pub id: Id,
    /// What happened to it.
    pub kind: EventKind,
}

/// What happened to a connection. After those marked †, it is gone, and so is its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A peer asks a listener for this connection: [`super::Manager::accept`] or [`super::Manager::reject`] it.
    Requested {
        /// Who listens.
        listener: Listener,
        /// From our address to the peer's.
        addresses: Addresses,
        /// What is asked for.
        request: Box<Request>,
    },
    /// The peer accepts: call [`super::Manager::ready_to_use`] as soon as the queue pair can receive.
    Accepted(Box<Reply>),
    /// The peer is ready: the connection can be used.
    Established,
    /// † The peer rejected the connection, with the reason and its program's data.
    Rejected(Box<Reject>),
    /// † The peer did not answer.
    Unreachable,
    /// The connection has ended. Late packets of it can still come.
    Disconnected,
    /// † No late packets come any more: the queue pair's number can be used again.
    TimeWaitOver,
    /// A peer asks a listener for its datagram service: [`super::Manager::answer`] it.
    Asked {
        /// Who listens.
        listener: Listener,
        /// From our address to the peer's.
        addresses: Addresses,
        /// What is asked for.
        request: Box<DatagramRequest>,
    },
    /// † The peer named its datagram service, or says why it does not.
    Answered(Box<DatagramReply>),
}

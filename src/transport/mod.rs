//! Queue pairs as state machines without clock, thread, socket or randomness of their own.
//!
//! An [`Endpoint`] is a whole RDMA device in that sense: it is given frames and the time, and gives frames, timers and
//! events. The engine drives it over a link, the simulator in virtual time, replay from a capture.
//!
//! A queue pair has three roles, as in rxe. The requester turns send requests into packets. The completer, in the
//! requester's folder, takes the answers. The responder serves the peer's requests. UC and UD share the requester; what
//! UC and RC share of receiving messages is `inbound`.
//!
//! A [`Recovery`](crate::recovery::Recovery) decides what the requester retransmits: go-back-N, or selective repeat
//! towards a peer that understands docs/EXTENSIONS.md. The responder keeps requests that arrive early, before earlier
//! ones (`reorder`), and places their bytes at once where that is allowed (`early`). From plain peers the requester
//! keeps answers that arrive early (`early_answers`).

mod acks;
mod answer_arrivals;
mod answer_flight;
mod attributes;
mod cause;
mod class;
mod completion;
mod connection;
mod context;
mod counters;
mod datagram;
mod early;
mod endpoint;
mod event;
mod extension;
mod groups;
mod inbound;
mod inline;
mod message_kind;
mod multipath;
mod notification_point;
mod outgoing;
mod queue_pair;
mod queue_pair_status;
mod queue_pair_table;
mod rails;
mod ranges;
mod receive_queue;
mod reorder;
mod requester;
mod responder;
mod schedule;
mod service;
mod sink;
mod skipped;
mod srq;
mod state;
mod steps;
#[cfg(test)]
mod testing;
mod timers;
mod transmit;
mod treatment;
mod unreliable;
mod urgent;
mod work;

pub use attributes::{Attributes, Capabilities, ModifyError, Path, QpAttributes, QueuePairInfo};
pub use cause::Cause;
pub use class::{Class, ClassError};
pub use completion::{Completion, CompletionKind, CompletionRing, NetworkHeader, Notify, Status};
pub use counters::Counters;
pub use endpoint::{CreateError, Endpoint, NoSuchQueuePair};
pub use event::Event;
pub use extension::{PlainRecovery, RecoveryMode, RecoveryModeError, RecoverySettings};
pub use groups::{AttachError, MAX_MULTICAST_GROUPS, MAX_MULTICAST_MEMBERS};
pub use inline::{InlineBytes, InlineError, InlinePool, MAX_INLINE_BYTES};
pub use multipath::HopQuery;
pub use queue_pair::{QueuePairInit, QueuePairMachine};
pub use queue_pair_status::QueuePairStatus;
pub use receive_queue::SrqError;
pub use service::Service;
pub use sink::Sink;
pub use skipped::Skipped;
pub use srq::Srq;
pub use state::State;
pub use transmit::Transmit;
pub use treatment::Treatment;
pub use work::{
    Data, Destination, MAX_SGE, PostError, ReceiveRequest, Remote, SendOperation, SendRequest, Sge, SgeList,
};

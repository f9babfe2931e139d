//! Transfers between two hosts over plain verbs, for programs that know more of their data than a queue pair does.
//!
//! [`deadline`] moves blocks that are worth having up to a point in time. At that time the receiver knows which blocks
//! are whole, and exactly which are missing.
//!
//! [`stream`] says in which chunks bytes leave while the next ones are computed.
//!
//! Everything here is a state machine without clock, thread or socket: callers pass `now` and bytes. Its datagrams fit
//! into SENDs of unreliable datagram queue pairs, so it needs nothing of a particular stack or RNIC.

pub mod deadline;
pub mod stream;

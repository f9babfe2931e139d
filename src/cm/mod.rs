//! The connection manager (IBTA 12): it makes connections between queue pairs, and ends them, by messages over QP1.
//!
//! It has no clock, thread or socket: `handle_*` tell it what happened, `poll_*` return what it wants, and its users
//! move the queue pairs. [`verbs::ConnectionManager`](crate::verbs::ConnectionManager) drives it.
//!
//! ```text
//!   active:   connect ── REQ ──► … REP ──► Accepted ── ready_to_use ── RTU ──► established
//!   passive:  REQ ──► Requested ── accept ── REP ──► … RTU, or data ──► Established
//!   both:     disconnect ── DREQ ──► … DREP ──► time wait ──► TimeWaitOver
//! ```

mod connection;
mod counters;
mod departed;
mod event;
mod ip_header;
mod listener;
mod mad;
mod manager;
pub mod message;
mod service_id;

pub use connection::Id;
pub use counters::Counters;
pub use event::{CmEvent, EventKind};
pub use ip_header::IpCmHeader;
pub use listener::{InUse, Listener};
pub use mad::{MAD_BYTES, Mad, MadError};
pub use manager::{CM_RETRIES, Manager, Outgoing, RESPONSE_TIMEOUT, StateError, TooMany};
pub use service_id::{PortSpace, ServiceId};

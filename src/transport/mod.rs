//! Queue pairs as state machines without clock, thread, socket or randomness of their own.
//!
//! An [`Endpoint`] is a whole RDMA device in that sense: it is handed frames and the time, and asked for frames, timers
//! and events. The engine drives it over a link, the simulator in virtual time, replay from a capture.
//!
//! A queue pair has three roles, a file each, as rxe has them: the [requester](requester) turns send requests into
//! packets, the [completer](completer) takes the answers, the [responder](responder) serves the peer's requests.

mod attributes;
mod completer;
mod completion;
mod counters;
mod endpoint;
mod queue_pair;
mod requester;
mod responder;
mod timers;
mod work;

pub use attributes::{Capabilities, ModifyError, Path, QpAttributes, State};
pub use completion::{Completion, CompletionKind, CompletionQueue, Notify, Status};
pub use counters::Counters;
pub use endpoint::{CreateError, Endpoint, Event, NoSuchQueuePair, Transmit};
pub use queue_pair::{PostError, QueuePair};
pub use work::{Data, MAX_INLINE_BYTES, MAX_SGE, ReceiveRequest, Remote, SendOperation, SendRequest, Sge, SgeList};

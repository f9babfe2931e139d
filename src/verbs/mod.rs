//! The public API: RDMA verbs in Rust.
//!
//! ```no_run
//! use uroce::verbs::{Access, Capabilities, Context, OpenOptions, QueuePairOptions, Service};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open(&OpenOptions::default())?;
//! let pd = context.allocate_pd();
//! let region = pd.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let cq = context.create_completion_queue(64);
//! let capabilities = Capabilities { max_send_requests: 16, max_receive_requests: 16 };
//! let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
//! let qp = pd.create_queue_pair(&options)?;
//! println!("queue pair {}, region at {:#x} with key {}", qp.qpn(), region.address(), region.key());
//! # Ok(())
//! # }
//! ```

mod completion_queue;
mod connect;
mod context;
mod peer;
mod queue_pair;
mod region;
mod reply_address;
mod shared_receive_queue;

pub use completion_queue::{CompletionChannel, CompletionQueue};
pub use connect::{ConnectError, ConnectOptions};
pub use context::{
    AddressVector, Context, LinkKind, OpenError, OpenOptions, PathError, ProtectionDomain, QueuePairOptions,
    source_port,
};
pub use peer::{Peer, PeerError};
pub use queue_pair::{MulticastError, QueuePair};
pub use region::{MemoryRegion, MemoryWindow, Registration};
pub use reply_address::{ROUTING_HEADER_BYTES, ReplyError};
pub use shared_receive_queue::SharedReceiveQueue;

pub use crate::memory::{Access, AccessError, MapError, RegisterError, WindowBinding, WindowKind};
pub use crate::transport::{
    AttachError, Attributes, Capabilities, Completion, CompletionKind, Counters, CreateError, Data, Destination, Event,
    InlineBytes, InlineError, InlinePool, MAX_INLINE_BYTES, MAX_MULTICAST_GROUPS, MAX_MULTICAST_MEMBERS, MAX_SGE,
    ModifyError, Notify, Path, PostError, QpAttributes, QueuePairInfo, ReceiveRequest, Remote, SendOperation,
    SendRequest, Service, Sge, SgeList, SrqError, State, Status,
};
pub use crate::wire::{Key, PathMtu, Placement, Psn, QKey, Qpn, RnrTimer, Selectivity};

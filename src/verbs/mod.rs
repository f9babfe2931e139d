//! The public API: RDMA verbs in Rust.
//!
//! ```no_run
//! use uroce::verbs::{Access, Capabilities, Context, OpenOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = Context::open(&OpenOptions::default())?;
//! let pd = context.allocate_pd();
//! let region = pd.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let cq = context.create_completion_queue(64);
//! let capabilities = Capabilities { max_send_requests: 16, max_receive_requests: 16 };
//! let qp = pd.create_queue_pair(&capabilities, &cq, &cq)?;
//! println!("queue pair {}, region at {:#x} with key {}", qp.qpn(), region.address(), region.key());
//! # Ok(())
//! # }
//! ```

mod completion_queue;
mod context;
mod queue_pair;
mod region;

pub use completion_queue::{CompletionChannel, CompletionQueue};
pub use context::{AddressVector, Context, OpenError, OpenOptions, PathError, ProtectionDomain};
pub use queue_pair::QueuePair;
pub use region::{MemoryRegion, MemoryWindow};

pub use crate::memory::{Access, AccessError, MapError, WindowBinding};
pub use crate::transport::{
    Capabilities, Completion, CompletionKind, CreateError, Data, Event, MAX_INLINE_BYTES, MAX_SGE, ModifyError, Notify,
    PostError, QpAttributes, ReceiveRequest, Remote, SendOperation, SendRequest, Sge, SgeList, State, Status,
};
pub use crate::wire::{Key, PathMtu, Psn, Qpn, RnrTimer};

//! Protection domains, regions, windows and keys: the only place that touches registered memory.
//!
//! With RDMA, programs and remote peers read and write registered memory at the same time. So no reference to it is
//! ever made: all access goes through a few functions in assembly, for which races are defined.

mod access;
mod copy;
pub mod faults;
mod host;
mod keys;
mod lent;
mod span;
mod table;
mod window;

pub use access::{Access, AccessError};
pub use host::{HostMemory, MapError};
pub use keys::KeySource;
pub use lent::{Lent, RegisterError};
pub use span::{AtomicError, Span};
pub use table::{MemoryTable, Pd, Scope};
pub use window::{WindowBinding, WindowError, WindowKind};

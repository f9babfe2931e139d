//! Protection domains, regions, windows and keys: the only place that touches registered memory.
//!
//! Programs and remote peers read and write registered memory at the same time, by the nature of RDMA. So no reference
//! to it is ever made: everything goes through a few functions in assembly, for which racing is defined.

mod copy;
pub mod faults;
mod host;
mod keys;
mod lent;
mod table;

pub use host::{HostMemory, MapError};
pub use keys::KeySource;
pub use lent::{Lent, RegisterError};
pub use table::{Access, AccessError, AtomicError, MemoryTable, Pd, Span, WindowBinding, WindowError, WindowKind};

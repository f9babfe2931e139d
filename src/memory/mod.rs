//! Protection domains, regions, windows and keys: the only place that touches registered memory.
//!
//! Programs and remote peers read and write registered memory at the same time, by the nature of RDMA. So no reference
//! to it is ever made: everything goes through raw copies, and atomics through atomic instructions.

mod copy;
mod host;
mod keys;
mod table;

pub use host::{HostMemory, MapError};
pub use keys::KeySource;
pub(crate) use table::populate;
pub use table::{
    Access, AccessError, AtomicError, MemoryTable, Pd, RegisterError, Span, WindowBinding, WindowError, WindowKind,
};

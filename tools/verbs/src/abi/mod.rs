//! The structures of `infiniband/verbs.h`, as 64-bit programs were compiled against them. Sizes and offsets are asserted
//! here, and compared with the header itself by `tests/layout.rs`.

mod attributes;
mod cm;
mod objects;
mod work;

pub(crate) use attributes::*;
pub(crate) use cm::*;
pub(crate) use objects::*;
pub(crate) use work::*;

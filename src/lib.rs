//! **uroce**: a RoCE v2 stack in userspace over AF_XDP.
//!
//! `docs/ARCHITECTURE.md` has the map and the invariants.

#[doc(hidden)]
#[macro_use]
pub mod mutants;

pub mod congestion;
pub mod engine;
pub mod frame;
pub mod link;
pub mod memory;
pub mod path;
pub mod pcap;
pub mod recovery;
mod sync;
pub mod time;
pub mod transport;
pub mod verbs;
pub mod wire;

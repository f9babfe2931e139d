//! Paths to a peer: which there are, how they perform, and which of them the next packet takes.
//!
//! Nothing here knows addresses or ports: a path is a number, and the transport knows its meaning.

mod mask;
mod policy;
mod recycle;
mod round_robin;
mod set;
mod single;
mod state;
mod weighted;

pub use mask::PathMask;
pub use policy::{Feedback, PathPolicy, PathPolicyError, Policy};
pub use set::{Answered, PathSet, Probe};
pub use state::{PathCondition, PathStatus};

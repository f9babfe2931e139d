//! Injected faults: which frames are lost, duplicated, corrupted, delayed or overtaken, decided by a seed alone.
//!
//! [`FaultEngine`] decides, and [`HoldQueue`] keeps frames that come later; neither touches a link or a clock.
//! [`Tapped`](super::Tapped) applies them to a link.

mod engine;
mod fate;
mod hold_queue;
mod spec;

pub use engine::FaultEngine;
pub use fate::{Corruption, Fate};
pub use hold_queue::HoldQueue;
pub use spec::{FaultDirection, FaultSpec, FaultSpecError};

#[cfg(test)]
mod tests;

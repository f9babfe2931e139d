//! How fast a queue pair sends: rates, and the pacer that keeps to them.

mod pacer;
mod rate;

pub use pacer::Pacer;
pub use rate::{Rate, RateError};

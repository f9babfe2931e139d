//! How fast a queue pair may send.

mod pacer;
mod rate;

pub use pacer::Pacer;
pub use rate::{Rate, RateError};

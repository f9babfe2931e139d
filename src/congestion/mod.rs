//! How fast a queue pair may send.

mod controller;
mod pacer;
mod rate;

pub use controller::{Controller, FixedRate};
pub use pacer::Pacer;
pub use rate::{Rate, RateError};

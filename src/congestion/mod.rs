//! How fast a queue pair sends: a controller decides on a rate, and the pacer keeps to it.

mod controller;
mod pacer;
mod rate;

pub use controller::{Controller, FixedRate};
pub use pacer::Pacer;
pub use rate::{Rate, RateError};

//! How fast a queue pair may send.

mod pacer;

pub use pacer::Pacer;

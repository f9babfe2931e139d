//! Loss recovery: which packets arrived, which are lost, and when to ask.
//!
//! Nothing here knows a wire format: packets are positions, counted from the connection's beginning, and acknowledges are
//! positions that arrived.

mod round_trip;
mod scoreboard;

pub use round_trip::RoundTrip;
pub use scoreboard::{Report, Scoreboard, Wants};

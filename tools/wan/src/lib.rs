//! A wide area network between two namespaces, for real frames: delay, jitter, loss, bursts of it, rate, queues, ECN marks,
//! parallel paths and several interfaces.
//!
//! - [`Wan::start`] makes two hosts' namespaces and one in their middle, whose veth ends a thread forwards between;
//! - [`Conditions`] say what a path does to frames, [`Path`] does it, in any time it is given;
//! - [`Counts`] say what became of every frame, [`Delays`] how late frames left, and what they waited;
//! - [`measure`] finds out from the outside what the network is really like;
//! - [`compare`] has programs send over it, one after the other; [`grid`] does over all of a wide area, and
//!   [`beside`] has them share it.
//!
//! Needs Linux, root, iproute2 and ethtool. Nothing is left behind: namespaces go when the [`Wan`] is dropped.
#![allow(clippy::disallowed_methods, reason = "it forwards real frames in real time: it lives on the wall clock")]

pub mod beside;
mod bottleneck;
mod clock;
pub mod compare;
mod conditions;
mod delays;
mod forwarder;
mod frame;
pub mod grid;
pub mod measure;
mod messages;
mod network;
mod path;
mod port;
mod report;
mod stop;
mod tcp;

pub use bottleneck::Bottleneck;
pub use conditions::{Conditions, ConditionsError, Loss};
pub use delays::{Delays, of_sorted};
pub use forwarder::{Usage, WanCounts};
pub use frame::Flow;
pub use network::{Direction, Host, Plan, Rail, Side, Wan, WanError};
pub use path::{Counts, Fate, Path};
pub use port::PortCounts;
pub use report::Report;

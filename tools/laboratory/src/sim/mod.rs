//! Networks in virtual time: endpoints, links and switches, with all kinds of faults, and an oracle that holds a model
//! of every buffer, work request and frame.
//!
//! There is no clock, no thread and no randomness except the seed's: the same seed gives the same trace, byte for byte.
//! A [`Network`] carries frames between [`Node`]s, and its caller drives it with [`Network::step`]. [`chaos`] runs
//! random programs over random networks and checks all their results.

pub mod attack;
pub mod batches;
pub mod chaos;
pub mod congestion;
pub mod deadline;
mod deadline_path;
mod frame_pool;
mod goodput;
mod ideal;
pub mod kv;
pub mod layers;
mod line;
mod link;
pub mod loss_rtt;
mod marking;
pub mod matrix;
mod network;
mod node;
pub mod notifications;
mod paired_losses;
pub mod path_failure;
pub mod paths;
mod pattern;
mod pauses;
mod planes;
mod policer;
pub mod priorities;
mod priority_queues;
mod random;
mod recorder;
mod switch;
mod telemetry;
mod token_cell;
mod tokens;
mod transfer;

pub use frame_pool::Condition;
pub use goodput::Goodput;
pub use ideal::Ideal;
pub use line::Line;
pub use link::{Blackhole, Bursts, Faults, LinkProfile, Lost};
pub use marking::Marking;
pub use network::{LinkEnd, LinkId, Network, NodeId, Observer, Step, SwitchId, Tally};
pub use node::Node;
pub use pauses::Pauses;
pub use policer::Policer;
pub use random::Random;
pub use token_cell::{TokenCell, TokenDelay, TokenDelays};
pub use transfer::{TransferError, TransferOperation};

//! Random programs over random networks, each decided by a seed, with an oracle that checks all their results.
//!
//! The run of a seed tests one service: reliable connections with all that programs do to them, unreliable connections,
//! datagrams, or connections on a shared receive queue. Each has an oracle of its own, since different behaviour is
//! legal.

mod arena;
mod datagram;
mod header;
mod layout;
mod reliable;
mod setting;
mod shared;
mod stage;
mod unreliable;

use uroce::pcap::Writer;
use uroce::transport::PlainRecovery;

use super::network::Tally;
use super::random::Random;

/// The result of one seed's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed, which reproduces the run.
    pub seed: u64,
    /// The kind of the run.
    pub service: Kind,
    /// The number of frames that nodes sent.
    pub packets: u64,
    /// The counts of frames.
    pub tally: Tally,
    /// The violations in the order in which they were found; at most five, since one often leads to others.
    pub violations: Vec<String>,
}

/// The kinds of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // named for what they are
pub enum Kind {
    Reliable,
    Unreliable,
    Datagram,
    SharedReceiveQueue,
}

impl Kind {
    /// The kind of run that `seed` decides.
    pub fn of(seed: u64) -> Kind {
        match Random::new(seed, 2).below(10) {
            0..6 => Kind::Reliable,
            6 => Kind::Unreliable,
            7 => Kind::Datagram,
            _ => Kind::SharedReceiveQueue,
        }
    }
}

/// A capture of every frame when it arrives or is lost, with a comment on its faults.
pub type Capture = Writer<Box<dyn std::io::Write>>;

/// Runs the scenario of `seed`.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None, PlainRecovery::default())
}

/// Runs the scenario of `seed`; `recovery` is how reliable connections recover towards peers without the extension.
pub fn run_with_recovery(seed: u64, recovery: PlainRecovery) -> Outcome {
    run_with(seed, None, recovery)
}

/// Runs the scenario of `seed` and captures its frames.
pub fn run_captured(seed: u64, capture: Capture) -> Outcome {
    run_with(seed, Some(capture), PlainRecovery::default())
}

fn run_with(seed: u64, capture: Option<Capture>, recovery: PlainRecovery) -> Outcome {
    let service = Kind::of(seed);
    let (tally, violations) = match service {
        Kind::Reliable => reliable::run(seed, capture, recovery),
        Kind::Unreliable => stage::play(seed, capture, unreliable::World::new),
        Kind::Datagram => stage::play(seed, capture, datagram::World::new),
        Kind::SharedReceiveQueue => stage::play(seed, capture, shared::World::new),
    };
    Outcome { seed, service, packets: tally.sent, tally, violations }
}

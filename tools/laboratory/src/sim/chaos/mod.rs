//! Random programs over random networks, each decided by a seed, and everything that they see checked by an oracle.
//!
//! A seed's run is of one service: reliable connections with all that programs do to them, unreliable connections,
//! datagrams, or connections on a shared receive queue. What is legal differs, and so each has an oracle of its own.

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

/// What one seed's run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed, which repeats the run.
    pub seed: u64,
    /// What was run.
    pub service: Kind,
    /// Frames that nodes sent.
    pub packets: u64,
    /// What happened to frames.
    pub tally: Tally,
    /// What went wrong, in the order in which it was found; at most a few, since one often leads to others.
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
    /// What the run of `seed` is of.
    pub fn of(seed: u64) -> Kind {
        match Random::new(seed, 2).below(10) {
            0..6 => Kind::Reliable,
            6 => Kind::Unreliable,
            7 => Kind::Datagram,
            _ => Kind::SharedReceiveQueue,
        }
    }
}

/// Where every frame is written when it arrives or is lost, with a remark on what happened to it.
pub type Capture = Writer<Box<dyn std::io::Write>>;

/// Runs the scenario of `seed`.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None, PlainRecovery::default())
}

/// Runs the scenario of `seed`; reliable connections send again so, towards peers that do not repeat selectively.
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

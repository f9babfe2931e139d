use uroce::time::{Duration, Instant};

use super::wire::RequestPart;
use super::{Bitmap, Run, Shape, coding};

/// What a receiver asks for.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) object: u64,
    pub(super) version: u64,
    pub(super) shape: Shape,
    pub(super) runs: Vec<Run>,
    pub(super) repair_per_mille: u16,
    pub(super) deadline: Instant,
    pub(super) patience: Duration,
}

/// Why a request is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The deadline is not in the future.
    #[error("the deadline passed {ago:?} ago: choose one in the future")]
    DeadlinePassed {
        /// How long ago it was.
        ago: Duration,
    },
    /// No block is wanted.
    #[error("no block is wanted")]
    Nothing,
    /// A block is wanted that the object does not have.
    #[error("blocks {first} to {last} are wanted, and there are only {blocks}")]
    NoBlock {
        /// The first of the run.
        first: u32,
        /// The last of the run.
        last: u64,
        /// The number of blocks of the object.
        blocks: u32,
    },
    /// A block is wanted twice.
    #[error("block {0} is wanted twice")]
    Twice(u32),
    /// The wanted blocks are in too many pieces.
    #[error("the wanted blocks are {have} runs: at most {most} fit into a request")]
    Runs {
        /// The number of runs.
        have: usize,
        /// Upper bound on them, at this length of a symbol.
        most: usize,
    },
    /// The share of repair symbols is out of range.
    #[error("{0} repair symbols for a thousand: 0 to 1000 are possible")]
    Repair(u16),
    /// The code does not have so many symbols.
    #[error("blocks of {symbols} symbols cannot have {repairs} repair symbols: make blocks smaller")]
    Coding {
        /// Symbols of a block.
        symbols: u32,
        /// Repair symbols of a block.
        repairs: u32,
    },
}

/// A request is a failure when nothing is heard for so long: a round trip of a third of a second, and losses.
const PATIENCE: Duration = Duration::from_secs(1);

impl Request {
    /// All blocks of an object at a version, in their order, without repair symbols. The [deadline](Self::by) is to be set.
    pub fn new(object: u64, version: u64, shape: Shape) -> Request {
        let runs = vec![Run { first: 0, count: shape.blocks() }];
        Request { object, version, shape, runs, repair_per_mille: 0, deadline: Instant::ZERO, patience: PATIENCE }
    }

    /// Only these blocks, the most important first.
    pub fn with_runs(self, runs: Vec<Run>) -> Request {
        Request { runs, ..self }
    }

    /// With so many repair symbols for a thousand symbols of a block, rounded down: 0 to 1000.
    pub fn with_repair(self, per_mille: u16) -> Request {
        Request { repair_per_mille: per_mille, ..self }
    }

    /// By this time, at which the receiver stops.
    pub fn by(self, deadline: Instant) -> Request {
        Request { deadline, ..self }
    }

    /// With this upper bound on the time for which nothing is heard from the peer: 1 s unless it is set.
    pub fn with_patience(self, patience: Duration) -> Request {
        Request { patience, ..self }
    }

    /// How the object is cut.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Which blocks are wanted.
    ///
    /// # Errors
    /// [`RequestError`] when the request cannot be made.
    pub(super) fn check(&self, now: Instant) -> Result<Bitmap, RequestError> {
        if self.deadline <= now {
            return Err(RequestError::DeadlinePassed { ago: now - self.deadline });
        }
        let most = self.runs_of_part() * usize::from(u8::MAX);
        if self.runs.len() > most {
            return Err(RequestError::Runs { have: self.runs.len(), most });
        }
        if self.repair_per_mille > 1000 {
            return Err(RequestError::Repair(self.repair_per_mille));
        }
        let symbols = self.shape.symbols(0);
        let repairs = coding::repairs(symbols, self.repair_per_mille);
        if !coding::is_possible(symbols, repairs) {
            return Err(RequestError::Coding { symbols, repairs });
        }
        wanted(&self.runs, &self.shape)
    }

    /// How many runs a part of the request has at most: no datagram is longer than those with data, or than a report.
    pub(super) fn runs_of_part(&self) -> usize {
        let room = (usize::from(self.shape.symbol_bytes()) + super::wire::Data::HEADER_BYTES).max(DATAGRAM_BYTES);
        (room - RequestPart::HEADER_BYTES) / RequestPart::RUN_BYTES
    }
}

/// Every datagram of a request fits into so many bytes, or into those of one with data: a path MTU of 1024.
const DATAGRAM_BYTES: usize = 1024;

/// The blocks of runs.
///
/// # Errors
/// [`RequestError`] when a block is none of the object's, or is there twice, or there is none.
pub(super) fn wanted(runs: &[Run], shape: &Shape) -> Result<Bitmap, RequestError> {
    let blocks = shape.blocks();
    let mut wanted = Bitmap::new(blocks);
    for run in runs {
        let end = u64::from(run.first) + u64::from(run.count);
        if run.count == 0 || end > u64::from(blocks) {
            return Err(RequestError::NoBlock { first: run.first, last: end.saturating_sub(1), blocks });
        }
        if let Some(twice) = run.blocks().find(|block| !wanted.insert(*block)) {
            return Err(RequestError::Twice(twice));
        }
    }
    if wanted.is_empty() { Err(RequestError::Nothing) } else { Ok(wanted) }
}

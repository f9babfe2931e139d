//! Deadline mode: how long a chunk of 1 MiB takes until the receiver has it, with repair symbols and by selective repeat,
//! over a long path that loses packets.

use uroce::time::Duration;
use uroce_transfer::deadline::{End, Request, Shape, Values};

use super::batches::Times;
pub use super::deadline_path::LINE_BPS;
use super::deadline_path::{DeadlinePath, FRAME_OVERHEAD, PATIENCE, SYMBOL_BYTES};
use super::random::Random;

/// One cell of the table: chunks over one path, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeadlineCell {
    /// The share of frames that the path loses in each direction, 0 to 1 without the 1.
    pub loss: f64,
    /// Whether losses come in bursts of eight frames on average, instead of independently.
    pub bursts: bool,
    /// The round trip without queues.
    pub round_trip: Duration,
    /// Repair symbols for a thousand symbols; 0 for selective repeat alone.
    pub repair_per_mille: u16,
    /// The number of chunks that are measured, at least 1.
    pub chunks: usize,
}

/// The result of a cell. Times are those from the request until the receiver has the whole chunk.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// The first chunk, which begins with nothing known of the path.
    pub first: Duration,
    /// The measured chunks.
    pub chunks: Times,
    /// What 99 of 100 take without losses and without repair symbols.
    pub lossless_p99: Duration,
    /// Symbols that were sent beside those that a chunk has, as a share of these.
    pub overhead: f64,
    /// Chunks of which some symbol was sent once more, as a share.
    pub repaired: f64,
}

/// A chunk that is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunk {number}: {what}")]
pub struct DeadlineError {
    /// The number of the chunk, from 0 on.
    pub number: usize,
    /// What happened to it.
    pub what: String,
}

/// Length of a chunk, in bytes.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Chunks before those that are measured, after the rate is found.
const WARM_UP: usize = 20;

/// Chunks without losses: nothing is random in them.
const LOSSLESS_CHUNKS: usize = 20;

/// How much longer than without losses 99 of 100 chunks can take with enough repair symbols, at 1 % of loss and 100 ms.
const WITHIN: f64 = 1.05;

/// Repair symbols for a thousand that are enough there: for single losses, and for bursts of eight. Of 260 symbols, one in a
/// hundred chunks loses more than 30 to bursts.
const ENOUGH: [u16; 2] = [120, 240];

impl DeadlineCell {
    /// The losses of the table, as shares of frames.
    pub const LOSSES: [f64; 4] = [0.0001, 0.001, 0.01, 0.03];
    /// The round trips of the table, in milliseconds.
    pub const ROUND_TRIPS_MS: [u64; 4] = [1, 10, 30, 100];
    /// The repair symbols of the table, for a thousand symbols.
    pub const REPAIRS: [u16; 5] = [0, 30, 60, 120, 240];

    /// The table, each cell with so many chunks.
    pub fn table(chunks: usize) -> Vec<DeadlineCell> {
        let mut cells = Vec::new();
        for bursts in [false, true] {
            for round_trip in Self::ROUND_TRIPS_MS.map(Duration::from_millis) {
                for loss in Self::LOSSES {
                    for repair_per_mille in Self::REPAIRS {
                        cells.push(DeadlineCell { loss, bursts, round_trip, repair_per_mille, chunks });
                    }
                }
            }
        }
        cells
    }

    /// How long the path takes to carry a chunk.
    pub fn serialisation() -> Duration {
        let symbols = CHUNK_BYTES.div_ceil(usize::from(SYMBOL_BYTES));
        let bytes = CHUNK_BYTES + symbols * (FRAME_OVERHEAD + 40);
        Duration::from_nanos(bytes as u64 * 8_000_000_000 / LINE_BPS)
    }

    /// How much longer than without losses 99 of 100 chunks can take; `None` where no limit is set.
    pub fn limit(&self) -> Option<f64> {
        let enough = ENOUGH[usize::from(self.bursts)];
        let is_limited =
            (self.loss, self.round_trip, self.repair_per_mille) == (0.01, Duration::from_millis(100), enough);
        is_limited.then_some(WITHIN)
    }

    /// Whether the result keeps to the limit of its cell, and sends no more repair symbols than were asked for.
    pub fn keeps(&self, result: &Deadlines) -> bool {
        let share = f64::from(self.repair_per_mille) / 1000.0;
        self.limit().is_none_or(|limit| result.slowdown() <= limit && result.overhead <= share)
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`DeadlineError`] when a chunk does not become whole, or its bytes are wrong.
    pub fn run(&self, seed: u64) -> Result<Deadlines, DeadlineError> {
        let lossless = DeadlineCell { loss: 0.0, bursts: false, repair_per_mille: 0, ..*self };
        let lossless = DeadlineCell { chunks: LOSSLESS_CHUNKS, ..lossless }.play(seed)?;
        let mut result = self.play(seed)?;
        result.lossless_p99 = lossless.chunks.p99;
        Ok(result)
    }

    fn play(&self, seed: u64) -> Result<Deadlines, DeadlineError> {
        let mut path = DeadlinePath::new(self.round_trip, (self.loss, self.bursts), seed);
        let mut random = Random::new(seed, 7);
        let bytes: Vec<u8> = (0..CHUNK_BYTES / 8).flat_map(|_| random.u64().to_ne_bytes()).collect();
        path.sender.offer(OBJECT, Values::new(VERSION, CHUNK_BYTES as u32, bytes.clone()).expect("a chunk is a block"));
        let first = self.chunk(&mut path, &bytes, 0)?;
        path.find_rate();
        let mut times = Vec::new();
        let (mut before, mut repaired) = (path.sender.counters(), 0);
        for number in 0..WARM_UP + self.chunks {
            let counters = path.sender.counters();
            if number == WARM_UP {
                before = counters;
            }
            times.push(self.chunk(&mut path, &bytes, 1 + number)?);
            let is_measured = number >= WARM_UP;
            repaired += usize::from(is_measured && path.sender.counters().retransmitted > counters.retransmitted);
        }
        let after = path.sender.counters();
        let needed = (self.chunks * CHUNK_BYTES.div_ceil(usize::from(SYMBOL_BYTES))) as f64;
        let sent =
            |c: uroce_transfer::deadline::SenderCounters| (c.symbols + c.repair_symbols + c.retransmitted) as f64;
        let chunks = Times::of(times.split_off(WARM_UP));
        Ok(Deadlines {
            first,
            lossless_p99: chunks.p99,
            chunks,
            overhead: (sent(after) - sent(before)) / needed - 1.0,
            repaired: repaired as f64 / self.chunks as f64,
        })
    }

    /// How long a chunk takes until its receiver has it.
    fn chunk(&self, path: &mut DeadlinePath, bytes: &[u8], number: usize) -> Result<Duration, DeadlineError> {
        let wrong = |what: String| DeadlineError { number, what };
        let began = path.now;
        let shape = Shape::new(CHUNK_BYTES as u64, CHUNK_BYTES as u32, SYMBOL_BYTES).expect("a chunk is a block");
        let request = Request::new(OBJECT, VERSION, shape).with_repair(self.repair_per_mille).by(began + PATIENCE);
        let receiver = path.transfer(request).map_err(|error| wrong(error.to_string()))?;
        match receiver.end() {
            Some(End::Complete) if receiver.block(0) == Some(bytes) => Ok(path.now - began),
            Some(End::Complete) => Err(wrong("its bytes are wrong".to_owned())),
            end => Err(wrong(format!("it is not whole: {end:?}"))),
        }
    }
}

const OBJECT: u64 = 1;
const VERSION: u64 = 1;

impl Deadlines {
    /// How much longer 99 of 100 chunks take than without losses and without repair symbols.
    pub fn slowdown(&self) -> f64 {
        self.chunks.p99.as_secs_f64() / self.lossless_p99.as_secs_f64()
    }
}

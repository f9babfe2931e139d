use uroce::time::Duration;
pub use uroce_transfer::stream::Conditions;
use uroce_transfer::stream::{Part, chunks};

use crate::sim::batches::Times;
use crate::sim::ideal::Ideal;
use crate::sim::line::Line;
use crate::sim::random::Random;
use crate::sim::transfer::TransferError;

use super::pool::{Depth, Pool};
use super::{KvTransport, Piece, Workload};

/// A cache that is sent in chunks while it is computed, over the real transport, packet by packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamCell {
    /// What the packets cross.
    pub line: Line,
    /// Whose cache it is. Of it the prompt counts, and not when it is sent.
    pub workload: Workload,
    /// The parts in which a prompt is computed, each through all layers.
    pub micro_batches: u32,
    /// The length of a chunk, in bytes; `None` for the one that is chosen.
    pub chunk_bytes: Option<u64>,
}

/// What a stream came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streamed {
    /// Length of its chunks, in bytes.
    pub chunk_bytes: u64,
    /// How many there were.
    pub chunks: u64,
    /// How long the cache is computed, and how long its bytes take at the rate that was measured.
    pub compute: Duration,
    /// The same of the transfer.
    pub transfer: Duration,
    /// From the beginning of the prefill until the last chunk was acknowledged.
    pub total: Duration,
    /// What the choice expected.
    pub expected: Duration,
    /// The longer of compute and transfer, a chunk or the first part, whichever takes longer, and a round trip.
    pub bound: Duration,
    /// What an ideal selective repeat takes for the same chunks.
    pub ideal: Times,
}

/// Messages on their way at once: receives posted ahead.
pub const OUTSTANDING: usize = 64;

/// What a message costs the sender: a post, its completion, and the calls of the program around them.
pub const MESSAGE: Duration = Duration::from_micros(5);

/// The time in which the rate is measured: round trips.
const MEASURED_ROUND_TRIPS: u32 = 20;

/// Runs of the ideal selective repeat, of which each is alike without losses.
const IDEAL_RUNS: usize = 1000;

/// A message that shows how long an acknowledge takes, in bytes.
const SHORT_BYTES: u64 = 4096;

impl StreamCell {
    /// What a warm connection over a line does, as a program measures it.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, or the received bytes differ.
    pub fn conditions(line: Line, seed: u64) -> Result<Conditions, TransferError> {
        let mut pool = Pool::warm(line, KvTransport::Uroce, Depth::ample(&line, KvTransport::Uroce), seed)?;
        let rate_bps = pool.keep_busy(line.round_trip * MEASURED_ROUND_TRIPS)?;
        pool.finish()?;
        let depth = Depth { message_bytes: SHORT_BYTES, outstanding: 1 };
        let mut pool = Pool::warm(line, KvTransport::Uroce, depth, seed)?;
        let round_trip = pool.carry(&[Piece { at: Duration::ZERO, bytes: SHORT_BYTES }])?[0];
        pool.finish()?;
        Ok(Conditions { rate_bps, round_trip, message: MESSAGE, outstanding: OUTSTANDING })
    }

    /// What is computed when: each micro-batch goes through all layers.
    pub fn parts(&self) -> Vec<Part> {
        let count = self.workload.model.kv_layers as u32 * self.micro_batches;
        let bytes = self.workload.cache_bytes() / u64::from(count);
        (1..=count).map(|number| Part { ready: self.workload.prefill() * number / count, bytes }).collect()
    }

    /// Sends the cache over a warm connection.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, or the received bytes differ.
    pub fn run(&self, conditions: &Conditions, seed: u64) -> Result<Streamed, TransferError> {
        let parts = self.parts();
        let chunk_bytes = self.chunk_bytes.unwrap_or_else(|| conditions.choose(&parts));
        let depth = Depth { message_bytes: chunk_bytes, outstanding: OUTSTANDING as u64 };
        let mut may_post = Duration::ZERO;
        let piece = |at: Duration, bytes: u64| Piece { at, bytes };
        let pieces: Vec<Piece> = chunks(&parts, chunk_bytes)
            .map(|chunk| {
                may_post = chunk.ready.max(may_post) + conditions.message;
                piece(may_post, chunk.bytes)
            })
            .collect();
        let mut pool = Pool::warm(self.line, KvTransport::Uroce, depth, seed)?;
        let ends = pool.carry(&pieces)?;
        let ideal = self.ideal(&pieces, seed);
        pool.finish()?;
        let at_rate = |bytes: u64| Duration::from_secs_f64(bytes as f64 * 8.0 / conditions.rate_bps);
        // The last chunk is filled up: all messages of the simulator's connections have one length.
        let sent = pieces.len() as u64 * chunk_bytes;
        let (compute, transfer) = (self.workload.prefill(), at_rate(sent));
        let first = parts.first().map_or(0, |part| part.bytes);
        Ok(Streamed {
            chunk_bytes,
            chunks: pieces.len() as u64,
            compute,
            transfer,
            total: ends.last().copied().unwrap_or_default(),
            expected: conditions.total(&parts, chunk_bytes),
            bound: compute.max(transfer) + at_rate(chunk_bytes.max(first)) + conditions.round_trip,
            ideal,
        })
    }

    /// What an ideal selective repeat takes for these chunks.
    fn ideal(&self, pieces: &[Piece], seed: u64) -> Times {
        let ideal = Ideal::new(0, self.line.bps, self.line.round_trip, self.line.loss);
        let packets = || pieces.iter().map(|piece| (piece.at, Ideal::packets_of(piece.bytes)));
        let mut random = Random::new(seed, 11);
        let runs = if self.line.loss > 0.0 { IDEAL_RUNS } else { 1 };
        Times::of((0..runs).map(|_| ideal.pieces(packets(), &mut random)).collect())
    }
}

impl Streamed {
    /// How much longer it took than the bound, as a share of it; below 0 where it took less.
    pub fn beyond(&self) -> f64 {
        self.total.div_duration_f64(self.bound) - 1.0
    }

    /// The same of what is possible: the bound, or what an ideal selective repeat takes where repairs need longer.
    pub fn beyond_possible(&self) -> f64 {
        self.total.div_duration_f64(self.bound.max(self.ideal.max)) - 1.0
    }
}

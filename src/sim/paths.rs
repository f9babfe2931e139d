//! Goodput over many paths side by side, each with a round trip of its own.

use crate::congestion::Rate;
use crate::path::PathPolicy;
use crate::time::{Duration, Instant};
use crate::transport::{Recovery, RecoverySettings};

use super::chaos::Capture;
use super::goodput::DataMeter;
use super::link::Faults;
use super::loss_rtt::{FRAME, PAYLOAD, RATE};
use super::network::Network;
use super::planes::{self, Plane};
use super::recorder::Recorder;
use super::transfer::{Operation, Transfer, TransferError, TransferPlan};

/// An operation over paths of equal rate whose one-way delays are spread from 1 to 40 ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathsCell {
    /// What is done.
    pub operation: Operation,
    /// How many paths there are, 1 to 256; together they carry 10 Gb/s.
    pub paths: u16,
    /// How packets are spread over them.
    pub policy: PathPolicy,
    /// The share of frames that each loses, each way.
    pub loss: f64,
}

/// What a cell came to.
#[derive(Clone, Copy, Debug)]
pub struct PathsResult {
    /// Payload that arrived for the first time and was kept, in bits a second.
    pub goodput_bps: f64,
    /// Payload of completed messages, in bits a second.
    pub completed_bps: f64,
    /// Of the paths together: rate × payload share of a frame × (1 − loss), in bits a second.
    pub ideal_bps: f64,
    /// Packets sent again although the first had arrived, as a share of all data packets that arrived.
    pub spurious_fraction: f64,
    /// The largest that recovery's memory on both ends was, at any millisecond.
    pub memory_bytes: usize,
    /// Frames that nodes sent.
    pub frames: u64,
}

/// The one-way delays of the fastest and the slowest path.
const DELAYS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(40));

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// Until all is in motion, and what is measured, in round trips of the slowest path.
const WARM_UP_ROUND_TRIPS: u32 = 8;
const MEASURED_ROUND_TRIPS: u32 = 20;

/// By when all paths are in use.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// The local ACK timeout: 268 ms.
pub(super) const TIMEOUT_CODE: u8 = 16;

/// The plan of a transfer over so many paths, at `RATE` together.
pub(super) fn plan(operation: Operation, paths: u16, policy: PathPolicy) -> TransferPlan {
    TransferPlan {
        operation,
        message_bytes: if operation == Operation::Read { 8 << 20 } else { 1 << 16 },
        outstanding: if operation == Operation::Read { 160 } else { 16 << 10 },
        region_bytes: 256 << 20,
        recovery: RecoverySettings {
            recovery: Recovery::Auto,
            window: RecoverySettings::MAX_WINDOW,
            rate: Some(Rate::from_bits(8 * RATE)),
            ..RecoverySettings::default()
        }
        .with_paths(paths, policy),
        timeout: TIMEOUT_CODE,
    }
}

impl PathsCell {
    /// The cells of the table.
    pub fn all() -> Vec<PathsCell> {
        let of = |loss| {
            Operation::ALL.map(|operation| PathsCell { operation, paths: 16, policy: PathPolicy::RoundRobin, loss })
        };
        [0.0, 0.001].into_iter().flat_map(of).collect()
    }

    fn planes(&self) -> Vec<Plane> {
        let (least, greatest) = DELAYS;
        let steps = u32::from(self.paths.max(2)) - 1;
        // Not in the order of their numbers: 7 is prime to all powers of two.
        let step = |path: u16| u32::from(path) * 7 % u32::from(self.paths);
        (0..self.paths)
            .map(|path| Plane {
                delay: least + (greatest - least) * step(path) / steps,
                faults: [0, 1].map(|_| Faults { loss: self.loss, ..Faults::NONE }),
            })
            .collect()
    }

    /// Runs it, and captures up to `frames` of its frames.
    ///
    /// # Errors
    /// What is not as it must be: a request that failed, a completion out of order, memory that is not what was sent.
    pub fn run(&self, seed: u64, capture: Option<Capture>, frames: u64) -> Result<PathsResult, TransferError> {
        let (mut network, nodes) = planes::build(seed, RATE / u64::from(self.paths), &self.planes());
        let plan = plan(self.operation, self.paths, self.policy);
        let mut transfer = Transfer::new(&mut network, nodes, plan, seed);
        let mut watch = Recorder::new(DataMeter::default(), capture, frames);
        while transfer.good_paths(&mut network) < [self.paths; 2] {
            if network.now() > Instant::ZERO + KNOWN_WITHIN {
                let good = transfer.good_paths(&mut network);
                return Err(TransferError::Wrong(format!("of {} paths only {good:?} are in use", self.paths)));
            }
            let next = network.now() + Duration::from_millis(1);
            transfer.run(&mut network, next, &mut watch)?;
        }
        let begin = network.now() + ROUND_TRIP * WARM_UP_ROUND_TRIPS;
        transfer.run(&mut network, begin, &mut watch)?;
        let delivered = |watch: &Recorder<DataMeter>, transfer: &Transfer, network: &mut Network| {
            watch.inner.delivered(transfer, self.operation, network)
        };
        let from = (network.now(), delivered(&watch, &transfer, &mut network), transfer.completed_bytes());
        let end = network.now() + ROUND_TRIP * MEASURED_ROUND_TRIPS;
        let mut memory_bytes = 0;
        while network.now() < end {
            let next = (network.now() + Duration::from_millis(1)).min(end);
            transfer.run(&mut network, next, &mut watch)?;
            memory_bytes = memory_bytes.max(transfer.memory_bytes(&mut network));
        }
        let seconds = (network.now() - from.0).as_secs_f64();
        let until = delivered(&watch, &transfer, &mut network);
        let result = PathsResult {
            goodput_bps: (until.useful - from.1.useful) as f64 * PAYLOAD as f64 * 8.0 / seconds,
            completed_bps: (transfer.completed_bytes() - from.2) as f64 * 8.0 / seconds,
            ideal_bps: RATE as f64 * 8.0 * PAYLOAD as f64 / FRAME as f64 * (1.0 - self.loss),
            spurious_fraction: until.twice as f64 / until.useful.max(1) as f64,
            memory_bytes,
            frames: network.tally().sent,
        };
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}

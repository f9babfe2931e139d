//! Goodput over many parallel paths, each with a round trip of its own.

use uroce::congestion::CongestionControl;
use uroce::path::PathPolicy;
use uroce::time::{Duration, Instant};
use uroce::transport::RecoverySettings;

use super::chaos::Capture;
use super::goodput::{self, DataMeter, Goodput, RATE};
use super::link::Faults;
use super::planes::{self, Plane};
use super::recorder::Recorder;
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// A transfer over paths of equal rate whose one-way delays are spread from 1 to 40 ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathsCell {
    /// The operation of the transfer.
    pub operation: TransferOperation,
    /// The number of paths, 1 to 256; together they carry 10 Gb/s.
    pub paths: u16,
    /// How packets are spread over the paths.
    pub policy: PathPolicy,
    /// The share of frames that each path loses in each direction, 0 to 1.
    pub loss: f64,
    /// What decides on the rate; a fixed one is that of all paths together.
    pub congestion: CongestionControl,
}

/// The one-way delays of the fastest and the slowest path.
const DELAYS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(40));

const ROUND_TRIP: Duration = Duration::from_millis(80);

/// The warm-up, and the measured time, in round trips of the slowest path.
const WARM_UP_ROUND_TRIPS: u32 = 8;
const MEASURED_ROUND_TRIPS: u32 = 20;

/// Upper bound on the time until all paths are in use.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// The local ACK timeout: 268 ms.
const TIMEOUT_CODE: u8 = 16;

/// The plan of a transfer over `paths` paths, which together have the rate `RATE`.
pub(super) fn plan(
    operation: TransferOperation,
    paths: u16,
    policy: PathPolicy,
    congestion: CongestionControl,
) -> TransferPlan {
    let ends = [RecoverySettings::default().with_congestion(congestion).with_paths(paths, policy); 2];
    goodput::plan(operation, ends, true, TIMEOUT_CODE)
}

impl PathsCell {
    /// The cells of the table: every operation over 16 paths, without loss and with 0.1 %.
    pub fn all() -> Vec<PathsCell> {
        let of = |loss| {
            TransferOperation::ALL.map(|operation| PathsCell {
                operation,
                paths: 16,
                policy: PathPolicy::RoundRobin,
                loss,
                congestion: CongestionControl::default(),
            })
        };
        [0.0, 0.001].into_iter().flat_map(of).collect()
    }

    fn planes(&self) -> Vec<Plane> {
        let (least, greatest) = DELAYS;
        let steps = u32::from(self.paths.max(2)) - 1;
        // Delays do not follow the paths' numbers: 7 is coprime to all powers of two.
        let step = |path: u16| u32::from(path) * 7 % u32::from(self.paths);
        (0..self.paths)
            .map(|path| Plane {
                delay: least + (greatest - least) * step(path) / steps,
                faults: [0, 1].map(|_| Faults { loss: self.loss, ..Faults::NONE }),
            })
            .collect()
    }

    /// Runs the cell, and captures up to `frames` of its frames.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, a completion came out of order, the received bytes differ, or paths
    /// stay unused.
    pub fn run(&self, seed: u64, capture: Option<Capture>, frames: u64) -> Result<Goodput, TransferError> {
        let (mut network, nodes) = planes::build(seed, RATE / u64::from(self.paths), &self.planes());
        let plan = plan(self.operation, self.paths, self.policy, self.congestion);
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
        let measured = ROUND_TRIP * MEASURED_ROUND_TRIPS;
        let result = goodput::measure(&mut transfer, &mut network, &mut watch, measured, self.loss)?;
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}

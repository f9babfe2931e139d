//! A path that loses all frames for a while: how soon the others take over its share, and how soon it is used again.

use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::path::PathPolicy;
use uroce::time::{Duration, Instant};
use uroce::wire::{AcknowledgeTrailer, Packet};

use super::frame_pool::Condition;
use super::goodput::{DataMeter, PAYLOAD, RATE, ideal_bps, is_data};
use super::link::{Blackhole, Faults};
use super::network::{NodeId, Observer, bth_offset};
use super::paths::plan;
use super::planes::{self, Plane, plane_of};
use super::transfer::{Transfer, TransferError, TransferOperation};

/// The direction in which a path loses all frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DarkDirection {
    /// Both directions are dark.
    Both,
    /// The direction of the data is dark.
    Forward,
    /// The direction of acknowledges, or of the requests of READs, is dark.
    Return,
}

/// One of several paths goes dark for 40 round trips while data is in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureCell {
    /// The operation of the transfer.
    pub operation: TransferOperation,
    /// The direction in which the path fails.
    pub direction: DarkDirection,
    /// The number of paths, 2 to 256; together they carry 10 Gb/s.
    pub paths: u16,
    /// How packets are spread over the paths.
    pub policy: PathPolicy,
    /// The round-trip time of each path.
    pub round_trip: Duration,
    /// What decides on the rate; a fixed one is that of all paths together.
    pub congestion: CongestionControl,
}

/// The result of a cell. Times are in round trips.
#[derive(Clone, Debug)]
pub struct FailureResult {
    /// The time from the failure until goodput stays at 95 % or more of what the other paths can carry, and the failed
    /// path loses no more data.
    pub recovery_rtt: f64,
    /// The time from the first answer to a probe of the path, after it works again, until data arrives over it.
    pub return_rtt: f64,
    /// The time from the end of the failure until that first answer.
    pub blind_rtt: f64,
    /// Goodput as a share of what the other paths can carry, from two round trips after the failure until the path
    /// works again.
    pub capacity_fraction: f64,
    /// The smallest such share in any quarter of a round trip of that time.
    pub worst_fraction: f64,
    /// Goodput as a share of what all paths can carry, from two round trips after the first answer to a probe on.
    pub restored_fraction: f64,
    /// The number of data frames that the failed path lost.
    pub lost_frames: u64,
    /// Spurious retransmissions that arrived, as a share of the data packets that arrived for the first time.
    pub spurious_fraction: f64,
    /// The number of queue pairs that went to the error state.
    pub qp_errors: u64,
    /// Goodput as a share of what all paths can carry, by quarter of a round trip, from [`BEFORE_ROUND_TRIPS`] before
    /// the failure on.
    pub timeline: Vec<f64>,
}

/// How long the path is dark, in round trips.
pub const DARK_ROUND_TRIPS: u32 = 40;
const WARM_UP_ROUND_TRIPS: u32 = 20;
const AFTER_ROUND_TRIPS: u32 = 20;

/// The part of the timeline before the failure, in round trips.
pub const BEFORE_ROUND_TRIPS: u32 = 4;

/// The smallest share of capacity that counts as recovered.
const RECOVERED: f64 = 0.95;

/// The number of parts of a round trip in which goodput is measured.
pub const BINS: u32 = 4;

/// Observations of the path that fails.
#[derive(Debug)]
struct Watch {
    meter: DataMeter,
    planes: usize,
    failing: usize,
    /// The node that sends the data.
    source: NodeId,
    failed_at: Instant,
    back_at: Instant,
    /// When the failed path lost a data frame last, and how many it lost.
    last_lost: Option<Instant>,
    lost: u64,
    /// After the end of the failure: the first answer to a probe of the data's source, and the first data after that.
    first_answer: Option<Instant>,
    first_data: Option<Instant>,
}

impl Observer for Watch {
    fn lost(&mut self, now: Instant, _to: NodeId, frame: &[u8], _why: super::Lost) {
        if is_data(frame) {
            (self.last_lost, self.lost) = (Some(now), self.lost + 1);
        }
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        self.meter.arriving(now, node, frame, condition);
        if plane_of(frame, self.planes) != self.failing {
            return;
        }
        if is_data(frame) {
            if self.first_answer.is_some() {
                self.first_data.get_or_insert(now);
            }
        } else if node == self.source && now >= self.back_at && is_answer(frame) {
            self.first_answer.get_or_insert(now);
        }
    }
}

/// Whether a frame is the answer to a probe.
fn is_answer(frame: &[u8]) -> bool {
    let Ok(packet) = Packet::parse(FrameBytes::from(&frame[bth_offset(frame)..])) else { return false };
    matches!(packet.split_tag().and_then(|(packet, _)| packet.acknowledge_trailer()), Some(AcknowledgeTrailer::Probe(probe)) if probe.is_answer)
}

impl FailureCell {
    /// The cells of the table: every operation and direction, with 8 paths and a round trip of 20 ms.
    pub fn all() -> Vec<FailureCell> {
        let of = |operation| {
            [DarkDirection::Both, DarkDirection::Forward, DarkDirection::Return].map(|direction| FailureCell {
                operation,
                direction,
                paths: 8,
                policy: PathPolicy::RoundRobin,
                round_trip: Duration::from_millis(20),
                congestion: CongestionControl::default(),
            })
        };
        TransferOperation::ALL.into_iter().flat_map(of).collect()
    }

    /// Runs the cell with all randomness from `seed`.
    ///
    /// # Errors
    /// [`TransferError`] when a request failed, a completion came out of order, the received bytes differ, or paths
    /// stay unused.
    pub fn run(&self, seed: u64) -> Result<FailureResult, TransferError> {
        let from = Instant::ZERO + self.round_trip * (WARM_UP_ROUND_TRIPS - BEFORE_ROUND_TRIPS);
        let failed_at = from + self.round_trip * BEFORE_ROUND_TRIPS;
        let back_at = failed_at + self.round_trip * DARK_ROUND_TRIPS;
        // The failing path is neither the first nor the last.
        let failing = usize::from(self.paths) / 2;
        let dark = Faults { blackholes: vec![Blackhole { from: failed_at, until: back_at }], ..Faults::NONE };
        let faults = match self.direction {
            DarkDirection::Both => [dark.clone(), dark],
            DarkDirection::Forward => [dark, Faults::NONE],
            DarkDirection::Return => [Faults::NONE, dark],
        };
        let plane = |path| Plane {
            delay: self.round_trip / 2,
            faults: if path == failing { faults.clone() } else { [Faults::NONE, Faults::NONE] },
        };
        let planes: Vec<Plane> = (0..usize::from(self.paths)).map(plane).collect();
        let (mut network, nodes) = planes::build(seed, RATE / u64::from(self.paths), &planes);
        let plan = plan(self.operation, self.paths, self.policy, self.congestion);
        let mut transfer = Transfer::new(&mut network, nodes, plan, seed);
        let mut watch = Watch {
            meter: DataMeter::default(),
            planes: planes.len(),
            failing,
            source: nodes[0],
            failed_at,
            back_at,
            last_lost: None,
            lost: 0,
            first_answer: None,
            first_data: None,
        };
        transfer.run(&mut network, from, &mut watch)?;
        if transfer.good_paths(&mut network) != [self.paths; 2] {
            return Err(TransferError::Wrong("not all paths are in use when one shall fail".into()));
        }
        // The goodput in each part of a round trip, in bits a second.
        let bin = self.round_trip / BINS;
        let mut bins = Vec::new();
        let mut before = watch.meter.delivered().useful;
        for index in 1..=BINS * (BEFORE_ROUND_TRIPS + DARK_ROUND_TRIPS + AFTER_ROUND_TRIPS) {
            transfer.run(&mut network, from + bin * index, &mut watch)?;
            let useful = watch.meter.delivered().useful;
            bins.push((useful - before) as f64 * PAYLOAD as f64 * 8.0 / bin.as_secs_f64());
            before = useful;
        }
        let delivered = watch.meter.delivered();
        let all = ideal_bps(0.0);
        let remaining = all * f64::from(self.paths - 1) / f64::from(self.paths);
        let round_trips = |from: Instant, to: Instant| (to - from).as_secs_f64() / self.round_trip.as_secs_f64();
        let timeline = bins.iter().map(|bps| bps / all).collect();
        let bins = &bins[(BINS * BEFORE_ROUND_TRIPS) as usize..];
        let dark_bins = (BINS * DARK_ROUND_TRIPS) as usize;
        let poor = bins[..dark_bins].iter().rposition(|bps| *bps < RECOVERED * remaining).map_or(0, |bin| bin + 1);
        let silent = watch.last_lost.map_or(0.0, |at| round_trips(watch.failed_at, at));
        let mean = |bins: &[f64]| bins.iter().sum::<f64>() / bins.len() as f64;
        let settled = &bins[2 * BINS as usize..dark_bins];
        let (blind_rtt, return_rtt) = match (watch.first_answer, watch.first_data) {
            (Some(answer), Some(data)) => (round_trips(back_at, answer), round_trips(answer, data)),
            _ => (f64::INFINITY, f64::INFINITY),
        };
        let result = FailureResult {
            recovery_rtt: (poor as f64 / f64::from(BINS)).max(silent),
            return_rtt,
            blind_rtt,
            capacity_fraction: mean(settled) / remaining,
            worst_fraction: settled.iter().copied().fold(f64::INFINITY, f64::min) / remaining,
            restored_fraction: mean(&bins[dark_bins + (2 * BINS + blind_rtt.min(10.0) as u32 * BINS) as usize..]) / all,
            lost_frames: watch.lost,
            spurious_fraction: delivered.spurious_fraction(),
            qp_errors: transfer.errors(&mut network),
            timeline,
        };
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}

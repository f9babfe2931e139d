//! Goodput by loss and round trip: selective repeat beside go-back-N.

use crate::congestion::Rate;
use crate::time::{Duration, Instant};
use crate::transport::{Endpoint, Recovery, RecoverySettings};

use super::goodput::DataMeter;
use super::link::{Bursts, Faults, LinkProfile};
use super::network::{LinkEnd, Network};
use super::random::Random;
use super::transfer::{Operation, Transfer, TransferError, TransferPlan};

/// One cell of the table of losses and round trips: an operation over a link that loses, with one kind of recovery.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What is done.
    pub operation: Operation,
    /// Selective repeat, or go-back-N with rxe's window of 128.
    pub recovery: Recovery,
    /// The share of frames that the link loses, each way.
    pub loss: f64,
    /// In bursts of eight on average, rather than each by itself.
    pub bursts: bool,
    /// The round trip.
    pub round_trip: Duration,
}

/// What a cell came to.
#[derive(Clone, Copy, Debug)]
pub struct CellResult {
    /// Payload that arrived for the first time and was kept, in bits a second.
    pub goodput_bps: f64,
    /// Payload of completed messages, in bits a second.
    pub completed_bps: f64,
    /// rate × payload share of a frame × (1 − loss), in bits a second.
    pub ideal_bps: f64,
    /// Packets sent again although the first had arrived, as a share of all data packets that arrived.
    pub spurious_fraction: f64,
    /// The largest that recovery's memory on both ends was, at any millisecond.
    pub memory_bytes: usize,
    /// Frames that nodes sent.
    pub frames: u64,
}

/// The link's rate, Ethernet frame bytes a second without preamble: 10 Gb/s.
pub(super) const RATE: u64 = 1_250_000_000;

pub(super) const PAYLOAD: u64 = 4096;

/// Ethernet, IPv4, UDP, BTH, payload, ICRC: a MIDDLE packet as the IBTA has it.
pub(super) const FRAME: u64 = 14 + 20 + 8 + 12 + PAYLOAD + 4;

/// Until all is in motion, from when the peers know each other: losses of losses of losses are being repaired.
const WARM_UP_ROUND_TRIPS: u32 = 8;
const WARM_UP_AT_LEAST: Duration = Duration::from_millis(50);

/// By when the peers know each other: the first packets may be lost, and then a timeout passes.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);

/// What is measured: twenty round trips, and enough packets that chance evens out.
const MEASURED_ROUND_TRIPS: u32 = 20;
const MEASURED_AT_LEAST: Duration = Duration::from_millis(250);

impl Cell {
    /// The losses and round trips of the table.
    pub const LOSSES: [f64; 4] = [0.0001, 0.001, 0.01, 0.05];
    /// In milliseconds.
    pub const ROUND_TRIPS_MS: [u64; 4] = [1, 10, 40, 100];

    fn faults(&self) -> Faults {
        match self.bursts {
            false => Faults { loss: self.loss, ..Faults::NONE },
            true => {
                let leave = 1.0 / 8.0;
                let enter = leave * self.loss / (1.0 - self.loss);
                Faults { bursts: Some(Bursts { enter, leave, loss: 1.0 }), ..Faults::NONE }
            }
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`TransferError::GaveUp`], as go-back-N does where every burst takes all that it sends again; anything else is wrong: a
    /// completion out of order, or memory that is not what it must be.
    pub fn run(&self, seed: u64) -> Result<CellResult, TransferError> {
        let mut network = Network::new(seed);
        let nodes = [0, 1].map(|node| {
            let mut random = Random::new(seed, 10 + node);
            network.add_node(Endpoint::new([0; 32].map(|_: u8| random.u32() as u8)))
        });
        let profile = LinkProfile {
            bytes_per_second: RATE,
            delay: self.round_trip / 2,
            queue_bytes: u64::MAX,
            ecn_threshold_bytes: None,
            faults: self.faults(),
        };
        for (from, to) in [(0, 1), (1, 0)] {
            network.add_link(LinkEnd::Node(nodes[from]), LinkEnd::Node(nodes[to]), profile.clone());
        }
        let selective = self.recovery != Recovery::GoBackN;
        let message_bytes = if self.operation == Operation::Read { 8 << 20 } else { 1 << 16 };
        let plan = TransferPlan {
            operation: self.operation,
            message_bytes,
            outstanding: if self.operation == Operation::Read { 160 } else { 16 << 10 },
            region_bytes: 256 << 20,
            recovery: RecoverySettings {
                recovery: self.recovery,
                window: RecoverySettings::MAX_WINDOW,
                rate: selective.then_some(Rate::from_bits(8 * RATE)),
                ..RecoverySettings::default()
            },
            // 4.3 s / 67 ms / 134 ms: go-back-N must not time out before an answer can be there.
            timeout: if self.round_trip >= Duration::from_millis(40) { 16 } else { 14 },
        };
        let mut transfer = Transfer::new(&mut network, nodes, plan, seed);
        let mut watch = DataMeter::default();
        while selective && !transfer.is_extended(&mut network) {
            if network.now() > Instant::ZERO + KNOWN_WITHIN {
                return Err(TransferError::Wrong("the peers do not find out that both repeat selectively".into()));
            }
            let next = network.now() + Duration::from_millis(1);
            transfer.run(&mut network, next, &mut watch)?;
        }
        let warm_up = (self.round_trip * WARM_UP_ROUND_TRIPS).max(WARM_UP_AT_LEAST);
        let begin = network.now() + warm_up;
        transfer.run(&mut network, begin, &mut watch)?;
        let from =
            (network.now(), watch.delivered(&transfer, self.operation, &mut network), transfer.completed_bytes());
        let measured = (self.round_trip * MEASURED_ROUND_TRIPS).max(MEASURED_AT_LEAST);
        let end = network.now() + measured;
        let mut memory_bytes = 0;
        while network.now() < end {
            let next = (network.now() + Duration::from_millis(1)).min(end);
            transfer.run(&mut network, next, &mut watch)?;
            memory_bytes = memory_bytes.max(transfer.memory_bytes(&mut network));
        }
        let seconds = (network.now() - from.0).as_secs_f64();
        let delivered = watch.delivered(&transfer, self.operation, &mut network);
        let completed_bps = (transfer.completed_bytes() - from.2) as f64 * 8.0 / seconds;
        let goodput_bps = match selective {
            true => (delivered.useful - from.1.useful) as f64 * PAYLOAD as f64 * 8.0 / seconds,
            false => completed_bps,
        };
        let result = CellResult {
            goodput_bps,
            completed_bps,
            ideal_bps: RATE as f64 * 8.0 * PAYLOAD as f64 / FRAME as f64 * (1.0 - self.loss),
            spurious_fraction: delivered.twice as f64 / delivered.useful.max(1) as f64,
            memory_bytes,
            frames: network.tally().sent,
        };
        transfer.finish(&mut network, &mut watch)?;
        Ok(result)
    }
}

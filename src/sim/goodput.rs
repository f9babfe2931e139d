use crate::congestion::Rate;
use crate::time::{Duration, Instant};
use crate::transport::RecoverySettings;
use crate::wire::{Opcode, Operation as WireOperation};

use super::frame_pool::Condition;
use super::network::{Network, NodeId, Observer, bth_offset};
use super::transfer::{Operation, Transfer, TransferError, TransferPlan};

/// Ethernet frame bytes a second without preamble that a network carries: 10 Gb/s.
pub(super) const RATE: u64 = 1_250_000_000;

pub(super) const PAYLOAD: u64 = 4096;

/// Ethernet, IPv4, UDP, BTH, payload, ICRC: a MIDDLE packet as the IBTA has it.
const FRAME: u64 = 14 + 20 + 8 + 12 + PAYLOAD + 4;

/// What a transfer came to.
#[derive(Clone, Copy, Debug)]
pub struct Goodput {
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

/// The payload that a network of [`RATE`] carries when it loses a share of `loss`, in bits a second.
pub(super) fn ideal_bps(loss: f64) -> f64 {
    RATE as f64 * 8.0 * PAYLOAD as f64 / FRAME as f64 * (1.0 - loss)
}

/// A transfer that keeps a network of [`RATE`] busy over a round trip of 100 ms, with `paced` at that rate.
pub(super) fn plan(operation: Operation, recovery: RecoverySettings, paced: bool, timeout: u8) -> TransferPlan {
    TransferPlan {
        operation,
        message_bytes: if operation == Operation::Read { 8 << 20 } else { 1 << 16 },
        outstanding: if operation == Operation::Read { 160 } else { 16 << 10 },
        region_bytes: 256 << 20,
        recovery: RecoverySettings {
            window: RecoverySettings::MAX_WINDOW,
            rate: paced.then_some(Rate::from_bits(8 * RATE)),
            ..recovery
        },
        timeout,
    }
}

/// Has a transfer go on for `span`, and says what it came to. `loss` is the share of frames that the network loses.
///
/// # Errors
/// What went wrong in the transfer.
pub(super) fn measure<O: Observer + AsRef<DataMeter>>(
    transfer: &mut Transfer,
    network: &mut Network,
    watch: &mut O,
    span: Duration,
    loss: f64,
) -> Result<Goodput, TransferError> {
    let from = (network.now(), watch.as_ref().delivered(transfer, network), transfer.completed_bytes());
    let end = network.now() + span;
    let mut memory_bytes = 0;
    while network.now() < end {
        let next = (network.now() + Duration::from_millis(1)).min(end);
        transfer.run(network, next, watch)?;
        memory_bytes = memory_bytes.max(transfer.memory_bytes(network));
    }
    let seconds = (network.now() - from.0).as_secs_f64();
    let delivered = watch.as_ref().delivered(transfer, network);
    Ok(Goodput {
        goodput_bps: (delivered.useful - from.1.useful) as f64 * PAYLOAD as f64 * 8.0 / seconds,
        completed_bps: (transfer.completed_bytes() - from.2) as f64 * 8.0 / seconds,
        ideal_bps: ideal_bps(loss),
        spurious_fraction: delivered.spurious_fraction(),
        memory_bytes,
        frames: network.tally().sent,
    })
}

/// Counts packets with data as they arrive.
#[derive(Debug, Default)]
pub(super) struct DataMeter {
    arrived: u64,
}

/// Data packets that arrived, so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivered {
    /// For the first time, and were kept.
    pub useful: u64,
    /// Once more.
    pub twice: u64,
}

impl Delivered {
    /// Those that came once more, as a share of those that were kept.
    pub fn spurious_fraction(&self) -> f64 {
        self.twice as f64 / self.useful.max(1) as f64
    }
}

impl DataMeter {
    /// What arrived of a transfer so far.
    pub fn delivered(&self, transfer: &Transfer, network: &mut Network) -> Delivered {
        let [requester, responder] = transfer.counters(network);
        let (twice, refused) = match transfer.operation() {
            Operation::Read => (requester.stray_response, 0),
            _ => (responder.duplicate_request, responder.out_of_seq_request + responder.reorder_overflow),
        };
        Delivered { useful: self.arrived.saturating_sub(twice + refused), twice }
    }
}

/// Whether a frame carries data: a READ response, or a request that is no READ.
pub(super) fn is_data(frame: &[u8]) -> bool {
    let operation = Opcode(frame[bth_offset(frame)]).operation();
    matches!(operation, WireOperation::Send | WireOperation::Write | WireOperation::ReadResponse)
}

impl AsRef<DataMeter> for DataMeter {
    fn as_ref(&self) -> &DataMeter {
        self
    }
}

impl Observer for DataMeter {
    fn arriving(&mut self, _now: Instant, _node: NodeId, frame: &[u8], _condition: Condition) {
        self.arrived += u64::from(is_data(frame));
    }
}

use uroce::congestion::{CongestionControl, Rate};
use uroce::time::{Duration, Instant};
use uroce::transport::RecoverySettings;
use uroce::wire::{Bth, Opcode, Operation, PathMtu, Psn};
use zerocopy::FromBytes;

use super::frame_pool::Condition;
use super::network::{Network, NodeId, Observer, bth_offset};
use super::transfer::{Transfer, TransferError, TransferOperation, TransferPlan};

/// The rate of a network: 10 Gb/s, in bytes a second of Ethernet frames without preamble.
pub(super) const RATE: u64 = 1_250_000_000;

pub(super) const PAYLOAD: u64 = 4096;

/// Length of the frame of a MIDDLE packet, in bytes: Ethernet, IPv4, UDP, BTH, payload, ICRC.
pub(super) const FRAME: u64 = frame_bytes(PAYLOAD);

/// Length of a MIDDLE packet's frame with so much payload, in bytes.
const fn frame_bytes(payload: u64) -> u64 {
    14 + 20 + 8 + 12 + payload + 4
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Goodput {
    /// Payload that arrived for the first time, in bits a second: each PSN counts once, however often it was sent.
    pub goodput_bps: f64,
    /// Payload of completed messages, in bits a second.
    pub completed_bps: f64,
    /// rate × payload share of a frame × (1 − loss), in bits a second.
    pub ideal_bps: f64,
    /// Data packets that arrived again, as a share of those that arrived for the first time.
    pub spurious_fraction: f64,
    /// The largest recovery memory of both ends together, in bytes, sampled every millisecond.
    pub memory_bytes: usize,
    /// The number of frames that nodes sent.
    pub frames: u64,
}

/// The payload that a network of [`RATE`] carries when it loses a share of `loss` of its frames, in bits a second.
pub(super) fn ideal_bps(loss: f64) -> f64 {
    ideal_bps_of(PAYLOAD, loss)
}

/// The same of packets with this payload, in bytes.
pub(super) fn ideal_bps_of(payload: u64, loss: f64) -> f64 {
    RATE as f64 * 8.0 * payload as f64 / frame_bytes(payload) as f64 * (1.0 - loss)
}

/// A transfer that keeps a network of [`RATE`] busy over a round trip of 100 ms, as far as its ends are able to.
///
/// With `paced` it keeps to that rate, or the congestion controller of `ends` finds it. `ends` are the recovery settings of the source of the bytes and of their
/// destination.
pub(super) fn plan(
    operation: TransferOperation,
    ends: [RecoverySettings; 2],
    paced: bool,
    timeout: u8,
) -> TransferPlan {
    let recovery = ends.map(|recovery| RecoverySettings {
        window: RecoverySettings::MAX_WINDOW,
        rate: (paced && recovery.congestion == CongestionControl::Fixed).then_some(Rate::from_bits(8 * RATE)),
        ..recovery
    });
    let (message_bytes, outstanding) = match (operation, paced) {
        (TransferOperation::Read, true) => (8 << 20, 160),
        (_, true) => (1 << 16, 16 << 10),
        // More than a window of 128 packets, and READs for a round trip of 100 ms at the full rate.
        (TransferOperation::Read, false) => (8 << 20, 20),
        (_, false) => (1 << 16, 64),
    };
    let region_bytes = if paced { 256 << 20 } else { message_bytes * outstanding };
    TransferPlan { path_mtu: PathMtu::Mtu4096, operation, message_bytes, outstanding, region_bytes, recovery, timeout }
}

/// Continues a transfer for `span`, and returns its result. `loss` is the share of frames that the network loses.
///
/// # Errors
/// The [`TransferError`] of the transfer.
pub(super) fn measure<O: Observer + AsRef<DataMeter>>(
    transfer: &mut Transfer,
    network: &mut Network,
    watch: &mut O,
    span: Duration,
    loss: f64,
) -> Result<Goodput, TransferError> {
    let from = (network.now(), watch.as_ref().delivered(), transfer.completed_bytes());
    let end = network.now() + span;
    let mut memory_bytes = 0;
    while network.now() < end {
        let next = (network.now() + Duration::from_millis(1)).min(end);
        transfer.run(network, next, watch)?;
        memory_bytes = memory_bytes.max(transfer.memory_bytes(network));
    }
    let seconds = (network.now() - from.0).as_secs_f64();
    let delivered = watch.as_ref().delivered().since(from.1);
    Ok(Goodput {
        goodput_bps: delivered.useful as f64 * PAYLOAD as f64 * 8.0 / seconds,
        completed_bps: (transfer.completed_bytes() - from.2) as f64 * 8.0 / seconds,
        ideal_bps: ideal_bps(loss),
        spurious_fraction: delivered.spurious_fraction(),
        memory_bytes,
        frames: network.tally().sent,
    })
}

/// Counts packets with data when they arrive at the nodes of one transfer.
///
/// It uses only the contents of frames, and so counts alike for all kinds of recovery.
#[derive(Debug)]
pub(super) struct DataMeter {
    /// A bit for each PSN that has arrived. The bits of the half of the PSN space after the newest are clear.
    arrived: Vec<u64>,
    /// The newest PSN that arrived.
    newest: Option<Psn>,
    delivered: Delivered,
}

/// The numbers of data packets that arrived so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Packets that arrived for the first time.
    pub useful: u64,
    /// Packets that had arrived before.
    pub twice: u64,
}

impl Delivered {
    /// The difference to `earlier` numbers.
    pub fn since(self, earlier: Delivered) -> Delivered {
        Delivered { useful: self.useful - earlier.useful, twice: self.twice - earlier.twice }
    }

    /// The packets that had arrived before, as a share of the others.
    pub fn spurious_fraction(&self) -> f64 {
        self.twice as f64 / self.useful.max(1) as f64
    }
}

impl Default for DataMeter {
    fn default() -> DataMeter {
        let arrived = vec![0; PSNS as usize / 64];
        DataMeter { arrived, newest: None, delivered: Delivered::default() }
    }
}

/// The number of PSNs.
const PSNS: u32 = 1 << 24;

impl DataMeter {
    /// The numbers of data packets so far.
    pub fn delivered(&self) -> Delivered {
        self.delivered
    }

    fn note(&mut self, psn: Psn) {
        let newest = *self.newest.get_or_insert(psn.minus(1));
        if newest.is_before(psn) {
            for passed in 0..psn.since(newest) as u32 {
                let (word, bit) = place(newest.plus(passed + PSNS / 2));
                self.arrived[word] &= !bit;
            }
            self.newest = Some(psn);
        }
        let (word, bit) = place(psn);
        let count = if self.arrived[word] & bit == 0 { &mut self.delivered.useful } else { &mut self.delivered.twice };
        *count += 1;
        self.arrived[word] |= bit;
    }
}

/// The word and the bit of a PSN.
fn place(psn: Psn) -> (usize, u64) {
    (psn.value() as usize / 64, 1 << (psn.value() % 64))
}

/// Whether a frame carries data: a SEND, a WRITE or a READ response.
pub(super) fn is_data(frame: &[u8]) -> bool {
    let operation = Opcode(frame[bth_offset(frame)]).operation();
    matches!(operation, Operation::Send | Operation::Write | Operation::ReadResponse)
}

impl AsRef<DataMeter> for DataMeter {
    fn as_ref(&self) -> &DataMeter {
        self
    }
}

impl Observer for DataMeter {
    fn arriving(&mut self, _now: Instant, _node: NodeId, frame: &[u8], _condition: Condition) {
        if is_data(frame)
            && let Some(Ok(bth)) = frame.get(bth_offset(frame)..).map(Bth::ref_from_prefix)
        {
            self.note(bth.0.psn());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_psn_counts_once_a_lap_in_whatever_order_they_come() {
        let mut meter = DataMeter::default();
        let mut of = |numbers: &[u32]| {
            numbers.iter().for_each(|number| meter.note(Psn::new(0xff_fff0).plus(*number)));
            let Delivered { useful, twice } = meter.delivered();
            (useful, twice)
        };
        assert_eq!(of(&[0, 1, 5, 3, 300_000, 2]), (6, 0));
        // Go-back-N retransmits packets behind a gap, whether the receiver kept them or not.
        assert_eq!(of(&[4, 5, 6, 300_000]), (8, 2));
        let laps: Vec<u32> = (0..PSNS).step_by(1 << 20).map(|number| number + 0x10_0000).collect();
        assert_eq!(of(&laps), (24, 2));
        assert_eq!(of(&[1, 2, 3, 1]), (27, 3), "the same numbers one lap later are others");
    }
}

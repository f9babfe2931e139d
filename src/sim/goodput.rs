use crate::time::Instant;
use crate::wire::{Opcode, Operation as WireOperation};

use super::frame_pool::Condition;
use super::network::{Network, NodeId, Observer, bth_offset};
use super::transfer::{Operation, Transfer};

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

impl DataMeter {
    /// What arrived of a transfer so far.
    pub fn delivered(&self, transfer: &Transfer, operation: Operation, network: &mut Network) -> Delivered {
        let [requester, responder] = transfer.counters(network);
        let (twice, refused) = match operation {
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

impl Observer for DataMeter {
    fn arriving(&mut self, _now: Instant, _node: NodeId, frame: &[u8], _condition: Condition) {
        self.arrived += u64::from(is_data(frame));
    }
}

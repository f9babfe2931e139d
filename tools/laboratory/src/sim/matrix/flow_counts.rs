use std::collections::BTreeMap;

use uroce::time::Instant;

use crate::ethernet::is_marked;
use crate::sim::frame_pool::Condition;
use crate::sim::goodput::{DataMeter, is_data};
use crate::sim::network::{NodeId, Observer};

/// Counts what hosts send to each other, and what arrives marked.
#[derive(Default)]
pub(super) struct FlowCounts {
    /// The data packets from one host to another.
    sent: BTreeMap<[NodeId; 2], DataMeter>,
    /// Data packets that arrived, and those of them that were marked.
    arrived: u64,
    marked: u64,
}

impl FlowCounts {
    /// Data packets that were sent for the first time, and again.
    pub fn sent(&self) -> [u64; 2] {
        let each = self.sent.values().map(|meter| meter.delivered());
        each.fold([0, 0], |[first, again], one| [first + one.useful, again + one.twice])
    }

    /// The share of data packets that arrived marked.
    pub fn marked(&self) -> f64 {
        self.marked as f64 / self.arrived.max(1) as f64
    }
}

impl Observer for FlowCounts {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        if is_data(frame) {
            self.sent.entry([node, to]).or_default().arriving(now, node, frame, Condition::Intact);
        }
    }

    fn arriving(&mut self, _now: Instant, _node: NodeId, frame: &[u8], _condition: Condition) {
        if is_data(frame) {
            (self.arrived, self.marked) = (self.arrived + 1, self.marked + u64::from(is_marked(frame)));
        }
    }
}

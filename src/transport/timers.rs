use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Instant;
use crate::wire::Qpn;

/// When which queue pair wants to be woken. An entry may be early (the deadline moved on since): whoever is woken looks
/// at its own deadline. So a deadline that moves with every ACK costs nothing until it would have fired.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Timers {
    pub fn arm(&mut self, at: Instant, qpn: Qpn) {
        self.heap.push(Reverse((at, qpn.value())));
    }

    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The next entry that is due, removed.
    pub fn pop_due(&mut self, now: Instant) -> Option<Qpn> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, qpn))| Qpn::new(qpn))
    }
}

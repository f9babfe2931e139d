use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Instant;
use crate::wire::Qpn;

/// The deadlines of queue pairs. An entry can be early, when the deadline has moved on since: the queue pair that is
/// woken checks its own deadline. So a deadline that moves with every ACK costs nothing until it would have fired. A
/// deadline that moves forward leaves its entry behind; such entries are swept out before they become many.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Timers {
    pub fn arm(&mut self, at: Instant, qpn: Qpn) {
        self.heap.push(Reverse((at, qpn.value())));
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Keeps the entries for which `is_live` holds, and drops the others.
    pub fn sweep(&mut self, is_live: impl Fn(Instant, Qpn) -> bool) {
        self.heap.retain(|Reverse((at, qpn))| is_live(*at, Qpn::new(*qpn)));
    }

    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes the next entry, if it is due.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, qpn))| (at, Qpn::new(qpn)))
    }
}

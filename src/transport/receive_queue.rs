use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::Forked;
use crate::memory::Pd;

use super::srq::Srq;
use super::work::ReceiveRequest;

/// Where a queue pair takes receive requests from.
#[derive(Debug)]
pub(super) enum ReceiveQueue {
    /// A receive queue of its own.
    Own(VecDeque<ReceiveRequest>),
    /// A shared receive queue.
    Shared(Srq),
}

impl Default for ReceiveQueue {
    fn default() -> Self {
        ReceiveQueue::Own(VecDeque::new())
    }
}

impl ReceiveQueue {
    /// Removes the oldest request. The second value is the shared queue if it has just fallen below its limit.
    pub fn take(&mut self, shared: &mut SharedReceiveQueues) -> (Option<ReceiveRequest>, Option<Srq>) {
        match self {
            ReceiveQueue::Own(queue) => (queue.pop_front(), None),
            ReceiveQueue::Shared(srq) => shared.take(*srq),
        }
    }

    /// Gives back a request that was taken and not used: it is the oldest again.
    pub fn put_back(&mut self, request: ReceiveRequest, shared: &mut SharedReceiveQueues) {
        match self {
            ReceiveQueue::Own(queue) => queue.push_front(request),
            ReceiveQueue::Shared(srq) => {
                if let Ok(queue) = shared.find(*srq) {
                    queue.requests.push_front(request);
                }
            }
        }
    }

    /// The oldest request, which stays in the queue.
    pub fn front<'a>(&'a self, shared: &'a SharedReceiveQueues) -> Option<&'a ReceiveRequest> {
        match self {
            ReceiveQueue::Own(queue) => queue.front(),
            ReceiveQueue::Shared(srq) => shared.queues.get(&srq.0)?.requests.front(),
        }
    }
}

/// All shared receive queues of an endpoint (IBTA 10.2.9.2).
#[derive(Debug, Default)]
pub(super) struct SharedReceiveQueues {
    queues: FxHashMap<u32, Shared>,
    next: u32,
}

#[derive(Debug)]
struct Shared {
    pd: Pd,
    capacity: usize,
    /// When fewer requests are left, an event reports it, once; 0 for never.
    limit: usize,
    requests: VecDeque<ReceiveRequest>,
    queue_pairs: u32,
}

/// Why an operation on a shared receive queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrqError {
    /// There is no shared receive queue with this number.
    #[error("there is no shared receive queue {}", .0.0)]
    NoSuchSrq(Srq),
    /// This many queue pairs still use the queue.
    #[error("{0} queue pairs use the shared receive queue")]
    InUse(u32),
    /// The queue is full with this many requests.
    #[error("the shared receive queue is full with {0} requests")]
    Full(usize),
    /// The capacity is 0, above 65536, or too small for the queue; or the limit is above the capacity.
    #[error("a capacity or limit of {0} requests is out of range")]
    Size(usize),
    /// The device was opened by the parent of this process; what a child inherits by fork(2) is dead.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl SharedReceiveQueues {
    pub fn create(&mut self, pd: Pd, capacity: usize) -> Result<Srq, SrqError> {
        if !(1..=super::Capabilities::MAX_REQUESTS).contains(&capacity) {
            return Err(SrqError::Size(capacity));
        }
        self.next += 1;
        let queue = Shared { pd, capacity, limit: 0, requests: VecDeque::new(), queue_pairs: 0 };
        self.queues.insert(self.next, queue);
        Ok(Srq(self.next))
    }

    pub fn destroy(&mut self, srq: Srq) -> Result<(), SrqError> {
        match self.find(srq)?.queue_pairs {
            0 => {
                self.queues.remove(&srq.0);
                Ok(())
            }
            users => Err(SrqError::InUse(users)),
        }
    }

    pub fn post(&mut self, srq: Srq, request: ReceiveRequest) -> Result<(), SrqError> {
        let queue = self.find(srq)?;
        if queue.requests.len() >= queue.capacity {
            return Err(SrqError::Full(queue.capacity));
        }
        queue.requests.push_back(request);
        Ok(())
    }

    /// Sets the limit that arms the event (IBTA 10.2.9.4).
    pub fn arm(&mut self, srq: Srq, limit: usize) -> Result<(), SrqError> {
        let queue = self.find(srq)?;
        if limit > queue.capacity {
            return Err(SrqError::Size(limit));
        }
        queue.limit = limit;
        Ok(())
    }

    /// Changes the queue's capacity (IBTA 11.2.3.3).
    pub fn resize(&mut self, srq: Srq, capacity: usize) -> Result<(), SrqError> {
        let queue = self.find(srq)?;
        let least = queue.requests.len().max(queue.limit).max(1);
        if !(least..=super::Capabilities::MAX_REQUESTS).contains(&capacity) {
            return Err(SrqError::Size(capacity));
        }
        queue.capacity = capacity;
        Ok(())
    }

    /// The queue's capacity and its limit, in requests.
    pub fn query(&mut self, srq: Srq) -> Result<(usize, usize), SrqError> {
        self.find(srq).map(|queue| (queue.capacity, queue.limit))
    }

    /// Counts one more queue pair that uses the queue.
    pub fn attach(&mut self, srq: Srq) -> Result<(), SrqError> {
        self.find(srq).map(|queue| queue.queue_pairs += 1)
    }

    /// Counts one queue pair fewer that uses the queue.
    pub fn detach(&mut self, srq: Srq) {
        if let Ok(queue) = self.find(srq) {
            queue.queue_pairs -= 1;
        }
    }

    /// The protection domain of the queue's requests.
    pub fn pd(&self, srq: Srq) -> Option<Pd> {
        self.queues.get(&srq.0).map(|queue| queue.pd)
    }

    fn take(&mut self, srq: Srq) -> (Option<ReceiveRequest>, Option<Srq>) {
        let Ok(queue) = self.find(srq) else { return (None, None) };
        if mutated!("srq-empty-too-early") && queue.requests.len() == 1 {
            return (None, None);
        }
        if mutated!("srq-used-from-the-end") {
            queue.requests.rotate_right(1);
        }
        let request = queue.requests.pop_front();
        let below = request.is_some()
            && queue.limit > 0
            && queue.requests.len() < queue.limit + usize::from(mutated!("srq-limit-off-by-one"));
        if below {
            queue.limit = if mutated!("srq-limit-comes-again") { queue.limit } else { 0 };
        }
        (request, below.then_some(srq))
    }

    fn find(&mut self, srq: Srq) -> Result<&mut Shared, SrqError> {
        self.queues.get_mut(&srq.0).ok_or(SrqError::NoSuchSrq(srq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_event_comes_once_when_fewer_than_the_limit_are_left() {
        let mut queues = SharedReceiveQueues::default();
        let srq = queues.create(Pd(1), 4).unwrap();
        for wr_id in 0..4 {
            queues.post(srq, ReceiveRequest { wr_id, sges: Default::default() }).unwrap();
        }
        assert_eq!(queues.post(srq, ReceiveRequest { wr_id: 9, sges: Default::default() }), Err(SrqError::Full(4)));
        for (capacity, possible) in [(3, false), (5, true), (0, false), (4, true), (1 << 17, false)] {
            assert_eq!(queues.resize(srq, capacity).is_ok(), possible, "{capacity}");
        }
        queues.arm(srq, 3).unwrap();
        let mut queue = ReceiveQueue::Shared(srq);
        let taken: Vec<_> = (0..5).map(|_| queue.take(&mut queues)).map(|(r, e)| (r.map(|r| r.wr_id), e)).collect();
        assert_eq!(taken, [(Some(0), None), (Some(1), Some(srq)), (Some(2), None), (Some(3), None), (None, None)]);
        queues.attach(srq).unwrap();
        assert_eq!(queues.destroy(srq), Err(SrqError::InUse(1)));
        queues.detach(srq);
        queues.destroy(srq).unwrap();
        assert_eq!(queues.destroy(srq), Err(SrqError::NoSuchSrq(srq)));
    }
}

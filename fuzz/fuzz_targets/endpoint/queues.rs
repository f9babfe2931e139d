use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use uroce::transport::{Completion, CompletionKind, CompletionRing, Service, Srq, Status};
use uroce::wire::Qpn;

/// Completion queues of a node; the last is so short that it overflows.
pub const CQS: usize = 3;
const CQ_CAPACITY: [usize; CQS] = [4096, 4096, 6];

/// What is known of a queue pair without looking into it: what was posted and has not been reported.
pub struct QueuePairModel {
    pub qpn: Qpn,
    pub service: Service,
    pub srq: Option<Srq>,
    pub cqs: [usize; 2],
    pub peer: Option<(usize, Qpn)>,
    pub sends: VecDeque<Posted>,
    pub receives: VecDeque<u64>,
    /// A send request has failed: from now on they are flushed, all of them.
    pub failed: bool,
    /// The latest request that it took from its shared queue and reported.
    last_shared: Option<u64>,
    pub last_wqe_events: u32,
    /// Its requests may wait without a timer.
    pub may_stall: bool,
}

pub struct Posted {
    pub wr_id: u64,
    pub signaled: bool,
    pub kind: CompletionKind,
}

/// A shared receive queue: what was posted and has not been reported.
pub struct SharedModel {
    pub srq: Srq,
    pub capacity: usize,
    pub limit: usize,
    pub posted: BTreeSet<u64>,
}

/// All queues of a node.
pub struct Queues {
    pub cqs: [Arc<CompletionRing>; CQS],
    pub queue_pairs: Vec<QueuePairModel>,
    pub shared: Vec<SharedModel>,
    /// Completions by kind and status, for whoever wants to know how far a run came.
    pub seen: BTreeMap<(u8, u8), u64>,
    next_wr_id: u64,
}

impl QueuePairModel {
    pub fn new(qpn: Qpn, service: Service, srq: Option<Srq>, cqs: [usize; 2]) -> QueuePairModel {
        QueuePairModel {
            qpn,
            service,
            srq,
            cqs,
            peer: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            failed: false,
            last_shared: None,
            last_wqe_events: 0,
            may_stall: false,
        }
    }

    /// As after a reset: what was posted is forgotten.
    pub fn reset(&mut self) {
        *self = QueuePairModel { peer: self.peer, ..Self::new(self.qpn, self.service, self.srq, self.cqs) };
    }

    /// A send request is reported: in order, each once, and flushed after the first that failed.
    fn sent(&mut self, done: &Completion, may_be_lost: bool) {
        loop {
            let next =
                self.sends.pop_front().unwrap_or_else(|| panic!("{done:?} was reported before, or never posted"));
            if next.wr_id == done.wr_id {
                assert_eq!(next.kind, done.kind, "{done:?}");
                assert!(next.signaled || done.status != Status::Success, "{done:?} is not signaled");
                break;
            }
            let silent = !next.signaled && !self.failed;
            assert!(silent || may_be_lost, "{done:?} was reported before {}", next.wr_id);
        }
        if self.failed {
            assert_eq!(done.status, Status::WrFlush, "{done:?} after a request that failed");
        }
        self.failed |= done.status != Status::Success;
    }

    /// A receive request of its own is reported: in order, each once.
    fn received(&mut self, done: &Completion, may_be_lost: bool) {
        loop {
            let next = self.receives.pop_front();
            let next = next.unwrap_or_else(|| panic!("{done:?} was reported before, or never posted"));
            if next == done.wr_id {
                break;
            }
            assert!(may_be_lost, "{done:?} was reported before {next}");
        }
    }
}

impl Queues {
    pub fn new() -> Queues {
        Queues {
            cqs: CQ_CAPACITY.map(|capacity| Arc::new(CompletionRing::new(capacity, || {}))),
            queue_pairs: Vec::new(),
            shared: Vec::new(),
            seen: BTreeMap::new(),
            next_wr_id: 1,
        }
    }

    pub fn wr_id(&mut self) -> u64 {
        self.next_wr_id += 1;
        self.next_wr_id
    }

    pub fn find(&mut self, qpn: Qpn) -> Option<&mut QueuePairModel> {
        self.queue_pairs.iter_mut().find(|qp| qp.qpn == qpn)
    }

    pub fn find_shared(&mut self, srq: Srq) -> Option<&mut SharedModel> {
        self.shared.iter_mut().find(|shared| shared.srq == srq)
    }

    /// Takes every completion and holds it against what was posted.
    pub fn poll(&mut self) {
        for index in 0..CQS {
            while let Some(done) = self.cqs[index].poll() {
                *self.seen.entry((done.kind as u8, done.status as u8)).or_default() += 1;
                self.completed(index, &done);
            }
        }
    }

    fn completed(&mut self, index: usize, done: &Completion) {
        let may_be_lost = self.cqs[index].has_overflowed();
        let qp = self.queue_pairs.iter_mut().find(|qp| qp.qpn == done.qpn);
        let qp = qp.unwrap_or_else(|| panic!("{done:?} is of no queue pair"));
        let is_receive = matches!(done.kind, CompletionKind::Receive | CompletionKind::ReceiveWriteWithImmediate);
        assert_eq!(index, qp.cqs[usize::from(is_receive)], "{done:?} is in another completion queue");
        if !is_receive {
            return qp.sent(done, may_be_lost);
        }
        let Some(srq) = qp.srq else { return qp.received(done, may_be_lost) };
        // Each queue pair takes them in order.
        assert!(qp.last_shared.replace(done.wr_id) < Some(done.wr_id), "{done:?} is out of order");
        let shared = self.shared.iter_mut().find(|shared| shared.srq == srq).expect("it is in use");
        assert!(shared.posted.remove(&done.wr_id), "{done:?} was reported before, or never posted");
    }

    /// After everything was flushed: panics when a request was not reported that had to be.
    pub fn check_all_reported(&self) {
        for qp in &self.queue_pairs {
            let [send_cq, receive_cq] = qp.cqs.map(|index| &self.cqs[index]);
            if !send_cq.has_overflowed() {
                let missing = qp.sends.iter().find(|posted| posted.signaled);
                let missing = missing.map(|posted| (posted.wr_id, posted.kind));
                assert_eq!(missing, None, "a send request of {} was not reported", qp.qpn);
            }
            if !receive_cq.has_overflowed() && qp.srq.is_none() {
                assert_eq!(qp.receives, [], "a receive request of {} was not reported", qp.qpn);
            }
        }
    }
}

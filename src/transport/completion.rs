use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use crate::sync::{ArrayQueue, PoisonError, RwLock, RwLockReadGuard};
use crate::time::Instant;
use crate::wire::{Key, Qpn};

use super::cause::Cause;

/// How a work request ended; the values of `enum ibv_wc_status` (IBTA 10.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The request completed without error.
    Success = 0,
    /// The message is longer than the receive request, or than the queue pair can carry.
    LocalLength = 1,
    /// A local fault of the queue pair's processing.
    LocalQpOperation = 2,
    /// A local range is not registered, or not for this access.
    LocalProtection = 4,
    /// The queue pair went to the error state before the request was complete.
    WrFlush = 5,
    /// A memory window could not be bound, or a key not invalidated.
    MwBind = 6,
    /// The answer is impossible for the request.
    BadResponse = 7,
    /// A peer's request failed on our memory while it was being served.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer refused the access to its memory.
    RemoteAccess = 10,
    /// The peer failed to execute the request.
    RemoteOperation = 11,
    /// The peer did not answer, and all retries are used.
    RetryExceeded = 12,
    /// The peer had no receive request, and all RNR retries are used.
    RnrRetryExceeded = 13,
}

impl std::fmt::Display for Status {
    /// ibverbs' name and number, and `ibv_wc_status_str`'s words.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, words) = match self {
            Status::Success => ("IBV_WC_SUCCESS", "success"),
            Status::LocalLength => ("IBV_WC_LOC_LEN_ERR", "local length error"),
            Status::LocalQpOperation => ("IBV_WC_LOC_QP_OP_ERR", "local QP operation error"),
            Status::LocalProtection => ("IBV_WC_LOC_PROT_ERR", "local protection error"),
            Status::WrFlush => ("IBV_WC_WR_FLUSH_ERR", "Work Request Flushed Error"),
            Status::MwBind => ("IBV_WC_MW_BIND_ERR", "memory management operation error"),
            Status::BadResponse => ("IBV_WC_BAD_RESP_ERR", "bad response error"),
            Status::LocalAccess => ("IBV_WC_LOC_ACCESS_ERR", "local access error"),
            Status::RemoteInvalidRequest => ("IBV_WC_REM_INV_REQ_ERR", "remote invalid request error"),
            Status::RemoteAccess => ("IBV_WC_REM_ACCESS_ERR", "remote access error"),
            Status::RemoteOperation => ("IBV_WC_REM_OP_ERR", "remote operation error"),
            Status::RetryExceeded => ("IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded"),
            Status::RnrRetryExceeded => ("IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded"),
        };
        write!(f, "{name} ({}), {words}", *self as u8)
    }
}

/// The operation that a completion is for; the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // named for the operations
pub enum CompletionKind {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindWindow = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Receive = 128,
    ReceiveWriteWithImmediate = 129,
}

/// The completion of one work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier that the program gave the work request.
    pub wr_id: u64,
    /// How the work request ended.
    pub status: Status,
    /// The operation of the work request.
    pub kind: CompletionKind,
    /// Bytes received, or transferred by a READ or atomic.
    pub byte_len: u32,
    /// The peer's immediate data, four bytes.
    pub immediate: Option<u32>,
    /// The R_Key that the peer's SEND invalidated.
    pub invalidated: Option<Key>,
    /// The queue pair of the work request.
    pub qpn: Qpn,
    /// The queue pair that sent the datagram; zero for connected queue pairs.
    pub source_qpn: Qpn,
    /// The network header that a datagram came with: the first 40 bytes of the buffer hold it. `None` without a datagram.
    pub network_header: Option<NetworkHeader>,
    /// Why the request failed, where more is known than its status says.
    pub cause: Option<Cause>,
    /// When the completion was added to its queue.
    pub time: Instant,
}

impl Completion {
    /// The completion of a send request.
    pub(super) fn send(wr_id: u64, qpn: Qpn, kind: CompletionKind, status: Status, byte_len: u32) -> Completion {
        Completion { status, kind, ..Completion::receive(wr_id, qpn, byte_len) }
    }

    /// The number that programs see as `vendor_err`: the cause's code, 0 without one.
    pub fn vendor_err(&self) -> u32 {
        self.cause.map_or(0, Cause::code)
    }

    /// The successful completion of a receive request that took `byte_len` bytes.
    pub(super) fn receive(wr_id: u64, qpn: Qpn, byte_len: u32) -> Completion {
        Completion {
            wr_id,
            status: Status::Success,
            kind: CompletionKind::Receive,
            byte_len,
            immediate: None,
            invalidated: None,
            qpn,
            source_qpn: Qpn::default(),
            network_header: None,
            cause: None,
            time: Instant::ZERO,
        }
    }
}

/// The network header of a datagram, which takes the place of the global routing header (IBTA A17.4.5.2; the kernel's
/// `enum rdma_network_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// The last 20 of the 40 bytes are an IPv4 header; the others are zero.
    Ipv4,
    /// All 40 bytes are an IPv6 header.
    Ipv6,
}

/// The completion for which a completion queue notifies next (IBTA 11.4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Notify {
    /// The queue does not notify.
    Never = 0,
    /// The queue notifies at the next solicited or failed completion.
    Solicited = 1,
    /// The queue notifies at the next completion.
    Next = 2,
}

/// A completion was lost: its queue was full, and is in error from now on (IBTA 11.6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overrun {
    /// Whether no other was lost before.
    pub is_first: bool,
}

/// A completion queue: a bounded ring that the transport fills and programs empty, at the same time.
///
/// A program that requests a notification and then finds no completion can sleep. The transport adds a completion and
/// then checks for a request. The order of these four keeps programs from sleeping while a completion waits, and so
/// does [`poll`](Self::poll), which never misses one.
pub struct CompletionRing {
    /// Adding and polling take the lock for reading, and never wait for each other. It is taken for writing to remove
    /// completions from the middle, or to replace the ring: rarely, and for a short time. A writer waits for nothing
    /// else meanwhile.
    ring: RwLock<ArrayQueue<Completion>>,
    /// Whether a full queue drops its oldest completion.
    ignores_overrun: bool,
    overflowed: AtomicBool,
    notify: AtomicU8,
    on_notify: Box<dyn Fn() + Send + Sync>,
}

impl CompletionRing {
    /// A queue of `capacity` completions, at least one. `on_notify` is called once for each
    /// [`request_notification`](CompletionRing::request_notification), in the thread that drives the transport.
    pub fn new(capacity: usize, on_notify: impl Fn() + Send + Sync + 'static) -> CompletionRing {
        CompletionRing {
            ring: RwLock::new(ArrayQueue::new(capacity.max(1))),
            ignores_overrun: false,
            overflowed: AtomicBool::new(false),
            notify: AtomicU8::new(Notify::Never as u8),
            on_notify: Box::new(on_notify),
        }
    }

    /// The same queue, but never in error: when it is full, a new completion replaces the oldest
    /// (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`).
    pub fn ignoring_overrun(self) -> CompletionRing {
        CompletionRing { ignores_overrun: true, ..self }
    }

    fn ring(&self) -> RwLockReadGuard<'_, ArrayQueue<Completion>> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the oldest completion. It waits only while the queue is being resized or cleared of a queue pair: if it
    /// returned `None` then, its program could sleep although a completion waits.
    pub fn poll(&self) -> Option<Completion> {
        if mutated!("poll-does-not-wait-for-changes", by "uroce-loom --test completions what_is_there_is_found") {
            return self.ring.try_read().ok()?.pop();
        }
        self.ring().pop()
    }

    /// Whether the queue holds no completion.
    pub fn is_empty(&self) -> bool {
        self.ring().is_empty()
    }

    /// The number of completions that the queue can hold.
    pub fn capacity(&self) -> usize {
        self.ring().capacity()
    }

    /// Changes the capacity to `capacity` completions, at least one (IBTA 11.2.8.4). Those in the queue stay, in order.
    ///
    /// # Errors
    /// The number of completions in the queue, when that is more than `capacity`; nothing is changed then.
    pub fn resize(&self, capacity: usize) -> Result<(), usize> {
        let to = ArrayQueue::new(capacity.max(1));
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if ring.len() > to.capacity() {
            return Err(ring.len());
        }
        while let Some(completion) = ring.pop() {
            to.push(completion).expect("there is room for all completions");
        }
        let old = std::mem::replace(&mut *ring, to);
        drop(ring);
        // Freeing a large ring takes a while.
        drop(old);
        Ok(())
    }

    /// Removes the completions of a queue pair; the others stay, in order.
    pub(super) fn forget(&self, qpn: Qpn) {
        let ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ring.len() {
            if let Some(completion) = ring.pop().filter(|completion| completion.qpn != qpn) {
                ring.push(completion).expect("there is room where a completion was removed");
            }
        }
    }

    /// Whether a completion was lost because the queue was full (IBTA 11.6.3.1). Then the queue is in error for good
    /// and accepts no more; those in it can be polled.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Requests one notification. A request for any completion outweighs one for solicited completions.
    pub fn request_notification(&self, notify: Notify) {
        self.notify.fetch_max(notify as u8, Ordering::AcqRel);
        // The fence comes before the program polls for the last time.
        if !mutated!("asks-without-a-fence", by "uroce-loom --test completions a_completion_is_not_slept_over") {
            fence(Ordering::SeqCst);
        }
    }

    /// Whether a notification is requested.
    pub fn wants_notification(&self) -> bool {
        self.notify.load(Ordering::Acquire) != Notify::Never as u8
    }

    /// Adds a completion. It is lost, with [`Overrun`], when the queue is full, or lost one before.
    pub(super) fn push(&self, completion: Completion, solicited: bool) -> Result<(), Overrun> {
        let urgent = solicited || completion.status != Status::Success;
        if self.ignores_overrun {
            let _ = self.ring().force_push(completion);
        } else if self.has_overflowed() || self.ring().push(completion).is_err() {
            return Err(Overrun { is_first: !self.overflowed.swap(true, Ordering::AcqRel) });
        }
        let wanted = if urgent { Notify::Solicited as u8 } else { Notify::Next as u8 };
        // The check follows the addition, in the one order that all threads see: the exchange that moved the ring's
        // tail is part of it.
        let early = mutated!("sleepers-are-looked-for-early", by "uroce-loom --test completions a_completion_is_not");
        let asked = self.notify.load(if early { Ordering::Acquire } else { Ordering::SeqCst });
        if asked >= wanted
            && asked != 0
            && self.notify.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            (self.on_notify)();
        }
        Ok(())
    }
}

impl std::fmt::Debug for CompletionRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ring = self.ring();
        write!(f, "CompletionRing({} of {})", ring.len(), ring.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn completion(status: Status) -> Completion {
        Completion::send(1, Qpn::new(2), CompletionKind::Send, status, 0)
    }

    #[test]
    fn notifies_once_a_request_and_solicited_requests_wait_for_solicited_or_failed_ones() {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let cq = CompletionRing::new(10, move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let notified = || count.swap(0, Ordering::Relaxed);
        cq.push(completion(Status::Success), false).unwrap();
        assert_eq!(notified(), 0, "nobody asked");
        cq.request_notification(Notify::Next);
        cq.push(completion(Status::Success), false).unwrap();
        cq.push(completion(Status::Success), false).unwrap();
        assert_eq!(notified(), 1);
        cq.request_notification(Notify::Solicited);
        cq.push(completion(Status::Success), false).unwrap();
        assert_eq!(notified(), 0);
        cq.push(completion(Status::Success), true).unwrap();
        assert_eq!(notified(), 1);
        cq.request_notification(Notify::Solicited);
        cq.push(completion(Status::WrFlush), false).unwrap();
        assert_eq!(notified(), 1);
    }

    #[test]
    fn a_full_queue_loses_the_new_completion_and_is_in_error() {
        let cq = CompletionRing::new(1, || {});
        assert_eq!(cq.push(completion(Status::Success), false), Ok(()));
        assert_eq!(cq.push(completion(Status::WrFlush), false), Err(Overrun { is_first: true }));
        assert!(cq.has_overflowed());
        assert_eq!(cq.poll().unwrap().status, Status::Success);
        assert_eq!(cq.poll(), None);
        assert_eq!(cq.push(completion(Status::Success), false), Err(Overrun { is_first: false }), "it is in error");
        assert_eq!(cq.poll(), None);
    }

    #[test]
    fn a_queue_that_ignores_overruns_has_the_latest_completions() {
        let cq = CompletionRing::new(2, || {}).ignoring_overrun();
        (1..6).for_each(|wr_id| assert_eq!(cq.push(of(1, wr_id), false), Ok(())));
        assert!(!cq.has_overflowed());
        assert_eq!(drain(&cq), [4, 5]);
    }

    /// What poll says while the ring is being changed decides whether a program sleeps.
    #[test]
    fn a_completion_is_found_although_the_queue_is_being_changed() {
        let cq = CompletionRing::new(2, || {});
        cq.push(of(1, 7), false).unwrap();
        let (tells, hears) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let changing = cq.ring.write().unwrap();
            scope.spawn(|| tells.send(cq.poll().map(|completion| completion.wr_id)).unwrap());
            // Long enough for the other thread to poll, which must not have an answer before this is over.
            let early = hears.recv_timeout(std::time::Duration::from_millis(50));
            drop(changing);
            assert_eq!(early.or_else(|_| hears.recv()), Ok(Some(7)));
        });
    }

    fn of(qpn: u32, wr_id: u64) -> Completion {
        Completion::send(wr_id, Qpn::new(qpn), CompletionKind::Send, Status::Success, 0)
    }

    fn drain(cq: &CompletionRing) -> Vec<u64> {
        std::iter::from_fn(|| cq.poll()).map(|completion| completion.wr_id).collect()
    }

    #[test]
    fn the_completions_of_one_queue_pair_are_taken_out_and_the_others_keep_their_order() {
        let cq = CompletionRing::new(6, || {});
        // Not at the beginning of the ring, and full in the end.
        (0..4).for_each(|wr_id| assert_eq!(cq.push(of(9, wr_id), false), Ok(())));
        drain(&cq);
        for (qpn, wr_id) in [(1, 10), (2, 20), (1, 11), (3, 30), (2, 21), (1, 12)] {
            assert_eq!(cq.push(of(qpn, wr_id), false), Ok(()));
        }
        cq.forget(Qpn::new(4));
        assert_eq!(cq.ring().len(), 6);
        cq.forget(Qpn::new(2));
        assert_eq!(drain(&cq), [10, 11, 30, 12]);
        cq.forget(Qpn::new(1));
        assert!(cq.is_empty() && !cq.has_overflowed());
    }

    #[test]
    fn a_queue_of_another_size_has_the_same_completions_and_never_too_few_places_for_them() {
        let cq = CompletionRing::new(2, || {});
        (1..3).for_each(|wr_id| assert_eq!(cq.push(of(1, wr_id), false), Ok(())));
        assert_eq!(cq.resize(5), Ok(()));
        assert_eq!(cq.capacity(), 5);
        (3..6).for_each(|wr_id| assert_eq!(cq.push(of(1, wr_id), false), Ok(())));
        assert_eq!(cq.resize(4), Err(5));
        assert_eq!(cq.capacity(), 5);
        assert_eq!(cq.poll().map(|completion| completion.wr_id), Some(1));
        assert_eq!(cq.resize(4), Ok(()));
        assert_eq!(drain(&cq), [2, 3, 4, 5]);
        assert_eq!((cq.resize(0), cq.capacity()), (Ok(()), 1), "there is always room for one");
    }

    #[test]
    fn completions_are_taken_once_and_in_order_while_the_queue_is_changed() {
        const COUNT: u64 = 20_000;
        let cq = CompletionRing::new(64, || {});
        let taken = std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut taken = Vec::new();
                while taken.len() < COUNT as usize {
                    taken.extend(cq.poll().map(|completion| completion.wr_id));
                }
                taken
            });
            for wr_id in 0..COUNT {
                while cq.ring().is_full() {
                    std::thread::yield_now();
                }
                cq.push(of(1, wr_id), false).unwrap();
                // Only the pusher changes it, as the engine does.
                match wr_id % 16 {
                    3 => cq.forget(Qpn::new(2)),
                    // Refused when the poller has fallen behind.
                    11 => {
                        let _ = cq.resize(64 + (wr_id % 7) as usize);
                    }
                    _ => {}
                }
            }
            poller.join().unwrap()
        });
        assert!(taken.into_iter().eq(0..COUNT));
    }
}

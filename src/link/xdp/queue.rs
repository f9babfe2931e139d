//! One queue of the interface: its socket and its four rings.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use xsk_rs::FrameDesc;
use xsk_rs::socket::{RxQueue, TxQueue};
use xsk_rs::umem::{CompQueue, FillQueue};

use super::CHUNK_CAPACITY;
use super::pool::Pool;
use super::room::Room;
use crate::time::Instant;

/// Descriptors that go to or come from a ring at a time. 64 packets are in two cache pages of descriptors; larger
/// batches gain nothing on veth.
pub(super) const BATCH: usize = 64;

/// A descriptor's flag: the packet continues in the next one (linux/if_xdp.h).
const XDP_PKT_CONTD: u32 = 1;

/// A socket bound to one queue.
pub(super) struct Queue {
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    /// Whether the kernel sets its need-wakeup flags; without them it must be woken every time.
    need_wakeup: bool,
    transmit_ring: u32,
    /// Receive chunks that the kernel has.
    in_kernel: u32,
    room: Room,
    staged: [FrameDesc; BATCH],
    staged_len: usize,
    scratch: [FrameDesc; BATCH],
}

/// The parts that a queue is made of.
pub(super) struct QueueParts {
    pub(super) tx: TxQueue,
    pub(super) rx: RxQueue,
    pub(super) fill: FillQueue,
    pub(super) completion: CompQueue,
    pub(super) need_wakeup: bool,
    pub(super) transmit_ring: u32,
    /// Chunks to receive into.
    pub(super) chunks: u32,
}

impl Queue {
    pub(super) fn new(parts: QueueParts) -> Queue {
        let QueueParts { tx, rx, fill, completion, need_wakeup, transmit_ring, chunks } = parts;
        Queue {
            tx,
            rx,
            fill,
            completion,
            need_wakeup,
            transmit_ring,
            in_kernel: 0,
            room: Room::new(chunks),
            staged: [FrameDesc::default(); BATCH],
            staged_len: 0,
            scratch: [FrameDesc::default(); BATCH],
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }

    /// The number of receive chunks that the kernel has, those in the receive ring included.
    pub(super) fn in_kernel(&self) -> u32 {
        self.in_kernel
    }

    /// The number of chunks that the kernel is short of.
    pub(super) fn wanted(&self) -> usize {
        self.room.level().saturating_sub(self.in_kernel) as usize
    }

    /// From now on the kernel has all of the queue's chunks.
    pub(super) fn keep_room(&mut self) {
        self.room.keep_all();
    }

    /// Looks how many descriptors wait in the receive ring.
    pub(super) fn note_waiting(&mut self, now: Instant) {
        self.room.note(self.rx.nb_avail_exact(), now);
    }

    /// Gives the kernel chunks to receive into, from the end of `free`.
    pub(super) fn refill(&mut self, free: &mut Vec<u32>, descriptors: &[FrameDesc]) {
        let mut number = self.wanted().min(free.len());
        while number > 0 {
            let batch = number.min(BATCH);
            let from = free.len() - batch;
            for (slot, &chunk) in self.scratch.iter_mut().zip(&free[from..]) {
                *slot = descriptors[chunk as usize];
            }
            // SAFETY: the chunks were free, hence nobody's, and leave `free` below; they are this UMEM's.
            let produced = unsafe { self.fill.produce(&self.scratch[..batch]) };
            if produced == 0 {
                // The ring holds all chunks, so this happens only while the kernel lags.
                break;
            }
            free.truncate(from);
            self.in_kernel += produced as u32;
            number -= batch;
        }
        if self.need_wakeup && self.fill.needs_wakeup() {
            // Zero-copy drivers that ran out of chunks wait for a call. Copy mode never asks for one.
            let _ = self.fill.wakeup(self.rx.fd_mut(), 0);
        }
    }

    /// Takes up to `budget` received descriptors, and at most a batch.
    pub(super) fn receive(&mut self, budget: usize) -> &[FrameDesc] {
        let budget = budget.min(BATCH);
        // SAFETY: this UMEM is the only one the socket has.
        let number = unsafe { self.rx.consume(&mut self.scratch[..budget]) };
        self.in_kernel -= number as u32;
        &self.scratch[..number]
    }

    /// Queues the frame of `len` bytes in the pair of chunks `first`, `second`; the tail, if there is one, lies at the
    /// second one's start.
    ///
    /// # Safety
    /// The caller must own the pair; the kernel owns it from now until it is completed.
    pub(super) unsafe fn transmit(&mut self, pool: &Arc<Pool>, first: FrameDesc, second: FrameDesc, len: usize) -> u8 {
        if self.staged_len + 2 > BATCH {
            self.submit();
        }
        let head = len.min(CHUNK_CAPACITY);
        let parts = if len > head { 2 } else { 1 };
        for (at, (mut descriptor, len)) in [(first, head), (second, len - head)].into_iter().take(parts).enumerate() {
            // SAFETY: the chunk is the caller's.
            unsafe { pool.set_len(&mut descriptor, len) };
            descriptor.set_options(if at + 1 < parts { XDP_PKT_CONTD } else { 0 });
            self.staged[self.staged_len] = descriptor;
            self.staged_len += 1;
        }
        parts as u8
    }

    /// Puts the queued descriptors into the ring, which has room for every chunk there is.
    fn submit(&mut self) {
        if self.staged_len == 0 {
            return;
        }
        // SAFETY: `transmit`'s callers gave their chunks up.
        let produced = unsafe { self.tx.produce(&self.staged[..self.staged_len]) };
        debug_assert_eq!(produced, self.staged_len, "the transmit ring holds all pairs");
        if produced == self.staged_len {
            self.staged_len = 0;
        }
    }

    /// Hands everything queued to the kernel, and returns the number of descriptors that it has not taken. The kernel
    /// can take a part only (its budget a call, or no memory): it is called again as long as it takes something.
    ///
    /// # Errors
    /// The kernel's error when it does not send at all, for example because the interface is gone.
    pub(super) fn kick(&mut self) -> io::Result<u32> {
        self.submit();
        let mut pending = self.pending();
        while pending > 0 && (!self.need_wakeup || self.tx.needs_wakeup()) {
            self.tx.wakeup()?;
            let left = self.pending();
            if left >= pending {
                return Ok(left);
            }
            pending = left;
        }
        // A driver that needs no waking takes the rest by itself.
        Ok(0)
    }

    /// The number of descriptors that the kernel has not taken yet.
    fn pending(&mut self) -> u32 {
        self.transmit_ring - self.tx.nb_free_exact()
    }

    /// Takes up to a batch of completed descriptors.
    pub(super) fn completed(&mut self) -> &[FrameDesc] {
        // SAFETY: this UMEM is the only one the socket has.
        let number = unsafe { self.completion.consume(&mut self.scratch) };
        &self.scratch[..number]
    }

    /// The kernel's own counters: dropped because a ring was full, because chunks were missing, and for other reasons;
    /// and transmit descriptors that it refused.
    pub(super) fn statistics(&self) -> [u64; 4] {
        match self.rx.fd().xdp_statistics() {
            Ok(s) => [s.rx_ring_full(), s.rx_fill_ring_empty_descs(), s.rx_dropped(), s.tx_invalid_descs()],
            Err(_) => [0; 4],
        }
    }
}

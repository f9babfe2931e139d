//! The memory that sockets receive into and send from (UMEM), and who owns which chunk of it.
//!
//! ```text
//!  chunk 0 … receive_chunks-1          one each: fill ring → kernel → receive ring → Frame → back
//!  then pairs of adjacent chunks       one pair a packet to send: free → lent → (waiting) → kernel → completed → free
//! ```
//!
//! A chunk is known by its number, and the owner of the number owns the bytes. The library's descriptors can be copied,
//! so they stay in this directory.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use xsk_rs::FrameDesc;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::umem::{Umem, UmemCreateError};

use super::{CHUNK_BYTES, HEADROOM_BYTES};
use crate::frame::{Frame, FramePool};

/// The tail's chunk number in the token of a frame that has none.
const NO_CHUNK: u32 = u32::MAX;

/// What [`Pool::new`] makes: the pool, the UMEM to bind sockets to, and the descriptors of all chunks by number.
pub(super) type Memory = (Arc<Pool>, Umem, Box<[FrameDesc]>);

/// The UMEM and the chunks that were given back to it.
pub(super) struct Pool {
    umem: Umem,
    /// Address of the UMEM's first byte.
    base: *mut u8,
    /// Receive chunks whose frames were dropped, until the link collects them.
    returned: ArrayQueue<u32>,
    /// Chunks that were given back so far, for the accounts.
    given_back: AtomicU64,
    receive_chunks: u32,
}

// SAFETY: `base` points into `umem`'s mapping, which lives as long as the pool; chunks are accessed only by the owner of
// their number, and the rest is Sync.
unsafe impl Send for Pool {}
// SAFETY: as above; `&Pool` gives no access to chunk bytes but through the unsafe functions below.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a UMEM of `receive_chunks` chunks to receive into and `pairs` pairs of chunks to send from.
    pub(super) fn new(
        receive_chunks: u32,
        pairs: u32,
        fill: QueueSize,
        completion: QueueSize,
    ) -> Result<Memory, UmemCreateError> {
        let config = UmemConfig::builder()
            .frame_size(FrameSize::new(CHUNK_BYTES as u32).expect("4096 is a frame size"))
            .fill_queue_size(fill)
            .comp_queue_size(completion)
            .build()
            .expect("the frame size is a power of two and larger than the headroom");
        // Pairs begin at an even number, so that each lies in one 8 KiB block.
        let receive_chunks = receive_chunks.next_multiple_of(2).max(2);
        let chunks = NonZeroU32::new(receive_chunks + 2 * pairs).expect("there are at least two chunks");
        let (umem, descriptors) = Umem::new(config, chunks, false)?;
        // SAFETY: the descriptor is this UMEM's, and nobody has been given a chunk yet.
        let first = unsafe { umem.data(&descriptors[0]) }.contents().as_ptr();
        // The pointer the library gives is good for one chunk; the mapping came from outside Rust, so one with the
        // provenance of all of it may be made from its address.
        let base = std::ptr::with_exposed_provenance_mut(first.expose_provenance() - descriptors[0].addr());
        let pool = Pool {
            umem: umem.clone(),
            base,
            returned: ArrayQueue::new(receive_chunks as usize),
            given_back: AtomicU64::new(0),
            receive_chunks,
        };
        // SAFETY: the range is exactly the UMEM's mapping. A child must not share it: its copy-on-write faults would
        // move the parent's pages away from the ones the kernel pinned.
        unsafe { libc::madvise(pool.base.cast(), chunks.get() as usize * CHUNK_BYTES, libc::MADV_DONTFORK) };
        Ok((Arc::new(pool), umem, descriptors.into()))
    }

    pub(super) fn receive_chunks(&self) -> u32 {
        self.receive_chunks
    }

    pub(super) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    /// The number of receive chunks that were given back and not collected yet.
    pub(super) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Collects the chunks that were given back.
    pub(super) fn collect(&self, free: &mut Vec<u32>) {
        free.extend(std::iter::from_fn(|| self.returned.pop()));
    }

    /// Makes the frame that lies in one or two received descriptors.
    ///
    /// # Safety
    /// The caller must own both chunks, as the receive ring has just given them; the frame owns them from now on.
    pub(super) unsafe fn frame(self: &Arc<Pool>, head: &FrameDesc, tail: Option<&FrameDesc>) -> Frame {
        let part = |d: &FrameDesc| (self.base.wrapping_add(d.addr()).cast_const(), d.lengths().data());
        let (tail_chunk, tail_part) = tail.map_or((NO_CHUNK, (std::ptr::null(), 0)), |d| (chunk_of(d), part(d)));
        let token = u64::from(chunk_of(head)) | u64::from(tail_chunk) << 32;
        // SAFETY: the kernel's descriptors lie within the UMEM, which `self` keeps mapped; the chunks are ours alone
        // until give_back is called with the token.
        unsafe { Frame::from_pool(Arc::clone(self) as Arc<dyn FramePool>, token, [part(head), tail_part]) }
    }

    /// The bytes of a pair, from where a frame can begin to the end of the second chunk.
    ///
    /// # Safety
    /// The caller must own the pair, and not ask for its bytes a second time while it has them.
    pub(super) unsafe fn pair_bytes(&self, pair: u32) -> *mut [u8] {
        let at = (self.receive_chunks + 2 * pair) as usize * CHUNK_BYTES + HEADROOM_BYTES;
        std::ptr::slice_from_raw_parts_mut(self.base.wrapping_add(at), 2 * CHUNK_BYTES - HEADROOM_BYTES)
    }

    /// The number of a pair's first chunk.
    pub(super) fn first_chunk(&self, pair: u32) -> u32 {
        self.receive_chunks + 2 * pair
    }

    /// The pair that a completed descriptor belongs to.
    pub(super) fn pair_of(&self, descriptor: &FrameDesc) -> u32 {
        (chunk_of(descriptor) - self.receive_chunks) / 2
    }

    /// Sets the length of a descriptor, which the library does through its cursor only.
    ///
    /// # Safety
    /// The caller must own the descriptor's chunk.
    pub(super) unsafe fn set_len(&self, descriptor: &mut FrameDesc, len: usize) {
        // SAFETY: the descriptor is this UMEM's and its chunk is the caller's; no byte is touched.
        unsafe { self.umem.data_mut(descriptor) }.cursor().set_pos(len);
    }
}

impl FramePool for Pool {
    fn give_back(&self, token: u64) {
        let (head, tail) = (token as u32, (token >> 32) as u32);
        // The queue has room for every chunk, and a frame gives its chunks back once.
        let pushed = self.returned.push(head).is_ok() && (tail == NO_CHUNK || self.returned.push(tail).is_ok());
        debug_assert!(pushed, "more chunks given back than there are");
        self.given_back.fetch_add(1 + u64::from(tail != NO_CHUNK), Ordering::Relaxed);
    }
}

/// The number of the chunk that a descriptor's bytes lie in.
pub(super) fn chunk_of(descriptor: &FrameDesc) -> u32 {
    (descriptor.addr() / CHUNK_BYTES) as u32
}

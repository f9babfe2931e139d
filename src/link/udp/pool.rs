use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::frame::{Frame, FramePool};

/// Buffers of one size in one block: to receive into, or to send from. The owner of a buffer's number owns its bytes,
/// until it is lent to frames.
pub(super) struct Pool {
    bytes: *mut [u8],
    buffer_bytes: usize,
    /// Of each buffer that is lent: its frames, and its owner until that has made them.
    users: Box<[AtomicU32]>,
    /// Buffers whose frames were dropped, until the link collects them.
    returned: ArrayQueue<u32>,
}

// SAFETY: a buffer's bytes are accessed only by the owner of its number; the rest is Sync.
unsafe impl Send for Pool {}
// SAFETY: as above; `&Pool` gives no access to bytes but through the functions below, which say whose they must be.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn new(count: u32, buffer_bytes: usize) -> Arc<Pool> {
        let bytes = Box::into_raw(vec![0; count as usize * buffer_bytes].into_boxed_slice());
        let users = (0..count).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Pool { bytes, buffer_bytes, users, returned: ArrayQueue::new(count as usize) })
    }

    /// A pointer to a buffer's first byte.
    pub fn buffer(&self, number: u32) -> *mut u8 {
        self.bytes.cast::<u8>().wrapping_add(number as usize * self.buffer_bytes)
    }

    /// Collects the buffers that were given back.
    pub fn collect(&self, free: &mut Vec<u32>) {
        while let Some(number) = self.returned.pop() {
            free.push(number);
        }
    }

    /// Lends a buffer to frames. Its owner gives it back like any of them, once it has made them.
    pub fn lend(&self, number: u32) {
        self.users[number as usize].store(1, Ordering::Relaxed);
    }

    /// A frame in a buffer that is lent: two ranges of it, each by its start and its length, of which the second can be
    /// empty.
    ///
    /// # Safety
    /// The ranges must lie in the buffer, and nobody may write to them from now on.
    pub unsafe fn frame(self: &Arc<Pool>, number: u32, parts: [(usize, usize); 2]) -> Frame {
        self.users[number as usize].fetch_add(1, Ordering::Relaxed);
        let parts = parts.map(|(start, len)| (self.buffer(number).wrapping_add(start).cast_const(), len));
        // SAFETY: the bytes lie in the block, which the frame keeps through its reference to the pool, and nobody writes
        // to them until the last of the buffer's frames is gone.
        unsafe { Frame::from_pool(Arc::clone(self) as Arc<dyn FramePool>, number.into(), parts) }
    }
}

impl FramePool for Pool {
    fn give_back(&self, token: u64) {
        // What was read from the buffer was read before others write to it.
        if self.users[token as usize].fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let pushed = self.returned.push(token as u32).is_ok();
        debug_assert!(pushed, "more buffers given back than there are");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the block came from a box, and whoever had a buffer of it kept the pool.
        drop(unsafe { Box::from_raw(self.bytes) });
    }
}

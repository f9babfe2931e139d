use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::frame::{Frame, FramePool};

/// Buffers of one size in one block: to receive into, or to send from. The owner of a buffer's number owns its bytes.
pub(super) struct Pool {
    bytes: *mut [u8],
    buffer_bytes: usize,
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
        Arc::new(Pool { bytes, buffer_bytes, returned: ArrayQueue::new(count as usize) })
    }

    /// A pointer to a buffer's first byte.
    pub fn buffer(&self, number: u32) -> *mut u8 {
        self.bytes.cast::<u8>().wrapping_add(number as usize * self.buffer_bytes)
    }

    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Collects the buffers that were given back.
    pub fn collect(&self, free: &mut Vec<u32>) {
        while let Some(number) = self.returned.pop() {
            free.push(number);
        }
    }

    /// The frame of `len` bytes from `start` of a buffer.
    ///
    /// # Safety
    /// The caller must own the buffer, which is the frame's from now on, and the range must lie in it.
    pub unsafe fn frame(self: &Arc<Pool>, number: u32, start: usize, len: usize) -> Frame {
        let head = (self.buffer(number).wrapping_add(start).cast_const(), len);
        // SAFETY: the bytes lie in the block, which the frame keeps through its reference to the pool, and nobody writes
        // to them until the number is given back.
        unsafe {
            Frame::from_pool(Arc::clone(self) as Arc<dyn FramePool>, number.into(), [head, (std::ptr::null(), 0)])
        }
    }
}

impl FramePool for Pool {
    fn give_back(&self, token: u64) {
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

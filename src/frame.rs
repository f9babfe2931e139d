//! Frames: who owns the bytes of a received one and how it gives them back, and where a sent one goes next.

use std::fmt;
use std::sync::Arc;

/// A received Ethernet frame: one owner, and its `Drop` gives the memory back to the pool it came from.
///
/// The bytes lie in one or two parts. AF_XDP in multi-buffer mode delivers a 4096-byte path MTU in two chunks
/// (a chunk is at most 4096 bytes, less headroom); every other source delivers one part and an empty second one.
/// All headers up to the end of the IB extended headers lie in the first part for every frame that is accepted.
pub struct Frame {
    owner: Owner,
}

enum Owner {
    Heap(Box<[u8]>),
    Pool { pool: Arc<dyn FramePool>, token: u64, parts: [(*const u8, usize); 2] },
}

// SAFETY: a `Frame` is the only holder of its token, so its bytes are read by one thread at a time; the pool itself is
// `Send + Sync`.
unsafe impl Send for Frame {}

/// Where a pooled frame's memory goes when the frame is dropped.
pub trait FramePool: Send + Sync {
    /// Takes the memory of the frame known by `token` back. Called exactly once a frame.
    fn give_back(&self, token: u64);
}

/// The next hop towards an IP address: a number that the link gave out and understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hop(pub u64);

/// The bytes of a frame: `head` then `tail`; `tail` is empty for frames in one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameBytes<'a> {
    /// The first part; holds all headers.
    pub head: &'a [u8],
    /// What did not fit into the first part.
    pub tail: &'a [u8],
}

impl<'a> FrameBytes<'a> {
    /// All but the first `count` bytes; nothing when there are fewer.
    #[inline]
    pub fn skip(self, count: usize) -> FrameBytes<'a> {
        let in_head = count.min(self.head.len());
        let in_tail = (count - in_head).min(self.tail.len());
        FrameBytes { head: &self.head[in_head..], tail: &self.tail[in_tail..] }
    }

    /// The first `count` bytes; all when there are fewer.
    #[inline]
    pub fn take(self, count: usize) -> FrameBytes<'a> {
        let in_head = count.min(self.head.len());
        let in_tail = (count - in_head).min(self.tail.len());
        FrameBytes { head: &self.head[..in_head], tail: &self.tail[..in_tail] }
    }

    /// Copies the bytes to `out`.
    ///
    /// # Panics
    /// When `out` is not of the same length.
    pub fn copy_to_slice(&self, out: &mut [u8]) {
        let (head, tail) = out.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        tail.copy_from_slice(self.tail);
    }

    /// The last `N` bytes; `None` when there are fewer.
    pub fn last_chunk<const N: usize>(&self) -> Option<[u8; N]> {
        if let Some(last) = self.tail.last_chunk() {
            return Some(*last);
        }
        if self.tail.is_empty() {
            return self.head.last_chunk().copied();
        }
        let mut last = [0; N];
        self.skip(self.len().checked_sub(N)?).copy_to_slice(&mut last);
        Some(last)
    }

    /// The number of bytes in both parts.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether there is no byte at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A contiguous copy.
    pub fn to_vec(&self) -> Vec<u8> {
        [self.head, self.tail].concat()
    }
}

impl<'a> From<&'a [u8]> for FrameBytes<'a> {
    fn from(head: &'a [u8]) -> Self {
        FrameBytes { head, tail: &[] }
    }
}

impl Frame {
    /// A frame in memory of its own, as the simulator, the fault layer and captures use.
    pub fn from_vec(bytes: Vec<u8>) -> Frame {
        Frame { owner: Owner::Heap(bytes.into_boxed_slice()) }
    }

    /// A frame in a pool's memory; `tail` may be null with length zero.
    ///
    /// # Safety
    /// `parts` must be valid for reads, and written by nobody, until `pool.give_back(token)` is called.
    pub unsafe fn from_pool(pool: Arc<dyn FramePool>, token: u64, parts: [(*const u8, usize); 2]) -> Frame {
        Frame { owner: Owner::Pool { pool, token, parts } }
    }

    /// The frame's bytes, from the first byte of the Ethernet header.
    pub fn bytes(&self) -> FrameBytes<'_> {
        match &self.owner {
            Owner::Heap(bytes) => FrameBytes { head: bytes, tail: &[] },
            Owner::Pool { parts: [(head, head_len), (tail, tail_len)], .. } => {
                let part = |p: *const u8, len: usize| -> &[u8] {
                    if len == 0 {
                        return &[];
                    }
                    // SAFETY: `from_pool`'s caller promised that the parts stay valid and unwritten until
                    // `give_back`, which happens only in our Drop.
                    unsafe { std::slice::from_raw_parts(p, len) }
                };
                FrameBytes { head: part(*head, *head_len), tail: part(*tail, *tail_len) }
            }
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Owner::Pool { pool, token, .. } = &self.owner {
            pool.give_back(*token);
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} bytes)", self.bytes().len())
    }
}

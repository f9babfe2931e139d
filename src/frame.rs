//! Frames: who owns the bytes of a received one and how it gives them back, and where a sent one goes next.

use std::fmt;
use std::sync::Arc;

/// A received Ethernet frame: one owner, and its `Drop` gives the memory back to the pool it came from.
///
/// The bytes lie in one or two parts. AF_XDP in multi-buffer mode delivers a 4096-byte path MTU in two chunks, since a
/// chunk is at most 4096 bytes, less headroom. Every other source delivers one part and an empty second one. All
/// headers up to the end of the IB extended headers lie in the first part for every frame that is accepted.
pub struct Frame {
    owner: Owner,
    /// Whether the link has found its ICRC right.
    has_right_icrc: bool,
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
    /// Takes back the memory of the frame known by `token`. A frame calls this exactly once, when it is dropped.
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
    /// The bytes that did not fit into the first part.
    pub tail: &'a [u8],
}

impl<'a> FrameBytes<'a> {
    /// All bytes after the first `count`; empty when there are at most `count`.
    #[inline]
    pub fn skip(self, count: usize) -> FrameBytes<'a> {
        let in_head = count.min(self.head.len());
        let in_tail = (count - in_head).min(self.tail.len());
        FrameBytes { head: &self.head[in_head..], tail: &self.tail[in_tail..] }
    }

    /// The first `count` bytes; all bytes when there are fewer.
    #[inline]
    pub fn take(self, count: usize) -> FrameBytes<'a> {
        let in_head = count.min(self.head.len());
        let in_tail = (count - in_head).min(self.tail.len());
        FrameBytes { head: &self.head[..in_head], tail: &self.tail[..in_tail] }
    }

    /// Copies the bytes of both parts to `out`.
    ///
    /// # Panics
    /// When the length of `out` is not [`len`](FrameBytes::len).
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

    /// The length of both parts together, in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes of both parts into one contiguous vector.
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
    /// A frame with memory of its own, as the simulator, the fault layer and captures use it.
    pub fn from_vec(bytes: Vec<u8>) -> Frame {
        Frame { owner: Owner::Heap(bytes.into_boxed_slice()), has_right_icrc: false }
    }

    /// A frame in a pool's memory. The second part can be null with length zero.
    ///
    /// # Safety
    /// `parts` must be valid for reads, and must not be written, until `pool.give_back(token)` is called.
    pub unsafe fn from_pool(pool: Arc<dyn FramePool>, token: u64, parts: [(*const u8, usize); 2]) -> Frame {
        Frame { owner: Owner::Pool { pool, token, parts }, has_right_icrc: false }
    }

    /// The same frame, whose ICRC its link has found right: nobody needs to compute it again.
    pub fn with_right_icrc(mut self) -> Frame {
        self.has_right_icrc = true;
        self
    }

    /// Whether its link has found its ICRC right; otherwise nobody knows.
    pub fn has_right_icrc(&self) -> bool {
        self.has_right_icrc
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

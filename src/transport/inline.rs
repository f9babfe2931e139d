use std::sync::Arc;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;

/// Upper bound on the inline data of a send request, in bytes: the most that programs ask for (perftest's `-I 1024`;
/// rxe gives 512).
pub const MAX_INLINE_BYTES: usize = 1024;

/// Upper bound on the inline bytes that lie in the request itself: its scatter or gather entries would need that room
/// anyway.
const SHORT_BYTES: usize = 256;

/// The inline data of a send request, at most [`MAX_INLINE_BYTES`] bytes. More than 256 bytes lie in memory of their
/// own, which goes back to its [`InlinePool`].
pub struct InlineBytes(Place);

#[allow(clippy::large_enum_variant, reason = "a request has the room for its entries anyway")]
enum Place {
    Request(ArrayVec<u8, SHORT_BYTES>),
    Own { bytes: Vec<u8>, pool: Option<InlinePool> },
}

/// The inline data would be longer than [`MAX_INLINE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the inline data is longer than {MAX_INLINE_BYTES} bytes")]
pub struct InlineError;

/// Memory for inline data that does not fit into its request. Once all of a queue pair's requests have been posted
/// once, nothing more is allocated.
#[derive(Clone)]
pub struct InlinePool(Arc<ArrayQueue<Vec<u8>>>);

impl InlinePool {
    /// Inline data of more bytes than this uses a pool.
    pub const FROM_BYTES: usize = SHORT_BYTES;

    /// A pool for `requests` at once, at least one. It has no memory until requests give theirs back.
    pub fn new(requests: usize) -> InlinePool {
        InlinePool(Arc::new(ArrayQueue::new(requests.max(1))))
    }
}

impl InlineBytes {
    /// Inline data of no bytes yet.
    pub const fn new() -> InlineBytes {
        InlineBytes(Place::Request(ArrayVec::new_const()))
    }

    /// Appends `more`. Bytes that do not fit into the request go to memory from `pool`, or to new memory when that has
    /// none.
    ///
    /// # Errors
    /// [`InlineError`] when there would be more than [`MAX_INLINE_BYTES`]; nothing is appended then.
    pub fn extend(&mut self, more: &[u8], pool: Option<&InlinePool>) -> Result<(), InlineError> {
        if more.len() > MAX_INLINE_BYTES - self.len() {
            return Err(InlineError);
        }
        let bytes = match &mut self.0 {
            Place::Request(bytes) => bytes,
            Place::Own { bytes, .. } => {
                bytes.extend_from_slice(more);
                return Ok(());
            }
        };
        if bytes.try_extend_from_slice(more).is_err() {
            let pooled = pool.and_then(|pool| pool.0.pop());
            let mut own = pooled.unwrap_or_else(|| Vec::with_capacity(MAX_INLINE_BYTES));
            own.extend_from_slice(bytes);
            own.extend_from_slice(more);
            self.0 = Place::Own { bytes: own, pool: pool.cloned() };
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::Own { bytes, pool: Some(pool) } = self {
            bytes.clear();
            // With more requests at once than the pool is for, the surplus is freed.
            let _ = pool.0.push(std::mem::take(bytes));
        }
    }
}

impl std::ops::Deref for InlineBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Place::Request(bytes) => bytes,
            Place::Own { bytes, .. } => bytes,
        }
    }
}

impl Default for InlineBytes {
    fn default() -> InlineBytes {
        InlineBytes::new()
    }
}

impl Clone for InlineBytes {
    fn clone(&self) -> InlineBytes {
        let mut bytes = InlineBytes::new();
        bytes.extend(self, None).expect("the bytes fit into a request");
        bytes
    }
}

impl PartialEq for InlineBytes {
    fn eq(&self, other: &InlineBytes) -> bool {
        **self == **other
    }
}

impl Eq for InlineBytes {}

impl std::fmt::Debug for InlineBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&**self, f)
    }
}

impl FromIterator<u8> for InlineBytes {
    /// # Panics
    /// When there are more than [`MAX_INLINE_BYTES`] bytes.
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> InlineBytes {
        let mut bytes = bytes.into_iter();
        let mut all = InlineBytes(Place::Request(bytes.by_ref().take(SHORT_BYTES).collect()));
        let rest: Vec<u8> = bytes.collect();
        all.extend(&rest, None).expect("the bytes fit into a request");
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_in_their_order_wherever_they_lie() {
        let pool = InlinePool::new(2);
        for len in [0, 1, 255, 256, 257, 1024] {
            let want: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut bytes = InlineBytes::new();
            for part in want.chunks(100) {
                bytes.extend(part, Some(&pool)).unwrap();
            }
            assert_eq!(*bytes, *want);
            assert_eq!(bytes, bytes.clone());
            assert_eq!(bytes.extend(&vec![0; 1025 - len], Some(&pool)), Err(InlineError));
            assert_eq!(*bytes, *want, "nothing was added");
        }
    }

    #[test]
    fn memory_comes_back_to_its_pool_and_is_used_again() {
        let pool = InlinePool::new(1);
        let make = || {
            let mut bytes = InlineBytes::new();
            bytes.extend(&[7; 300], Some(&pool)).unwrap();
            bytes
        };
        let first = make();
        let at = first.as_ptr();
        let second = make();
        assert_ne!(second.as_ptr(), at);
        drop(first);
        drop(second);
        assert_eq!(pool.0.len(), 1, "the second is one too many");
        let again = make();
        assert_eq!((again.as_ptr(), &*again), (at, &[7; 300][..]));
        assert_eq!(pool.0.len(), 0);
    }
}

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use crate::frame::FrameBytes;
use crate::wire::Key;

use super::{AccessError, MemoryTable, copy};

/// Bytes of a region that may be accessed now: checked, and used before anything else can happen to the table.
///
/// So it borrows the table; it does not outlive its region.
///
/// ```compile_fail,E0502
/// # use std::sync::Arc;
/// # use uroce::{memory::{Access, HostMemory, KeySource, MemoryTable, Pd, Scope}, wire::Qpn};
/// let mut table = MemoryTable::new(KeySource::new([7; 32]));
/// let memory = Arc::new(HostMemory::new(4096).unwrap());
/// let (address, pd) = (memory.address(), Pd(1));
/// let key = table.register(pd, memory, Access::REMOTE_READ);
/// let span = table.remote(Scope { pd, queue_pair: Qpn::new(9) }, key, address, 8, Access::REMOTE_READ).unwrap();
/// table.deregister(key).unwrap(); // the pages go
/// span.read(&mut [0; 8]).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: *mut u8,
    len: usize,
    /// The key of the region, for errors.
    key: Key,
    /// Whether there is no memory: reads return zeros, and writes have no effect.
    is_null: bool,
    /// The region cannot be removed from the table as long as this borrow lives.
    table: PhantomData<&'a MemoryTable>,
}

impl Span<'_> {
    pub(super) const EMPTY: Span<'static> =
        Span { start: std::ptr::dangling_mut(), len: 0, key: Key(0), is_null: false, table: PhantomData };

    /// `len` bytes from `start` on, of the region with key `key`.
    ///
    /// # Safety
    /// They lie in the region, which is in the table that the span borrows.
    pub(super) unsafe fn new(start: *mut u8, len: usize, key: Key) -> Self {
        Span { start, len, key, is_null: false, table: PhantomData }
    }

    /// `len` bytes of the null region with key `key`.
    pub(super) fn null(len: usize, key: Key) -> Self {
        Span { len, key, is_null: true, ..Span::EMPTY }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes of it.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "the first {len} of {} bytes", self.len);
        Span { len, ..self }
    }

    /// The addresses of the span's bytes in this process, for any key and address that named them.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len
    }

    /// Copies the span to `out`.
    ///
    /// # Errors
    /// [`AccessError::Vanished`] when the program has unmapped the memory.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn read(&self, out: &mut [u8]) -> Result<(), AccessError> {
        assert_eq!(self.len, out.len());
        if self.is_null {
            out.fill(0);
            return Ok(());
        }
        // SAFETY: `out` is nobody else's, so it does not overlap the region, which is registered: the table is borrowed.
        unsafe { copy::copy(self.start, out.as_mut_ptr(), self.len) }.map_err(|_| AccessError::Vanished(self.key))
    }

    /// Copies `data` to the span, the last bytes last, since programs poll on them.
    ///
    /// One store writes the last eight bytes that lie at a multiple of eight, if the span ends with them; otherwise the
    /// last four, two, or one.
    ///
    /// # Errors
    /// [`AccessError::Vanished`] when the program has unmapped the memory, or part of it.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn write(&self, data: FrameBytes<'_>) -> Result<(), AccessError> {
        assert_eq!(self.len, data.len());
        if self.len == 0 || self.is_null {
            return Ok(());
        }
        let last = last_bytes(self.start as usize + self.len, self.len);
        let early = data.take(self.len - last);
        // Nearly always eight: a copy of a known length is one move.
        let value = data.last_chunk().filter(|_| last == 8).unwrap_or_else(|| {
            let mut value = [0; 8];
            data.skip(self.len - last).copy_to_slice(&mut value[..last]);
            value
        });
        // SAFETY: the region is registered: the table is borrowed. The last bytes end at a multiple of their number.
        let store_last = || unsafe { copy::store(u64::from_ne_bytes(value), self.start.add(self.len - last), last) };
        if mutated!("last-bytes-stored-first", by "uroce --lib the_last_bytes_are_not_written_before") {
            store_last().map_err(|_| AccessError::Vanished(self.key))?;
        }
        // SAFETY: the parts together have the span's length, and what is borrowed as bytes does not overlap the region, which
        // is registered, as above.
        unsafe {
            copy::copy(early.head.as_ptr(), self.start, early.head.len())
                .and_then(|()| match early.tail {
                    // Nearly all frames have one part.
                    [] => Ok(()),
                    tail => copy::copy(tail.as_ptr(), self.start.add(early.head.len()), tail.len()),
                })
                .and_then(|()| {
                    fence(Ordering::Release);
                    store_last()
                })
        }
        .map_err(|_| AccessError::Vanished(self.key))
    }

    /// Replaces the eight bytes of the span, aligned to eight, by `new(old)` in one atomic step, and returns the old
    /// ones. They are in the host's byte order, as with all RoCE devices.
    ///
    /// # Errors
    /// [`AtomicError::Misaligned`] when the address is not a multiple of eight; [`AtomicError::Access`] when the
    /// program has unmapped the memory.
    pub fn update_u64(&self, new: impl Fn(u64) -> u64) -> Result<u64, AtomicError> {
        if self.is_null || self.len != 8 || !(self.start as usize).is_multiple_of(8) {
            return Err(AtomicError::Misaligned);
        }
        // SAFETY: the cell is aligned, and its region registered: the table is borrowed.
        unsafe { copy::update_u64(self.start.cast(), new) }.map_err(|_| AccessError::Vanished(self.key).into())
    }
}

/// How many bytes before the address `end` one instruction can store: at most `len`, which is not 0.
pub(super) fn last_bytes(end: usize, len: usize) -> usize {
    1 << end.trailing_zeros().min(len.ilog2()).min(3)
}

/// Why an atomic did not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The address is not a multiple of eight.
    #[error("atomics need eight bytes at a multiple of eight")]
    Misaligned,
    /// The memory cannot be accessed: the program has unmapped it.
    #[error(transparent)]
    Access(#[from] AccessError),
}

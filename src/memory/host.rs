use std::io;
use std::ptr::NonNull;

use super::copy::copy;

/// Memory of our own to register: anonymous, zeroed, populated pages that live as long as this value.
///
/// It is read and written through copies only, since a remote peer can write at any time.
#[derive(Debug)]
pub struct HostMemory {
    address: NonNull<u8>,
    len: usize,
    mapped_bytes: usize,
}

/// The kernel maps whole pages of at least this; what is mapped and unmapped is said so, to tools that watch who does it, too.
const PAGE_BYTES: usize = 4096;

/// The kernel refused to map memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {bytes} bytes: {source}")]
pub struct MapError {
    bytes: usize,
    source: io::Error,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed through raw copies only.
unsafe impl Send for HostMemory {}
// SAFETY: as above; no reference to the bytes is ever made, and copies that race are assembly's (`copy`).
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `len` bytes, page-aligned and zeroed.
    ///
    /// # Errors
    /// [`MapError`] when the kernel refuses the mapping; it has the length and the kernel's error.
    pub fn new(len: usize) -> Result<HostMemory, MapError> {
        let mapped_bytes = len.max(1).next_multiple_of(PAGE_BYTES);
        let address = pages::map(mapped_bytes).map_err(|source| MapError { bytes: len, source })?;
        Ok(HostMemory { address, len, mapped_bytes })
    }

    /// The address of the first byte, as work requests and peers use it.
    pub fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// A pointer to the first byte, for registration.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `out.len()` bytes from `offset` on to `out`.
    ///
    /// # Panics
    /// When the range goes beyond the end.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range was checked to lie in the mapping, and `out` is memory of the caller's own.
        unsafe { copy(self.as_ptr().add(offset), out.as_mut_ptr(), out.len()) }.expect("it is mapped");
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// When the range goes beyond the end.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        // SAFETY: the range was checked to lie in the mapping, and `data` is memory of the caller's own.
        unsafe { copy(data.as_ptr(), self.as_ptr().add(offset), data.len()) }.expect("it is mapped");
    }

    /// Copies `len` bytes from `offset` on into a vector.
    ///
    /// # Panics
    /// When the range goes beyond the end.
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(offset, &mut out);
        out
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{len} bytes at {offset} go beyond the {} of this memory",
            self.len
        );
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and whoever registered it keeps us alive.
        unsafe { pages::unmap(self.address, self.mapped_bytes) };
    }
}

#[cfg(not(miri))]
mod pages {
    use std::io;
    use std::ptr::{NonNull, null_mut};

    pub fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let address = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(NonNull::new(address.cast()).expect("the kernel does not map page zero unasked"))
    }

    /// Unmaps pages.
    ///
    /// # Safety
    /// `map` returned the address for as many bytes, and nothing uses them any more.
    pub unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(address.as_ptr().cast(), bytes) };
    }
}

/// Miri does not populate mappings, and finds more about memory that is allocated.
#[cfg(miri)]
mod pages {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io;
    use std::ptr::NonNull;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 4096).expect("not as much as that")
    }

    pub fn map(bytes: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: there is at least one byte.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub unsafe fn unmap(address: NonNull<u8>, bytes: usize) {
        // SAFETY: `map` allocated as much there.
        unsafe { dealloc(address.as_ptr(), layout(bytes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_and_the_rest_is_zero() {
        let memory = HostMemory::new(100).unwrap();
        memory.write(10, b"abc");
        assert_eq!(memory.to_vec(9, 5), b"\0abc\0");
        assert_eq!(HostMemory::new(0).unwrap().to_vec(0, 0), b"");
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn reading_beyond_the_end_panics() {
        HostMemory::new(100).unwrap().to_vec(usize::MAX, 2);
    }
}

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// A page of a file that several processes map: numbers, each of which any of them may read and write at any time.
///
/// A process that shortens the file ends the others by SIGBUS: it is for processes that could end each other anyway.
#[derive(Debug)]
pub struct SharedPage {
    address: NonNull<AtomicU64>,
    /// It stays open, for locks on it.
    _file: File,
}

// SAFETY: it is atomic numbers, in a mapping that nothing but the drop takes away.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Its length, in bytes.
    pub const BYTES: usize = 4096;

    /// Its length, in numbers.
    pub const CELLS: usize = Self::BYTES / size_of::<AtomicU64>();

    /// Maps the first page of `file`, which is made that long, and stays open.
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be made longer, or mapped.
    pub fn map(file: File) -> io::Result<SharedPage> {
        if file.metadata()?.len() < Self::BYTES as u64 {
            file.set_len(Self::BYTES as u64)?;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping overlaps nothing.
        let address = unsafe { libc::mmap(null_mut(), Self::BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).expect("the kernel does not map page zero unasked");
        Ok(SharedPage { address, _file: file })
    }

    /// The number at `index`, 0 to [`CELLS`](Self::CELLS) − 1.
    ///
    /// # Panics
    /// When `index` is out of range.
    pub fn cell(&self, index: usize) -> &AtomicU64 {
        assert!(index < Self::CELLS, "cell {index} of {}", Self::CELLS);
        // SAFETY: it is within the page, aligned, and mapped for as long as we are.
        unsafe { self.address.add(index).as_ref() }
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody borrows from it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), Self::BYTES) };
    }
}

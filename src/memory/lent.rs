use super::{Access, copy, faults};

/// Memory that a program lends for registration. All of its pages were present when this value was made.
#[derive(Debug)]
pub struct Lent {
    start: *mut u8,
    len: u64,
    access: Access,
}

/// Why borrowed memory was not registered (EFAULT with the kernel's drivers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("some of the {len} bytes at {address:#x} are not mapped, or not writable")]
pub struct RegisterError {
    address: u64,
    len: u64,
}

// SAFETY: an address and a length; what they name is the process's.
unsafe impl Send for Lent {}

const PAGE_BYTES: u64 = 4096;

impl Lent {
    /// Makes the kernel populate the pages, writable if the access needs that, so that a missing page is an error now.
    ///
    /// It takes long for many pages: hold no lock.
    ///
    /// # Errors
    /// [`RegisterError`] when a page is not mapped, or not writable although the access needs that.
    pub fn populate(start: *mut u8, len: u64, access: Access) -> Result<Lent, RegisterError> {
        let error = RegisterError { address: start as u64, len };
        let first = start as u64 & !(PAGE_BYTES - 1);
        let end =
            (start as u64).checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES)).ok_or(error)?;
        // From now on a page that is not there is a copy's error.
        faults::install();
        if len > 0 {
            let writes = access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            let advice = if writes { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
            // SAFETY: populating changes nothing that a program could see; what is not mapped is an error.
            let populated = unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, advice) } == 0;
            if !populated && (kernel_populates() || !touch(first, end, writes)) {
                return Err(error);
            }
        }
        Ok(Lent { start, len, access })
    }

    pub(super) fn into_parts(self) -> (*mut u8, u64, Access) {
        (self.start, self.len, self.access)
    }
}

/// Whether the kernel knows MADV_POPULATE_READ and _WRITE: Linux 5.14 and later do.
fn kernel_populates() -> bool {
    // SAFETY: no bytes are asked for; only the advice is looked at.
    unsafe { libc::madvise(PAGE_BYTES as *mut libc::c_void, 0, libc::MADV_POPULATE_READ) == 0 }
}

/// Populates pages on older kernels: reads each page, or writes back what it holds. Returns whether all pages are
/// present.
fn touch(first: u64, end: u64, writes: bool) -> bool {
    (first..end).step_by(PAGE_BYTES as usize).all(|page| {
        let mut byte = 0;
        // SAFETY: the byte is ours; a page that is not there, or not writable, is an error. An exchange of eight bytes for
        // themselves changes none of them, whoever writes them meanwhile.
        unsafe {
            if writes {
                copy::update_u64(page as *mut u64, |old| old).is_ok()
            } else {
                copy::copy(page as *const u8, &mut byte, 1).is_ok()
            }
        }
    })
}

#[cfg(all(test, not(miri)))] // Miri knows no protection of pages
mod tests {
    use super::*;
    use crate::memory::HostMemory;

    #[test]
    fn what_is_not_there_or_not_writable_is_an_error_with_any_kernel() {
        let memory = HostMemory::new(3 * 4096).unwrap();
        let start = memory.as_ptr();
        memory.write(0, &[7; 3 * 4096]);
        let lend = |offset: usize, len: u64, access: Access| {
            // SAFETY: within the mapping.
            let start = unsafe { start.add(offset) };
            let lent = Lent::populate(start, len, access).is_ok();
            let first = start as u64 & !4095;
            let end = (start as u64 + len).next_multiple_of(4096);
            assert_eq!(touch(first, end, access.contains(Access::LOCAL_WRITE)), lent, "{len} bytes at {offset}");
            lent
        };
        let (reading, writing) = (Access::REMOTE_READ, Access::LOCAL_WRITE);
        assert!(lend(10, 3 * 4096 - 10, writing) && lend(0, 1, reading));
        assert_eq!(memory.to_vec(0, 3 * 4096), [7; 3 * 4096], "nothing was changed");
        // SAFETY: the mapping is ours.
        unsafe {
            assert_eq!(libc::mprotect(start.add(4096).cast(), 4096, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(start.add(8192).cast(), 4096, libc::PROT_NONE), 0);
        }
        assert!(lend(0, 4096, writing) && !lend(0, 4097, writing) && lend(0, 8192, reading) && !lend(0, 8193, reading));
        assert!(Lent::populate(start, u64::MAX, reading).is_err());
        assert!(Lent::populate(8 as *mut u8, 0, writing).is_ok(), "no page is needed for no bytes");
    }
}

//! Buffers that the library allocates, since rdma-core 64: plain memory, as there is no device that would want another kind.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use uroce::memory::HostMemory;

use crate::abi::{IbvBuf, IbvContext, IbvMr, IbvPd};
use crate::error::{Failure, minus_one, number, pointer};
use crate::slab::{Object, Ref, Slab};
use crate::{domain, region};

/// Buffers at the most, in all contexts.
const MAX_BUFFERS: usize = 1 << 16;

/// A buffer.
pub(crate) struct Buffer {
    context: usize,
    pd: usize,
    memory: HostMemory,
    _domain: Arc<()>,
}

impl Object for Buffer {
    type C = IbvBuf;
    const CAPACITY: usize = MAX_BUFFERS;

    fn slab() -> &'static Slab<Buffer> {
        static SLAB: Slab<Buffer> = Slab::new();
        &SLAB
    }
}

fn get(buf: *const IbvBuf) -> Result<Ref<Buffer>, Failure> {
    Buffer::slab().get(buf).ok_or_else(|| Failure::handle("buffer"))
}

/// Allocates `size` bytes of zeroed memory, and writes the buffer's handle to `buf`.
///
/// # Safety
/// `buf` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut IbvPd, size: usize, buf: *mut *mut IbvBuf) -> *mut c_void {
    let allocate = || {
        let owner = domain::get(pd)?;
        if buf.is_null() {
            return Err(Failure::null("buf"));
        }
        if size == 0 {
            return Err(Failure::new(libc::EINVAL, "the length of the buffer is 0"));
        }
        let memory = HostMemory::new(size).map_err(|error| Failure::new(libc::ENOMEM, error))?;
        let addr = memory.as_ptr().cast();
        let made = Buffer::slab().insert(|c| {
            // SAFETY: the slab passes room for it.
            unsafe { c.write(IbvBuf { addr }) };
            Buffer { context: owner.context, pd: pd as usize, memory, _domain: owner.users.clone() }
        });
        let made = made.ok_or_else(|| Failure::new(libc::ENOMEM, "too many buffers"))?;
        // SAFETY: the caller's promise.
        unsafe { buf.write(made.as_ptr()) };
        Ok(addr)
    };
    pointer("ibv_alloc_buf", allocate())
}

/// Frees a buffer. Regions over it are regions of vanished memory from then on, as with memory of the program's.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_free_buf(buf: *mut IbvBuf) {
    let gone = Buffer::slab().remove(buf, |_| true).map(drop).map_err(|error| Failure::removal("buffer", error));
    number("ibv_free_buf", gone);
}

/// Whether `length` bytes at `addr` lie in a buffer of `pd`'s.
pub(crate) fn check(buf: *const IbvBuf, pd: *const IbvPd, addr: *const c_void, length: usize) -> Result<(), Failure> {
    let buffer = get(buf)?;
    if buffer.pd != pd as usize {
        return Err(Failure::new(libc::EINVAL, "the buffer belongs to another protection domain"));
    }
    let offset = (addr as usize).wrapping_sub(buffer.memory.as_ptr() as usize);
    let len = buffer.memory.len();
    if offset > len || length > len - offset {
        return Err(Failure::new(libc::EINVAL, format_args!("{length} bytes at {addr:p} do not lie in the buffer")));
    }
    Ok(())
}

/// Registers a part of a buffer.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_buf_mr(
    pd: *mut IbvPd,
    buf: *mut IbvBuf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    let registered = domain::get(pd)
        .and_then(|_| check(buf, pd, addr, length))
        .and_then(|()| region::register(pd, addr, length, addr as u64, access as u32));
    pointer("ibv_reg_buf_mr", registered)
}

/// There are no buffers of other devices' memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut IbvBuf) -> c_int {
    let why = || Failure::new(libc::ENODATA, "the buffer is plain memory");
    minus_one("ibv_export_buf_dmabuf_fd", get(buf).and_then(|_| Err(why())))
}

pub(crate) fn destroy_all(context: *const IbvContext) {
    for buf in Buffer::slab().pointers(|buffer| buffer.context == context as usize) {
        let _ = Buffer::slab().remove(buf.as_ptr(), |_| true);
    }
}

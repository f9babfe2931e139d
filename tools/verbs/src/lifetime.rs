//! The program's beginning, forks and end.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Once;
use std::time::Duration;

use crate::address::Address;
use crate::buffer::Buffer;
use crate::cm::{self, Channel as CmChannel, CmId, Given};
use crate::completion_channel::Channel;
use crate::completion_queue::Cq;
use crate::context::{self, OpenDevice};
use crate::device::{self, Known};
use crate::domain::Domain;
use crate::queue_pair::Qp;
use crate::region::Region;
use crate::slab::Object;
use crate::srq::Srq;
use crate::thread_domain::ThreadDomain;
use crate::window::Window;

/// How long a program's exit waits for a thread that holds the engine: some batches' time. Threads may have been stopped
/// anywhere, and what cannot be sent now the peer asks for again.
const PATIENCE: Duration = Duration::from_millis(200);

/// The exit status for what is our failure and not the program's.
const OUR_FAILURE: c_int = 125;

/// What must be done before the first device is listed.
pub(crate) fn begin() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        refuse_company();
        // SAFETY: all are functions without arguments, and they stay loaded: programs do not unload libibverbs.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// Ends the program when the system's libibverbs is loaded as well: which of both a call reaches is by chance then. Copies
/// under other names, as Python wheels bring, are no harm: their users' calls end here.
fn refuse_company() {
    let mut other: Option<String> = None;
    // SAFETY: the callback gets the pointer that is passed, and runs before the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut other).cast()) };
    if let Some(path) = other {
        eprintln!(
            "uroce: the program has loaded {path} beside uroce's libibverbs: it has an rpath, or a path in its dlopen; \
             take that away, or set LD_LIBRARY_PATH as `uroce run` does"
        );
        // SAFETY: no lock of ours is held that an exit handler needs: none is registered yet.
        unsafe { libc::_exit(OUR_FAILURE) };
    }
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's structure, and our variable.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<String>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a string of the loader's.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned();
    let name = path.rsplit('/').next().unwrap_or_default();
    let here = look as *const () as usize;
    // SAFETY: the loader's table of `dlpi_phnum` headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_us = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        (start..start + header.p_memsz as usize).contains(&here)
    });
    if name.starts_with("libibverbs.so") && !is_us {
        *found = Some(path);
    }
    0
}

/// Runs `work` on the tables of all objects.
macro_rules! every_slab {
    ($work:ident ( $($argument:expr),* )) => {{
        Known::slab().$work($($argument),*);
        OpenDevice::slab().$work($($argument),*);
        Domain::slab().$work($($argument),*);
        ThreadDomain::slab().$work($($argument),*);
        Region::slab().$work($($argument),*);
        Buffer::slab().$work($($argument),*);
        Window::slab().$work($($argument),*);
        Address::slab().$work($($argument),*);
        Channel::slab().$work($($argument),*);
        Cq::slab().$work($($argument),*);
        Srq::slab().$work($($argument),*);
        Qp::slab().$work($($argument),*);
        CmChannel::slab().$work($($argument),*);
        CmId::slab().$work($($argument),*);
        Given::slab().$work($($argument),*);
    }};
}

extern "C" fn before_fork() {
    cm::before_fork();
    context::before_fork();
    device::before_fork();
    every_slab!(before_fork());
}

extern "C" fn in_parent() {
    every_slab!(after_fork(false));
    device::after_fork();
    context::after_fork(false);
    cm::after_fork(false);
}

/// In a child everything that was open is dead: the frames are the parent's, and so is the thread. The child may open
/// devices of its own.
extern "C" fn in_child() {
    every_slab!(after_fork(true));
    device::after_fork();
    context::after_fork(true);
    cm::after_fork(true);
}

/// Ends connections of RDMA CM, and sends the acknowledges that are still owed: a peer that waits for one would take the program's end for a fault.
extern "C" fn at_exit() {
    cm::close_all();
    context::settle_all(PATIENCE);
}

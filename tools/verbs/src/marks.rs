//! Marks that programs leave in the tree, so that `uroce run` can say at the end when none of their traffic came here.
//!
//! A mark is a file in the folder `marks`, with the name of the first program that left it. Each process leaves each
//! mark once.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{Cursor, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::set_errno;
use crate::redirect::{Next, tree};

/// What a process did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Mark {
    /// It listed the devices.
    Listed = 1,
    /// It opened one.
    Opened = 2,
    /// It created a queue pair.
    QueuePair = 4,
    /// It looked for the kernel's connection manager itself.
    KernelCm = 8,
    /// It has a TCP connection, and listed the devices.
    Connected = 16,
}

/// It has a TCP connection. No mark: most programs have.
const TCP: u32 = 32;

static LEFT: AtomicU32 = AtomicU32::new(0);

impl Mark {
    fn file(self) -> &'static [u8] {
        match self {
            Mark::Listed => b"listed",
            Mark::Opened => b"opened",
            Mark::QueuePair => b"queue-pair",
            Mark::KernelCm => b"kernel-cm",
            Mark::Connected => b"connected",
        }
    }

    /// Leaves the mark, unless this process has. Allocates nothing, and leaves `errno` alone.
    pub fn leave(self) {
        let bit = self as u32;
        let before = LEFT.fetch_or(bit, Ordering::Relaxed);
        if before & bit == 0 {
            write(self.file(), b"");
        }
        if self == Mark::Listed && before & (bit | TCP) == TCP {
            Mark::Connected.leave();
        }
    }
}

/// What the loader calls first: the library is in the program.
pub(crate) fn loaded() {
    write(b"loaded.", program());
}

fn program() -> &'static [u8] {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: the C library sets it before it calls initializers.
    unsafe {
        match program_invocation_short_name.is_null() {
            true => b"",
            false => CStr::from_ptr(program_invocation_short_name).to_bytes(),
        }
    }
}

/// Makes the file `marks/NAME` with the program's name in it, if it is not there.
fn write(name: &[u8], more: &[u8]) {
    let Some(tree) = tree() else { return };
    let errno = std::io::Error::last_os_error().raw_os_error();
    let mut path = [0u8; libc::PATH_MAX as usize];
    let mut to = Cursor::new(&mut path[..libc::PATH_MAX as usize - 1]);
    let parts = [tree.to_bytes(), b"/marks/", name, more];
    if parts.into_iter().all(|part| to.write_all(part).is_ok()) {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let program = program();
        // SAFETY: a string, and a buffer with its length; the descriptor is ours.
        unsafe {
            let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600);
            if file >= 0 {
                libc::syscall(libc::SYS_write, file, program.as_ptr(), program.len());
                libc::syscall(libc::SYS_close, file);
            }
        }
    }
    set_errno(errno.unwrap_or(0));
}

/// Notes that a descriptor is of a TCP connection, if it is.
fn note(socket: c_int) {
    if LEFT.load(Ordering::Relaxed) & TCP != 0 {
        return;
    }
    let option = |name| {
        let (mut value, mut len): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
        // SAFETY: room for an integer, and its length.
        let got = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
        (got == 0).then_some(value)
    };
    let errno = std::io::Error::last_os_error().raw_os_error();
    let is_internet = matches!(option(libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6));
    if is_internet && option(libc::SO_TYPE) == Some(libc::SOCK_STREAM) {
        let before = LEFT.fetch_or(TCP, Ordering::Relaxed);
        if before & Mark::Listed as u32 != 0 {
            Mark::Connected.leave();
        }
    }
    set_errno(errno.unwrap_or(0));
}

/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(socket: c_int, address: *const c_void, len: libc::socklen_t) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const c_void, libc::socklen_t) -> c_int;
    static NEXT: Next = Next::new(c"connect");
    // SAFETY: the program's promises are those of the C library's function, which has this type, and is in every one.
    let result = unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.address())(socket, address, len) };
    if result == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EINPROGRESS) {
        note(socket);
    }
    result
}

/// As accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(socket: c_int, address: *mut c_void, len: *mut libc::socklen_t) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut c_void, *mut libc::socklen_t) -> c_int;
    static NEXT: Next = Next::new(c"accept");
    // SAFETY: as above.
    let result = unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.address())(socket, address, len) };
    if result >= 0 {
        note(result);
    }
    result
}

/// As accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    socket: c_int,
    address: *mut c_void,
    len: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut c_void, *mut libc::socklen_t, c_int) -> c_int;
    static NEXT: Next = Next::new(c"accept4");
    // SAFETY: as above.
    let result = unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.address())(socket, address, len, flags) };
    if result >= 0 {
        note(result);
    }
    result
}

//! Starts the arbiter as a process of nobody: neither a child that the program could wait for, nor a reader or writer
//! of its pipes and terminals.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::pipe::PipeFlags;

/// A program that was started, and may not have become an arbiter.
pub(super) struct Started {
    /// The other end is the program's, as long as it runs. The child writes into it when it could not execute the
    /// program.
    life: OwnedFd,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It runs, as far as is known.
    Runs,
    /// It has ended: there was an arbiter already, or the last program left it.
    Ended,
    /// It could not be executed. A replaced or deleted file cannot.
    Refused,
}

impl Started {
    pub fn life(&self) -> Life {
        match rustix::io::read(&self.life, &mut [0]) {
            Ok(0) => Life::Ended,
            Ok(_) => Life::Refused,
            Err(_) => Life::Runs,
        }
    }
}

/// Starts `program arbiter INTERFACE` without environment, and with no descriptor of this process but one end of a pipe.
///
/// # Errors
/// That of pipe(2) or clone(2). What became of the program tells [`Started::life`].
pub(super) fn start(program: &Path, interface: &str) -> io::Result<Started> {
    let (life, lives) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let program = CString::new(program.as_os_str().as_bytes())?;
    let arguments = [program.clone(), c"arbiter".to_owned(), CString::new(interface)?];
    let arguments: [*const libc::c_char; 4] =
        [arguments[0].as_ptr(), arguments[1].as_ptr(), arguments[2].as_ptr(), std::ptr::null()];
    let environment: [*const libc::c_char; 1] = [std::ptr::null()];
    // SAFETY: the first child and its own child call only what is safe after a fork in a process with threads: they
    // allocate nothing and take no lock, and end with `_exit` or `execve`.
    unsafe {
        match clone() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {
                if clone() == 0 {
                    become_nobodys(lives.as_raw_fd(), &program, &arguments, &environment);
                }
                libc::_exit(0);
            }
            // The first child ends at once, and its child is adopted by init.
            child => while libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) < 0 && is_interrupted() {},
        }
    }
    Ok(Started { life })
}

/// fork(2), but the end of the child raises no signal, and only a wait that asks for such children sees it.
///
/// # Safety
/// As for fork(2); the C library's handlers at fork are not called.
unsafe fn clone() -> libc::pid_t {
    let none: libc::c_long = 0;
    // SAFETY: no flags, no stack and no pointers: the child continues here on its copy of the stack.
    unsafe { libc::syscall(libc::SYS_clone, none, none, none, none, none) as libc::pid_t }
}

/// # Safety
/// In a child only.
unsafe fn become_nobodys(
    lives: libc::c_int,
    program: &CString,
    arguments: &[*const libc::c_char; 4],
    environment: &[*const libc::c_char; 1],
) {
    // SAFETY: the paths and lists end as they must.
    unsafe {
        // Above the standard descriptors; there it stays open.
        let lives = libc::fcntl(lives, libc::F_DUPFD_CLOEXEC, 4);
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..=2 {
            libc::dup2(null, standard);
        }
        let rest: libc::c_long = if libc::dup2(lives, 3) == 3 { 4 } else { 3 };
        libc::syscall(libc::SYS_close_range, rest, libc::c_long::from(u32::MAX), 0 as libc::c_long);
        let none: u64 = 0;
        let how = libc::c_long::from(libc::SIG_SETMASK);
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const none, 0 as libc::c_long, size_of::<u64>());
        libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr());
        libc::write(3, c"!".as_ptr().cast(), 1);
    }
}

fn is_interrupted() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
}

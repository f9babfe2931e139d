use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};

use crate::engine::thread;

use super::Context;
use super::published::Published;

/// Answers this user's other processes that ask for a snapshot of the device: a thread that sleeps until one does.
///
/// The socket's name is abstract: it is there as long as the process, and nobody has to remove it after a crash.
pub(super) struct Publication {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    listener: UnixListener,
    is_over: AtomicBool,
}

/// How long a process that asks has to take the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause when the process has no descriptor left for who asks.
const PAUSE: Duration = Duration::from_millis(100);

/// The thread formats text, and nothing more.
const STACK_BYTES: usize = 256 << 10;

impl Publication {
    pub fn begin(context: Context) -> io::Result<Publication> {
        let shared = Arc::new(Shared { context, listener: listen()?, is_over: AtomicBool::new(false) });
        let thread = {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("uroce-snapshots".to_owned()).stack_size(STACK_BYTES);
            thread::start(builder, move || shared.run())?
        };
        Ok(Publication { shared, thread: Some(thread) })
    }
}

/// A socket with the first name that no device of this process has. Processes of other PID namespaces can have the same
/// number.
fn listen() -> io::Result<UnixListener> {
    let mut serial = 0;
    loop {
        let name = Published { process: std::process::id(), serial }.name();
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && serial < u32::MAX => serial += 1,
            bound => return bound,
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            match self.listener.accept() {
                // Who does not take the answer gets none.
                Ok((asker, _)) => drop(self.answer(asker)),
                Err(error) if is_passing(&error) => pause(),
                // The end; or the program has closed descriptors that are not its own.
                Err(_) => return,
            }
        }
    }

    /// Other users see that the connection ends.
    fn answer(&self, mut asker: UnixStream) -> io::Result<()> {
        if sockopt::socket_peercred(&asker)?.uid == rustix::process::geteuid() {
            asker.set_write_timeout(Some(PATIENCE))?;
            asker.write_all(self.context.snapshot().to_json().as_bytes())?;
        }
        Ok(())
    }
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::ECONNABORTED, libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    error.raw_os_error().is_some_and(|error| passing.contains(&error))
}

#[allow(clippy::disallowed_methods, reason = "a thread of its own, which nothing waits for")]
fn pause() {
    std::thread::sleep(PAUSE);
}

impl Drop for Publication {
    fn drop(&mut self) {
        if self.shared.context.engine().is_forked() {
            // The thread is the parent's, and so is the socket.
            std::mem::forget((self.thread.take(), self.shared.clone()));
            return;
        }
        self.shared.is_over.store(true, Ordering::Relaxed);
        // It wakes the thread.
        let _ = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Publication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Publication({:?})", self.shared.listener)
    }
}

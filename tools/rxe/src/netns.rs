//! Network namespaces with names of our own, removed when dropped, and what runs inside them.
use crate::error::{Result, RigError};
use crate::process;
use signal_hook::iterator::Signals;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Where iproute2 keeps named namespaces.
const DIRECTORY: &str = "/run/netns";

/// What all our namespaces' names begin with.
const PREFIX: &str = "uroce-";

/// A network namespace, called `uroce-<label>-<pid>-<n>`, with `lo` up and IPv6 duplicate address detection off.
///
/// It is removed on `Drop` and when the process exits; after a SIGKILL the next [`sweep`] removes it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    path: Arc<CString>,
}

impl Netns {
    /// Makes a namespace. `label` is a word of a few letters without `-`.
    ///
    /// # Errors
    /// [`RigError`] without root, or without iproute2.
    pub fn create(label: &str) -> Result<Netns> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        remove_at_exit();
        sweep();
        let name = format!("{PREFIX}{label}-{}-{}", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
        process::run_args("ip", &["netns", "add", &name])?;
        LIVE.lock().expect("no panic under this lock").push(name.clone());
        let path = Arc::new(CString::new(format!("{DIRECTORY}/{name}")).expect("no NUL in it"));
        let namespace = Netns { name, path };
        namespace.ip(&["link", "set", "lo", "up"])?;
        if ipv6_on_this_host() {
            for scope in ["all", "default"] {
                namespace.sysctl(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
            }
        }
        Ok(namespace)
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with `arguments` on this namespace and returns what it printed.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        process::run(Command::new("ip").args(["-n", &self.name]).args(arguments))
    }

    /// Sets one of the namespace's own switches, named by its path under `/proc/sys`.
    ///
    /// # Errors
    /// [`RigError::Io`] when there is no such switch or it refuses the value.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        let file = format!("/proc/sys/{path}");
        self.run(|| std::fs::write(&file, value)).map_err(RigError::io(format!("{file} = {value}")))
    }

    /// A command that will run inside the namespace, with a `/sys` that shows the namespace's own interfaces (as
    /// `ip netns exec` makes it) and the host's `/sys/fs/bpf`. Start it with [`process::spawn`] to have it die with this
    /// process, or with its own methods.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let path = Arc::clone(&self.path);
        // SAFETY: `enter` makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(move || enter(&path)) };
        command
    }

    /// Runs `program` with `arguments` inside the namespace to its end and returns what it printed.
    ///
    /// # Errors
    /// As [`process::run`].
    pub fn exec(&self, program: &str, arguments: &[&str]) -> Result<String> {
        process::run(self.command(program).args(arguments))
    }

    /// Runs `work` on a thread of its own inside the namespace and returns its result. Sockets made there stay in the
    /// namespace wherever they are used later; threads started there stay in it too.
    ///
    /// # Panics
    /// When the namespace cannot be entered (not root), or `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.path).unwrap_or_else(|e| panic!("entering namespace {}: {e}", self.name));
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.path);
        let mut live = LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        live.retain(|name| *name != self.name);
    }
}

/// One end of a [`VethPair`]'s cable: what the interface is called in its namespace and how it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The interface's name.
    pub interface: &'static str,
    /// Its MAC address, colon-separated.
    pub mac: &'static str,
    /// Its IPv4 address, in a /24.
    pub ipv4: Ipv4Addr,
    /// Its global IPv6 address, in a /64. Not there when the host has no IPv6.
    pub ipv6: Ipv6Addr,
}

/// Two namespaces with a veth cable between them, checksum offloads off: [`VethPair::A`] in `a`, [`VethPair::B`] in `b`.
#[derive(Debug)]
pub struct VethPair {
    /// The namespace of [`VethPair::A`].
    pub a: Netns,
    /// The namespace of [`VethPair::B`].
    pub b: Netns,
}

impl VethPair {
    /// The end in namespace `a`.
    pub const A: End = End {
        interface: "uroce0",
        mac: "02:78:00:00:00:01",
        ipv4: Ipv4Addr::new(10, 78, 0, 1),
        ipv6: Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1),
    };
    /// The end in namespace `b`.
    pub const B: End = End {
        interface: "uroce1",
        mac: "02:78:00:00:00:02",
        ipv4: Ipv4Addr::new(10, 78, 0, 2),
        ipv6: Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 2),
    };
    /// The end of a second cable in namespace `a`.
    pub const SECOND_A: End = End {
        interface: "uroce2",
        mac: "02:78:00:00:01:01",
        ipv4: Ipv4Addr::new(10, 78, 1, 1),
        ipv6: Ipv6Addr::new(0xfd78, 0, 0, 1, 0, 0, 0, 1),
    };
    /// The end of a second cable in namespace `b`.
    pub const SECOND_B: End = End {
        interface: "uroce3",
        mac: "02:78:00:00:01:02",
        ipv4: Ipv4Addr::new(10, 78, 1, 2),
        ipv6: Ipv6Addr::new(0xfd78, 0, 0, 1, 0, 0, 0, 2),
    };

    /// Makes the namespaces and the cable. `mtu` is the interfaces' MTU in bytes (1500 carries path MTU 1024, 4500 carries
    /// 4096).
    ///
    /// # Errors
    /// As [`Netns::create`].
    pub fn create(mtu: u16) -> Result<VethPair> {
        let pair = VethPair { a: Netns::create("a")?, b: Netns::create("b")? };
        cable(&pair.a, Self::A.interface, &pair.b, Self::B.interface)?;
        configure(&pair.a, &Self::A, mtu)?;
        configure(&pair.b, &Self::B, mtu)?;
        Ok(pair)
    }

    /// Joins the two by another cable: [`VethPair::SECOND_A`] and [`VethPair::SECOND_B`].
    ///
    /// # Errors
    /// As [`Netns::create`].
    pub fn second_cable(&self, mtu: u16) -> Result<()> {
        cable(&self.a, Self::SECOND_A.interface, &self.b, Self::SECOND_B.interface)?;
        configure(&self.a, &Self::SECOND_A, mtu)?;
        configure(&self.b, &Self::SECOND_B, mtu)
    }
}

/// Makes a veth cable from `left` in namespace `from` to `right` in namespace `to`; both ends are down.
pub(crate) fn cable(from: &Netns, left: &str, to: &Netns, right: &str) -> Result<()> {
    from.ip(&["link", "add", left, "type", "veth", "peer", "name", right, "netns", to.name()]).map(drop)
}

/// Gives an interface its addresses and MTU, switches its offloads off and brings it up.
pub(crate) fn configure(namespace: &Netns, end: &End, mtu: u16) -> Result<()> {
    let name = end.interface;
    offloads_off(namespace, name)?;
    namespace.ip(&["link", "set", name, "address", end.mac, "mtu", &mtu.to_string(), "up"])?;
    namespace.ip(&["address", "add", &format!("{}/24", end.ipv4), "dev", name])?;
    if ipv6_on_this_host() {
        namespace.ip(&["address", "add", &format!("{}/64", end.ipv6), "dev", name, "nodad"])?;
    }
    Ok(())
}

/// Switches checksum offloads of a veth end off: frames that skip the stack (AF_XDP, AF_PACKET) would carry half-made
/// checksums, and TCP beside them would break.
pub(crate) fn offloads_off(namespace: &Netns, interface: &str) -> Result<()> {
    namespace.exec("ethtool", &["-K", interface, "tx", "off", "rx", "off"]).map(drop)
}

/// Whether this host's kernel has IPv6 at all.
pub fn ipv6_on_this_host() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

/// The GID indices that tests play by, on both sides: 0 is link-local, 1 IPv4, 2 global IPv6. Only IPv4 with `UROCE_NO_IPV6`.
///
/// # Panics
/// On a host without IPv6, unless `UROCE_NO_IPV6` says that this is known: two thirds of a matrix do not vanish without a word.
pub fn gids() -> &'static [&'static str] {
    if std::env::var_os("UROCE_NO_IPV6").is_some() {
        return &["1"];
    }
    let advice = "this host has no IPv6: with UROCE_NO_IPV6=1 tests play by IPv4 only";
    assert!(ipv6_on_this_host(), "{advice}");
    &["1", "0", "2"]
}

/// Removes namespaces and directories that processes which no longer exist left behind. Runs by itself before a namespace
/// is made.
pub fn sweep() {
    for entry in std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        if let Some(name) = entry.file_name().to_str().filter(|name| left_behind(name))
            && let Ok(path) = CString::new(format!("{DIRECTORY}/{name}"))
        {
            remove(&path);
        }
    }
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(left_behind) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether `name` is `uroce-<label>-<pid>-<n>` with a pid that no process has.
fn left_behind(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    let mut parts = rest.rsplit('-');
    let (Some(serial), Some(pid)) = (parts.next(), parts.next()) else { return false };
    serial.parse::<u32>().is_ok() && pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
}

/// The names of the namespaces that this process has made and not yet removed.
static LIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The directories that go at the process's exit, unless they have gone before.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has `directory` removed at the process's exit, if it is still there then.
pub(crate) fn remove_directory_at_exit(directory: &Path) {
    DIRECTORIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(directory.to_path_buf());
    remove_at_exit();
}

/// Has what is still there at the process's exit removed: a lab in a `static` is never dropped.
fn remove_at_exit() {
    extern "C" fn at_exit() {
        if let Ok(directories) = DIRECTORIES.try_lock() {
            for directory in directories.iter() {
                let _ = std::fs::remove_dir_all(directory);
            }
        }
        // A thread that holds the lock while the process exits: the next sweep will do.
        if let Ok(live) = LIVE.try_lock() {
            for name in live.iter() {
                if let Ok(path) = CString::new(format!("{DIRECTORY}/{name}")) {
                    remove(&path);
                }
            }
        }
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: `at_exit` is an `extern "C"` function without arguments that does not unwind.
        unsafe { libc::atexit(at_exit) };
        exit_at_signals();
    });
}

/// Has Ctrl-C, and the signal that `kill` and `timeout` send, end this process by exit(3): so what is to be removed is.
fn exit_at_signals() {
    // Without it, the next sweep will do.
    let Ok(mut signals) = Signals::new([libc::SIGINT, libc::SIGTERM]) else { return };
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    });
}

/// Takes a named namespace away; its interfaces go when the last process in it has ended.
fn remove(path: &CStr) {
    // SAFETY: both take a NUL-terminated path and nothing else.
    unsafe {
        libc::umount2(path.as_ptr(), libc::MNT_DETACH);
        libc::unlink(path.as_ptr());
    }
}

/// Moves the calling thread into the namespace at `path`, with a mount namespace of its own whose `/sys` belongs to it.
/// System calls only, so that it may run between fork and exec.
fn enter(path: &CStr) -> io::Result<()> {
    let check = |result: libc::c_int| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: every pointer is to a NUL-terminated string that outlives its call; the descriptors are ours and closed here.
    unsafe {
        let namespace = check(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC))?;
        let moved = check(libc::setns(namespace, libc::CLONE_NEWNET));
        libc::close(namespace);
        moved?;
        check(libc::unshare(libc::CLONE_NEWNS))?;
        let (none, root, sys) = (std::ptr::null(), c"/".as_ptr(), c"/sys".as_ptr());
        check(libc::mount(none, root, none, libc::MS_SLAVE | libc::MS_REC, std::ptr::null()))?;
        // Best effort from here: without a /sys of its own, a program only sees the other interfaces there.
        let tree =
            libc::syscall(libc::SYS_open_tree, -1, c"/sys/fs/bpf".as_ptr(), 1 /* OPEN_TREE_CLONE */) as libc::c_int;
        libc::umount2(sys, libc::MNT_DETACH);
        libc::mount(c"sysfs".as_ptr(), sys, c"sysfs".as_ptr(), 0, std::ptr::null());
        if tree >= 0 {
            let flags = 4; // MOVE_MOUNT_F_EMPTY_PATH
            libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), libc::AT_FDCWD, c"/sys/fs/bpf".as_ptr(), flags);
            libc::close(tree);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_dead_processes_are_swept() {
        assert!(!left_behind("uroce-rxe-1-0"), "pid 1 lives");
        assert!(!left_behind("other-rxe-4194305-0"));
        assert!(!left_behind("uroce-rxe"));
        // One above the largest pid there can be.
        assert!(left_behind("uroce-rxe-4194305-0"));
    }
}

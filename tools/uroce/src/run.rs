//! `uroce run`: an unmodified verbs program on this stack.
//!
//! The program gets our `libibverbs.so.1` and `librdmacm.so.1` in place of the system's: in a folder on LD_LIBRARY_PATH for what is linked or
//! loaded by name, and preloaded for what brings a copy of its own. Options go on as `UROCE_*` variables.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::{env, fs, io};

use clap::Args;
use uroce::verbs::{Device, PathMtu, TrafficPolicy};

use crate::Failure;
use crate::device_arguments::DeviceArguments;
use crate::device_tree;
use crate::elf::{self, Kind};
use crate::elsewhere;

const EXAMPLES: &str = "\
Examples:
  uroce run ib_write_bw                          a server on every usable interface
  uroce run --dev eth0 ib_write_bw 10.0.0.1      its client
  uroce run --trace --capture run.pcapng ibv_rc_pingpong -g 1 10.0.0.1";

/// Run an unmodified verbs program on this stack
///
/// Exits as the program did: 128 and the signal's number when one killed it, 125 when uroce could not run it.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("devices", |arg| arg.help(
    "Interfaces, or an address, of the only device that the program sees, with commas between them; it has the name of the \
     first. Default: every usable interface is a device"
)))]
pub struct Arguments {
    #[command(flatten)]
    device: DeviceArguments,

    /// Upper bound on the program's path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", env = "UROCE_MTU", hide_env_values = true, help_heading = "Device")]
    mtu: Option<PathMtu>,

    /// Also give devices LIDs, for programs that do not use GIDs (qperf): the last 16 bits of the first IPv4 address
    #[arg(long, help_heading = "Device")]
    lids: bool,

    /// Trace control-path verbs on stderr, with the reason of each failure, and print the counters at the end
    #[arg(long, help_heading = "Output")]
    trace: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The exit status for our own failures; programs rarely use it.
const OUR_FAILURE: u8 = 125;

/// The library as cargo builds it.
const LIBRARY: &str = "liburoce_verbs.so";

/// The library's bytes, in a program that is installed alone.
#[cfg(feature = "embed")]
const EMBEDDED: Option<&[u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/liburoce_verbs.so")));
#[cfg(not(feature = "embed"))]
const EMBEDDED: Option<&[u8]> = None;

/// What the folder on LD_LIBRARY_PATH calls it: the linker's names, and those that some programs load. Both libraries are
/// one file, which the loader then loads once.
const NAMES: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

pub fn run(arguments: &Arguments) -> ExitCode {
    prepare_and_run(arguments).unwrap_or_else(|error| {
        eprintln!("uroce: {error}");
        ExitCode::from(OUR_FAILURE)
    })
}

fn prepare_and_run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (name, rest) = arguments.command.split_first().ok_or("no program is given")?;
    if let Some(file) = &arguments.device.policy {
        // Many programs say only that they found no device.
        TrafficPolicy::read(file)?;
    }
    let program = find_program(name)?;
    let loader = check_program(&program)?;
    let devices = &arguments.device.devices;
    if devices.is_empty() {
        refuse_beside(Path::new("/sys/class/infiniband"))?;
    }
    arguments.device.begin()?;
    let folder = Folder::create(&Library::find()?)?;
    let (tree, seen) = (folder.tree(), Device::visible(devices)?);
    device_tree::write(&tree, &seen).map_err(|error| format!("cannot write {}: {error}", tree.display()))?;
    let mut command = Command::new(&program);
    command.arg0(name).args(rest);
    set_environment(&mut command, arguments, &folder)?;
    if let Some(loader) = loader {
        check_symbols(&loader, &program, &command)?;
    }
    let status = wait(command, &folder).map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    folder.end(name, status);
    Ok(ExitCode::from(status))
}

/// Refuses to run beside devices of the kernel's without being told where: the program would not see them.
fn refuse_beside(devices: &Path) -> Result<(), Failure> {
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "this machine has RDMA devices ({}), which the program would not see: run it without uroce, or name uroce's \
             interface with --dev",
            names.join(", ")
        )
        .into()),
    }
}

/// The program's file: as execvp(3) finds it.
fn find_program(name: &OsStr) -> Result<PathBuf, Failure> {
    let is_program =
        |file: &Path| fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
    let shown = Path::new(name).display();
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match fs::metadata(&file) {
            Err(error) => Err(format!("cannot run {shown}: {error}").into()),
            Ok(_) if !is_program(&file) => Err(format!("cannot run {shown}: it is not an executable file").into()),
            Ok(_) => Ok(file),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file));
    found.ok_or_else(|| format!("cannot run {shown}: not found in PATH").into())
}

/// Whether the loader will let us in. Returns the program's loader, if it is a program and no script.
fn check_program(program: &Path) -> Result<Option<PathBuf>, Failure> {
    let shown = program.display();
    let data = fs::metadata(program)?;
    // SAFETY: no arguments, no effect.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let changes_user = data.mode() & 0o4000 != 0 && data.uid() != user;
    let changes_group = data.mode() & 0o2000 != 0 && data.gid() != group;
    if changes_user || changes_group || (user != 0 && has_capabilities(program)) {
        return Err(format!(
            "{shown} is setuid, setgid or has capabilities, so that the loader ignores LD_LIBRARY_PATH; run it as the user \
             that it changes to, or run a copy without these rights"
        )
        .into());
    }
    match elf::kind(program).map_err(|error| format!("cannot read {shown}: {error}"))? {
        Kind::Dynamic(loader) => Ok(Some(loader)),
        Kind::Static => {
            Err(format!("{shown} is statically linked and cannot load uroce's libibverbs; link it dynamically").into())
        }
        Kind::Go => Err(format!(
            "{shown} is a Go program without a C library, and cannot load uroce's libibverbs; build it with CGO_ENABLED=1"
        )
        .into()),
        Kind::Foreign(what) => {
            let processor = env::consts::ARCH;
            Err(format!("{shown} is a program for {what}; uroce's libibverbs is for {processor}, 64 bits, and glibc").into())
        }
        Kind::Other => Ok(None),
    }
}

/// Whether the file gives capabilities to who runs it.
fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: two strings; with no room only the size is asked for.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Our library.
enum Library {
    File(PathBuf),
    /// In this program: it is written where the program that runs can load it.
    Embedded(&'static [u8]),
}

impl Library {
    /// Beside this program, where packages put it, or where cargo leaves it when only tests need it: the newest counts.
    /// Otherwise the one that was built in.
    fn find() -> Result<Library, Failure> {
        let own = env::current_exe().map_err(|error| format!("cannot find uroce's own path: {error}"))?;
        let folder = own.parent().unwrap_or(Path::new("/"));
        let places = [folder.to_owned(), folder.join("deps"), folder.join("../lib/uroce")];
        let files = places.iter().map(|place| place.join(LIBRARY));
        let newest = files.filter_map(|file| Some((fs::metadata(&file).ok()?.modified().ok()?, file))).max();
        match (newest, EMBEDDED) {
            (Some((_, file)), _) => Ok(Library::File(fs::canonicalize(file)?)),
            (None, Some(bytes)) => Ok(Library::Embedded(bytes)),
            (None, None) => Err(format!(
                "{LIBRARY} is not in {} (or ../lib/uroce): build it with `cargo build --workspace`, or install a uroce \
                 that has it in itself: cargo install --path tools/uroce --features embed",
                folder.display()
            )
            .into()),
        }
    }

    /// Puts it into `folder` under the system's names; the first is made first.
    fn place(&self, folder: &Path) -> io::Result<()> {
        let file = match self {
            Library::File(file) => file.as_path(),
            Library::Embedded(_) => Path::new(LIBRARY),
        };
        for name in NAMES {
            symlink(file, folder.join(name))?;
        }
        match self {
            Library::File(_) => Ok(()),
            Library::Embedded(bytes) => fs::write(folder.join(LIBRARY), bytes),
        }
    }
}

/// A folder with our library under the system's names. It is locked, by flock(2), for as long as the program or anything
/// that it started lives: they inherit the descriptor. Process numbers would not do: the same ones are given out in other
/// PID namespaces, which may share the parent folder.
struct Folder {
    path: PathBuf,
    /// `None` once it is given up.
    lock: Option<File>,
}

/// What these folders' names begin with; mkdtemp(3) adds six characters.
const PREFIX: &str = "uroce-run-";
const SUFFIX: &str = "XXXXXX";

/// Where the lock's descriptor is in programs, or above: beyond those that shell scripts and daemons use by number, below the
/// usual limit of 1024.
const LOCK_FD_MIN: libc::c_int = 200;

impl Folder {
    fn create(library: &Library) -> Result<Folder, Failure> {
        let parent = parent(library)?;
        sweep(&parent);
        let failed = |error: io::Error| format!("cannot create a folder in {}: {error}", parent.display());
        let folder = loop {
            let path = unique_folder(&parent).map_err(failed)?;
            // Somebody who sweeps may have been first: then it is gone, and another one is made.
            let lock = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            lock.lock().map_err(failed)?;
            if fs::metadata(&path).is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino())) {
                break Folder { path, lock: Some(lock) };
            }
        };
        library.place(&folder.path).map_err(failed)?;
        Ok(folder)
    }

    /// Says where the program's traffic went, if that was elsewhere, and gives the folder up.
    fn end(mut self, program: &OsStr, status: u8) {
        self.lock = None;
        // Who still has the folder locked may still come.
        let is_over = File::open(&self.path).is_ok_and(|folder| folder.try_lock().is_ok());
        if let Some(word) = is_over.then(|| elsewhere::word(&self.tree(), program, status == 0)).flatten() {
            eprintln!("uroce: {word}");
        }
    }

    /// Where the files are that programs look for in `/dev` and sysfs.
    fn tree(&self) -> PathBuf {
        self.path.join("tree")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.lock = None;
        remove_if_left(&self.path);
    }
}

/// Where folders are made: in TMPDIR. A library in this program is written into the folder, so the loader must be allowed to
/// load it from there: then the first folder counts that is not mounted noexec.
///
/// # Errors
/// When all are, with their names.
fn parent(library: &Library) -> Result<PathBuf, Failure> {
    // As /proc shows the paths of open files.
    let temporary = fs::canonicalize(env::temp_dir()).unwrap_or_else(|_| env::temp_dir());
    if matches!(library, Library::File(_)) || !forbids_programs(&temporary) {
        return Ok(temporary);
    }
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let others = [variable("XDG_RUNTIME_DIR"), Some("/dev/shm".into()), cache];
    let others: Vec<PathBuf> =
        others.into_iter().flatten().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
    if let Some(fit) = others.iter().find(|folder| is_writable(folder) && !forbids_programs(folder)) {
        return Ok(fit.clone());
    }
    let tried: String = others.iter().map(|folder| format!(", {}", folder.display())).collect();
    Err(format!(
        "uroce's libibverbs can be loaded from none of {}{tried}: they are mounted noexec or cannot be written to; set \
         TMPDIR to a folder that allows both",
        temporary.display()
    )
    .into())
}

/// Whether this user can make files there.
fn is_writable(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: a string.
    unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
}

/// Whether the loader may not load files from there.
fn forbids_programs(folder: &Path) -> bool {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: plain memory that the call fills.
    let mut system: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a string and that memory.
    unsafe { libc::statvfs(path.as_ptr(), &mut system) == 0 && system.f_flag & libc::ST_NOEXEC != 0 }
}

/// Makes a folder that nobody else may read or write, and that was not there before.
fn unique_folder(parent: &Path) -> io::Result<PathBuf> {
    let template = CString::new(parent.join(format!("{PREFIX}{SUFFIX}")).into_os_string().into_vec())?;
    let template = template.into_raw();
    // SAFETY: a string of ours that ends in six X, which are overwritten; its length stays the same.
    let (made, path) = unsafe { (!libc::mkdtemp(template).is_null(), CString::from_raw(template)) };
    if made { Ok(OsString::from_vec(path.into_bytes()).into()) } else { Err(io::Error::last_os_error()) }
}

/// Removes folders of our own that were left by processes that were killed.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let suffix = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if suffix.is_some_and(|suffix| suffix.len() == SUFFIX.len()) {
            remove_if_left(&entry.path());
        }
    }
}

/// Removes a folder of this user with our library in it, unless somebody has locked it. One that is empty is a folder
/// whose maker or remover was killed: the library's first name is what is made first and removed last.
fn remove_if_left(path: &Path) {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let Ok(folder) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return };
    // SAFETY: no arguments, no effect.
    let user = unsafe { libc::geteuid() };
    let is_users = folder.metadata().is_ok_and(|data| data.uid() == user);
    if !is_users || folder.try_lock().is_err() {
        return;
    }
    if fs::symlink_metadata(path.join(NAMES[0])).is_ok_and(|data| data.is_symlink()) {
        let others = fs::read_dir(path).into_iter().flatten().flatten().filter(|entry| entry.file_name() != NAMES[0]);
        for entry in others {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        }
        let _ = fs::remove_file(path.join(NAMES[0]));
    }
    let _ = fs::remove_dir(path);
}

/// What UCX is told, unless somebody else has.
const UCX_VARIABLES: [(&str, &str); 2] = [
    // From how many bytes on it sends from where they lie. It compares what a copy costs with what registering costs, which its
    // users have done before, by the port's speed: up to 56 Gb/s it copies, in pieces of 8256 bytes, so that few bytes are in
    // flight. What fits into a piece it may copy.
    ("UCX_ZCOPY_THRESH", "8256"),
    // Its threads wait for each other asleep. Spinning, one that waits on the holder's processor keeps it from going on: NIXL
    // was 400 ms late of 90 on two processors.
    ("UCX_USE_MT_MUTEX", "y"),
];

fn set_environment(command: &mut Command, arguments: &Arguments, folder: &Folder) -> Result<(), Failure> {
    let before = |first: &OsStr, variable: &str| {
        let mut list = first.to_owned();
        if let Some(rest) = env::var_os(variable).filter(|rest| !rest.is_empty()) {
            list.push(":");
            list.push(rest);
        }
        list
    };
    command.env("LD_LIBRARY_PATH", before(folder.path.as_os_str(), "LD_LIBRARY_PATH"));
    command.env("LD_PRELOAD", before(folder.path.join(NAMES[0]).as_os_str(), "LD_PRELOAD"));
    command.env("UROCE_TREE", folder.tree());
    let mut options = arguments.device.options();
    options.path_mtu = arguments.mtu;
    // The program may change its folder before it opens the device.
    for file in [&mut options.capture, &mut options.policy].into_iter().flatten() {
        *file = std::path::absolute(&*file)?;
    }
    for (name, value) in options.variables() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let set = UCX_VARIABLES.into_iter().filter(|(name, _)| env::var_os(name).is_none());
    let told: Vec<String> = set.clone().map(|(name, value)| format!("{name}={value}")).collect();
    command.envs(set).env_remove("UROCE_UCX");
    if !told.is_empty() {
        // The library says so, in programs that use UCX.
        command.env("UROCE_UCX", told.join(", "));
    }
    if let Some(interval) = arguments.device.interval {
        command.env("UROCE_INTERVAL", interval.as_secs_f64().to_string());
    }
    for (name, is_set) in [("UROCE_LIDS", arguments.lids), ("UROCE_TRACE", arguments.trace)] {
        if is_set {
            command.env(name, "1");
        }
    }
    Ok(())
}

/// Has the loader say which of libibverbs' symbols would be missing, before the program finds out in its middle.
fn check_symbols(loader: &Path, program: &Path, like: &Command) -> Result<(), Failure> {
    let mut trial = Command::new(loader);
    trial.arg("--list").arg(program).stdin(Stdio::null());
    for (name, value) in like.get_envs() {
        if let Some(value) = value {
            trial.env(name, value);
        }
    }
    // As ldd -r does it: bind everything, and say what is not there.
    trial.env("LD_WARN", "yes").env("LD_BIND_NOW", "yes");
    let Ok(output) = trial.output() else { return Ok(()) };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    match missing_symbol(&text) {
        Some(line) => Err(format!("{} needs a symbol that uroce's libibverbs lacks: {line}", program.display()).into()),
        None => Ok(()),
    }
}

/// What the loader says of the first symbol or version of libibverbs that is missing.
fn missing_symbol(text: &str) -> Option<&str> {
    let is_ours = |line: &str| {
        line.contains("ibv_")
            || line.contains("IBVERBS_")
            || line.contains("verbs_")
            || line.contains("rdma_")
            || line.contains("RDMACM_")
    };
    let is_missing = |line: &str| line.contains("undefined symbol") || line.contains("' not found (required by");
    text.lines().find(|line| is_ours(line) && is_missing(line)).map(str::trim)
}

/// The program, while it runs.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Signals that are meant for the program when somebody sends them to us.
const PASSED_ON: [libc::c_int; 7] =
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];

/// Passes a signal on. Those of the terminal reach the program by themselves.
extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let child = CHILD.load(Ordering::Relaxed);
    // SAFETY: the kernel passes a valid structure; kill(2) may be called in handlers.
    unsafe {
        if child > 0 && (*info).si_code <= 0 {
            libc::kill(child, signal);
        }
    }
}

/// Blocks the signals that are passed on, in this thread, and returns the mask before.
fn block_passed_on() -> libc::sigset_t {
    // SAFETY: plain memory, and system calls on it.
    unsafe {
        let (mut blocked, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&mut blocked);
        for signal in PASSED_ON {
            libc::sigaddset(&mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
        before
    }
}

/// Sets this thread's mask to what it was.
fn restore_mask(before: &libc::sigset_t) {
    // SAFETY: the mask is one that was ours.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// From now on signals reach the process `child`.
fn pass_signals_on(child: u32) {
    CHILD.store(child as i32, Ordering::Relaxed);
    for signal in PASSED_ON {
        // SAFETY: plain memory, and a handler that does nothing but a system call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = pass_on as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Runs the program to its end, with the lock of `folder` open in it.
fn wait(mut command: Command, folder: &Folder) -> io::Result<u8> {
    let own = std::process::id();
    let lock = folder.lock.as_ref().expect("it was made locked").as_raw_fd();
    // A signal that comes before there is a handler, or a program to pass it on to, waits. The program begins with our own mask.
    let before = block_passed_on();
    // SAFETY: system calls only between fork and exec.
    unsafe {
        command.pre_exec(move || {
            restore_mask(&before);
            // The copy is not closed by exec(3). A limit on descriptors may leave none so high.
            if libc::fcntl(lock, libc::F_DUPFD, LOCK_FD_MIN) < 0 && libc::fcntl(lock, libc::F_DUPFD, 3) < 0 {
                return Err(io::Error::last_os_error());
            }
            // A program must not outlive us when we are killed: who does that means the program.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::getppid() as u32 != own {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let spawned = command.spawn();
    if let Ok(child) = &spawned {
        pass_signals_on(child.id());
    }
    restore_mask(&before);
    let status = spawned?.wait()?;
    CHILD.store(0, Ordering::Relaxed);
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(i32::from(OUR_FAILURE));
    Ok(code as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_loader_says_of_libibverbs_is_found_and_the_rest_is_left_to_it() {
        let undefined = "\tlibc.so.6 => /lib/libc.so.6\nundefined symbol: ibv_new, version IBVERBS_1.99\t(./program)\n";
        assert_eq!(missing_symbol(undefined), Some("undefined symbol: ibv_new, version IBVERBS_1.99\t(./program)"));
        let version = "./p: /tmp/libibverbs.so.1: version `IBVERBS_1.99' not found (required by ./p)";
        assert_eq!(missing_symbol(version), Some(version));
        assert_eq!(missing_symbol("undefined symbol: of_its_own\t(./program)\n\tlibibverbs.so.1 => /tmp/x"), None);
    }
}

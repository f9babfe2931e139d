//! `uroce lab`: two hosts to try things in, without root where the kernel allows it.
//!
//! The hosts are network namespaces with a veth between them. A process without privileges makes them in a user namespace. Where the
//! kernel refuses that, they are two addresses of the loopback. The shell takes this process's place, so that signals and exit status
//! are its own; another process keeps host b until nobody has the pipe to it any more.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

use clap::Args;
use rustix::io::FdFlags;
use rustix::thread::UnshareFlags;

use crate::Failure;

const EXAMPLES: &str = "\
Examples:
  uroce lab                                      a shell on host a
  uroce lab sh -c 'b uroce pingpong & sleep 1; uroce pingpong $B'
  uroce lab sh -c 'b uroce run ib_write_bw & sleep 1; uroce run ib_write_bw $B'";

/// Start a shell, or a command, on the first of two hosts with a cable between them; no root needed
///
/// `b COMMAND` runs a command on the second host. $A and $B are the addresses of the hosts. All of it is gone when the last of these
/// programs ends. Where the kernel allows no namespaces, the hosts are two addresses of the loopback.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Be host b, and remove this folder at the end
    #[arg(long, hide = true, value_name = "FOLDER", conflicts_with = "inside")]
    hold: Option<PathBuf>,

    /// Run the command in the network namespace of this process
    #[arg(long, hide = true, value_name = "PID")]
    inside: Option<u32>,

    /// Use two addresses of the loopback, and no namespaces
    #[arg(long)]
    loopback: bool,

    /// The command and its arguments; default: $SHELL
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The names of the cable's ends.
const ENDS: [&str; 2] = ["a0", "b0"];

/// The addresses of the hosts. They are seen in the namespaces alone.
const ADDRESSES: [&str; 2] = ["10.7.0.1", "10.7.0.2"];

/// Addresses of the loopback, for hosts without namespaces.
const LOOPBACK: [&str; 2] = ["127.0.0.2", "127.0.0.3"];

/// Path MTU 4096 with all headers.
const MTU: &str = "4500";

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(folder) = &arguments.hold {
        return hold(folder);
    }
    if let Some(process) = arguments.inside {
        enter(process)?;
        return Err(replace_by(&arguments.command, |_| {}));
    }
    let own = env::current_exe().map_err(|error| format!("cannot find uroce's own path: {error}"))?;
    let folder = folder()?;
    let separate = if arguments.loopback { Err("as was asked for".to_owned()) } else { namespaces(&own, &folder) };
    let (addresses, on_b) = match &separate {
        Ok(process) => (ADDRESSES, format!("exec '{}' lab --inside {process} -- \"$@\"", own.display())),
        Err(why) => {
            eprintln!("uroce: the hosts are two addresses of the loopback: {why}");
            keep(&own, &folder)?;
            (LOOPBACK, format!("UROCE_DEV={} exec \"$@\"", LOOPBACK[1]))
        }
    };
    let script = folder.join("b");
    fs::write(&script, format!("#!/bin/sh\n{on_b}\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700))?;
    let command = match &arguments.command[..] {
        [] => vec![env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
        command => command.to_vec(),
    };
    if arguments.command.is_empty() {
        let [a, b] = addresses;
        eprintln!("uroce: this is host a, {a}; `b COMMAND` runs on host b, {b}. Try:");
        eprintln!("    b uroce pingpong & sleep 1; uroce pingpong $B");
    }
    Err(replace_by(&command, |command| {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [folder.as_path(), own.parent().unwrap_or(Path::new("/"))];
        let path = env::join_paths(folders.into_iter().map(Path::to_owned).chain(env::split_paths(&path)));
        command.env("PATH", path.unwrap_or_default()).env("A", addresses[0]).env("B", addresses[1]);
        if separate.is_err() {
            command.env("UROCE_DEV", addresses[0]);
        }
    }))
}

/// Puts a command in this process's place. Returns when that failed.
fn replace_by(command: &[OsString], prepare: impl FnOnce(&mut Command)) -> Failure {
    let Some((program, rest)) = command.split_first() else { return "no command is given".into() };
    let mut command = Command::new(program);
    prepare(command.args(rest));
    format!("cannot run {}: {}", program.display(), command.exec()).into()
}

/// A new folder for the command `b`.
fn folder() -> Result<PathBuf, Failure> {
    let folder =
        env::temp_dir().join(format!("uroce-lab-{}-{}", rustix::process::geteuid().as_raw(), std::process::id()));
    fs::create_dir(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    Ok(folder)
}

/// Makes both hosts; this process is on the first one then. Returns the process that is on the second, or why there are none.
fn namespaces(own: &Path, folder: &Path) -> Result<u32, String> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let network = UnshareFlags::NEWNET;
    if user.is_root() {
        unshare(network).map_err(|error| format!("no network namespace: {error}"))?;
    } else {
        unshare(network | UnshareFlags::NEWUSER).map_err(|error| format!("no user namespace: {error}"))?;
        // Root inside, so that programs keep the namespace's capabilities.
        let map = |file: &str, text: String| {
            fs::write(format!("/proc/self/{file}"), text).map_err(|error| format!("/proc/self/{file}: {error}"))
        };
        map("setgroups", "deny".to_owned())?;
        map("uid_map", format!("0 {} 1", user.as_raw()))?;
        map("gid_map", format!("0 {} 1", group.as_raw()))?;
    }
    let other = keep(own, folder).map_err(|error| error.to_string())?;
    let here = |line: String| ip(Command::new("ip"), &line);
    let there = |line: String| {
        let mut command = Command::new(own);
        command.args(["lab", "--inside", &other.to_string(), "--", "ip"]);
        ip(command, &line)
    };
    let [a, b] = ENDS;
    here(format!("link add {a} mtu {MTU} type veth peer name {b} mtu {MTU} netns {other}"))?;
    for line in
        ["link set lo up".to_owned(), format!("address add {}/24 dev {a}", ADDRESSES[0]), format!("link set {a} up")]
    {
        here(line)?;
    }
    for line in
        ["link set lo up".to_owned(), format!("address add {}/24 dev {b}", ADDRESSES[1]), format!("link set {b} up")]
    {
        there(line)?;
    }
    Ok(other)
}

fn unshare(what: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors and memory stay shared, and nothing in this process relies on the network that it leaves.
    Ok(unsafe { rustix::thread::unshare_unsafe(what) }?)
}

fn ip(mut command: Command, line: &str) -> Result<(), String> {
    let output = command.args(line.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run ip (Debian's package iproute2): {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {line}: {}", said.trim())) }
}

/// Starts the process that keeps host b and the folder for as long as this process, or whatever takes its place or is started by that,
/// lives: it reads from a pipe that they inherit. It is in a network namespace of its own, if it may be.
fn keep(own: &Path, folder: &Path) -> Result<u32, Failure> {
    let mut command = Command::new(own);
    command.args(["lab", "--hold"]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot start the second host: {error}"))?;
    let mut ready = [0];
    let out = child.stdout.as_mut().ok_or("no pipe from the second host")?;
    out.read_exact(&mut ready).map_err(|error| format!("the second host ended: {error}"))?;
    let pipe = OwnedFd::from(child.stdin.take().ok_or("no pipe to the second host")?);
    rustix::io::fcntl_setfd(&pipe, FdFlags::empty())?;
    // It stays open in whatever takes this process's place.
    let _ = pipe.into_raw_fd();
    Ok(child.id())
}

/// Is host b until the pipe closes.
fn hold(folder: &Path) -> Result<ExitCode, Failure> {
    // Out of reach of the keys that end a command on host a.
    let _ = rustix::process::setsid();
    // Without it, both hosts are addresses of the loopback.
    let _ = unshare(UnshareFlags::NEWNET);
    io::stdout().write_all(b".")?;
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    fs::remove_dir_all(folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Moves this process to the network namespace of another.
fn enter(process: u32) -> Result<(), Failure> {
    let file = format!("/proc/{process}/ns/net");
    let namespace = fs::File::open(&file).map_err(|error| format!("{file}: {error}"))?;
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))?;
    Ok(())
}

//! `cargo xtask setup`: installs what is missing. The other commands call it first.
use crate::{Failure, Outcome, rust_programs, valkey, workspace};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What linking takes: all that a build without AF_XDP needs besides Rust.
const LINKING: &[(&str, &str)] = &[
    ("gcc", "C crates, verbs-agent"),
    ("libc6-dev", "C crates, verbs-agent"),
    ("binutils", "linking libibverbs.so.1"),
];

/// What building with AF_XDP takes besides.
const AF_XDP: &[(&str, &str)] = &[
    ("clang", "the XDP program; its libclang, bindings to libxdp"),
    ("llvm", "the XDP program"),
    ("lld", "the XDP program"),
    ("libelf-dev", "libbpf, which the AF_XDP crate builds"),
    ("zlib1g-dev", "libbpf"),
    ("m4", "libbpf"),
    ("pkg-config", "libbpf"),
    ("make", "libbpf"),
];

/// Debian packages that the workspace's programs and tests need besides, and what each is for.
const PACKAGES: &[(&str, &str)] = &[
    ("libibverbs-dev", "the C ABI that libibverbs.so.1 is compared with"),
    ("librdmacm-dev", "the C ABI that librdmacm.so.1 is compared with"),
    ("rdmacm-utils", "programs to run on librdmacm.so.1"),
    ("ibverbs-utils", "programs to run on libibverbs.so.1"),
    ("perftest", "programs to run on libibverbs.so.1"),
    ("python3-pyverbs", "rdma-core's own tests, to run on libibverbs.so.1"),
    ("qperf", "programs to run on libibverbs.so.1"),
    ("ucx-utils", "programs to run on libibverbs.so.1"),
    ("libfabric-bin", "programs to run on libibverbs.so.1 and librdmacm.so.1"),
    ("libgloo-dev", "collective operations without MPI, to run on libibverbs.so.1"),
    ("g++", "compiling a program for gloo"),
    ("openmpi-bin", "MPI, to run on libibverbs.so.1"),
    ("libopenmpi-dev", "compiling a program for Open MPI"),
    ("mpich", "another MPI"),
    ("libmpich-dev", "compiling a program for MPICH"),
    ("infiniband-diags", "programs that read sysfs"),
    ("bubblewrap", "containers"),
    ("valgrind", "leaks and invalid accesses of libibverbs.so.1"),
    ("gzip", "unpacking rdma-core's tests"),
    ("iproute2", "namespaces"),
    ("procps", "sysctl in namespaces"),
    ("iputils-ping", "traffic that must stay with the kernel"),
    ("ethtool", "offloads of veth interfaces"),
    ("iperf3", "TCP, measured by others, beside what the bench measures"),
    ("nftables", "losing frames on purpose"),
    ("tcpdump", "captures on the bridge"),
    ("strace", "counting system calls"),
    ("tshark", "a second opinion on captures"),
    ("python3-jsonschema", "JSON as the schemas say"),
    ("lua5.2", "Wireshark's script, as Wireshark 4.0 runs it"),
    ("lua5.4", "Wireshark's script, as Wireshark from 4.4 on runs it"),
    ("qemu-system-x86", "the kernel rxe machine"),
    ("kmod", "the machine's modules"),
    ("xz-utils", "the machine's kernel"),
    ("zstd", "newer kernels"),
    ("lz4", "other kernels"),
    ("tar", "unpacking the kernel"),
    ("busybox-static", "small hosts in tests"),
    ("python3", "scapy, NIXL and Mooncake"),
    ("python3-venv", "scapy, NIXL and Mooncake"),
    ("libcurl4", "Mooncake"),
    ("libnuma1", "Mooncake"),
];

/// What the stage `programs` of `cargo xtask test --full` needs besides.
const MORE_PACKAGES: &[(&str, &str)] = &[
    ("ceph-mon", "Ceph, to run on libibverbs.so.1"),
    ("ceph-osd", "Ceph, to run on libibverbs.so.1"),
    ("ceph-common", "Ceph's clients"),
    ("tgt", "disks by iSER, to run on librdmacm.so.1"),
    ("libiscsi-bin", "initiators of iSER, to run on librdmacm.so.1"),
    ("qemu-block-extra", "QEMU's initiator of iSER"),
    ("qemu-utils", "QEMU's copying of disks"),
    ("cmake", "a crate that loads libibverbs.so.1 at run time"),
];

/// An environment of Python's, under cargo's target directory.
struct Environment {
    /// Its folder.
    name: &'static str,
    /// The module that is wanted.
    module: &'static str,
    /// Each with its version; what they need besides is not installed.
    packages: &'static [&'static str],
}

/// The packet library that makes frames we did not make ourselves.
const SCAPY: Environment = Environment { name: "scapy", module: "scapy", packages: &["scapy==2.6.1"] };

/// What moves memory between inference servers, to run on libibverbs.so.1: it brings a UCX of its own. 85 MB are fetched.
const NIXL: Environment =
    Environment { name: "nixl", module: "nixl", packages: &["nixl==1.5.1", "nixl-cu12==1.5.1", "numpy==2.4.6"] };

/// The same for another program, on the system's libibverbs.so.1. 46 MB are fetched.
const MOONCAKE: Environment = Environment {
    name: "mooncake",
    module: "mooncake",
    packages: &["mooncake-transfer-engine-non-cuda==0.3.13.post1"],
};

/// A library for GPUs, whose network runs without one; for the stage `programs`. It has 480 MB.
const NCCL: Environment = Environment { name: "nccl", module: "nvidia.nccl", packages: &["nvidia-nccl-cu12==2.32.3"] };

/// Whether the module of the first word is there, and the packages of the others in these versions.
const CHECK: &str = "\
import sys
from importlib import import_module
from importlib.metadata import version
import_module(sys.argv[1])
sys.exit(any(version(name) != wanted for name, wanted in (word.split('==') for word in sys.argv[2:])))";

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.first() {
        return Err(Failure::Usage(format!("setup takes no argument, not {other}")));
    }
    packages()?;
    scapy()?;
    engines()
}

/// What moves KV caches.
pub(crate) fn engines() -> Outcome {
    environment(&NIXL)?;
    environment(&MOONCAKE)
}

/// What the stage `programs` needs besides.
pub(crate) fn more() -> Outcome {
    install(MORE_PACKAGES)?;
    environment(&NCCL)?;
    valkey::set_up()?;
    rust_programs::set_up()
}

/// Where `target/` is.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace::root().join("target"), PathBuf::from)
}

/// The Debian packages alone.
pub(crate) fn packages() -> Outcome {
    install(&[LINKING, AF_XDP, PACKAGES].concat())
}

/// Those that building the command line takes, with AF_XDP or without.
pub(crate) fn build_packages(with_xdp: bool) -> Outcome {
    install(&[LINKING, if with_xdp { AF_XDP } else { &[] }].concat())
}

/// Installs those of these Debian packages that are missing, each with what it is for.
pub(crate) fn install(packages: &[(&str, &str)]) -> Outcome {
    let missing: Vec<_> = packages.iter().filter(|(name, _)| !installed(name)).collect();
    if missing.is_empty() {
        eprintln!("setup: all {} Debian packages are there", packages.len());
        return Ok(());
    }
    for (name, purpose) in &missing {
        eprintln!("setup: {name} is missing ({purpose})");
    }
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
        return Err(Failure::Failed(format!(
            "not root, so install them yourself: apt-get install {}",
            names.join(" ")
        )));
    }
    let install = || {
        let mut command = apt();
        command.args(["install", "-y", "-qq", "--no-install-recommends"]).args(missing.iter().map(|(name, _)| *name));
        eprintln!("setup: apt-get install");
        say(&mut command)
    };
    // The lists may be missing, or name files that the archive no longer has.
    if !have_lists() || install().is_err() {
        eprintln!("setup: apt-get update");
        say(apt().arg("update").arg("-qq"))?;
        install()?;
    }
    match missing.iter().find(|(name, _)| !installed(name)) {
        Some((name, _)) => Err(Failure::Failed(format!("{name} is still not installed"))),
        None => Ok(()),
    }
}

/// An `apt-get` that asks nothing and waits for whoever else holds the package database. Its archive is one of our own:
/// some containers delete the common one after every apt run, also under the feet of another.
pub(crate) fn apt() -> Command {
    let archives = target_directory().join("setup-archives");
    let _ = std::fs::create_dir_all(archives.join("partial"));
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command.args(["-o", "DPkg::Lock::Timeout=900", "-o", "APT::Sandbox::User=root", "-o", "Dpkg::Use-Pty=0", "-o"]);
    command.arg(format!("Dir::Cache::archives={}", archives.display()));
    command
}

fn have_lists() -> bool {
    std::fs::read_dir("/var/lib/apt/lists")
        .is_ok_and(|lists| lists.flatten().any(|entry| entry.file_name().to_string_lossy().contains("_Packages")))
}

fn installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).stderr(Stdio::null()).output();
    query.is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

/// The packet library alone, in an environment of its own.
pub(crate) fn scapy() -> Outcome {
    environment(&SCAPY)
}

fn environment(wanted: &Environment) -> Outcome {
    let directory = target_directory().join(wanted.name);
    let python = directory.join("bin/python3");
    let said = wanted.packages.join(" ");
    let check = || Command::new(&python).args(["-c", CHECK, wanted.module]).args(wanted.packages).output();
    if check().is_ok_and(|output| output.status.success()) {
        eprintln!("setup: {said}: there");
        return Ok(());
    }
    eprintln!("setup: {said} into {}", directory.display());
    say(Command::new("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]).args(wanted.packages);
    say(&mut pip)?;
    let output = check().map_err(|e| Failure::Failed(format!("{}: {e}", python.display())))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::Failed(format!("{} cannot import {}: {why}", python.display(), wanted.name)))
}

/// Runs a command whose words are for the user, on stderr.
pub(crate) fn say(command: &mut Command) -> Outcome {
    rxe_rig::process::run(command).map(drop).map_err(Failure::from)
}

//! The kernel and the initramfs of a machine, made from Debian's packages and `guest/`, cached under `target/rxe/`.
//!
//! Nothing is installed on the host: packages are downloaded into a private archive and unpacked into a private tree.
use crate::cpio::{Archive, Node};
use crate::error::{Result, RigError};
use crate::{pattern, process, vmlinux};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

/// Changes whenever the way the image is put together does.
const RECIPE: &str = "3";

/// Images kept: other branches that share the target directory may want theirs again. About 110 MB each.
const KEPT: usize = 3;

/// Set to a package like `linux-image-6.1.0-NN-amd64` to have that kernel instead of the newest one apt knows.
pub const KERNEL_VARIABLE: &str = "UROCE_RXE_KERNEL";

const INIT: &str = include_str!("../guest/init");
const RUNNER: &str = include_str!("../guest/runner");
const VERBS_AGENT: &str = include_str!("../guest/verbs-agent.c");

/// What the machine's programs come from; apt adds what these need.
const PACKAGES: &[&str] = &[
    "bpftool",
    "busybox-static",
    "coreutils",
    "dash",
    "ethtool",
    "ibverbs-providers",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "libc6",
    "libelf1",
    "libgcc-s1",
    "libibverbs-dev",
    "libibverbs1",
    "librdmacm1",
    "nftables",
    "open-iscsi",
    "perftest",
    "qperf",
    "rdmacm-utils",
    "tcpdump",
    "util-linux",
    "zlib1g",
];

/// Programs of those packages that go into the image; a trailing `*` takes all that begin so.
const PROGRAMS: &[&str] = &[
    "bpftool",
    "bridge",
    "cmtime",
    "dash",
    "ethtool",
    "flock",
    "ib_*",
    "ibv_*",
    "ip",
    "iperf3",
    "iscsistart",
    "mckey",
    "nft",
    "qperf",
    "raw_ethernet_*",
    "rdma",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "riostream",
    "rping",
    "rstream",
    "ss",
    "taskset",
    "tc",
    "tcpdump",
    "timeout",
    "ucmatose",
    "udaddy",
    "udpong",
    "unshare",
    "nsenter",
];

/// Libraries that programs built on the host may want, besides those of [`PROGRAMS`].
const LIBRARIES: &[&str] = &[
    "libc.so.6",
    "libcrypto.so.3",
    "libdl.so.2",
    "libelf.so.1",
    "libgcc_s.so.1",
    "libibverbs.so.1",
    "libkmod.so.2",
    "liblzma.so.5",
    "libm.so.6",
    "libnss_files.so.2",
    "libopeniscsiusr.so.0.2.0",
    "libpthread.so.0",
    "librdmacm.so.1",
    "librt.so.1",
    "libz.so.1",
    "libzstd.so.1",
];

/// Kernel modules, each with what it depends on. One that a kernel has built in, or does not have, is left out; without
/// `rdma_rxe` there is no image.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "9p",
    "9pnet_virtio", // the machine itself
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crc32c_intel", // the ICRC
    "ib_core",
    "ib_uverbs",
    "ib_cm",
    "iw_cm",
    "rdma_cm",
    "rdma_ucm",
    "ib_umad",
    "rdma_rxe",
    "siw", // RDMA
    "sch_netem",
    "sch_prio",
    "sch_tbf",
    "sch_ingress",
    "sch_fq",
    "cls_u32",
    "cls_flower",
    "cls_matchall",
    "cls_bpf",
    "act_gact",
    "act_mirred",
    "act_bpf",
    "act_pedit",
    "act_csum",
    "act_police",
    "ifb", // faults by tc
    "nf_tables",
    "nft_numgen",
    "nft_log",
    "nft_limit",
    "nft_quota",
    "nft_ct",
    "nft_chain_nat",
    "nf_tables_bridge",
    "veth",
    "bridge",
    "tun",
    "dummy",
    "macvlan",
    "8021q",
    "bonding",
    "xsk_diag",
    "af_packet_diag",
    "udp_tunnel",
    "ip6_udp_tunnel", // XDP links and namespaces inside the machine
    "ib_isert",
    "target_core_file", // a disk by iSER
    "ib_iser",
    "sd_mod", // another's disk by iSER
];

/// Where modules come from in the kernel package (below `lib/modules/VERSION/kernel/`).
const MODULE_DIRECTORIES: &[&str] = &[
    "arch/x86/crypto",
    "block",
    "crypto",
    "drivers/block",
    "drivers/char",
    "drivers/infiniband",
    "drivers/net",
    "drivers/scsi",
    "drivers/target",
    "drivers/virtio",
    "fs",
    "lib",
    "net",
];

/// A machine's kernel and initramfs, ready to boot.
#[derive(Debug, Clone)]
pub struct Image {
    /// The kernel as an ELF file.
    pub kernel: PathBuf,
    /// The initramfs, not compressed.
    pub initramfs: PathBuf,
    /// `verbs-agent`, built against Debian's libibverbs; it loads whichever `libibverbs.so.1` it is given.
    pub verbs_agent: PathBuf,
    /// The kernel's version, as `uname -r` prints it in the machine.
    pub version: String,
}

/// The image, built if it is not there (15 s of work and a 100 MB download); says on stderr what it does. Another process
/// that builds it at the same time is waited for.
///
/// # Errors
/// [`RigError::Missing`] when the host lacks a tool (`cargo xtask setup` installs it) or apt has no such kernel;
/// [`RigError::Command`] when apt, gcc or another tool fails.
pub fn ensure() -> Result<Image> {
    let root = directory();
    fs::create_dir_all(&root).map_err(RigError::io(format!("making {}", root.display())))?;
    let _lock = lock(&root.join("lock"))?;
    let kernel = kernel_package()?;
    let parts =
        [RECIPE, &kernel, INIT, RUNNER, VERBS_AGENT, &format!("{PACKAGES:?}{PROGRAMS:?}{LIBRARIES:?}{MODULES:?}")];
    let key = pattern::hash(parts.join("\0").as_bytes());
    let directory = root.join(format!("image-{key:016x}"));
    if !directory.join("version").exists() {
        forget_old(&root);
        let mut build = Build { root, started: Instant::now(), kernel, updated: false };
        build.run(&directory)?;
    }
    // Makes it the newest, for `forget_old`.
    let _ = fs::File::open(directory.join("version")).and_then(|file| file.set_modified(SystemTime::now()));
    let version = fs::read_to_string(directory.join("version")).map_err(RigError::io("reading the image's version"))?;
    Ok(Image {
        kernel: directory.join("vmlinux"),
        initramfs: directory.join("initramfs.cpio"),
        verbs_agent: directory.join("verbs-agent"),
        version: version.trim().to_string(),
    })
}

/// The rig's own directory: `rxe` under cargo's target directory.
pub fn directory() -> PathBuf {
    target_directory().join("rxe")
}

/// Cargo's target directory.
pub(crate) fn target_directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"))
}

/// Removes all images but the `KEPT` - 1 last used, before one more is made.
fn forget_old(root: &Path) {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let mut images: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("image-"))
        .map(|entry| (fs::metadata(entry.path().join("version")).and_then(|data| data.modified()).ok(), entry.path()))
        .collect();
    // One without a version was never finished and sorts first.
    images.sort();
    let old = images.len().saturating_sub(KEPT - 1);
    for (_, path) in images.drain(..old) {
        let _ = fs::remove_dir_all(path);
    }
}

/// Holds `path` locked against other processes until the file is dropped.
pub(crate) fn lock(path: &Path) -> Result<fs::File> {
    let what = || RigError::io(format!("locking {}", path.display()));
    let file = fs::File::create(path).map_err(what())?;
    // SAFETY: an open descriptor and a constant.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(what()(std::io::Error::last_os_error()));
    }
    Ok(file)
}

/// The package and version of the kernel to take, like `linux-image-6.1.0-44-amd64 6.1.192-2`.
fn kernel_package() -> Result<String> {
    let wanted = match std::env::var(KERNEL_VARIABLE) {
        Ok(name) => Some(name),
        Err(_) => field("linux-image-amd64", "Depends").and_then(|depends| {
            depends.split([',', ' ']).find(|word| word.starts_with("linux-image-")).map(str::to_string)
        }),
    };
    let found = wanted.and_then(|name| Some((field(&name, "Version")?, name)));
    match found {
        Some((version, name)) => Ok(format!("{name} {version}")),
        None if fs::read_dir("/var/lib/apt/lists").is_ok_and(|lists| lists.count() > 2) => {
            Err(RigError::Missing(format!(
                "apt knows no kernel package with rdma_rxe (linux-image-amd64, or ${KERNEL_VARIABLE}): Debian is needed"
            )))
        }
        None => {
            say("apt-get update");
            process::run(apt("apt-get").arg("update"))?;
            if fs::read_dir("/var/lib/apt/lists").is_ok_and(|lists| lists.count() <= 2) {
                return Err(RigError::Missing("apt-get update brought no package lists".into()));
            }
            kernel_package()
        }
    }
}

/// One field of what apt says about a package's newest version.
fn field(package: &str, name: &str) -> Option<String> {
    let text = process::run(apt("apt-cache").args(["show", "--no-all-versions", package])).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_string))
}

pub(crate) fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    command.args(["-o", "DPkg::Lock::Timeout=600", "-o", "APT::Sandbox::User=root"]);
    command
}

fn say(text: &str) {
    eprintln!("rxe image: {text}");
}

struct Build {
    root: PathBuf,
    started: Instant,
    kernel: String,
    updated: bool,
}

impl Build {
    fn run(&mut self, directory: &Path) -> Result<()> {
        let work = self.root.join("work");
        for path in [&work, directory] {
            let _ = fs::remove_dir_all(path);
            fs::create_dir_all(path).map_err(RigError::io(format!("making {}", path.display())))?;
        }
        let kernel_deb = self.download_kernel()?;
        let debs = self.download_programs(&work)?;
        self.step("unpacking");
        let tree = work.join("tree");
        for deb in &debs {
            process::run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&tree))?;
        }
        let kernel = work.join("kernel");
        let version = unpack_kernel(&kernel_deb, &kernel)?;

        self.step("compiling verbs-agent");
        let mut archive = Archive::default();
        let agent = directory.join("verbs-agent");
        compile_agent(&work, &tree, &agent)?;

        self.step("collecting");
        add_modules(&mut archive, &kernel, &version)?;
        add_programs(&mut archive, &tree, &agent)?;
        add_files(&mut archive);
        // Where programs look up what the kernel was built with.
        let config = format!("boot/config-{version}");
        add_file(&mut archive, &config, &kernel.join(&config))?;
        let mut bytes = Vec::new();
        archive.write(&mut bytes).map_err(RigError::io("packing the initramfs"))?;
        let initramfs = directory.join("initramfs.cpio");
        fs::write(&initramfs, &bytes).map_err(RigError::io(format!("writing {}", initramfs.display())))?;
        vmlinux::extract(&kernel.join(format!("boot/vmlinuz-{version}")), &directory.join("vmlinux"))?;
        let _ = fs::remove_file(directory.join("vmlinux.packed"));
        // Last, since its presence says that all the rest is there.
        fs::write(directory.join("version"), &version).map_err(RigError::io("writing the version"))?;
        let _ = fs::remove_dir_all(&work);
        self.step(&format!("ready: Linux {version}, {} MB", bytes.len() / 1_000_000));
        Ok(())
    }

    fn step(&self, text: &str) {
        say(&format!("[{:5.1} s] {text}", self.started.elapsed().as_secs_f64()));
    }

    /// Runs an apt command; when it fails because the lists are older than the archive, updates them and tries once more.
    fn apt(&mut self, command: &mut dyn FnMut() -> Command) -> Result<String> {
        match process::run(&mut command()) {
            Err(RigError::Command { .. }) if !self.updated => {
                self.updated = true;
                self.step("apt-get update");
                process::run(apt("apt-get").arg("update"))?;
                process::run(&mut command())
            }
            result => result,
        }
    }

    fn download_kernel(&mut self) -> Result<PathBuf> {
        let directory = self.root.join("kernels");
        fs::create_dir_all(&directory).map_err(RigError::io(format!("making {}", directory.display())))?;
        let (name, version) = self.kernel.split_once(' ').expect("made so above");
        let file = directory.join(format!("{name}_{}_amd64.deb", version.replace(':', "%3a")));
        if !file.exists() {
            self.step(&format!("downloading {name}"));
            let wanted = format!("{name}={version}");
            self.apt(&mut || {
                let mut command = apt("apt-get");
                command.args(["download", &wanted]).current_dir(&directory);
                command
            })?;
        }
        if !file.exists() {
            return Err(RigError::Missing(format!("apt-get download left no {}", file.display())));
        }
        Ok(file)
    }

    /// Downloads [`PACKAGES`] and all they need, whatever this host has installed.
    fn download_programs(&mut self, work: &Path) -> Result<Vec<PathBuf>> {
        let archives = self.root.join("debs");
        let nothing = work.join("no-archives");
        for path in [archives.join("partial"), nothing.join("partial")] {
            fs::create_dir_all(&path).map_err(RigError::io(format!("making {}", path.display())))?;
        }
        let status = work.join("status");
        fs::write(&status, "").map_err(RigError::io("writing an empty package status"))?;
        let install = |archives: &Path, option: &str| {
            let mut command = apt("apt-get");
            command.arg("-o").arg(format!("Dir::State::status={}", status.display()));
            command.arg("-o").arg(format!("Dir::Cache::archives={}", archives.display()));
            command.args(["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "Debug::NoLocking=1"]);
            command.args(["-y", "-qq", "--no-install-recommends", option, "install"]).args(PACKAGES);
            command
        };
        self.step("downloading the machine's programs");
        self.apt(&mut || install(&archives, "--download-only"))?;
        // With no archive at hand, apt names every file that it would fetch: 'URI' FILE SIZE HASH.
        let list = process::run(&mut install(&nothing, "--print-uris"))?;
        let files: Vec<PathBuf> = list
            .lines()
            .filter(|line| line.starts_with('\''))
            .filter_map(|line| Some(archives.join(line.split_whitespace().nth(1)?)))
            .collect();
        match files.iter().find(|file| !file.exists()) {
            Some(file) => Err(RigError::Missing(format!("apt-get left no {}", file.display()))),
            None if files.is_empty() => Err(RigError::Missing("apt-get names no files".into())),
            None => Ok(files),
        }
    }
}

/// Unpacks what is needed of the kernel package and returns the kernel's version.
fn unpack_kernel(deb: &Path, to: &Path) -> Result<String> {
    fs::create_dir_all(to).map_err(RigError::io(format!("making {}", to.display())))?;
    let mut reader = Command::new("dpkg-deb");
    reader.arg("--fsys-tarfile").arg(deb).stdout(Stdio::piped());
    let mut reader = reader.spawn().map_err(|e| process::not_started(&reader, e))?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "--wildcards", "-C"]).arg(to).args([
        "./boot/vmlinuz-*",
        "./boot/config-*",
        "*/lib/modules/*/modules.*",
    ]);
    tar.args(MODULE_DIRECTORIES.iter().map(|directory| format!("*/lib/modules/*/kernel/{directory}/*")));
    // tar's status says that a pattern matched nothing, which is no fault; what is missing shows below.
    let _ = tar.stdin(reader.stdout.take().expect("piped")).stderr(Stdio::null()).status();
    let _ = reader.wait();
    if !to.join("lib/modules").exists() && to.join("usr/lib/modules").exists() {
        fs::rename(to.join("usr/lib"), to.join("lib")).map_err(RigError::io("moving the modules"))?;
    }
    let modules = to.join("lib/modules");
    let version = fs::read_dir(&modules)
        .ok()
        .and_then(|mut entries| entries.next()?.ok()?.file_name().into_string().ok())
        .ok_or_else(|| RigError::Missing(format!("no modules in {}", deb.display())))?;
    let mut files = Vec::new();
    walk(&modules, &mut files);
    for (extension, program) in [("xz", "xz"), ("zst", "zstd")] {
        let packed: Vec<_> = files.iter().filter(|file| file.extension() == Some(OsStr::new(extension))).collect();
        for part in packed.chunks(500) {
            process::run(Command::new(program).args(["-d", "-q"]).args(part))?;
        }
    }
    process::run(Command::new("depmod").arg("-b").arg(to).arg(&version))?;
    Ok(version)
}

/// All regular files below a directory.
fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

fn compile_agent(work: &Path, tree: &Path, to: &Path) -> Result<()> {
    let source = work.join("verbs-agent.c");
    fs::write(&source, VERBS_AGENT).map_err(RigError::io(format!("writing {}", source.display())))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-I"])
        .arg(tree.join("usr/include"));
    gcc.arg("-o").arg(to).arg(source).arg(library(tree, "libibverbs.so.1")?).arg("-Wl,--allow-shlib-undefined");
    let warnings = process::run(&mut gcc)?;
    if !warnings.is_empty() {
        say(&format!("verbs-agent.c: {warnings}"));
    }
    Ok(())
}

const LIBRARY_DIRECTORIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// The path of a library in the tree.
fn library(tree: &Path, name: &str) -> Result<PathBuf> {
    LIBRARY_DIRECTORIES
        .iter()
        .map(|directory| tree.join(directory).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| RigError::Missing(format!("Debian's packages brought no {name}")))
}

/// Adds [`MODULES`], what they depend on, and the tables `modprobe` reads, cut down to them.
fn add_modules(archive: &mut Archive, kernel: &Path, version: &str) -> Result<()> {
    let base = kernel.join("lib/modules").join(version);
    let read = |name: &str| fs::read_to_string(base.join(name)).map_err(RigError::io(format!("reading {name}")));
    let dependencies = read("modules.dep")?;
    let by_name: BTreeMap<String, &str> =
        dependencies.lines().filter_map(|line| Some((module_name(line.split_once(':')?.0)?, line))).collect();
    if !by_name.contains_key("rdma_rxe") {
        return Err(RigError::Missing(format!("kernel {version} has no rdma_rxe: a cloud kernel?")));
    }
    let mut files = BTreeSet::new();
    for line in MODULES.iter().filter_map(|name| by_name.get(*name)) {
        files.extend(line.replacen(':', "", 1).split_whitespace().map(str::to_string));
    }
    let names: BTreeSet<String> = files.iter().filter_map(|file| module_name(file)).collect();
    let target = format!("lib/modules/{version}");
    for file in &files {
        let data = fs::read(base.join(file)).map_err(RigError::io(format!("reading {file}")))?;
        archive.text(&format!("{target}/{file}"), data);
    }
    let dep = by_name.iter().filter(|(name, _)| names.contains(*name)).map(|(_, line)| *line);
    archive.text(&format!("{target}/modules.dep"), lines(dep));
    // alias PATTERN MODULE
    let aliases = read("modules.alias")?;
    let kept = aliases.lines().filter(|line| line.rsplit(' ').next().is_some_and(|name| names.contains(name)));
    archive.text(&format!("{target}/modules.alias"), lines(kept));
    for table in ["modules.builtin", "modules.order"] {
        archive.text(&format!("{target}/{table}"), read(table)?);
    }
    Ok(())
}

fn lines<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// A module's name from its file: `kernel/lib/crc-t10dif.ko` is `crc_t10dif`.
fn module_name(file: &str) -> Option<String> {
    Some(file.rsplit('/').next()?.split_once(".ko")?.0.replace('-', "_"))
}

/// Adds [`PROGRAMS`], the verbs agent, [`LIBRARIES`] and all libraries these load.
fn add_programs(archive: &mut Archive, tree: &Path, agent: &Path) -> Result<()> {
    let mut roots = vec![agent.to_path_buf()];
    add_file(archive, "usr/bin/verbs-agent", agent)?;
    for wanted in PROGRAMS {
        let before = roots.len();
        for place in ["usr/bin", "usr/sbin", "bin", "sbin"] {
            for entry in fs::read_dir(tree.join(place)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let matches = wanted.strip_suffix('*').map_or(name == *wanted, |prefix| name.starts_with(prefix));
                let target = format!("usr/bin/{name}");
                if matches && entry.file_type().is_ok_and(|kind| kind.is_file()) && !archive.contains(&target) {
                    add_file(archive, &target, &entry.path())?;
                    roots.push(entry.path());
                }
            }
        }
        if roots.len() == before {
            return Err(RigError::Missing(format!("Debian's packages brought no {wanted}")));
        }
    }
    archive.insert("bin/dash", Node::Link("/usr/bin/dash".into()));
    let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| tree.join(path));
    let busybox = busybox.iter().find(|path| path.exists());
    add_file(archive, "bin/busybox", busybox.ok_or_else(|| RigError::Missing("no busybox".into()))?)?;

    for name in LIBRARIES {
        roots.push(library(tree, name)?);
    }
    // The drivers that libibverbs loads by name: a file in etc/libibverbs.d names each.
    for directory in LIBRARY_DIRECTORIES {
        for entry in fs::read_dir(tree.join(directory).join("libibverbs")).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with("librxe-") || name.starts_with("libsiw-") {
                add_file(archive, &format!("usr/lib/x86_64-linux-gnu/libibverbs/{name}"), &entry.path())?;
                archive.text(&format!("etc/libibverbs.d/{}.driver", &name[3..6]), format!("driver {}\n", &name[3..6]));
                roots.push(entry.path());
            }
        }
    }
    let loader = library(tree, "ld-linux-x86-64.so.2")?;
    let path = LIBRARY_DIRECTORIES.map(|directory| tree.join(directory).display().to_string()).join(":");
    add_file(archive, "lib64/ld-linux-x86-64.so.2", &loader)?;
    for root in &roots {
        let list = process::run(Command::new(&loader).args(["--list", "--library-path", &path]).arg(root))?;
        for (name, file) in list.lines().filter_map(|line| line.trim().split_once(" => ")) {
            let file = file.split(" (").next().unwrap_or(file);
            if !file.starts_with('/') {
                return Err(RigError::Missing(format!("{} needs {name}, which is not there", root.display())));
            }
            if !name.starts_with('/') {
                add_file(archive, &format!("lib/x86_64-linux-gnu/{name}"), Path::new(file))?;
            }
        }
        if root.extension().is_some_and(|_| root.starts_with(tree))
            && !root.parent().is_some_and(|p| p.ends_with("libibverbs"))
        {
            let name = root.file_name().and_then(OsStr::to_str).unwrap_or_default();
            if name.contains(".so") {
                add_file(archive, &format!("lib/x86_64-linux-gnu/{name}"), root)?;
            }
        }
    }
    // netem's tables of delay distributions
    for directory in LIBRARY_DIRECTORIES.iter().copied().chain(["usr/lib", "lib"]) {
        for entry in fs::read_dir(tree.join(directory).join("tc")).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(".dist") {
                add_file(archive, &format!("usr/lib/tc/{name}"), &entry.path())?;
            }
        }
    }
    Ok(())
}

fn add_file(archive: &mut Archive, target: &str, file: &Path) -> Result<()> {
    if !archive.contains(target) {
        let data = fs::read(file).map_err(RigError::io(format!("reading {}", file.display())))?;
        archive.program(target, data);
    }
    Ok(())
}

/// Adds `guest/` and the few configuration files that programs ask for.
fn add_files(archive: &mut Archive) {
    archive.program("init", INIT);
    archive.program("sbin/runner", RUNNER);
    for directory in ["root", "var/log", "run", "tmp", "proc", "sys", "dev", "host"] {
        archive.insert(directory, Node::Directory);
    }
    archive.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    archive.text("etc/group", "root:x:0:\n");
    archive.text("etc/hosts", "127.0.0.1 localhost\n");
    archive.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_names_are_normalised() {
        assert_eq!(module_name("kernel/lib/crc-t10dif.ko").as_deref(), Some("crc_t10dif"));
        assert_eq!(module_name("kernel/net/x.ko.xz").as_deref(), Some("x"));
        assert_eq!(module_name("kernel/net/x"), None);
    }
}

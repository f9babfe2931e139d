//! `cargo xtask dist`: what users install, in `target/dist`: a Debian package, and an archive with a static program.
//!
//! Both are the same bytes again from the same commit in the same folder: times are the commit's (or SOURCE_DATE_EPOCH's),
//! names are sorted, and root owns everything.
use crate::{Failure, Outcome, licenses, program, setup, workspace};
use rxe_rig::process;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the workspace, of which this program is part.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What packing takes besides building.
const PACKAGES: &[(&str, &str)] =
    &[("dpkg-dev", "the package's dependencies"), ("gzip", "manual pages"), ("tar", "the archive")];

/// The control file's part that no program computes.
const CONTROL: &str = "\
Section: net
Priority: optional
Maintainer: The uroce authors
Suggests: ibverbs-utils, perftest, wireshark
Description: RoCE v2 stack in userspace: RDMA without RDMA hardware
 uroce runs unmodified verbs programs over AF_XDP or UDP sockets, as a peer of
 kernel rxe and of RNICs. It needs no RDMA hardware and no kernel module. It
 also measures as perftest does, and decodes and replays captures of RoCE v2.
";

/// What is asked for.
struct Options {
    /// The package without AF_XDP, which needs no C to build.
    udp: bool,
    package: bool,
    archive: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, Failure> {
        let mut options = Options { udp: false, package: false, archive: false };
        for word in arguments {
            match *word {
                "--udp" => options.udp = true,
                "deb" => options.package = true,
                "tar" => options.archive = true,
                other => return Err(Failure::Usage(format!("dist makes deb or tar, and takes --udp, not {other}"))),
            }
        }
        if !options.package && !options.archive {
            (options.package, options.archive) = (true, true);
        }
        Ok(options)
    }
}

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let options = Options::parse(arguments)?;
    setup::install(PACKAGES)?;
    // AF_XDP is in the package alone.
    setup::build_packages(options.package && !options.udp)?;
    let folder = folder();
    fs::create_dir_all(&folder).map_err(|e| failed(&folder, &e))?;
    let epoch = epoch()?;
    let mut made = Vec::new();
    if options.package {
        made.push(package(&folder, options.udp, &epoch)?);
    }
    if options.archive {
        made.push(archive(&folder, &epoch)?);
    }
    for (file, installed) in made {
        let sum = process::run(Command::new("sha256sum").arg(&file))?;
        let bytes = fs::metadata(&file).map_err(|e| failed(&file, &e))?.len();
        println!("{}: {bytes} bytes, {installed} KiB installed", file.display());
        println!("  SHA-256 {}", sum.split_whitespace().next().unwrap_or_default());
    }
    Ok(())
}

/// Where the results are.
pub(crate) fn folder() -> PathBuf {
    setup::target_directory().join("dist")
}

/// The package's file; its name is a contract.
pub(crate) fn package_file() -> Result<PathBuf, Failure> {
    let processor = process::run(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(folder().join(format!("uroce_{VERSION}_{}.deb", processor.trim())))
}

/// The archive's file; its name is a contract.
pub(crate) fn archive_file() -> PathBuf {
    folder().join(format!("uroce-{VERSION}-{}.tar.gz", std::env::consts::ARCH))
}

/// Seconds since 1970 that every file gets.
fn epoch() -> Result<String, Failure> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(given);
    }
    let root = workspace::root();
    let commit = process::run(Command::new("git").current_dir(&root).args(["log", "-1", "--format=%ct"]));
    let missing = |e| Failure::Failed(format!("{}: no time of a commit: set SOURCE_DATE_EPOCH ({e})", root.display()));
    Ok(commit.map_err(missing)?.trim().to_owned())
}

fn failed(file: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("{}: {error}", file.display()))
}

/// Builds with `words`, and returns the folder with what was built.
fn build(words: &[&str], triple: Option<&str>) -> Result<PathBuf, Failure> {
    let mut cargo = program::cargo();
    cargo.args(["build", "--release", "--locked"]).args(words).current_dir(workspace::root());
    cargo.args(triple.iter().flat_map(|triple| ["--target", triple]));
    let status = cargo.status().map_err(|e| Failure::Failed(format!("starting cargo: {e}")))?;
    if !status.success() {
        return Err(Failure::Failed(format!("cargo build {} failed: {status}", words.join(" "))));
    }
    Ok(setup::target_directory().join(triple.unwrap_or_default()).join("release"))
}

/// What a program prints on stdout; its stderr is the user's.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|e| Failure::Failed(format!("starting {name}: {e}")))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!("{name} failed: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|e| Failure::Failed(format!("{name}: {e}")))
}

/// The features of a build without AF_XDP.
const UDP: [&str; 3] = ["--no-default-features", "--features", "udp"];

/// Makes the Debian package: the program and its library, linked dynamically. Returns its file, and its size installed in KiB.
fn package(folder: &Path, udp: bool, epoch: &str) -> Result<(PathBuf, u64), Failure> {
    let features: &[&str] = if udp { &UDP } else { &[] };
    let built = build(&[&["-p", "uroce-cli", "-p", "uroce-verbs"], features].concat(), None)?;
    let tree = Tree::create(folder.join("package"))?;
    let (program, library) = ("usr/bin/uroce", "usr/lib/uroce/liburoce_verbs.so");
    tree.put_stripped(&built.join("uroce"), program)?;
    tree.put_stripped(&built.join("liburoce_verbs.so"), library)?;
    // The loader needs no right to execute, and Debian gives libraries none.
    tree.set_mode(library, 0o644)?;
    let places =
        Places { zsh: "usr/share/zsh/vendor-completions", fish: "usr/share/fish/vendor_completions.d", prefix: "usr/" };
    tree.put_common(&built.join("uroce"), &places, features)?;
    let control = control(&tree, &[program, library])?;
    let (installed, file) = (tree.kibibytes()?, package_file()?);
    let sums = "find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums";
    tree.write("DEBIAN/control", &format!("{control}Installed-Size: {installed}\n{CONTROL}"))?;
    process::run(Command::new("sh").args(["-ec", sums]).current_dir(&tree.0))?;
    tree.set_mode("DEBIAN/md5sums", 0o644)?;
    let mut pack = Command::new("dpkg-deb");
    pack.env("SOURCE_DATE_EPOCH", epoch).args(["--root-owner-group", "-Zxz", "--build"]).arg(&tree.0).arg(&file);
    process::run(&mut pack)?;
    Ok((file, installed))
}

/// Name, version, processor and what is needed: what dpkg-shlibdeps finds the files linked with.
fn control(tree: &Tree, files: &[&str]) -> Result<String, Failure> {
    // It wants a source package around itself.
    let source = Tree::create(folder().join("shlibdeps"))?;
    source.write("debian/control", "Source: uroce\n\nPackage: uroce\nArchitecture: any\n")?;
    let mut compute = Command::new("dpkg-shlibdeps");
    compute.arg("-O").args(files.iter().map(|file| format!("-e{}", tree.path(file).display()))).current_dir(&source.0);
    let found = output(&mut compute)?;
    let depends = found.trim().strip_prefix("shlibs:Depends=").unwrap_or_default();
    let processor = process::run(Command::new("dpkg").arg("--print-architecture"))?;
    Ok(format!("Package: uroce\nVersion: {VERSION}\nArchitecture: {}\nDepends: {depends}\n", processor.trim()))
}

/// Makes the archive, to be unpacked into /usr/local, say: one static program with the library in itself, over UDP sockets.
fn archive(folder: &Path, epoch: &str) -> Result<(PathBuf, u64), Failure> {
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    process::run(Command::new("rustup").args(["target", "add", &triple]).current_dir(workspace::root()))?;
    let features = ["--no-default-features", "--features", "udp,embed"];
    let built = build(&[&["-p", "uroce-cli"], &features[..]].concat(), Some(&triple))?;
    let tree = Tree::create(folder.join("archive"))?;
    let file = archive_file();
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().trim_end_matches(".tar.gz");
    let prefix = format!("{name}/");
    tree.put_stripped(&built.join("uroce"), &format!("{prefix}bin/uroce"))?;
    let (zsh, fish) = (format!("{prefix}share/zsh/site-functions"), format!("{prefix}share/fish/vendor_completions.d"));
    tree.put_common(&built.join("uroce"), &Places { zsh: &zsh, fish: &fish, prefix: &prefix }, &UDP)?;
    let mut pack = Command::new("sh");
    let line = "tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=\"@$1\" -cf - \"$2\" | gzip -9n >\"$3\"";
    pack.args(["-ec", line, "sh", epoch, name]).arg(&file).current_dir(&tree.0);
    process::run(&mut pack)?;
    Ok((file, tree.kibibytes()?))
}

/// Where files go, relative to the root.
struct Places<'a> {
    zsh: &'a str,
    fish: &'a str,
    prefix: &'a str,
}

/// A folder of files as they will be installed.
struct Tree(PathBuf);

impl Tree {
    /// An empty one.
    fn create(path: PathBuf) -> Result<Tree, Failure> {
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).map_err(|e| failed(&path, &e))?;
        let tree = Tree(path);
        tree.set_mode("", 0o755)?;
        Ok(tree)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn set_mode(&self, name: &str, mode: u32) -> Outcome {
        let file = self.path(name);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).map_err(|e| failed(&file, &e))
    }

    /// Makes the folder of a file, and those above it.
    fn make_room(&self, name: &str) -> Result<PathBuf, Failure> {
        let parents: Vec<&Path> = Path::new(name).ancestors().skip(1).collect();
        for parent in parents.iter().rev() {
            let folder = self.0.join(parent);
            if !folder.is_dir() {
                fs::create_dir(&folder).map_err(|e| failed(&folder, &e))?;
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).map_err(|e| failed(&folder, &e))?;
            }
        }
        Ok(self.path(name))
    }

    fn write(&self, name: &str, text: &str) -> Outcome {
        let file = self.make_room(name)?;
        fs::write(&file, text).map_err(|e| failed(&file, &e))?;
        self.set_mode(name, 0o644)
    }

    /// A copy; with the suffix .gz it is compressed.
    fn put(&self, from: &Path, name: &str) -> Outcome {
        let plain = name.trim_end_matches(".gz");
        let file = self.make_room(plain)?;
        fs::copy(from, &file).map_err(|e| failed(from, &e))?;
        self.set_mode(plain, 0o644)?;
        if plain != name {
            process::run(Command::new("gzip").args(["-9nf"]).arg(&file))?;
        }
        Ok(())
    }

    /// A program or a library, without its symbols.
    fn put_stripped(&self, from: &Path, name: &str) -> Outcome {
        let file = self.make_room(name)?;
        process::run(Command::new("strip").arg("--strip-unneeded").arg("-o").arg(&file).arg(from))?;
        self.set_mode(name, 0o755)
    }

    /// Manual pages and completions, by the program that was built; documents, licences, and the script for Wireshark.
    fn put_common(&self, program: &Path, places: &Places<'_>, features: &[&str]) -> Outcome {
        let (prefix, root) = (places.prefix, workspace::root());
        let pages = Tree::create(folder().join("man"))?;
        process::run(Command::new(program).arg("man").arg(&pages.0))?;
        for page in names(&pages.0)? {
            self.put(&pages.path(&page), &format!("{prefix}share/man/man1/{page}.gz"))?;
        }
        let completions = [
            ("bash", format!("{prefix}share/bash-completion/completions/uroce")),
            ("zsh", format!("{}/_uroce", places.zsh)),
            ("fish", format!("{}/uroce.fish", places.fish)),
        ];
        for (shell, name) in completions {
            self.write(&name, &output(Command::new(program).args(["completions", shell]))?)?;
        }
        self.put(&root.join("tools/wireshark/uroce.lua"), &format!("{prefix}share/uroce/uroce.lua"))?;
        let documents = format!("{prefix}share/doc/uroce");
        self.put(&root.join("CHANGELOG.md"), &format!("{documents}/CHANGELOG.md.gz"))?;
        self.put(&root.join("README.md"), &format!("{documents}/README.md"))?;
        for name in names(&root.join("docs"))?.iter().filter(|name| name.ends_with(".md")) {
            self.put(&root.join("docs").join(name), &format!("{documents}/docs/{name}.gz"))?;
        }
        self.write(&format!("{documents}/copyright"), &licenses::text(&root, features)?)
    }

    /// What the files take, in KiB, each rounded up.
    fn kibibytes(&self) -> Result<u64, Failure> {
        let sizes = process::run(Command::new("find").arg(&self.0).args(["-type", "f", "-printf", "%s\n"]))?;
        Ok(sizes.lines().filter_map(|size| size.parse::<u64>().ok()).map(|size| size.div_ceil(1024)).sum())
    }
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>, Failure> {
    let entries = fs::read_dir(folder).map_err(|e| failed(folder, &e))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

//! The stage `install` of `cargo xtask test --full`: what `cargo xtask dist` made, on root file systems as debootstrap leaves
//! them. From nothing to `ib_write_bw` between two addresses of the loopback, as a user without rights; and back, with every
//! file where it was before.
use crate::stage::Stage;
use crate::{Failure, Outcome, dist, setup};
use rxe_rig::process;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Debian's releases that the package is for.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Where a root file system has what was made.
const MADE: &str = "/srv";

/// The game of two terminals. perftest's server listens on TCP port 18515; the client must not come before.
const GAME: &str = "
    uroce run --dev 127.0.0.2 ib_write_bw >/tmp/server 2>&1 & server=$!
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
        kill -0 $server || { cat /tmp/server; exit 1; }
        sleep 0.05
    done
    uroce run --dev 127.0.0.3 ib_write_bw 127.0.0.2 >/tmp/client 2>&1 || { cat /tmp/client; exit 1; }
    wait $server
    cat /tmp/client; rm /tmp/client /tmp/server";

/// What `ib_write_bw` prints when it is over: a row that begins with the size.
const ROW: &str = " 65536 ";

/// Every file, with its kind, rights and owner; its size, too, except where dpkg and apt keep their records.
const LIST: &str = "
    find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /srv \\) -prune -o \\
        -type d -printf '%p d %m %u:%g\\n' -o \\
        -path '/var/*' -printf '%p %y %m %u:%g\\n' -o -printf '%p %y %m %u:%g %l %s\\n' |
    grep -v '^/var/lib/dpkg/[a-z]*-old '";

pub(crate) fn stage() -> Stage {
    Stage::of("install", || {
        setup::install(&[("debootstrap", "fresh root file systems")])?;
        dist::run(&[])?;
        println!("| Debian | what | commands | seconds |\n|---|---|---|---|");
        SUITES.iter().try_for_each(|suite| play(suite))
    })
}

fn play(suite: &str) -> Outcome {
    let (package, archive) = (dist::package_file()?, dist::archive_file());
    let named = |file: &Path| format!("{MADE}/{}", file.file_name().unwrap_or_default().to_string_lossy());
    let (package_name, archive_name) = (named(&package), named(&archive));
    let tell = |what: &str, commands: u32, seconds: f64| println!("| {suite} | {what} | {commands} | {seconds:.1} |");

    let root = Root::fresh(suite, &[&package])?;
    let mut seconds = root.run("apt-get -qq update")?.1;
    seconds += root.run(&install(&format!("{package_name} perftest")))?.1;
    tell("apt-get update, and install of the package and perftest", 2, seconds);
    seconds += root.game()?;
    tell("from nothing to ib_write_bw: the same, and its two ends", 4, seconds);

    // What the package needs is there before: it is not the package's own.
    let root = Root::fresh(suite, &[&package, &archive])?;
    let depends = format!("$(dpkg-deb -f {package_name} Depends | sed 's/([^)]*)//g; s/,/ /g')");
    root.run(&format!("apt-get -qq update; {}", install(&format!("perftest {depends}"))))?;
    let before = root.files()?;
    let mut seconds = root.run(&format!("dpkg -i {package_name}"))?.1;
    tell("dpkg -i", 1, seconds);
    let with = root.files()?;
    seconds = root.game()?;
    tell("ib_write_bw, by the package", 2, seconds);
    seconds = root.run("dpkg --purge uroce")?.1;
    tell("dpkg --purge", 1, seconds);
    same(suite, &before, &root.files()?)?;
    if with.len() == before.len() {
        return Err(Failure::Failed(format!("{suite}: the package has no files")));
    }
    println!(
        "| {suite} | files before, with the package, after: {}, {}, {} | | |",
        before.len(),
        with.len(),
        before.len()
    );

    seconds = root.run(&format!("tar -xzf {archive_name} -C /usr/local --strip-components=1"))?.1;
    tell("the archive into /usr/local", 1, seconds);
    seconds = root.game()?;
    tell("ib_write_bw, by the archive's static program", 2, seconds);
    let remove = format!("cd /usr/local; tar -tzf {archive_name} | sed 's,^[^/]*/,,' | grep '[^/]$' | xargs rm");
    root.run(&remove)?;
    let is_left = root.run("find / -xdev -name '*uroce*' ! -path '/srv/*' ! -type d")?.0;
    if is_left.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("{suite}: the archive left {is_left}"))) }
}

fn install(packages: &str) -> String {
    format!("DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends {packages}")
}

/// Fails with the names of those that are there once only.
fn same(suite: &str, before: &BTreeSet<String>, after: &BTreeSet<String>) -> Outcome {
    let differ: Vec<&str> = before.symmetric_difference(after).map(String::as_str).collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("{suite}: after dpkg --purge these differ:\n{}", differ.join("\n"))))
}

/// A root file system. It is removed at the end.
struct Root(PathBuf);

impl Root {
    /// As debootstrap makes it, which is done once, with `files` in [`MADE`].
    fn fresh(suite: &str, files: &[&Path]) -> Result<Root, Failure> {
        let folder = setup::target_directory().join("install");
        let (made, kept) = (folder.join(format!("{suite}-made")), folder.join(format!("{suite}.tar")));
        if !kept.is_file() {
            let _ = fs::remove_dir_all(&made);
            fs::create_dir_all(&folder).map_err(|e| Failure::Failed(format!("{}: {e}", folder.display())))?;
            process::run(Command::new("debootstrap").args(["--variant=minbase", suite]).arg(&made))?;
            let unfinished = kept.with_extension("unfinished");
            process::run(Command::new("tar").arg("-C").arg(&made).arg("-cf").arg(&unfinished).arg("."))?;
            let _ = fs::remove_dir_all(&made);
            fs::rename(&unfinished, &kept).map_err(|e| Failure::Failed(format!("{}: {e}", kept.display())))?;
        }
        let root = Root(folder.join(format!("{suite}-root")));
        let _ = fs::remove_dir_all(&root.0);
        process::run(Command::new("mkdir").arg("-p").arg(&root.0))?;
        process::run(Command::new("tar").arg("-C").arg(&root.0).arg("-xpf").arg(&kept))?;
        process::run(Command::new("cp").arg("-L").arg("/etc/resolv.conf").arg(root.0.join("etc")))?;
        process::run(Command::new("cp").args(files).arg(root.0.join(&MADE[1..])))?;
        Ok(root)
    }

    /// Runs a script as root, with this machine's network. Returns its output and the seconds that it took.
    fn run(&self, script: &str) -> Result<(String, f64), Failure> {
        self.enter(&[], "", "", script)
    }

    /// Plays ib_write_bw as a user without rights, in a network of its own. Returns seconds.
    fn game(&self) -> Result<f64, Failure> {
        let user = "setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all";
        let (output, seconds) = self.enter(&["--net"], "ip link set lo up;", user, GAME)?;
        if output.contains(ROW) {
            return Ok(seconds);
        }
        Err(Failure::Failed(format!("{}: ib_write_bw ended with:\n{output}", self.0.display())))
    }

    /// Runs `script` in here by `user`, in namespaces of its own, after `before`.
    fn enter(&self, namespaces: &[&str], before: &str, user: &str, script: &str) -> Result<(String, f64), Failure> {
        let outside = format!(
            "mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"; {before} exec chroot \"$1\" {user} sh -ec \"$2\""
        );
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .args(namespaces)
            .args(["sh", "-ec", &outside, "sh"]);
        command.arg(&self.0).arg(script).env("LC_ALL", "C").env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let began = Instant::now();
        let output = process::run(&mut command)?;
        Ok((output, began.elapsed().as_secs_f64()))
    }

    fn files(&self) -> Result<BTreeSet<String>, Failure> {
        Ok(self.run(LIST)?.0.lines().map(str::to_owned).collect())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

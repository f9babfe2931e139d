//! Valkey with its network over RDMA, to run on librdmacm.so.1: Debian 12 has none, so the source of Debian's unstable
//! distribution is compiled. 4 MB are fetched, and two minutes compiled.
use crate::{Failure, Outcome, setup};
use std::path::Path;
use std::process::Command;

/// What is compiled, in `src`.
const PROGRAMS: [&str; 4] = ["valkey-server", "valkey-cli", "valkey-benchmark", "valkey-rdma.so"];

/// Its own test of the network, in `tests/rdma`.
const TEST: &str = "rdma-test";

/// Compiles what is missing, in `target/valkey`.
pub(crate) fn set_up() -> Outcome {
    let directory = setup::target_directory().join("valkey");
    let programs = PROGRAMS.map(|name| directory.join("src").join(name));
    if programs.iter().all(|program| program.exists()) && directory.join("tests/rdma").join(TEST).exists() {
        eprintln!("setup: Valkey: there");
        return Ok(());
    }
    setup::say(Command::new("rm").arg("-rf").arg(&directory))?;
    fetch(&directory)?;
    let options = ["BUILD_RDMA=module", "MALLOC=libc", "OPTIMIZATION=-O1", "-j2"];
    let make = |folder: &str, words: &[&str]| {
        let mut make = Command::new("make");
        setup::say(make.arg("--silent").arg("-C").arg(directory.join(folder)).args(words))
    };
    make("src", &[&options[..], &PROGRAMS].concat())?;
    make("tests/rdma", &[TEST])
}

/// Unpacks its source into a folder. The package lists are of that folder, too: the system's are of another distribution.
fn fetch(directory: &Path) -> Outcome {
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", directory.display()));
    let lists = directory.join("lists");
    std::fs::create_dir_all(lists.join("partial")).map_err(failed)?;
    let sources = directory.join("unstable.list");
    let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let line = format!("deb-src [signed-by={key}] {} unstable main\n", archive()?);
    std::fs::write(&sources, line).map_err(failed)?;
    for words in [&["update", "-qq"][..], &["source", "-qq", "--download-only", "valkey"]] {
        let mut apt = setup::apt();
        apt.args(["-o", "Dir::Etc::sourceparts=-", "-o", &format!("Dir::Etc::sourcelist={}", sources.display())]);
        apt.args(["-o", &format!("Dir::State::lists={}", lists.display())]).args(words).current_dir(directory);
        setup::say(&mut apt)?;
    }
    let unpack = "tar -xf valkey_*.orig.tar.* --strip-components=1 && rm -r lists valkey_*";
    setup::say(Command::new("sh").args(["-c", unpack]).current_dir(directory))
}

/// Where this machine gets its Debian packages.
fn archive() -> Result<String, Failure> {
    let mut apt = setup::apt();
    let output = apt.args(["indextargets", "--format", "$(REPO_URI)", "Label: Debian"]).output();
    let output = output.map_err(|error| Failure::Failed(format!("apt-get: {error}")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = text.lines().next().map(str::to_owned);
    first.ok_or_else(|| Failure::Failed("no archive of Debian's in the package lists: apt-get update".to_owned()))
}

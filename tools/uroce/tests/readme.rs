//! The README's way from a fresh container to `ib_write_bw`, line by line as it stands there. The lines that install and build
//! are run with UROCE_FULL=1, in a clone of their own; without, this build's program takes the place of theirs.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::programs::{Ended, UROCE, start};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What the README says instead of the repository's address.
const REPOSITORY: &str = "<this repository>";

/// The lines: those up to the build, and those after it.
fn lines() -> (Vec<String>, Vec<String>) {
    let text = std::fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let section = text.split("### Unmodified verbs programs").nth(1).expect("the section is there");
    let block =
        section.lines().skip_while(|line| !line.starts_with("    ")).take_while(|line| line.starts_with("    "));
    let lines: Vec<String> = block.map(|line| line.trim().to_owned()).collect();
    assert!((8..=10).contains(&lines.len()), "the ten-line path has {}: {lines:#?}", lines.len());
    let build = lines.iter().position(|line| line == "cargo build --release --workspace").expect("a line that builds");
    let (prepare, play) = lines.split_at(build + 1);
    (prepare.to_vec(), play.to_vec())
}

/// A shell that ends with the first line that fails.
fn shell(folder: &Path, words: &[&str], script: &str) -> Ended {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["sh", "-e", "-x", "-c", script]).current_dir(folder);
    // Nothing of the cargo that runs us, but where its registry is.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_") && name != "CARGO_HOME") {
        command.env_remove(name);
    }
    command.env_remove("RUSTUP_TOOLCHAIN");
    start(command, &[]).end_within(std::time::Duration::from_secs(3600)).unwrap_or_else(|text| panic!("{text}"))
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_path_from_a_fresh_container_to_ib_write_bw_is_as_the_readme_says() {
    let (prepare, play) = lines();
    let name = format!("readme-{}", std::process::id());
    let scratch = Scratch(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    std::fs::create_dir_all(&scratch.0).unwrap();
    let folder = if std::env::var_os("UROCE_FULL").is_some() {
        let root = std::fs::canonicalize(ROOT).unwrap();
        assert!(prepare.iter().any(|line| line.contains(REPOSITORY)), "{prepare:#?}");
        let script = prepare.join("\n").replace(REPOSITORY, &root.display().to_string());
        // More than a pipe holds.
        let ended = shell(&scratch.0, &["nice"], &format!("exec >prepare.log 2>&1\n{script}"));
        let log = std::fs::read_to_string(scratch.0.join("prepare.log")).unwrap_or_default();
        assert!(ended.status.success(), "{log}");
        scratch.0.join("uroce")
    } else {
        let release = scratch.0.join("target/release");
        std::fs::create_dir_all(&release).unwrap();
        std::os::unix::fs::symlink(UROCE, release.join("uroce")).unwrap();
        scratch.0.clone()
    };
    // A network and a list of namespaces of its own, as a container has them; they go with the last process.
    let container = "ip link set lo up\nmount -t tmpfs run /run\nmkdir /run/netns";
    let script = format!("{container}\n{}\nwait $!", play.join("\n"));
    let ended = shell(&folder, &["unshare", "--net", "--mount", "--propagation", "private"], &script).succeeded();
    // Both ends print the row of the default size.
    let rows: Vec<&str> = ended.stdout.lines().filter(|line| line.trim_start().starts_with("65536 ")).collect();
    assert_eq!(rows.len(), 2, "{ended:#?}");
    for row in rows {
        let average: f64 = row.split_whitespace().nth(3).and_then(|word| word.parse().ok()).unwrap();
        assert!(average > 0.0, "{row}");
    }
}

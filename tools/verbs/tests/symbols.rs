//! Every symbol of the system's libibverbs is in ours, under the same version, and the other way round.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library of this build: in the folder of the test programs.
fn ours() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("liburoce_verbs.so")
}

/// `name@version` of what a library defines.
fn symbols(library: &Path) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output().unwrap();
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    names.filter(|name| name.contains('@')).map(|name| name.replace("@@", "@")).collect()
}

#[test]
fn all_current_symbols_are_there_with_their_versions() {
    let theirs = symbols(Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
    assert!(theirs.len() > 150, "libibverbs1 is needed (cargo xtask setup): {theirs:?}");
    let ours = symbols(&ours());
    // Those that also have a later version are for programs of before 2006.
    let is_old = |symbol: &str| {
        symbol.strip_suffix("@IBVERBS_1.0").is_some_and(|name| theirs.contains(&format!("{name}@IBVERBS_1.1")))
    };
    let missing: Vec<_> = theirs.iter().filter(|symbol| !is_old(symbol) && !ours.contains(*symbol)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    // What we have beyond is for later versions of rdma-core's tools; nothing of Rust's leaks out.
    let extra = ours.iter().filter(|symbol| !theirs.contains(*symbol));
    let strange: Vec<_> = extra.filter(|symbol| !symbol.contains("@IBVERBS_PRIVATE_")).collect();
    assert!(strange.is_empty(), "beyond libibverbs: {strange:?}");
}

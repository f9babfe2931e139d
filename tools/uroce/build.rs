//! With the feature `embed`: builds our libibverbs, for the program to have in itself. Cargo cannot hand a package the
//! `cdylib` of another, so a second cargo builds it, in a folder of its own: the first has locked the other one.
//!
//! A program for musl, which is static, has the library for glibc in itself: that is what verbs programs are linked with.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const LIBRARY: &str = "liburoce_verbs.so";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    tell_build();
    if env::var_os("CARGO_FEATURE_EMBED").is_none() {
        return;
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR")).join("../..");
    for source in ["Cargo.toml", "Cargo.lock", "build.rs", "src", "xdp", "tools/verbs"] {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (out, triple) = (PathBuf::from(variable("OUT_DIR")), variable("TARGET").replace("-musl", "-gnu"));
    let target = out.join("verbs");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--locked", "--release", "-p", "uroce-verbs", "--lib", "--target", &triple, "--target-dir"]);
    cargo.arg(&target).current_dir(&root).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    // The same links as the program.
    cargo.arg("--no-default-features");
    for feature in ["xdp", "udp"] {
        if env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_some() {
            cargo.args(["--features", feature]);
        }
    }
    // Clippy's, which builds nothing.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "cargo cannot build uroce-verbs: {status}");
    let built = target.join(triple).join("release").join(LIBRARY);
    fs::copy(built, out.join(LIBRARY)).expect("cargo has built the library");
}

/// `UROCE_BUILD`, for `--version`: the commit, where git knows it, and the architecture.
fn tell_build() {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Sources that were unpacked inside somebody else's repository are not of its commit.
    let git = |words: &[&str]| git(&["ls-files", "--error-unmatch", "build.rs"]).and_then(|_| git(words));
    // What changes when another commit is checked out; a file that is missing would build each time.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]).map(PathBuf::from).filter(|path| path.exists());
        if let Some(path) = path {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let commit = git(&["rev-parse", "--short=7", "HEAD"]).map(|commit| format!("{commit}, ")).unwrap_or_default();
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    println!("cargo:rustc-env=UROCE_BUILD={commit}{architecture}");
}

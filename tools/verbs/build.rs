//! Links the library as `libibverbs.so.1`, with its symbol versions.
//!
//! rustc passes a version script of its own to the linker, and linkers take one only. So the C compiler that links is told
//! to use GNU ld, and to look for it here first: what it finds is a script that takes rustc's version script away, adds
//! ours, and runs the real one.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::{env, fs};

const VERSIONS: &str = "libibverbs.map";

/// What takes the linker's place. `collect2` calls it by the name of GNU ld.
const LINKER: &str = r#"#!/bin/sh
# Replaces rustc's version script by that of libibverbs. Each argument is kept whole.
for argument in "$@"; do
    shift
    case $argument in
    --version-script=*) ;;
    @*) echo "uroce-verbs: the linker got a response file, $argument: the version script in it cannot be replaced" >&2
        exit 1 ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "$REAL" --version-script="$VERSIONS" "$@"
"#;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={VERSIONS}");
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let real = find_linker();
    let script =
        LINKER.replacen("\"$REAL\"", &quoted(&real), 1).replacen("\"$VERSIONS\"", &quoted(&source.join(VERSIONS)), 1);
    let linker = out.join("ld.bfd");
    fs::write(&linker, script).expect("OUT_DIR is writable");
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755)).expect("our own file");
    // The last -fuse-ld counts; rustc's own may come before.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-cdylib-link-arg=-B{}", out.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}

/// GNU ld; it comes with every gcc.
fn find_linker() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let candidates =
        ["ld.bfd", "ld"].into_iter().flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
    candidates
        .into_iter()
        .find(|file| file.is_file())
        .expect("no GNU ld in PATH: install binutils (cargo xtask setup does)")
}

fn quoted(path: &std::path::Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

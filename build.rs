//! For the feature `xdp`: builds the BPF program from source where clang is there; otherwise the committed object is embedded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "xdp/uroce.bpf.c";
const COMMITTED: &str = "xdp/uroce.bpf.o";

fn main() {
    if env::var_os("CARGO_FEATURE_XDP").is_none() {
        return;
    }
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed={COMMITTED}");
    println!("cargo:rerun-if-env-changed=UROCE_CLANG");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let object = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("uroce.bpf.o");
    let is_built = compile(&root, &object);
    if !is_built {
        fs::copy(root.join(COMMITTED), &object).expect("the committed BPF object is readable");
    }
    // For the test that compares the two.
    println!("cargo:rustc-env=UROCE_BPF_IS_BUILT={}", u8::from(is_built));
}

/// Whether clang built the program. Nothing of the machine goes into the object: the paths in it are relative.
fn compile(root: &Path, object: &Path) -> bool {
    let clang = env::var("UROCE_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(clang)
        .current_dir(root)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .args(["-fdebug-compilation-dir=.", "-c", SOURCE, "-o"])
        .arg(object)
        .output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            for line in String::from_utf8_lossy(&output.stderr).lines() {
                println!("cargo:warning={line}");
            }
            println!("cargo:warning=clang did not build {SOURCE}: the committed {COMMITTED} is used");
            false
        }
        Err(_) => false,
    }
}

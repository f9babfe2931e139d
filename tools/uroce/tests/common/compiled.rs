//! C programs that tests compile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a C program into a file of that name, with `flags` at the end of the line.
fn compile(compiler: &str, name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Another test may be running the same program.
    let (pid, serial) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    let (binary, made) = (folder.join(name), folder.join(format!("{name}-{pid}-{serial}")));
    let mut command = Command::new(compiler);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-g", "-o"])
        .arg(&made)
        .arg(source)
        .args(flags);
    let compiled = command.output().unwrap_or_else(|e| panic!("{compiler} (cargo xtask setup): {e}"));
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{name} does not compile (cargo xtask setup): {errors}");
    std::fs::rename(made, &binary).unwrap();
    binary
}

/// One of `tests/programs`.
pub fn program(name: &str) -> PathBuf {
    compile("cc", name, &source(name), &["-libverbs", "-lrdmacm", "-lpthread"])
}

/// A C program of another folder of the repository, with `flags` at the end of the line.
pub fn program_at(path: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let name = source.file_stem().and_then(|name| name.to_str()).expect("a file of the repository").to_owned();
    compile("cc", &name, &source, flags)
}

/// One of `tests/programs`, by a compiler that knows where its libraries are, with `flags` at the end of the line.
pub fn program_by(compiler: &str, name: &str, flags: &[&str]) -> PathBuf {
    compile(compiler, &format!("{name}-{compiler}"), &source(name), flags)
}

/// One of `tests/programs` in C++, with `flags` at the end of the line.
pub fn program_in_cxx(name: &str, flags: &[&str]) -> PathBuf {
    compile("g++", name, &source(name).with_extension("cc"), flags)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"))
}

/// A program of one line, with `flags` at the end of the compiler's.
pub fn little(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    compile("cc", name, &source, flags)
}

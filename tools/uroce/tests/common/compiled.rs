//! C programs that tests compile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a C program, with `flags` at the end of the line.
fn compile(name: &str, source: &Path, flags: &[&str]) -> PathBuf {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Another test may be running the same program.
    let (pid, serial) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    let (binary, made) = (folder.join(name), folder.join(format!("{name}-{pid}-{serial}")));
    let mut command = Command::new("cc");
    command
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-g", "-o"])
        .arg(&made)
        .arg(source)
        .args(flags);
    let compiled = command.output().unwrap();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "libibverbs-dev and librdmacm-dev are needed (cargo xtask setup): {errors}");
    std::fs::rename(made, &binary).unwrap();
    binary
}

/// One of `tests/programs`.
pub fn program(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    compile(name, &source, &["-libverbs", "-lrdmacm", "-lpthread"])
}

/// A program of one line, with `flags` at the end of the compiler's.
pub fn little(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&source, text).unwrap();
    compile(name, &source, flags)
}

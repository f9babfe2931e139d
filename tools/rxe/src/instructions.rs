//! How many instructions a machine executes: a plugin of QEMU counts them (host/instructions.c).
use crate::error::{Result, RigError};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../host/instructions.c");

/// Builds the plugin in `directory`; returns the library.
pub(crate) fn build(directory: &Path) -> Result<PathBuf> {
    let (source, library) = (directory.join("instructions.c"), directory.join("instructions.so"));
    fs::write(&source, SOURCE).map_err(RigError::io(format!("writing {}", source.display())))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    process::run(&mut gcc)?;
    Ok(library)
}

/// What a plugin has counted in its file.
pub(crate) fn read(file: &Path) -> Result<u64> {
    let bytes = fs::read(file).map_err(RigError::io(format!("reading {}", file.display())))?;
    let number =
        bytes.as_slice().try_into().map_err(|_| RigError::Missing(format!("{} holds no number", file.display())))?;
    Ok(u64::from_ne_bytes(number))
}

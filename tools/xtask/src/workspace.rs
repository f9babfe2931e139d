//! The workspace: where it is, and what cargo knows of it.
use crate::{Failure, dist, program};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Tests of the workspace. All stages select the whole of it, so that dependencies have the same features in each, and are
/// compiled once.
pub(crate) const TEST: [&str; 3] = ["test", "--quiet", "--workspace"];

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root)
}

/// The packages that cargo knows of: those of the workspace, and all that they depend on unless these words say otherwise.
pub(crate) fn packages(words: &[&str]) -> Result<Vec<Value>, Failure> {
    let unread = |what: &str| Failure::Failed(format!("cargo metadata: {what}"));
    let mut command = program::cargo();
    command.args(["metadata", "--format-version", "1", "--locked"]).args(words).current_dir(root());
    let mut metadata: Value = serde_json::from_str(&dist::output(&mut command)?).map_err(|e| unread(&e.to_string()))?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err(unread("no packages")),
    }
}

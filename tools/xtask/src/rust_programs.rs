//! Programs in Rust over rdma-core, to run on libibverbs.so.1 and librdmacm.so.1: the examples of the crate sideway, and a
//! program of ours over the crate rdma-io, which has none. 200 crates are fetched, and three minutes compiled.
use crate::{Failure, Outcome, program, setup};
use std::path::Path;
use std::process::Command;

/// The crate whose examples are installed, as its own lock file says.
const SIDEWAY: &str = "sideway@=0.4.3";

/// The folder of our program, with a lock file of its own.
const STREAMS: &str = "../uroce/tests/programs/rdma_io";

/// Compiles what is missing, into `target/rust_programs/bin`.
pub(crate) fn set_up() -> Outcome {
    let directory = setup::target_directory().join("rust_programs");
    install(&directory, &["--examples", SIDEWAY])?;
    let streams = Path::new(env!("CARGO_MANIFEST_DIR")).join(STREAMS);
    let streams = streams.canonicalize().map_err(|error| Failure::Failed(format!("{STREAMS}: {error}")))?;
    install(&directory, &["--path", &streams.to_string_lossy()])
}

/// Without optimisation: they wait for packets.
fn install(directory: &Path, words: &[&str]) -> Outcome {
    let mut cargo: Command = program::cargo();
    cargo.args(["install", "--quiet", "--locked", "--debug", "--root"]).arg(directory).args(words);
    setup::say(cargo.env("CARGO_TARGET_DIR", directory.join("build")))
}

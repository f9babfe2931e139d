//! `cargo xtask fuzz [--seconds N] [TARGET…]`: the fuzz targets, each for so long. What they find interesting is kept under
//! `target/fuzz/corpus`, and the next run begins with it.
use crate::{Failure, Outcome, nightly, setup};
use rxe_rig::process;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What there is in `fuzz/`, the longest first.
pub(crate) const TARGETS: [&str; 7] = ["endpoint", "responder", "decode", "capture", "cm", "deadline", "stream"];

/// Builds with libFuzzer and the address sanitizer.
const CARGO_FUZZ: &str = "0.13.2";

/// A run ends as a failure with one input above this, or this much memory: nothing here is to be so slow or so large.
const INPUT_SECONDS_MAX: &str = "60";
const MEMORY_MIB_MAX: &str = "4096";

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let (mut seconds, mut targets) = (20, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seconds" => {
                let value = words.next().and_then(|word| word.parse().ok());
                seconds = value.ok_or_else(|| Failure::Usage("--seconds needs a number".into()))?;
            }
            target if TARGETS.contains(&target) => targets.push(target),
            other => return Err(Failure::Usage(format!("there is no fuzz target {other}"))),
        }
    }
    for_each(if targets.is_empty() { &TARGETS } else { &targets }, seconds)
}

/// Runs targets, two at a time, for so many seconds each.
pub(crate) fn for_each(targets: &[&str], seconds: u64) -> Outcome {
    let binaries = build()?;
    // The inputs that every corpus begins with.
    process::run(Command::new(binaries.join("seeds")).arg(directory()))?;
    for pair in targets.chunks(2) {
        let runs: Vec<Run> =
            pair.iter().map(|target| Run::start(&binaries, target, seconds)).collect::<Result<_, _>>()?;
        // Both come to their end, whatever the first one finds.
        let ends: Vec<Outcome> = runs.into_iter().map(Run::end).collect();
        ends.into_iter().collect::<Outcome>()?;
    }
    Ok(())
}

/// Where all of it is.
pub(crate) fn directory() -> PathBuf {
    setup::target_directory().join("fuzz")
}

fn manifest() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Builds all targets and what makes their corpora, and says where they are.
fn build() -> Result<PathBuf, Failure> {
    nightly::ensure(&[])?;
    setup::install(&[("g++", "libFuzzer")])?;
    let tools = directory().join("tools");
    let cargo_fuzz = tools.join("bin/cargo-fuzz");
    let version = Command::new(&cargo_fuzz).arg("--version").output();
    if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(CARGO_FUZZ)) {
        eprintln!("fuzz: cargo-fuzz {CARGO_FUZZ} into {}", tools.display());
        let mut command = nightly::command("cargo");
        command.args(["install", "--quiet", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ, "--root"]).arg(&tools);
        process::run(&mut command)?;
    }
    let built = directory().join("build");
    eprintln!("fuzz: building all targets");
    let mut command = nightly::command(&cargo_fuzz.to_string_lossy());
    command.current_dir(manifest().join("..")).args(["build", "--target-dir"]).arg(&built);
    process::run(&mut command)?;
    let host = process::run(nightly::command("rustc").args(["--print", "host-tuple"]))?;
    Ok(built.join(host.trim()).join("release"))
}

/// The corpus of a target.
pub(crate) fn corpus(target: &str) -> PathBuf {
    directory().join("corpus").join(target)
}

/// A target that runs.
struct Run {
    target: String,
    child: Child,
    log: PathBuf,
}

impl Run {
    fn start(binaries: &Path, target: &str, seconds: u64) -> Result<Run, Failure> {
        let (artifacts, log) = (directory().join("artifacts"), directory().join(format!("{target}.log")));
        let failed = |e: std::io::Error| Failure::Failed(format!("fuzz target {target}: {e}"));
        std::fs::create_dir_all(&artifacts).map_err(failed)?;
        let mut command = Command::new(binaries.join(target));
        command.arg(corpus(target)).args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={INPUT_SECONDS_MAX}"),
            format!("-rss_limit_mb={MEMORY_MIB_MAX}"),
            format!("-artifact_prefix={}/{target}-", artifacts.display()),
            "-print_final_stats=1".to_owned(),
        ]);
        let file = File::create(&log).map_err(failed)?;
        let child = process::spawn({
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
            command
        });
        Ok(Run { target: target.to_owned(), child: child.map_err(failed)?, log })
    }

    /// Waits for it, and says how far it came, or what it found.
    fn end(mut self) -> Outcome {
        let status = self.child.wait();
        let Run { target, log, .. } = &self;
        let status = status.map_err(|e| Failure::Failed(format!("fuzz target {target}: {e}")))?;
        let text = std::fs::read_to_string(log).unwrap_or_default();
        if !status.success() {
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(60)..].join("\n");
            return Err(Failure::Failed(format!(
                "{last}\nfuzz target {target}: {status}; all of it is in {}",
                log.display()
            )));
        }
        let inputs = std::fs::read_dir(corpus(target)).map_or(0, Iterator::count);
        let done = text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let done: u64 = done.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        if done == 0 {
            return Err(Failure::Failed(format!("fuzz target {target} did nothing: {}", log.display())));
        }
        eprintln!("fuzz: {target}: {done} inputs, {inputs} of them kept");
        Ok(())
    }
}

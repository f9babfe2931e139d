//! Named steps run one after the other, with their times, up to the first that fails.
use crate::{Failure, Outcome};
use std::process::Command;
use std::time::Instant;

/// One step: a command, whose output is the user's, or work of our own.
pub(crate) struct Stage {
    name: &'static str,
    work: Box<dyn FnOnce() -> Outcome>,
}

impl Stage {
    pub(crate) fn of(name: &'static str, work: impl FnOnce() -> Outcome + 'static) -> Stage {
        Stage { name, work: Box::new(work) }
    }

    /// `cargo` with these words (the same cargo that runs us).
    pub(crate) fn cargo(name: &'static str, words: &[&str]) -> Stage {
        Stage::cargo_with(name, words, &[])
    }

    /// As [`Stage::cargo`], with variables in its environment.
    pub(crate) fn cargo_with(name: &'static str, words: &[&str], variables: &[(&str, &str)]) -> Stage {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(words).envs(variables.iter().copied());
        let line = format!("cargo {}", words.join(" "));
        Stage::of(name, move || {
            eprintln!("   {line}");
            let status = command.status().map_err(|e| Failure::Failed(format!("starting `{line}`: {e}")))?;
            if status.success() { Ok(()) } else { Err(Failure::Failed(format!("`{line}` failed: {status}"))) }
        })
    }
}

/// A stage that was run to its good end.
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
}

/// Runs `stages` in order up to the first that fails; `only`, when not empty, names those to run.
pub(crate) fn run(stages: Vec<Stage>, only: &[&str]) -> Result<Vec<Done>, Failure> {
    if let Some(name) = only.iter().find(|name| !stages.iter().any(|stage| stage.name == **name)) {
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        return Err(Failure::Usage(format!("there is no stage {name}; there are {}", names.join(", "))));
    }
    let started = Instant::now();
    let (mut times, mut done) = (Vec::new(), Vec::new());
    for stage in stages.into_iter().filter(|stage| only.is_empty() || only.contains(&stage.name)) {
        eprintln!("== {}", stage.name);
        let began = Instant::now();
        let outcome = (stage.work)();
        let seconds = began.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("== {} {verdict} in {seconds:.1} s", stage.name);
        times.push(format!("{:>8.1} s  {} {verdict}", seconds, stage.name));
        if let Err(failure) = outcome {
            eprintln!("{}", times.join("\n"));
            return Err(failure);
        }
        done.push(Done { name: stage.name, seconds });
    }
    eprintln!("{}\n{:>8.1} s  in all", times.join("\n"), started.elapsed().as_secs_f64());
    Ok(done)
}

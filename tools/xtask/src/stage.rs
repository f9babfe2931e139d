//! Named steps run one after the other, with their times.
use crate::{Failure, Outcome, program};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// One step: a command, whose output is the user's, or work of our own.
pub(crate) struct Stage {
    name: &'static str,
    work: Box<dyn FnOnce() -> Result<Counts, Failure>>,
}

/// What tests and matrices say of themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) tests: u64,
    /// Tests that were not played.
    pub(crate) ignored: u64,
    /// Games of matrices that passed.
    pub(crate) games: u64,
    /// Games that were played twice.
    pub(crate) excused: u64,
}

impl Counts {
    /// Reads a line: `test result: ok. 3 passed; 0 failed; 1 ignored; …`, or `24 of 24 games passed in 8s, 1 of them played twice`.
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split([' ', ';', ',']).filter(|word| !word.is_empty()).collect();
        let before = |word: &str| {
            let at = words.iter().position(|found| *found == word)?;
            words.get(at.checked_sub(1)?)?.parse::<u64>().ok()
        };
        if line.starts_with("test result: ok.") {
            self.tests += before("passed").unwrap_or(0);
            self.ignored += before("ignored").unwrap_or(0);
        } else if line.contains(" games passed") {
            self.games += before("games").unwrap_or(0);
            self.excused += words
                .iter()
                .rposition(|word| *word == "of")
                .map_or(0, |at| words.get(at.wrapping_sub(1)).and_then(|word| word.parse().ok()).unwrap_or(0));
        }
    }
}

/// Passes on what a command prints, and reads it.
fn pass_on(from: impl Read, mut to: impl Write, counts: &Mutex<Counts>) {
    let mut line = Vec::new();
    let mut from = BufReader::new(from);
    while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let _ = to.write_all(&line);
        counts.lock().expect("nobody panics with it").take(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

impl Stage {
    pub(crate) fn of(name: &'static str, work: impl FnOnce() -> Outcome + 'static) -> Stage {
        Stage { name, work: Box::new(|| work().map(|()| Counts::default())) }
    }

    /// `cargo` with these words (the same cargo that runs us).
    pub(crate) fn cargo(name: &'static str, words: &[&str]) -> Stage {
        Stage::cargo_with(name, words, &[])
    }

    /// As [`Stage::cargo`], with variables in its environment.
    pub(crate) fn cargo_with(name: &'static str, words: &[&str], variables: &[(&str, &str)]) -> Stage {
        let mut command = program::cargo();
        command.args(words).envs(variables.iter().copied());
        Stage::command(name, format!("cargo {}", words.join(" ")), || Ok(command))
    }

    /// A command that is told as `line`, and made when its turn comes: what it needs may have to be installed.
    pub(crate) fn command(
        name: &'static str,
        line: String,
        make: impl FnOnce() -> Result<Command, Failure> + 'static,
    ) -> Stage {
        let work = move || {
            eprintln!("   {line}");
            let mut command = make()?;
            // What setup installs is there: a test that cannot do its work without is to fail.
            command.env("UROCE_CI", "1");
            let failed = |e: std::io::Error| Failure::Failed(format!("starting `{line}`: {e}"));
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
            let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
            let counts = Arc::new(Mutex::new(Counts::default()));
            let of_stderr = counts.clone();
            let reader = std::thread::spawn(move || pass_on(stderr, std::io::stderr(), &of_stderr));
            pass_on(stdout, std::io::stdout(), &counts);
            let _ = reader.join();
            let status = child.wait().map_err(failed)?;
            let counts = *counts.lock().expect("nobody panics with it");
            if status.success() { Ok(counts) } else { Err(Failure::Failed(format!("`{line}` failed: {status}"))) }
        };
        Stage { name, work: Box::new(work) }
    }
}

/// A stage that was run to its good end.
pub(crate) struct Done {
    pub(crate) name: &'static str,
    pub(crate) seconds: f64,
    pub(crate) counts: Counts,
}

/// What follows a stage that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    Stop,
    /// The stages after it: a run of hours is to say all that it found.
    GoOn,
}

/// Runs `stages` in order; `only`, when not empty, names those to run. Fails when one of them does.
pub(crate) fn run(stages: Vec<Stage>, only: &[&str], after_failure: AfterFailure) -> Result<Vec<Done>, Failure> {
    if let Some(name) = only.iter().find(|name| !stages.iter().any(|stage| stage.name == **name)) {
        let names: Vec<_> = stages.iter().map(|stage| stage.name).collect();
        return Err(Failure::Usage(format!("there is no stage {name}; there are {}", names.join(", "))));
    }
    let started = Instant::now();
    let (mut times, mut done, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for stage in stages.into_iter().filter(|stage| only.is_empty() || only.contains(&stage.name)) {
        eprintln!("== {}", stage.name);
        let began = Instant::now();
        let outcome = (stage.work)();
        let seconds = began.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("== {} {verdict} in {seconds:.1} s", stage.name);
        times.push(format!("{:>8.1} s  {} {verdict}", seconds, stage.name));
        match outcome {
            Ok(counts) => done.push(Done { name: stage.name, seconds, counts }),
            Err(failure) => {
                failures.push(format!("stage {}: {failure}", stage.name));
                if after_failure == AfterFailure::Stop {
                    break;
                }
            }
        }
    }
    eprintln!("{}\n{:>8.1} s  in all", times.join("\n"), started.elapsed().as_secs_f64());
    if failures.is_empty() { Ok(done) } else { Err(Failure::Failed(failures.join("\n"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_made_when_its_turn_comes_and_its_counts_are_kept() {
        fn shell(words: &str) -> Result<Command, Failure> {
            let mut command = Command::new("sh");
            command.args(["-c", words]);
            Ok(command)
        }
        let stages = |status: &'static str| {
            vec![
                Stage::command("first", "sh".into(), move || shell(status)),
                Stage::command("second", "sh".into(), || panic!("its turn did not come")),
                Stage::command("third", "sh".into(), || {
                    shell("echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'")
                }),
            ]
        };
        let done = run(stages("exit 0"), &["first", "third"], AfterFailure::Stop).ok().unwrap();
        let counts: Vec<_> = done.iter().map(|done| (done.name, done.counts)).collect();
        let three = Counts { tests: 3, ignored: 1, ..Counts::default() };
        assert_eq!(counts, [("first", Counts::default()), ("third", three)]);
        assert!(run(stages("exit 1"), &[], AfterFailure::Stop).is_err(), "nothing comes after the first that fails");
    }

    #[test]
    fn a_run_that_goes_on_after_a_failure_plays_the_rest_and_fails() {
        let played = std::rc::Rc::new(std::cell::Cell::new(false));
        let last = played.clone();
        let stages = vec![
            Stage::of("first", || Err(Failure::Failed("as it must".into()))),
            Stage::of("last", move || {
                last.set(true);
                Ok(())
            }),
        ];
        let failure = run(stages, &[], AfterFailure::GoOn).err().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("stage first: as it must"));
        assert!(played.get());
    }

    #[test]
    fn counts_are_read_from_what_tests_print() {
        let text = "running 3 tests\ntest a ... ok\n\
                    test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.10s\n\
                    24 of 24 games passed in 8s, 1 of them played twice\n\
                    40 of 40 games passed, 2 of them played twice\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.00s\n\
                    no line's end";
        let (counts, mut passed_on) = (Mutex::new(Counts::default()), Vec::new());
        pass_on(text.as_bytes(), &mut passed_on, &counts);
        assert_eq!(*counts.lock().unwrap(), Counts { tests: 5, ignored: 1, games: 64, excused: 3 });
        assert_eq!(passed_on, text.as_bytes());
    }
}

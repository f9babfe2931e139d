//! Named steps run one after the other, some of them in lanes beside each other, with their times.
use crate::{Failure, Outcome, program};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// One step: a command, whose output is the user's, or work of our own.
pub(crate) struct Stage {
    name: &'static str,
    /// Stages that follow each other in different lanes run at once.
    lane: Option<&'static str>,
    work: Box<dyn FnOnce() -> Result<Counts, Failure> + Send>,
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
    pub(crate) fn of(name: &'static str, work: impl FnOnce() -> Outcome + Send + 'static) -> Stage {
        Stage { name, lane: None, work: Box::new(|| work().map(|()| Counts::default())) }
    }

    /// In `lane`: one after the other with those of the same, beside those of others that stand next to them.
    pub(crate) fn in_lane(self, lane: &'static str) -> Stage {
        Stage { lane: Some(lane), ..self }
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
        make: impl FnOnce() -> Result<Command, Failure> + Send + 'static,
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
        Stage { name, lane: None, work: Box::new(work) }
    }

    /// Runs it, and says so.
    fn play(self) -> Played {
        let Stage { name, work, .. } = self;
        eprintln!("== {name}");
        let began = Instant::now();
        let outcome = work();
        let seconds = began.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("== {name} {verdict} in {seconds:.1} s");
        Played { name, seconds, outcome }
    }
}

/// How a stage ended.
struct Played {
    name: &'static str,
    seconds: f64,
    outcome: Result<Counts, Failure>,
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
    let selected = stages.into_iter().filter(|stage| only.is_empty() || only.contains(&stage.name));
    let failed = AtomicBool::new(false);
    let played: Vec<Played> =
        grouped(selected).into_iter().flat_map(|lanes| side_by_side(lanes, after_failure, &failed)).collect();
    let (mut times, mut done, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for Played { name, seconds, outcome } in played {
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        times.push(format!("{seconds:>8.1} s  {name} {verdict}"));
        match outcome {
            Ok(counts) => done.push(Done { name, seconds, counts }),
            Err(failure) => failures.push(format!("stage {name}: {failure}")),
        }
    }
    eprintln!("{}\n{:>8.1} s  in all", times.join("\n"), started.elapsed().as_secs_f64());
    if failures.is_empty() { Ok(done) } else { Err(Failure::Failed(failures.join("\n"))) }
}

/// What runs at once, as lanes of stages that run in turn; each stage without a lane is alone.
fn grouped(stages: impl Iterator<Item = Stage>) -> Vec<Vec<Vec<Stage>>> {
    let mut groups: Vec<Vec<Vec<Stage>>> = Vec::new();
    for stage in stages {
        match groups.last_mut().filter(|lanes| stage.lane.is_some() && lanes[0][0].lane.is_some()) {
            None => groups.push(vec![vec![stage]]),
            Some(lanes) => match lanes.iter_mut().find(|lane| lane[0].lane == stage.lane) {
                Some(lane) => lane.push(stage),
                None => lanes.push(vec![stage]),
            },
        }
    }
    groups
}

/// Runs the lanes at once, until all are at their end or, when told so, one stage has failed.
fn side_by_side(lanes: Vec<Vec<Stage>>, after_failure: AfterFailure, failed: &AtomicBool) -> Vec<Played> {
    let run_lane = |lane: Vec<Stage>| {
        let mut played = Vec::new();
        for stage in lane {
            if after_failure == AfterFailure::Stop && failed.load(Ordering::Relaxed) {
                break;
            }
            let ended = stage.play();
            failed.fetch_or(ended.outcome.is_err(), Ordering::Relaxed);
            played.push(ended);
        }
        played
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(|| run_lane(lane))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("stages do not panic")).collect()
    })
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
        let played = Arc::new(AtomicBool::new(false));
        let last = played.clone();
        let stages = vec![
            Stage::of("first", || Err(Failure::Failed("as it must".into()))),
            Stage::of("last", move || {
                last.store(true, Ordering::Relaxed);
                Ok(())
            }),
        ];
        let failure = run(stages, &[], AfterFailure::GoOn).err().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), Some("stage first: as it must"));
        assert!(played.load(Ordering::Relaxed));
    }

    #[test]
    fn lanes_run_at_once_and_their_own_stages_in_turn() {
        let (in_turn, at_once) = (Arc::new(Mutex::new(Vec::new())), Arc::new(std::sync::Barrier::new(2)));
        let stage = |name: &'static str, meets: bool| {
            let (in_turn, at_once) = (in_turn.clone(), at_once.clone());
            Stage::of(name, move || {
                if meets {
                    at_once.wait();
                }
                in_turn.lock().unwrap().push(name);
                Ok(())
            })
        };
        let stages = vec![
            stage("before", false),
            stage("one", true).in_lane("left"),
            stage("two", true).in_lane("right"),
            stage("three", false).in_lane("left"),
            stage("after", false),
        ];
        let done = run(stages, &[], AfterFailure::Stop).ok().unwrap();
        let names: Vec<_> = done.iter().map(|done| done.name).collect();
        assert_eq!(names, ["before", "one", "three", "two", "after"], "by lanes");
        let in_turn = in_turn.lock().unwrap();
        let at = |name| in_turn.iter().position(|found| *found == name).unwrap();
        assert!(at("before") == 0 && at("one") < at("three") && at("after") == 4, "{in_turn:?}");
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

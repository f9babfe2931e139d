//! `cargo xtask mutants`: wrong versions of the transport, each of which `uroce sim chaos` must find wrong.
//!
//! A mutant is a text to be replaced in a copy of the tree. One that no longer applies is a failure too: it is to be
//! brought up to date with the code that it was made for.

mod list;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{Failure, Outcome};
use list::MUTANTS;

/// Seeds within which each must be found, unless `--seeds` says otherwise.
const SEEDS: u64 = 1000;

/// A wrong version of the code.
pub(super) struct Mutant {
    /// What it is called, and the mistake that it makes.
    pub name: &'static str,
    pub file: &'static str,
    /// What is replaced: it must be in the file exactly once.
    pub old: &'static str,
    pub new: &'static str,
}

/// What became of a mutant.
enum Verdict {
    /// The first seed with a violation, and what it was.
    Caught(u64, String),
    Survived,
    /// It does not apply, does not build, or the run broke off.
    Broken(String),
}

struct Report {
    name: &'static str,
    verdict: Verdict,
    seconds: f64,
}

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let (mut json, mut seeds, mut names) = (false, SEEDS, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--json" => json = true,
            "--seeds" => {
                let number = words.next().and_then(|word| word.parse().ok()).filter(|number| *number > 0);
                seeds = number.ok_or(Failure::Usage("--seeds needs a number of seeds".into()))?;
            }
            option if option.starts_with('-') => {
                return Err(Failure::Usage(format!("mutants has no option {option}")));
            }
            name if MUTANTS.iter().any(|mutant| mutant.name == name) => names.push(name),
            name => return Err(Failure::Usage(format!("there is no mutant {name}"))),
        }
    }
    let chosen: Vec<_> = MUTANTS.iter().filter(|m| names.is_empty() || names.contains(&m.name)).collect();
    let work = Workplace::new()?;
    // The tree as it is must pass: else whatever finds the mutants may find that.
    eprintln!("mutants: building the tree as it is, and running {seeds} seeds");
    let seed = work.build().and_then(|()| work.chaos(seeds))?;
    if let Some((seed, text)) = seed {
        return Err(Failure::Failed(format!("without any mutation, seed {seed} is a violation: {text}")));
    }
    let mut reports = Vec::new();
    for (index, mutant) in chosen.iter().enumerate() {
        eprint!("mutants: {} of {}: {} … ", index + 1, chosen.len(), mutant.name);
        let began = Instant::now();
        let verdict = match work.try_mutant(mutant, seeds) {
            Ok(Some((seed, text))) => Verdict::Caught(seed, text),
            Ok(None) => Verdict::Survived,
            Err(text) => Verdict::Broken(text),
        };
        let seconds = began.elapsed().as_secs_f64();
        match &verdict {
            Verdict::Caught(seed, _) => eprintln!("seed {seed}, {seconds:.0} s"),
            Verdict::Survived => eprintln!("survived, {seconds:.0} s"),
            Verdict::Broken(text) => eprintln!("{text}"),
        }
        reports.push(Report { name: mutant.name, verdict, seconds });
    }
    let is_caught = |report: &&Report| matches!(report.verdict, Verdict::Caught(..));
    let caught = reports.iter().filter(is_caught).count();
    if json {
        println!("{}", to_json(&reports, seeds));
    } else {
        print_table(&reports, seeds);
        println!("{caught} of {} mutants found", reports.len());
    }
    let others: Vec<_> = reports.iter().filter(|report| !is_caught(report)).map(|report| report.name).collect();
    if others.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("not found: {}", others.join(", ")))) }
}

fn print_table(reports: &[Report], seeds: u64) {
    println!("{:40} {:>5}  {:>4}  violation", "mutant", "seed", "s");
    for Report { name, verdict, seconds } in reports {
        match verdict {
            Verdict::Caught(seed, text) => println!("{name:40} {seed:5}  {seconds:4.0}  {text}"),
            Verdict::Survived => println!("{name:40}     -  {seconds:4.0}  SURVIVED {seeds} seeds"),
            Verdict::Broken(text) => println!("{name:40}     -  {seconds:4.0}  BROKEN: {text}"),
        }
    }
}

fn to_json(reports: &[Report], seeds: u64) -> serde_json::Value {
    let object = |report: &Report| {
        let (seed, text) = match &report.verdict {
            Verdict::Caught(seed, text) => (Some(*seed), Some(text.as_str())),
            Verdict::Survived => (None, None),
            Verdict::Broken(text) => (None, Some(text.as_str())),
        };
        let caught = seed.is_some();
        serde_json::json!({"name": report.name, "caught": caught, "seed": seed, "text": text, "seconds": report.seconds})
    };
    serde_json::json!({"seeds": seeds, "mutants": reports.iter().map(object).collect::<Vec<_>>()})
}

/// A copy of the tree, with a target directory that all mutants share.
struct Workplace {
    tree: PathBuf,
    target: PathBuf,
}

impl Workplace {
    fn new() -> Result<Workplace, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask is two levels down");
        let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let (tree, target) = (base.join("mutants/tree"), base.join("mutants/target"));
        let files = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|error| Failure::Failed(format!("starting git: {error}")))?;
        let files = String::from_utf8_lossy(&files.stdout).into_owned();
        for file in files.split('\0').filter(|file| !file.is_empty()) {
            // Deleted but not yet committed as such.
            let Ok(content) = fs::read(root.join(file)) else { continue };
            let copy = tree.join(file);
            // What is the same stays untouched, so that cargo builds only what changed.
            if fs::read(&copy).is_ok_and(|old| old == content) {
                continue;
            }
            let write = || {
                fs::create_dir_all(copy.parent().expect("in the tree"))?;
                fs::write(&copy, &content)
            };
            write().map_err(|error| Failure::Failed(format!("{}: {error}", copy.display())))?;
        }
        Ok(Workplace { tree, target })
    }

    fn build(&self) -> Result<(), Failure> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--profile", "chaos", "--package", "uroce-cli"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            // Mutants have many warnings.
            .stderr(Stdio::null())
            .status()
            .map_err(|error| Failure::Failed(format!("starting cargo: {error}")))?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("does not build in {}", self.tree.display())))
        }
    }

    /// The first seed with a violation that chaos finds, on all processors, and the violation.
    fn chaos(&self, seeds: u64) -> Result<Option<(u64, String)>, Failure> {
        let output = Command::new(self.target.join("chaos/uroce"))
            .args(["sim", "chaos", "--json", "--fail-fast", "--seeds", &seeds.to_string()])
            .stderr(Stdio::null())
            .output()
            .map_err(|error| Failure::Failed(format!("starting chaos: {error}")))?;
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::Failed(format!("chaos ended with {}: {error}", output.status)))?;
        Ok(report["violations"].get(0).map(|violation| {
            let text = violation["text"].as_str().unwrap_or_default();
            (violation["seed"].as_u64().unwrap_or_default(), text.to_owned())
        }))
    }

    fn try_mutant(&self, mutant: &Mutant, seeds: u64) -> Result<Option<(u64, String)>, String> {
        let path = self.tree.join(mutant.file);
        let original = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", mutant.file))?;
        let places = original.matches(mutant.old).count();
        if places != 1 {
            return Err(format!("does not apply: its text is {places} times in {}", mutant.file));
        }
        let text = |failure| match failure {
            Failure::Failed(text) | Failure::Usage(text) => text,
            Failure::Status(status) => format!("status {status}"),
        };
        let result = fs::write(&path, original.replace(mutant.old, mutant.new))
            .map_err(|error| error.to_string())
            .and_then(|()| self.build().map_err(text))
            .and_then(|()| self.chaos(seeds).map_err(text));
        fs::write(&path, original).map_err(|error| format!("{}: {error}", mutant.file))?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutant that no longer fits the code would be noticed by a run of hours only.
    #[test]
    fn every_mutants_text_stands_once_in_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for mutant in MUTANTS {
            let source = fs::read_to_string(root.join(mutant.file)).unwrap();
            assert_eq!(source.matches(mutant.old).count(), 1, "{} in {}", mutant.name, mutant.file);
            assert_ne!(mutant.old, mutant.new, "{}", mutant.name);
        }
    }
}

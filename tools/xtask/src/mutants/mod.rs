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

/// Seeds within which each must be found.
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

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if let Some(option) = arguments.iter().find(|word| word.starts_with('-')) {
        return Err(Failure::Usage(format!("mutants has no option {option}")));
    }
    let chosen: Vec<_> = MUTANTS.iter().filter(|m| arguments.is_empty() || arguments.contains(&m.name)).collect();
    if chosen.is_empty() {
        return Err(Failure::Usage("there is no such mutant".into()));
    }
    let work = Workplace::new()?;
    // The tree as it is must pass: else whatever finds the mutants may find that.
    let seed = work.build().and_then(|()| work.chaos())?;
    if let Some((seed, text)) = seed {
        return Err(Failure::Failed(format!("without any mutation, seed {seed} is a violation: {text}")));
    }
    let mut wrong = Vec::new();
    for mutant in &chosen {
        let began = Instant::now();
        let result = work.try_mutant(mutant);
        let seconds = began.elapsed().as_secs();
        match result {
            Ok(Some((seed, text))) => println!("{:32} seed {seed:4}  {seconds:3} s  {text}", mutant.name),
            Ok(None) => {
                println!("{:32} SURVIVED {SEEDS} seeds", mutant.name);
                wrong.push(mutant.name);
            }
            Err(text) => {
                println!("{:32} {text}", mutant.name);
                wrong.push(mutant.name);
            }
        }
    }
    println!("{} of {} mutants found", chosen.len() - wrong.len(), chosen.len());
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("not found: {}", wrong.join(", ")))) }
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

    /// The first violation that chaos finds, with its seed.
    fn chaos(&self) -> Result<Option<(u64, String)>, Failure> {
        let output = Command::new(self.target.join("chaos/uroce"))
            .args(["sim", "chaos", "--json", "--fail-fast", "--seeds", &SEEDS.to_string()])
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

    fn try_mutant(&self, mutant: &Mutant) -> Result<Option<(u64, String)>, String> {
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
            .and_then(|()| self.chaos().map_err(text));
        fs::write(&path, original).map_err(|error| format!("{}: {error}", mutant.file))?;
        result
    }
}

//! `cargo xtask coverage [--seeds N] [--json]`: which lines of `src/transport` and `src/wire` the simulator's chaos and the fuzz
//! targets reach together. The targets play what `cargo xtask fuzz` has kept.
use crate::{Failure, Outcome, fuzz, nightly, setup, workspace};
use rxe_rig::process;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is looked at.
const FOLDERS: [&str; 2] = ["src/transport/", "src/wire/"];

/// Inputs that a target is given at once: what fits into a command line.
const INPUTS: usize = 500;

/// Files by name: each line that can be reached, and how often it was.
type Lines = BTreeMap<String, BTreeMap<u32, u64>>;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let (mut seeds, mut is_json) = ("1000".to_owned(), false);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seeds" => seeds = words.next().map(|word| (*word).to_owned()).unwrap_or_default(),
            "--json" => is_json = true,
            other => return Err(Failure::Usage(format!("coverage has no option {other}"))),
        }
    }
    nightly::ensure(&["llvm-tools"])?;
    let folder = setup::target_directory().join("coverage");
    let profiles = folder.join("profiles");
    let _ = std::fs::remove_dir_all(&profiles);
    std::fs::create_dir_all(&profiles).map_err(|e| Failure::Failed(format!("{}: {e}", profiles.display())))?;

    let root = workspace::root();
    let uroce = build(&root.join("Cargo.toml"), &folder.join("chaos"), &["--package", "uroce-cli", "--bin", "uroce"])?;
    let uroce = uroce.join("uroce");
    eprintln!("coverage: {seeds} seeds of chaos");
    process::run(instrumented(&uroce, &profiles).args(["sim", "chaos", "--seeds", &seeds]))?;

    let targets = build(&root.join("fuzz/Cargo.toml"), &folder.join("fuzz"), &["--bins"])?;
    let mut objects = vec![uroce];
    for target in fuzz::TARGETS {
        let corpus = std::fs::read_dir(fuzz::corpus(target));
        let inputs: Vec<PathBuf> = corpus.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        if inputs.is_empty() {
            return Err(Failure::Failed(format!("there is no corpus for {target}: cargo xtask fuzz makes one")));
        }
        eprintln!("coverage: {} inputs of {target}", inputs.len());
        let program = targets.join(target);
        for inputs in inputs.chunks(INPUTS) {
            process::run(instrumented(&program, &profiles).args(inputs))?;
        }
        objects.push(program);
    }
    let lines = read(&merge(&folder, &profiles, &objects)?, &root);
    report(&lines, &folder.join("unreached.txt"), is_json)
}

/// Builds with counters in the code; returns where the programs are.
fn build(manifest: &Path, target: &Path, what: &[&str]) -> Result<PathBuf, Failure> {
    eprintln!("coverage: building {}", manifest.display());
    let mut command = nightly::command("cargo");
    command.args(["build", "--quiet", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(target).args(what);
    // As cargo-fuzz has it, so that libFuzzer's main is linked and nothing else changes.
    command.env("RUSTFLAGS", "-Cinstrument-coverage --cfg fuzzing");
    process::run(&mut command)?;
    Ok(target.join("debug"))
}

fn instrumented(program: &Path, profiles: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LLVM_PROFILE_FILE", profiles.join("%m-%p.profraw"));
    command
}

/// All profiles as one, in lcov's words.
fn merge(folder: &Path, profiles: &Path, objects: &[PathBuf]) -> Result<String, Failure> {
    let tools = nightly::library_directory()?.join("../bin");
    let merged = folder.join("all.profdata");
    let raw = std::fs::read_dir(profiles).into_iter().flatten().flatten().map(|entry| entry.path());
    process::run(Command::new(tools.join("llvm-profdata")).args(["merge", "-sparse", "-o"]).arg(&merged).args(raw))?;
    let mut command = Command::new(tools.join("llvm-cov"));
    command.args(["export", "-format=lcov"]).arg(format!("-instr-profile={}", merged.display()));
    let (first, more) = objects.split_first().expect("there are programs");
    command.arg(first);
    more.iter().for_each(|object| {
        command.arg("-object").arg(object);
    });
    Ok(process::run(&mut command)?)
}

/// The lines of the folders that are looked at. A line that is in several programs was reached when it was in one.
fn read(lcov: &str, root: &Path) -> Lines {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let mut all = Lines::new();
    let mut file = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = Path::new(path).canonicalize().unwrap_or_else(|_| path.into());
            let name = path.strip_prefix(&root).ok().map(|name| name.to_string_lossy().into_owned());
            file = name.filter(|name| FOLDERS.iter().any(|folder| name.starts_with(folder)));
        } else if let (Some(name), Some(counts)) = (&file, line.strip_prefix("DA:")) {
            let mut numbers = counts.split(',').map_while(|number| number.parse::<u64>().ok());
            if let (Some(number), Some(count)) = (numbers.next(), numbers.next()) {
                *all.entry(name.clone()).or_default().entry(number as u32).or_default() += count;
            }
        }
    }
    all
}

/// Lines that were not reached, neighbours together.
fn gaps(lines: &BTreeMap<u32, u64>) -> Vec<(u32, u32)> {
    let mut gaps: Vec<(u32, u32)> = Vec::new();
    let mut is_open = false;
    for (number, count) in lines {
        match gaps.last_mut() {
            Some((_, last)) if *count == 0 && is_open => *last = *number,
            _ if *count == 0 => gaps.push((*number, *number)),
            _ => {}
        }
        is_open = *count == 0;
    }
    gaps
}

fn report(lines: &Lines, unreached: &Path, is_json: bool) -> Outcome {
    let of = |lines: &BTreeMap<u32, u64>| (lines.values().filter(|count| **count > 0).count(), lines.len());
    let percent = |(reached, all): (usize, usize)| 100.0 * reached as f64 / all.max(1) as f64;
    let (mut text, mut total) = (String::new(), (0, 0));
    for (name, lines) in lines {
        let counts = of(lines);
        total = (total.0 + counts.0, total.1 + counts.1);
        if is_json {
            let gaps = gaps(lines);
            let object = serde_json::json!({
                "file": name, "lines": counts.1, "reached": counts.0, "percent": percent(counts), "unreached": gaps,
            });
            println!("{object}");
        } else {
            println!("{:6.2} %  {:4} of {:4}  {name}", percent(counts), counts.0, counts.1);
        }
        for (first, last) in gaps(lines) {
            let _ = writeln!(text, "{name}:{first}-{last}");
        }
    }
    if total.1 == 0 {
        return Err(Failure::Failed("no line of the folders is in the profiles".into()));
    }
    if is_json {
        println!("{}", serde_json::json!({ "lines": total.1, "reached": total.0, "percent": percent(total) }));
    } else {
        println!("{:6.2} %  {:4} of {:4}  in all", percent(total), total.0, total.1);
    }
    std::fs::write(unreached, text).map_err(|e| Failure::Failed(format!("{}: {e}", unreached.display())))?;
    eprintln!("coverage: the lines that neither reached are in {}", unreached.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_several_programs_are_reached_when_they_are_in_one() {
        let root = Path::new("/nowhere");
        let lcov = "SF:/nowhere/src/wire/psn.rs\nDA:1,0\nDA:2,5\nDA:3,0\nDA:4,0\nDA:9,0\nend_of_record\n\
                    SF:/nowhere/src/link/udp.rs\nDA:1,0\nend_of_record\nSF:/nowhere/src/wire/psn.rs\nDA:1,7\nDA:3,0\n";
        let lines = read(lcov, root);
        assert_eq!(lines.keys().collect::<Vec<_>>(), ["src/wire/psn.rs"]);
        let psn = &lines["src/wire/psn.rs"];
        assert_eq!((psn[&1], psn[&2], psn.len()), (7, 5, 5));
        assert_eq!(gaps(psn), [(3, 9)]);
        assert_eq!(gaps(&[(1, 0), (2, 1), (3, 0)].into()), [(1, 1), (3, 3)]);
    }
}

//! `cargo xtask instructions [--json] [--keep]`: how many instructions each step of a message takes, counted by callgrind, which
//! counts the same on a busy machine as on an idle one. benches/instructions.json keeps the numbers; more than those is a failure.
use crate::{Failure, Outcome, program, setup, workspace};
use rxe_rig::process;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is played: an operation, and the bytes of a message. The path MTU is 1024. `deep` ones have 128 messages outstanding, as
/// perftest has, and the others 4.
const PLAYS: [(&str, usize); 7] =
    [("send", 64), ("write", 64), ("deep-write", 64), ("read", 64), ("send", 65536), ("write", 65536), ("read", 65536)];

/// What a packet may not depend on: how many queue pairs, packets of a window, or paths there are. And messages of so many bytes
/// by both sides in turn.
const SCALES: [(&str, [usize; 3]); 4] = [
    ("queue-pairs", [1, 100, 10_000]),
    ("window", [128, 4096, 262_144]),
    ("paths", [1, 16, 256]),
    ("exchange", [8, 64, 512]),
];

/// The steps of a message, and what each is counted by: as benches/play has them.
const STEPS: [(&str, &str); 6] = [
    ("post", "messages"),
    ("request", "requests"),
    ("execute", "requests"),
    ("answer", "answers"),
    ("acknowledge", "answers"),
    ("complete", "messages"),
];

/// What a step may take more than is kept, in percent and in instructions: processors have other copies of memory.
const TOLERANCE_PERCENT: f64 = 5.0;
const TOLERANCE: f64 = 10.0;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.iter().find(|word| !["--json", "--keep"].contains(word)) {
        return Err(Failure::Usage(format!("instructions has no option {other}")));
    }
    setup::packages()?;
    let bench = build()?;
    let file = workspace::root().join("benches/instructions.json");
    let mut counted = Map::new();
    for (operation, bytes) in PLAYS {
        counted.insert(format!("{operation} {bytes}"), count(&bench, operation, bytes)?);
    }
    for (what, numbers) in SCALES {
        for number in numbers {
            counted.insert(format!("{what} {number}"), count_packet(&bench, what, number)?);
        }
    }
    let counted = Value::Object(counted);
    if arguments.contains(&"--keep") {
        let text = serde_json::to_string_pretty(&counted).expect("numbers by name");
        std::fs::write(&file, text + "\n").map_err(|e| failed(&file, e))?;
    }
    let text = std::fs::read_to_string(&file).map_err(|e| failed(&file, e))?;
    let kept: Value = serde_json::from_str(&text).map_err(|e| failed(&file, e))?;
    if arguments.contains(&"--json") {
        println!("{counted}")
    } else {
        table(&counted)
    }
    compare(&counted, &kept)
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}

/// Builds the bench as it is measured, without what it does not use; returns where it is.
fn build() -> Result<PathBuf, Failure> {
    let words = ["bench", "--quiet", "--package", "uroce", "--no-default-features", "--bench", "instructions"];
    let mut command = program::cargo();
    let text = process::run(command.args(words).args(["--no-run", "--message-format", "json"]))?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut executables = messages.filter(|message| message["target"]["name"] == "instructions");
    let executable = executables.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    executable.ok_or_else(|| Failure::Failed("cargo named no program for benches/instructions.rs".into()))
}

/// Plays `what` with `number` under callgrind; returns what the bench said of it, and the profile.
fn play(bench: &Path, what: &str, number: usize) -> Result<(Value, String), Failure> {
    let profile = setup::target_directory().join(format!("tmp/instructions-{}", std::process::id()));
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
    command.arg(format!("--callgrind-out-file={}", profile.display())).arg("--toggle-collect=instructions::counted");
    let text = process::run(command.arg(bench).args([what, &number.to_string()]))?;
    let taken = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let taken = taken.ok_or_else(|| Failure::Failed(format!("{} said {text}", bench.display())))?;
    let costs = std::fs::read_to_string(&profile).map_err(|e| failed(&profile, e))?;
    let _ = std::fs::remove_file(&profile);
    Ok((taken, costs))
}

/// What a packet takes on average, with its share of posting, acknowledging and completing.
fn count_packet(bench: &Path, what: &str, number: usize) -> Result<Value, Failure> {
    let (taken, costs) = play(bench, what, number)?;
    let total = costs.lines().find_map(|line| line.strip_prefix("totals: ")?.parse::<f64>().ok());
    let each = total.zip(taken["packets"].as_f64()).map(|(total, packets)| (total / packets).round());
    let each = each.ok_or_else(|| Failure::Failed(format!("{what} {number}: nothing was counted")))?;
    Ok(json!({ "packet": each }))
}

/// What each step takes, on average, and how many packets a message has.
fn count(bench: &Path, operation: &str, bytes: usize) -> Result<Value, Failure> {
    let (taken, costs) = play(bench, operation, bytes)?;
    let times = |what: &str| taken[what].as_f64().filter(|times| *times > 0.0);
    let mut row = Map::new();
    for (step, what) in STEPS {
        let cost = inclusive(&costs, &format!("instructions::play::{step}"));
        let each = times(what).filter(|_| cost > 0).map(|times| (cost as f64 / times).round());
        let each = each.ok_or_else(|| Failure::Failed(format!("{operation} {bytes}: no {step} was counted")))?;
        row.insert(step.to_owned(), json!(each));
    }
    for what in ["requests", "answers"] {
        let of_a_message = times(what).zip(times("messages")).map(|(frames, messages)| frames / messages);
        row.insert(format!("{what}_of_a_message"), json!(of_a_message));
    }
    Ok(Value::Object(row))
}

/// What all calls of `function` took, with all that it called: callgrind has a line `cfn=` with the name, one with the number of
/// calls, and one with where they are and what they took.
fn inclusive(profile: &str, function: &str) -> u64 {
    let lines: Vec<&str> = profile.lines().collect();
    let called = lines.windows(3).filter(|lines| lines[0].strip_prefix("cfn=") == Some(function));
    called.filter_map(|lines| lines[2].split(' ').nth(1)?.parse::<u64>().ok()).sum()
}

fn table(counted: &Value) {
    let header = STEPS.map(|(step, _)| format!("{step:>12}")).concat();
    println!("{:14}{header}{:>12}{:>12}", "", "requests", "answers");
    let rows = |what: &'static str| {
        let all = counted.as_object().into_iter().flatten();
        all.filter(move |(_, row)| row[what].is_number())
    };
    for (name, row) in rows("requests_of_a_message") {
        let steps = STEPS.map(|(step, _)| format!("{:>12}", row[step].as_f64().unwrap_or_default())).concat();
        let frames = ["requests_of_a_message", "answers_of_a_message"]
            .map(|what| format!("{:>12.2}", row[what].as_f64().unwrap_or_default()));
        println!("{name:14}{steps}{}", frames.concat());
    }
    println!("\n{:20}{:>12}", "", "packet");
    for (name, row) in rows("packet") {
        println!("{name:20}{:>12}", row["packet"].as_f64().unwrap_or_default());
    }
}

/// Fails when a step takes more than is kept, and says which takes less.
fn compare(counted: &Value, kept: &Value) -> Outcome {
    let mut more = Vec::new();
    for (name, row) in counted.as_object().into_iter().flatten() {
        for (what, now) in row.as_object().into_iter().flatten() {
            let (now, before) = (now.as_f64().unwrap_or_default(), kept[name][what].as_f64().unwrap_or_default());
            let is_step = STEPS.iter().any(|(step, _)| step == what);
            let tolerance = before * TOLERANCE_PERCENT / 100.0 + if is_step { TOLERANCE } else { 0.0 };
            if now > before + tolerance {
                more.push(format!("{name}: {what} {now}, was {before}"));
            } else if now < before - tolerance {
                eprintln!("instructions: {name}: {what} {now}, was {before}: keep it with --keep");
            }
        }
    }
    let advice = "find out why, or keep them with `cargo xtask instructions --keep` and say why in the commit";
    if more.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("{}: {advice}", more.join("; ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_calls_took_is_added_up() {
        let profile = "fn=main\n1 5\ncfn=instructions::post\ncalls=2 46\n94 100\n95 7\ncfn=instructions::posted\ncalls=1 4\n\
                       9 1000\ncfn=instructions::post\ncalls=1 46\n94 11\n";
        assert_eq!(inclusive(profile, "instructions::post"), 111);
        assert_eq!(inclusive(profile, "instructions::request"), 0);
    }

    #[test]
    fn more_than_kept_is_a_failure_and_less_is_not() {
        let kept = json!({"send 64": {"post": 100.0, "request": 1000.0}});
        let now = |post: f64, request: f64| json!({"send 64": {"post": post, "request": request}});
        assert!(compare(&now(114.0, 1059.0), &kept).is_ok());
        assert!(compare(&now(50.0, 500.0), &kept).is_ok());
        for worse in [now(116.0, 1000.0), now(100.0, 1061.0)] {
            assert!(compare(&worse, &kept).is_err());
        }
        assert!(
            compare(&json!({"read 64": {"post": 100.0}}), &kept).is_err(),
            "what is not kept is not compared with nothing"
        );
    }
}

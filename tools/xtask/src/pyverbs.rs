//! `cargo xtask pyverbs [--json] [FILE…]`: rdma-core's own tests in Python on this stack, beside the same on the kernel's rxe.
use crate::{Failure, Outcome, setup, stage};
use rxe_rig::VethPair;
use rxe_rig::pyverbs::{Report, Suite, Verdict};
use serde_json::{Value, json};

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let is_json = arguments.contains(&"--json");
    let wanted: Vec<&str> = arguments.iter().copied().filter(|word| *word != "--json").collect();
    if let Some(option) = wanted.iter().find(|word| word.starts_with('-')) {
        return Err(Failure::Usage(format!("pyverbs has no option {option}")));
    }
    setup::packages()?;
    let suite = Suite::unpack()?;
    if let Some(name) = wanted.iter().find(|name| !suite.files().iter().any(|file| file == *name)) {
        return Err(Failure::Usage(format!("there is no file {name}; there are {}", suite.files().join(", "))));
    }
    let files: Vec<String> =
        suite.files().iter().filter(|file| wanted.is_empty() || wanted.contains(&file.as_str())).cloned().collect();
    stage::run(
        vec![stage::Stage::cargo("build", &["build", "--package", "uroce-cli", "--package", "uroce-verbs"])],
        &[],
        stage::AfterFailure::Stop,
    )?;
    let ours = on_uroce(&suite, &files)?;
    let theirs = suite.run_on_rxe(&files, |report| say("rxe", report))?;
    if is_json {
        for (on, reports) in [("uroce", &ours), ("rxe", &theirs)] {
            reports.iter().for_each(|report| println!("{}", object(on, report)));
        }
    } else {
        print!("{}", table(&ours, &theirs));
    }
    match ours.iter().map(|report| report.count(Verdict::Failed)).sum() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} tests failed"))),
    }
}

/// Every file under `uroce run`, in a namespace.
fn on_uroce(suite: &Suite, files: &[String]) -> Result<Vec<Report>, Failure> {
    let uroce = setup::target_directory().join("debug/uroce").display().to_string();
    let pair = VethPair::create(1500)?;
    let device = VethPair::A.interface;
    let mut reports = Vec::new();
    let prefix = [uroce.as_str(), "run", "--dev", device, "--link", "xdp", "--"];
    for file in files {
        let report = suite.run(&pair.a, &prefix, device, file)?;
        say("uroce", &report);
        reports.push(report);
    }
    Ok(reports)
}

/// One report on stderr, the failures by name.
fn say(on: &str, report: &Report) {
    let [passed, skipped, failed] = counts(report);
    let seconds = report.time.as_secs_f64();
    eprintln!("{on}: {}: {passed} passed, {skipped} skipped, {failed} failed in {seconds:.1} s", report.file);
    for outcome in report.outcomes.iter().filter(|outcome| outcome.verdict == Verdict::Failed) {
        eprintln!("   {}: {}", outcome.test, outcome.reason());
    }
}

fn counts(report: &Report) -> [usize; 3] {
    [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(|verdict| report.count(verdict))
}

fn object(on: &str, report: &Report) -> Value {
    let [passed, skipped, failed] = counts(report);
    let names = |verdict| -> Value {
        let some = report.outcomes.iter().filter(|outcome| outcome.verdict == verdict);
        some.map(|outcome| json!({"test": outcome.test, "why": outcome.reason()})).collect()
    };
    json!({
        "on": on, "file": report.file, "seconds": report.time.as_secs_f64(),
        "passed": passed, "skipped": skipped, "failed": failed,
        "skips": names(Verdict::Skipped), "failures": names(Verdict::Failed),
    })
}

/// The counts side by side, the sums below, and every test that ended otherwise here than there.
fn table(ours: &[Report], theirs: &[Report]) -> String {
    let mut text =
        "| file | uroce: passed | skipped | failed | rxe: passed | skipped | failed |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    let mut sums = [0; 6];
    let mut row = |name: &str, numbers: &[usize]| {
        let cells: String = numbers.iter().map(|number| format!(" {number} |")).collect();
        text.push_str(&format!("| {name} |{cells}\n"));
    };
    for (our, their) in ours.iter().zip(theirs) {
        let numbers = [counts(our), counts(their)].concat();
        sums.iter_mut().zip(&numbers).for_each(|(sum, number)| *sum += number);
        row(&our.file, &numbers);
    }
    row("all", &sums);
    for (our, their) in ours.iter().zip(theirs) {
        for here in &our.outcomes {
            let there = their.outcomes.iter().find(|there| there.test == here.test);
            if let Some(there) = there.filter(|there| there.verdict != here.verdict) {
                text.push_str(&format!(
                    "{}.{}: {:?} here ({}), {:?} on rxe ({})\n",
                    our.file,
                    here.test,
                    here.verdict,
                    here.reason(),
                    there.verdict,
                    there.reason()
                ));
            }
        }
    }
    text
}

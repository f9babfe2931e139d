//! `cargo xtask mutants`: wrong versions of the code, each of which `uroce sim chaos` must find wrong, or the test that it names.
//!
//! The code has points at which it can be made wrong (`src/mutants.rs`). All are in one build, and an environment variable says which
//! one is on. A point that nothing comes by is a failure, too.

mod points;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Failure, Outcome, program};
use points::{Point, points};

/// Seeds within which each must be found, unless `--seeds` says otherwise.
const SEEDS: u64 = 1000;

/// What says which point is on.
const CHOICE: &str = "UROCE_MUTANT";

/// A run that takes longer does not end: that is found, too.
const PATIENCE: Duration = Duration::from_secs(300);

/// What became of a mutant.
enum Verdict {
    /// The first seed with a violation, or none where a test found it; and what it was.
    Caught(Option<u64>, String),
    Survived,
    /// Nothing comes by its point, or the run broke off.
    Broken(String),
}

struct Report {
    name: String,
    verdict: Verdict,
    seconds: f64,
}

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let (mut json, mut seeds, mut names) = (false, SEEDS, Vec::new());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("xtask is two levels down");
    let all = points(root).map_err(|error| Failure::Failed(format!("reading the sources: {error}")))?;
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
            name if all.iter().any(|point| point.name == name) => names.push(name),
            name => return Err(Failure::Usage(format!("there is no mutant {name}"))),
        }
    }
    let chosen: Vec<_> = all.iter().filter(|p| names.is_empty() || names.contains(&p.name.as_str())).collect();
    let work = Workplace::new(root);
    // The code as it is must pass: else whatever finds the mutants may find that.
    eprintln!("mutants: building, and running {seeds} seeds of the code as it is");
    work.build()?;
    let Run { violation, reached } = work.chaos(None, seeds).map_err(Failure::Failed)?;
    if let Some((seed, text)) = violation {
        return Err(Failure::Failed(format!("without any mutation, seed {seed} is a violation: {text}")));
    }
    let mut tests: Vec<_> = chosen.iter().filter_map(|point| point.test.as_deref()).collect();
    tests.sort_unstable();
    tests.dedup();
    for test in tests {
        eprintln!("mutants: {test}, of the code as it is");
        if let Some(text) = work.test(None, test).map_err(Failure::Failed)? {
            return Err(Failure::Failed(format!("without any mutation, {test} fails: {text}")));
        }
    }
    let mut reports = Vec::new();
    for (index, point) in chosen.iter().enumerate() {
        eprint!("mutants: {} of {}: {} … ", index + 1, chosen.len(), point.name);
        let began = Instant::now();
        let verdict = match &point.test {
            None if !reached.contains(&point.name) => Verdict::Broken(format!("nothing comes by in {seeds} seeds")),
            None => match work.chaos(Some(point), seeds) {
                Ok(Run { violation: Some((seed, text)), .. }) => Verdict::Caught(Some(seed), text),
                Ok(_) => Verdict::Survived,
                Err(text) => Verdict::Broken(text),
            },
            Some(test) => match work.test(Some(point), test) {
                Ok(Some(text)) => Verdict::Caught(None, text),
                Ok(None) => Verdict::Survived,
                Err(text) => Verdict::Broken(text),
            },
        };
        let seconds = began.elapsed().as_secs_f64();
        match &verdict {
            Verdict::Caught(Some(seed), _) => eprintln!("seed {seed}, {seconds:.0} s"),
            Verdict::Caught(None, text) => eprintln!("{text}, {seconds:.0} s"),
            Verdict::Survived => eprintln!("survived, {seconds:.0} s"),
            Verdict::Broken(text) => eprintln!("{text}"),
        }
        reports.push(Report { name: point.name.clone(), verdict, seconds });
    }
    let is_caught = |report: &&Report| matches!(report.verdict, Verdict::Caught(..));
    let caught = reports.iter().filter(is_caught).count();
    if json {
        println!("{}", to_json(&reports, seeds));
    } else {
        print_table(&reports, seeds);
        println!("{caught} of {} mutants found", reports.len());
    }
    let others: Vec<_> =
        reports.iter().filter(|report| !is_caught(report)).map(|report| report.name.as_str()).collect();
    if others.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("not found: {}", others.join(", ")))) }
}

fn print_table(reports: &[Report], seeds: u64) {
    println!("{:40} {:>5}  {:>4}  violation", "mutant", "seed", "s");
    for Report { name, verdict, seconds } in reports {
        match verdict {
            Verdict::Caught(seed, text) => {
                let seed = seed.map_or("test".into(), |seed| seed.to_string());
                println!("{name:40} {seed:>5}  {seconds:4.0}  {text}");
            }
            Verdict::Survived => println!("{name:40}     -  {seconds:4.0}  SURVIVED {seeds} seeds"),
            Verdict::Broken(text) => println!("{name:40}     -  {seconds:4.0}  BROKEN: {text}"),
        }
    }
}

fn to_json(reports: &[Report], seeds: u64) -> serde_json::Value {
    let object = |report: &Report| {
        let (caught, seed, text) = match &report.verdict {
            Verdict::Caught(seed, text) => (true, *seed, Some(text.as_str())),
            Verdict::Survived => (false, None, None),
            Verdict::Broken(text) => (false, None, Some(text.as_str())),
        };
        let Report { name, seconds, .. } = report;
        serde_json::json!({"name": name, "caught": caught, "seed": seed, "text": text, "seconds": seconds})
    };
    serde_json::json!({"seeds": seeds, "mutants": reports.iter().map(object).collect::<Vec<_>>()})
}

/// What a run of chaos came to.
struct Run {
    /// The first seed with a violation, and the violation.
    violation: Option<(u64, String)>,
    /// The points that were come by.
    reached: Vec<String>,
}

/// Where it is built and run.
struct Workplace<'a> {
    root: &'a Path,
    target: PathBuf,
}

impl Workplace<'_> {
    fn new(root: &Path) -> Workplace<'_> {
        let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        Workplace { root, target: base }
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut command = program::cargo();
        command.args(words).current_dir(self.root).env_remove(CHOICE);
        command
    }

    /// The command line with all points. The next ordinary build would put its own in its place.
    fn program(&self) -> PathBuf {
        self.target.join("mutants/uroce")
    }

    fn build(&self) -> Outcome {
        let words = ["build", "--quiet", "--profile", "chaos", "--package", "uroce-cli", "--features", "mutants"];
        let status = self.cargo(&words).status();
        if !status.map_err(|error| Failure::Failed(format!("starting cargo: {error}")))?.success() {
            return Err(Failure::Failed("the code does not build with the feature mutants".into()));
        }
        let program = self.program();
        let copy = || {
            std::fs::create_dir_all(program.parent().expect("in the target directory"))?;
            std::fs::copy(self.target.join("chaos/uroce"), &program)
        };
        copy().map(drop).map_err(|error| Failure::Failed(format!("{}: {error}", program.display())))
    }

    /// Runs seeds on all processors up to the first violation.
    fn chaos(&self, mutant: Option<&Point>, seeds: u64) -> Result<Run, String> {
        let mut command = Command::new(self.program());
        command.args(["sim", "chaos", "--json", "--seeds", &seeds.to_string()]);
        command.args(mutant.map(|_| "--fail-fast"));
        command.env_remove(CHOICE).envs(mutant.map(|mutant| (CHOICE, &mutant.name)));
        let Some(output) = output(&mut command)? else { return Err("chaos does not end".into()) };
        let report: serde_json::Value =
            serde_json::from_slice(&output).map_err(|error| format!("chaos tells no JSON: {error}"))?;
        let violation = report["violations"].get(0).map(|violation| {
            let text = violation["text"].as_str().unwrap_or_default();
            (violation["seed"].as_u64().unwrap_or_default(), text.to_owned())
        });
        let names = report["mutation_points"].as_array().map(Vec::as_slice).unwrap_or_default();
        let reached = names.iter().filter_map(|name| name.as_str()).map(str::to_owned).collect();
        Ok(Run { violation, reached })
    }

    /// Runs a test: how it fails, if it does.
    fn test(&self, mutant: Option<&Point>, test: &str) -> Result<Option<String>, String> {
        let [package, target @ .., filter] = &test.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("`{test}` names no test"));
        };
        let mut words = vec!["test", "--quiet", "--package", package];
        // The models, which are nothing but tests, always have the points.
        if *package != "uroce-loom" {
            words.extend(["--features", "uroce/mutants"]);
        }
        words.extend(target);
        words.push(filter);
        let mut command = self.cargo(&words);
        command.envs(mutant.map(|mutant| (CHOICE, &mutant.name)));
        let Some(output) = output(&mut command)? else { return Ok(Some(format!("{filter} does not end"))) };
        let output = String::from_utf8_lossy(&output).into_owned();
        let results: Vec<_> = output.lines().filter(|line| line.starts_with("test result: ")).collect();
        match results.iter().find(|line| !line.starts_with("test result: ok")) {
            Some(_) => Ok(Some(format!("{filter} fails"))),
            None if results.iter().any(|line| !line.contains(" 0 passed")) => Ok(None),
            // It broke off, or there is no such test.
            None if mutant.is_some() && results.is_empty() => Ok(Some(format!("{filter} breaks off"))),
            None => Err(format!("no test is called {filter}")),
        }
    }
}

/// What a command prints; `None` when it does not end.
fn output(command: &mut Command) -> Result<Option<Vec<u8>>, String> {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let started = command.spawn();
    let mut child: Child = started.map_err(|error| format!("starting {command:?}: {error}"))?;
    let mut pipe = child.stdout.take().expect("it was asked for");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    });
    let began = Instant::now();
    loop {
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            break;
        }
        if began.elapsed() > PATIENCE {
            // With all that it has started.
            // SAFETY: it is a group of our own, whose leader was not waited for.
            unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
            let _ = child.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    reader.join().map_err(|_| "reading what it prints".to_owned())?.map(Some).map_err(|error| error.to_string())
}

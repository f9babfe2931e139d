//! `cargo xtask survey`: counts what makes the code hard to change. Exit status 1 when a goal is missed and `--check` is
//! given, 2 for a wrong command line.
//!
//! It parses the sources and counts syntax, without tests: modules under `#[cfg(test)]`, files named `tests.rs` and
//! folders named `tests` are left out.

mod circles;
mod source;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use circles::circles;
use source::{Function, Source};

const USAGE: &str = "usage: cargo xtask survey [--json] [--check] [--all] [ROOT]
  --json    one JSON object
  --check   exit status 1 when a goal is missed
  --all     also the functions, types and files behind the counts
  ROOT      the repository to survey (this one)";

/// The folder of `tools` that holds the laboratory: its functions and names are to be as good as the library's.
const LABORATORY: &str = "laboratory";

/// One count, and the most that it should be.
struct Count {
    what: &'static str,
    value: usize,
    goal: Option<usize>,
    /// Where the count comes from, the worst first.
    places: Vec<String>,
}

fn main() -> ExitCode {
    let (mut as_json, mut check, mut all, mut root) = (false, false, false, None);
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--json" => as_json = true,
            "--check" => check = true,
            "--all" => all = true,
            path if !path.starts_with('-') && root.is_none() => root = Some(PathBuf::from(path)),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let counts = match survey(&root) {
        Ok(counts) => counts,
        Err(text) => {
            eprintln!("survey: {text}");
            return ExitCode::FAILURE;
        }
    };
    let text = if as_json {
        let rows = counts.iter().map(
            |count| json!({ "what": count.what, "value": count.value, "goal": count.goal, "places": count.places }),
        );
        format!("{:#}\n", json!(rows.collect::<Vec<_>>()))
    } else {
        table(&counts, all)
    };
    // Whoever reads may have seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let is_missed = counts.iter().any(|count| count.goal.is_some_and(|goal| count.value > goal));
    ExitCode::from(u8::from(check && is_missed))
}

fn table(counts: &[Count], all: bool) -> String {
    let mut text = format!("{:62} {:>6} {:>6}\n", "what", "count", "goal");
    for Count { what, value, goal, places } in counts {
        let goal = goal.map_or(String::new(), |goal| format!("≤ {goal}"));
        text += &format!("{what:62} {value:>6} {goal:>6}\n");
        for place in places.iter().take(if all { usize::MAX } else { 0 }) {
            text += &format!("    {place}\n");
        }
    }
    text
}

fn survey(root: &Path) -> Result<Vec<Count>, String> {
    let library = source::read(&root.join("src"))?;
    let tools = source::read(&root.join("tools"))?;
    let (laboratory, tools): (Vec<Source>, Vec<Source>) =
        tools.into_iter().partition(|source| source.module(0) == LABORATORY);
    let within = |folder: &str| library.iter().filter(|source| source.module(0) == folder).collect::<Vec<_>>();

    let mut counts = Vec::new();
    let asked = within("transport").iter().flat_map(|source| source.recovery_questions()).collect();
    counts.push(Count::of_places("places in transport that ask which recovery is in use", asked, Some(3)));
    for folder in ["transport", "link"] {
        let files = circles(&within(folder), folder);
        let what =
            if folder == "link" { "files of link in import circles" } else { "files of transport in import circles" };
        counts.push(Count::of_places(what, files, Some(0)));
    }

    let mut files: Vec<_> = library.iter().map(|source| (source.lines, source.name.clone())).collect();
    files.sort_unstable_by(|a, b| b.cmp(a));
    let places = files.iter().take(10).map(|(lines, name)| format!("{lines} {name}")).collect();
    counts.push(Count { what: "lines of the longest file of src", value: files[0].0, goal: None, places });
    for (what, sources) in [("lines of src", &library), ("lines of the laboratory", &laboratory)] {
        let value = sources.iter().map(|source| source.lines).sum();
        counts.push(Count { what, value, goal: None, places: vec![] });
    }

    let of = |sources: &[Source]| sources.iter().flat_map(|source| source.functions.clone()).collect::<Vec<_>>();
    let [ours, its, theirs] = [&library, &laboratory, &tools].map(|sources| of(sources));
    let longest = |functions: &[Function], over: usize| {
        let mut long: Vec<_> = functions.iter().filter(|function| function.lines > over).collect();
        long.sort_unstable_by_key(|function| std::cmp::Reverse(function.lines));
        long.iter().map(|function| format!("{} {}", function.lines, function.name)).collect::<Vec<_>>()
    };
    let most = |functions: &[Function]| functions.iter().map(|function| function.lines).max().unwrap_or_default();
    for (what, functions, goal) in [
        ("lines of the longest function of src", &ours, 80),
        ("lines of the longest function of the laboratory", &its, 80),
        ("lines of the longest function of the other tools", &theirs, 120),
    ] {
        counts.push(Count { what, value: most(functions), goal: Some(goal), places: longest(functions, goal) });
    }
    counts.push(Count::of_places("functions of src over 60 lines", longest(&ours, 60), None));
    let many = ours.iter().chain(&its).chain(&theirs).filter(|function| function.parameters > 5);
    let many = many.map(|function| format!("{} {}", function.parameters, function.name)).collect();
    counts.push(Count::of_places("functions with more than 5 parameters, without self", many, Some(0)));

    let both: Vec<&Source> = library.iter().chain(&laboratory).collect();
    counts.push(Count::of_places(
        "public type names that src and the laboratory define twice",
        source::doubles(&both, true),
        Some(0),
    ));
    counts.push(Count::of_places(
        "type names that src and the laboratory define twice",
        source::doubles(&both, false),
        None,
    ));
    let unsafe_rooms = ["memory", "link"];
    let outside = library.iter().filter(|source| !unsafe_rooms.contains(&source.module(0)));
    let outside = outside.filter(|source| source.unsafe_blocks > 0);
    let places: Vec<_> = outside.clone().map(|source| format!("{} {}", source.unsafe_blocks, source.name)).collect();
    let value = outside.map(|source| source.unsafe_blocks).sum();
    counts.push(Count { what: "unsafe blocks of src outside memory and link", value, goal: None, places });
    Ok(counts)
}

impl Count {
    fn of_places(what: &'static str, places: Vec<String>, goal: Option<usize>) -> Count {
        Count { what, value: places.len(), goal, places }
    }
}

//! `cargo xtask test [--full] [--no-fail-fast] [STAGE…]`: what CI runs, stage by stage, stopping at the first that fails unless told not
//! to.
use crate::stage::{self, AfterFailure, Done, Stage};
use crate::{
    Failure, Outcome, demo, features, fuzz, htsim, install, instructions, miri, mutants, program, sanitizers, setup,
    workspace,
};
use rxe_rig::process;
use std::path::Path;
use std::process::Command;

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let full = arguments.contains(&"--full");
    let after_failure = if arguments.contains(&"--no-fail-fast") { AfterFailure::GoOn } else { AfterFailure::Stop };
    let only: Vec<&str> =
        arguments.iter().copied().filter(|word| !["--full", "--no-fail-fast"].contains(word)).collect();
    if let Some(option) = only.iter().find(|word| word.starts_with('-')) {
        return Err(Failure::Usage(format!("test has no option {option}")));
    }
    let mut all = stages();
    if full {
        all.extend(more_stages());
    }
    let done = stage::run(all, &only, after_failure)?;
    if full && only.is_empty() { keep(&done) } else { Ok(()) }
}

/// Random programs over random networks, built with `profile`.
fn chaos(name: &'static str, profile: &str, extent: &[&str]) -> Stage {
    let words = ["run", "--quiet", "--profile", profile, "--package", "uroce-cli", "--", "sim", "chaos"];
    Stage::cargo(name, &[&words, extent].concat())
}

/// What `--full` runs besides.
fn more_stages() -> Vec<Stage> {
    let apart = "nccl ceph valkey rust_programs iser rxe_iser";
    let apart: Vec<&str> = apart.split(' ').flat_map(|name| ["--test", name]).collect();
    vec![
        miri::stage(),
        sanitizers::ADDRESS.stage(),
        sanitizers::THREAD.stage(),
        features::tests_stage(),
        features::aarch64_stage(),
        // What would be published, built by itself.
        Stage::cargo("package", &["package", "--quiet", "--package", "uroce", "--allow-dirty"]),
        // What users install, on fresh root file systems.
        install::stage(),
        Stage::of("demo", || demo::run(&[])),
        // Every perftest with all that it allows, every pingpong, every program that connects by RDMA CM, ten of each
        // cause of failure; the interop stage plays some of it.
        in_full("matrices", &COMMAND_LINE, &MATRICES),
        // All of rdma-core's tests here and on rxe; qperf on rxe; the README's lines with a clone and a build of their own; memory
        // that vanishes a thousand times in each way; the C programs under valgrind over both links.
        in_full("programs", &COMMAND_LINE, &["pyverbs::", "qperf::", "readme::", "vanish::", "c_programs::"]),
        // NCCL, Ceph and iSER, which are large, and Valkey and Rust's programs, which are compiled: they are played nowhere else.
        in_full("large", &apart, &[]),
        // The program with the library in itself, which is built for it, and once for both stages.
        Stage::cargo(
            "embed",
            &[
                "clippy",
                "--quiet",
                "--package",
                "uroce-cli",
                "--features",
                "embed",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
        ),
        Stage::cargo("alone", &["test", "--quiet", "--package", "uroce-cli", "--features", "embed", "--test", "alone"]),
        chaos("seeds", "chaos", &["--seeds", "10000"]),
        chaos("packets", "chaos", &["--seed", "1000000", "--packets", "100000000"]),
        Stage::of("htsim", || htsim::run(&[])),
        Stage::of("mutants", || mutants::run(&[])),
        Stage::of("fuzzing", || fuzz::for_each(&fuzz::TARGETS, FUZZ_SECONDS)),
    ]
}

/// Both programs of tests of the command line, in namespaces and in machines.
const COMMAND_LINE: [&str; 4] = ["--test", "cli", "--test", MACHINES];

/// Tests of the command line that play a matrix of programs: all of it with UROCE_FULL.
const MATRICES: [&str; 11] = [
    "deadline::",
    "perftest::",
    "rxe_pingpong::",
    "rxe_run::",
    "rxe_perf::",
    "rxe_cm::",
    "rdma_cm::",
    "leaks::",
    "storms::",
    "flood::",
    "errors::",
];

/// Programs of tests with all that they can play; of each the tests whose names contain one of `only`, if any is given.
fn in_full(name: &'static str, programs: &[&'static str], only: &[&'static str]) -> Stage {
    // A program of tests that fails hides none of the others.
    let words = [&workspace::TEST[..], &["--no-fail-fast"], programs, &["--"], ONE_BY_ONE, only].concat();
    Stage::command(name, format!("cargo {}", words.join(" ")), move || {
        setup::more()?;
        let mut command = program::cargo();
        command.args(&words).env("UROCE_FULL", "1");
        Ok(command)
    })
}

/// How long `--full` runs each fuzz target.
const FUZZ_SECONDS: u64 = 60;

/// Where docs/INTEROP.md has the last full run's result, up to the end of the file.
const HEADING: &str = "## The last full run";

/// Writes the result into docs/INTEROP.md.
fn keep(done: &[Done]) -> Outcome {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/INTEROP.md");
    let failed = |e: std::io::Error| Failure::Failed(format!("{}: {e}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(failed)?;
    let before = text.split(HEADING).next().unwrap_or(&text).trim_end();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cell = |count: u64| if count == 0 { String::new() } else { count.to_string() };
    let row = |Done { name, seconds, counts }: &Done| {
        let [tests, ignored, games, excused] = [counts.tests, counts.ignored, counts.games, counts.excused].map(cell);
        format!("| {name} | {tests} | {ignored} | {games} | {excused} | {seconds:.0} |\n")
    };
    let rows: String = done.iter().map(row).collect();
    let table = format!(
        "| stage | tests passed | not played | games passed | of them played twice | seconds |\n|---|---|---|---|---|---|\n{rows}"
    );
    let text = format!(
        "{before}\n\n{HEADING}\n\nWritten by `cargo xtask test --full`, every stage of which passed, on Linux {}.\n\
         A game is a conversation of two programs in a matrix. At most one of fifty is played twice, for reasons that the\n\
         test names.\n\n{table}",
        kernel.trim()
    );
    std::fs::write(&file, text).map_err(failed)
}

/// Packages whose tests are stages of their own.
const APART: [&str; 5] = ["uroce-loom", "rxe-rig", "uroce-wan", "uroce-bench", "uroce-cli"];

fn of_workspace(name: &'static str, words: &[&str]) -> Stage {
    Stage::cargo(name, &[&workspace::TEST, words].concat())
}

/// The tests whose programs `is_wanted` by package and name, with the `targets` besides. `of` says which; `options` are the
/// tests' own.
fn integration(
    name: &'static str,
    of: &str,
    is_wanted: impl Fn(&str, &str) -> bool + Send + 'static,
    targets: &'static [&'static str],
    options: &'static [&'static str],
) -> Stage {
    let words = [&workspace::TEST, targets].concat();
    let line = format!("cargo {} --test … -- {}: the tests of {of}", words.join(" "), options.join(" "));
    Stage::command(name, line, move || {
        let packages = workspace::packages(&["--no-deps"])?;
        let tests = packages.iter().flat_map(|package| {
            let targets = package["targets"].as_array().into_iter().flatten();
            targets.map(|target| (package["name"].as_str().unwrap_or_default(), target))
        });
        let tests = tests
            .filter(|(_, target)| target["kind"][0] == "test" && target["test"] == true)
            .filter(|(_, target)| target["required-features"].is_null())
            .filter_map(|(package, target)| target["name"].as_str().filter(|name| is_wanted(package, name)));
        let mut command = program::cargo();
        command.args(words).args(tests.flat_map(|name| ["--test", name])).arg("--").args(options);
        Ok(command)
    })
}

/// Machines take turns, and namespaces do: there are few processors.
const ONE_BY_ONE: &[&str] = &["--test-threads=1"];

fn stages() -> Vec<Stage> {
    vec![
        Stage::of("setup", || setup::run(&[])),
        Stage::cargo("fmt", &["fmt", "--all", "--check"]),
        Stage::cargo("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        features::stage(),
        // Everything that the stages after it run, compiled with the same features.
        of_workspace("build", &["--no-run"]),
        // Documentation examples.
        of_workspace("examples", &["--doc"]),
        // What docs.rs will show: every link leads somewhere.
        Stage::cargo_with(
            "doc",
            &["doc", "--quiet", "--package", "uroce", "--no-deps"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
        // The locks and protocols of our own, in all orders of threads.
        integration("loom", "uroce-loom", |package, _| package == "uroce-loom", &[], &[]),
        Stage::command("simulation", "uroce sim chaos --seeds 400".to_owned(), || {
            process::run(program::cargo().args(workspace::TEST).arg("--no-run"))?;
            let mut command = Command::new(setup::target_directory().join("debug/uroce"));
            command.args(["sim", "chaos", "--seeds", "400"]);
            Ok(command)
        }),
        // Compiled only, beside the rest, which shares some of it: what runs them is built with nightly and takes minutes.
        Stage::cargo(
            "fuzz",
            &["check", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target"],
        ),
        // The command line against the kernel's rxe in a machine, and against itself, over AF_XDP in namespaces. A machine
        // takes one processor and is slow, namespaces wait for clocks: they run beside each other. What only computes is
        // in either lane, so that both take as long, and keeps to one processor.
        //
        // Unit tests, the examples as programs, and the tests of the parts together that need no other machine.
        integration(
            "unit",
            "all packages but those below",
            is_of_one_machine,
            &["--lib", "--bins", "--examples"],
            ONE_BY_ONE,
        )
        .in_lane("machines"),
        one_by_one("rig", "rxe-rig", |package, _| package == "rxe-rig").in_lane("machines"),
        one_by_one("machines", "uroce-cli in machines", |package, name| package == "uroce-cli" && name == MACHINES)
            .in_lane("machines"),
        Stage::of("instructions", || instructions::run(&[])).in_lane("namespaces"),
        one_by_one("wan", "uroce-wan", |package, _| package == "uroce-wan").in_lane("namespaces"),
        one_by_one("bench", "uroce-bench", |package, _| package == "uroce-bench").in_lane("namespaces"),
        one_by_one("interop", "uroce-cli", |package, name| package == "uroce-cli" && name != MACHINES)
            .in_lane("namespaces"),
    ]
}

/// The program of tests that takes machines.
const MACHINES: &str = "machines";

/// Whether tests need neither a machine nor namespaces of the command line, nor are models for loom.
fn is_of_one_machine(package: &str, _name: &str) -> bool {
    !APART.contains(&package)
}

fn one_by_one(name: &'static str, of: &str, is_wanted: fn(&str, &str) -> bool) -> Stage {
    integration(name, of, is_wanted, &[], ONE_BY_ONE)
}

//! C programs for what the tools leave out, by `uroce run` over AF_XDP, and over UDP sockets where that differs: handles that
//! are none, extended verbs, and every exported function; all of it under valgrind, too.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::compiled::program;
use crate::common::programs::{Ended, Running, uroce, uroce_as_nobody};
use rxe_rig::{Netns, VethPair};

type Start = fn(&Netns, &[&str]) -> Running;

/// Both links: AF_XDP, and UDP sockets, which need no capability.
const LINKS: [(Start, &str); 2] = [(uroce, "xdp"), (uroce_as_nobody, "udp")];

/// Runs a C program with words before it (options of `uroce run`, and what runs the program) and after it.
fn run(start: Start, namespace: &Netns, before: &[&str], name: &str, after: &[&str]) -> Ended {
    let file = program(name).display().to_string();
    start(namespace, &[&["run"], before, &[file.as_str()], after].concat()).end().succeeded()
}

#[test]
fn handles_that_are_none_are_errors_and_never_a_crash() {
    let pair = VethPair::create(1500).unwrap();
    for (start, link) in LINKS {
        let ended = run(start, &pair.a, &["--link", link], "handles", &[]);
        assert_eq!(ended.stdout, "all handles checked\n", "{ended:#?}");
    }
}

#[test]
fn extended_verbs_and_events_work_between_queue_pairs_of_one_program() {
    let pair = VethPair::create(1500).unwrap();
    for (start, link) in LINKS {
        let ended = run(start, &pair.a, &["--link", link], "extended", &[]);
        assert_eq!(ended.stdout, "all extended verbs checked\n", "{ended:#?}");
    }
}

/// Ended by its own alarm when a thread waits for ever.
#[test]
fn regions_change_and_go_while_another_thread_posts_bindings_to_them() {
    let pair = VethPair::create(1500).unwrap();
    let ended = run(uroce_as_nobody, &pair.a, &["--link", "udp"], "binding", &[]);
    assert_eq!(ended.stdout, "all returned\n", "{ended:#?}");
}

#[test]
fn regions_and_windows_beyond_the_plain_ones_give_what_they_should() {
    let pair = VethPair::create(1500).unwrap();
    for (start, link) in LINKS {
        let ended = run(start, &pair.a, &["--link", link], "memory", &[]);
        assert_eq!(ended.stdout, "all memory checked\n", "{ended:#?}");
    }
}

/// The names of all that the library exports, by its version script, with their versions.
fn exported() -> BTreeMap<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs/libibverbs.map");
    let text = std::fs::read_to_string(script).unwrap();
    let mut version = "";
    let mut names = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            version = name;
        } else if let Some(name) = line.strip_prefix("        ").and_then(|name| name.strip_suffix(';')) {
            names.insert(name.to_owned(), version.to_owned());
        }
    }
    names.remove("*");
    names
}

/// A row of docs/INTEROP.md's table of librdmacm's functions: their names, their version, and what they answer.
fn rows_of_the_document() -> Vec<(Vec<String>, String, String)> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/INTEROP.md");
    let text = std::fs::read_to_string(document).unwrap();
    let (_, rest) = text.split_once("### librdmacm.so.1: every function").expect("the table has its heading");
    let rows =
        rest.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
        let [names, version, answer] = [(); 3].map(|()| cells.next().expect("a row has three cells"));
        let names = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (names, format!("RDMACM_{version}"), answer.to_owned())
    };
    rows.map(row).collect()
}

/// What the programs say of the functions that they call: those that work, and those that are refused.
fn verdicts(said: &str) -> [BTreeSet<String>; 2] {
    ["works ", "refused "]
        .map(|verdict| said.lines().filter_map(|line| line.strip_prefix(verdict)).map(str::to_owned).collect())
}

#[test]
fn every_exported_function_works_or_says_that_it_is_not_offered() {
    let pair = VethPair::create(1500).unwrap();
    let said = ["offered", "files", "connect"].map(|name| run(uroce, &pair.a, &[], name, &[]).stdout).concat();
    let [works, refused] = verdicts(&said);
    let both: Vec<_> = works.intersection(&refused).collect();
    assert!(both.is_empty(), "works and is refused: {both:?}");
    let called: BTreeSet<String> = works.union(&refused).cloned().collect();
    assert_eq!(called, exported().into_keys().collect(), "the program calls what the library exports");
    eprintln!("{} functions work, {} say that they are not offered", works.len(), refused.len());
}

#[test]
fn every_function_of_librdmacm_answers_as_the_document_says() {
    let pair = VethPair::create(1500).unwrap();
    let ended = run(uroce_as_nobody, &pair.a, &["--link", "udp"], "connect", &[]);
    let [works, refused] = verdicts(&ended.stdout);
    let mut named = BTreeMap::new();
    for (names, version, answer) in rows_of_the_document() {
        for name in names {
            let (expected, kind) = if answer.starts_with("ENOSYS") { (&refused, "refused") } else { (&works, "works") };
            assert!(expected.contains(&name), "{name} is not {kind}: «{answer}»");
            assert!(named.insert(name.clone(), version.clone()).is_none(), "{name} has two rows");
        }
        // Its words, where a row has some.
        if let Some(words) = answer.split('`').nth(1).filter(|words| words.starts_with("uroce: ")) {
            assert!(ended.stderr.contains(words), "«{words}» was not said: {}", ended.stderr);
        }
    }
    let exported: BTreeMap<_, _> =
        exported().into_iter().filter(|(_, version)| version.starts_with("RDMACM_")).collect();
    assert_eq!(named, exported, "the document names what the library exports");
    assert_eq!(named.len(), works.len() + refused.len(), "the program calls what the document names");
}

#[test]
fn a_user_without_rights_finds_the_node_and_sysfs_too() {
    let pair = VethPair::create(1500).unwrap();
    let ended = run(uroce_as_nobody, &pair.a, &["--link", "udp"], "files", &[]);
    assert!(ended.stdout.ends_with("works chdir\n"), "{ended:#?}");
}

/// Has valgrind say of every leak, and of every access to memory that is not the program's or has no value yet, in a file for
/// each process: children write there too, and a pipe may not be large enough.
fn under_valgrind(namespace: &Netns, link: &str, name: &str, after: &[&str]) -> Ended {
    let begins = format!("valgrind-{name}-{link}-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let log = format!("--log-file={}/{begins}-%p", folder.display());
    let kinds = "definite,indirect,possible";
    let (shown, counted) = (format!("--show-leak-kinds={kinds}"), format!("--errors-for-leak-kinds={kinds}"));
    let valgrind = ["valgrind", "-q", "--leak-check=full", "--num-callers=30", "--error-exitcode=99"];
    let more = [shown.as_str(), &counted, &log];
    let ended = run(uroce, namespace, &[&["--link", link, "--"], &valgrind[..], &more].concat(), name, after);
    let mut logs = 0;
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&begins) {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            std::fs::remove_file(entry.path()).unwrap();
            // Its own shortcomings begin with two dashes: it does not know the newest system calls.
            let said: Vec<_> = text.lines().filter(|line| !line.starts_with("--")).collect();
            assert!(said.is_empty(), "{name} over {link}: {text}");
            logs += 1;
        }
    }
    assert!(logs > 0, "valgrind left no word of {name} over {link}");
    ended
}

/// With UROCE_FULL=1 both programs over both links; without, each over one: opening an AF_XDP link takes long under valgrind.
#[test]
fn valgrind_finds_no_leak_and_no_access_that_is_not_right() {
    let pair = VethPair::create(1500).unwrap();
    let is_full = std::env::var_os("UROCE_FULL").is_some();
    for link in ["xdp", "udp"] {
        if is_full || link == "udp" {
            let ended = under_valgrind(&pair.a, link, "handles", &["10"]);
            assert_eq!(ended.stdout, "all handles checked\n", "{ended:#?}");
        }
        if is_full || link == "xdp" {
            let ended = under_valgrind(&pair.a, link, "extended", &[]);
            assert_eq!(ended.stdout, "all extended verbs checked\n", "{ended:#?}");
        }
    }
}

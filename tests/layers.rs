//! Dependencies between modules point one way, as docs/ARCHITECTURE.md says: no file uses a module above its own.

use std::fs;
use std::iter::Peekable;
use std::path::Path;

/// Each module, and the modules of this crate that its files may name.
const LAYERS: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("mutants", &[]),
    ("trace", &[]),
    ("counters", &[]),
    ("time", &[]),
    ("quantity", &[]),
    ("frame", &[]),
    ("forked", &[]),
    ("cache", &[]),
    ("tournament", &["cache"]),
    ("wire", &["frame"]),
    ("memory", &["frame", "wire"]),
    ("pcap", &["time"]),
    ("congestion", &["cache", "sync", "time", "tournament", "wire"]),
    ("recovery", &["cache", "time", "tournament", "congestion"]),
    ("path", &["time", "tournament", "recovery"]),
    ("transport", &["cache", "sync", "time", "frame", "forked", "wire", "memory", "recovery", "path", "congestion"]),
    ("cm", &["time", "wire"]),
    ("link", &["time", "quantity", "frame", "forked", "wire", "pcap"]),
    ("engine", &["sync", "time", "frame", "wire", "memory", "transport", "link"]),
    (
        "verbs",
        &[
            "time",
            "quantity",
            "frame",
            "forked",
            "wire",
            "memory",
            "path",
            "congestion",
            "transport",
            "cm",
            "link",
            "engine",
        ],
    ),
];

fn rust_files(path: &Path, files: &mut Vec<std::path::PathBuf>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| rust_files(&entry.unwrap().path(), files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Words, `::` and single characters, without comments, strings and characters in quotes.
fn tokens(source: &str) -> Vec<&str> {
    let behind = |rest: &'_ str, end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
    let (mut tokens, mut rest) = (Vec::new(), source.trim_start());
    while let Some(first) = rest.chars().next() {
        let skipped = match rest.as_bytes() {
            [b'/', b'/', ..] => behind(rest, "\n"),
            [b'/', b'*', ..] => behind(rest, "*/"),
            [b'r', b'#', b'"', ..] => behind(rest, "\"#"),
            [b'r', b'"', ..] => 2 + behind(&rest[2..], "\""),
            [b'"', ..] => {
                let mut is_escaped = false;
                let end = rest[1..].find(|c| {
                    let is_end = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    is_end
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            [b'\'', b'\\', ..] => 3 + behind(&rest[3..], "'"),
            // Else it is a lifetime.
            [b'\'', ..] if rest.chars().nth(2) == Some('\'') => 1 + behind(&rest[1..], "'"),
            _ => 0,
        };
        let len = match first {
            _ if skipped > 0 => skipped,
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        if skipped == 0 {
            tokens.push(&rest[..len]);
        }
        rest = rest[len..].trim_start();
    }
    tokens
}

/// Follows a path, or a tree of paths in braces, from the module `path` on, to the top-level modules that it leads to.
fn follow<'a>(tokens: &mut Peekable<impl Iterator<Item = &'a str>>, mut path: Vec<&'a str>, found: &mut Vec<&'a str>) {
    loop {
        match tokens.next() {
            Some("crate") => path.clear(),
            Some("super") => drop(path.pop()),
            Some("self") => {}
            Some("{") => {
                while tokens.peek().is_some_and(|token| *token != "}") {
                    follow(tokens, path.clone(), found);
                    tokens.next_if_eq(&",");
                }
                tokens.next();
                return;
            }
            Some(word) if word.starts_with(is_word) => path.push(word),
            _ => return found.extend(path.first()),
        }
        if tokens.next_if_eq(&"::").is_none() {
            if tokens.next_if_eq(&"as").is_some() {
                tokens.next();
            }
            return found.extend(path.first());
        }
    }
}

/// The top-level modules that paths in the code of `module` lead to, from `crate`, `super` or `self` on.
fn named<'a>(module: &[&'a str], source: &'a str) -> Vec<&'a str> {
    let tokens = tokens(source);
    let (mut here, mut braces, mut found) = (module.to_vec(), Vec::new(), Vec::new());
    for (at, &token) in tokens.iter().enumerate() {
        match token {
            // Of a module within the file, from which `super` leads no farther than to the file's own.
            "{" => {
                braces.push(here.len());
                here.extend((at >= 2 && tokens[at - 2] == "mod").then(|| tokens[at - 1]));
            }
            "}" => here.truncate(braces.pop().unwrap_or_default()),
            "crate" | "super" | "self" if tokens.get(at + 1) == Some(&"::") && (at == 0 || tokens[at - 1] != "::") => {
                follow(&mut tokens[at..].iter().copied().peekable(), here.clone(), &mut found);
            }
            _ => {}
        }
    }
    found
}

/// The module of a file below `src`.
fn module_of(relative: &Path) -> Vec<String> {
    let parts = relative.with_extension("");
    let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !["mod", "lib"].contains(&part.as_str())).collect()
}

#[test]
fn no_module_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut checked = 0;
    for file in files {
        let relative = file.strip_prefix(&root).unwrap();
        let path = module_of(relative);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        let Some(&module) = path.first() else { continue };
        let (_, allowed) =
            LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{module} has no layer"));
        for name in named(&path, &fs::read_to_string(&file).unwrap()) {
            let known = LAYERS.iter().any(|(layer, _)| *layer == name);
            assert!(!known || name == module || allowed.contains(&name), "{} uses {name}", relative.display());
            checked += usize::from(known && name != module);
        }
    }
    assert!(checked > 50, "only {checked} uses were seen: the search is broken");
}

#[test]
fn all_of_a_list_in_braces_is_seen() {
    let source =
        "use crate::{wire::{Psn, icrc::{self, Icrc}}, memory::Key as MemoryKey, link};\npub(crate) use crate::time;";
    assert_eq!(named(&["path"], source), ["wire", "wire", "wire", "memory", "link", "time"]);
    assert_eq!(named(&["path"], "use crate::{\n    frame::*,\n    sync::{Arc,},\n};"), ["frame", "sync"]);
}

#[test]
fn super_leads_as_far_as_it_is_said() {
    let module = ["transport", "requester", "completer"];
    assert_eq!(named(&module, "use super::super::super::verbs::Context;"), ["verbs"]);
    assert_eq!(named(&module, "use {super::super::{endpoint, groups::Groups}, super::Requester};"), ["transport"; 3]);
    assert_eq!(named(&module, "use super::Requester; fn f() { self::g() }"), ["transport", "transport"]);
    assert_eq!(named(&["time"], "use super::wire::Psn;"), ["wire"]);
    let inline = "mod tests { use super::super::wire::Psn; use super::Instant; }\nuse super::frame::Hop;";
    assert_eq!(named(&["time"], inline), ["wire", "time", "frame"]);
    assert_eq!(module_of(Path::new("link/xdp/mod.rs")), ["link", "xdp"]);
    assert_eq!(module_of(Path::new("link/xdp.rs")), ["link", "xdp"]);
}

#[test]
fn paths_in_expressions_count_and_those_in_comments_and_strings_do_not() {
    let code = "fn f<'a>(c: char) -> &'a crate::wire::Psn { [super::memory::Pd::<'{'>::new(); 3] } // crate::verbs";
    assert_eq!(named(&["path"], code), ["wire", "memory"]);
    let text =
        r##"/* crate::verbs */ let s = ["crate::\"verbs", r#"crate::"verbs"#, r"\"]; crate::time::f('"', '\'')"##;
    assert_eq!(named(&["path"], text), ["time"]);
}

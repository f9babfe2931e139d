//! The documents: every relative link leads to a file and every anchor to a heading; sentences have at most 30 words and lines at
//! most 120 columns; phrases that readers stumbled over do not come back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

const WORDS_MAX: usize = 30;
const COLUMNS_MAX: usize = 120;

/// Phrases, and what to write instead.
const PHRASES: [(&str, &str); 7] = [
    ("in vain", "spurious, duplicate, for ever"),
    ("but for", "except"),
    ("for want of", "missing"),
    ("sent again", "retransmitted, repeated"),
    ("so much", "an upper bound, with its unit"),
    ("at the most", "at most"),
    ("without a word", "silently"),
];

/// Documents by their paths from the root.
fn documents() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents = BTreeMap::new();
    for folder in ["", "docs", "captures", "fuzz"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|suffix| suffix == "md") {
                let text = fs::read_to_string(&path).unwrap();
                documents.insert(path.strip_prefix(root).unwrap().to_owned(), text);
            }
        }
    }
    assert!(documents.len() > 8, "only {:?}", documents.keys());
    documents
}

/// The lines that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.starts_with("    "))
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#'))).collect()
}

/// `path` without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(normal.pop(), "{} leaves the repository", path.display()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Paragraphs, list items and table cells, with the line in which each begins; code in backticks is one word.
fn texts(text: &str) -> Vec<(usize, String)> {
    let mut texts: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let is_item = line.trim_start().starts_with("- ")
            || line.split_once(". ").is_some_and(|(digits, _)| !digits.is_empty() && digits.parse::<u32>().is_ok());
        if line.is_empty() || line.starts_with('#') || line.starts_with("    ") || line.starts_with("![") {
            goes_on = false;
        } else if line.starts_with('|') {
            texts.extend(line.trim_matches('|').split('|').map(|cell| (number, cell.trim().to_owned())));
            goes_on = false;
        } else if goes_on && !is_item {
            let (_, last) = texts.last_mut().expect("it goes on");
            *last += " ";
            *last += line.trim();
        } else {
            texts.push((number, line.trim().to_owned()));
            goes_on = true;
        }
    }
    for (_, text) in &mut texts {
        let words: Vec<&str> =
            text.split('`').enumerate().map(|(i, part)| if i % 2 == 1 { "x" } else { part }).collect();
        *text = words.concat();
    }
    texts
}

/// The sentences of a paragraph: they end with a full stop, a question mark or a closing bracket after one.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(". ").flat_map(|part| part.split_inclusive("? ")).flat_map(|part| part.split_inclusive(".) "))
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[test]
fn every_link_and_anchor_leads_somewhere() {
    let documents = documents();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut checked = 0;
    for (path, text) in &documents {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => normal(&path.parent().expect("a file is in a folder").join(file)),
            };
            assert!(root.join(&target).exists(), "{} links to {link}: there is none", path.display());
            let leads = anchor.is_empty() || documents.get(&target).is_some_and(|text| anchors(text).contains(anchor));
            assert!(leads, "{} links to {link}: there is no such heading", path.display());
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} links were found");
}

#[test]
fn sentences_and_lines_are_short() {
    let mut long = Vec::new();
    for (path, text) in documents() {
        for (number, line) in prose(&text) {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !line.starts_with('|') && !line.contains("](") {
                long.push(format!("{}:{number}: {columns} columns", path.display()));
            }
        }
        for (number, text) in texts(&text) {
            for sentence in sentences(&text).filter(|sentence| words(sentence) > WORDS_MAX) {
                long.push(format!("{}:{number}: {} words: {sentence}", path.display(), words(sentence)));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn phrases_that_readers_stumbled_over_do_not_come_back() {
    for (path, text) in documents() {
        for (number, text) in texts(&text) {
            let text = format!(" {} ", text.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " "));
            for (phrase, instead) in PHRASES {
                let is_found = text.contains(&format!(" {phrase} "));
                assert!(!is_found, "{}:{number}: «{phrase}»; write: {instead}", path.display());
            }
        }
    }
}

#[test]
fn texts_sentences_and_anchors_are_what_they_seem() {
    let text = "# A `b`: c-d\n\nOne two. Three `four five`\nsix.\n- seven\n\n| eight | nine |\n\n    code\n";
    let found = texts(text);
    let expected = [(3, "One two. Three x six."), (5, "- seven"), (7, "eight"), (7, "nine")];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    assert_eq!(sentences(&found[0].1).map(words).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(anchors(text), BTreeSet::from(["a-b-c-d".to_owned()]));
}

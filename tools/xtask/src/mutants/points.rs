//! The points in the code at which it can be made wrong: found by reading it, so that there is no other list.

use std::fs;
use std::path::{Path, PathBuf};

/// What a point is written as, up to its name.
const MARK: &str = concat!("mutated", "!(\"");

/// Where there are points.
const SOURCES: [&str; 3] = ["src", "transfer/src", "tools/verbs/src"];

/// A point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// What it is called: the mistake that it makes.
    pub name: String,
    /// The file, from the root of the repository on.
    pub file: PathBuf,
    /// What `cargo test` is to be told to find it: the package, the target, and part of the test's name. Chaos finds it when there
    /// is none.
    pub test: Option<String>,
}

/// The points of the repository at `root`, by file.
pub(super) fn points(root: &Path) -> std::io::Result<Vec<Point>> {
    let mut files = Vec::new();
    for folder in SOURCES {
        rust_files(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut points = Vec::new();
    for file in files {
        let source = fs::read_to_string(&file)?;
        let relative = file.strip_prefix(root).unwrap_or(&file);
        points.extend(source.split(MARK).skip(1).filter_map(|rest| point(rest, relative)));
    }
    Ok(points)
}

/// The point whose name begins `rest`.
fn point(rest: &str, file: &Path) -> Option<Point> {
    let (name, rest) = rest.split_once('"')?;
    let by = rest.trim_start().strip_prefix(',').and_then(|rest| rest.trim_start().strip_prefix("by"));
    let test = by.and_then(|rest| rest.trim_start().strip_prefix('"')).and_then(|rest| rest.split_once('"'));
    Some(Point { name: name.into(), file: file.into(), test: test.map(|(test, _)| test.into()) })
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> (PathBuf, Vec<Point>) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let points = points(&root).unwrap();
        (root, points)
    }

    #[test]
    fn points_are_read_with_the_test_that_finds_them() {
        let file = Path::new("src/x.rs");
        let found = point("a-b\", by \"uroce --lib c\") {", file).unwrap();
        assert_eq!((found.name.as_str(), found.test.as_deref()), ("a-b", Some("uroce --lib c")));
        assert_eq!(point("a-b\") { \"by\"", file).unwrap().test, None);
    }

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let (_, points) = all();
        assert!(points.len() >= 100, "only {} points were found: the search is broken", points.len());
        for (index, point) in points.iter().enumerate() {
            let other = points[..index].iter().find(|other| other.name == point.name);
            assert_eq!(other, None, "{}", point.name);
            let is_plain = point.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            assert!(is_plain && !point.name.is_empty(), "{}", point.name);
        }
    }

    /// A point whose test does not exist would be found by nothing.
    #[test]
    fn every_named_test_is_there() {
        let (root, points) = all();
        let mut tests = Vec::new();
        for folder in ["src", "tests", "tools", "transfer"] {
            rust_files(&root.join(folder), &mut tests).unwrap();
        }
        let sources: Vec<_> = tests.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        for Point { name, test, .. } in points {
            let Some(test) = test else { continue };
            let function = test.split(' ').next_back().and_then(|path| path.split("::").last()).unwrap();
            let is_there = sources.iter().any(|source| source.contains(&format!("fn {function}")));
            assert!(is_there, "{name}: there is no test {function}");
        }
    }
}

//! Files that import each other in a circle.
use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// The files of `src/FOLDER` that can be reached from themselves by imports within it. A file stands for what is below it
/// (`x.rs` for `x/…`), and `mod.rs` for nothing: it only says what there is.
pub(crate) fn circles(sources: &[&Source], folder: &str) -> Vec<String> {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let files: BTreeSet<&str> = sources.iter().map(|source| source.module(1)).filter(|name| *name != "mod").collect();
    for source in sources {
        let from = source.module(1);
        if !files.contains(from) {
            continue;
        }
        // Folders between the file and `src/FOLDER`.
        let is_root = source.name.ends_with("/mod.rs");
        let depth = source.name.matches('/').count() - usize::from(is_root);
        for path in &source.paths {
            let supers = path.iter().take_while(|part| *part == "super").count();
            let named = match path.first().map(String::as_str) {
                Some("crate") if path.get(1).is_some_and(|part| part == folder) => path.get(2),
                Some("super") if supers == depth => path.get(supers),
                _ => None,
            };
            let to = named.and_then(|name| files.get(name.as_str())).filter(|to| **to != from);
            imports.entry(from).or_default().extend(to);
        }
    }
    let reaches = |start: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            open.extend(imports.get(file).into_iter().flatten().filter(|next| seen.insert(**next)));
        }
        seen.contains(start)
    };
    files.iter().filter(|file| reaches(file)).map(|file| format!("{folder}/{file}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;
    use std::path::Path;

    fn file(name: &str, paths: &[&[&str]]) -> Source {
        let paths = paths.iter().map(|path| path.iter().map(|part| (*part).to_owned()).collect()).collect();
        let mut source = Source::default();
        (source.name, source.paths) = (name.to_owned(), paths);
        source
    }

    #[test]
    fn files_that_import_each_other_are_found_however_they_say_it() {
        let files = [
            file("wire/mod.rs", &[&["super", "wire"]]),
            file("wire/a.rs", &[&["super", "b", "B"]]),
            file("wire/b/deep.rs", &[&["crate", "wire", "c"]]),
            file("wire/b.rs", &[]),
            file("wire/c.rs", &[&["super", "a"], &["super", "d"]]),
            file("wire/d.rs", &[&["crate", "memory", "a"]]),
        ];
        assert_eq!(circles(&files.each_ref(), "wire"), ["wire/a", "wire/b", "wire/c"]);
    }

    #[test]
    fn nothing_of_transport_and_link_stands_in_a_circle() {
        let all = source::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src")).unwrap();
        for folder in ["transport", "link"] {
            let files: Vec<&Source> = all.iter().filter(|source| source.module(0) == folder).collect();
            assert!(files.len() > 15, "only {} files of {folder} were read", files.len());
            assert_eq!(circles(&files, folder), Vec::<String>::new());
        }
    }
}

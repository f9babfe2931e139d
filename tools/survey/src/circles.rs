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

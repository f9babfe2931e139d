//! Whose code is in the program, and under which licences: Debian's file `copyright`.
use crate::{Failure, dist, program, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Our own licences, and those of all crates that are linked, with their notices: each text once.
pub(crate) fn text(root: &Path, features: &[&str]) -> Result<String, Failure> {
    let packages = workspace::packages(&[])?;
    let linked = linked(root, features)?;
    let mut lines = String::new();
    let mut notices: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let word = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let (name, manifest) = (format!("{} {}", word("name"), word("version")), word("manifest_path"));
        if package["source"].is_null() || !linked.contains(&name) {
            continue;
        }
        lines += &format!(" {name}: {}\n", word("license"));
        for notice in notices_in(Path::new(&manifest).parent().unwrap_or(root)) {
            notices.entry(notice).or_default().push(name.clone());
        }
    }
    let own = |file: &str| {
        let file = root.join(file);
        std::fs::read_to_string(&file).map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))
    };
    let mut text = format!(
        "uroce is licensed under MIT OR Apache-2.0, and the XDP program in it under Dual MIT/GPL.\n\n{}\n{}\n\
         The program contains these crates:\n\n{lines}",
        own("LICENSE-MIT")?,
        own("LICENSE-APACHE")?
    );
    for (notice, names) in notices {
        text += &format!("\n--- {}\n\n{notice}\n", names.join(", "));
    }
    Ok(text)
}

/// Names and versions of the crates that are in the program or its library.
fn linked(root: &Path, features: &[&str]) -> Result<BTreeSet<String>, Failure> {
    let mut tree = program::cargo();
    tree.args(["tree", "--locked", "-p", "uroce-cli", "-p", "uroce-verbs", "--prefix", "none", "-e", "normal"]);
    let lines = dist::output(tree.args(features).current_dir(root))?;
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
    };
    Ok(lines.lines().filter_map(name).collect())
}

/// The texts of a crate's licences.
fn notices_in(folder: &Path) -> Vec<String> {
    let is_notice = |name: &str| ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|word| name.starts_with(word));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|entry| is_notice(&entry.file_name().to_string_lossy().to_uppercase()));
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).map(|text| text.trim().to_owned()).collect()
}

//! Dependencies between modules point one way, as docs/ARCHITECTURE.md says: no file uses a module above its own.

use std::fs;
use std::path::Path;

/// Each module, and the modules of this crate that its files may name.
const LAYERS: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("mutants", &[]),
    ("trace", &[]),
    ("counters", &[]),
    ("time", &[]),
    ("frame", &[]),
    ("wire", &["frame"]),
    ("memory", &["frame", "wire"]),
    ("pcap", &["time", "frame", "wire"]),
    ("recovery", &["time"]),
    ("path", &["time", "recovery"]),
    ("congestion", &["time"]),
    ("transport", &["sync", "time", "frame", "wire", "memory", "recovery", "path", "congestion"]),
    ("link", &["time", "frame", "wire", "pcap"]),
    ("replay", &["time", "frame", "wire", "memory", "pcap", "transport"]),
    ("sim", &["time", "frame", "wire", "memory", "pcap", "path", "congestion", "transport", "link"]),
    ("engine", &["sync", "time", "frame", "wire", "memory", "transport", "link"]),
    ("verbs", &["time", "frame", "wire", "memory", "path", "congestion", "transport", "link", "engine"]),
];

fn rust_files(path: &Path, files: &mut Vec<std::path::PathBuf>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| rust_files(&entry.unwrap().path(), files));
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        files.push(path.to_owned());
    }
}

/// The modules that `crate::…` paths in the code name: one, or a list in braces.
fn named(source: &str) -> Vec<String> {
    let code: String = source.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        match rest.strip_prefix('{') {
            Some(list) => names.extend(list.split('}').next().unwrap_or("").split(',').map(|item| word(item.trim()))),
            None => names.push(word(rest)),
        }
    }
    names
}

#[test]
fn no_module_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut checked = 0;
    for file in files {
        let relative = file.strip_prefix(&root).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_string_lossy().replace(".rs", "");
        if module == "lib" {
            continue;
        }
        let (_, allowed) =
            LAYERS.iter().find(|(name, _)| *name == module).unwrap_or_else(|| panic!("{module} has no layer"));
        for name in named(&fs::read_to_string(&file).unwrap()) {
            let known = LAYERS.iter().any(|(layer, _)| *layer == name);
            assert!(!known || name == module || allowed.contains(&name.as_str()), "{} uses {name}", relative.display());
            checked += usize::from(known);
        }
    }
    assert!(checked > 50, "only {checked} uses were seen: the search is broken");
}

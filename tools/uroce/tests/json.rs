//! What every command prints with `--json` is what docs/JSON.md and the schemas of docs/schemas say: real output of each,
//! judged by Debian's python3-jsonschema. A field that the schema does not have is a failure.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::captures::scratch;
use crate::common::plays_all;
use crate::common::programs::{Ended, uroce, wait_for_listener};
use rxe_rig::Netns;
use serde_json::Value;

/// Schemas, and tables of the simulator that have them and take half a minute: with UROCE_FULL=1.
const LONG: [(&str, &[&str]); 2] = [
    ("uroce.sim.paths/1", &["paths", "--paths", "2", "--only", "op=write,loss=0.1%"]),
    (
        "uroce.sim.path-failure/1",
        &["path-failure", "--paths", "2", "--rtt-ms", "1", "--only", "op=write,direction=both"],
    ),
];

/// What no command of uroce prints; `kv.rs` tries it.
const ELSEWHERE: [&str; 5] =
    ["uroce.kv/1", "uroce.kv.demo/1", "uroce.kv.load/1", "uroce.kv.stream/1", "uroce.kv.tokens/1"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Judges lines, and says which schemas there are and which were seen.
#[track_caller]
pub fn judge(lines: &str) -> [BTreeSet<String>; 2] {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/validate.py");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg(root().join("docs/schemas")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = command.stderr(Stdio::piped()).spawn().expect("python3 is installed: cargo xtask setup");
    python.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let known = found["known"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
    [known.collect(), found["seen"].as_object().unwrap().keys().cloned().collect()]
}

/// Both ends of a test on the loopback, with `--json`.
fn play(namespace: &Netns, words: &[&str]) -> String {
    let server = uroce(namespace, &[words, &["--json", "--dev", "127.0.0.2"]].concat());
    wait_for_listener(namespace, 18515);
    let client = uroce(namespace, &[words, &["--json", "--dev", "127.0.0.3", "127.0.0.2"]].concat());
    let ended: [Ended; 2] = [client.end(), server.end()].map(Ended::succeeded);
    ended.map(|ended| ended.stdout).concat()
}

#[test]
fn what_commands_print_is_as_the_schemas_say() {
    let namespace = Netns::create("json").unwrap();
    let folder = scratch("json");
    std::fs::create_dir_all(&folder).unwrap();
    let capture = folder.join("frames.pcapng");
    let capture = capture.to_str().unwrap();
    let mut lines = String::new();
    for words in [
        &["perf", "write-bw", "-n", "50", "-b", "--report-both", "--fault", "loss=1%,seed=2"][..],
        &["perf", "send-bw", "-D", "1", "--interval", "0.4"],
        &["perf", "send-lat", "-n", "50", "-U", "--histogram"],
        &["perf", "read-lat", "-D", "1"],
        &["perf", "atomic-bw", "-n", "50"],
        &["pingpong", "-n", "50"],
    ] {
        lines += &play(&namespace, words);
    }
    // The device of a program that waits for a client, and one with queue pairs.
    let server = uroce(&namespace, &["perf", "write-bw", "-D", "30", "--dev", "127.0.0.2"]);
    wait_for_listener(&namespace, 18515);
    let words = ["perf", "write-bw", "-D", "30", "--interval", "0.5", "--dev", "127.0.0.3", "--capture", capture];
    let mut client = uroce(&namespace, &[&words[..], &["127.0.0.2"]].concat());
    client.prints(&[", round trip "], std::time::Duration::from_secs(30)).unwrap();
    lines += &uroce(&namespace, &["stat", "--json"]).end().succeeded().stdout;
    client.stop();
    server.stop();
    lines += &uroce(&namespace, &["devices", "--json"]).end().succeeded().stdout;
    let decoded = uroce(&namespace, &["decode", "--json", capture]).end();
    lines += &decoded.stdout.split_inclusive('\n').take(2000).collect::<String>();
    // Frames of other stacks, and of all kinds.
    let mut captures: Vec<PathBuf> = Vec::new();
    for folder in std::fs::read_dir(root().join("captures")).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        captures.extend(std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()));
    }
    captures.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap" || suffix == "pcapng"));
    captures.sort();
    for file in captures.iter().map(|path| path.to_str().unwrap()) {
        let decoded = uroce(&namespace, &["decode", "--json", file]).end();
        lines += &decoded.stdout.split_inclusive('\n').take(200).collect::<String>();
    }
    lines += &uroce(&namespace, &["replay", "--json", captures[0].to_str().unwrap()]).end().stdout;
    for words in [
        &["chaos", "--seeds", "5"][..],
        &["loss-rtt", "--only", "op=write,recovery=go-back-n,loss=1%,loss_model=uniform,rtt_ms=1"],
        &["congestion", "--only", "scenario=incast"],
        &["matrix", "--only", "matrix=incast"],
        &["priorities", "--only", "where=switch,bulk_load=95%"],
        &["tokens", "--tokens", "200", "--only", "line_bps=300e6,rtt_ms=30,flows=1,loss=1%"],
        &["batches", "--batches", "20", "--only", "op=write,messages=16,rtt_ms=10,loss=1%,gap_ms=0"],
        &["deadline", "--chunks", "20", "--only", "loss_model=uniform,rtt_ms=10,loss=1%,repair_per_mille=60"],
        &[
            "kv",
            "--only",
            "transport=uroce-go-back-n,rtt_ms=2,model=Kimi-Linear-48B,prompt_tokens=8192,row=load|link|check",
        ],
        &["kv", "--only", "transport=uroce-go-back-n,rtt_ms=2,row=path,line_bps=1e9"],
        &["stream", "--only", "rtt_ms=10,model=Nemotron-Nano-9B,chunk=chosen|1048576"],
        &["layers", "--only", "element=float16,deadline_ms=160"],
        &["attack", "--packets", "10000", "--only", "victim=plain,attack=send-only"],
        LONG[0].1,
        LONG[1].1,
    ] {
        if LONG.iter().any(|(_, long)| *long == words) && !plays_all() {
            continue;
        }
        lines += &uroce(&namespace, &[&["sim"], words, &["--json"]].concat()).end().stdout;
    }
    // Failures: of the command line, of flags that cannot go together, and of all others.
    for words in [
        &["perf", "write-bw", "-s", "many"][..],
        &["perf", "write-bw", "-R"],
        &["perf", "write-bw", "--dev", "nonesuch0"],
        &["decode", "/nonesuch"],
        &["replay", "/nonesuch"],
        &["stat", "1"],
        &["sim", "paths", "--only", "nonesuch=1"],
    ] {
        let ended = uroce(&namespace, &[words, &["--json"]].concat()).end();
        let status = if words.contains(&"many") || words.contains(&"-R") { 2 } else { 1 };
        let error: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:#?}"));
        assert!(error["error"]["exit_status"] == status && ended.status.code() == Some(status), "{ended:#?}");
        let text = error["error"]["text"].as_str().unwrap();
        assert!(ended.stderr.contains(text), "{ended:#?}");
        lines += &ended.stdout;
    }
    let [known, seen] = judge(&lines);
    let is_tried = |name: &String| {
        !ELSEWHERE.contains(&name.as_str()) && (plays_all() || LONG.iter().all(|(long, _)| long != name))
    };
    assert_eq!(known.into_iter().filter(is_tried).collect::<BTreeSet<_>>(), seen, "some schemas were not tried");
}

/// Names of fields in a schema, of the objects in it, too.
fn names(schema: &Value, all: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            let properties = fields.get("properties").and_then(Value::as_object);
            all.extend(properties.into_iter().flat_map(|properties| properties.keys().cloned()));
            fields.values().for_each(|value| names(value, all));
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, all)),
        _ => {}
    }
}

#[test]
fn each_field_is_described() {
    let document = std::fs::read_to_string(root().join("docs/JSON.md")).unwrap();
    for file in std::fs::read_dir(root().join("docs/schemas")).unwrap() {
        let path = file.unwrap().path();
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let name = schema["properties"]["schema"]["const"].as_str().unwrap();
        let link = format!("[`{name}`](schemas/{})", path.file_name().unwrap().to_str().unwrap());
        let (_, section) = document.split_once(&link).unwrap_or_else(|| panic!("docs/JSON.md has no {link}"));
        let section = section.split_once("/1`](schemas/").map_or(section, |(section, _)| section);
        let mut all = BTreeSet::new();
        names(&schema, &mut all);
        all.remove("schema");
        for field in all {
            let is_there = section.contains(&format!("`{field}`")) || section.contains(&format!(".{field}`"));
            assert!(is_there, "docs/JSON.md does not describe {field} of {name}");
        }
    }
}

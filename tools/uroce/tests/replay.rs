//! `uroce replay`: its object, its exit status and its errors, as the contract has them.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::captures::scratch;
use serde_json::Value;

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/rxe-6.1").join(name)
}

fn replay(file: &Path, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_uroce")).arg("replay").arg(file).args(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn object(file: &Path, arguments: &[&str]) -> (i32, Value) {
    let (status, out, _) = replay(file, &[&["--json"], arguments].concat());
    assert_eq!(out.lines().count(), 1);
    (status, serde_json::from_str(&out).unwrap())
}

#[test]
fn the_object_has_what_scripts_read() {
    let file = capture("rxe-rc-loss-write.pcap");
    let (status, both) = object(&file, &[]);
    assert_eq!((status, &both["different"]), (0, &Value::Array(Vec::new())));
    assert_eq!(both["compared"], both["equal"]);
    let assumed = both["assumed"].as_array().unwrap();
    assert!(assumed.iter().any(|line| line.as_str().unwrap().contains("never arrived (6 times)")), "{assumed:?}");
    let as_role = |role| object(&file, &["--as", role]).1["compared"].as_u64().unwrap();
    assert_eq!(as_role("responder"), 11, "its ACKs and NAKs");
    assert_eq!(as_role("responder") + as_role("requester"), both["compared"].as_u64().unwrap());
}

#[test]
fn an_explained_difference_is_no_failure_and_another_one_is() {
    let (status, explained) = object(&capture("rxe-rc-nak-len-overrun.pcap"), &["--as", "responder"]);
    assert_eq!((status, &explained["explained"][0]["rule"]), (0, &Value::from("send-too-long")));

    // The last frame, an acknowledge, is cut off.
    let mut bytes = std::fs::read(capture("rxe-rc-send-bw.pcap")).unwrap();
    let record = 16 + u32::from_le_bytes(bytes[bytes.len() - 62 - 8..][..4].try_into().unwrap()) as usize;
    assert_eq!(record, 16 + 62, "an acknowledge over IPv4");
    bytes.truncate(bytes.len() - record);
    let file = scratch("missing.pcap");
    std::fs::write(&file, &bytes).unwrap();
    let (status, report) = object(&file, &["--as", "responder"]);
    assert_eq!((status, &report["different"][0]["rule"]), (1, &Value::from("missing-answer")));
    let (status, text, _) = replay(&file, &[]);
    assert!(status == 1 && text.contains("DIFFERENT") && text.contains("frame 262: missing-answer"), "{text}");
}

#[test]
fn bad_captures_and_bad_arguments_are_clear_errors() {
    let whole = std::fs::read(capture("rxe-rc-send.pcap")).unwrap();
    let failing = |name: &str, bytes: &[u8], words: &str| {
        let file = scratch(name);
        std::fs::write(&file, bytes).unwrap();
        let (status, out, error) = replay(&file, &["--json"]);
        assert!(status == 1 && out.is_empty() && error.contains(words), "{name}: {status} {out} {error}");
        assert!(error.contains(name), "{error}");
    };
    failing("nothing.pcap", b"", "empty");
    failing("header.pcap", &whole[..24], "no RoCE v2 frame");
    failing("cut.pcap", &whole[..whole.len() - 5], "the file ends");
    failing("other.pcap", b"a text that is no capture", "neither pcap nor pcapng");
    let mut damaged = whole.clone();
    damaged[24 + 8..24 + 12].copy_from_slice(&[0xff; 4]);
    failing("damaged.pcap", &damaged, "packet 1");
    let (status, _, error) = replay(Path::new("no/such.pcap"), &[]);
    assert!(status == 1 && error.contains("no/such.pcap"), "{error}");
    assert_eq!(replay(&capture("rxe-rc-send.pcap"), &["--as", "observer"]).0, 2);
}

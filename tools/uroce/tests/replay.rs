//! `uroce replay`: its object, its exit status and its errors, as the contract has them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::captures::scratch;
use crate::common::programs::{UROCE, uroce, wait_for_listener};
use rxe_rig::Netns;
use serde_json::Value;
use uroce::frame::FrameBytes;
use uroce::pcap::{Direction, Reader, Record, Writer};
use uroce::wire::icrc;

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

/// What a kernel rxe peer does with us, the offers that it takes no notice of included.
#[test]
fn our_own_captures_are_replayed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/uroce-rxe-6.1");
    for name in ["uroce-pingpong", "uroce-pingpong-server", "uroce-write-bw", "uroce-read-bw", "uroce-atomic-bw"] {
        let (status, report) = object(&folder.join(name).with_extension("pcapng"), &[]);
        assert_eq!((status, &report["compared"]), (0, &report["equal"]), "{name}: {report}");
        assert!(report["compared"].as_u64().unwrap() >= 10, "{name}: {report}");
    }
}

/// Two programs on a loopback; the client's frames are captured, faults included.
fn pair(file: &Path, arguments: &[&str]) {
    let namespace = Netns::create("rply").unwrap();
    let server = uroce(&namespace, &[arguments, &["--dev", "127.0.0.2"]].concat());
    wait_for_listener(&namespace, 18515);
    let client = ["--dev", "127.0.0.3", "--capture", file.to_str().unwrap(), "127.0.0.2"];
    uroce(&namespace, &[arguments, &client].concat()).end().succeeded();
    server.end().succeeded();
}

/// The capture with `change` made to frame `number` behind its UDP header, and a right ICRC.
fn changed(file: &Path, number: u64, change: impl Fn(&mut [u8])) -> PathBuf {
    let copy = scratch("changed.pcap");
    let mut writer = Writer::create(&copy).unwrap();
    for frame in Reader::open(file).unwrap().map(Result::unwrap) {
        let mut bytes = frame.bytes;
        if frame.number == number {
            let end = bytes.len() - 4;
            change(&mut bytes[14 + 28..end]);
            let right = icrc::compute(FrameBytes::from(&bytes[14..end])).unwrap();
            bytes[end..].copy_from_slice(&right.to_le_bytes());
        }
        writer.write(Record { time: frame.time, direction: Direction::Sent, parts: &[&bytes], comment: None }).unwrap();
    }
    drop(writer);
    copy
}

/// Captures of this program's own, with losses, over UDP sockets on `lo`. Each has retransmissions.
/// A capture in which an acknowledge says something else, with a right ICRC, is different.
#[test]
fn what_repeats_selectively_is_replayed() {
    let faults = ["--fault", "loss=0.01,seed=7"];
    let large = ["-s", "65536", "-n", "50"];
    let perf = |test: &str, flags: &[&str]| {
        let file = scratch(&format!("{test}.pcapng"));
        pair(&file, &[&["perf", test], flags, &faults].concat());
        file
    };
    let pingpong = scratch("pingpong.pcapng");
    pair(&pingpong, &[&["pingpong", "-n", "300", "-s", "8192"][..], &faults].concat());
    for file in [
        perf("send-bw", &large),
        perf("write-bw", &large),
        perf("read-bw", &large),
        perf("atomic-bw", &["-n", "200"]),
        pingpong,
    ] {
        let (status, report) = object(&file, &[]);
        assert_eq!((status, &report["different"]), (0, &Value::Array(Vec::new())), "{}", file.display());
        assert_eq!(report["compared"], report["equal"]);
        assert!(report["compared"].as_u64().unwrap() >= 50, "{}: {report}", file.display());
        let assumed = report["assumed"].to_string();
        assert!(assumed.contains("not compared are when packets are sent"), "{assumed}");
    }
    // The bytes of an acknowledge behind its BTH: syndrome, MSN, and of a selective one the trigger.
    let file = scratch("write-bw.pcapng");
    let decoded = Command::new(UROCE).args(["decode", "--json", "-Y", "trailer.kind == selective"]).arg(&file).output();
    let decoded = String::from_utf8(decoded.unwrap().stdout).unwrap();
    let frame = decoded.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).nth(5).unwrap();
    let number = frame["frame"].as_u64().unwrap();
    // Another PSN is one at which no message ends, or one up to which fewer messages are complete.
    for (at, rules) in [(11, ["psn", "msn"]), (15, ["msn"; 2]), (17, ["trigger"; 2]), (19, ["trigger"; 2])] {
        let file = changed(&file, number, |bytes| bytes[at] ^= 0x80);
        let (status, report) = object(&file, &["--as", "responder"]);
        let different = report["different"].as_array().unwrap();
        assert!(status == 1 && different.len() == 1, "byte {at}: {report}");
        let rule = different[0]["rule"].as_str().unwrap();
        assert!(different[0]["frame"] == number && rules.contains(&rule), "byte {at}: {report}");
    }
}

#[test]
fn bad_captures_and_bad_arguments_are_clear_errors() {
    let whole = std::fs::read(capture("rxe-rc-send.pcap")).unwrap();
    let failing = |name: &str, bytes: &[u8], words: &str| {
        let file = scratch(name);
        std::fs::write(&file, bytes).unwrap();
        let (status, out, error) = replay(&file, &["--json"]);
        let is_told = out.contains("\"uroce.error/1\"") && out.lines().count() == 1 && error.contains(words);
        assert!(status == 1 && is_told, "{name}: {status} {out} {error}");
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

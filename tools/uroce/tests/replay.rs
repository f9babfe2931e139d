//! `uroce replay`: its object, its exit status and its errors, as the contract has them.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::captures::{frame, outers, scratch};
use serde_json::Value;
use uroce::pcap::{Direction, Record, Writer};
use uroce::time::Instant;
use uroce::wire::{Aeth, Bth, Extension, Flow, Msn, Opcode, Psn, Qpn, Syndrome};

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

/// From the first extended packet on; and a request before it that is answered only then.
#[test]
fn what_repeats_selectively_is_left_out() {
    let (ethernet, flow) = outers()[0];
    let back = (ethernet, Flow { addresses: flow.addresses.reversed(), ..flow });
    let request = |psn: u32| Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(psn)).with_ack_request(true);
    let answer = |psn: u32| Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x22), Psn::new(psn));
    let aeth = |msn: u32| Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(msn)));
    let to = |bth, payload| frame(&(ethernet, flow), bth, Extension::None, payload);
    let from = |bth, msn, payload| frame(&back, bth, aeth(msn), payload);
    let write = |name: &str, frames: &[Vec<u8>]| {
        let file = scratch(name);
        let mut writer = Writer::create(&file).unwrap();
        for (number, bytes) in frames.iter().enumerate() {
            let time = Instant::from_ns(1_700_000_000_000_000_000 + number as u64 * 1_000_000);
            writer.write(Record { time, direction: Direction::Sent, parts: &[bytes], comment: None }).unwrap();
        }
        file
    };
    let plain = [to(request(1), 64), from(answer(1), 1, 0), to(request(2), 64)];
    let extended = [from(answer(2).with_extended(true), 2, 12), to(request(3).with_extended(true), 72)];
    let (status, report) = object(&write("selective.pcap", &[&plain[..], &extended].concat()), &[]);
    assert_eq!((status, &report["compared"], &report["equal"]), (0, &Value::from(3), &Value::from(3)), "{report}");
    let assumed = report["assumed"].to_string();
    assert!(
        assumed.contains("3 RoCE frames were left out, since from there on both sides repeat selectively"),
        "{assumed}"
    );

    let (status, _, error) = replay(&write("selective-only.pcap", &extended), &[]);
    assert!(status == 1 && error.contains("2 of connections that repeat selectively"), "{error}");
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

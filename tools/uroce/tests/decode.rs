//! `uroce decode`: its lines, its objects and its exit status, as the contract has them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::captures::{frame, outers, scratch};
use serde_json::Value;
use uroce::wire::{Bth, Extension, Feth, Key, Opcode, PKey, Placement, Psn, Qpn, Reth, Selectivity};

fn uroce(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uroce")).args(arguments).output().unwrap()
}

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/rxe-6.1").join(name)
}

fn decode(file: &Path, json: bool) -> (i32, String, String) {
    let mut arguments = vec!["decode", file.to_str().unwrap()];
    arguments.extend(json.then_some("--json"));
    let Output { status, stdout, stderr } = uroce(&arguments);
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn objects(file: &Path) -> (i32, Vec<Value>) {
    let (status, out, _) = decode(file, true);
    (status, out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// A pcap with microseconds, of frames of which `snap` bytes were kept.
fn write(name: &str, frames: &[Vec<u8>], snap: usize) -> PathBuf {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, snap as u32, 1]);
    for (i, bytes) in frames.iter().enumerate() {
        let kept = bytes.len().min(snap);
        file.extend(words(&[1_700_000_000 + i as u32, 0, kept as u32, bytes.len() as u32]));
        file.extend(&bytes[..kept]);
    }
    let path = scratch(name);
    std::fs::write(&path, file).unwrap();
    path
}

fn send(psn: u32) -> Bth {
    Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(psn))
}

fn good(psn: u32) -> Vec<u8> {
    frame(&outers()[0], send(psn), Extension::None, 64)
}

/// Read like code: a change of these files is a change of what people see. `INSTA_UPDATE=always` writes them anew.
#[test]
fn lines_are_as_they_were() {
    for name in [
        "rxe-cm-rping",
        "rxe-ipv6-ud",
        "rxe-mtu4096-rc-mixed",
        "rxe-rc-atomic-cas",
        "rxe-rc-ecn-ce",
        "rxe-rc-nak-len-overrun",
        "rxe-rc-rnr-nak",
        "rxe-rc-send-inv-mw2",
        "rxe-rc-write-imm",
        "rxe-uc-all",
    ] {
        let (status, out, _) = decode(&capture(&format!("{name}.pcap")), false);
        assert_eq!(status, 0);
        insta::assert_snapshot!(name, out);
    }
}

#[test]
fn objects_have_what_scripts_read() {
    let (status, objects) = objects(&capture("rxe-mtu4096-rc-mixed.pcap"));
    assert_eq!((status, objects.len()), (0, 19));
    for (i, object) in objects.iter().enumerate() {
        assert_eq!(object["frame"], i + 1);
        assert!(object["opcode"].is_string() && object["qpn"].is_u64() && object["psn"].is_u64());
        assert_eq!((&object["icrc"], &object["malformed"]), (&Value::from("ok"), &Value::from(false)));
    }
    let write = objects.iter().find(|object| object["opcode"] == "RC_RDMA_WRITE_FIRST").unwrap();
    assert!(write["reth"]["address"].as_str().unwrap().starts_with("0x00007f"));
    assert_eq!(write["payload_bytes"], 4096);
}

#[test]
fn a_wrong_icrc_and_wrong_lengths_are_failures() {
    let mut flipped = good(2);
    flipped[60] ^= 1;
    let mut short = good(3);
    short[38] ^= 1; // the UDP length
    let mut unaligned = good(4);
    unaligned.pop();
    unaligned[17] -= 1;
    unaligned[39] -= 1;
    unaligned[24..26].fill(0);
    let sum = unaligned[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    unaligned[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let (status, objects) = objects(&write("bad.pcap", &[good(1), flipped, short, unaligned], 65535));
    assert_eq!(status, 1);
    let verdicts: Vec<_> =
        objects.iter().map(|o| (o["icrc"].as_str().unwrap(), o["malformed"].as_bool().unwrap())).collect();
    assert_eq!(verdicts, [("ok", false), ("bad", false), ("absent", true), ("bad", true)]);
    assert_eq!(objects[2]["malformed_reason"], "the UDP header claims 344 bytes, but 88 are present");
    assert_eq!(objects[2]["psn"], Value::Null);
    assert_eq!(
        (&objects[3]["malformed_reason"], &objects[3]["psn"]),
        (&"79 bytes after UDP are not a multiple of 4".into(), &4.into())
    );
    for (name, frames) in [("one-bad.pcap", vec![good(1), objects_frame_flipped()]), ("all-good.pcap", vec![good(1)])] {
        let (status, ..) = decode(&write(name, &frames, 65535), false);
        assert_eq!(status, i32::from(frames.len() == 2), "{name}");
    }
}

fn objects_frame_flipped() -> Vec<u8> {
    let mut flipped = good(9);
    *flipped.last_mut().unwrap() ^= 0x80;
    flipped
}

#[test]
fn the_strange_but_allowed_is_no_failure() {
    let with_tver = {
        let mut bytes = frame(&outers()[2], send(3), Extension::None, 3);
        let bth = 14 + 48;
        bytes[bth + 1] |= 0x05;
        // The ICRC again: over the packet as it is now.
        let end = bytes.len() - 4;
        let icrc = uroce::wire::icrc::compute(uroce::frame::FrameBytes::from(&bytes[14..end])).unwrap();
        bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        bytes
    };
    let reserved = frame(&outers()[1], Bth::new(Opcode(0x15), Qpn::new(5), Psn::new(1)), Extension::None, 12);
    let foreign = frame(&outers()[0], send(2).with_p_key(PKey(0x1234)), Extension::None, 0);
    let cnp = frame(&outers()[3], Bth::new(Opcode::CNP, Qpn::new(6), Psn::new(0)).with_becn(true), Extension::None, 16);
    let file = write("strange.pcap", &[reserved, foreign, with_tver, cnp], 65535);
    let (status, objects) = objects(&file);
    assert_eq!(status, 0, "{objects:#?}");
    assert_eq!((&objects[0]["opcode"], &objects[0]["vlan"]["id"]), (&"RESERVED_0x15".into(), &5.into()));
    assert_eq!((&objects[1]["p_key"], &objects[2]["tver"]), (&0x1234.into(), &5.into()));
    assert_eq!(
        (&objects[3]["opcode"], &objects[3]["becn"], &objects[3]["vlan"]["id"]),
        (&"CNP".into(), &true.into(), &4094.into())
    );
    let (_, lines, _) = decode(&file, false);
    assert!(
        lines.contains(" P_Key=0x1234")
            && lines.contains(" TVer=5")
            && lines.contains(" CNP                   QP=0x000006"),
        "{lines}"
    );
}

#[test]
fn a_cnp_of_another_length_is_malformed() {
    let bth = Bth::new(Opcode::CNP, Qpn::new(6), Psn::new(0)).with_becn(true);
    let frames = [16, 12, 0].map(|bytes| frame(&outers()[0], bth, Extension::None, bytes));
    let (status, objects) = objects(&write("cnp.pcap", &frames, 65535));
    let reasons: Vec<_> = objects.iter().map(|object| object["malformed_reason"].as_str()).collect();
    let expected = [12, 0].map(|bytes| format!("{bytes} bytes after the BTH of a CNP, which has 16"));
    assert_eq!((status, reasons), (1, vec![None, Some(expected[0].as_str()), Some(expected[1].as_str())]));
    assert!(objects.iter().all(|object| object["opcode"] == "CNP" && object["icrc"] == "ok"));
}

#[test]
fn flushes_and_atomic_writes_are_told_with_all_their_fields() {
    let reth = |length| Reth::new(0x1234, Key(7), length);
    let bth = |opcode, psn| Bth::new(opcode, Qpn::new(5), Psn::new(psn));
    let feth = Feth::new(Placement::all(), Selectivity::Region);
    let reserved = Feth::new(Placement::from_bits_retain(8), Selectivity::Unknown(3));
    let frames = [
        frame(&outers()[0], bth(Opcode::RC_FLUSH, 1), Extension::FethReth(feth, reth(99)), 0),
        frame(&outers()[1], bth(Opcode::RC_ATOMIC_WRITE, 2), Extension::Reth(reth(8)), 8),
        frame(&outers()[2], bth(Opcode::RC_FLUSH, 3), Extension::FethReth(reserved, reth(0)), 0),
    ];
    let file = write("flush.pcap", &frames, 65535);
    let (status, objects) = objects(&file);
    assert_eq!(status, 0, "{objects:#?}");
    assert_eq!((&objects[0]["opcode"], &objects[1]["opcode"]), (&"RC_FLUSH".into(), &"RC_ATOMIC_WRITE".into()));
    assert_eq!((&objects[0]["feth"]["placement"], &objects[0]["feth"]["selectivity"]), (&3.into(), &1.into()));
    assert_eq!((&objects[0]["reth"]["length"], &objects[0]["payload_bytes"]), (&99.into(), &0.into()));
    assert_eq!((&objects[1]["reth"]["rkey"], &objects[1]["payload_bytes"]), (&7.into(), &8.into()));
    assert_eq!(objects[1]["feth"], Value::Null);
    let (_, lines, _) = decode(&file, false);
    let said = [" FETH global+persistent region RETH va=0x", " FETH reserved reserved RETH va=0x"];
    assert!(said.iter().all(|said| lines.contains(said)), "{lines}");
}

#[test]
fn frames_cut_by_a_snap_length_are_decoded_without_a_verdict() {
    let (status, objects) = objects(&write("snapped.pcap", &[good(7), good(8)], 60));
    assert_eq!((status, objects.len()), (0, 2));
    assert_eq!(
        (&objects[1]["icrc"], &objects[1]["psn"], &objects[1]["payload_bytes"]),
        (&"absent".into(), &8.into(), &64.into())
    );
    assert_eq!((&objects[0]["captured_bytes"], &objects[0]["frame_bytes"]), (&60.into(), &good(7).len().into()));
}

#[test]
fn other_traffic_is_skipped_and_counted() {
    let mut other_port = good(1);
    other_port[14 + 20 + 3] = 1;
    let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 28]].concat();
    let file = write("mixed.pcap", &[arp, other_port, good(5), vec![1, 2, 3]], 65535);
    let (status, out, err) = decode(&file, true);
    assert_eq!((status, out.lines().count()), (0, 1));
    assert!(out.contains("\"frame\":3,"), "{out}");
    assert_eq!(err, "1 RoCE packets: all ICRCs ok; 3 other frames skipped\n");
}

#[test]
fn what_cannot_be_read_is_said_with_its_place_after_what_can() {
    let file = write("cut.pcap", &[good(1), good(2)], 65535);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    let (status, out, err) = decode(&file, false);
    assert_eq!((status, out.lines().count()), (1, 1));
    let second = 24 + 16 + good(1).len();
    assert!(
        err.contains(&format!(
            "packet 2 at byte {second}: the file ends after {0} of its {1} bytes\n",
            good(2).len() + 15,
            good(2).len() + 16
        )),
        "{err}"
    );

    let (status, _, err) = decode(Path::new("/nonexistent.pcap"), false);
    assert_eq!(
        (status, err.as_str()),
        (1, "uroce: /nonexistent.pcap: cannot read at byte 0: No such file or directory (os error 2)\n")
    );
    std::fs::write(&file, "hello").unwrap();
    let (status, _, err) = decode(&file, false);
    assert_eq!(status, 1);
    assert!(err.ends_with("cut.pcap: neither pcap nor pcapng, by its first four bytes\n"), "{err}");
}

#[test]
fn a_wrong_command_line_is_2() {
    for arguments in [&["decode"][..], &["decode", "--yaml", "x"], &["nonsense"], &[]] {
        assert_eq!(uroce(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn standard_input_is_read() {
    let file = std::fs::File::open(capture("rxe-rc-dscp26.pcap")).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_uroce")).args(["decode", "-", "--json"]).stdin(file).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.iter().filter(|byte| **byte == b'\n').count()), (Some(0), 2));
}

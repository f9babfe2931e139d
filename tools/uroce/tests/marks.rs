//! What `uroce decode` says for people: marks by queue pair and direction, colours, filters, and the forms that a capture
//! can have. The frames are made here, so that each mark has one cause.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::captures::{frame, outers, scratch};
use crate::common::programs::UROCE;
use serde_json::Value;
use uroce::pcap::{Direction, Record, Writer};
use uroce::time::Instant;
use uroce::wire::{Aeth, Bth, Extension, Flow, Key, Msn, NakCode, Opcode, Psn, Qpn, Reth, RnrTimer, Syndrome};

const REQUESTER: u32 = 0x22;
const RESPONDER: u32 = 0x11;

/// A request of queue pair 0x22 to 0x11.
fn request(opcode: Opcode, psn: u32, payload: usize) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(RESPONDER), Psn::new(psn)).with_ack_request(true);
    frame(&outers()[0], bth, Extension::None, payload)
}

fn send(psn: u32) -> Vec<u8> {
    request(Opcode::RC_SEND_ONLY, psn, 64)
}

/// The same sent again: frames here have one identification, so that something else must differ.
fn again(psn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(RESPONDER), Psn::new(psn)).with_solicited(true);
    frame(&outers()[0], bth, Extension::None, 64)
}

fn read(psn: u32, length: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(RESPONDER), Psn::new(psn));
    frame(&outers()[0], bth, Extension::Reth(Reth::new(0x1000, Key(7), length)), 0)
}

/// An answer to it.
fn answer(opcode: Opcode, psn: u32, syndrome: Option<Syndrome>, payload: usize) -> Vec<u8> {
    let (ethernet, flow) = outers()[0];
    let back = (ethernet, Flow { addresses: flow.addresses.reversed(), ..flow });
    let aeth = syndrome.map_or(Extension::None, |syndrome| Extension::Aeth(Aeth::new(syndrome, Msn::new(psn))));
    frame(&back, Bth::new(opcode, Qpn::new(REQUESTER), Psn::new(psn)), aeth, payload)
}

fn ack(psn: u32) -> Vec<u8> {
    answer(Opcode::RC_ACKNOWLEDGE, psn, Some(Syndrome::ACK), 0)
}

fn nak(psn: u32) -> Vec<u8> {
    answer(Opcode::RC_ACKNOWLEDGE, psn, Some(Syndrome::Nak(NakCode::PsnSequenceError)), 0)
}

/// A capture of these frames, 100 µs apart.
fn write(name: &str, frames: &[Vec<u8>]) -> PathBuf {
    let file = scratch(name);
    let mut writer = Writer::create(&file).unwrap();
    for (number, bytes) in frames.iter().enumerate() {
        let time = Instant::from_ns(1_700_000_000_000_000_000 + number as u64 * 100_000);
        writer.write(Record { time, direction: Direction::Sent, parts: &[bytes], comment: None }).unwrap();
    }
    file
}

fn decode(file: &Path, arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(UROCE).arg("decode").arg(file).args(arguments).env_remove("NO_COLOR").output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The mark of each frame, in the brackets of its line; empty without one.
fn marks(name: &str, frames: &[Vec<u8>]) -> Vec<String> {
    let (status, out, _) = decode(&write(name, frames), &[]);
    assert_eq!(status, 0, "{out}");
    let mark = |line: &str| line.rsplit_once('[').map_or(String::new(), |(_, mark)| mark.trim_end_matches(']').into());
    out.lines().map(mark).collect()
}

/// The numbers of the frames that are printed.
fn shown(file: &Path, arguments: &[&str]) -> Vec<u64> {
    let (status, out, err) = decode(file, &[&["--json"], arguments].concat());
    assert_ne!(status, 2, "{err}");
    out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["frame"].as_u64().unwrap()).collect()
}

#[test]
fn a_gap_a_nak_and_what_is_sent_again_are_marked_over_the_wrap_of_psns() {
    let frames =
        [send(0xfffffe), send(1), nak(0xffffff), send(0xffffff), send(0), again(1), ack(1), ack(1), send(2), send(2)];
    let expected = [
        "",
        "gap: PSN 16777215 to 0 missing",
        "",
        "retransmission",
        "retransmission",
        "retransmission of frame 2",
        "",
        "duplicate of frame 7",
        "",
        // Same identification, same ICRC: the network's copy.
        "duplicate of frame 9",
    ];
    assert_eq!(marks("wrap.pcap", &frames), expected);
}

#[test]
fn what_fills_a_gap_soon_and_without_a_nak_is_out_of_order() {
    assert_eq!(
        marks("order.pcap", &[send(5), send(7), send(6), send(8)]),
        ["", "gap: PSN 6 missing", "out of order", ""]
    );
    let mut late = vec![send(5), send(7)];
    // Of another queue pair, so that time passes.
    late.extend((0..40).map(|psn| {
        frame(&outers()[2], Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(9), Psn::new(psn)), Extension::None, 4)
    }));
    late.push(send(6));
    assert_eq!(marks("late.pcap", &late).last().unwrap(), "retransmission");
}

#[test]
fn reads_take_as_many_psns_as_their_responses_and_a_missing_response_is_a_gap() {
    let response = |opcode, psn, bytes| {
        answer(opcode, psn, (opcode != Opcode::RC_READ_RESPONSE_MIDDLE).then_some(Syndrome::ACK), bytes)
    };
    let frames = [
        // 3000 bytes: one to twelve packets, by the path MTU. The next request shows that it is 1024.
        read(10, 3000),
        read(13, 5000),
        response(Opcode::RC_READ_RESPONSE_FIRST, 10, 1024),
        response(Opcode::RC_READ_RESPONSE_LAST, 12, 952),
        read(18, 10),
        read(20, 10),
        read(11, 1976),
        response(Opcode::RC_READ_RESPONSE_FIRST, 11, 1024),
    ];
    let expected =
        ["", "", "", "gap: PSN 11 missing", "", "gap: PSN 19 missing", "retransmission of frame 1", "out of order"];
    assert_eq!(marks("reads.pcap", &frames), expected);
}

#[test]
fn each_direction_and_queue_pair_counts_by_itself() {
    let other =
        |psn| frame(&outers()[0], Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x12), Psn::new(psn)), Extension::None, 8);
    assert!(marks("pairs.pcap", &[send(1), other(500), send(2), other(501), ack(2)]).iter().all(String::is_empty));
    // Longer ago than is remembered: still a retransmission.
    let mut frames: Vec<_> = (0..20_000).map(send).collect();
    frames.extend([send(3), send(19_999)]);
    let marks = marks("long.pcap", &frames);
    assert_eq!(marks[20_000..], ["retransmission", "duplicate of frame 20000"]);
    assert!(marks[..20_000].iter().all(String::is_empty));
}

#[test]
fn psns_are_as_other_tools_have_them_or_relative() {
    let file = write("relative.pcap", &[send(0x3f2a10), send(0x3f2a11), ack(0x3f2a11)]);
    let (_, out, err) = decode(&file, &[]);
    assert!(out.contains("PSN=0x3f2a10 (4139536) AckReq"), "{out}");
    assert!(!out.contains("ICRC") && !out.contains("payload=0") && !out.contains("MigReq"), "{out}");
    assert_eq!(err, "3 RoCE packets: all ICRCs ok\n");
    let (_, out, _) = decode(&file, &["--relative"]);
    assert!(out.lines().last().unwrap().contains("RC_ACKNOWLEDGE        QP=0x000022 PSN=0x3f2a11 (+1)"), "{out}");
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let mut flipped = send(4);
    flipped[70] ^= 1;
    let file = write("colours.pcap", &[send(1), send(3), nak(2), flipped]);
    let (_, plain, _) = decode(&file, &[]);
    assert!(!plain.contains('\x1b'));
    let (_, never, _) = decode(&file, &["--color", "never"]);
    assert_eq!(never, plain);
    let (_, coloured, _) = decode(&file, &["--color", "always"]);
    let starts: Vec<_> = coloured.lines().map(|line| line.split("    ").next().unwrap()).collect();
    assert_eq!(starts, ["", "\x1b[33m", "\x1b[31m", "\x1b[1m\x1b[31m"]);
    assert!(coloured.lines().skip(1).all(|line| line.ends_with("\x1b[0m")));
    assert_eq!(decode(&file, &["--color", "blue"]).0, 2);
}

#[test]
fn filters_select_by_queue_pair_kind_range_and_expression() {
    let rnr = answer(Opcode::RC_ACKNOWLEDGE, 3, Some(Syndrome::RnrNak(RnrTimer::new(12))), 0);
    let other = frame(&outers()[2], Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x99), Psn::new(1)), Extension::None, 4);
    let mut flipped = send(4);
    flipped[70] ^= 1;
    let file = write("filters.pcap", &[send(1), other, send(3), nak(2), send(2), rnr, flipped, ack(3)]);
    for (arguments, expected) in [
        // Those to it, and those of its peer, from the first one on.
        (&["--qp", "0x22"][..], &[1, 3, 4, 5, 6, 8][..]),
        (&["--qp", "17", "--qp", "0x99"], &[1, 2, 3, 4, 5, 6, 7, 8]),
        (&["--nak"], &[4, 6]),
        (&["--bad"], &[7]),
        (&["--from", "3", "--to", "5"], &[3, 4, 5]),
        (&["--from", "0.0002s", "--to", "0.0003s"], &[3, 4]),
        (&["-Y", "bth.opcode == RC_ACK && psn > 2 && !nak"], &[8]),
        (&["-Y", "infiniband.bth.opcode == 17 and not rnr"], &[4, 8]),
        (&["-Y", "gap || retransmission"], &[3, 5]),
        (&["-Y", "ip.src == fd00::1"], &[2]),
        (&["-Y", "(source_qpn == 0x22 or qpn eq 0x22) && time < 0.00025"], &[1, 3]),
        (&["-Y", "aeth.meaning contains \"sequence\""], &[4]),
        (&["-Y", "aeth.syndrome", "--nak", "--to", "4"], &[4]),
        (&["-Y", "icrc != ok"], &[7]),
        (&["-Y", "reth.length != 5"], &[]),
    ] {
        assert_eq!(shown(&file, arguments), expected, "{arguments:?}");
    }
    let (status, _, err) = decode(&file, &["--to", "6"]);
    assert_eq!((status, err.as_str()), (0, "6 of 6 RoCE packets: all ICRCs ok, 2 NAKs, 1 retransmission, 1 gap\n"));
    let (status, _, err) = decode(&file, &["-Y", "psn > 5 && nakk"]);
    assert!(status == 2 && err.contains("column 12: there is no field `nakk`; did you mean nak?"), "{err}");
    let help = Command::new(UROCE).args(["decode", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("opcode, bth.opcode") && help.contains("Examples:"), "{help}");
}

/// As `tcpdump -i any` has the frames: in place of the Ethernet header 16 bytes, or 20.
fn cooked(frames: &[Vec<u8>], version: u8) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 262_144, if version == 1 { 113 } else { 276 }]);
    for frame in frames {
        let header = match version {
            1 => [&[0, 4, 0, 1, 0, 6][..], &frame[6..12], &[0, 0], &frame[12..14]].concat(),
            _ => [&frame[12..14], &[0, 0, 0, 0, 0, 2, 0, 1, 4, 6], &frame[6..12], &[0, 0]].concat(),
        };
        let bytes = (header.len() + frame.len() - 14) as u32;
        file.extend([words(&[1_700_000_000, 0, bytes, bytes]), header, frame[14..].to_vec()].concat());
    }
    file
}

#[test]
fn compressed_cooked_and_several_captures_are_read() {
    let frames = [send(1), ack(1), send(2), ack(2)];
    let plain = std::fs::read(write("plain.pcap", &frames)).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    // Two zstd frames, one behind the other.
    let half = |range: std::ops::Range<usize>| {
        ruzstd::encoding::compress_to_vec(&plain[range], ruzstd::encoding::CompressionLevel::Uncompressed)
    };
    let halves = [half(0..100), half(100..plain.len())].concat();
    let files = [
        ("c.pcap.gz", gzip.finish().unwrap()),
        ("c.pcap.zst", zstd),
        ("halves.pcap.zst", halves),
        ("sll.pcap", cooked(&frames, 1)),
        ("sll2.pcap", cooked(&frames, 2)),
    ];
    for (name, bytes) in &files {
        let file = scratch(name);
        std::fs::write(&file, bytes).unwrap();
        let (status, out, err) = decode(&file, &[]);
        assert_eq!((status, err.as_str()), (0, "4 RoCE packets: all ICRCs ok\n"), "{name}: {out}");
        let replayed = Command::new(UROCE).arg("replay").arg(&file).output().unwrap();
        assert!(replayed.stdout.starts_with(b"EQUAL"), "{name}: {replayed:?}");
    }
    let cut = scratch("cut.pcap.gz");
    std::fs::write(&cut, &files[0].1[..files[0].1.len() / 2]).unwrap();
    let (status, _, err) = decode(&cut, &[]);
    assert!(status == 1 && err.contains("cut.pcap.gz: "), "{err}");

    let (one, two) = (scratch("c.pcap.gz"), scratch("sll.pcap"));
    let (status, out, err) = decode(&one, &[two.to_str().unwrap()]);
    let headings: Vec<_> = out.lines().filter(|line| line.starts_with("==> ")).collect();
    assert_eq!((status, headings.len(), err.as_str()), (0, 2, "8 RoCE packets: all ICRCs ok\n"), "{out}");
    assert_eq!(shown(&one, &[two.to_str().unwrap()]), [1, 2, 3, 4, 1, 2, 3, 4]);
    // What cannot be read does not keep the others from it.
    let (status, out, err) = decode(Path::new("/nonexistent.pcap"), &[one.to_str().unwrap()]);
    assert!(status == 1 && out.contains("RC_ACKNOWLEDGE") && err.contains("/nonexistent.pcap"), "{out}{err}");
}

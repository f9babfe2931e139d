//! `tools/wireshark/uroce.lua` in a stock tshark: its verdict on every ICRC of the kernel's captures is that of `uroce
//! decode`, damaged ones and nonsense included; it shows every field of docs/EXTENSIONS.md; a trailer that cannot be is
//! said to be malformed, and no bytes at all are an error in it. Without it, extended packets are no malformed ones.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::captures::{frame, outers, scratch};
use crate::common::programs::{Ended, uroce, wait_for_listener};
use rxe_rig::VethPair;
use uroce::frame::FrameBytes;
use uroce::pcap::{Direction, Reader, Record, Writer};
use uroce::time::Instant;
use uroce::wire::{Bth, Extension, Opcode, Psn, Qpn, icrc};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wireshark/uroce.lua");

/// What tshark has for each frame in some fields, by the frame's number; an item that occurs often is a list with commas.
fn tshark(file: &Path, with_script: bool, fields: &[&str]) -> BTreeMap<u64, Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args([
        "-n",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        "aggregator=,",
        "-e",
        "frame.number",
    ]);
    if with_script {
        command.args(["-X", &format!("lua_script:{SCRIPT}")]);
    }
    // Guesses at what the payload is call correct packets malformed.
    command.args(["--disable-protocol", "rpcordma", "--disable-heuristic", "mellanox_eoib"]);
    command.args(["--disable-heuristic", "eth_over_ib"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap_or_else(|e| panic!("tshark: {e}; `cargo xtask setup` installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains(".lua"), "{said}");
    let line = |line: &str| {
        let mut values = line.split('\t').map(str::to_owned);
        (values.next().unwrap().parse().unwrap(), values.collect::<Vec<_>>())
    };
    String::from_utf8_lossy(&output.stdout).lines().map(line).collect()
}

/// What `uroce decode` has for the ICRC of each RoCE frame.
fn decode(file: &Path) -> BTreeMap<u64, String> {
    let Output { stdout, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_uroce")).args(["decode", "--json"]).arg(file).output().unwrap();
    assert!(String::from_utf8_lossy(&stderr).contains("RoCE packets"), "{}", String::from_utf8_lossy(&stderr));
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        (value["frame"].as_u64().unwrap(), value["icrc"].as_str().unwrap().to_owned())
    };
    String::from_utf8_lossy(&stdout).lines().map(line).collect()
}

/// The script's verdicts, which must be those of `uroce decode` on the same frames; and how often each occurs.
fn verdicts(file: &Path) -> BTreeMap<String, usize> {
    let theirs = tshark(file, true, &["uroce.icrc", "_ws.lua.error"]);
    let ours = decode(file);
    assert!(theirs.values().all(|fields| fields[1].is_empty()), "an error in the script");
    let theirs: BTreeMap<u64, String> = theirs
        .into_iter()
        .map(|(frame, fields)| (frame, fields[0].clone()))
        .filter(|(_, icrc)| !icrc.is_empty())
        .collect();
    let differences: Vec<_> =
        ours.keys().chain(theirs.keys()).filter(|frame| ours.get(frame) != theirs.get(frame)).collect();
    for frame in differences.iter().take(10) {
        println!("frame {frame}: {:?}, the script has {:?}", ours.get(frame), theirs.get(frame));
    }
    assert!(differences.is_empty(), "{} different verdicts in {}", differences.len(), file.display());
    let mut count = BTreeMap::new();
    theirs.into_values().for_each(|icrc| *count.entry(icrc).or_default() += 1);
    count
}

fn write(file: &Path, frames: impl IntoIterator<Item = Vec<u8>>) {
    let mut writer = Writer::create(file).unwrap();
    for (number, bytes) in frames.into_iter().enumerate() {
        let time = Instant::from_ns(1_700_000_000_000_000_000 + number as u64 * 1_000_000);
        writer.write(Record { time, direction: Direction::Sent, parts: &[&bytes], comment: None }).unwrap();
    }
}

/// As [`write`], but each frame is only captured up to a length.
fn write_cut(file: &Path, frames: impl IntoIterator<Item = (Vec<u8>, usize)>) {
    // pcap in nanoseconds, version 2.4, no time zone, link type Ethernet.
    let mut bytes = Vec::new();
    [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 262_144, 1_u32].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    for (frame, captured) in frames {
        [1_700_000_000, 0, captured as u32, frame.len() as u32]
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(&frame[..captured]);
    }
    std::fs::write(file, bytes).unwrap();
}

/// Every frame of the kernel's captures.
fn kernel_frames() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/rxe-6.1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let frames = |file| Reader::open(file).unwrap().map(|frame| frame.unwrap().bytes).collect::<Vec<_>>();
    files.iter().flat_map(|file| frames(file)).collect()
}

/// Numbers that look random and are always the same.
fn scatter(number: usize) -> usize {
    let number = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as usize
}

/// Where the InfiniBand part of a whole RoCE frame begins.
fn ib_start(frame: &[u8]) -> usize {
    let ip = if frame[12] == 0x81 { 18 } else { 14 };
    ip + if frame[ip] >> 4 == 6 { 48 } else { 28 }
}

/// The first `bytes` of a frame, as a frame whose IP and UDP lengths say so.
fn shortened(frame: &[u8], bytes: usize) -> Vec<u8> {
    let mut frame = frame[..bytes].to_vec();
    let (ip, ib) = (if frame[12] == 0x81 { 18 } else { 14 }, ib_start(&frame));
    // An IPv6 length does not count its header.
    let (at, from) = if frame[ip] >> 4 == 6 { (ip + 4, ip + 40) } else { (ip + 2, ip) };
    frame[at..at + 2].copy_from_slice(&((bytes - from) as u16).to_be_bytes());
    frame[ib - 4..ib - 2].copy_from_slice(&((bytes - ib + 8) as u16).to_be_bytes());
    frame
}

#[test]
fn every_icrc_verdict_on_the_kernels_captures_is_decodes() {
    let frames = kernel_frames();
    let roce = |frame: &[u8]| frame.len() >= 58 && frame[ib_start(frame) - 6..][..2] == 4791_u16.to_be_bytes();
    let good = scratch("kernel.pcap");
    write(&good, frames.clone());
    assert_eq!(verdicts(&good), [("ok".to_owned(), 3322)].into());

    // A bit anywhere that the ICRC covers, and of the ICRC itself: all but BTH byte 4, which routers may change.
    let bad = scratch("kernel-bad.pcap");
    let damaged = frames.iter().filter(|frame| roce(frame)).enumerate().map(|(number, frame)| {
        let mut frame = frame.clone();
        let start = ib_start(&frame);
        let at = start + scatter(number) % (frame.len() - start);
        frame[if at == start + 4 { start } else { at }] ^= 1 << (number % 8);
        frame
    });
    write(&bad, damaged);
    assert_eq!(verdicts(&bad), [("bad".to_owned(), 3322)].into());

    // A bit anywhere in the headers: fields that may change, lengths, versions, ports, EtherTypes.
    let strange = scratch("kernel-strange.pcap");
    let damaged = frames.iter().enumerate().map(|(number, frame)| {
        let mut frame = frame.clone();
        let headers = 12..frame.len().min(80);
        let at = headers.start + scatter(number) % headers.len();
        frame[at] ^= 1 << (number % 8);
        frame
    });
    write(&strange, damaged);
    let count = verdicts(&strange);
    assert!(["ok", "bad", "absent"].iter().all(|verdict| count.get(*verdict).is_some_and(|n| *n > 50)), "{count:?}");
}

/// Bytes from hexadecimal digits.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// What ends extended packets.
const TAG: [u8; 4] = [0, 0, 0x1a, 0x2b];

/// Frames of each kind of outer headers around the bytes from the BTH up to the ICRC, with a right ICRC, and with a tag if the
/// packet is an extended one of a reliable connection.
fn frames_around(ib: &str) -> Vec<Vec<u8>> {
    let mut ib = hex(ib);
    if ib[0] < 0x20 && ib[8] & 0x20 != 0 {
        ib.extend(TAG);
    }
    let of = |outer: &_| {
        // Any packet of the same length has the same outer headers.
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(1));
        let mut bytes = frame(outer, bth, Extension::None, ib.len() - Bth::BYTES);
        let (start, stop) = (ib_start(&bytes), bytes.len() - 4);
        bytes[start..stop].copy_from_slice(&ib);
        let ip = if bytes[12] == 0x81 { 18 } else { 14 };
        let icrc = icrc::compute(FrameBytes::from(&bytes[ip..stop])).unwrap();
        bytes[stop..].copy_from_slice(&icrc.to_le_bytes());
        bytes
    };
    outers().iter().map(of).collect()
}

/// The fields of docs/EXTENSIONS.md, and last the verdict on the ICRC.
const FIELDS: [&str; 19] = [
    "uroce.offer",
    "uroce.extended",
    "uroce.kind",
    "uroce.words",
    "uroce.index",
    "uroce.attempt",
    "uroce.receive_number",
    "uroce.reth.va",
    "uroce.reth.key",
    "uroce.reth.length",
    "uroce.sack.trigger",
    "uroce.sack.attempt",
    "uroce.sack.delay",
    "uroce.sack.marked",
    "uroce.sack.blocks",
    "uroce.sack.block.base",
    "uroce.sack.block.bits",
    "uroce.sack.block.received",
    "uroce.icrc",
];

/// Packets from the BTH up to the ICRC, laid out as the document says, and what the fields up to the last shall be.
const EXTENDED: [(&str, [&str; 18]); 10] = [
    // SEND_ONLY with AckReq and the offer.
    (
        "04 00 ffff 00 000011 c0 000001  01020304",
        ["1", "0", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", ""],
    ),
    // SEND_MIDDLE, five bytes and a pad of three: index, attempt, receive number.
    (
        "01 30 ffff 00 000011 60 00abcd  0102030405 000000  010203 07 0a0b0c 12",
        ["1", "1", "1", "2", "66051", "7", "658188", "", "", "", "", "", "", "", "", "", "", ""],
    ),
    // SEND_ONLY that carries an acknowledge: PSN, attempt, trigger, whether it was marked, delay, marked.
    (
        "04 00 ffff 00 000011 e0 00abcd  01020304  00000a 07 00000b 01 0102 0003  000000 00 0a0b0c 75",
        ["1", "1", "7", "5", "0", "0", "658188", "", "", "", "11", "7", "258", "3", "", "", "", ""],
    ),
    // WRITE_LAST without the offer: the RETH of the message goes first.
    (
        "08 00 ffff 00 000011 a0 fffffe  01020304  1122334455667788 99aabbcc 00010001 000002 ff 000005 16",
        [
            "0",
            "1",
            "1",
            "6",
            "2",
            "255",
            "5",
            "0x1122334455667788",
            "0x99aabbcc",
            "65537",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
        ],
    ),
    // WRITE_LAST with immediate, and no payload.
    (
        "09 00 ffff 00 000011 e0 000010  deadbeef  0000000000001000 00000007 80000000 ffffff 00 ffffff 16",
        [
            "1",
            "1",
            "1",
            "6",
            "16777215",
            "0",
            "16777215",
            "0x0000000000001000",
            "0x00000007",
            "2147483648",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
        ],
    ),
    // A READ request, whose own RETH is not the trailer's.
    (
        "0c 00 ffff 00 000011 e0 000011  0000000000002000 00000008 00001000  000000 01 000003 12",
        ["1", "1", "1", "2", "0", "1", "3", "", "", "", "", "", "", "", "", "", "", ""],
    ),
    // FETCH_ADD.
    (
        "14 00 ffff 00 000011 e0 000012  0000000000002000 00000008 0000000000000001 0000000000000000  000000 00 000004 12",
        ["1", "1", "1", "2", "0", "0", "4", "", "", "", "", "", "", "", "", "", "", ""],
    ),
    // ACKNOWLEDGE without a block.
    (
        "11 00 ffff 00 000012 60 000020  1f 000009  000021 02 ffff 0102 0000 00 20",
        ["1", "1", "2", "", "", "", "", "", "", "", "33", "2", "65535", "258", "0", "", "", ""],
    ),
    // Two blocks: one over the end of the PSNs, with the first and last bit; one in the middle of its bits.
    (
        "11 00 ffff 00 000012 60 fffff0  1f 000009  000003 00 0010 0000  \
         fffffe 00 8000000000000005  000064 00 00000001800000f0  0002 00 20",
        [
            "1",
            "1",
            "2",
            "",
            "",
            "",
            "",
            "",
            "",
            "",
            "3",
            "0",
            "16",
            "0",
            "2",
            "16777214,100",
            "0x8000000000000005,0x00000001800000f0",
            "16777214, 0, 61,104–107, 131–132",
        ],
    ),
    // A datagram has the same bits, which mean nothing there.
    ("64 00 ffff 00 000011 60 000001  11111111 00 000012  01020304", [""; 18]),
];

#[test]
fn every_field_of_the_extension_is_shown_and_nothing_is_malformed_without() {
    let file = scratch("extended.pcap");
    let frames: Vec<_> = EXTENDED.iter().flat_map(|(ib, _)| frames_around(ib)).collect();
    write(&file, frames.clone());
    let wrong =
        ["_ws.malformed", "_ws.lua.error", "uroce.icrc.wrong", "uroce.trailer.malformed", "uroce.trailer.misplaced"];
    let shown = tshark(&file, true, &[&FIELDS[..], &wrong].concat());
    assert_eq!(shown.len(), frames.len());
    for (fields, (ib, expected)) in shown.values().zip(EXTENDED.iter().flat_map(|packet| [packet; 4])) {
        assert_eq!(fields[..18], *expected, "{ib}");
        assert_eq!(fields[18], "ok", "{ib}");
        assert!(fields[19..].iter().all(String::is_empty), "{ib}: {:?}", &fields[19..]);
    }
    let stock = tshark(&file, false, &["_ws.malformed", "infiniband.bth.psn"]);
    assert_eq!(stock.len(), frames.len());
    for (fields, (ib, _)) in stock.values().zip(EXTENDED.iter().flat_map(|packet| [packet; 4])) {
        assert!(fields[0].is_empty(), "malformed: {ib}");
        assert!(!fields[1].is_empty(), "not dissected: {ib}");
    }
}

/// The trailers that tell of paths, and the flag of a selective acknowledge.
#[test]
fn probes_and_addresses_are_shown_and_nothing_is_malformed_without() {
    const SHOWN: [&str; 9] = [
        "uroce.kind",
        "uroce.sack.trigger_marked",
        "uroce.probe.path",
        "uroce.probe.answer",
        "uroce.probe.delay",
        "uroce.probe.token",
        "uroce.addresses.address",
        "uroce.addresses.known",
        "uroce.addresses.count",
    ];
    let packets: [(&str, [&str; 9]); 6] = [
        ("000021 02 ffff 0102 0000 01 20", ["2", "1", "", "", "", "", "", "", ""]),
        ("000021 02 ffff 0102 0000 00 20", ["2", "0", "", "", "", "", "", "", ""]),
        ("07 00 0000 deadbeef 000000 30", ["3", "", "7", "0", "0", "0xdeadbeef", "", "", ""]),
        ("ff 01 1234 00000001 000000 30", ["3", "", "255", "1", "4660", "0x00000001", "", "", ""]),
        ("00 00 00 40", ["4", "", "", "", "", "", "", "0", "0"]),
        (
            "00000000000000000000ffff0a000001 fd000000000000000000000000000001 01 00 02 40",
            ["4", "", "", "", "", "", "::ffff:10.0.0.1,fd00::1", "1", "2"],
        ),
    ];
    let file = scratch("paths.pcap");
    let frames =
        |(trailer, _): &(&str, _)| frames_around(&format!("11 00 ffff 00 000012 60 000020 1f 000009 {trailer}"));
    let all: Vec<_> = packets.iter().flat_map(frames).collect();
    write(&file, all.clone());
    let wrong =
        ["_ws.malformed", "_ws.lua.error", "uroce.icrc.wrong", "uroce.trailer.malformed", "uroce.trailer.misplaced"];
    let shown = tshark(&file, true, &[&SHOWN[..], &wrong].concat());
    assert_eq!(shown.len(), all.len());
    for (fields, (trailer, expected)) in shown.values().zip(packets.iter().flat_map(|packet| [packet; 4])) {
        assert_eq!(fields[..9], *expected, "{trailer}");
        assert!(fields[9..].iter().all(String::is_empty), "{trailer}: {:?}", &fields[9..]);
    }
    let stock = tshark(&file, false, &["_ws.malformed", "infiniband.bth.psn"]);
    assert_eq!(stock.len(), all.len());
    assert!(stock.values().all(|fields| fields[0].is_empty() && !fields[1].is_empty()), "{stock:?}");
}

/// Has tshark show these fields of packets, each given from the BTH up to the tag, with its own expectation. Neither with the
/// script nor without is anything wrong.
fn assert_shown<const N: usize>(name: &str, fields: &[&str; N], packets: &[(&str, [&str; N])]) {
    let file = scratch(&format!("{name}.pcap"));
    let all: Vec<_> = packets.iter().flat_map(|(ib, _)| frames_around(ib)).collect();
    write(&file, all.clone());
    let wrong =
        ["_ws.malformed", "_ws.lua.error", "uroce.icrc.wrong", "uroce.trailer.malformed", "uroce.trailer.misplaced"];
    let shown = tshark(&file, true, &[&fields[..], &wrong].concat());
    assert_eq!(shown.len(), all.len());
    for (found, (ib, expected)) in shown.values().zip(packets.iter().flat_map(|packet| [packet; 4])) {
        assert_eq!(found[..N], *expected, "{ib}");
        let rest = &found[N..];
        assert!(rest.iter().all(String::is_empty), "{ib}: {rest:?}");
    }
    let stock = tshark(&file, false, &["_ws.malformed", "infiniband.bth.psn"]);
    assert_eq!(stock.len(), all.len());
    assert!(stock.values().all(|fields| fields[0].is_empty() && !fields[1].is_empty()), "{stock:?}");
}

/// How peers get to know each other, and what has no trailer beside its tag: answers with data, refusals, plain acknowledges.
#[test]
fn hellos_and_tags_are_shown_and_nothing_is_malformed_without() {
    const SHOWN: [&str; 7] = [
        "uroce.tag",
        "uroce.kind",
        "uroce.hello.nonce",
        "uroce.hello.window",
        "uroce.hello.tags_from",
        "uroce.hello.knows",
        "uroce.hello.tags_all",
    ];
    const TAG: &str = "0x00001a2b";
    let packets = [
        (
            "11 00 ffff 00 000012 60 000020 1f 000009 01020304 000200 00abcd 01 50",
            [TAG, "5", "0x01020304", "512", "43981", "1", "0"],
        ),
        (
            "11 00 ffff 00 000012 60 000020 1f 000009 01020304 000200 000000 03 50",
            [TAG, "5", "0x01020304", "512", "0", "1", "1"],
        ),
        (
            "11 00 ffff 00 000012 60 000020 1f 000009 ffffffff ffffff 000000 00 50",
            [TAG, "5", "0xffffffff", "16777215", "0", "0", "0"],
        ),
        ("11 00 ffff 00 000012 60 000020 1f 000009", [TAG, "", "", "", "", "", ""]),
        ("11 00 ffff 00 000012 60 000020 62 000009", [TAG, "", "", "", "", "", ""]),
        ("0e 00 ffff 00 000012 60 000020 01020304 05060712", [TAG, "", "", "", "", "", ""]),
        ("0f 30 ffff 00 000012 60 000020 1f 000009 01000000", [TAG, "", "", "", "", "", ""]),
        ("12 00 ffff 00 000012 60 000020 1f 000009 0000000000000001", [TAG, "", "", "", "", "", ""]),
    ];
    assert_shown("hellos", &SHOWN, &packets);
}

/// What a requester reports of READ responses, and which copy each of them is.
#[test]
fn reports_of_answers_are_shown_and_nothing_is_malformed_without() {
    const SHOWN: [&str; 9] = [
        "uroce.tag",
        "uroce.kind",
        "uroce.copy",
        "uroce.answers.newest",
        "uroce.answers.newest_marked",
        "uroce.answers.copy",
        "uroce.answers.delay",
        "uroce.answers.marked",
        "uroce.answers.arrived",
    ];
    const TAG: &str = "0x00001a2b";
    let packets = [
        (
            "11 00 ffff 00 000012 60 000020 1f 000009 abcdef 99 ffff 1234 fffffe 60",
            [TAG, "6", "", "11259375", "1", "19", "65535", "4660", "16777214"],
        ),
        (
            "11 00 ffff 00 000012 60 000020 1f 000009 000001 00 0010 0000 000002 60",
            [TAG, "6", "", "1", "0", "0", "16", "0", "2"],
        ),
        ("0e 00 ffff 00 000012 f3 000020 01020304 05060712", [TAG, "", "19", "", "", "", "", "", ""]),
        ("0d 00 ffff 00 000012 60 000020 1f 000009 01020304", [TAG, "", "0", "", "", "", "", "", ""]),
    ];
    assert_shown("answers", &SHOWN, &packets);
}

/// What switches wrote: into a request, behind its own trailer, and in the acknowledge that returns it.
#[test]
fn telemetry_is_shown_and_nothing_is_malformed_without() {
    const SHOWN: [&str; 10] = [
        "uroce.tag",
        "uroce.kind",
        "uroce.index",
        "uroce.sack.trigger",
        "uroce.telemetry.rate",
        "uroce.telemetry.queue",
        "uroce.telemetry.time",
        "uroce.telemetry.sent",
        "uroce.telemetry.path",
        "uroce.telemetry.links",
    ];
    const TAG: &str = "0x00001a2b";
    let links = |count: usize| {
        let records = ["00fa 0100 000003e8 00001042", "03e8 ffff ffffffff 00000000"];
        let empty = "00".repeat(12 * (5 - count));
        format!("{} {empty} 00{} {count:02x} 80", records[..count].concat(), ["00", "01", "03"][count])
    };
    let request = format!("01 30 ffff 00 000011 60 00abcd 0102030405 000000 000002 00 000001 12 {}", links(0));
    let sack =
        |count| format!("11 00 ffff 00 000012 60 000020 1f 000009 000021 00 0000 0000 0000 00 20 {}", links(count));
    let packets = [
        (request, [TAG, "1,8", "2", "", "", "", "", "", "0x0000", "0"]),
        (sack(1), [TAG, "2,8", "", "33", "250", "256", "1000", "4162", "0x0001", "1"]),
        (sack(2), [TAG, "2,8", "", "33", "250,1000", "256,65535", "1000,4294967295", "4162,0", "0x0003", "2"]),
    ];
    assert_shown("telemetry", &SHOWN, &packets.each_ref().map(|(ib, expected)| (ib.as_str(), *expected)));
}

/// The BTH and DETH of a SEND of an unreliable datagram, with so many bytes of pad.
fn datagram_headers(pad: usize) -> String {
    format!("64 {pad}0 ffff 00 000012 00 000009 11111111 00 000007")
}

/// Every kind of datagram of deadline mode, and what a datagram that cannot be is said to be.
#[test]
fn datagrams_of_deadline_mode_are_shown() {
    const SHOWN: [&str; 12] = [
        "uroce.deadline.kind",
        "uroce.deadline.request",
        "uroce.deadline.version",
        "uroce.deadline.bytes",
        "uroce.deadline.left",
        "uroce.deadline.first",
        "uroce.deadline.count",
        "uroce.deadline.number",
        "uroce.deadline.symbol",
        "uroce.deadline.bits",
        "uroce.deadline.end",
        "uroce.deadline.refusal",
    ];
    const HEAD: &str = "75444c31";
    const ID: &str = "0x0102030405060708";
    let datagram = |kind: &str, rest: &str, pad: usize| {
        format!("{} {HEAD} {kind} 000000 0102030405060708 {rest} {}", datagram_headers(pad), "00".repeat(pad))
    };
    let request = "0000000000000005 0000000000000009 0000000000100000 00010000 0fc0 0028 000003e8 00 01 0002 \
                   00000009 00000002 00000000 00000003";
    let report = "00000001 000000ff 00000011 00000004 0002 0001 00000000 00000010 00000002 00000005 00000001 \
                  00000000 8000000000000003";
    let refusal = "02 000000 00010000 0000000000000007 0000000000000100";
    let packets = [
        (datagram("01", request, 0), ["1", ID, "9", "1048576", "1000", "9,0", "2,3", "", "", "", "", ""]),
        (
            datagram("02", "0000000000000009 00000007 00000003 00000102 01020304 aabbcc", 1),
            ["2", ID, "9", "", "", "", "", "7", "258", "", "", ""],
        ),
        (datagram("03", report, 0), ["3", ID, "", "", "255", "16,5", "2,1", "", "", "0x8000000000000003", "", ""]),
        (datagram("04", "03000000", 0), ["4", ID, "", "", "", "", "", "", "", "", "3", ""]),
        (datagram("05", refusal, 0), ["5", ID, "7", "256", "", "", "", "", "", "", "", "2"]),
        (datagram("06", "", 0), ["6", ID, "", "", "", "", "", "", "", "", "", ""]),
        (format!("{} 75444c32 06 000000 0102030405060708", datagram_headers(0)), [""; 12]),
    ];
    let packets: Vec<_> = packets.iter().map(|(ib, expected)| (ib.as_str(), *expected)).collect();
    assert_shown("deadline", &SHOWN, &packets);

    let file = scratch("deadline-malformed.pcap");
    let malformed = [datagram("06", "00000000", 0), datagram("01", "00000000", 0), datagram("07", "", 0)];
    write(&file, malformed.iter().flat_map(|ib| frames_around(ib)));
    let shown = tshark(&file, true, &["uroce.deadline.malformed", "uroce.deadline.request", "_ws.lua.error"]);
    assert_eq!(shown.len(), 12);
    assert!(shown.values().all(|fields| fields[0] == "1" && fields[1] == ID && fields[2].is_empty()), "{shown:?}");
}

/// The first frames of a transfer over 16 paths that lose: all is understood, with the script and without.
#[test]
fn a_sprayed_and_lossy_capture_is_understood() {
    let file = scratch("sprayed.pcap");
    let run = Command::new(env!("CARGO_BIN_EXE_uroce"))
        .args(["sim", "paths", "--only", "op=send,loss=0.001", "--capture-frames", "40000", "--capture"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let fields = ["uroce.kind", "uroce.icrc", "udp.srcport", "uroce.attempt"];
    let wrong =
        ["_ws.malformed", "_ws.lua.error", "uroce.icrc.wrong", "uroce.trailer.malformed", "uroce.trailer.misplaced"];
    let shown = tshark(&file, true, &[&fields[..], &wrong].concat());
    assert_eq!(shown.len(), 40_000);
    for (frame, fields) in &shown {
        assert_eq!(fields[1], "ok", "frame {frame}");
        assert!(fields[4..].iter().all(String::is_empty), "frame {frame}: {:?}", &fields[4..]);
    }
    let of_kind = |kind: &str| shown.values().filter(|fields| fields[0] == kind).count();
    assert!(
        of_kind("1") > 10_000 && of_kind("2") > 500 && of_kind("3") > 100,
        "{} {} {}",
        of_kind("1"),
        of_kind("2"),
        of_kind("3")
    );
    let ports: std::collections::BTreeSet<_> = shown.values().map(|fields| fields[2].clone()).collect();
    assert_eq!(ports.len(), 16);
    assert!(shown.values().any(|fields| fields[3] == "1"), "nothing was sent again");
    let stock = tshark(&file, false, &["_ws.malformed", "infiniband.bth.psn"]);
    assert_eq!(stock.len(), 40_000);
    assert!(stock.values().all(|fields| fields[0].is_empty() && !fields[1].is_empty()));
}

/// Real frames over two interfaces and eight paths that lose, from the capture that a program took: the script and `uroce decode`
/// are of one mind, all is understood, with the script and without; rails were told, and paths were probed.
#[test]
fn a_sprayed_and_lossy_transfer_of_real_frames_is_understood() {
    let pair = VethPair::create(4500).unwrap();
    pair.second_cable(4500).unwrap();
    let file = scratch("sprayed-real.pcap");
    let words = ["perf", "write-bw", "-n", "400", "-u", "17", "--rate", "300M", "--paths", "8"];
    let fault = ["--fault", "loss=0.02,seed=5"];
    let server = uroce(&pair.a, &[&words[..], &fault, &["-d", "uroce0,uroce2"]].concat());
    wait_for_listener(&pair.a, 18515);
    let (host, capture) = (VethPair::A.ipv4.to_string(), file.to_str().unwrap());
    let more = ["-d", "uroce1,uroce3", "--capture", capture, host.as_str()];
    let client = uroce(&pair.b, &[&words[..], &more].concat());
    let _ = [client.end(), server.end()].map(Ended::succeeded);

    let verdicts = verdicts(&file);
    assert_eq!(verdicts.keys().collect::<Vec<_>>(), ["ok"], "{verdicts:?}");
    let fields = ["uroce.kind", "uroce.attempt", "ip.src", "udp.srcport"];
    let wrong =
        ["_ws.malformed", "_ws.lua.error", "uroce.icrc.wrong", "uroce.trailer.malformed", "uroce.trailer.misplaced"];
    let shown = tshark(&file, true, &[&fields[..], &wrong].concat());
    for (frame, fields) in &shown {
        assert!(fields[4..].iter().all(String::is_empty), "frame {frame}: {:?}", &fields[4..]);
    }
    for kind in ["1", "2", "3", "4", "5"] {
        assert!(shown.values().any(|fields| fields[0] == kind), "no trailer of kind {kind}");
    }
    assert!(shown.values().any(|fields| fields[1] == "1"), "nothing was sent again");
    let ways: std::collections::BTreeSet<_> =
        shown.values().filter(|fields| fields[0] == "1").map(|fields| (&fields[2], &fields[3])).collect();
    assert_eq!(ways.len(), 8, "{ways:?}");
    let stock = tshark(&file, false, &["_ws.malformed", "infiniband.bth.psn"]);
    assert_eq!(stock.len(), shown.len());
    assert!(stock.values().all(|fields| fields[0].is_empty() && !fields[1].is_empty()));
}

/// Packets with trailers that cannot be, and ones in a place that the document does not name.
#[test]
fn trailers_that_cannot_be_are_malformed_and_those_in_a_strange_place_are_told() {
    let send = |trailer: &str| format!("04 00 ffff 00 000011 60 000001 {trailer}");
    let acknowledge = |trailer: &str| format!("11 00 ffff 00 000012 60 000020 1f 000009 {trailer}");
    let zeros = |bytes: usize| "00".repeat(bytes);
    let mut packets = Vec::new();
    // No such kind, and no such length of kinds 1 and 7.
    for last in (0..=255_u8).filter(|last| ![0x12, 0x16, 0x20, 0x30, 0x40, 0x50, 0x60, 0x75].contains(last)) {
        packets.push((send(&format!("{} {last:02x}", zeros(63))), true));
    }
    for (ib, is_malformed) in [
        (send(""), true),
        (send(&format!("{} 12", zeros(7))), false),
        // Telemetry: behind its trailer, of up to five links.
        (send(&format!("{} 12 {} 05 80", zeros(7), zeros(62))), false),
        (send(&format!("{} 12 {} 06 80", zeros(7), zeros(62))), true),
        (send(&format!("{} 12 {} 00 80", zeros(7), zeros(58))), true),
        (send("000000 12"), true),
        (send(&format!("{} 75", zeros(19))), false),
        (send(&format!("{} 75", zeros(15))), true),
        (acknowledge(&format!("{} 20", zeros(7))), true),
        (acknowledge(&format!("{} 0001 00 20", zeros(20))), false),
        (acknowledge(&format!("{} 0001 00 20", zeros(16))), true),
        (acknowledge(&format!("{} 0001 00 20", zeros(24))), true),
        (acknowledge(&format!("{} ffff 00 20", zeros(200))), true),
        (acknowledge(&format!("{} 30", zeros(11))), false),
        (acknowledge(&format!("{} 30", zeros(7))), true),
        (acknowledge(&format!("{} 30", zeros(15))), true),
        (acknowledge("0000 00 40"), false),
        (acknowledge(&format!("{} 50", zeros(11))), false),
        (acknowledge(&format!("{} 50", zeros(7))), true),
        (acknowledge(&format!("{} 50", zeros(15))), true),
        (acknowledge(&format!("{} 60", zeros(11))), false),
        (acknowledge(&format!("{} 60", zeros(7))), true),
        (acknowledge(&format!("{} 0000 07 40", zeros(112))), false),
        (acknowledge(&format!("{} 0000 08 40", zeros(128))), true),
        (acknowledge(&format!("{} 0000 02 40", zeros(16))), true),
        (acknowledge(&format!("{} 0000 00 40", zeros(16))), true),
        // Its headers leave no room: the RETH of a WRITE, the pad.
        (format!("06 00 ffff 00 000011 60 000001 {} 12", zeros(15)), true),
        (format!("01 30 ffff 00 000011 60 000001 {} 12", zeros(7)), true),
        (format!("07 00 ffff 00 000011 60 000001 {} 16", zeros(19)), true),
        (format!("07 00 ffff 00 000011 60 000001 {} 16", zeros(23)), false),
    ] {
        packets.push((ib, is_malformed));
    }
    let file = scratch("malformed.pcap");
    write(&file, packets.iter().flat_map(|(ib, _)| frames_around(ib)));
    let shown = tshark(&file, true, &["uroce.trailer.malformed", "uroce.kind", "_ws.lua.error"]);
    for (fields, (ib, is_malformed)) in shown.values().zip(packets.iter().flat_map(|packet| [packet; 4])) {
        let is_shown = !fields[1].is_empty();
        assert_eq!((!fields[0].is_empty(), is_shown), (*is_malformed, !is_malformed), "{ib}: {fields:?}");
        assert_eq!(fields[2], "", "{ib}");
    }

    // Sound ones, but this opcode has none, or one of the other length.
    let strange = [
        format!("11 00 ffff 00 000012 60 000020 1f 000009 {} 12", zeros(7)),
        format!("04 00 ffff 00 000011 60 000001 {} 20", zeros(11)),
        format!("04 00 ffff 00 000011 60 000001 {} 50", zeros(11)),
        format!("04 00 ffff 00 000011 60 000001 {} 60", zeros(11)),
        format!("08 00 ffff 00 000011 60 000001 {} 12", zeros(7)),
        format!("08 00 ffff 00 000011 60 000001 {} 75", zeros(19)),
        format!("04 00 ffff 00 000011 60 000001 {} 16", zeros(23)),
        format!("04 00 ffff 00 000011 60 000001 {} 30", zeros(11)),
        format!("0a 00 ffff 00 000011 60 000001 {} 40", zeros(19)),
        format!("11 00 ffff 00 000012 60 000020 1f 000009 {} 30 {} 00 80", zeros(11), zeros(62)),
    ];
    let file = scratch("strange.pcap");
    write(&file, strange.iter().flat_map(|ib| frames_around(ib)));
    let shown = tshark(&file, true, &["uroce.trailer.misplaced", "uroce.trailer.malformed"]);
    assert!(shown.values().all(|fields| !fields[0].is_empty() && fields[1].is_empty()), "{shown:?}");
    assert_eq!(shown.len(), 4 * strange.len());
}

/// A CNP is named, and its ICRC checked; one of another length is malformed. Stock tshark knows no CNPs, and finds nothing
/// malformed in them.
#[test]
fn congestion_notifications_are_named() {
    let cnp = |bytes: usize| format!("81 00 ffff 40 123456 00 000000 {}", "00".repeat(bytes));
    let file = scratch("cnp.pcap");
    write(&file, [16, 12, 20].iter().flat_map(|bytes| frames_around(&cnp(*bytes))));
    assert_eq!(verdicts(&file), [("ok".to_owned(), 12)].into());
    let shown = tshark(&file, true, &["uroce.cnp", "uroce.cnp.malformed", "_ws.malformed", "_ws.lua.error"]);
    for (frame, fields) in &shown {
        let is_whole = *frame <= 4;
        assert!(matches!(fields[0].as_str(), "1" | "True"), "frame {frame}: {fields:?}");
        assert_eq!(fields[1].is_empty(), is_whole, "frame {frame}: {fields:?}");
        assert_eq!(fields[3], "");
    }
    assert_eq!(shown.len(), 12);
    let stock = tshark(&file, false, &["_ws.malformed"]);
    assert!(stock.values().take(4).all(|fields| fields[0].is_empty()), "{stock:?}");
    // An ordinary packet is none.
    let other = scratch("no-cnp.pcap");
    write(&other, frames_around("04 00 ffff 00 000011 00 000001"));
    assert!(tshark(&other, true, &["uroce.cnp"]).values().all(|fields| fields[0].is_empty()));
}

/// Frames cut off anywhere by a snap length, packets cut short anywhere with lengths that agree, and nonsense: the script
/// never fails, and its verdict on the ICRC is that of `uroce decode`.
#[test]
fn nothing_makes_the_script_fail() {
    let whole: Vec<_> = EXTENDED.iter().flat_map(|(ib, _)| frames_around(ib)).collect();
    let cut = scratch("cut.pcap");
    write_cut(&cut, whole.iter().flat_map(|frame| (0..=frame.len()).map(|captured| (frame.clone(), captured))));
    let count = verdicts(&cut);
    assert_eq!(count["ok"], whole.len());
    assert!(count["absent"] > 1000 && !count.contains_key("bad"), "{count:?}");
    // What was cut off is said to be, and is not shown.
    let shown = tshark(&cut, true, &["uroce.extended", "uroce.kind", "uroce.trailer.cut", "uroce.trailer.malformed"]);
    assert!(shown.values().filter(|fields| fields[2] == "1").count() > 500);
    for (frame, fields) in &shown {
        let expected = if fields[0] == "1" { 1 } else { 0 };
        assert_eq!(
            usize::from(!fields[1].is_empty()) + usize::from(fields[2] == "1"),
            expected,
            "frame {frame}: {fields:?}"
        );
        assert_eq!(fields[3], "", "frame {frame}");
    }

    // The same packets, shorter at their end by any number of bytes, with lengths that agree.
    let short = scratch("short.pcap");
    let shortened = whole.iter().flat_map(|frame| (ib_start(frame)..frame.len()).map(|bytes| shortened(frame, bytes)));
    write(&short, shortened);
    let count = verdicts(&short);
    assert!(count["bad"] > 500 && count["absent"] == 16 * whole.len(), "{count:?}");

    // Right outer headers around nonsense.
    let nonsense = scratch("nonsense.pcap");
    let random = |number: usize| {
        let bytes = 12 + scatter(number) % 25 * 4;
        let mut ib: Vec<u8> = (0..bytes).map(|at| scatter(number * 1000 + at) as u8).collect();
        // An RC packet with the extended bit, most often with a last byte that makes sense.
        ib[0] &= 0x1f;
        ib[8] |= 0x20;
        if let Some(last) = ib[12..].last_mut() {
            *last = [0x12, 0x16, 0x20, *last][number % 4];
        }
        ib.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    write(&nonsense, (0..1000).flat_map(|number| frames_around(&random(number))));
    let count = verdicts(&nonsense);
    assert_eq!(count.into_iter().collect::<Vec<_>>(), [("ok".to_owned(), 4000)]);
}

/// Wireshark 4.0 has Lua 5.2, and from 4.4 on Lua 5.4, whose bit operations differ. Both find the same, in what is right, in
/// what is damaged, and in every trailer.
#[test]
fn each_version_of_lua_finds_the_same() {
    let mut frames: Vec<Vec<u8>> = kernel_frames().into_iter().step_by(40).collect();
    let damaged = frames.clone().into_iter().enumerate().map(|(number, mut frame)| {
        let start = ib_start(&frame).min(frame.len() - 1);
        let at = start + scatter(number) % (frame.len() - start);
        frame[at] ^= 1 << (number % 8);
        frame
    });
    frames.extend(damaged.collect::<Vec<_>>());
    frames.extend(EXTENDED.iter().flat_map(|(ib, _)| frames_around(ib)));
    let file = scratch("frames.hex");
    let digits = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    std::fs::write(&file, frames.iter().map(digits).collect::<String>()).unwrap();
    let stub = Path::new(SCRIPT).with_file_name("stub.lua");
    let [old, new] = ["lua5.2", "lua5.4"].map(|lua| {
        let output = Command::new(lua).arg(&stub).arg(&file).output();
        let output = output.unwrap_or_else(|e| panic!("{lua}: {e}; `cargo xtask setup` installs it"));
        assert!(output.status.success(), "{lua}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    });
    assert_eq!(old, new);
    for words in ["icrc=ok", "icrc=bad", "index=010203", "block.received=16777214, 0, 61", "tag=00001a2b"] {
        assert!(old.contains(words), "no {words} in {old}");
    }
}

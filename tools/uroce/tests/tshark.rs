//! What `uroce decode` says about every packet of every capture is what tshark says, field by field; nobody calls any
//! malformed; and every ICRC verdict is scapy's, and that of a computation written down apart.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::captures::{scratch, write_capture};
use uroce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Deth, Extension, Headers, Ieth, ImmDt, Key, Msn, Opcode, PKey, Psn, QKey,
    Qpn, Reth, Syndrome,
};
use uroce_verify::{Tools, Verdict, verify};

fn tools() -> Tools {
    let target = Path::new(env!("CARGO_BIN_EXE_uroce")).parent().and_then(Path::parent).unwrap();
    Tools::find(env!("CARGO_BIN_EXE_uroce").into(), target).unwrap_or_else(|error| panic!("{error}"))
}

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/rxe-6.1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap"));
    files.sort();
    files
}

#[test]
fn every_packet_of_the_kernels_captures_is_what_tshark_and_scapy_say() {
    let tools = tools();
    let captures = captures();
    assert_eq!(captures.len(), 44);
    let (mut packets, mut fields) = (0, 0);
    for capture in captures {
        let verdict = verify(&tools, &capture).unwrap_or_else(|error| panic!("{error}"));
        assert!(verdict.is_clean(), "{}: {verdict:#?}", capture.display());
        packets += verdict.packets;
        fields += verdict.fields;
    }
    println!("{packets} packets, {fields} fields");
    assert_eq!(packets, 3322);
}

/// One packet of every kind that the stack can write, over IPv4 and IPv6, with and without a VLAN tag, to pcap and pcapng.
#[test]
fn every_packet_that_we_can_write_is_what_tshark_and_scapy_say() {
    let reth = Reth::new(0x1122_3344_5566_7788, Key(0x99aa_bbcc), 4097);
    let (aeth, imm) = (Aeth::new(Syndrome::ACK, Msn::new(0x123456)), ImmDt::new(0xdead_beef));
    let deth = Deth::new(QKey(0x1111_1111), Qpn::new(0xabcdef));
    let mut packets = Vec::new();
    // tshark 4.0 knows neither CNPs nor what came with IBTA 1.5.
    let unknown = [Opcode::CNP, Opcode::RC_FLUSH, Opcode::RC_ATOMIC_WRITE];
    for opcode in (0..=255).map(Opcode).filter(|opcode| opcode.is_known() && !unknown.contains(opcode)) {
        let extension = match (opcode.extension_bytes(), opcode.has_immediate(), opcode.has_invalidate()) {
            (0, ..) => Extension::None,
            (4, true, _) => Extension::ImmDt(imm),
            (4, _, true) => Extension::Ieth(Ieth::new(Key(7))),
            (4, ..) => Extension::Aeth(aeth),
            (8, ..) => Extension::Deth(deth),
            (12, true, _) => Extension::DethImmDt(deth, imm),
            (12, ..) => Extension::AethAtomicAck(aeth, AtomicAckEth::new(u64::MAX - 1)),
            (16, ..) => Extension::Reth(reth),
            (20, ..) => Extension::RethImmDt(reth, imm),
            (28, ..) => Extension::Atomic(AtomicEth::new(8, Key(9), u64::MAX, 1 << 63)),
            other => panic!("{opcode}: {other:?}"),
        };
        let bth = Bth::new(opcode, Qpn::new(0xfedcba), Psn::new(0x00ff_ffff));
        let payloads: &[usize] = if opcode.may_have_payload() { &[0, 1, 2, 3, 1024] } else { &[0] };
        for &payload in payloads {
            packets.push((bth, extension, payload));
            let unusual = bth.with_solicited(true).with_mig_req(false).with_ack_request(true).with_p_key(PKey(0x7fff));
            packets.push((unusual.with_becn(true), extension, payload));
        }
    }
    let tools = tools();
    for name in ["written.pcap", "written.pcapng"] {
        let file = scratch(name);
        let count = write_capture(&file, &packets);
        let verdict = verify(&tools, &file).unwrap_or_else(|error| panic!("{error}"));
        assert!(verdict.is_clean(), "{verdict:#?}");
        assert_eq!(verdict.packets, count);
    }
}

/// A CNP as we write it: scapy names it, tshark finds nothing malformed, and nobody doubts its ICRC. tshark 4.0 shows its
/// reserved bytes as payload.
#[test]
fn a_congestion_notification_is_what_tshark_and_scapy_say() {
    let tools = tools();
    let file = scratch("cnp.pcap");
    let Headers { bth, extension } = Cnp { destination: Qpn::new(0xfedcba) }.headers();
    let count = write_capture(&file, &[(bth, extension, Cnp::RESERVED_BYTES)]);
    let verdict = verify(&tools, &file).unwrap_or_else(|error| panic!("{error}"));
    assert!(verdict.is_clean(), "{verdict:#?}");
    assert_eq!((verdict.packets, verdict.icrc_ok), (count, count));
    let script = "import sys; from scapy.all import rdpcap; from scapy.contrib.roce import BTH, CNPPadding\n\
                  for p in rdpcap(sys.argv[1]): print(p[BTH].sprintf('%BTH.opcode% %BTH.becn%'), CNPPadding in p)";
    let output = Command::new(&tools.python).args(["-c", script]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().collect::<Vec<_>>(), vec!["CNP 1 True"; count], "{output:?}");
}

/// The comparison finds what is wrong: a flipped bit makes all three say that the ICRC is bad.
#[test]
fn a_wrong_icrc_is_everybodys_verdict() {
    let file = scratch("flipped.pcap");
    let packets =
        [1024, 5].map(|payload| (Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(1), Psn::new(2)), Extension::None, payload));
    let count = write_capture(&file, &packets);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let Verdict { packets, icrc_ok, differences, .. } = verify(&tools(), &file).unwrap();
    assert_eq!((packets, icrc_ok, differences), (count, count - 1, vec![]));
}

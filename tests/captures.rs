//! Every RoCE frame of every capture of a real peer reads, writes back to the same bytes and has a right ICRC; flipped bits
//! and truncations are found, and nothing panics.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use uroce::frame::FrameBytes;
use uroce::pcap::{CapturedFrame, Reader};
use uroce::wire::{Opcode, Packet, RoceFrame};
use uroce_laboratory::dissection::{Dissection, Icrc};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rxe-6.1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap"));
    files.sort();
    files
}

/// Every frame to UDP port 4791, with the name of its file.
fn roce_frames() -> impl Iterator<Item = (String, CapturedFrame)> {
    captures().into_iter().flat_map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let frames = Reader::open(&path).unwrap().map(|frame| frame.unwrap());
        frames
            .filter(|frame| Dissection::of(&frame.bytes, frame.bytes.len()).is_some())
            .map(move |frame| (name.clone(), frame))
    })
}

/// Three frames of each opcode and family, the shortest first in their file order.
fn sample() -> Vec<(String, CapturedFrame)> {
    const EACH: usize = 3;
    let mut taken: BTreeMap<(u8, usize), usize> = BTreeMap::new();
    roce_frames()
        .filter(|(_, frame)| {
            let roce = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])).unwrap();
            let opcode = Packet::parse(roce.ib).unwrap().bth().opcode();
            let count = taken.entry((opcode.0, roce.flow().header_bytes())).or_default();
            *count += 1;
            *count <= EACH
        })
        .collect()
}

#[test]
fn every_frame_reads_and_writes_back_to_the_same_bytes() {
    let mut opcodes: BTreeMap<String, usize> = BTreeMap::new();
    for (name, frame) in roce_frames() {
        let at = format!("{name} frame {}", frame.number);
        let dissection = Dissection::of(&frame.bytes, frame.bytes.len()).unwrap();
        assert_eq!((dissection.icrc, dissection.malformed), (Icrc::Ok, None), "{at}");
        let (roce, packet) = (dissection.frame.unwrap(), dissection.packet.unwrap());
        assert!(roce.ip.checksum_ok(), "{at}");

        let ip_start = if roce.vlan.is_some() { 18 } else { 14 };
        let mut again = frame.bytes.clone();
        again[ip_start..].fill(0xee);
        let payload = packet.payload().to_vec();
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(&payload);
            Ok::<_, Infallible>(())
        };
        let id = roce.ip.identification().unwrap_or(0);
        let len = packet.headers().write(&mut again[ip_start..], &roce.flow(), id, payload.len(), fill).unwrap();
        assert_eq!((ip_start + len, &again), (frame.bytes.len(), &frame.bytes), "{at}");
        *opcodes.entry(packet.bth().opcode().to_string()).or_default() += 1;
    }
    // As another program counted them when the captures were taken.
    let expected = [
        ("RC_ACKNOWLEDGE", 735),
        ("RC_ATOMIC_ACKNOWLEDGE", 119),
        ("RC_COMPARE_SWAP", 30),
        ("RC_FETCH_ADD", 92),
        ("RC_RDMA_READ_REQUEST", 111),
        ("RC_RDMA_READ_RESPONSE_FIRST", 63),
        ("RC_RDMA_READ_RESPONSE_LAST", 67),
        ("RC_RDMA_READ_RESPONSE_MIDDLE", 307),
        ("RC_RDMA_READ_RESPONSE_ONLY", 40),
        ("RC_RDMA_WRITE_FIRST", 86),
        ("RC_RDMA_WRITE_LAST", 86),
        ("RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", 2),
        ("RC_RDMA_WRITE_MIDDLE", 369),
        ("RC_RDMA_WRITE_ONLY", 122),
        ("RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", 2),
        ("RC_SEND_FIRST", 115),
        ("RC_SEND_LAST", 114),
        ("RC_SEND_LAST_WITH_IMMEDIATE", 1),
        ("RC_SEND_MIDDLE", 245),
        ("RC_SEND_ONLY", 417),
        ("RC_SEND_ONLY_WITH_IMMEDIATE", 4),
        ("RC_SEND_ONLY_WITH_INVALIDATE", 2),
        ("UC_RDMA_WRITE_FIRST", 31),
        ("UC_RDMA_WRITE_LAST", 31),
        ("UC_RDMA_WRITE_MIDDLE", 61),
        ("UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", 1),
        ("UC_SEND_FIRST", 2),
        ("UC_SEND_LAST", 1),
        ("UC_SEND_LAST_WITH_IMMEDIATE", 1),
        ("UC_SEND_MIDDLE", 2),
        ("UC_SEND_ONLY", 1),
        ("UD_SEND_ONLY", 59),
        ("UD_SEND_ONLY_WITH_IMMEDIATE", 3),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(opcodes, expected);
    assert_eq!(opcodes.values().sum::<usize>(), 3322);
}

/// All bits from the IP header on, of three frames of each opcode and family.
#[test]
fn a_flipped_bit_anywhere_under_the_icrc_is_found() {
    let mut flips = 0;
    for (name, frame) in sample() {
        let good = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])).unwrap();
        let is_v6 = good.flow().header_bytes() == 48;
        let udp = 14 + if is_v6 { 40 } else { 20 };
        // Bits that routers may change. A wrong IPv4 header checksum is found by other means.
        let is_uncovered = |byte: usize, bit: u8| match byte - 14 {
            0 => is_v6 && bit < 4,
            1 => true,
            2 | 3 | 7 if is_v6 => true,
            8 | 10 | 11 if !is_v6 => true,
            _ => byte == udp + 6 || byte == udp + 7 || byte == udp + 8 + 4,
        };
        let mut bytes = frame.bytes.clone();
        for byte in 14..bytes.len() {
            for bit in 0..8 {
                bytes[byte] ^= 1 << bit;
                let dissection = Dissection::of(&bytes, bytes.len());
                // No RoCE frame any more, or one whose lengths contradict each other, or a wrong ICRC.
                let is_found = dissection.as_ref().is_none_or(|d| d.icrc != Icrc::Ok);
                assert_eq!(is_found, !is_uncovered(byte, bit), "{name} frame {} byte {byte} bit {bit}", frame.number);
                let is_checksummed = !is_v6 && byte < udp;
                assert!(!is_checksummed || dissection.is_none_or(|d| !d.is_sound()), "{name} byte {byte} bit {bit}");
                bytes[byte] ^= 1 << bit;
                flips += 1;
            }
        }
    }
    println!("{flips} flips");
    assert!(flips > 100_000);
}

#[test]
fn every_truncation_is_an_error_and_a_snapped_frame_has_no_icrc() {
    for (name, frame) in sample() {
        for len in 0..frame.bytes.len() {
            let cut = FrameBytes::from(&frame.bytes[..len]);
            assert!(RoceFrame::parse(cut).is_err(), "{name} frame {} of {len} bytes", frame.number);
            let alone = Dissection::of(&frame.bytes[..len], len);
            assert!(alone.is_none_or(|d| d.malformed.is_some() && d.icrc == Icrc::Absent), "{name} {len}");

            // The same cut by a snap length: what is there is read, and nothing is held against it.
            let snapped = CapturedFrame { bytes: frame.bytes[..len].to_vec(), ..frame.clone() };
            let padded = snapped.padded();
            let Some(dissection) = Dissection::of(&padded, len) else { continue };
            assert_eq!((dissection.icrc, dissection.malformed), (Icrc::Absent, None), "{name} {len}");
            let whole = Dissection::of(&frame.bytes, frame.bytes.len()).unwrap();
            assert!(dissection.bth.is_none_or(|bth| Some(bth) == whole.bth));
            let headers = |d: &Dissection<'_>| d.packet.map(|p| (p.headers(), p.payload().len()));
            assert!(dissection.packet.is_none() || headers(&dissection) == headers(&whole), "{name} {len}");
        }
    }
}

#[test]
fn the_sample_has_every_opcode_that_the_kernel_sends() {
    let mut opcodes: Vec<_> = sample()
        .iter()
        .map(|(_, frame)| {
            let roce = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])).unwrap();
            Packet::parse(roce.ib).unwrap().bth().opcode()
        })
        .collect();
    opcodes.sort_by_key(|opcode| opcode.0);
    opcodes.dedup();
    let missing: Vec<_> =
        (0..=255).map(Opcode).filter(|opcode| opcode.is_known() && !opcodes.contains(opcode)).collect();
    let names: Vec<_> = missing.iter().map(Opcode::to_string).collect();
    println!("{} opcodes; not in the captures: {names:?}", opcodes.len());
    assert!(opcodes.len() >= 30, "{names:?}");
}

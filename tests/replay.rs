//! Captures of the kernel's rxe drive our responder and our requester: what they say is what the kernel said, or the
//! difference is one that docs/INTEROP.md explains. Captures of our own replay without any. Altered captures differ, at
//! the frame that was altered.

mod common;

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use common::pair::{Faults, Pair};
use uroce::frame::FrameBytes;
use uroce::pcap::{CapturedFrame, Reader};
use uroce::replay::{ReplayError, Report, Roles, replay};
use uroce::time::Duration;
use uroce::wire::{
    Aeth, AtomicAckEth, Bth, Extension, Headers, Msn, NakCode, Packet, PathMtu, Psn, RoceFrame, Syndrome,
};

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures/rxe-6.1");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap"));
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Vec<CapturedFrame> {
    Reader::open(path).unwrap().map(|frame| frame.unwrap()).collect()
}

fn capture(name: &str) -> Vec<CapturedFrame> {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("captures/rxe-6.1/{name}.pcap")))
}

fn packet(frame: &CapturedFrame) -> Option<Packet<'_>> {
    Packet::parse(RoceFrame::parse(FrameBytes::from(&frame.bytes[..])).ok()?.ib).ok()
}

/// The places of all answers of reliable connections.
fn answers(frames: &[CapturedFrame]) -> Vec<usize> {
    let is_answer = |frame: &CapturedFrame| packet(frame).is_some_and(|packet| packet.bth().opcode().is_response());
    (0..frames.len()).filter(|&index| is_answer(&frames[index])).collect()
}

/// Writes a frame anew, with a right ICRC.
fn rewrite(frame: &mut CapturedFrame, change: impl FnOnce(&mut Headers, &mut Vec<u8>)) {
    let roce = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])).unwrap();
    let packet = Packet::parse(roce.ib).unwrap();
    let (mut headers, mut payload) = (packet.headers(), packet.payload().to_vec());
    change(&mut headers, &mut payload);
    let mut bytes = frame.bytes[..14].to_vec();
    bytes.resize(14 + payload.len() + 256, 0);
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(&payload);
        Ok::<_, Infallible>(())
    };
    let id = roce.ip.identification().unwrap_or(0);
    let len = headers.write(&mut bytes[14..], &roce.flow(), id, payload.len(), fill).unwrap();
    bytes.truncate(14 + len);
    (frame.original_bytes, frame.bytes) = (bytes.len(), bytes);
}

fn with_aeth(headers: &mut Headers, change: impl FnOnce(Syndrome, Msn) -> Aeth) {
    match &mut headers.extension {
        Extension::Aeth(aeth) | Extension::AethAtomicAck(aeth, _) => *aeth = change(aeth.syndrome(), aeth.msn()),
        _ => panic!("no AETH"),
    }
}

fn with_psn(headers: &mut Headers, psn: Psn) {
    let bth = headers.bth;
    headers.bth = Bth::new(bth.opcode(), bth.destination(), psn)
        .with_mig_req(bth.mig_req())
        .with_ack_request(bth.ack_request())
        .with_solicited(bth.solicited());
}

/// Captures with reliable connections, and each of their answers: the capture as altered by `alter`, unless it says that
/// there is nothing to alter, must differ at that frame. Returns how many were altered and how many found.
fn alter_each(alter: impl Fn(&mut Headers, &mut Vec<u8>) -> bool) -> (usize, Vec<String>) {
    let (mut altered, mut missed) = (0, Vec::new());
    for path in captures() {
        let frames = read(&path);
        for index in answers(&frames) {
            let mut frames = frames.clone();
            let mut applies = false;
            rewrite(&mut frames[index], |headers, payload| applies = alter(headers, payload));
            if !applies {
                continue;
            }
            altered += 1;
            let report = replay(&frames, Roles::Responder).unwrap();
            let number = frames[index].number;
            if !report.different.iter().any(|finding| finding.frame == number) {
                missed.push(format!("{} {number}", name(&path)));
            }
        }
    }
    (altered, missed)
}

fn figures(report: &Report) -> [u64; 4] {
    [report.compared, report.equal, report.explained.len() as u64, report.different.len() as u64]
}

#[test]
fn every_answer_and_every_request_of_the_kernel_is_ours_or_the_difference_is_explained() {
    let mut explained = Vec::new();
    let (mut responder, mut requester) = ([0; 4], [0; 4]);
    for path in captures() {
        for (roles, sum) in [(Roles::Responder, &mut responder), (Roles::Requester, &mut requester)] {
            let report = replay(&read(&path), roles).unwrap();
            let figures = figures(&report);
            println!("{} {roles:?}: {figures:?}", name(&path));
            assert_eq!(report.different, [], "{} {roles:?}", name(&path));
            assert_eq!(figures[0], figures[1] + figures[2] + figures[3]);
            sum.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += figure);
            explained.extend(report.explained.iter().map(|f| format!("{} frame {}: {}", name(&path), f.frame, f.rule)));
        }
    }
    println!("responder {responder:?}, requester {requester:?}");
    assert_eq!(
        explained,
        ["rxe-rc-nak-len-overrun frame 3: send-too-long", "rxe-rc-send-inv-refused frame 4: invalidate-of-a-region"]
    );
    // Every answer in the captures: as tests/captures.rs counts them. And each UC message and UD datagram.
    let answers = 735 + 119 + 63 + 67 + 307 + 40;
    assert_eq!(responder[0], answers + 35 + 62);
}

#[test]
fn an_altered_syndrome_differs_at_its_frame() {
    let (altered, missed) = alter_each(|headers, _| {
        let has_aeth = matches!(headers.extension, Extension::Aeth(_) | Extension::AethAtomicAck(..));
        if has_aeth {
            with_aeth(headers, |syndrome, msn| {
                let wrong = match syndrome {
                    Syndrome::Ack { .. } => Syndrome::Nak(NakCode::RemoteAccessError),
                    _ => Syndrome::ACK,
                };
                Aeth::new(wrong, msn)
            });
        }
        has_aeth
    });
    println!("{altered} altered, missed {}: {missed:?}", missed.len());
}

#[test]
fn an_altered_msn_differs_at_its_frame() {
    let (altered, missed) = alter_each(|headers, _| {
        let has_aeth = matches!(headers.extension, Extension::Aeth(_) | Extension::AethAtomicAck(..));
        if has_aeth {
            with_aeth(headers, |syndrome, msn| Aeth::new(syndrome, msn.next()));
        }
        has_aeth
    });
    println!("{altered} altered, missed {}: {missed:?}", missed.len());
}

#[test]
fn an_altered_psn_differs_at_its_frame() {
    let (altered, missed) = alter_each(|headers, _| {
        with_psn(headers, headers.bth.psn().plus(1));
        true
    });
    println!("{altered} altered, missed {}: {missed:?}", missed.len());
}

#[test]
fn an_altered_byte_of_a_response_differs_at_its_frame() {
    let (altered, missed) = alter_each(|headers, payload| match &mut headers.extension {
        Extension::AethAtomicAck(_, ack) => {
            *ack = AtomicAckEth::new(ack.original() ^ 1);
            true
        }
        _ => match payload.get_mut(0) {
            Some(byte) => {
                *byte ^= 0x10;
                true
            }
            None => false,
        },
    });
    println!("{altered} altered, missed {}: {missed:?}", missed.len());
}

#[test]
fn a_missing_answer_differs_at_the_request_or_at_the_next_answer() {
    let (mut removed, mut missed) = (0, Vec::new());
    for path in captures() {
        let frames = read(&path);
        for index in answers(&frames) {
            let mut frames = frames.clone();
            let gone = frames.remove(index);
            removed += 1;
            if replay(&frames, Roles::Responder).unwrap().different.is_empty() {
                missed.push(format!("{} {}", name(&path), gone.number));
            }
        }
    }
    println!("{removed} removed, missed {}: {missed:?}", missed.len());
}

fn own_capture(seed: u64, faults: Faults, mtu: PathMtu) -> Vec<CapturedFrame> {
    let mut pair = Pair::new(seed, mtu, Psn::new(0xff_fff0), faults);
    pair.trace = Some(Vec::new());
    pair.run_pipeline(30);
    pair.run_for(Duration::from_millis(500));
    let mut trace = pair.trace.take().unwrap();
    trace.sort_by_key(|(time, _)| *time);
    let frames = trace.into_iter().zip(1..);
    let frame = |((time, bytes), number): ((_, Vec<u8>), u64)| CapturedFrame {
        number,
        offset: 0,
        time,
        original_bytes: bytes.len(),
        bytes,
        direction: None,
        comment: None,
    };
    frames.map(frame).collect()
}

#[test]
fn captures_of_our_own_replay_without_a_difference() {
    for seed in 0..400 {
        let faults = match seed % 4 {
            0 => Faults::NONE,
            1 => Faults { loss: 0.02, ..Faults::NONE },
            2 => Faults { loss: 0.1, ..Faults::NONE },
            _ => Faults { loss: 0.02, corrupt: 0.02, ..Faults::NONE },
        };
        for roles in [Roles::Responder, Roles::Requester] {
            let frames = own_capture(seed, faults, PathMtu::Mtu512);
            let report = replay(&frames, roles).unwrap();
            if !report.different.is_empty() {
                println!("seed {seed} {roles:?}: {:?}", figures(&report));
            }
            for finding in report.different.iter().take(3) {
                println!("   {finding:?}");
            }
        }
    }
}

#[test]
fn empty_and_useless_captures_are_errors() {
    assert!(matches!(replay(&[], Roles::Both), Err(ReplayError::Empty { unsound: 0 })));
    let mut frames = capture("rxe-rc-send");
    for frame in &mut frames {
        let last = frame.bytes.len() - 1;
        frame.bytes[last] ^= 1;
    }
    let error = replay(&frames, Roles::Both).unwrap_err();
    assert!(matches!(error, ReplayError::Empty { unsound: 206 }), "{error}");
}

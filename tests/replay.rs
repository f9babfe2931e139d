//! Captures of the kernel's rxe drive our responder and our requester: what they say is what the kernel said, or the
//! difference is one that docs/INTEROP.md explains. Captures of our own replay without any. Altered captures differ, at
//! the frame that was altered.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use uroce::frame::FrameBytes;
use uroce::pcap::{CapturedFrame, Reader};
use uroce::time::Duration;
use uroce::transport::RecoveryMode;
use uroce::wire::{
    Aeth, AtomicAckEth, Bth, Extension, Headers, Msn, NakCode, Packet, PathMtu, Psn, RoceFrame, Syndrome, icrc,
};
use uroce_laboratory::replay::{ReplayError, Report, Roles, replay};
use uroce_laboratory::world::{Chances, Pair};

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
    assert_eq!((altered, missed), (1024, Vec::<String>::new()));
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
    // That one is an acknowledge which does not count its message; altered, it does, and says what ours says.
    assert_eq!((altered, missed), (1024, vec!["rxe-rc-send-inv-refused 4".to_owned()]));
}

#[test]
fn an_altered_psn_differs_at_its_frame() {
    let (altered, missed) = alter_each(|headers, _| {
        with_psn(headers, headers.bth.psn().plus(1));
        true
    });
    // These are NAKs. A NAK for the next PSN has its own story: not this request was lost, or refused, but the next.
    let naks = [
        "rxe-rc-loss-send 5",
        "rxe-rc-loss-send 53",
        "rxe-rc-loss-send 70",
        "rxe-rc-loss-write 4",
        "rxe-rc-loss-write 61",
        "rxe-rc-loss-write 101",
        "rxe-rc-loss-write 140",
        "rxe-rc-loss-write 163",
        "rxe-rc-nak-badkey-write 3",
        "rxe-rc-nak-len-overrun 3",
    ];
    let other: Vec<_> = missed.iter().filter(|missed| !naks.contains(&missed.as_str())).collect();
    assert!(altered == 1331 && other.is_empty(), "{other:?} of {altered}");
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
    // The rest showed memory for the first time, which may have held anything, or memory that the program at the other
    // end kept writing to (rping).
    assert!(altered == 596 && missed.len() <= 95, "{} of {altered}: {missed:?}", missed.len());
    // Memory that was shown before, and is shown again: all but the first READ of it.
    let of = |name: &str| missed.iter().filter(|missed| missed.starts_with(&format!("{name} "))).count();
    assert_eq!([of("rxe-rc-read"), of("rxe-rc-read-lat"), of("rxe-rc-atomic-lat")], [8, 1, 1]);
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
    // The rest has a story: the request was lost, since it was sent again; or its acknowledge was left to the next one's,
    // which came soon after.
    assert!(removed == 1331 && missed.len() <= 125, "{} of {removed}: {missed:?}", missed.len());
    for name in ["rxe-rc-send-bw", "rxe-rc-write", "rxe-rc-read", "rxe-mtu4096-rc-write", "rxe-rc-atomic-fadd"] {
        assert!(!missed.iter().any(|missed| missed.starts_with(&format!("{name} "))), "{name}: {missed:?}");
    }
}

fn own_capture(seed: u64, faults: Chances, mtu: PathMtu) -> Vec<CapturedFrame> {
    let mut pair = Pair::new(RecoveryMode::GoBackN, seed, mtu, Psn::new(0xff_fff0), faults);
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
    let mut lost = 0;
    for seed in 0..100 {
        let faults = match seed % 4 {
            0 => Chances::NONE,
            1 => Chances { loss: 0.02, ..Chances::NONE },
            2 => Chances { loss: 0.1, ..Chances::NONE },
            _ => Chances { loss: 0.02, corrupt: 0.02, ..Chances::NONE },
        };
        let frames = own_capture(seed, faults, PathMtu::Mtu512);
        for roles in [Roles::Responder, Roles::Requester] {
            let report = replay(&frames, roles).unwrap();
            assert_eq!((&report.different[..], &report.explained[..]), (&[][..], &[][..]), "seed {seed} {roles:?}");
            assert!(report.equal >= 30, "seed {seed} {roles:?}");
            lost += usize::from(report.assumed.iter().any(|line| line.contains("never arrived")));
        }
    }
    assert!(lost > 50, "only {lost} replays had losses to explain");
}

/// The requester's own frames: what it sends again must be what it sent.
#[test]
fn an_altered_retransmission_differs_at_its_frame() {
    for (name, number) in [("rxe-rc-loss-send", 71), ("rxe-rc-loss-write", 141), ("rxe-rc-loss-send", 60)] {
        let mut frames = capture(name);
        rewrite(&mut frames[number - 1], |_, payload| payload[100] ^= 1);
        let report = replay(&frames, Roles::Requester).unwrap();
        let found: Vec<_> = report.different.iter().map(|finding| (finding.frame, finding.rule)).collect();
        assert_eq!(found, [(number as u64, "payload")], "{name}");
    }
}

/// The next packet after the RNR NAK, and the sequence NAK that rxe has for it, are put into a capture that has neither.
#[test]
fn a_sequence_nak_after_an_rnr_nak_is_explained() {
    let mut frames = capture("rxe-rc-rnr-nak");
    let (mut next, mut nak) = (frames[0].clone(), frames[1].clone());
    rewrite(&mut next, |headers, _| with_psn(headers, headers.bth.psn().plus(1)));
    rewrite(&mut nak, |headers, _| {
        with_aeth(headers, |_, msn| Aeth::new(Syndrome::Nak(NakCode::PsnSequenceError), msn));
    });
    frames.splice(2..2, [next, nak]);
    frames.iter_mut().zip(1..).for_each(|(frame, number)| frame.number = number);
    let report = replay(&frames, Roles::Responder).unwrap();
    let explained: Vec<_> = report.explained.iter().map(|finding| (finding.frame, finding.rule)).collect();
    assert_eq!((explained, &report.different[..]), (vec![(4, "nak-after-rnr")], &[][..]));
}

#[test]
fn a_uc_message_that_lacks_a_packet_is_dropped_and_the_others_are_delivered() {
    let mut frames = capture("rxe-uc-write");
    let whole = replay(&frames, Roles::Responder).unwrap();
    assert_eq!(figures(&whole), [30, 30, 0, 0]);
    let middle = frames.iter().position(|frame| {
        packet(frame).is_some_and(|packet| packet.bth().opcode().to_string() == "UC_RDMA_WRITE_MIDDLE")
    });
    frames.remove(middle.unwrap());
    let report = replay(&frames, Roles::Responder).unwrap();
    assert_eq!(figures(&report), [30, 30, 0, 0]);
    assert!(report.assumed.iter().any(|line| line.contains("lacks packets")), "{:?}", report.assumed);
    // The requester cannot be replayed beyond the hole.
    let report = replay(&frames, Roles::Requester).unwrap();
    assert!(report.different.is_empty() && report.compared < 120);
}

#[test]
fn a_capture_that_begins_in_the_middle_is_replayed_from_the_next_message_on() {
    let frames = capture("rxe-rc-write")[100..].to_vec();
    let report = replay(&frames, Roles::Both).unwrap();
    assert_eq!(report.different, []);
    assert!(report.compared > 150, "{report:?}");
    assert!(report.assumed.iter().any(|line| line.contains("before the capture")), "{:?}", report.assumed);
}

#[test]
fn empty_and_useless_captures_are_errors() {
    assert!(matches!(replay(&[], Roles::Both), Err(ReplayError::Empty { unsound: 0, .. })));
    let mut frames = capture("rxe-rc-send");
    for frame in &mut frames {
        let last = frame.bytes.len() - 1;
        frame.bytes[last] ^= 1;
    }
    let error = replay(&frames, Roles::Both).unwrap_err();
    assert!(matches!(error, ReplayError::Empty { unsound: 206, .. }), "{error}");
}

/// Bytes of the InfiniBand part changed at random, with a right ICRC: nothing panics, and figures add up.
#[test]
fn whatever_the_frames_say_it_ends() {
    let sources: Vec<_> = captures().iter().map(|path| read(path)).filter(|frames| frames.len() < 130).collect();
    for seed in 0..400 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |limit: usize| random.next_u32() as usize % limit;
        let mut frames = sources[below(sources.len())].clone();
        for _ in 0..1 + below(6) {
            let at = below(frames.len());
            let frame = &mut frames[at];
            let Ok(roce) = RoceFrame::parse(FrameBytes::from(&frame.bytes[..])) else { continue };
            let (ib, end) = (frame.bytes.len() - roce.ib.len(), frame.bytes.len() - 4);
            let byte = ib + below((end - ib).min(40));
            frame.bytes[byte] ^= 1 << below(8);
            let Some(icrc) = icrc::compute(FrameBytes::from(&frame.bytes[14..end])) else { continue };
            frame.bytes[end..].copy_from_slice(&icrc.to_le_bytes());
        }
        match replay(&frames, Roles::Both) {
            Ok(report) => {
                let [compared, equal, explained, different] = figures(&report);
                assert_eq!(compared, equal + explained + different, "seed {seed}");
            }
            Err(error) => assert!(!error.to_string().is_empty(), "seed {seed}"),
        }
    }
}

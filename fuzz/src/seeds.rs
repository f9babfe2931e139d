//! Makes the corpora, in `corpus` of the folder that is named or of this one, from `captures/`: for each opcode, flags and family of every capture, the first few frames; and the
//! shortest captures whole. For the targets that make something of any bytes, bytes at random: long ones, since runs
//! that are to get anywhere need many.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use uroce::memory::KeySource;
use uroce::pcap::Reader;
use uroce_laboratory::dissection::Dissection;

/// Frames of one kind from one capture.
const FRAMES_OF_A_KIND: usize = 2;

/// Captures above this size teach the reader nothing that shorter ones do not.
const CAPTURE_BYTES_MAX: u64 = 8192;

/// Inputs at random, and the words in each.
const RANDOM_INPUTS: u8 = 100;
const RANDOM_WORDS: usize = 400;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = std::env::args_os().nth(1).map_or_else(|| root.to_owned(), PathBuf::from).join("corpus");
    let (frames, files) = (corpus.join("decode"), corpus.join("capture"));
    fs::create_dir_all(&frames).expect("corpus/decode");
    fs::create_dir_all(&files).expect("corpus/capture");
    let mut captures = Vec::new();
    for folder in fs::read_dir(root.join("../captures")).expect("captures").flatten() {
        captures.extend(fs::read_dir(folder.path()).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    captures.retain(|path| path.extension().is_some_and(|suffix| suffix == "pcap" || suffix == "pcapng"));
    let mut count = 0;
    for capture in captures {
        let name = capture.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if fs::metadata(&capture).is_ok_and(|data| data.len() <= CAPTURE_BYTES_MAX) {
            fs::copy(&capture, files.join(&name)).expect("a copy");
        }
        let mut seen: BTreeMap<(u8, usize), usize> = BTreeMap::new();
        for frame in Reader::open(&capture).expect("a capture").map(|frame| frame.expect("a frame")) {
            let Some(dissection) = Dissection::of(&frame.bytes, frame.bytes.len()) else { continue };
            let Some(bth) = dissection.bth else { continue };
            let kind = seen.entry((bth.opcode().0, bth.pad())).or_default();
            *kind += 1;
            if *kind <= FRAMES_OF_A_KIND {
                let split = u16::try_from(frame.bytes.len()).unwrap_or(u16::MAX).to_be_bytes();
                let seed = [&split[..], &frame.bytes].concat();
                fs::write(frames.join(format!("{name}-{}", frame.number)), seed).expect("a seed");
                count += 1;
            }
        }
    }
    for target in ["endpoint", "responder", "cm", "deadline", "stream"] {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder).expect("a folder");
        for number in 0..RANDOM_INPUTS {
            let mut source = KeySource::new([number; 32]);
            let bytes: Vec<u8> = (0..RANDOM_WORDS).flat_map(|_| source.next_u32().to_le_bytes()).collect();
            fs::write(folder.join(format!("random-{number}")), bytes).expect("a seed");
        }
    }
    println!("{count} frames, {RANDOM_INPUTS} random inputs a target");
}

#![no_main]
//! Any file: frames in order, then the end or an error; what was read and is written reads back.

use libfuzzer_sys::fuzz_target;
use uroce::pcap::{CapturedFrame, Direction, Format, Reader, Record, Writer};
use uroce_laboratory::dissection::Dissection;

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = Reader::new(data) else { return };
    let mut frames: Vec<CapturedFrame> = Vec::new();
    while let Some(Ok(frame)) = reader.next() {
        assert_eq!(frame.number, frames.len() as u64 + 1);
        assert!(frame.original_bytes >= frame.bytes.len() && frame.offset < data.len() as u64);
        let _ = Dissection::of(&frame.padded(), frame.bytes.len());
        frames.push(frame);
    }
    assert!(reader.next().is_none());

    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, Format::Pcapng).expect("memory");
    for frame in &frames {
        let direction = frame.direction.unwrap_or(Direction::Sent);
        let comment = frame.comment.as_deref();
        writer.write(Record { time: frame.time, direction, parts: &[&frame.bytes], comment }).expect("memory");
    }
    drop(writer);
    let again: Vec<_> = Reader::new(&file[..]).expect("ours").map(|frame| frame.expect("ours")).collect();
    assert_eq!(again.len(), frames.len());
    for (again, frame) in again.iter().zip(&frames) {
        assert_eq!((&again.bytes, again.time), (&frame.bytes, frame.time));
    }
});

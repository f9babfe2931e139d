//! What the writer writes reads back. Every kind of file is read or refused; damage is named and located, and never
//! panics.

use proptest::prelude::*;

use super::*;
use crate::time::Instant;

const FRAMES: [&[u8]; 3] = [b"first frame, of 24 bytes", b"second", &[0xaa; 3000]];
const TIMES_NS: [u64; 3] = [1_700_000_000_000_000_001, 1_700_000_000_123_456_789, 1_700_000_001_000_000_000];

fn written(format: Format) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, format).unwrap();
    for (i, bytes) in FRAMES.iter().enumerate() {
        let (head, tail) = bytes.split_at(5);
        let direction = if i == 1 { Direction::Received } else { Direction::Sent };
        let comment = (i == 2).then_some("fault: lost");
        writer.write(Record { time: Instant::from_ns(TIMES_NS[i]), direction, parts: &[head, tail], comment }).unwrap();
    }
    drop(writer);
    file
}

fn read(file: &[u8]) -> Result<Vec<CapturedFrame>, ReadError> {
    Reader::new(file)?.collect()
}

/// A pcap in either byte order with either resolution, made by hand.
fn pcap(big_endian: bool, nanoseconds: bool, link_type: u32) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let half = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = word(if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    file.extend([half(2), half(4)].concat());
    file.extend([word(0), word(0), word(64), word(link_type)].concat());
    // The snap length cut the second frame.
    for (fraction, bytes, original) in [(7, &[1, 2, 3][..], 3), (999_999, &[4; 64][..], 100)] {
        file.extend([word(1_700_000_000), word(fraction), word(bytes.len() as u32), word(original)].concat());
        file.extend(bytes);
    }
    file
}

fn block(big_endian: bool, kind: u32, body: &[u8]) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = word(body.len() as u32 + 12);
    [&word(kind)[..], &len, &body, &len].concat()
}

/// A pcapng whose interface has the given resolution (a power of ten or two, as the option encodes it), made by hand.
fn pcapng(big_endian: bool, resolution: Option<u8>, units: u64, link_type: u16) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let half = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let (high, low) = ((units >> 32) as u32, units as u32);
    let section = [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat();
    let options = resolution.map(|r| [&half(9)[..], &half(1), &[r, 0, 0, 0], &[0; 4]].concat()).unwrap_or_default();
    let interface = [&half(link_type)[..], &half(0), &word(0), &options].concat();
    let enhanced = [&word(0)[..], &word(high), &word(low), &word(3), &word(9), &[1, 2, 3, 0]].concat();
    let simple = [&word(2)[..], &[8, 9, 0, 0]].concat();
    let obsolete = [&half(0)[..], &half(0), &word(high), &word(low), &word(1), &word(1), &[7, 0, 0, 0]].concat();
    [
        block(big_endian, 0x0a0d_0d0a, &section),
        block(big_endian, 1, &interface),
        block(big_endian, 0x4444, &[1, 2, 3, 4]), // an unknown kind of block
        block(big_endian, 6, &enhanced),
        block(big_endian, 3, &simple),
        block(big_endian, 2, &obsolete),
    ]
    .concat()
}

#[test]
fn both_formats_read_back_and_pcapng_keeps_directions_and_comments() {
    for format in [Format::Pcap, Format::Pcapng] {
        let file = written(format);
        let frames = read(&file).unwrap();
        assert_eq!(frames.len(), 3);
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(
                (frame.number, &frame.bytes[..], frame.original_bytes),
                (i as u64 + 1, FRAMES[i], FRAMES[i].len())
            );
            assert_eq!(frame.time.as_ns(), TIMES_NS[i]);
        }
        let marks = frames.iter().map(|f| (f.direction, f.comment.as_deref())).collect::<Vec<_>>();
        match format {
            Format::Pcap => assert_eq!(marks, [(None, None); 3]),
            Format::Pcapng => assert_eq!(
                marks,
                [
                    (Some(Direction::Sent), None),
                    (Some(Direction::Received), None),
                    (Some(Direction::Sent), Some("fault: lost"))
                ]
            ),
        }
    }
}

#[test]
fn the_suffix_tells_the_format() {
    let of = |name: &str| Format::of(std::path::Path::new(name));
    assert_eq!(
        ["a.pcapng", "A.PCAPNG", "a.pcap", "a", "pcapng"].map(of).map(|f| f == Format::Pcapng),
        [true, true, false, false, false]
    );
}

#[test]
fn a_frame_reaches_the_file_a_tenth_of_a_second_later_at_the_latest() {
    let path = std::env::temp_dir().join(format!("uroce-writer-{}.pcap", std::process::id()));
    let mut writer = Writer::create(&path).unwrap();
    let on_disk = || std::fs::read(&path).unwrap().len();
    assert_eq!(on_disk(), 24, "the header is there at once");
    let start = Instant::from_ns(5);
    let record = Record { time: start, direction: Direction::Sent, parts: &[b"frame"], comment: None };
    writer.write(record).unwrap();
    writer.poll(start + crate::time::Duration::from_millis(99)).unwrap();
    assert_eq!(on_disk(), 24);
    assert_eq!(writer.poll_timeout(), Some(start + crate::time::Duration::from_millis(100)));
    writer.poll(start + crate::time::Duration::from_millis(100)).unwrap();
    assert_eq!((on_disk(), writer.poll_timeout()), (24 + 16 + 5, None));
    writer.write(record).unwrap();
    drop(writer);
    assert_eq!(on_disk(), 24 + 2 * (16 + 5));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn pcaps_of_both_byte_orders_and_resolutions_are_read() {
    for (big, nano) in [(false, false), (false, true), (true, false), (true, true)] {
        let frames = read(&pcap(big, nano, 1)).unwrap();
        let unit = if nano { 1 } else { 1000 };
        let times = frames.iter().map(|f| f.time.as_ns() - 1_700_000_000_000_000_000).collect::<Vec<_>>();
        assert_eq!(times, [7 * unit, 999_999 * unit]);
        assert_eq!((&frames[0].bytes[..], frames[0].original_bytes, frames[0].offset), (&[1u8, 2, 3][..], 3, 24));
        assert_eq!((frames[1].bytes.len(), frames[1].original_bytes, frames[1].offset), (64, 100, 43));
        assert_eq!(frames[1].padded()[60..68], [4, 4, 4, 4, 0, 0, 0, 0]);
        assert_eq!(frames[1].padded().len(), 100);
    }
}

#[test]
fn pcapngs_of_both_byte_orders_and_all_resolutions_are_read() {
    // Code of the resolution, units, and their nanoseconds.
    let cases = [
        (None, 1_000_001, 1_000_001_000),
        (Some(9), 5, 5),
        (Some(3), 7, 7_000_000),
        (Some(0x80 | 10), 1 << 32, 4_194_304_000_000_000),
    ];
    for big in [false, true] {
        for (resolution, units, ns) in cases {
            let frames = read(&pcapng(big, resolution, units, 1)).unwrap();
            assert_eq!(frames.iter().map(|f| f.time.as_ns()).collect::<Vec<_>>(), [ns, 0, ns], "{big} {resolution:?}");
            assert_eq!(frames.iter().map(|f| &f.bytes[..]).collect::<Vec<_>>(), [&[1u8, 2, 3][..], &[8, 9], &[7]]);
            assert_eq!(frames[0].original_bytes, 9);
        }
        assert!(read(&pcapng(big, Some(0x7f), u64::MAX, 1)).is_ok(), "a resolution finer than anything");
    }
}

#[test]
fn a_second_section_of_the_other_byte_order_is_read() {
    let file = [pcapng(false, Some(9), 1, 1), pcapng(true, Some(9), 2, 1)].concat();
    let frames = read(&file).unwrap();
    assert_eq!(
        frames.iter().map(|f| (f.number, f.time.as_ns())).collect::<Vec<_>>(),
        [(1, 1), (2, 0), (3, 1), (4, 2), (5, 0), (6, 2)]
    );
}

#[test]
fn what_has_no_ethernet_frames_is_refused_with_the_reason() {
    let reason = |file: &[u8]| read(file).unwrap_err().to_string();
    assert_eq!(reason(b""), "the file is empty");
    assert_eq!(reason(b"abc"), "neither pcap nor pcapng: shorter than either's magic number");
    assert_eq!(reason(b"hello, world, this is no capture"), "neither pcap nor pcapng, by its first four bytes");
    assert_eq!(reason(&[0x1f, 0x8b, 8, 0, 0]), "a gzip file: uncompress it first (uroce decode does)");
    let radio = "link type 127, only Ethernet (1) and cooked captures (113, 276) can be read; capture on an Ethernet \
                 interface, or on `any`";
    assert_eq!(reason(&pcap(true, false, 127)), format!("packet 1 at byte 0: {radio}"));
    assert_eq!(reason(&pcapng(false, None, 0, 127)), format!("packet 1 at byte 64: {radio}"));
    assert_eq!(reason(&pcap(false, true, 1)[..20]), "packet 1 at byte 0: the file ends after 20 of its 24 bytes");
}

#[test]
fn every_truncation_gives_the_frames_before_it_and_says_where() {
    for file in [written(Format::Pcap), written(Format::Pcapng), pcap(true, false, 1), pcapng(true, None, 1, 1)] {
        let all = read(&file).unwrap();
        for len in 0..file.len() {
            let Ok(mut reader) = Reader::new(&file[..len]) else { continue };
            let whole = reader.by_ref().map_while(Result::ok).count();
            assert!(reader.next().is_none(), "an error ends it");
            let mut reader = Reader::new(&file[..len]).unwrap().skip(whole);
            match reader.next() {
                None => {} // cut between two records
                Some(Err(ReadError::Truncated { number, offset, need, have })) => {
                    assert_eq!((number, have), (whole as u64 + 1, len - offset as usize));
                    assert!(need > have);
                    assert!(all.get(whole).is_none_or(|f| f.offset >= offset));
                }
                other => panic!("{len} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn lengths_and_fractions_that_lie_are_named() {
    let mut file = pcap(false, false, 1);
    file[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = read(&file).unwrap_err().to_string();
    assert_eq!(error, "packet 1 at byte 24: it says 4294967295 bytes: not a packet, or the file is damaged before it");
    let mut file = pcap(false, false, 1);
    file[43 + 4..43 + 8].copy_from_slice(&1_000_000u32.to_le_bytes());
    let error = read(&file).unwrap_err().to_string();
    assert_eq!(error, "packet 2 at byte 43: 1000000000 ns are more than a second: the file is damaged here or before");
}

proptest! {
    #[test]
    fn any_bytes_after_any_beginning_give_frames_or_an_error(
        which in 0usize..5, keep in 0usize..200, junk in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let file = match which {
            0 => Vec::new(),
            1 => pcap(false, true, 1),
            2 => pcap(true, false, 1),
            3 => pcapng(false, Some(9), 1, 1),
            _ => pcapng(true, None, 1, 1),
        };
        let file = [&file[..keep.min(file.len())], &junk].concat();
        let _ = read(&file);
    }

    #[test]
    fn any_changed_byte_gives_frames_or_an_error(which in 0usize..3, at in any::<prop::sample::Index>(), value: u8) {
        let mut file = [pcapng(false, Some(9), 1, 1), pcapng(true, None, 1, 1), written(Format::Pcapng)][which].clone();
        let at = at.index(file.len());
        file[at] = value;
        let _ = read(&file);
    }
}

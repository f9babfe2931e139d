use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgParser};
use pcap_file::{Endianness, PcapError, TsResolution};

use super::Direction;
use super::link_type::{LinkType, Uncooked};
use crate::time::Instant;

/// Upper bound on the length of a packet or block, in bytes. The longest snap length of libpcap is 256 KiB
/// (`MAXIMUM_SNAPLEN`); pcapng blocks of other kinds (names, secrets) can be longer.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// Length in bytes of the largest Ethernet frame that an IP packet can fill: the upper bound on padding to an original
/// length.
const FRAME_BYTES_MAX: usize = 65_535 + 40 + 18;

/// The number of bytes that are requested from the file at once.
const READ_BYTES: usize = 256 << 10;

const PCAP_HEADER_BYTES: usize = 24;
const PCAP_RECORD_BYTES: usize = 16;
const SECTION_HEADER_BLOCK: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Reads the frames of a pcap (microseconds or nanoseconds, either byte order) or a pcapng, in the order of the file.
///
/// The frames are Ethernet frames. Packets of a cooked capture (`tcpdump -i any`) are given an Ethernet header in place
/// of theirs.
///
/// It is an iterator that ends after the last frame, or after the first error. It reads the file piece by piece, so
/// that files can be larger than memory, and pipes work.
pub struct Reader<R> {
    input: Input<R>,
    format: Format,
    ended: bool,
}

/// The file, from the next record on.
struct Input<R> {
    source: R,
    /// `buffer[start..]` holds the bytes that were read and not consumed yet.
    buffer: Vec<u8>,
    start: usize,
    /// The position of `start` in the file, in bytes.
    offset: u64,
    /// The number of packets before `start`.
    number: u64,
}

enum Format {
    Pcap { parser: PcapParser, link_type: LinkType },
    Pcapng { parser: PcapNgParser },
}

/// A frame that was read from a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// The number of the frame in the file, from 1 on, as tshark and tcpdump count.
    pub number: u64,
    /// The position of the frame's record, in bytes from the start of the file.
    pub offset: u64,
    /// The time of capture, in nanoseconds since the Unix epoch; zero where the file does not have it.
    pub time: Instant,
    /// The captured bytes, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// The original length in bytes: more than that of `bytes` when a snap length cut the frame.
    pub original_bytes: usize,
    /// The direction, where the file has it (pcapng); otherwise `None`.
    pub direction: Option<Direction>,
    /// The comment on the frame (pcapng), several joined by `; `; otherwise `None`.
    pub comment: Option<String>,
}

impl CapturedFrame {
    /// The frame at its original length, with zeros for the bytes that a snap length cut off.
    pub fn padded(&self) -> Cow<'_, [u8]> {
        if self.bytes.len() >= self.original_bytes {
            return Cow::Borrowed(&self.bytes);
        }
        let mut bytes = self.bytes.clone();
        bytes.resize(self.original_bytes.min(FRAME_BYTES_MAX).max(bytes.len()), 0);
        Cow::Owned(bytes)
    }
}

/// Why a capture cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read at byte {offset}: {error}")]
    Io {
        /// The position in the file, in bytes.
        offset: u64,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The file is neither pcap nor pcapng.
    #[error("{0}")]
    NotACapture(&'static str),
    /// The frames are neither Ethernet frames nor cooked ones.
    #[error(
        "packet {number} at byte {offset}: link type {link_type}, only Ethernet (1) and cooked captures (113, 276) can be \
         read; capture on an Ethernet interface, or on `any`"
    )]
    LinkType {
        /// The number of the first packet that is affected, from 1 on.
        number: u64,
        /// The position of its record, or of the file's header, in bytes.
        offset: u64,
        /// The link type of the frames: a `LINKTYPE_` value, as in tcpdump's list.
        link_type: u32,
    },
    /// The file ends within a record or a header.
    #[error("packet {number} at byte {offset}: the file ends after {have} of its {need} bytes")]
    Truncated {
        /// The number of the packet that would have been next.
        number: u64,
        /// The position of its record, in bytes.
        offset: u64,
        /// The number of bytes needed, as far as known.
        need: usize,
        /// The number of bytes that the file still has.
        have: usize,
    },
    /// A record contradicts itself or the format.
    #[error("packet {number} at byte {offset}: {what}")]
    Malformed {
        /// The number of the packet that would have been next.
        number: u64,
        /// The position of its record, in bytes.
        offset: u64,
        /// A description of what is wrong.
        what: String,
    },
}

impl Reader<File> {
    /// Opens a capture file, and reads its header.
    ///
    /// # Errors
    /// As [`Reader::new`], and [`ReadError::Io`] when the file cannot be opened.
    pub fn open(path: &Path) -> Result<Reader<File>, ReadError> {
        Reader::new(File::open(path).map_err(|error| ReadError::Io { offset: 0, error })?)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header of a capture.
    ///
    /// # Errors
    /// - [`ReadError::NotACapture`] when the source is neither pcap nor pcapng.
    /// - [`ReadError::Truncated`] when it is shorter than its header.
    /// - [`ReadError::Malformed`] when the header contradicts the format.
    /// - [`ReadError::LinkType`] when a pcap holds neither Ethernet frames nor cooked ones.
    /// - [`ReadError::Io`] when the source cannot be read.
    pub fn new(source: R) -> Result<Reader<R>, ReadError> {
        let mut input = Input { source, buffer: Vec::new(), start: 0, offset: 0, number: 0 };
        if !input.fill(4)? {
            return Err(ReadError::NotACapture(if input.rest().is_empty() {
                "the file is empty"
            } else {
                "neither pcap nor pcapng: shorter than either's magic number"
            }));
        }
        let format = match input.rest()[..4] {
            [0x0a, 0x0d, 0x0d, 0x0a] => input.pcapng()?,
            [0xa1, 0xb2, 0xc3, 0xd4] | [0xd4, 0xc3, 0xb2, 0xa1] => input.pcap()?,
            [0xa1, 0xb2, 0x3c, 0x4d] | [0x4d, 0x3c, 0xb2, 0xa1] => input.pcap()?,
            [0x1f, 0x8b, ..] => {
                return Err(ReadError::NotACapture("a gzip file: uncompress it first (uroce decode does)"));
            }
            [0x28, 0xb5, 0x2f, 0xfd] => {
                return Err(ReadError::NotACapture("a zstd file: uncompress it first (uroce decode does)"));
            }
            _ => return Err(ReadError::NotACapture("neither pcap nor pcapng, by its first four bytes")),
        };
        Ok(Reader { input, format, ended: false })
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<CapturedFrame, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = match &mut self.format {
            Format::Pcap { parser, link_type } => self.input.next_pcap(parser, *link_type),
            Format::Pcapng { parser } => self.input.next_pcapng(parser),
        };
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

impl<R: Read> Input<R> {
    fn pcap(&mut self) -> Result<Format, ReadError> {
        self.need(PCAP_HEADER_BYTES)?;
        let (_, parser) = PcapParser::new(self.rest()).map_err(|error| self.malformed(describe(error)))?;
        let header = parser.header();
        // The upper bits state whether frames carry an FCS, and its length (pcap(5)).
        let link_type = u32::from(header.datalink) & 0x03ff_ffff;
        let Some(link_type) = LinkType::of(link_type) else {
            return Err(ReadError::LinkType { number: 1, offset: 0, link_type });
        };
        self.consume(PCAP_HEADER_BYTES);
        Ok(Format::Pcap { parser, link_type })
    }

    fn pcapng(&mut self) -> Result<Format, ReadError> {
        // The section header states its own byte order, so that the one passed here has no effect.
        let bytes = self.block(Endianness::Little)?.map_or(0, |(_, bytes)| bytes);
        let (_, parser) = PcapNgParser::new(&self.rest()[..bytes]).map_err(|error| self.malformed(describe(error)))?;
        self.consume(bytes);
        Ok(Format::Pcapng { parser })
    }

    /// The bytes that were read and not consumed.
    fn rest(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Reads until `need` bytes are there; `false` when the file ends before. It never reads more than the file has,
    /// whatever a length in the file claims.
    fn fill(&mut self, need: usize) -> Result<bool, ReadError> {
        if self.rest().len() >= need {
            return Ok(true);
        }
        self.buffer.drain(..self.start);
        self.start = 0;
        while self.buffer.len() < need {
            let before = self.buffer.len();
            self.buffer.resize(before + READ_BYTES, 0);
            let read = loop {
                match self.source.read(&mut self.buffer[before..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(ReadError::Io { offset: self.offset + before as u64, error }),
            }
        }
        Ok(true)
    }

    fn need(&mut self, need: usize) -> Result<(), ReadError> {
        if self.fill(need)? {
            return Ok(());
        }
        Err(ReadError::Truncated { number: self.number + 1, offset: self.offset, need, have: self.rest().len() })
    }

    fn malformed(&self, what: impl Into<String>) -> ReadError {
        ReadError::Malformed { number: self.number + 1, offset: self.offset, what: what.into() }
    }

    /// Reads the next packet of a pcap; `None` at the end of the file.
    fn next_pcap(&mut self, parser: &PcapParser, link_type: LinkType) -> Result<Option<CapturedFrame>, ReadError> {
        if !self.fill(1)? {
            return Ok(None);
        }
        self.need(PCAP_RECORD_BYTES)?;
        let header = parser.header();
        let says = u32_at(self.rest(), 8, header.endianness) as usize;
        if says > RECORD_BYTES_MAX {
            return Err(self.malformed(format!("it says {says} bytes: not a packet, or the file is damaged before it")));
        }
        self.need(PCAP_RECORD_BYTES + says)?;
        let (_, packet) = parser.next_raw_packet(self.rest()).map_err(|error| self.malformed(describe(error)))?;
        let fraction_ns = match header.ts_resolution {
            TsResolution::MicroSecond => u64::from(packet.ts_frac) * 1000,
            TsResolution::NanoSecond => u64::from(packet.ts_frac),
        };
        if fraction_ns >= 1_000_000_000 {
            let what = format!("{fraction_ns} ns are more than a second: the file is damaged here or before");
            return Err(self.malformed(what));
        }
        let original_bytes = (packet.orig_len as usize).max(packet.data.len());
        let uncooked = link_type.uncook(packet.data.into_owned(), original_bytes);
        let frame = CapturedFrame {
            number: self.number + 1,
            offset: self.offset,
            time: Instant::from_ns(u64::from(packet.ts_sec) * 1_000_000_000 + fraction_ns),
            original_bytes: uncooked.original_bytes,
            bytes: uncooked.bytes,
            direction: uncooked.direction,
            comment: None,
        };
        self.consume(PCAP_RECORD_BYTES + says);
        self.number += 1;
        Ok(Some(frame))
    }

    /// Reads a whole pcapng block. Returns its type and its length in bytes; `None` at the end of the file.
    fn block(&mut self, endianness: Endianness) -> Result<Option<(u32, usize)>, ReadError> {
        if !self.fill(1)? {
            return Ok(None);
        }
        self.need(12)?;
        let endianness = match (&self.rest()[..4], &self.rest()[8..12]) {
            (magic, [0x1a, 0x2b, 0x3c, 0x4d]) if magic == SECTION_HEADER_BLOCK => Endianness::Big,
            (magic, [0x4d, 0x3c, 0x2b, 0x1a]) if magic == SECTION_HEADER_BLOCK => Endianness::Little,
            (magic, _) if magic == SECTION_HEADER_BLOCK => {
                return Err(self.malformed("a section header without its byte order magic"));
            }
            _ => endianness,
        };
        let kind = u32_at(self.rest(), 0, endianness);
        let bytes = u32_at(self.rest(), 4, endianness) as usize;
        if !(12..=RECORD_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(4) {
            return Err(
                self.malformed(format!("a block of type {kind:#x} says {bytes} bytes: the file is damaged here"))
            );
        }
        self.need(bytes)?;
        Ok(Some((kind, bytes)))
    }

    /// Reads the next packet of a pcapng; `None` at the end of the file.
    fn next_pcapng(&mut self, parser: &mut PcapNgParser) -> Result<Option<CapturedFrame>, ReadError> {
        loop {
            let endianness = parser.section().endianness;
            let Some((kind, bytes)) = self.block(endianness)? else { return Ok(None) };
            // These are section, interface, packet (obsolete), simple packet and enhanced packet. All others (names,
            // statistics, secrets) do not describe frames, and are skipped.
            if !matches!(kind, 0x0a0d_0d0a | 1 | 2 | 3 | 6) {
                self.consume(bytes);
                continue;
            }
            let next = (self.number + 1, self.offset);
            let frame = match parser.next_block(&self.rest()[..bytes]) {
                Ok((_, block)) => frame_of(block, parser.interfaces(), endianness, next)?,
                Err(error) => return Err(malformed_at(next, describe(error))),
            };
            self.consume(bytes);
            if frame.is_some() {
                self.number += 1;
                return Ok(frame);
            }
        }
    }
}

/// The frame that a pcapng block holds; `None` for a kind of block without one.
fn frame_of(
    block: Block<'_>,
    interfaces: &[InterfaceDescriptionBlock<'_>],
    endianness: Endianness,
    (number, offset): (u64, u64),
) -> Result<Option<CapturedFrame>, ReadError> {
    let interface = |id: u32| {
        let missing = || malformed_at((number, offset), format!("interface {id} was not described before"));
        let interface = interfaces.get(id as usize).ok_or_else(missing)?;
        let link_type = u32::from(interface.linktype);
        let known = LinkType::of(link_type).ok_or(ReadError::LinkType { number, offset, link_type })?;
        Ok((interface, known))
    };
    let frame = |time, link_type: LinkType, original: u32, bytes: Cow<'_, [u8]>| {
        let original_bytes = (original as usize).max(bytes.len());
        let Uncooked { bytes, original_bytes, direction } = link_type.uncook(bytes.into_owned(), original_bytes);
        CapturedFrame { number, offset, time, original_bytes, bytes, direction, comment: None }
    };
    Ok(Some(match block {
        Block::EnhancedPacket(packet) => {
            // The parser returns raw units as if they were nanoseconds.
            let (interface, link_type) = interface(packet.interface_id)?;
            let time = time_of(interface, packet.timestamp.as_nanos() as u64);
            let mut frame = frame(time, link_type, packet.original_len, packet.data);
            for option in packet.options {
                match option {
                    EnhancedPacketOption::Comment(text) => match &mut frame.comment {
                        Some(comment) => *comment = format!("{comment}; {text}"),
                        None => frame.comment = Some(text.into_owned()),
                    },
                    EnhancedPacketOption::Flags(flags) => {
                        frame.direction = match flags & 3 {
                            1 => Some(Direction::Received),
                            2 => Some(Direction::Sent),
                            _ => frame.direction,
                        }
                    }
                    _ => {}
                }
            }
            frame
        }
        Block::Packet(packet) => {
            // The high word comes first in either byte order; the parser reads both as one number.
            let units = match endianness {
                Endianness::Big => packet.timestamp,
                Endianness::Little => packet.timestamp.rotate_left(32),
            };
            let (interface, link_type) = interface(u32::from(packet.interface_id))?;
            frame(time_of(interface, units), link_type, packet.original_len, packet.data)
        }
        Block::SimplePacket(packet) => {
            let (interface, link_type) = interface(0)?;
            let snap = match interface.snaplen as usize {
                0 => usize::MAX,
                snap => snap,
            };
            let kept = (packet.original_len as usize).min(snap).min(packet.data.len());
            frame(Instant::ZERO, link_type, packet.original_len, Cow::Borrowed(&packet.data[..kept]))
        }
        _ => return Ok(None),
    }))
}

/// The point in time of `units`, in the interface's resolution.
fn time_of(interface: &InterfaceDescriptionBlock<'_>, units: u64) -> Instant {
    const DEFAULT_RESOLUTION: u8 = 6;
    let (mut resolution, mut offset_seconds) = (DEFAULT_RESOLUTION, 0i64);
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            InterfaceDescriptionOption::IfTsOffset(seconds) => offset_seconds = *seconds as i64,
            _ => {}
        }
    }
    let exponent = u32::from(resolution & 0x7f);
    let base: u128 = if resolution & 0x80 != 0 { 2 } else { 10 };
    // With a unit finer than 10^-38 s or 2^-127 s, 64 bits of it are less than a nanosecond.
    let ns = base.checked_pow(exponent).map_or(0, |per_second| u128::from(units) * 1_000_000_000 / per_second);
    let ns = ns as i128 + i128::from(offset_seconds) * 1_000_000_000;
    Instant::from_ns(ns.clamp(0, i128::from(u64::MAX)) as u64)
}

fn malformed_at((number, offset): (u64, u64), what: String) -> ReadError {
    ReadError::Malformed { number, offset, what }
}

/// Describes an error in a record that is complete: a parser that needs more bytes there found a wrong length.
fn describe(error: PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer => "a length in it is larger than it is".to_owned(),
        other => other.to_string(),
    }
}

fn u32_at(bytes: &[u8], at: usize, endianness: Endianness) -> u32 {
    let value: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    match endianness {
        Endianness::Big => u32::from_be_bytes(value),
        Endianness::Little => u32::from_le_bytes(value),
    }
}

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use pcap_file::pcap::PcapHeader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

use super::{Direction, Record};
use crate::time::{Duration, Instant};

/// The snap length in the header, in bytes: no frame is cut. 256 KiB is libpcap's `MAXIMUM_SNAPLEN`.
const SNAP_BYTES: u32 = 256 << 10;

/// The number of bytes that are buffered before a write to the file: some 200 full frames at a path MTU of 1024.
const BUFFER_BYTES: usize = 256 << 10;

/// Upper bound on the time that a frame stays in the buffer, as long as [`Writer::poll`] is called.
const FLUSH_AFTER: Duration = Duration::from_millis(100);

/// Upper bound on the length of a comment, in bytes: what the 16-bit length of a pcapng option allows, rounded down to
/// its padding.
const COMMENT_BYTES_MAX: usize = 65_532;

/// The file formats that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pcap with nanoseconds; it has no directions and comments.
    Pcap,
    /// pcapng with nanoseconds, directions and comments.
    Pcapng,
}

impl Format {
    /// The format for a file name: pcapng for names that end in `.pcapng` (in any case), pcap for all others.
    pub fn of(path: &Path) -> Format {
        let is_pcapng = path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("pcapng"));
        if is_pcapng { Format::Pcapng } else { Format::Pcap }
    }
}

/// Writes a capture while a program runs.
///
/// Frames are buffered. They reach the file when the buffer is almost full, when [`poll`](Writer::poll) finds them old
/// enough, and when the writer is dropped.
///
/// A child of `fork` that drops its copy writes nothing.
pub struct Writer<W: Write> {
    encoder: Encoder,
    buffer: Buffer<W>,
    /// The frame as one piece; its memory is used again for the next.
    frame: Vec<u8>,
    oldest: Option<Instant>,
}

enum Encoder {
    Pcap,
    Pcapng(PcapNgWriter<Vec<u8>>),
}

struct Buffer<W: Write> {
    sink: W,
    bytes: Vec<u8>,
    process: u32,
}

impl Writer<File> {
    /// Creates the file, or truncates it; its name decides the format, by [`Format::of`].
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be created, or its header not written.
    pub fn create(path: &Path) -> io::Result<Writer<File>> {
        Writer::new(File::create(path)?, Format::of(path))
    }
}

impl<W: Write> Writer<W> {
    /// Makes a writer to `sink`, and writes the file header.
    ///
    /// # Errors
    /// The error of `sink` when the header cannot be written.
    pub fn new(sink: W, format: Format) -> io::Result<Writer<W>> {
        let mut bytes = Vec::with_capacity(BUFFER_BYTES);
        let encoder = match format {
            Format::Pcap => {
                let header = PcapHeader {
                    endianness: Endianness::Little,
                    ts_resolution: TsResolution::NanoSecond,
                    snaplen: SNAP_BYTES,
                    datalink: DataLink::ETHERNET,
                    ..PcapHeader::default()
                };
                header.write_to(&mut bytes).map_err(to_io)?;
                Encoder::Pcap
            }
            Format::Pcapng => {
                let mut writer = PcapNgWriter::with_endianness(bytes, Endianness::Little).map_err(to_io)?;
                let interface = InterfaceDescriptionBlock {
                    linktype: DataLink::ETHERNET,
                    snaplen: SNAP_BYTES,
                    options: vec![InterfaceDescriptionOption::IfTsResol(9)],
                };
                writer.write_pcapng_block(interface).map_err(to_io)?;
                bytes = std::mem::take(writer.get_mut());
                Encoder::Pcapng(writer)
            }
        };
        let mut buffer = Buffer { sink, bytes, process: std::process::id() };
        buffer.flush()?;
        Ok(Writer { encoder, buffer, frame: Vec::new(), oldest: None })
    }

    /// Writes one frame to the buffer, and a buffer that is almost full to the file.
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be written; the buffered frames are lost then.
    pub fn write(&mut self, record: Record<'_>) -> io::Result<()> {
        self.frame.clear();
        record.parts.iter().for_each(|part| self.frame.extend_from_slice(part));
        let len = self.frame.len() as u32;
        let ns = record.time.as_ns();
        match &mut self.encoder {
            Encoder::Pcap => {
                // The 32 bits of seconds last until the year 2106.
                let header = [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32, len, len];
                header.iter().for_each(|word| self.buffer.bytes.extend_from_slice(&word.to_le_bytes()));
                self.buffer.bytes.extend_from_slice(&self.frame);
            }
            Encoder::Pcapng(writer) => {
                let flags = match record.direction {
                    Direction::Received => 1,
                    Direction::Sent => 2,
                };
                let mut options = vec![EnhancedPacketOption::Flags(flags)];
                let comment = record.comment.map(|text| &text[..text.floor_char_boundary(COMMENT_BYTES_MAX)]);
                options.extend(comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text))));
                let packet = EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: Duration::from_nanos(ns),
                    original_len: len,
                    data: Cow::Borrowed(&self.frame),
                    options,
                };
                std::mem::swap(writer.get_mut(), &mut self.buffer.bytes);
                let written = writer.write_block(&packet.into_block()).map_err(to_io);
                std::mem::swap(writer.get_mut(), &mut self.buffer.bytes);
                written?;
            }
        }
        self.oldest.get_or_insert(record.time);
        // The margin is more than a full RoCE frame, so that the buffer does not grow.
        if self.buffer.bytes.len() + (16 << 10) > BUFFER_BYTES {
            return self.flush();
        }
        Ok(())
    }

    /// Writes the buffer to the file, when its oldest frame is at least 100 ms old.
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be written; the buffered frames are lost then.
    pub fn poll(&mut self, now: Instant) -> io::Result<()> {
        match self.poll_timeout() {
            Some(due) if due <= now => self.flush(),
            _ => Ok(()),
        }
    }

    /// The time at which [`poll`](Writer::poll) has frames to write; `None` while the buffer is empty.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + FLUSH_AFTER)
    }

    /// Writes all buffered frames to the file.
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be written; the buffered frames are lost then.
    pub fn flush(&mut self) -> io::Result<()> {
        self.oldest = None;
        self.buffer.flush()
    }
}

impl<W: Write> Buffer<W> {
    fn flush(&mut self) -> io::Result<()> {
        let written = self.sink.write_all(&self.bytes).and_then(|()| self.sink.flush());
        self.bytes.clear();
        written
    }
}

impl<W: Write> Drop for Buffer<W> {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // An error has no receiver any more.
            let _ = self.flush();
        }
    }
}

fn to_io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

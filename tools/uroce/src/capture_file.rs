use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use uroce::pcap::{ReadError, Reader};

/// The frames of a capture, wherever they come from.
pub(crate) type Frames = Reader<Box<dyn Read>>;

/// As much is read of a compressed file at once.
const READ_BYTES: usize = 256 << 10;

/// Opens a pcap or pcapng; `-` is standard input. What gzip or zstd compressed is uncompressed as it is read.
pub(crate) fn open(path: &Path) -> Result<Frames, ReadError> {
    let failed = |error| ReadError::Io { offset: 0, error };
    let mut source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut start = Vec::new();
    source.by_ref().take(4).read_to_end(&mut start).map_err(failed)?;
    let whole = Cursor::new(start.clone()).chain(source);
    Reader::new(match start[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, whole))),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Zstd::new(BufReader::with_capacity(READ_BYTES, whole))),
        _ => Box::new(whole) as Box<dyn Read>,
    })
}

/// A zstd file: frames one after the other, as `pzstd` and `cat` make them.
struct Zstd<R> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    is_within: bool,
}

impl<R: Read> Zstd<R> {
    fn new(source: BufReader<R>) -> Zstd<R> {
        Zstd { source, decoder: FrameDecoder::new(), is_within: false }
    }

    /// Begins the next frame; `false` at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        use std::io::BufRead;
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_within {
                self.is_within = self.begin()?;
                if !self.is_within {
                    return Ok(0);
                }
            }
            if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(READ_BYTES);
                let decoded = self.decoder.decode_blocks(&mut self.source, strategy);
                decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            self.is_within = !self.decoder.is_finished();
        }
    }
}

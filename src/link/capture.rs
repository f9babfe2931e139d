//! A capture of the frames that pass a running link.

use std::io::{self, Write};
use std::path::Path;

use crate::pcap::{Format, Record, Writer};
use crate::time::Instant;

/// Writes the frames that pass to a capture file.
///
/// The first error ends the capture, and not the traffic: it is printed once on stderr and kept for
/// [`error`](Capture::error).
pub struct Capture {
    name: String,
    writer: Option<Writer<Box<dyn Write + Send>>>,
    error: Option<String>,
    frames: u64,
    missed: u64,
}

impl Capture {
    /// Creates the file, or truncates it: pcapng when its suffix is `.pcapng`, otherwise pcap.
    ///
    /// # Errors
    /// [`io::Error`] when the file cannot be created, or its header not written.
    pub fn create(path: &Path) -> io::Result<Capture> {
        let file = std::fs::File::create(path)?;
        Capture::new(path.display().to_string(), Box::new(file), Format::of(path))
    }

    /// Writes to `sink`, which messages call `name`.
    ///
    /// # Errors
    /// The error of `sink` when the file's header cannot be written.
    pub fn new(name: String, sink: Box<dyn Write + Send>, format: Format) -> io::Result<Capture> {
        Ok(Capture { name, writer: Some(Writer::new(sink, format)?), error: None, frames: 0, missed: 0 })
    }

    /// Records one frame, or counts it when the capture has ended.
    pub fn record(&mut self, record: Record<'_>) {
        self.frames += 1;
        self.missed += u64::from(self.writer.is_none());
        self.attempt(|writer| writer.write(record));
    }

    /// Writes frames that are older than 100 ms to the file.
    pub fn poll(&mut self, now: Instant) {
        self.attempt(|writer| writer.poll(now));
    }

    /// When [`poll`](Capture::poll) has frames to write; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.writer.as_ref().and_then(Writer::poll_timeout)
    }

    /// Writes all frames to the file.
    pub fn flush(&mut self) {
        self.attempt(Writer::flush);
    }

    /// The number of frames that passed, and of those that came after the capture had ended with an error.
    pub fn frames(&self) -> (u64, u64) {
        (self.frames, self.missed)
    }

    /// The error that ended the capture; `None` while it lasts.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    fn attempt(&mut self, operation: impl FnOnce(&mut Writer<Box<dyn Write + Send>>) -> io::Result<()>) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = operation(writer) {
            self.writer = None;
            let message = format!("capture {}: {error}; nothing more is recorded", self.name);
            eprintln!("uroce: {message}");
            self.error = Some(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::Direction;

    /// Takes the header, and then nothing.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_once_and_nothing_else() {
        let mut capture = Capture::new("f.pcap".into(), Box::new(Full(24)), Format::Pcap).unwrap();
        let record = Record { time: Instant::ZERO, direction: Direction::Sent, parts: &[b"frame"], comment: None };
        capture.record(record);
        assert_eq!(capture.error(), None, "not written yet");
        capture.flush();
        assert_eq!(capture.error(), Some("capture f.pcap: no storage space; nothing more is recorded"));
        capture.record(record);
        capture.flush();
        assert_eq!((capture.frames(), capture.poll_timeout()), ((2, 1), None));
    }
}

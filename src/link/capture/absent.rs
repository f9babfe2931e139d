use std::io;
use std::path::Path;

use crate::pcap::Record;
use crate::time::Instant;

/// A capture, which this library was built without: it cannot be created.
#[derive(Debug)]
pub enum AbsentCapture {}

pub use self::AbsentCapture as Capture;

impl AbsentCapture {
    /// Creates no file: the feature `capture` is off.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported), always.
    pub fn create(_path: &Path) -> io::Result<Capture> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this program was built without captures (uroce's feature `capture`)",
        ))
    }

    /// Records one frame, or counts it when the capture has ended.
    pub fn record(&mut self, _record: Record<'_>) {
        match *self {}
    }

    /// Writes frames that are older than 100 ms to the file.
    pub fn poll(&mut self, _now: Instant) {
        match *self {}
    }

    /// When [`poll`](Capture::poll) has frames to write; `None` for never.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match *self {}
    }

    /// Writes all frames to the file.
    pub fn flush(&mut self) {
        match *self {}
    }

    /// The number of frames that passed, and of those that came after the capture had ended with an error.
    pub fn frames(&self) -> (u64, u64) {
        match *self {}
    }
}

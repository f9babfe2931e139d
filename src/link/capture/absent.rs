use std::io;
use std::path::Path;

use crate::pcap::Record;
use crate::time::Instant;

/// A capture, which this library was built without: there is none.
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

    /// Records one frame.
    pub fn record(&mut self, _record: Record<'_>) {
        match *self {}
    }

    /// Brings what is older than 100 ms to the file.
    pub fn poll(&mut self, _now: Instant) {
        match *self {}
    }

    /// When [`poll`](Capture::poll) has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match *self {}
    }

    /// Brings everything to the file.
    pub fn flush(&mut self) {
        match *self {}
    }

    /// Frames that passed, and how many of them came after the capture had ended with an error.
    pub fn frames(&self) -> (u64, u64) {
        match *self {}
    }
}

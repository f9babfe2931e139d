use uroce::pcap::{Direction, Record};
use uroce::time::Instant;
use uroce::transport::Endpoint;

use super::chaos::Capture;
use super::frame_pool::Condition;
use super::link::Lost;
use super::network::{NodeId, Observer};

/// An observer that also captures frames, up to a number, when they arrive or are lost.
pub(super) struct Recorder<O> {
    pub observer: O,
    capture: Option<Capture>,
    frames_left: u64,
}

impl<O> Recorder<O> {
    pub fn new(observer: O, capture: Option<Capture>, frames: u64) -> Recorder<O> {
        Recorder { observer, capture, frames_left: frames }
    }

    fn record(&mut self, time: Instant, frame: &[u8], comment: Option<&str>) {
        let Some(capture) = self.capture.as_mut().filter(|_| self.frames_left > 0) else { return };
        self.frames_left -= 1;
        let record = Record { time, direction: Direction::Received, parts: &[frame], comment };
        if let Err(error) = capture.write(record) {
            eprintln!("the capture cannot be written, and ends here: {error}");
            self.capture = None;
        }
    }
}

impl<O: AsRef<T>, T> AsRef<T> for Recorder<O> {
    fn as_ref(&self) -> &T {
        self.observer.as_ref()
    }
}

impl<O: Observer> Observer for Recorder<O> {
    fn sent(&mut self, now: Instant, node: NodeId, frame: &[u8], to: NodeId) {
        self.observer.sent(now, node, frame, to);
    }

    fn drained(&mut self, now: Instant, node: NodeId) {
        self.observer.drained(now, node);
    }

    fn lost(&mut self, now: Instant, to: NodeId, frame: &[u8], why: Lost) {
        let comment = match why {
            Lost::Chance => "fault: lost",
            Lost::Burst => "fault: lost in a burst",
            Lost::Blackhole => "fault: lost in a blackhole",
            Lost::QueueFull => "lost: queue full",
            Lost::Policed => "lost: over the policed rate",
        };
        self.record(now, frame, Some(comment));
        self.observer.lost(now, to, frame, why);
    }

    fn arriving(&mut self, now: Instant, node: NodeId, frame: &[u8], condition: Condition) {
        let comment = match condition {
            Condition::Intact => None,
            Condition::Corrupted => Some("fault: corrupted"),
            Condition::Forged => Some("fault: forged"),
        };
        self.record(now, frame, comment);
        self.observer.arriving(now, node, frame, condition);
    }

    fn handled(&mut self, now: Instant, node: NodeId, endpoint: &mut Endpoint, frame: Option<&[u8]>) {
        self.observer.handled(now, node, endpoint, frame);
    }
}

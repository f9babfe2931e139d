use crate::time::Instant;
use crate::wire::{AnswerReport, Bth, Psn};

/// The READ responses that arrived from a peer which understands the extension: what it learns of them in reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerArrivals {
    newest: Option<(Psn, Instant)>,
    is_newest_marked: bool,
    copy: u8,
    marked: u16,
    arrived: u32,
    is_owed: bool,
}

impl AnswerArrivals {
    /// Records a READ response, by its header; `is_marked` when it arrived with «congestion experienced».
    pub fn take(&mut self, bth: &Bth, is_marked: bool, now: Instant) {
        self.newest = Some((bth.psn(), now));
        (self.is_newest_marked, self.copy) = (is_marked, bth.copy());
        self.marked = self.marked.wrapping_add(is_marked.into());
        self.arrived = self.arrived.wrapping_add(1);
        self.is_owed |= bth.ack_request();
    }

    /// Whether a report is owed.
    pub fn is_owed(&self) -> bool {
        self.is_owed
    }

    /// The report that is owed.
    pub fn poll(&mut self, now: Instant) -> Option<AnswerReport> {
        if !std::mem::take(&mut self.is_owed) {
            return None;
        }
        let (newest, at) = self.newest?;
        let delay = now.saturating_since(at).as_micros();
        Some(AnswerReport {
            newest,
            delay_us: delay.min(u16::MAX.into()) as u16,
            marked: self.marked,
            arrived: self.arrived % AnswerReport::COUNTS,
            is_newest_marked: self.is_newest_marked,
            copy: self.copy,
        })
    }
}

use std::sync::atomic::Ordering;

use crate::memory::SharedPage;
use crate::time::{Duration, Instant};

use super::class::Class;

/// Which classes the programs that share a device send in: a page with a line for each slot, which each program keeps
/// and reads.
///
/// ```text
///   cell 8 × slot + class: how often the program of the slot said that it sends in the class
/// ```
///
/// A count that has changed means that the class was active since the last look: the programs' clocks need not agree.
#[derive(Debug)]
pub(super) struct Presence {
    page: SharedPage,
    slot: u8,
    /// When we last said that we send, by class.
    said: [Option<Instant>; Class::ALL.len()],
    /// When we last looked, and the sum of the others' counts of classes above the scavenger's.
    looked: Option<Instant>,
    seen: u64,
    /// Until when they are taken to be active.
    busy_until: Instant,
}

/// Cells of a slot: 64 bytes, which no other program writes.
const LINE: usize = 8;

/// Slots of a device, of which 0 is nobody's (`link::udp`).
const SLOTS: usize = SharedPage::CELLS / LINE;

/// How often a program says that it sends, at most: a store each time.
const SAY_EVERY: Duration = Duration::from_micros(100);

/// How often it looks, at most: three loads a slot.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// How long others are taken to be active after they last said so. It is ten times as long as they take to say it
/// again, and short beside the promotion.
const ACTIVE: Duration = Duration::from_millis(1);

impl Presence {
    /// The presence of the program with `slot`, 1 to 63.
    pub fn new(page: SharedPage, slot: u8) -> Presence {
        let mut presence = Presence { page, slot, said: [None; 4], looked: None, seen: 0, busy_until: Instant::ZERO };
        presence.seen = presence.others();
        presence
    }

    /// Says that we send in `class`.
    #[inline]
    pub fn sends(&mut self, now: Instant, class: Class) {
        let said = &mut self.said[class as usize];
        if said.is_none_or(|said| now.saturating_since(said) >= SAY_EVERY) {
            *said = Some(now);
            // Nobody else writes it.
            let cell = self.page.cell(usize::from(self.slot) * LINE + class as usize);
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Until when classes above the scavenger's are active in other programs; `None` when none is.
    pub fn busy_until(&mut self, now: Instant) -> Option<Instant> {
        if self.looked.is_none_or(|looked| now.saturating_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            let others = self.others();
            if others != self.seen {
                (self.seen, self.busy_until) = (others, now + ACTIVE);
            }
        }
        (self.busy_until > now).then_some(self.busy_until)
    }

    fn others(&self) -> u64 {
        let slots = (1..SLOTS).filter(|slot| *slot != usize::from(self.slot));
        let above = |slot: usize| {
            Class::ALL.map(|class| (slot, class)).into_iter().filter(|(_, class)| *class < Class::Scavenger)
        };
        slots.flat_map(above).fold(0, |sum, (slot, class)| {
            sum.wrapping_add(self.page.cell(slot * LINE + class as usize).load(Ordering::Relaxed))
        })
    }
}

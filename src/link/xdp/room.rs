use crate::time::{Duration, Instant};

/// The number of chunks that are enough while nothing has waited for long. The processor's caches hold them.
const FEW: u32 = 1024;

/// As many chunks as have waited is what the kernel has, and as many again.
const SPARE: u32 = 2;

/// After this time half as many count as having waited.
const HALF_LIFE: Duration = Duration::from_secs(1);

/// How many chunks to receive into the kernel has of a queue's.
///
/// The kernel fills them in turn. Over many, each frame is copied to memory that is in no near cache. With few, frames are
/// lost that arrive while the receiving thread has no processor. So it has few, and more after frames have waited.
#[derive(Debug)]
pub(super) struct Room {
    all: u32,
    /// Chunks that have waited in the receive ring: at most, as far back as it matters.
    waited: u32,
    halved_at: Instant,
    keeps_all: bool,
}

impl Room {
    /// For a queue with `all` chunks.
    pub fn new(all: u32) -> Room {
        Room { all, waited: 0, halved_at: Instant::ZERO, keeps_all: false }
    }

    /// The kernel has all of them from now on.
    pub fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// Notes that `waiting` chunks waited at `now`.
    pub fn note(&mut self, waiting: u32, now: Instant) {
        if now.saturating_since(self.halved_at) >= HALF_LIFE {
            self.halved_at = now;
            self.waited /= 2;
        }
        self.waited = self.waited.max(waiting);
    }

    /// The number of chunks that the kernel shall have.
    pub fn level(&self) -> u32 {
        let waited = if mutated!("room-for-few-frames-always", by "uroce --lib room::") { 0 } else { self.waited };
        if self.keeps_all { self.all } else { (SPARE * waited).max(FEW).min(self.all) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn there_is_room_for_twice_what_has_waited() {
        let mut room = Room::new(14_400);
        assert_eq!(room.level(), 1024);
        for (waiting, level) in [(64, 1024), (512, 1024), (600, 1200), (3, 1200), (6000, 12_000), (9000, 14_400)] {
            room.note(waiting, at(1));
            assert_eq!(room.level(), level, "{waiting}");
        }
        assert_eq!(Room::new(480).level(), 480, "a small queue's");
    }

    #[test]
    fn what_waited_long_ago_does_not_matter() {
        let mut room = Room::new(14_400);
        room.note(4096, at(1500));
        let levels = [1600, 2499, 2500, 3499, 3500, 4600, 5700].map(|ms| {
            room.note(10, at(ms));
            room.level()
        });
        assert_eq!(levels, [8192, 8192, 4096, 4096, 2048, 1024, 1024]);
    }

    #[test]
    fn there_is_all_room_for_what_nobody_sends_again() {
        let mut room = Room::new(14_400);
        room.keep_all();
        room.note(10, at(5000));
        assert_eq!(room.level(), 14_400);
    }
}

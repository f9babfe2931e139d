use uroce::wire::Psn;

/// Upper bound on the PSNs that are remembered of a sequence: 16 MiB of data at the path MTU 1024. Each takes 16 bytes.
pub(super) const PLACES_MAX: usize = 1 << 14;

/// As many are remembered from the beginning.
const PLACES_MIN: usize = 64;

/// The frames in which the latest PSNs of a sequence came first.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// By the PSN modulo the length, which is a power of two; it grows with the sequence.
    pub(super) places: Vec<Option<First>>,
    pub(super) count: usize,
}

/// The first frame with a PSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    psn: u32,
    /// As far as the frame number is kept: no capture of 2^32 frames has a retransmission of its first one.
    frame: u32,
    /// 0 when it was cut off.
    icrc: u32,
}

impl First {
    pub fn frame(self) -> u64 {
        self.frame.into()
    }

    pub fn has_icrc(self, icrc: Option<u32>) -> bool {
        self.icrc != 0 && icrc == Some(self.icrc)
    }
}

impl History {
    pub fn insert(&mut self, psn: Psn, frame: u64, icrc: Option<u32>) {
        if self.count == self.places.len() && self.count < PLACES_MAX {
            let before = std::mem::take(&mut self.places);
            self.places = vec![None; (before.len() * 2).max(PLACES_MIN)];
            for first in before.into_iter().flatten() {
                let at = first.psn as usize & (self.places.len() - 1);
                self.places[at] = Some(first);
            }
        }
        let at = psn.value() as usize & (self.places.len() - 1);
        self.count = (self.count + 1).min(PLACES_MAX);
        self.places[at] = Some(First { psn: psn.value(), frame: frame as u32, icrc: icrc.unwrap_or(0) });
    }

    pub fn get(&self, psn: Psn) -> Option<First> {
        let at = psn.value() as usize & self.places.len().checked_sub(1)?;
        self.places[at].filter(|first| first.psn == psn.value())
    }
}

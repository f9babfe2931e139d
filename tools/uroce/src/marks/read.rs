use uroce::wire::{PathMtu, Psn};

/// The path MTUs that are still possible. It is not in any packet, and READ requests take PSNs by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathMtus([bool; PathMtu::ALL.len()]);

/// A READ request whose number of PSNs is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub psn: Psn,
    pub len: u32,
    pub frame: u64,
}

impl PathMtus {
    pub const ALL: PathMtus = PathMtus([true; PathMtu::ALL.len()]);

    fn possible(self) -> impl Iterator<Item = PathMtu> {
        PathMtu::ALL.into_iter().zip(self.0).filter(|(_, is_possible)| *is_possible).map(|(mtu, _)| mtu)
    }

    /// Learns from a packet that is as long as the path MTU, a trailer included.
    pub fn learn_full(&mut self, payload_bytes: usize) {
        if let Some(full) = PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= payload_bytes) {
            self.0 = PathMtu::ALL.map(|mtu| mtu == full);
        }
    }

    /// Learns from the PSN of the request after a READ; `false` when no path MTU explains it.
    pub fn learn_next(&mut self, read: Read, next: Psn) -> bool {
        let explains = |mtu: PathMtu| read.psn.plus(mtu.packets(read.len as usize)) == next;
        if !self.possible().any(explains) {
            return false;
        }
        for (is_possible, mtu) in self.0.iter_mut().zip(PathMtu::ALL) {
            *is_possible &= explains(mtu);
        }
        true
    }

    /// The number of PSNs that a READ of this length takes: the least, and the most.
    pub fn packets(self, len: u32) -> (u32, u32) {
        let counts = || self.possible().map(|mtu| mtu.packets(len as usize));
        (counts().min().unwrap_or(1), counts().max().unwrap_or(1))
    }
}

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::wire::{Psn, Qpn};

/// Where numbers come from that a stranger must not guess: keys, QPNs, first PSNs.
///
/// The engine seeds it from the system's randomness, the simulator from its seed.
#[derive(Debug)]
pub struct KeySource {
    random: ChaCha12Rng,
}

impl KeySource {
    /// A source that gives the same numbers for the same seed.
    pub fn new(seed: [u8; 32]) -> KeySource {
        KeySource { random: ChaCha12Rng::from_seed(seed) }
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.random.next_u32()
    }

    /// A packet sequence number to start from.
    pub fn psn(&mut self) -> Psn {
        Psn::new(self.next_u32())
    }

    /// A queue pair number that is none of the reserved ones (0, 1 and 0xffffff).
    pub fn qpn(&mut self) -> Qpn {
        loop {
            let qpn = Qpn::new(self.next_u32());
            if !matches!(qpn.value(), 0 | 1 | 0x00ff_ffff) {
                return qpn;
            }
        }
    }
}

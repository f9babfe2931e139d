use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::wire::{Psn, Qpn};

/// A source of numbers that a stranger must not guess: keys, QPNs, first PSNs.
///
/// The engine seeds it from the system's randomness, the simulator from its seed.
#[derive(Debug)]
pub struct KeySource {
    random: ChaCha12Rng,
}

impl KeySource {
    /// A source that returns the same numbers for the same seed.
    pub fn new(seed: [u8; 32]) -> KeySource {
        KeySource { random: ChaCha12Rng::from_seed(seed) }
    }

    /// Draws 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.random.next_u32()
    }

    /// Draws a packet sequence number to start from.
    pub fn psn(&mut self) -> Psn {
        Psn::new(self.next_u32())
    }

    /// Draws a queue pair number in `slot`, its upper twelve bits, that is not reserved (0, 1 and 0xffffff).
    ///
    /// The slot shows to which program on a host a packet belongs. Nothing else of the number can be guessed.
    pub fn qpn(&mut self, slot: u16) -> Qpn {
        loop {
            let qpn = Qpn::new(u32::from(slot) << 12 | self.next_u32() & 0xfff);
            if !matches!(qpn.value(), 0 | 1 | 0x00ff_ffff) {
                return qpn;
            }
        }
    }

    /// Draws a slot for queue pair numbers, 1 to 4095, with these lower six bits if some are given. Slot 0 has the
    /// management queue pairs.
    pub fn qpn_slot(&mut self, low: Option<u8>) -> u16 {
        loop {
            let random = (self.next_u32() & 0xfff) as u16;
            let slot = low.map_or(random, |low| random & 0xfc0 | u16::from(low & 0x3f));
            if slot != 0 {
                return slot;
            }
        }
    }
}

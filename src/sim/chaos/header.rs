use crate::sim::network::bth_offset;
use crate::wire::{Opcode, Psn, Qpn};

/// What the fixed part of a packet says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub opcode: Opcode,
    pub qpn: Qpn,
    pub psn: Psn,
    pub acknowledge_requested: bool,
    /// Whether the sender offers the extension (docs/EXTENSIONS.md).
    pub offers: bool,
    /// The first words behind the BTH: the AETH, in answers that have one; the DETH, in datagrams.
    pub words: [[u8; 4]; 2],
}

impl Header {
    /// The header of a frame that has one.
    pub fn of(frame: &[u8]) -> Header {
        let bth = &frame[bth_offset(frame)..];
        let three = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
        let word = |at: usize| bth.get(at..at + 4).and_then(|word| word.try_into().ok()).unwrap_or_default();
        Header {
            opcode: Opcode(bth[0]),
            qpn: Qpn::new(three(5)),
            psn: Psn::new(three(9)),
            acknowledge_requested: bth[8] & 0x80 != 0,
            offers: bth[8] & 0x40 != 0,
            words: [word(12), word(16)],
        }
    }

    /// The PSN counted from `base`, of the one on the wire that is nearest to `near`; `None` before the first.
    pub fn count(&self, base: Psn, near: u64) -> Option<u64> {
        near.checked_add_signed(i64::from(self.psn.since(base.plus(near as u32))))
    }

    /// The queue pair that a datagram is from.
    pub fn source_qpn(&self) -> Qpn {
        let [_, a, b, c] = self.words[1];
        Qpn::new(u32::from_be_bytes([0, a, b, c]))
    }
}

use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Packet, Position};

/// READ responses and atomic acknowledges of a plain peer that arrived before earlier ones. They are kept, but not
/// trusted.
///
/// Nothing proves whose an answer is, and a stranger has all PSNs in flight to hit. So everything from the first
/// missing answer on is requested again (go-back-N). What was kept replaces an answer that is lost for the second time,
/// when the one right after it arrives. Only two PSNs are trusted at any time: the oldest missing answer's and the next
/// one.
#[derive(Debug, Default)]
pub struct EarlyAnswers {
    /// Whether answers are kept: not when only go-back-N is wanted.
    pub is_on: bool,
    /// Answers by packet number, as they arrived. Empty where two differed: one is a stranger's, and neither is
    /// trusted.
    kept: FxHashMap<u64, Box<[u8]>>,
}

/// Upper bound on the answers that are kept: 4 MiB at path MTU 4096. More are dropped, as by go-back-N.
const KEPT_MAX: usize = 1024;

/// Whether two answers with one PSN are the same. The AETH can differ: a repeated answer has the peer's latest MSN.
fn is_the_same(kept: &Packet<'_>, other: &Packet<'_>) -> bool {
    let original = |packet: &Packet<'_>| packet.atomic_ack_eth().map(|eth| eth.original());
    // rxe continues with MIDDLE where the IBTA begins anew with FIRST.
    let opcode = |packet: &Packet<'_>| packet.bth().opcode();
    let ends = |packet: &Packet<'_>| matches!(opcode(packet).position(), Position::Last | Position::Only);
    opcode(kept).operation() == opcode(other).operation()
        && ends(kept) == ends(other)
        && original(kept) == original(other)
        && kept.payload().to_vec() == other.payload().to_vec()
}

impl EarlyAnswers {
    /// Keeps an answer that arrived before the oldest missing one.
    pub fn keep(&mut self, number: u64, packet: &Packet<'_>) {
        if !self.is_on {
            return;
        }
        let has_room = self.kept.len() < KEPT_MAX;
        match self.kept.get_mut(&number) {
            Some(bytes) => {
                let kept = Packet::parse(FrameBytes::from(&bytes[..])).ok();
                let differs = !kept.is_some_and(|kept| is_the_same(&kept, packet));
                if differs && !mutated!("first-copy-of-an-answer-counts", by "uroce --test answers a_stranger") {
                    *bytes = Box::default();
                }
            }
            None if has_room => {
                self.kept.insert(number, packet.without_trailer());
            }
            None => {}
        }
    }

    /// Removes the answer that was kept at `number`; `None` when there is none, or two differed.
    pub fn take(&mut self, number: u64) -> Option<Box<[u8]>> {
        if self.kept.is_empty() {
            return None;
        }
        self.kept.remove(&number).filter(|bytes| !bytes.is_empty())
    }

    /// Discards all that was kept.
    pub fn clear(&mut self) {
        self.kept = FxHashMap::default();
    }
}

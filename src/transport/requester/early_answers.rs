use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Packet, Position};

/// READ responses and atomic acknowledges of a peer that knows the IBTA only that came before earlier ones: kept, but not believed.
///
/// Nobody says whose an answer is, and a stranger has all PSNs in flight to hit. So everything from the first missing answer on is
/// asked for again (go-back-N), and what was kept makes up for an answer that is lost for the second time: when the one right after
/// it comes. Only two PSNs are believed at any time, that of the oldest missing answer and the next one.
#[derive(Debug, Default)]
pub struct EarlyAnswers {
    /// They are kept: not when nothing but go-back-N is wanted.
    pub is_on: bool,
    /// By packet number, as they came. Empty where two differed: one is a stranger's, and nobody can tell which.
    kept: FxHashMap<u64, Box<[u8]>>,
}

/// Answers that are kept before earlier ones, at most: 4 MiB at path MTU 4096. More are dropped, as by go-back-N.
const KEPT_MAX: usize = 1024;

/// Whether two answers with one PSN say the same. The AETH may differ: answering again, the peer names its latest MSN.
fn is_the_same(kept: &Packet<'_>, other: &Packet<'_>) -> bool {
    let original = |packet: &Packet<'_>| packet.atomic_ack_eth().map(|eth| eth.original());
    // rxe goes on with MIDDLE where the IBTA begins anew with FIRST.
    let opcode = |packet: &Packet<'_>| packet.bth().opcode();
    let ends = |packet: &Packet<'_>| matches!(opcode(packet).position(), Position::Last | Position::Only);
    opcode(kept).operation() == opcode(other).operation()
        && ends(kept) == ends(other)
        && original(kept) == original(other)
        && kept.payload().to_vec() == other.payload().to_vec()
}

impl EarlyAnswers {
    /// Keeps an answer that came before the oldest missing one.
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

    /// Takes out what was kept at `number`, if it is believed.
    pub fn take(&mut self, number: u64) -> Option<Box<[u8]>> {
        if self.kept.is_empty() {
            return None;
        }
        self.kept.remove(&number).filter(|bytes| !bytes.is_empty())
    }

    /// Forgets all that was kept.
    pub fn clear(&mut self) {
        self.kept = FxHashMap::default();
    }
}

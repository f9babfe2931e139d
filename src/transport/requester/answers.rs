use rustc_hash::FxHashMap;

use crate::frame::FrameBytes;
use crate::wire::{Packet, Position, Psn};

use super::Requester;

/// READ responses and atomic acknowledges of a peer that knows the IBTA only that came before earlier ones: kept, but not believed.
///
/// Nobody says whose an answer is, and a stranger has all PSNs in flight to hit. So everything from the first missing answer on is
/// asked for again (go-back-N), and what was kept makes up for an answer that is lost for the second time: when the one right after
/// it comes. Only two PSNs are believed at any time, that of the oldest missing answer and the next one.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By PSN, as they came. Empty where two differed: one is a stranger's, and nobody can tell which.
    kept: FxHashMap<u32, Box<[u8]>>,
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

fn parse(kept: &[u8]) -> Option<Packet<'_>> {
    Packet::parse(FrameBytes::from(kept)).ok()
}

impl Requester {
    /// Keeps an answer that came before the oldest missing one.
    pub(super) fn keep_answer(&mut self, psn: Psn, packet: &Packet<'_>) {
        if !self.find(psn).is_some_and(|index| self.queue[index].awaits_answer()) {
            return;
        }
        let kept = &mut self.answers.get_or_insert_default().kept;
        let has_room = kept.len() < KEPT_MAX;
        match kept.get_mut(&psn.value()) {
            Some(bytes) => {
                let differs = !parse(bytes).is_some_and(|kept| is_the_same(&kept, packet));
                if differs && !mutated!("first-copy-of-an-answer-counts", by "uroce --test answers a_stranger") {
                    *bytes = Box::default();
                }
            }
            None if has_room => {
                kept.insert(psn.value(), packet.without_trailer());
            }
            None => {}
        }
    }

    /// What was kept of the oldest missing answer, if `psn`, which has come, is the one right after it.
    pub(super) fn take_kept_answer(&mut self, psn: Psn) -> Option<Box<[u8]>> {
        self.answers.as_ref().filter(|answers| !answers.kept.is_empty())?;
        let (oldest, next) = self.oldest_missing_answers();
        let is_next =
            next == Some(psn) || mutated!("any-answer-in-flight-believed", by "uroce --test answers a_stranger");
        let kept = &mut self.answers.as_mut()?.kept;
        kept.remove(&oldest.filter(|_| is_next)?.value()).filter(|bytes| !bytes.is_empty())
    }

    /// The answer `psn` was taken.
    pub(super) fn forget_kept_answer(&mut self, psn: Psn) {
        if let Some(answers) = &mut self.answers {
            answers.kept.remove(&psn.value());
        }
    }

    /// The PSNs of the two oldest missing answers.
    fn oldest_missing_answers(&self) -> (Option<Psn>, Option<Psn>) {
        let waiting = self.queue.iter().filter(|wqe| wqe.awaits_answer());
        let mut missing = waiting.flat_map(|wqe| (wqe.received..wqe.packets).map(|at| wqe.first_psn.plus(at))).take(2);
        (missing.next(), missing.next())
    }
}

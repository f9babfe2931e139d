use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::wire::{Packet, Psn, Syndrome};

use super::endpoint::Transmit;
use super::identity::Identity;
use super::requester::{RequestPacket, Requester, write_request};
use super::surroundings::{Fatal, Surroundings};

/// READ responses and atomic acknowledges of a peer that knows the IBTA only: those that came before earlier ones, and what was
/// asked for again, by itself (IBTA 9.7.5.1.1: a READ request for a part).
///
/// Such a peer answers in order, so what a later answer has overtaken is lost. Of each READ only the first answers that lack
/// are asked for, and the next when they are here: asked for a part of a READ, rxe forgets all before that (docs/INTEROP.md).
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Those that came before earlier ones of the same request.
    early: FxHashSet<u32>,
    /// Nothing from there on was answered or acknowledged.
    frontier: Option<Psn>,
    /// What was asked for, in that order: the first, how many, and the first PSN not sent then. An answer to that, or to a later
    /// ask, comes after these.
    asked: VecDeque<(Psn, u32, Psn)>,
    /// Something before the frontier may lack that was not asked for.
    may_ask: bool,
}

/// Answers that are kept before earlier ones, at the most: a READ of 256 MiB at path MTU 4096. More are asked for again.
const EARLY_MAX: usize = 1 << 16;

impl Answers {
    /// Everything is sent again, and answered again.
    pub fn start_over(&mut self) {
        self.asked.clear();
    }

    /// Everything before `psn` was acknowledged, and nothing was missing.
    pub fn acknowledged_before(&mut self, psn: Psn) {
        self.frontier = self.frontier.map(|_| psn);
    }

    fn was_asked(&self, psn: Psn) -> bool {
        self.asked.iter().any(|(first, count, _)| psn.is_within(*first, *count))
    }
}

impl Requester {
    /// Takes an answer to a READ or atomic, in whatever order it comes.
    pub(super) fn take_answer_in_any_order(
        &mut self,
        psn: Psn,
        packet: &Packet<'_>,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let is_positive = packet.aeth().is_none_or(|aeth| matches!(aeth.syndrome(), Syndrome::Ack { .. }));
        let index = self.find(psn).filter(|index| is_positive && self.is_missing(*index, psn));
        let Some(index) = index else {
            cx.counters.stray_response += 1;
            return Ok(());
        };
        let first_psn = self.queue[index].first_psn;
        let is_next = mutated!("early-answer-of-a-plain-peer-placed-as-the-next");
        let at = if is_next { self.queue[index].received } else { psn.since(first_psn) as u32 };
        if let Err(status) = self.place(index, at, packet, identity, cx) {
            self.queue[index].failed = Some(status);
            return self.settle_answers(first_psn, identity, cx);
        }
        let answers = self.answers.get_or_insert_default();
        let wqe = &mut self.queue[index];
        if at == wqe.received {
            wqe.received += 1;
            while answers.early.remove(&first_psn.plus(wqe.received).value()) {
                wqe.received += 1;
            }
        } else if answers.early.len() < EARLY_MAX {
            answers.early.insert(psn.value());
            wqe.received += u32::from(mutated!("early-answer-of-a-plain-peer-counted-twice"));
        }
        // What was asked for before this was answered, or its answers are lost.
        if let Some(ask) = answers.asked.iter().rposition(|(first, count, _)| psn.is_within(*first, *count)) {
            answers.asked.drain(..ask);
            if let Some((first, count, _)) = answers.asked.front_mut() {
                *count -= psn.plus(1).since(*first) as u32;
                *first = psn.plus(1);
            }
        }
        self.settle_answers(psn.plus(1), identity, cx)
    }

    /// All requests before `psn` were carried out, says the peer. Those whose answers lack are asked for again.
    pub(super) fn settle_answers(
        &mut self,
        psn: Psn,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let known = self.answers.as_ref().and_then(|answers| answers.frontier);
        let frontier = known.filter(|known| psn.is_before(*known)).unwrap_or(psn);
        // Up to the first answer that lacks; answers may be here from beyond the frontier.
        let mut to = frontier;
        for wqe in self.queue.iter().take_while(|wqe| wqe.first_psn.is_before(frontier)) {
            let answered = wqe.first_psn.plus(wqe.received);
            if wqe.awaits_answer() || (wqe.request.operation.is_read_or_atomic() && to.is_before(answered)) {
                to = answered;
            }
            if wqe.awaits_answer() && !(wqe.received > 0 && mutated!("missing-answer-taken-for-one-that-came")) {
                break;
            }
        }
        let lacks = to.is_before(frontier);
        if lacks || self.answers.is_some() {
            let answers = self.answers.get_or_insert_default();
            (answers.frontier, answers.may_ask) = (Some(frontier), lacks);
            // Whatever was asked for before the request was sent that the peer has come to.
            let passed = answers.asked.iter().take_while(|(_, _, sent)| sent.is_before(psn)).count();
            answers.asked.drain(..if lacks { passed } else { answers.asked.len() });
        }
        self.progress(to, cx.now);
        self.retire(identity, cx)
    }

    /// Whether nothing from `psn` on was answered, although answers to what is before may lack.
    pub(super) fn is_frontier(&self, psn: Psn) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.frontier == Some(psn))
    }

    /// The first answers that lack of a READ or atomic before the frontier and were not asked for: its index, the number of the
    /// first, and how many.
    fn next_ask(&self) -> Option<(usize, u32, u32)> {
        let answers = self.answers.as_ref()?;
        let frontier = answers.frontier?;
        let carried_out = self.queue.iter().enumerate().take_while(|(_, wqe)| wqe.first_psn.is_before(frontier));
        carried_out.filter(|(_, wqe)| wqe.awaits_answer() && wqe.failed.is_none()).find_map(|(index, wqe)| {
            let first = wqe.first_psn.plus(wqe.received);
            let before_frontier = u32::try_from(frontier.since(first)).ok().filter(|count| *count > 0)?;
            let (start, count) = self.missing_run(index, wqe.received)?;
            (!answers.was_asked(first)).then_some((index, start, count.min(before_frontier)))
        })
    }

    /// Whether [`poll_ask`](Self::poll_ask) may have something.
    pub(super) fn may_ask(&self) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.may_ask)
    }

    fn is_missing(&self, index: usize, psn: Psn) -> bool {
        let wqe = &self.queue[index];
        let is_early = || self.answers.as_ref().is_some_and(|answers| answers.early.contains(&psn.value()));
        wqe.awaits_answer() && psn.since(wqe.first_psn) as u32 >= wqe.received && !is_early()
    }

    /// The first answers that lack of a READ or atomic, from its answer number `from` on: number and count.
    pub(super) fn missing_run(&self, index: usize, from: u32) -> Option<(u32, u32)> {
        let wqe = &self.queue[index];
        if !wqe.awaits_answer() {
            return None;
        }
        let from = from.max(wqe.received);
        if self.answers.as_ref().is_none_or(|answers| answers.early.is_empty()) {
            return (from < wqe.packets).then(|| (from, wqe.packets - from));
        }
        let is_missing = |at: &u32| self.is_missing(index, wqe.first_psn.plus(*at));
        let start = (from..wqe.packets).find(is_missing)?;
        Some((start, (start..wqe.packets).take_while(is_missing).count() as u32))
    }

    /// Writes the next request for answers that lack, if there is one.
    pub(super) fn poll_ask(
        &mut self,
        out: &mut [u8],
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<Option<Transmit>, Fatal> {
        if !self.may_ask() {
            return Ok(None);
        }
        let Some((index, start, answers)) = self.next_ask() else {
            self.answers.iter_mut().for_each(|answers| answers.may_ask = false);
            return Ok(None);
        };
        let wqe = &self.queue[index];
        let psn = wqe.first_psn.plus(start);
        let offers = identity.extension.offer(0);
        let packet = RequestPacket { index: start, psn, answers, is_again: true, offers, trailer: None, path: 0 };
        let Ok(Some(transmit)) = write_request(wqe, packet, out, identity, cx) else { return Ok(None) };
        cx.counters.retransmitted += 1;
        self.asked(psn, answers);
        self.restart_timer(cx.now);
        Ok(Some(transmit))
    }

    /// Answers that lack were asked for.
    pub(super) fn asked(&mut self, psn: Psn, count: u32) {
        let sent = self.sent;
        self.answers.get_or_insert_default().asked.push_back((psn, count, sent));
    }

    /// Answers that came before earlier ones are told to whoever tells it to the board, and forgotten here.
    pub(super) fn hand_over_answers(&mut self) -> Vec<Psn> {
        let early = self.answers.take().map(|answers| answers.early).unwrap_or_default();
        let mut early: Vec<Psn> = early.into_iter().map(Psn::new).collect();
        let before = self.unacknowledged;
        let counted = self.queue.iter().filter(|wqe| wqe.request.operation.is_read_or_atomic()).flat_map(|wqe| {
            (0..wqe.received).map(|at| wqe.first_psn.plus(at)).filter(move |psn| !psn.is_before(before))
        });
        let counted: Vec<Psn> = counted.collect();
        for psn in &early {
            if let Some(index) = self.find(*psn) {
                self.queue[index].received += 1;
            }
        }
        early.extend(counted);
        early.sort_unstable_by_key(|psn| psn.since(before));
        early
    }
}

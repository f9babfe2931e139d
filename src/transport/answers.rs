use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use crate::wire::{Packet, Psn, Syndrome};

use super::endpoint::Transmit;
use super::queue_pair::{Fatal, Identity, Surroundings};
use super::requester::{RequestPacket, Requester, write_request};

/// READ responses and atomic acknowledges of a peer that knows the IBTA only: those that came before earlier ones, and the
/// missing ones, which are asked for by themselves (IBTA 9.7.5.1.1: a READ request again, for a part).
///
/// Such a peer answers in order, so what a later answer has overtaken is lost.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Those that came before earlier ones of the same request.
    early: FxHashSet<u32>,
    /// Nothing from there on was answered or acknowledged.
    frontier: Option<Psn>,
    /// What lacks before that was asked for.
    watched: Option<Psn>,
    /// What is to be asked for: the first, and how many.
    asks: VecDeque<(Psn, u32)>,
    /// What was, in that order; and the first PSN not sent then. An answer to that, or to a later ask, comes after these.
    asked: VecDeque<(Psn, u32, Psn)>,
}

/// Answers that are kept before earlier ones, at the most: a READ of 256 MiB at path MTU 4096. More are asked for again.
const EARLY_MAX: usize = 1 << 16;

impl Answers {
    pub fn has_asks(&self) -> bool {
        !self.asks.is_empty()
    }

    /// Everything is sent again, and answered again.
    pub fn start_over(&mut self) {
        self.asks.clear();
        self.asked.clear();
        self.watched = None;
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
        let at = psn.since(first_psn) as u32;
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
        }
        self.repeat_asks(psn, true);
        self.settle_answers(psn.plus(1), identity, cx)
    }

    /// All requests before `psn` were carried out, says the peer. Those whose answers lack are asked for again.
    pub(super) fn settle_answers(
        &mut self,
        psn: Psn,
        identity: &Identity,
        cx: &mut Surroundings<'_>,
    ) -> Result<(), Fatal> {
        let latest = |known: Option<Psn>| known.filter(|known| psn.is_before(*known)).unwrap_or(psn);
        let frontier = latest(self.answers.as_ref().and_then(|answers| answers.frontier));
        let watched = self.answers.as_ref().and_then(|answers| answers.watched);
        // Up to the first answer that lacks; answers may be here from beyond the frontier.
        let mut to = frontier;
        for wqe in self.queue.iter().take_while(|wqe| wqe.first_psn.is_before(frontier)) {
            let answered = wqe.first_psn.plus(wqe.received);
            if wqe.awaits_answer() || (wqe.request.operation.is_read_or_atomic() && to.is_before(answered)) {
                to = answered;
            }
            if wqe.awaits_answer() {
                break;
            }
        }
        let lacks = to.is_before(frontier);
        if lacks {
            self.repeat_asks(psn.minus(1), false);
            self.ask_between(watched.unwrap_or(self.unacknowledged), psn);
        }
        if lacks || self.answers.is_some() {
            let answers = self.answers.get_or_insert_default();
            (answers.frontier, answers.watched) = (Some(frontier), Some(latest(watched)));
        }
        self.progress(to, cx.now);
        self.retire(identity, cx)
    }

    /// Whether nothing from `psn` on was answered, although answers to what is before may lack.
    pub(super) fn is_frontier(&self, psn: Psn) -> bool {
        self.answers.as_ref().is_some_and(|answers| answers.frontier == Some(psn))
    }

    /// Asks for all answers that lack from `from` on and before `psn`.
    fn ask_between(&mut self, from: Psn, psn: Psn) {
        let mut at = if from.is_before(self.unacknowledged) { self.unacknowledged } else { from };
        let mut asks = Vec::new();
        while at.is_before(psn) {
            let Some(index) = self.find(at) else { break };
            let wqe = &self.queue[index];
            let from = at.since(wqe.first_psn) as u32;
            match self.missing_run(index, from) {
                Some((start, count)) if wqe.first_psn.plus(start).is_before(psn) => {
                    let first = wqe.first_psn.plus(start);
                    let count = count.min(psn.since(first) as u32);
                    asks.push((first, count));
                    at = first.plus(count);
                }
                _ => at = wqe.first_psn.plus(wqe.packets),
            }
        }
        self.answers.get_or_insert_default().asks.extend(asks);
    }

    /// What was asked for and lacks is asked for once more when the answer at `psn` comes after it.
    fn repeat_asks(&mut self, psn: Psn, is_answer: bool) {
        let Some(answers) = &self.answers else { return };
        let in_ask = |&(first, count, _): &(Psn, u32, Psn)| is_answer && psn.is_within(first, count);
        let later = answers.asked.iter().rposition(in_ask);
        let after_all = answers.asked.iter().take_while(|(_, _, sent)| !psn.is_before(*sent)).count();
        for _ in 0..later.unwrap_or(0).max(after_all) {
            let Some((first, count, _)) = self.answers.as_mut().and_then(|answers| answers.asked.pop_front()) else {
                break;
            };
            let mut at = first;
            while at.is_before(first.plus(count)) {
                let Some(index) = self.find(at) else { break };
                let first_psn = self.queue[index].first_psn;
                let Some((start, run)) = self.missing_run(index, at.since(first_psn) as u32) else { break };
                let from = first_psn.plus(start);
                let rest = first.plus(count).since(from);
                if rest > 0 {
                    self.answers.get_or_insert_default().asks.push_back((from, run.min(rest as u32)));
                }
                at = from.plus(run);
            }
        }
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
        while let Some((first, count)) = self.answers.as_mut().and_then(|answers| answers.asks.pop_front()) {
            // Some may have come meanwhile.
            let index = self.find(first).filter(|index| self.queue[*index].failed.is_none());
            let run = index.and_then(|index| {
                self.missing_run(index, first.since(self.queue[index].first_psn) as u32).map(|run| (index, run))
            });
            let Some((index, (start, run))) = run else { continue };
            let wqe = &self.queue[index];
            let psn = wqe.first_psn.plus(start);
            let Ok(count @ 1..) = u32::try_from(first.plus(count).since(psn)) else { continue };
            let answers = run.min(count);
            let offers = identity.extension.offer(0);
            let packet = RequestPacket { index: start, psn, answers, is_again: true, offers, trailer: None, path: 0 };
            let written = write_request(wqe, packet, out, identity, cx);
            let Ok(Some(transmit)) = written else { return Ok(None) };
            cx.counters.retransmitted += 1;
            let sent = self.sent;
            self.answers.get_or_insert_default().asked.push_back((psn, answers, sent));
            self.restart_timer(cx.now);
            return Ok(Some(transmit));
        }
        Ok(None)
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

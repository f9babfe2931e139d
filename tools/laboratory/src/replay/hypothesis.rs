use rustc_hash::FxHashMap;
use uroce::time::Duration;
use uroce::wire::{NakCode, Operation, PathMtu, Position, Psn, RnrTimer, Syndrome};

use super::conversation::{Conversation, Observed};

/// What happened to the requests of a conversation, so that the responder gave the answers of the capture.
///
/// It is the story of lowest cost by the IBTA's rules for the order of PSNs (9.7.4.1.1, 9.7.5.2.8).
#[derive(Debug)]
pub(super) struct Hypothesis {
    /// The fate of each request, in order.
    pub fates: Vec<Fate>,
    /// The indexes of answers that belong to no request.
    pub unexplained: Vec<usize>,
    pub first_psn: Psn,
}

/// What happened to a request, and its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub outcome: Outcome,
    /// The answers that the IBTA requires, each with the capture's.
    pub answers: Vec<(Expected, Theirs)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The request belongs to the time before the capture.
    Before,
    /// The request never reached the peer.
    Lost,
    /// The request was the next in order, and was carried out.
    Served,
    /// The request was the next in order, and no receive request was posted for it.
    NotReady(RnrTimer),
    /// The request was the next in order, and a fatal NAK refused it.
    Refused(NakCode),
    /// The request is a SEND that invalidates a key which is not a window's. As with rxe, it is acknowledged, but not
    /// counted, and the peer is silent afterwards.
    InvalidateRefused,
    /// The request was out of order.
    Ahead,
    /// The request is a duplicate of one that was carried out.
    Duplicate,
    /// The connection was already in the error state.
    Dead,
}

/// The answer of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theirs {
    /// The answer of this index.
    Answer(usize),
    /// A later answer acknowledges it, too.
    Coalesced,
    /// The answer is missing.
    Missing,
}

/// An answer that the IBTA requires, as far as PSNs determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Acknowledge(Psn),
    /// The answer to a duplicate: any PSN from its own to the latest one means the same (IBTA 9.7.5.1.3), and
    /// responders differ.
    Again {
        from: Psn,
        to: Psn,
    },
    SequenceNak(Psn),
    /// The sequence NAK that rxe sends after an RNR NAK, which the IBTA does not require.
    NakAfterRnr(Psn),
    Other(Psn),
    Read(Psn),
    Atomic(Psn),
}

/// The state of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    expected: Psn,
    wait: Wait,
    dead: bool,
    /// The number of the capture's answers that are explained.
    answered: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wait {
    No,
    /// The responder sent a sequence NAK.
    Gap,
    /// The responder sent an RNR NAK.
    Receiver,
}

/// The costs of a story, higher for less likely events. A request that was lost and retransmitted is common, one that
/// was lost and never retransmitted is not.
const LOST: u32 = 1;
const LOST_FOR_EVER: u32 = 1000;
const COALESCED: u32 = 2;
const MISSING: u32 = 100;
const UNEXPLAINED: u32 = 100;
const WRONG: u32 = 150;

/// Upper bound on the stories that are followed at a time. They branch where a loss is possible, and most end at the
/// next answer.
const STORIES: usize = 32;

/// The difference in cost to the cheapest story at which a story is given up.
const MARGIN: u32 = 400;

/// Upper bound on the unexplained answers before the right one.
const SKIP: usize = 3;

/// A story up to some request.
struct Story {
    state: State,
    cost: u32,
    parent: usize,
    fate: Fate,
    skipped: Vec<usize>,
}

/// One possible match of expected answers with those of the capture.
#[derive(Clone)]
struct Match {
    cost: u32,
    answered: usize,
    theirs: Vec<(Expected, Theirs)>,
    skipped: Vec<usize>,
}

impl Expected {
    fn psn(self) -> Psn {
        match self {
            Expected::Acknowledge(psn)
            | Expected::SequenceNak(psn)
            | Expected::NakAfterRnr(psn)
            | Expected::Other(psn)
            | Expected::Read(psn)
            | Expected::Atomic(psn)
            | Expected::Again { to: psn, .. } => psn,
        }
    }

    pub fn is(self, answer: &Observed) -> bool {
        let from = if let Expected::Again { from, .. } = self { from } else { self.psn() };
        if answer.psn().is_before(from) || self.psn().is_before(answer.psn()) {
            return false;
        }
        let syndrome = answer.packet().aeth().map(|aeth| aeth.syndrome());
        let nak = Syndrome::Nak(NakCode::PsnSequenceError);
        match (self, answer.operation()) {
            (Expected::Acknowledge(_) | Expected::Again { .. }, Operation::Acknowledge) => {
                matches!(syndrome, Some(Syndrome::Ack { .. }))
            }
            (Expected::SequenceNak(_) | Expected::NakAfterRnr(_), Operation::Acknowledge) => syndrome == Some(nak),
            (Expected::Other(_), Operation::Acknowledge) => true,
            (Expected::Read(_), Operation::ReadResponse) => true,
            (Expected::Atomic(_), Operation::AtomicAcknowledge) => true,
            _ => false,
        }
    }
}

/// The data that the search for a story needs.
struct Search<'a> {
    conversation: &'a Conversation,
    mtu: PathMtu,
    /// The number of times that each PSN was requested.
    asked: FxHashMap<u32, u32>,
    /// For each request, how much later the next one that requires an answer was sent.
    next_asking: Vec<Option<Duration>>,
    /// Upper bound on the time that an acknowledge waits to be coalesced with the next.
    patience: Duration,
}

impl Hypothesis {
    /// Finds the story of lowest cost. `None` when no message begins in the capture.
    pub fn of(conversation: &Conversation, mtu: PathMtu) -> Option<Hypothesis> {
        let requests = &conversation.requests;
        let start = requests.iter().position(|request| request.position().starts())?;
        let first_psn = requests[start].psn();
        let search = Search::new(conversation, mtu);
        let before = conversation.answers.iter().take_while(|answer| answer.number < requests[start].number).count();
        let root = State { expected: first_psn, wait: Wait::No, dead: false, answered: before };
        let nothing = |outcome| Fate { outcome, answers: Vec::new() };
        let mut layers: Vec<Vec<Story>> = Vec::with_capacity(requests.len() + 1);
        layers.push(vec![Story {
            state: root,
            cost: 0,
            parent: 0,
            fate: nothing(Outcome::Before),
            skipped: Vec::new(),
        }]);
        for (index, request) in requests.iter().enumerate() {
            let is_before = index < start || request.psn().is_before(first_psn);
            let mut best: FxHashMap<State, Story> = FxHashMap::default();
            let last = layers.last().expect("there is a first one");
            let cheapest = last.iter().map(|story| story.cost).min().unwrap_or(0);
            for (parent, story) in last.iter().enumerate() {
                if story.cost > cheapest + MARGIN {
                    continue;
                }
                let next = match is_before {
                    true => vec![(story.state, 0, nothing(Outcome::Before), Vec::new())],
                    false => search.continuations(story.state, index),
                };
                for (state, cost, fate, skipped) in next {
                    let cost = story.cost + cost;
                    if best.get(&state).is_none_or(|other| cost < other.cost) {
                        best.insert(state, Story { state, cost, parent, fate, skipped });
                    }
                }
            }
            let mut stories: Vec<_> = best.into_values().collect();
            stories.sort_by_key(|story| {
                (story.cost, std::cmp::Reverse(story.state.answered), story.state.expected.value())
            });
            stories.truncate(STORIES);
            layers.push(stories);
        }
        Some(trace(layers, conversation.answers.len(), first_psn))
    }
}

/// Follows the story of lowest cost back to its start.
fn trace(layers: Vec<Vec<Story>>, answers: usize, first_psn: Psn) -> Hypothesis {
    let last = layers.last().expect("there is a first one");
    let total = |story: &Story| story.cost + UNEXPLAINED * (answers - story.state.answered) as u32;
    let mut index = (0..last.len()).min_by_key(|&index| total(&last[index])).expect("some story is left");
    let mut unexplained: Vec<usize> = (last[index].state.answered..answers).collect();
    let mut fates = Vec::with_capacity(layers.len());
    for layer in layers.into_iter().skip(1).rev() {
        let story = layer.into_iter().nth(index).expect("parents exist");
        index = story.parent;
        unexplained.extend(story.skipped);
        fates.push(story.fate);
    }
    fates.reverse();
    unexplained.sort_unstable();
    Hypothesis { fates, unexplained, first_psn }
}

impl<'a> Search<'a> {
    fn new(conversation: &'a Conversation, mtu: PathMtu) -> Search<'a> {
        let requests = &conversation.requests;
        let mut asked = FxHashMap::default();
        for request in requests {
            for index in 0..request.psns(mtu).min(requests.len() as u32 + conversation.answers.len() as u32) {
                *asked.entry(request.psn().plus(index).value()).or_default() += 1;
            }
        }
        let mut next = None;
        let mut next_asking = vec![None; requests.len()];
        for (index, request) in requests.iter().enumerate().rev() {
            next_asking[index] = next.map(|time| time - request.time);
            if request.wants_answer() {
                next = Some(request.time);
            }
        }
        // The usual delay of answers: an acknowledge that has left when the next request arrives cannot be coalesced
        // with the next one's.
        let mut sent = FxHashMap::default();
        let mut delays = Vec::new();
        let mut frames: Vec<_> = requests.iter().map(|r| (r, true)).collect();
        frames.extend(conversation.answers.iter().map(|answer| (answer, false)));
        frames.sort_by_key(|(frame, _)| frame.number);
        for (frame, is_request) in frames {
            if is_request {
                sent.insert(frame.psn().value(), frame.time);
            } else if let Some(time) = sent.get(&frame.psn().value()) {
                delays.push(frame.time - *time);
            }
        }
        delays.sort_unstable();
        let patience = delays.get(delays.len() / 2).copied().unwrap_or_default();
        Search { conversation, mtu, asked, next_asking, patience }
    }

    /// The possible continuations when request `index` is sent: the state after it, its cost, its fate, and skipped
    /// answers.
    fn continuations(&self, state: State, index: usize) -> Vec<(State, u32, Fate, Vec<usize>)> {
        let request = &self.conversation.requests[index];
        let psn = request.psn();
        let mut all = Vec::new();
        let lost = match self.asked.get(&psn.value()) {
            Some(count) if *count > 1 => LOST,
            _ => LOST_FOR_EVER,
        };
        let ahead = psn.since(state.expected);
        let mut add = |outcome, after: State, extra: u32, expected: &[Expected]| {
            for Match { cost, answered, theirs, skipped } in self.matches(state.answered, index, expected) {
                let fate = Fate { outcome, answers: theirs };
                all.push((State { answered, ..after }, cost + extra, fate, skipped));
            }
        };
        if state.dead {
            add(Outcome::Dead, state, 0, &[]);
            return all;
        }
        add(Outcome::Lost, state, lost, &[]);
        if ahead > 0 {
            match state.wait {
                Wait::Gap => add(Outcome::Ahead, state, 0, &[]),
                Wait::No => {
                    let after = State { wait: Wait::Gap, ..state };
                    add(Outcome::Ahead, after, 0, &[Expected::SequenceNak(state.expected)]);
                }
                Wait::Receiver => {
                    add(Outcome::Ahead, state, 0, &[]);
                    let nak = Expected::NakAfterRnr(state.expected);
                    if self.upcoming(state.answered, index).any(|answer| nak.is(answer)) {
                        add(Outcome::Ahead, State { wait: Wait::Gap, ..state }, 0, &[nak]);
                    }
                }
            }
            return all;
        }
        if ahead < 0 {
            let expected = match request.operation() {
                Operation::ReadRequest => self.read(request),
                Operation::Flush | Operation::AtomicWrite => vec![Expected::Read(psn)],
                Operation::CompareSwap | Operation::FetchAdd => vec![Expected::Atomic(psn)],
                _ => vec![Expected::Again { from: psn, to: state.expected.minus(1) }],
            };
            add(Outcome::Duplicate, state, 0, &expected);
            return all;
        }
        let psns = request.psns(self.mtu);
        let served = State { expected: psn.plus(psns), wait: Wait::No, ..state };
        let expected = match request.operation() {
            Operation::ReadRequest => self.read(request),
            Operation::Flush | Operation::AtomicWrite => vec![Expected::Read(psn)],
            Operation::CompareSwap | Operation::FetchAdd => vec![Expected::Atomic(psn)],
            _ if request.wants_answer() => vec![Expected::Acknowledge(psn)],
            _ => Vec::new(),
        };
        add(Outcome::Served, served, 0, &expected);
        for answer in self.upcoming(state.answered, index).take(SKIP) {
            if answer.psn() != psn {
                continue;
            }
            let outcome = match answer.packet().aeth().map(|aeth| aeth.syndrome()) {
                Some(Syndrome::RnrNak(timer)) => Outcome::NotReady(timer),
                Some(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError => Outcome::Refused(code),
                Some(Syndrome::Ack { .. }) if self.is_refused_invalidate(state.answered, request) => {
                    Outcome::InvalidateRefused
                }
                _ => continue,
            };
            let after = match outcome {
                Outcome::NotReady(_) => State { wait: Wait::Receiver, ..state },
                _ => State { dead: true, ..state },
            };
            add(outcome, after, 0, &[Expected::Other(psn)]);
        }
        all
    }

    /// Whether the next answer acknowledges `request`, a SEND with invalidate, without counting it.
    fn is_refused_invalidate(&self, answered: usize, request: &Observed) -> bool {
        let msn = |index: usize| {
            let answer = self.conversation.answers.get(index)?;
            answer.packet().aeth().map(|aeth| aeth.msn())
        };
        request.packet().ieth().is_some()
            && match answered.checked_sub(1) {
                Some(before) => msn(before).is_some() && msn(before) == msn(answered),
                None => msn(answered).is_some_and(|msn| msn.value() == 0),
            }
    }

    fn read(&self, request: &Observed) -> Vec<Expected> {
        // An unanswered request for gigabytes does not need a full list.
        let most = self.conversation.answers.len() as u32 + 1;
        (0..request.psns(self.mtu).min(most)).map(|index| Expected::Read(request.psn().plus(index))).collect()
    }

    /// The unexplained answers that came after request `index`.
    fn upcoming(&self, answered: usize, index: usize) -> impl Iterator<Item = &'a Observed> + use<'a> {
        let number = self.conversation.requests[index].number;
        self.conversation.answers[answered..].iter().skip_while(move |answer| answer.number < number)
    }

    /// The possible matches of `expected` with the answers from `answered` on.
    fn matches(&self, answered: usize, index: usize, expected: &[Expected]) -> Vec<Match> {
        const WAYS: usize = 4;
        let mut ways = vec![Match { cost: 0, answered, theirs: Vec::new(), skipped: Vec::new() }];
        for &expected in expected {
            let mut next = Vec::new();
            for way in ways {
                self.extend(way, index, expected, &mut next);
            }
            next.sort_by_key(|way| way.cost);
            next.truncate(WAYS);
            ways = next;
        }
        ways
    }

    fn extend(&self, way: Match, index: usize, expected: Expected, next: &mut Vec<Match>) {
        let request = &self.conversation.requests[index];
        let answers = &self.conversation.answers;
        let is_after = |at: usize| answers.get(at).is_some_and(|answer| answer.number > request.number);
        let at = way.answered;
        let with = |theirs, cost: u32, to: usize| {
            let mut way = way.clone();
            way.theirs.push((expected, theirs));
            way.cost += cost;
            let taken = match theirs {
                Theirs::Answer(taken) => taken,
                _ => to,
            };
            way.skipped.extend(way.answered..taken);
            way.answered = to;
            way
        };
        if is_after(at) && expected.is(&answers[at]) {
            next.push(with(Theirs::Answer(at), 0, at + 1));
            return;
        }
        next.push(with(Theirs::Missing, MISSING, at));
        if is_after(at) {
            next.push(with(Theirs::Answer(at), WRONG, at + 1));
            let speaks_for = answers[at].psn().since(expected.psn()) > 0;
            let in_time = self.next_asking[index].is_some_and(|time| time <= self.patience);
            if speaks_for && in_time && matches!(expected, Expected::Acknowledge(_) | Expected::Again { .. }) {
                next.push(with(Theirs::Coalesced, COALESCED, at));
            }
        }
        for skip in 1..=SKIP {
            if is_after(at + skip) && expected.is(&answers[at + skip]) {
                next.push(with(Theirs::Answer(at + skip), UNEXPLAINED * skip as u32, at + skip + 1));
            }
        }
    }
}

/// For each request that begins a SEND: the length of the message in bytes, as far as it was carried out, even when its
/// end is not in the capture.
pub(super) fn send_lengths(requests: &[Observed], fates: &[Fate]) -> FxHashMap<usize, u32> {
    let mut lengths = FxHashMap::default();
    let mut open: Option<usize> = None;
    for (index, (request, fate)) in requests.iter().zip(fates).enumerate() {
        if request.operation() != Operation::Send {
            continue;
        }
        match fate.outcome {
            Outcome::Served | Outcome::InvalidateRefused => {
                if request.position().starts() {
                    open = Some(index);
                }
                let Some(start) = open else { continue };
                *lengths.entry(start).or_default() += request.packet().payload().len() as u32;
                if request.position().ends() {
                    open = None;
                }
            }
            Outcome::Refused(_) if request.position() == Position::First || request.position() == Position::Only => {
                lengths.insert(index, 0);
            }
            _ => {}
        }
    }
    lengths
}

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use uroce::wire::{AcknowledgeTrailer, Aeth, Msn, NakCode, Operation, PathMtu, Psn, Syndrome};

use super::comparison::{Answer, Assumptions, Report, payload_difference};
use super::conversation::{Conversation, Observed};
use super::hypothesis::{Expected, Fate, Hypothesis, Outcome, Theirs};
use super::responder::Responder;
use super::{ReplayError, Roles, requester};

/// Upper bound on the PSNs between requests in flight (docs/EXTENSIONS.md); farther apart, sorting by PSN means nothing.
const IN_FLIGHT_MAX: i32 = 262_144;

/// What is not compared, and is said with every such conversation.
const NOT_COMPARED: &str = "repeats selectively (docs/EXTENSIONS.md): requests were replayed once each, in the order of \
                            their PSNs; not compared are when packets are sent, which are retransmitted, and of \
                            trailers delays, marks, hellos, probes, addresses and reports of answers";

/// A reliable connection whose sides repeat selectively, as it is without losses.
///
/// The extension changes when packets are sent and repeated. It does not change what they mean: requests execute in the
/// order of their PSNs, once. So our state machine gets each request once, in that order and without its trailer, and
/// what it answers is what every answer in the capture must say, whenever it was sent and however often.
struct Straight {
    conversation: Conversation,
    mtu: PathMtu,
    /// The first frame of each request, by PSN and attempt.
    sent: FxHashMap<(u32, u8), u64>,
    /// The first frame of each request, by PSN.
    first_sent: FxHashMap<u32, u64>,
    /// The PSNs of READs and atomics that were asked for more than once: their answers begin anywhere, and have the MSN of
    /// their time.
    asked_again: FxHashSet<u32>,
    /// Retransmissions and duplicates among the requests.
    again: u64,
    /// Requests from a PSN on that is not in the capture.
    left: u64,
}

/// Replays a connection that repeats selectively, in the asked roles.
pub(super) fn replay(conversation: &Conversation, roles: Roles, report: &mut Report) -> Result<(), ReplayError> {
    let name = conversation.name();
    let (requests, answers) = (&conversation.requests, &conversation.answers);
    if was_connected_again(requests) || was_connected_again(answers) {
        report.assumed.push(format!("{name}: not replayed, since the queue pair was connected again"));
        return Ok(());
    }
    let Some(straight) = Straight::of(conversation) else {
        report.assumed.push(format!("{name}: not replayed, since no message begins in the capture"));
        return Ok(());
    };
    let mut assumptions = Assumptions::default();
    assumptions.add(NOT_COMPARED);
    assumptions.add_many("a request was retransmitted or arrived twice, and was not compared", straight.again);
    assumptions.add_many("a request is behind a PSN that is not in the capture, and was not compared", straight.left);
    let hypothesis = straight.hypothesis();
    let mut responder = Responder::new(&straight.conversation, straight.mtu, hypothesis)?;
    let ours = responder.answer_all();
    if roles != Roles::Requester {
        Comparison::new(conversation, &straight, &ours).run(report, &mut assumptions);
    }
    report.assumed.extend(assumptions.lines(&name));
    if roles != Roles::Responder {
        let conversation = Conversation { answers: ours, ..straight.conversation };
        requester::replay_with_our_answers(&conversation, report)?;
    }
    Ok(())
}

/// Whether what is sent to a queue pair belongs to several connections: other nonces, or PSNs that nobody has in flight
/// together.
fn was_connected_again(frames: &[Observed]) -> bool {
    let mut tags = frames.iter().map(Observed::tag).filter(|tag| *tag != 0);
    let first = tags.next();
    let jumps = |pair: &[Observed]| pair[1].psn().since(pair[0].psn()).abs() > IN_FLIGHT_MAX;
    tags.any(|tag| Some(tag) != first) || frames.windows(2).any(jumps)
}

impl Straight {
    /// `None` when no message begins in the capture.
    fn of(conversation: &Conversation) -> Option<Straight> {
        let mtu = conversation.path_mtu();
        let base = conversation.requests.iter().find(|request| request.position().starts())?.psn();
        // By their distance from the first one, over the wrap of PSNs as well.
        let (mut latest, mut by_place) = (0_i64, BTreeMap::new());
        let (mut sent, mut first_sent, mut count) = (FxHashMap::default(), FxHashMap::default(), 0);
        for request in &conversation.requests {
            let distance = request.psn().since(base.plus(latest as u32));
            let place = latest + i64::from(distance);
            if place < 0 {
                continue;
            }
            count += 1;
            latest = latest.max(place);
            sent.entry((request.psn().value(), request.attempt())).or_insert(request.number);
            first_sent.entry(request.psn().value()).or_insert(request.number);
            by_place.entry(place).or_insert_with(Vec::new).push(request);
        }
        let (mut requests, mut asked_again) = (Vec::new(), FxHashSet::default());
        let (mut next, mut again, mut is_complete) = (0, 0, true);
        for (place, copies) in &by_place {
            is_complete &= *place <= next;
            if !is_complete {
                break;
            }
            again += copies.len() as u64;
            let has_data = |request: &&&Observed| {
                let operation = request.operation();
                matches!(operation, Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd)
            };
            for read in copies.iter().filter(has_data) {
                if *place < next || copies.len() > 1 {
                    asked_again.extend((0..read.psns(mtu)).map(|index| read.psn().plus(index).value()));
                }
            }
            if *place == next {
                again -= 1;
                next += i64::from(copies[0].psns(mtu));
                let order = 2 * requests.len() as u64 + 1;
                requests.push(copies[0].plain(conversation.addresses, true).at(order));
            }
        }
        let left = count - again - requests.len() as u64;
        let answers = conversation.answers.iter().map(|answer| answer.plain(conversation.addresses.reversed(), false));
        let conversation = Conversation {
            service: conversation.service,
            addresses: conversation.addresses,
            responder: conversation.responder,
            requester: conversation.requester,
            requests,
            answers: answers.collect(),
            is_selective: true,
            nonces: Vec::new(),
        };
        Some(Straight { conversation, mtu, sent, first_sent, asked_again, again, left })
    }

    /// All are served, once. Memory holds what the first answer with each PSN shows.
    fn hypothesis(&self) -> Hypothesis {
        let conversation = &self.conversation;
        let mtu = self.mtu;
        let mut data: FxHashMap<u32, usize> = FxHashMap::default();
        for (index, answer) in conversation.answers.iter().enumerate() {
            if matches!(answer.operation(), Operation::ReadResponse | Operation::AtomicAcknowledge) {
                data.entry(answer.psn().value()).or_insert(index);
            }
        }
        let theirs = |psn: Psn| data.get(&psn.value()).map_or(Theirs::Missing, |index| Theirs::Answer(*index));
        let fate = |request: &Observed| {
            let psn = request.psn();
            let answers = match request.operation() {
                Operation::ReadRequest => (0..request.psns(mtu))
                    .map(|index| (Expected::Read(psn.plus(index)), theirs(psn.plus(index))))
                    .collect(),
                Operation::CompareSwap | Operation::FetchAdd => vec![(Expected::Atomic(psn), theirs(psn))],
                _ => Vec::new(),
            };
            Fate { outcome: Outcome::Served, answers }
        };
        Hypothesis {
            fates: conversation.requests.iter().map(fate).collect(),
            unexplained: Vec::new(),
            first_psn: conversation.requests[0].psn(),
        }
    }
}

/// Each answer of the capture beside what it must say.
struct Comparison<'a> {
    conversation: &'a Conversation,
    straight: &'a Straight,
    /// Our answers with data, by PSN.
    data: FxHashMap<u32, Answer>,
    /// How many messages are complete up to a PSN.
    msns: FxHashMap<u32, Msn>,
    /// How many messages there are.
    most_msn: u32,
    /// How far their MSN is ahead of ours.
    msn_offset: u32,
}

impl<'a> Comparison<'a> {
    fn new(conversation: &'a Conversation, straight: &'a Straight, ours: &[Observed]) -> Comparison<'a> {
        let (mut data, mut msns) = (FxHashMap::default(), FxHashMap::default());
        // Before the first request nothing is complete.
        msns.insert(straight.conversation.requests[0].psn().minus(1).value(), Msn::new(0));
        for answer in ours.iter().map(Answer::of) {
            if let Some((Syndrome::Ack { .. }, msn)) = answer.aeth {
                msns.insert(answer.psn.value(), msn);
            }
            if !matches!(answer.opcode.operation(), Operation::Acknowledge) {
                data.insert(answer.psn.value(), answer);
            }
        }
        let mut votes: BTreeMap<u32, u32> = BTreeMap::new();
        for answer in &conversation.answers {
            let aeth = answer.packet().aeth().map(Aeth::msn);
            if let (Some(theirs), Some(ours)) = (aeth, msns.get(&answer.psn().value())) {
                *votes.entry(theirs.value().wrapping_sub(ours.value()) & 0x00ff_ffff).or_default() += 1;
            }
        }
        let best = votes.into_iter().max_by_key(|(offset, votes)| (*votes, *offset == 0));
        let msn_offset = best.filter(|(_, votes)| *votes > 1).map_or(0, |(offset, _)| offset);
        let most_msn = msns.values().map(|msn| msn.value()).max().unwrap_or(0);
        Comparison { conversation, straight, data, msns, most_msn, msn_offset }
    }

    fn run(&self, report: &mut Report, assumptions: &mut Assumptions) {
        let nonces = self.nonces();
        for (answer, plain) in self.conversation.answers.iter().zip(&self.straight.conversation.answers) {
            let theirs = Answer::of(plain);
            let syndrome = theirs.aeth.map(|(syndrome, _)| syndrome);
            if let Some(Syndrome::RnrNak(_) | Syndrome::Nak(_) | Syndrome::Unknown(_)) = syndrome {
                let is_sequence_error = syndrome == Some(Syndrome::Nak(NakCode::PsnSequenceError));
                let what = if is_sequence_error { "a NAK for a sequence error" } else { "a NAK" };
                assumptions.add(format!("{what} was not compared"));
                continue;
            }
            let verdict = match theirs.opcode.operation() {
                Operation::Acknowledge => self.acknowledge(answer, &theirs),
                _ => self.data(&theirs, assumptions),
            };
            let verdict = verdict.or_else(|| {
                let tag = answer.packet().split_tag().map(|(_, tag)| tag).filter(|tag| *tag != 0)?;
                let is_known = nonces.is_empty() || nonces.contains(&tag);
                (!is_known).then(|| ("tag", format!("the tag {tag:#010x} is no nonce of the receiver's")))
            });
            match verdict {
                None => report.equal(),
                Some(("not-asked", _)) => assumptions.add("an answer to what is not in the capture was not compared"),
                Some((rule, text)) => report.differs(answer.number, rule, text),
            }
        }
    }

    /// What the requester's hellos bring: the tags of what is sent to it.
    fn nonces(&self) -> FxHashSet<u32> {
        self.conversation.nonces.iter().copied().collect()
    }

    fn data(&self, theirs: &Answer, assumptions: &mut Assumptions) -> Option<(&'static str, String)> {
        let Some(ours) = self.data.get(&theirs.psn.value()) else {
            return Some(("not-asked", String::new()));
        };
        if self.straight.asked_again.contains(&theirs.psn.value()) {
            assumptions.add("an answer to a READ or atomic that was requested twice was compared in its data alone");
            let text = || format!("{theirs}: {}", payload_difference(&theirs.payload, &ours.payload));
            if theirs.original != ours.original {
                return Some(("original", format!("{theirs}; ours is {ours}")));
            }
            return (theirs.payload != ours.payload).then(|| ("payload", text()));
        }
        let rule = theirs.difference(ours, self.msn_offset)?;
        let mut text = format!("{theirs}; ours is {ours}");
        if rule == "payload" {
            text = format!("{text}: {}", payload_difference(&theirs.payload, &ours.payload));
        }
        Some((rule, text))
    }

    /// An acknowledge says that all up to its PSN has executed, and how many messages that were; its trailer, what has
    /// arrived.
    fn acknowledge(&self, answer: &Observed, theirs: &Answer) -> Option<(&'static str, String)> {
        let trailer = answer.packet().split_tag().and_then(|(packet, _)| packet.acknowledge_trailer());
        // Hellos and reports of answers stay before the answers with data that are owed.
        let is_of_answered = matches!(trailer, Some(AcknowledgeTrailer::Hello(_) | AcknowledgeTrailer::Answers(_)));
        let within = || self.request_over(theirs.psn).filter(|_| is_of_answered);
        let at = |psn: Psn| self.msns.get(&psn.value());
        let Some(ours) = at(theirs.psn).or_else(|| at(within()?.psn().minus(1))) else {
            let last = self.straight.conversation.requests.last()?.psn();
            let is_behind = self.straight.left > 0 && !theirs.psn.is_before(last);
            let text = format!("{theirs}; no request ends at this PSN");
            return Some((if is_behind { "not-asked" } else { "psn" }, text));
        };
        let (_, msn) = theirs.aeth?;
        let ahead = msn.value().wrapping_sub(ours.value()).wrapping_sub(self.msn_offset) & 0x00ff_ffff;
        // Their MSN is the current one.
        let most = if is_of_answered { self.most_msn } else { 0 };
        if ahead > most {
            return Some(("msn", format!("{theirs}; up to there {} messages are complete", ours.value())));
        }
        let was_sent = |psn: Psn, attempt: u8| {
            self.straight.sent.get(&(psn.value(), attempt)).is_some_and(|number| *number < answer.number)
        };
        if !self.was_sent_before(theirs.psn, answer.number) {
            return Some(("psn", format!("{theirs}; no request with this PSN was sent before")));
        }
        let Some(AcknowledgeTrailer::Sack(sack) | AcknowledgeTrailer::Measured(sack, _)) = trailer else { return None };
        // Of a READ's answers asked for again, and of packets before the capture, nothing is known.
        if !was_sent(sack.trigger, sack.attempt) && !self.may_be_earlier(sack.trigger) {
            let (trigger, attempt) = (sack.trigger, sack.attempt);
            return Some(("trigger", format!("PSN {trigger}, attempt {attempt}, was not sent before")));
        }
        let received = sack
            .blocks
            .iter()
            .flat_map(|(base, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| base.plus(bit)));
        let mut never = received.filter(|psn| !self.was_sent_before(*psn, answer.number));
        never.next().map(|psn| ("received", format!("PSN {psn} is reported as received, and was not sent before")))
    }

    /// Whether a request with this PSN may have been sent before the capture, which began later than the connection.
    fn may_be_earlier(&self, psn: Psn) -> bool {
        self.msn_offset > 0 && psn.is_before(self.straight.conversation.requests[0].psn())
    }

    /// Whether a request with this PSN, or a READ over it, was sent before frame `number`.
    fn was_sent_before(&self, psn: Psn, number: u64) -> bool {
        let first = self.straight.conversation.requests[0].psn();
        if psn.is_before(first) {
            return psn == first.minus(1) || self.may_be_earlier(psn);
        }
        match self.request_over(psn) {
            Some(request) => self.straight.first_sent.get(&request.psn().value()).is_some_and(|sent| *sent < number),
            None => self.straight.left > 0,
        }
    }

    /// The request with this PSN, or the READ over it.
    fn request_over(&self, psn: Psn) -> Option<&Observed> {
        let requests = &self.straight.conversation.requests;
        let after = |psn: Psn| psn.after(requests[0].psn());
        let latest = requests[..requests.partition_point(|request| after(request.psn()) <= after(psn))].last()?;
        psn.is_within(latest.psn(), latest.psns(self.straight.mtu)).then_some(latest)
    }
}

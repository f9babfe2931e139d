use std::collections::VecDeque;

use uroce::time::Instant;
use uroce::transport::{Completion, Service, State, Status};
use uroce::wire::{self, Extension, NakCode, Operation, Psn, Syndrome};

use super::ReplayError;
use super::comparison::{Answer, Assumptions, Report, payload_difference};
use super::conversation::{Conversation, Observed};
use super::messages::{Message, Messages, Source};
use super::stand_in::{Role, StandIn};

/// Our requester in place of theirs. It posts the requests that theirs must have posted, and gets the answers of the
/// capture; its packets are compared with theirs.
///
/// The capture does not show which answers reached the requester, and when. They are handed over as late as possible:
/// when only an answer, or a timeout, explains their next packet.
struct Requester<'a> {
    conversation: &'a Conversation,
    messages: Messages,
    peer: StandIn,
    source: Source,
    /// The number of messages posted.
    posted: usize,
    /// The number of messages completed.
    completed: usize,
    /// The indexes of answers that are not handed over yet.
    pending: VecDeque<usize>,
    /// Whether the delay of an RNR NAK is running.
    waits: bool,
    /// The answers are our responder's, so that completions show nothing.
    has_our_answers: bool,
    assumptions: Assumptions,
}

/// Replays a connected conversation, as the requester.
pub(super) fn replay(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    replay_requests(conversation, false, report)
}

/// Replays the requests of a reliable conversation whose answers are our responder's: completions are not compared.
pub(super) fn replay_with_our_answers(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    replay_requests(conversation, true, report)
}

fn replay_requests(conversation: &Conversation, has_our_answers: bool, report: &mut Report) -> Result<(), ReplayError> {
    let name = format!("{}, as requester", conversation.name());
    let mtu = conversation.path_mtu();
    let requests = &conversation.requests;
    let Some(start) = requests.iter().position(|request| request.position().starts()) else {
        report.assumed.push(format!("{name}: not replayed, since no message begins in the capture"));
        return Ok(());
    };
    let messages = Messages::of(requests, start, mtu);
    let service = if conversation.service == wire::TransportService::Uc { Service::Uc } else { Service::Rc };
    let mut peer = StandIn::new(&Role {
        service,
        addresses: conversation.addresses,
        peer: conversation.responder,
        path_mtu: mtu,
        receive_psn: Default::default(),
        send_psn: requests[start].psn(),
        q_key: Default::default(),
        rnr_timer: Default::default(),
    });
    let source = Source::new(&messages.list, &mut peer)?;
    let pending = (0..conversation.answers.len())
        .filter(|&index| conversation.answers[index].order > requests[start].order)
        .collect();
    let mut requester = Requester {
        conversation,
        messages,
        peer,
        source,
        posted: 0,
        completed: 0,
        pending,
        waits: false,
        has_our_answers,
        assumptions: Assumptions::default(),
    };
    requester.run(start, report);
    report.assumed.extend(requester.assumptions.lines(&name));
    Ok(())
}

impl Requester<'_> {
    fn run(&mut self, start: usize, report: &mut Report) {
        let requests = &self.conversation.requests;
        self.assumptions.add_many("a request belongs to what was before the capture", start as u64);
        for (index, theirs) in requests.iter().enumerate().take(self.messages.end).skip(start) {
            if theirs.psn().is_before(requests[start].psn()) {
                self.assumptions.add("a request belongs to what was before the capture");
                continue;
            }
            self.post_what_begins(index, theirs.time, report);
            let ours = self.next_packet(theirs, report);
            self.compare(theirs, ours, report);
        }
        if let Some(request) = requests.get(self.messages.end) {
            let left = requests.len() - self.messages.end;
            self.assumptions.add(format!(
                "{left} frames from frame {} on are not replayed, since the capture lacks packets before it",
                request.number
            ));
        }
        if self.conversation.service == wire::TransportService::Uc {
            self.assumptions.add("UC has no answers: packets alone were compared");
            return;
        }
        let last_frame = requests.get(self.messages.end).map_or(u64::MAX, |request| request.order);
        while let Some(index) = self.pending.pop_front() {
            if self.conversation.answers[index].order < last_frame {
                self.deliver(index, report);
            }
        }
        if !self.has_our_answers {
            self.compare_completions(last_frame, report);
        }
    }

    fn post_what_begins(&mut self, index: usize, now: Instant, report: &mut Report) {
        while let Some(message) = self.messages.list.get(self.posted).filter(|message| message.first <= index) {
            let request = self.source.request(self.posted as u64, message);
            let number = self.conversation.requests[index].number;
            if let Err(error) = self.peer.endpoint.post_send(now, self.peer.qpn, request) {
                report.differs(number, "post", format!("frame {number} begins a message that we cannot post: {error}"));
            }
            self.posted += 1;
        }
    }

    fn cursor(&self) -> Psn {
        self.peer.endpoint.queue_pair(self.peer.qpn).expect("it exists").send_progress().1
    }

    fn state(&self) -> State {
        self.peer.endpoint.queue_pair(self.peer.qpn).expect("it exists").state()
    }

    /// Brings about the events that explain their next packet, and takes ours.
    fn next_packet(&mut self, theirs: &Observed, report: &mut Report) -> Option<Observed> {
        let psn = theirs.psn();
        if self.cursor() != psn {
            let goes_back = psn.is_before(self.cursor());
            self.deliver_below(psn, theirs.order, report);
            if self.cursor() != psn && goes_back {
                self.deliver_implied_nak(psn, theirs.order, report);
            }
            if self.cursor() != psn && goes_back && self.state() == State::ReadyToSend {
                self.fire_timer(theirs.time);
                self.assumptions.add("a timeout made the requester send again");
            }
        }
        loop {
            if self.waits {
                self.waits = false;
                let until = self.peer.endpoint.poll_timeout().unwrap_or(theirs.time);
                if until > theirs.time {
                    let early = until - theirs.time;
                    let text = format!("PSN {psn} is sent again {early:?} before the RNR NAK's delay is over");
                    report.differs(theirs.number, "rnr-delay", text);
                }
                self.fire_timer(theirs.time);
            }
            if let Some(ours) = self.peer.transmit(theirs.time) {
                return Some(ours);
            }
            // The window is closed, so that an answer must have opened it.
            let opens = |index: &usize| {
                let answer = &self.conversation.answers[*index];
                answer.order < theirs.order && answer.psn().is_before(psn)
            };
            let at = self.pending.iter().position(opens)?;
            let index = self.pending.remove(at)?;
            self.deliver(index, report);
        }
    }

    /// Fires the timer that is armed.
    fn fire_timer(&mut self, now: Instant) {
        let at = self.peer.endpoint.poll_timeout().unwrap_or(now);
        self.peer.endpoint.handle_timeout(at.max(now));
    }

    /// Hands over the answers before place `order` after which `psn` is the oldest unacknowledged one.
    fn deliver_below(&mut self, psn: Psn, order: u64, report: &mut Report) {
        let mut at = 0;
        while let Some(&index) = self.pending.get(at) {
            let answer = &self.conversation.answers[index];
            if answer.order > order || self.cursor() == psn {
                break;
            }
            // A NAK acknowledges the PSNs before it.
            let limit = if is_negative(answer) { psn.plus(1) } else { psn };
            if answer.psn().is_before(limit) {
                self.pending.remove(at);
                self.deliver(index, report);
            } else {
                at += 1;
            }
        }
    }

    /// Hands over an answer which implies that the one with data for `psn` was lost (IBTA 9.7.5.1.1).
    fn deliver_implied_nak(&mut self, psn: Psn, order: u64, report: &mut Report) {
        let holds = |message: &&Message| psn.is_within(message.first_psn, message.packets);
        let awaits = self.messages.list.iter().find(holds).is_some_and(Message::is_read_or_atomic);
        let shows = |index: &usize| {
            let answer = &self.conversation.answers[*index];
            // For a READ or atomic a plain acknowledge implies the same as a later answer.
            let is_plain = answer.psn() == psn && answer.operation() == Operation::Acknowledge && !is_negative(answer);
            answer.order < order && (psn.is_before(answer.psn()) || is_plain)
        };
        if let Some(at) = self.pending.iter().position(shows).filter(|_| awaits)
            && let Some(index) = self.pending.remove(at)
        {
            self.deliver(index, report);
            self.assumptions.add("an answer with data never arrived, as a later one showed");
        }
    }

    /// Hands over an answer, and checks the completions that it causes.
    fn deliver(&mut self, index: usize, report: &mut Report) {
        let answer = &self.conversation.answers[index];
        self.peer.feed(answer.time, answer, answer.packet().headers().extension);
        let syndrome = answer.packet().aeth().map(|aeth| aeth.syndrome());
        self.waits |= matches!(syndrome, Some(Syndrome::RnrNak(_))) && self.cursor() == answer.psn();
        while let Some(completion) = self.peer.completions.poll() {
            self.check_completion(answer, completion, report);
        }
    }

    /// Checks that a completion is the next one, and that its answer allows it.
    fn check_completion(&mut self, answer: &Observed, completion: Completion, report: &mut Report) {
        let wr = self.completed;
        self.completed += 1;
        let Some(message) = self.messages.list.get(wr) else { return };
        let acknowledged = if is_negative(answer) { answer.psn() } else { answer.psn().plus(1) };
        let text =
            format!("{} completes request {} with {:?}", Answer::of(answer), completion.wr_id, completion.status);
        let is_allowed = match completion.status {
            Status::Success => message.last_psn().is_before(acknowledged),
            Status::WrFlush => self.state() == State::Error,
            _ => is_negative(answer) && answer.psn().is_within(message.first_psn, message.packets),
        };
        if completion.wr_id != wr as u64 || !is_allowed {
            report.differs(answer.number, "completion", text);
        }
    }

    /// Checks that exactly the acknowledged messages are complete.
    fn compare_completions(&mut self, end: u64, report: &mut Report) {
        let answers = &self.conversation.answers;
        let answers = &answers[..answers.partition_point(|answer| answer.number < end)];
        let fatal: Vec<_> = answers.iter().filter(|answer| is_fatal(answer)).collect();
        let mut acknowledged = 0;
        for message in &self.messages.list {
            let last = message.last_psn();
            let first_number = self.conversation.requests[message.first].number;
            let after = &answers[answers.partition_point(|answer| answer.number < first_number)..];
            let is_answered = if message.is_read_or_atomic() {
                let brings = |psn: Psn| after.iter().any(|answer| answer.psn() == psn && carries_data(answer));
                (0..message.packets).all(|index| brings(message.first_psn.plus(index)))
            } else {
                after.iter().any(|answer| match is_negative(answer) {
                    true => last.is_before(answer.psn()),
                    false => !answer.psn().is_before(last),
                })
            };
            let fails = fatal.iter().any(|answer| {
                answer.number > first_number && answer.psn().is_within(message.first_psn, message.packets)
            });
            if !is_answered && !fails {
                break;
            }
            acknowledged += 1;
            if fails {
                // The messages after it are flushed.
                acknowledged = self.messages.list.len().min(self.posted);
                break;
            }
        }
        let number = |index: usize| {
            let message = self.messages.list.get(index.min(self.messages.list.len() - 1));
            message.map_or(0, |message| self.conversation.requests[message.first].number)
        };
        let (completed, number) = (self.completed, number(self.completed.min(acknowledged)));
        for _ in 0..completed.min(acknowledged) {
            report.equal();
        }
        if completed != acknowledged {
            let text = format!("the capture acknowledges {acknowledged} messages, our requester completes {completed}");
            report.differs(number, "completion", text);
        }
        let left = self.messages.list.len() - completed.min(self.messages.list.len());
        self.assumptions.add_many("a message has no answer before the capture ends", left as u64);
    }

    fn compare(&self, theirs: &Observed, ours: Option<Observed>, report: &mut Report) {
        let Some(ours) = ours else {
            let text = format!("{}; we send nothing", describe(theirs));
            return report.differs(theirs.number, "missing-request", text);
        };
        match request_difference(theirs, &ours) {
            None => report.equal(),
            Some(rule) => {
                let mut text = format!("{}; we send {}", describe(theirs), describe(&ours));
                if rule == "payload" {
                    let payload = |frame: &Observed| frame.packet().payload().to_vec();
                    text = format!("{text}: {}", payload_difference(&payload(theirs), &payload(&ours)));
                }
                report.differs(theirs.number, rule, text);
            }
        }
    }
}

fn carries_data(answer: &Observed) -> bool {
    matches!(answer.operation(), Operation::ReadResponse | Operation::AtomicAcknowledge)
}

fn is_negative(answer: &Observed) -> bool {
    let syndrome = answer.packet().aeth().map(|aeth| aeth.syndrome());
    matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)))
}

fn is_fatal(answer: &Observed) -> bool {
    let syndrome = answer.packet().aeth().map(|aeth| aeth.syndrome());
    matches!(syndrome, Some(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError)
}

/// A short description of a request.
pub(super) fn describe(request: &Observed) -> String {
    let packet = request.packet();
    let reth =
        packet.reth().map(|reth| format!(" {} bytes at {:#x} key {}", reth.length(), reth.address(), reth.key()));
    let (opcode, psn, len) = (packet.bth().opcode(), packet.bth().psn(), packet.payload().len());
    format!("{opcode} PSN {psn}{} with {len} bytes", reth.unwrap_or_default())
}

/// The first part of a request's meaning in which ours differs. The requester is free to choose where it requests
/// acknowledges (IBTA 9.7.3.2.1), and MigReq and reserved bits.
pub(super) fn request_difference(theirs: &Observed, ours: &Observed) -> Option<&'static str> {
    let (theirs, ours) = (theirs.packet(), ours.packet());
    let (their_bth, our_bth) = (theirs.bth(), ours.bth());
    if their_bth.opcode() != our_bth.opcode() {
        return Some("opcode");
    }
    if their_bth.psn() != our_bth.psn() {
        return Some("psn");
    }
    if their_bth.destination() != our_bth.destination() {
        return Some("destination");
    }
    if their_bth.solicited() != our_bth.solicited() {
        return Some("solicited");
    }
    let same = match (theirs.headers().extension, ours.headers().extension) {
        // The compare field of FETCH_ADD has no meaning.
        (Extension::Atomic(theirs), Extension::Atomic(ours))
            if their_bth.opcode().operation() == Operation::FetchAdd =>
        {
            (theirs.address(), theirs.key(), theirs.swap_or_add()) == (ours.address(), ours.key(), ours.swap_or_add())
        }
        // The number of the source queue pair differs.
        (Extension::Deth(theirs), Extension::Deth(ours)) => theirs.q_key() == ours.q_key(),
        (Extension::DethImmDt(theirs, their_data), Extension::DethImmDt(ours, our_data)) => {
            theirs.q_key() == ours.q_key() && their_data == our_data
        }
        (theirs, ours) => theirs == ours,
    };
    if !same {
        return Some("headers");
    }
    (theirs.payload().to_vec() != ours.payload().to_vec()).then_some("payload")
}

use std::sync::Arc;

use rustc_hash::FxHashMap;
use uroce::memory::{Access, HostMemory};
use uroce::transport::{QpAttributes, ReceiveRequest, Service, Sge};
use uroce::wire::{Key, NakCode, Operation, PathMtu, RnrTimer, Syndrome};

use super::ReplayError;
use super::comparison::{Answer, Assumptions, Report, payload_difference};
use super::conversation::{Conversation, Observed};
use super::hypothesis::{Expected, Fate, Hypothesis, Outcome, Theirs, send_lengths};
use super::regions::{Regions, Target, after_atomic};
use super::stand_in::{ALL_ACCESS, Role, StandIn};

/// Our responder in place of theirs: it gets the requests of the capture, and its answers are compared with the
/// capture's.
pub(super) struct Responder<'a> {
    conversation: &'a Conversation,
    mtu: PathMtu,
    peer: StandIn,
    hypothesis: Hypothesis,
    regions: Regions,
    /// The buffer for SENDs, and its key.
    buffer: (Arc<HostMemory>, Key),
    /// For requests that begin a SEND: the length of their receive requests.
    lengths: FxHashMap<usize, u32>,
    /// The target of the WRITE that is arriving.
    writing: Option<Target>,
    pairs: Vec<Pair>,
    assumptions: Assumptions,
}

/// An answer of theirs and the corresponding one of ours.
struct Pair {
    /// The index of the request.
    request: usize,
    expected: Option<Expected>,
    theirs: Theirs,
    ours: Option<Answer>,
}

/// Replays a reliable conversation, as the responder.
pub(super) fn replay(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    let name = format!("{}, as responder", conversation.name());
    let mtu = conversation.path_mtu();
    let Some(hypothesis) = Hypothesis::of(conversation, mtu) else {
        report.assumed.push(format!("{name}: not replayed, since no message begins in the capture"));
        return Ok(());
    };
    let mut responder = Responder::new(conversation, mtu, hypothesis)?;
    responder.run();
    responder.compare(report);
    responder.say_what_was_assumed();
    report.assumed.extend(responder.assumptions.lines(&name));
    Ok(())
}

impl<'a> Responder<'a> {
    pub fn new(
        conversation: &'a Conversation,
        mtu: PathMtu,
        hypothesis: Hypothesis,
    ) -> Result<Responder<'a>, ReplayError> {
        let rnr_timer = hypothesis.fates.iter().find_map(|fate| match fate.outcome {
            Outcome::NotReady(timer) => Some(timer),
            _ => None,
        });
        let mut peer = StandIn::new(&Role {
            service: Service::Rc,
            addresses: conversation.addresses.reversed(),
            peer: conversation.requester.unwrap_or_default(),
            path_mtu: mtu,
            receive_psn: hypothesis.first_psn,
            send_psn: Default::default(),
            q_key: Default::default(),
            rnr_timer: rnr_timer.unwrap_or(RnrTimer::new(12)),
        });
        let regions = Regions::of(&conversation.requests, &hypothesis.fates, &mut peer)?;
        let lengths = send_lengths(&conversation.requests, &hypothesis.fates);
        let longest = lengths.values().copied().max().unwrap_or(0);
        let memory = Arc::new(HostMemory::new(longest as usize)?);
        let key = peer.endpoint.memory().register(peer.pd, memory.clone(), Access::LOCAL_WRITE);
        Ok(Responder {
            conversation,
            mtu,
            peer,
            hypothesis,
            regions,
            buffer: (memory, key),
            lengths,
            writing: None,
            pairs: Vec::new(),
            assumptions: Assumptions::default(),
        })
    }

    fn run(&mut self) {
        for (index, request) in self.conversation.requests.iter().enumerate() {
            let fate = self.hypothesis.fates[index].clone();
            if matches!(fate.outcome, Outcome::Before | Outcome::Lost) {
                continue;
            }
            self.prepare(index, request, &fate);
            let extension = self.regions.translated(request);
            self.peer.feed(request.time, request, extension);
            let mut ours = Vec::new();
            while let Some(answer) = self.peer.transmit(request.time) {
                ours.push(Answer::of(&answer));
            }
            while self.peer.completions.poll().is_some() {}
            let mut ours = ours.into_iter();
            for (expected, theirs) in fate.answers {
                self.pairs.push(Pair { request: index, expected: Some(expected), theirs, ours: ours.next() });
            }
            self.pairs.extend(ours.map(|answer| Pair {
                request: index,
                expected: None,
                theirs: Theirs::Missing,
                ours: Some(answer),
            }));
        }
    }

    /// Our answers to all requests, each after its request.
    pub fn answer_all(&mut self) -> Vec<Observed> {
        let mut ours = Vec::new();
        for (index, request) in self.conversation.requests.iter().enumerate() {
            let fate = self.hypothesis.fates[index].clone();
            self.prepare(index, request, &fate);
            let extension = self.regions.translated(request);
            self.peer.feed(request.time, request, extension);
            while let Some(answer) = self.peer.transmit(request.time) {
                ours.push(answer.at(request.order + 1));
            }
            while self.peer.completions.poll().is_some() {}
        }
        ours
    }

    /// Brings our side into the state that theirs must have had.
    fn prepare(&mut self, index: usize, request: &Observed, fate: &Fate) {
        let target = Target::of(request);
        let position = request.position();
        match (fate.outcome, request.operation()) {
            (Outcome::Served | Outcome::InvalidateRefused | Outcome::Refused(_), Operation::Send)
                if position.starts() =>
            {
                self.post_receive(self.lengths.get(&index).copied().unwrap_or(0));
            }
            (Outcome::Served, Operation::Write) => {
                if position.starts() {
                    self.writing = target;
                }
                if request.packet().imm_dt().is_some() {
                    self.post_receive(0);
                }
                if position.ends()
                    && let Some(target) = self.writing.take()
                    && let Some(region) = self.regions.find(target)
                {
                    region.mark_known(target);
                }
            }
            (Outcome::Served, Operation::AtomicWrite) => {
                if let Some(target) = target
                    && let Some(region) = self.regions.find(target)
                {
                    region.mark_known(target);
                }
            }
            (Outcome::Served | Outcome::Duplicate, Operation::ReadRequest) => self.match_read(index, request, fate),
            (Outcome::Served, Operation::CompareSwap | Operation::FetchAdd) => self.match_atomic(index, request, fate),
            (Outcome::Refused(NakCode::RemoteAccessError), _) => {
                let key = target.or(self.writing).map(|target| target.key);
                let is_inside = target.is_none_or(|target| self.regions.find(target).is_some());
                if let (Some(key), true) = (key, is_inside) {
                    self.assumptions.add(format!("the region of key {key} was deregistered"));
                    self.regions.deregister(key, &mut self.peer);
                } else if let Some(Target { key, address, len }) = target {
                    self.assumptions.add(format!("the key {key} gives no access to {len} bytes at {address:#x}"));
                }
            }
            (
                Outcome::Refused(NakCode::InvalidRequest),
                Operation::Write | Operation::ReadRequest | Operation::AtomicWrite | Operation::Flush,
            ) => {
                self.forbid(Access::REMOTE_WRITE | Access::REMOTE_READ | Access::FLUSH_GLOBAL);
            }
            (Outcome::Refused(NakCode::InvalidRequest), Operation::CompareSwap | Operation::FetchAdd) => {
                self.forbid(Access::REMOTE_ATOMIC);
            }
            _ => {}
        }
    }

    fn post_receive(&mut self, length: u32) {
        let (memory, lkey) = &self.buffer;
        let sges = [Sge { address: memory.address(), length, lkey: *lkey }].into_iter().collect();
        // A full queue has enough receive requests.
        let _ = self.peer.endpoint.post_receive(Default::default(), self.peer.qpn, ReceiveRequest { wr_id: 0, sges });
    }

    fn forbid(&mut self, access: Access) {
        self.assumptions.add(format!("the queue pair does not allow {access:?}"));
        let attributes = QpAttributes { access: Some(ALL_ACCESS - access), ..Default::default() };
        // In the error state the access does not matter.
        let _ = self.peer.endpoint.modify(Default::default(), self.peer.qpn, &attributes);
    }

    /// The bytes of a READ that the capture's answers show: for each answer the offset and the bytes.
    fn read_pieces(&self, request: &Observed, fate: &Fate) -> Vec<(u32, Vec<u8>)> {
        let mtu = self.mtu.bytes() as u32;
        let answers = &self.conversation.answers;
        let pieces = fate.answers.iter().enumerate().filter_map(|(at, (expected, theirs))| match theirs {
            Theirs::Answer(index) if matches!(expected, Expected::Read(_)) => {
                let payload = answers[*index].packet().payload().to_vec();
                Some((at as u32 * mtu, payload))
            }
            _ => None,
        });
        let len = Target::of(request).map_or(0, |target| target.len);
        pieces.filter(|(offset, payload)| *offset as usize + payload.len() <= len as usize).collect()
    }

    /// Fills the memory that a READ requests with the contents that the capture shows, unless these contradict it.
    fn match_read(&mut self, index: usize, request: &Observed, fate: &Fate) {
        let Some(target) = Target::of(request) else { return };
        for (offset, theirs) in self.read_pieces(request, fate) {
            let piece =
                Target { address: target.address.wrapping_add(offset.into()), len: theirs.len() as u32, ..target };
            self.match_contents(index, piece, &theirs, None);
        }
    }

    fn match_atomic(&mut self, index: usize, request: &Observed, fate: &Fate) {
        let Some(target) = Target::of(request) else { return };
        let Some((_, Theirs::Answer(answer))) = fate.answers.first() else { return };
        let Some(original) = Answer::of(&self.conversation.answers[*answer]).original else { return };
        self.match_contents(index, target, &original.to_ne_bytes(), Some(request));
    }

    /// Makes our bytes at `target` equal to theirs. Where theirs contradict earlier frames, another program wrote them,
    /// if later frames confirm that.
    fn match_contents(&mut self, index: usize, target: Target, theirs: &[u8], atomic: Option<&Observed>) {
        let Some(region) = self.regions.find(target) else { return };
        let (ours, known) = region.contents(target);
        let is_new = |at: &usize| known[*at] && ours[*at] != theirs[*at];
        let contradicted: Vec<usize> = (0..theirs.len()).filter(is_new).collect();
        if contradicted.is_empty() {
            region.set(target, theirs);
            return;
        }
        let mut believed = ours.clone();
        for at in 0..theirs.len() {
            if !known[at] {
                believed[at] = theirs[at];
            }
        }
        let is_volatile = region.is_volatile;
        let after = |bytes: &[u8]| match (atomic, <[u8; 8]>::try_from(bytes)) {
            (Some(request), Ok(bytes)) => after_atomic(request, u64::from_ne_bytes(bytes)).to_ne_bytes().to_vec(),
            _ => bytes.to_vec(),
        };
        let (if_believed, if_changed) = (after(&believed), after(theirs));
        let was_changed = match self.next_view(index, target, &contradicted) {
            Some(view) => {
                let agrees =
                    |bytes: &[u8]| contradicted.iter().all(|&at| view[at].is_none_or(|byte| byte == bytes[at]));
                agrees(&if_changed) || !agrees(&if_believed)
            }
            None => is_volatile,
        };
        let region = self.regions.find(target).expect("it was there");
        if was_changed {
            region.is_volatile = true;
            region.set(target, theirs);
            self.assumptions.add(format!("somebody else changed memory of key {}", target.key));
        } else {
            region.set(target, &believed);
        }
    }

    /// The values of the next answer after request `index` that shows any of the bytes `at` of `target`. `None` when
    /// there is none before the peer overwrites them.
    fn next_view(&self, index: usize, target: Target, at: &[usize]) -> Option<Vec<Option<u8>>> {
        let requests = self.conversation.requests.iter().zip(&self.hypothesis.fates).skip(index + 1);
        for (request, fate) in requests {
            if !matches!(fate.outcome, Outcome::Served | Outcome::Duplicate) {
                continue;
            }
            let Some(other) = Target::of(request).filter(|other| other.key == target.key) else { continue };
            let end = other.address.saturating_add(other.len.into());
            let covers = |at: &usize| (other.address..end).contains(&target.address.wrapping_add(*at as u64));
            if !at.iter().any(covers) {
                continue;
            }
            let mut view = vec![None; target.len as usize];
            let mut show = |address: u64, bytes: &[u8]| {
                for (byte, address) in bytes.iter().zip(address..) {
                    let at = address.wrapping_sub(target.address) as usize;
                    if at < view.len() {
                        view[at] = Some(*byte);
                    }
                }
            };
            match request.operation() {
                Operation::ReadRequest => {
                    for (offset, payload) in self.read_pieces(request, fate) {
                        show(other.address.wrapping_add(offset.into()), &payload);
                    }
                }
                Operation::CompareSwap | Operation::FetchAdd if fate.outcome == Outcome::Duplicate => continue,
                Operation::CompareSwap | Operation::FetchAdd => {
                    let Some((_, Theirs::Answer(answer))) = fate.answers.first() else { return None };
                    let original = Answer::of(&self.conversation.answers[*answer]).original?;
                    show(other.address, &original.to_ne_bytes());
                }
                _ => return None,
            }
            return Some(view);
        }
        None
    }

    fn compare(&mut self, report: &mut Report) {
        let msn_offset = self.msn_offset();
        let coalesces = self.coalesces();
        let answers = &self.conversation.answers;
        let theirs = |index: usize| Answer::of(&answers[index]);
        for pair in &self.pairs {
            let request = &self.conversation.requests[pair.request];
            let outcome = self.hypothesis.fates[pair.request].outcome;
            match (pair.theirs, &pair.ours) {
                (Theirs::Answer(index), Some(ours)) => {
                    let theirs = theirs(index);
                    let ours = match pair.expected {
                        // Any PSN from the duplicate's on means the same.
                        Some(expected @ Expected::Again { .. }) if expected.is(&answers[index]) => {
                            &Answer { psn: theirs.psn, ..ours.clone() }
                        }
                        _ => ours,
                    };
                    let number = answers[index].number;
                    Answers { theirs: &theirs, ours, msn_offset, request, outcome, number }.judge(report);
                }
                (Theirs::Answer(index), None) => {
                    let text = format!("{}; we answer frame {} with nothing", theirs(index), request.number);
                    match pair.expected {
                        Some(Expected::NakAfterRnr(_)) => {
                            report.explained(answers[index].number, "nak-after-rnr", text)
                        }
                        _ => report.differs(answers[index].number, "unexpected-answer", text),
                    }
                }
                (Theirs::Coalesced, _) if coalesces => {
                    self.assumptions.add("an acknowledge was left to a later one");
                }
                (Theirs::Missing | Theirs::Coalesced, Some(ours)) => {
                    let text = format!("frame {} has no answer; we answer {ours}", request.number);
                    report.differs(request.number, "missing-answer", text);
                }
                (Theirs::Missing | Theirs::Coalesced, None) => {}
            }
        }
        for &index in &self.hypothesis.unexplained {
            let answer = &answers[index];
            report.differs(
                answer.number,
                "unexpected-answer",
                format!("{}; we answer nothing here", Answer::of(answer)),
            );
        }
        self.assumptions
            .add_many(format!("{msn_offset} messages were answered before the capture"), u64::from(msn_offset != 0));
    }

    /// Whether their responder coalesces acknowledges: in at least a quarter of the cases in which the next request
    /// that requires one was already there.
    ///
    /// If it answers all others separately, a single missing acknowledge is a fault.
    fn coalesces(&self) -> bool {
        let requests = &self.conversation.requests;
        let (mut left, mut possible) = (0, 0);
        for pair in &self.pairs {
            let is_acknowledge = matches!(pair.expected, Some(Expected::Acknowledge(_) | Expected::Again { .. }));
            let next = requests[pair.request + 1..].iter().find(|request| request.wants_answer());
            let (Some(next), true) = (next, is_acknowledge) else { continue };
            match pair.theirs {
                Theirs::Coalesced => (left, possible) = (left + 1, possible + 1),
                Theirs::Answer(index) => {
                    possible += u32::from(next.number < self.conversation.answers[index].number);
                }
                Theirs::Missing => {}
            }
        }
        left * 4 >= possible
    }

    /// How far their MSN is ahead of ours: the difference in most answers.
    fn msn_offset(&self) -> u32 {
        let mut votes: FxHashMap<u32, (u32, usize)> = FxHashMap::default();
        for (at, pair) in self.pairs.iter().enumerate() {
            let Theirs::Answer(index) = pair.theirs else { continue };
            let theirs = Answer::of(&self.conversation.answers[index]).aeth;
            if let (Some((_, theirs)), Some((_, ours))) = (theirs, pair.ours.as_ref().and_then(|ours| ours.aeth)) {
                let offset = theirs.value().wrapping_sub(ours.value()) & 0x00ff_ffff;
                votes.entry(offset).or_insert((0, at)).0 += 1;
            }
        }
        // A single answer does not prove that messages were counted before the capture.
        let believed = votes.iter().filter(|(offset, (votes, _))| **offset == 0 || *votes > 1);
        let best = believed.max_by_key(|(offset, (votes, first))| (*votes, **offset == 0, std::cmp::Reverse(*first)));
        best.map_or(0, |(offset, _)| *offset)
    }

    fn say_what_was_assumed(&mut self) {
        let fates = &self.hypothesis.fates;
        let count = |outcome: fn(Outcome) -> bool| fates.iter().filter(|fate| outcome(fate.outcome)).count() as u64;
        let counts = [
            ("a request never arrived", count(|outcome| outcome == Outcome::Lost)),
            ("a request belongs to what was before the capture", count(|outcome| outcome == Outcome::Before)),
            ("no receive request was there", count(|outcome| matches!(outcome, Outcome::NotReady(_)))),
            ("a receive request as long as the message was there", self.lengths.len() as u64),
            ("a region or window held what was asked for", self.regions.len() as u64),
        ];
        for (what, count) in counts {
            self.assumptions.add_many(what, count);
        }
        self.assumptions.add(format!("the path MTU is {}", self.mtu.bytes()));
    }
}

/// The two answers to one request.
struct Answers<'a> {
    theirs: &'a Answer,
    ours: &'a Answer,
    /// How far their MSN is ahead of ours.
    msn_offset: u32,
    request: &'a Observed,
    outcome: Outcome,
    /// The frame of their answer.
    number: u64,
}

impl Answers<'_> {
    /// Compares the two, and reports the difference.
    fn judge(self, report: &mut Report) {
        let Answers { theirs, ours, msn_offset, request, outcome, number } = self;
        let Some(rule) = theirs.difference(ours, msn_offset) else { return report.equal() };
        let mut text = format!("{theirs}; ours to frame {} is {ours}", request.number);
        if rule == "payload" {
            text = format!("{text}: {}", payload_difference(&theirs.payload, &ours.payload));
        }
        let syndrome = |answer: &Answer| answer.aeth.map(|(syndrome, _)| syndrome);
        let is_send = request.operation() == Operation::Send;
        let is_too_long = syndrome(theirs) == Some(Syndrome::Nak(NakCode::RemoteOperationalError))
            && syndrome(ours) == Some(Syndrome::Nak(NakCode::InvalidRequest));
        let same_but_syndrome = Answer { aeth: ours.aeth, ..theirs.clone() } == *ours
            && theirs.aeth.map(|(_, msn)| msn.value())
                == ours.aeth.map(|(_, msn)| msn.value().wrapping_add(msn_offset));
        if is_send && is_too_long && same_but_syndrome {
            report.explained(number, "send-too-long", text);
        } else if outcome == Outcome::InvalidateRefused && same_but_syndrome {
            report.explained(number, "invalidate-of-a-region", text);
        } else {
            report.differs(number, rule, text);
        }
    }
}

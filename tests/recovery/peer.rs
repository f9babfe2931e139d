use std::collections::BTreeMap;

/// What is on its way.
#[derive(Clone, Debug)]
pub enum Message {
    Request(Request),
    /// All before was carried out; and what arrived, as bits from a base on.
    Acknowledge {
        before: u64,
        arrived: Vec<(u64, u64)>,
    },
    /// There is a gap before what came: this is what comes next.
    SequenceError {
        position: u64,
    },
    /// It cannot be carried out yet.
    NotReady {
        position: u64,
    },
    Answer {
        position: u64,
    },
}

/// A request: a READ with so many answers from `position` on, or none.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub position: u64,
    pub answers: u32,
}

/// It is not ready for one request in so many, the first time.
const NOT_READY_EVERY: u64 = 13;

/// A responder, as far as losses go.
pub struct Peer {
    expected: u64,
    /// What came early is kept, and said.
    keeps_early: bool,
    early: BTreeMap<u64, Request>,
    has_refused: bool,
    /// The latest position that it was not ready for.
    not_ready: u64,
}

impl Peer {
    /// One that speaks plain IBTA.
    pub fn in_order(expected: u64) -> Peer {
        let early = BTreeMap::new();
        Peer { expected, keeps_early: false, early, has_refused: false, not_ready: 0 }
    }

    /// One that says what arrived.
    pub fn in_any_order(expected: u64) -> Peer {
        Peer { keeps_early: true, ..Peer::in_order(expected) }
    }

    /// Takes a request; returns what it is answered with. One that it is not ready for is forgotten.
    pub fn take(&mut self, request: Request) -> Vec<Message> {
        let mut out = Vec::new();
        if request.position < self.expected {
            // It was carried out, or asks for answers again.
            Self::answer(request, &mut out);
        } else if request.position == self.expected {
            self.has_refused = false;
            let mut next = Some(request);
            while let Some(request) = next {
                if self.expected.is_multiple_of(NOT_READY_EVERY) && self.not_ready < self.expected {
                    self.not_ready = self.expected;
                    out.push(Message::NotReady { position: self.expected });
                    return out;
                }
                Self::answer(request, &mut out);
                self.expected += u64::from(request.answers.max(1));
                next = self.early.remove(&self.expected);
            }
        } else if self.keeps_early {
            self.early.insert(request.position, request);
        } else if !std::mem::replace(&mut self.has_refused, true) {
            return vec![Message::SequenceError { position: self.expected }];
        } else {
            return out;
        }
        // Answers stand for acknowledges with a peer that speaks plain IBTA.
        if self.keeps_early || out.is_empty() {
            let arrived = self.early.keys().map(|position| (*position, 1)).collect();
            out.push(Message::Acknowledge { before: self.expected, arrived });
        }
        out
    }

    fn answer(request: Request, out: &mut Vec<Message>) {
        let positions = request.position..request.position + u64::from(request.answers);
        out.extend(positions.map(|position| Message::Answer { position }));
    }
}

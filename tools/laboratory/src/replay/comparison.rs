use std::collections::BTreeMap;
use std::fmt;

use uroce::wire::{Msn, Opcode, Psn, Syndrome};

use super::conversation::Observed;

/// The result of a replay. `compared` is the sum of `equal`, `explained` and `different`.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of frames that were compared with those of our state machine, in both roles.
    pub compared: u64,
    /// The number of frames that mean the same.
    pub equal: u64,
    /// Frames that differ in a way that docs/INTEROP.md describes.
    pub explained: Vec<Finding>,
    /// Frames whose difference no hypothesis explains.
    pub different: Vec<Finding>,
    /// Facts that the capture does not show, and that were inferred from it; a line each.
    pub assumed: Vec<String>,
    /// The number of directions of connections, and of datagram queue pairs, that were replayed.
    pub conversations: u64,
}

/// A frame that differs from ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The frame's number in the file; for a missing answer, that of the request.
    pub frame: u64,
    /// What differs, in a word: the name of a field, or of a row in docs/INTEROP.md.
    pub rule: &'static str,
    /// A description of both frames.
    pub text: String,
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub opcode: Opcode,
    pub psn: Psn,
    pub aeth: Option<(Syndrome, Msn)>,
    pub original: Option<u64>,
    pub payload: Vec<u8>,
}

/// Assumptions, and how often each was made.
#[derive(Debug, Default)]
pub(super) struct Assumptions(BTreeMap<String, u64>);

impl Assumptions {
    pub fn add(&mut self, what: impl Into<String>) {
        self.add_many(what, 1);
    }

    pub fn add_many(&mut self, what: impl Into<String>, count: u64) {
        if count > 0 {
            *self.0.entry(what.into()).or_default() += count;
        }
    }

    pub fn lines(self, about: &str) -> impl Iterator<Item = String> {
        self.0.into_iter().map(move |(what, count)| match count {
            1 => format!("{about}: {what}"),
            _ => format!("{about}: {what} ({count} times)"),
        })
    }
}

impl Report {
    pub(super) fn equal(&mut self) {
        self.compared += 1;
        self.equal += 1;
    }

    pub(super) fn differs(&mut self, frame: u64, rule: &'static str, text: String) {
        self.compared += 1;
        self.different.push(Finding { frame, rule, text });
    }

    pub(super) fn explained(&mut self, frame: u64, rule: &'static str, text: String) {
        self.compared += 1;
        self.explained.push(Finding { frame, rule, text });
    }
}

impl Answer {
    pub fn of(frame: &Observed) -> Answer {
        let packet = frame.packet();
        Answer {
            opcode: packet.bth().opcode(),
            psn: packet.bth().psn(),
            aeth: packet.aeth().map(|aeth| (aeth.syndrome(), aeth.msn())),
            original: packet.atomic_ack_eth().map(|ack| ack.original()),
            payload: packet.payload().to_vec(),
        }
    }

    /// The first part of the meaning in which `ours` differs; `None` when both mean the same. `msn_offset` is how far
    /// their MSN is ahead of ours, because the capture began later than the connection.
    pub fn difference(&self, ours: &Answer, msn_offset: u32) -> Option<&'static str> {
        if self.opcode != ours.opcode {
            return Some("opcode");
        }
        if self.psn != ours.psn {
            return Some("psn");
        }
        if self.aeth.is_some() != ours.aeth.is_some() {
            return Some("syndrome");
        }
        if let (Some((theirs, their_msn)), Some((ours, our_msn))) = (self.aeth, ours.aeth) {
            let same = match (theirs, ours) {
                (Syndrome::Ack { .. }, Syndrome::Ack { .. }) => true,
                _ => theirs == ours,
            };
            if !same {
                return Some("syndrome");
            }
            if their_msn != Msn::new(our_msn.value().wrapping_add(msn_offset)) {
                return Some("msn");
            }
        }
        if self.original != ours.original {
            return Some("original");
        }
        (self.payload != ours.payload).then_some("payload")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} PSN {}", self.opcode, self.psn)?;
        if let Some((syndrome, msn)) = self.aeth {
            write!(f, " syndrome {:#04x} MSN {}", syndrome.to_byte(), msn.value())?;
        }
        if let Some(original) = self.original {
            write!(f, " original {original:#018x}")?;
        }
        if !self.payload.is_empty() {
            write!(f, " {} bytes", self.payload.len())?;
        }
        Ok(())
    }
}

/// A description of the difference between two payloads.
pub(super) fn payload_difference(theirs: &[u8], ours: &[u8]) -> String {
    if theirs.len() != ours.len() {
        return format!("{} bytes instead of {}", theirs.len(), ours.len());
    }
    match theirs.iter().zip(ours).position(|(a, b)| a != b) {
        Some(at) => format!("byte {at} is {:#04x} instead of {:#04x}", theirs[at], ours[at]),
        None => "the same bytes".to_owned(),
    }
}

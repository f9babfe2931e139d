use std::net::Ipv4Addr;

use uroce::wire::{Addresses, Operation, Packet, Position, Psn, Syndrome, TransportService};

use super::read::{PathMtus, Read};
use super::sequence::Sequence;
use super::{Mark, Seen};

/// What is sent to one queue pair: its peer's requests, and the answers to its own.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub addresses: Addresses,
    pub qpn: u32,
    pub tag: Option<u32>,
    /// The stream in the other direction.
    pub peer: Option<usize>,
    pub tries: u32,
    pub last_frame: u64,
    /// The PSN of the last NAK that refused one of these requests.
    pub refused: Option<Psn>,
    requests: Sequence,
    path_mtus: PathMtus,
    /// The last request, when it is a READ of unknown length.
    read: Option<Read>,
    answers: Sequence,
    /// The answer to a READ has begun.
    is_answering: bool,
    /// PSN and frame of the last acknowledge.
    acknowledged: Option<(Psn, u64)>,
}

/// In place of a stream that is not known.
pub(super) static NONE: Stream =
    Stream::new(Addresses::V4 { source: Ipv4Addr::UNSPECIFIED, destination: Ipv4Addr::UNSPECIFIED }, 0, 0);

impl Stream {
    pub const fn new(addresses: Addresses, qpn: u32, number: u64) -> Stream {
        Stream {
            addresses,
            qpn,
            tag: None,
            peer: None,
            tries: 0,
            last_frame: number,
            refused: None,
            requests: Sequence::NEW,
            path_mtus: PathMtus::ALL,
            read: None,
            answers: Sequence::NEW,
            is_answering: false,
            acknowledged: None,
        }
    }

    /// Forgets what an earlier connection of the queue pair left.
    pub fn restart(&mut self) {
        let Stream { addresses, qpn, peer, last_frame, .. } = *self;
        *self = Stream { peer, ..Stream::new(addresses, qpn, last_frame) };
    }

    pub fn first_request(&self) -> Option<Psn> {
        self.requests.first
    }

    /// Whether `psn` is one of its requests, or of their answers.
    pub fn has_requested(&self, psn: Psn) -> bool {
        // A READ whose number of PSNs is not known yet takes at least those.
        let read = self.read.is_some_and(|read| psn.is_within(read.psn, self.path_mtus.packets(read.len).1));
        read || self.requests.has_passed(psn)
    }

    pub fn learn_mtu(&mut self, packet: &Packet<'_>) {
        if matches!(packet.bth().opcode().position(), Position::First | Position::Middle) {
            self.path_mtus.learn_full(packet.payload().len());
        }
    }

    pub fn request(&mut self, seen: Seen, packet: &Packet<'_>) -> Option<Mark> {
        let opcode = packet.bth().opcode();
        self.learn_mtu(packet);
        let mut is_certain = true;
        if let Some(read) = self.read.filter(|read| read.psn.is_before(seen.psn)) {
            self.read = None;
            let (least, most) = self.path_mtus.packets(read.len);
            is_certain = least == most;
            // Where the path MTU is learned now, the READ ends here.
            if is_certain || self.path_mtus.learn_next(read, seen.psn) {
                let count = self.path_mtus.packets(read.len).0;
                self.requests.extend(read, count);
                is_certain = true;
            }
        }
        let ahead = self.requests.ahead(seen.psn);
        if ahead < 0 {
            let mark = self.requests.earlier(seen, self.refused, self.last_frame);
            let is_reliable = opcode.service() == TransportService::Rc;
            // Nobody repeats a packet of an unreliable connection.
            return match mark {
                Some(Mark::Retransmission { frame: Some(frame) }) if !is_reliable => Some(Mark::Duplicate { frame }),
                Some(Mark::Retransmission { frame: None }) if !is_reliable => Some(Mark::OutOfOrder),
                mark => mark,
            };
        }
        let mark = (ahead > 0 && is_certain).then(|| self.requests.gap(seen.psn, seen.time));
        let mut count = 1;
        if let (Operation::ReadRequest, Some(reth)) = (opcode.operation(), packet.reth()) {
            let (least, most) = self.path_mtus.packets(reth.length());
            count = least;
            self.read = (least != most).then(|| Read { psn: seen.psn, len: reth.length(), frame: seen.number });
        }
        self.requests.advance(seen, count);
        mark
    }

    /// An answer to this queue pair's requests. Only READ responses have a PSN each; acknowledges speak for all before.
    pub fn answer(&mut self, seen: Seen, packet: &Packet<'_>) -> Option<Mark> {
        let opcode = packet.bth().opcode();
        if opcode.operation() == Operation::Acknowledge {
            return self.acknowledge(seen, packet);
        }
        let position = opcode.position();
        let ahead = self.answers.ahead(seen.psn);
        if ahead < 0 {
            // An acknowledge behind it does not say that it was sent.
            return self.answers.knows(seen.psn).then(|| self.answers.earlier(seen, None, self.last_frame)).flatten();
        }
        let belongs_to_before = self.is_answering || matches!(position, Position::Middle | Position::Last);
        let mark = (ahead > 0 && belongs_to_before).then(|| self.answers.gap(seen.psn, seen.time));
        self.is_answering = matches!(position, Position::First | Position::Middle);
        self.answers.advance(seen, 1);
        mark
    }

    fn acknowledge(&mut self, seen: Seen, packet: &Packet<'_>) -> Option<Mark> {
        let is_positive = matches!(packet.aeth().map(|aeth| aeth.syndrome()), Some(Syndrome::Ack { .. }));
        // Those of docs/EXTENSIONS.md repeat their PSN for what their trailers say.
        if !is_positive || packet.bth().extended() {
            return None;
        }
        let again = self.acknowledged.filter(|(psn, _)| *psn == seen.psn).map(|(_, frame)| frame);
        if let Some(frame) = again {
            return Some(Mark::Duplicate { frame });
        }
        self.acknowledged = Some((seen.psn, seen.number));
        if self.answers.ahead(seen.psn) >= 0 {
            self.is_answering = false;
            self.answers.next = seen.psn.plus(1);
        }
        None
    }
}

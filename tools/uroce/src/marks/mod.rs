//! What is remarkable about a packet in its queue pair: it comes again, late, or after a gap.
//!
//! One pass, and bounded memory: of each queue pair the last [`history::PLACES_MAX`] PSNs are remembered, and at most
//! [`STREAMS_MAX`] queue pairs.

mod history;
mod read;
mod sequence;
mod stream;

use std::borrow::Borrow;
use std::fmt;

use rustc_hash::FxHashMap;
use serde::Serialize;
use uroce::pcap::CapturedFrame;
use uroce::time::Instant;
use uroce::wire::{Addresses, IpHeader, Operation, Packet, Psn, Syndrome, TransportService, icrc};
use uroce_laboratory::dissection::{Dissection, Icrc};

use stream::Stream;

/// Upper bound on the queue pairs that are followed at a time; the one that was silent for longest makes room.
const STREAMS_MAX: usize = 1024;

/// Upper bound on the answers for which the requests are looked for, in each queue pair: a capture of one direction has
/// none.
const TRIES_MAX: u32 = 64;

/// A remark about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Mark {
    /// Its sender has sent this PSN before: in `frame`, or in one that is not in the capture or long ago.
    Retransmission {
        #[serde(skip_serializing_if = "Option::is_none")]
        frame: Option<u64>,
    },
    /// It is a copy of `frame` that the sender did not send again: same ICRC, which covers the IPv4 identification, or
    /// right behind it; or an acknowledge that repeats the one before it.
    Duplicate { frame: u64 },
    /// The PSNs from `first` to `last` should have come before it.
    Gap { first: u32, last: u32 },
    /// It belongs into an earlier gap, and is no retransmission by all that can be seen.
    OutOfOrder,
}

/// What is known of a packet by those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mark: Option<Mark>,
    /// The PSN minus the first one of its requests in the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) relative_psn: Option<u32>,
    /// The sender's queue pair. Packets of connections do not name it: it is known from the first answer on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source_qpn: Option<u32>,
}

/// What the marks of a packet depend on.
#[derive(Clone, Copy)]
struct Seen {
    number: u64,
    time: Instant,
    psn: Psn,
    /// `None` when it was cut off.
    icrc: Option<u32>,
    /// Two packets with the same ICRC are copies: it covers what differs between transmissions.
    icrc_tells: bool,
    /// How often it was sent before, where a trailer says so.
    attempt: Option<u8>,
}

/// All queue pairs of a capture.
#[derive(Default)]
pub(crate) struct Streams {
    list: Vec<Stream>,
    /// By addresses and destination.
    by_addresses: FxHashMap<(Addresses, u32), usize>,
    /// By destination and tag: the same over all paths, whose addresses differ.
    by_tag: FxHashMap<(u32, u32), usize>,
    /// What an earlier pass found.
    pairs: Pairs,
}

/// The queue pairs that send, by addresses and destination.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs(FxHashMap<(Addresses, u32), u32>);

impl Streams {
    /// For a second pass over the same packets: senders are known from the beginning.
    pub(crate) fn with_pairs(pairs: Pairs) -> Streams {
        Streams { pairs, ..Streams::default() }
    }

    /// Who sends to whom in a capture: a first pass over it.
    pub(crate) fn pairs_of(frames: impl Iterator<Item = impl Borrow<CapturedFrame>>) -> Pairs {
        let mut streams = Streams::default();
        for frame in frames {
            let frame = frame.borrow();
            let whole = frame.padded();
            if let Some(dissection) = Dissection::of(&whole, frame.bytes.len()) {
                streams.see(frame, &dissection);
            }
        }
        streams.pairs()
    }

    /// Who sends to whom, by all packets until now.
    fn pairs(&self) -> Pairs {
        let pair = |(&key, &at): (&(Addresses, u32), &usize)| Some((key, self.list[self.list[at].peer?].qpn));
        Pairs(self.by_addresses.iter().filter_map(pair).collect())
    }

    /// Takes note of a packet, in the order of the capture.
    ///
    /// Packets that no device accepts have no place: nobody knows what in them is wrong. Nor have datagrams, whose PSNs
    /// count what one queue pair sends to all others.
    pub(crate) fn see(&mut self, frame: &CapturedFrame, dissection: &Dissection<'_>) -> Place {
        let (Some(roce), Some(packet)) = (&dissection.frame, &dissection.packet) else { return Place::default() };
        let service = packet.bth().opcode().service();
        if dissection.icrc == Icrc::Bad
            || dissection.malformed.is_some()
            || !matches!(service, TransportService::Rc | TransportService::Uc)
            || !packet.bth().opcode().is_known()
        {
            return Place::default();
        }
        let is_cut = frame.bytes.len() < frame.original_bytes;
        let tag = packet.split_tag().filter(|_| !is_cut).map(|(_, tag)| tag);
        let at = self.find(roce.flow().addresses, packet.bth().destination().value(), tag, frame.number);
        let is_request = !packet.bth().opcode().is_response();
        let attempt = (tag.is_some() && is_request)
            .then(|| packet.split_tag()?.0.take_trailer().map(|trailer| trailer.attempt))
            .flatten();
        let has_identification = matches!(roce.ip, IpHeader::V4(_)) && roce.ip.identification() != Some(0);
        let seen = Seen {
            number: frame.number,
            time: frame.time,
            psn: packet.bth().psn(),
            icrc: icrc::stored(roce.ib).filter(|_| !is_cut),
            icrc_tells: attempt.is_some() || has_identification,
            attempt,
        };
        let mark = if is_request {
            self.list[at].request(seen, packet)
        } else {
            self.pair(at, packet);
            self.answer(at, seen, packet)
        };
        self.list[at].last_frame = frame.number;
        let base = if is_request { self.list[at].first_request() } else { self.requests_of(at).first_request() };
        let Stream { addresses, qpn, peer, .. } = &self.list[at];
        let known = || self.pairs.0.get(&(*addresses, *qpn)).copied();
        let source_qpn = peer.map(|peer| self.list[peer].qpn).or_else(known);
        Place { mark, relative_psn: base.map(|base| seen.psn.after(base)), source_qpn }
    }

    /// The queue pair that sends to `qpn`, as far as the packets until now show.
    fn requests_of(&self, at: usize) -> &Stream {
        self.list[at].peer.map_or(&stream::NONE, |peer| &self.list[peer])
    }

    fn find(&mut self, addresses: Addresses, qpn: u32, tag: Option<u32>, number: u64) -> usize {
        let tag = tag.filter(|tag| *tag != 0);
        if let Some(&at) = tag.and_then(|tag| self.by_tag.get(&(qpn, tag))) {
            return at;
        }
        let at = match self.by_addresses.get(&(addresses, qpn)) {
            Some(&at) => at,
            None => self.add(Stream::new(addresses, qpn, number)),
        };
        if let Some(tag) = tag {
            // Later connections of the same queue pair have another tag, and may begin anywhere.
            if self.list[at].tag.is_some_and(|before| before != tag) {
                self.list[at].restart();
            }
            self.list[at].tag = Some(tag);
            self.by_tag.insert((qpn, tag), at);
        }
        at
    }

    fn add(&mut self, stream: Stream) -> usize {
        let key = (stream.addresses, stream.qpn);
        if self.list.len() < STREAMS_MAX {
            self.by_addresses.insert(key, self.list.len());
            self.list.push(stream);
            return self.list.len() - 1;
        }
        let oldest = (0..STREAMS_MAX).min_by_key(|&at| self.list[at].last_frame).expect("there are some");
        self.by_addresses.retain(|_, at| *at != oldest);
        self.by_tag.retain(|_, at| *at != oldest);
        for other in &mut self.list {
            if other.peer == Some(oldest) {
                other.peer = None;
            }
        }
        self.by_addresses.insert(key, oldest);
        self.list[oldest] = stream;
        oldest
    }

    /// Looks for the requests that an answer to `at` belongs to: the only ones in the other direction that have its PSN.
    fn pair(&mut self, at: usize, answer: &Packet<'_>) {
        let stream = &mut self.list[at];
        if stream.peer.is_some() || stream.tries >= TRIES_MAX {
            return;
        }
        stream.tries += 1;
        let (reversed, psn) = (stream.addresses.reversed(), answer.bth().psn());
        let fits = |other: &Stream| other.addresses == reversed && other.peer.is_none() && other.has_requested(psn);
        let mut candidates = (0..self.list.len()).filter(|&other| other != at && fits(&self.list[other]));
        if let (Some(only), None) = (candidates.next(), candidates.next()) {
            self.list[at].peer = Some(only);
            self.list[only].peer = Some(at);
        }
    }

    fn answer(&mut self, at: usize, seen: Seen, packet: &Packet<'_>) -> Option<Mark> {
        let peer = self.list[at].peer;
        if let (Some(peer), Some(aeth)) = (peer, packet.aeth())
            && let Syndrome::Nak(_) = aeth.syndrome()
        {
            self.list[peer].refused = Some(seen.psn);
        }
        if let (Some(peer), Operation::ReadResponse) = (peer, packet.bth().opcode().operation()) {
            self.list[peer].learn_mtu(packet);
        }
        self.list[at].answer(seen, packet)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Retransmission { frame: Some(frame) } => write!(f, "[retransmission of frame {frame}]"),
            Mark::Retransmission { frame: None } => f.write_str("[retransmission]"),
            Mark::Duplicate { frame } => write!(f, "[duplicate of frame {frame}]"),
            Mark::Gap { first, last } if first == last => write!(f, "[gap: PSN {first} missing]"),
            Mark::Gap { first, last } => write!(f, "[gap: PSN {first} to {last} missing]"),
            Mark::OutOfOrder => f.write_str("[out of order]"),
        }
    }
}

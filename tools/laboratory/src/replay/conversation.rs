use std::collections::BTreeMap;

use uroce::frame::FrameBytes;
use uroce::pcap::CapturedFrame;
use uroce::time::Instant;
use uroce::wire::{
    AcknowledgeTrailer, Addresses, Bth, Flow, Headers, Operation, Packet, PathMtu, Position, Psn, Qpn, RoceFrame,
    TransportService,
};

use crate::dissection::{Dissection, Icrc};
use crate::world::with_ethernet;

/// A captured frame: RoCE v2, whole, and with a right ICRC.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The number of the frame in the file.
    pub number: u64,
    /// Its place among the frames of its conversation: the number, where frames are replayed in the order of the file.
    pub order: u64,
    pub time: Instant,
    bytes: Vec<u8>,
}

/// The requests in one direction, and the answers to them.
#[derive(Debug)]
pub(super) struct Conversation {
    pub service: TransportService,
    /// The addresses, from the requester to the responder.
    pub addresses: Addresses,
    /// The queue pair of the responder.
    pub responder: Qpn,
    /// The queue pair of the requester; `None` when the capture does not show it.
    pub requester: Option<Qpn>,
    pub requests: Vec<Observed>,
    pub answers: Vec<Observed>,
    /// Both sides use the extension (docs/EXTENSIONS.md).
    pub is_selective: bool,
    /// What the requester's hellos bring: the tags of the answers.
    pub nonces: Vec<u32>,
}

/// The conversations of a capture.
#[derive(Debug, Default)]
pub(super) struct Conversations {
    pub list: Vec<Conversation>,
    /// The number of RoCE frames that no device accepts: malformed, cut, or with a wrong ICRC.
    pub unsound: u64,
    /// The number of RoCE frames of services or with opcodes that are not replayed.
    pub foreign: u64,
}

impl Observed {
    /// Keeps `frame` if it is a whole RoCE v2 frame with a right ICRC; `None` for other traffic.
    pub fn of(frame: &CapturedFrame) -> Result<Option<Observed>, Unsound> {
        let whole = frame.padded();
        let Some(dissection) = Dissection::of(&whole, frame.bytes.len()) else { return Ok(None) };
        if dissection.malformed.is_some() || dissection.icrc != Icrc::Ok || dissection.packet.is_none() {
            return Err(Unsound);
        }
        let bytes = whole.into_owned();
        Ok(Some(Observed { number: frame.number, order: frame.number, time: frame.time, bytes }))
    }

    /// A packet that we made, from its IP header on.
    pub fn ours(time: Instant, packet: &[u8]) -> Observed {
        Observed { number: 0, order: 0, time, bytes: with_ethernet(packet) }
    }

    pub fn at(self, order: u64) -> Observed {
        Observed { order, ..self }
    }

    /// The packet without what docs/EXTENSIONS.md adds to it, and from and to `addresses`, whatever its path.
    pub fn plain(&self, addresses: Addresses, ack_request: bool) -> Observed {
        let packet = self.packet();
        let packet = packet.split_tag().map_or(packet, |(packet, _)| packet);
        let mut packet = packet;
        if packet.bth().extended() {
            packet.take_trailer();
        }
        let theirs = packet.bth();
        let bth = Bth::new(theirs.opcode(), theirs.destination(), theirs.psn())
            .with_solicited(theirs.solicited())
            .with_mig_req(theirs.mig_req())
            .with_p_key(theirs.p_key())
            .with_ack_request(ack_request);
        let headers = Headers { bth, extension: packet.headers().extension };
        // An acknowledge has none: what follows is its trailer.
        let payload = match theirs.opcode().operation() {
            Operation::Acknowledge => Vec::new(),
            _ => packet.payload().to_vec(),
        };
        let flow = Flow { addresses, ..self.flow() };
        let mut bytes = vec![0; payload.len() + 256];
        let written = headers.write(&mut bytes, &flow, 0, payload.len(), |out| {
            out.copy_from_slice(&payload);
            Ok::<_, std::convert::Infallible>(())
        });
        let len = written.expect("256 bytes are enough for all headers");
        Observed { number: self.number, order: self.order, time: self.time, bytes: with_ethernet(&bytes[..len]) }
    }

    /// How often a request was sent before, as its trailer says; 0 without one.
    pub fn attempt(&self) -> u8 {
        let packet = self.packet();
        packet.split_tag().and_then(|(mut packet, _)| packet.take_trailer()).map_or(0, |trailer| trailer.attempt)
    }

    /// The tag of an extended packet; 0 without one.
    pub fn tag(&self) -> u32 {
        self.packet().split_tag().map_or(0, |(_, tag)| tag)
    }

    /// The nonce that a hello brings.
    fn nonce(&self) -> Option<u32> {
        match self.packet().split_tag()?.0.acknowledge_trailer()? {
            AcknowledgeTrailer::Hello(hello) => Some(hello.nonce),
            _ => None,
        }
    }

    fn roce(&self) -> RoceFrame<'_> {
        RoceFrame::parse(FrameBytes::from(&self.bytes[..])).expect("it was parsed when it was kept")
    }

    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(self.roce().ib).expect("it was parsed when it was kept")
    }

    pub fn flow(&self) -> Flow {
        self.roce().flow()
    }

    pub fn psn(&self) -> Psn {
        self.packet().bth().psn()
    }

    pub fn operation(&self) -> Operation {
        self.packet().bth().opcode().operation()
    }

    pub fn position(&self) -> Position {
        self.packet().bth().opcode().position()
    }

    /// The number of PSNs that it takes.
    pub fn psns(&self, mtu: PathMtu) -> u32 {
        match (self.operation(), self.packet().reth()) {
            (Operation::ReadRequest, Some(reth)) => mtu.packets(reth.length() as usize),
            _ => 1,
        }
    }

    /// Whether it requires an answer of its own.
    pub fn wants_answer(&self) -> bool {
        let is_data = matches!(self.operation(), Operation::Send | Operation::Write);
        !is_data || self.packet().bth().ack_request()
    }
}

/// A RoCE frame that no device accepts.
#[derive(Debug)]
pub(super) struct Unsound;

/// The destination of frames: service, addresses and queue pair.
type Stream = (u8, String, u32);

impl Conversations {
    /// Sorts the frames of a capture into conversations.
    pub fn of(frames: &[CapturedFrame]) -> Conversations {
        let mut all = Conversations::default();
        let mut streams: BTreeMap<Stream, Vec<Observed>> = BTreeMap::new();
        for frame in frames {
            match Observed::of(frame) {
                Err(Unsound) => all.unsound += 1,
                Ok(None) => {}
                Ok(Some(observed)) => {
                    let bth = observed.packet().bth();
                    let service = match bth.opcode().service() {
                        TransportService::Rc if bth.opcode().is_known() => 0,
                        TransportService::Uc if bth.opcode().is_known() => 1,
                        TransportService::Ud if bth.opcode().is_known() => 3,
                        _ => {
                            all.foreign += 1;
                            continue;
                        }
                    };
                    let key = (service, format!("{:?}", observed.flow().addresses), bth.destination().value());
                    streams.entry(key).or_default().push(observed);
                }
            }
        }
        let (connected, rest): (Vec<_>, Vec<_>) = streams.into_iter().partition(|((service, ..), _)| *service == 0);
        all.pair(over_all_rails(connected.into_iter().map(|(_, frames)| frames).collect()));
        for ((service, ..), requests) in rest {
            let service = if service == 1 { TransportService::Uc } else { TransportService::Ud };
            let addresses = requests[0].flow().addresses;
            let responder = requests[0].packet().bth().destination();
            all.list.push(Conversation {
                service,
                addresses,
                responder,
                requester: None,
                requests,
                answers: Vec::new(),
                is_selective: false,
                nonces: Vec::new(),
            });
        }
        all.list.sort_by_key(|conversation| conversation.requests[0].number);
        all
    }

    /// Finds the two directions of each reliable connection. They have opposite addresses, and the most answers whose
    /// PSNs are requested in the other direction.
    fn pair(&mut self, streams: Vec<Vec<Observed>>) {
        let extended: Vec<bool> =
            streams.iter().map(|frames| frames.iter().any(|frame| frame.packet().bth().extended())).collect();
        let nonces: Vec<Vec<u32>> =
            streams.iter().map(|frames| frames.iter().filter_map(Observed::nonce).collect()).collect();
        let qpns: Vec<_> = streams.iter().map(|frames| frames[0].packet().bth().destination()).collect();
        let split: Vec<(Vec<Observed>, Vec<Observed>)> = streams
            .into_iter()
            .map(|frames| frames.into_iter().partition(|frame| !frame.packet().bth().opcode().is_response()))
            .collect();
        let any = |index: usize| split[index].0.first().or(split[index].1.first()).expect("no stream is empty");
        let mut scores = Vec::new();
        for a in 0..split.len() {
            for b in a + 1..split.len() {
                let (one, other) = (any(a), any(b));
                if one.flow().addresses != other.flow().addresses.reversed() {
                    continue;
                }
                let answered = answered(&split[a].0, &split[b].1) + answered(&split[b].0, &split[a].1);
                // With rxe both directions of a connection have the same source port.
                let same_port = one.flow().source_port == other.flow().source_port;
                scores.push((answered, same_port, a, b));
            }
        }
        scores.sort_by_key(|&(answered, same_port, a, b)| std::cmp::Reverse((answered, same_port, usize::MAX - a - b)));
        let mut peer = vec![None; split.len()];
        for (answered, same_port, a, b) in scores {
            if (answered > 0 || same_port) && peer[a].is_none() && peer[b].is_none() {
                (peer[a], peer[b]) = (Some(b), Some(a));
            }
        }
        let mut answers: Vec<_> = split.iter().map(|(_, answers)| answers.clone()).collect();
        for (index, (requests, _)) in split.into_iter().enumerate() {
            if requests.is_empty() {
                continue;
            }
            self.list.push(Conversation {
                service: TransportService::Rc,
                addresses: requests[0].flow().addresses,
                responder: qpns[index],
                requester: peer[index].map(|peer| qpns[peer]),
                requests,
                answers: peer[index].map_or(Vec::new(), |peer| std::mem::take(&mut answers[peer])),
                is_selective: extended[index] || peer[index].is_some_and(|peer| extended[peer]),
                // Its hellos go where its requests go.
                nonces: nonces[index].clone(),
            });
        }
    }
}

/// Joins what goes to the same queue pair over several interfaces: other addresses, and the same tag.
fn over_all_rails(streams: Vec<Vec<Observed>>) -> Vec<Vec<Observed>> {
    let mut by_tag: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut joined: Vec<Vec<Observed>> = Vec::new();
    for frames in streams {
        let qpn = frames[0].packet().bth().destination().value();
        let tag = frames.iter().map(Observed::tag).find(|tag| *tag != 0);
        match tag.and_then(|tag| by_tag.get(&(qpn, tag))) {
            Some(&at) => {
                joined[at].extend(frames);
                joined[at].sort_by_key(|frame| frame.number);
            }
            None => {
                if let Some(tag) = tag {
                    by_tag.insert((qpn, tag), joined.len());
                }
                joined.push(frames);
            }
        }
    }
    joined
}

/// The number of `answers` whose PSN is near those of `requests`.
fn answered(requests: &[Observed], answers: &[Observed]) -> usize {
    let (Some(first), Some(_)) = (requests.first(), answers.first()) else { return 0 };
    let base = first.psn();
    let low = requests.iter().map(|r| r.psn().since(base)).min().unwrap_or(0);
    let high = requests.iter().map(|r| r.psn().since(base) + r.psns(PathMtu::Mtu256) as i32).max().unwrap_or(0);
    answers.iter().filter(|a| (low..high).contains(&a.psn().since(base))).count()
}

impl Conversation {
    /// The path MTU: the payload of FIRST and MIDDLE packets. Where there are none, it is the smallest one that fits
    /// all packets, but at least 1024.
    pub fn path_mtu(&self) -> PathMtu {
        let frames = || self.requests.iter().chain(&self.answers);
        // A trailer, which the payload counts, is shorter than the least path MTU.
        let bytes = |frame: &Observed| match frame.packet().bth().extended() {
            true => PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= frame.packet().payload().len()),
            false => PathMtu::from_bytes(frame.packet().payload().len()),
        };
        let full =
            frames().filter(|frame| matches!(frame.position(), Position::First | Position::Middle)).find_map(bytes);
        let longest = frames().map(|frame| frame.packet().payload().len()).max().unwrap_or(0);
        full.or_else(|| PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() >= longest.max(1024)))
            .unwrap_or(PathMtu::Mtu4096)
    }

    /// The name of the conversation in messages.
    pub fn name(&self) -> String {
        let Conversation { addresses, responder, .. } = self;
        let service = match self.service {
            TransportService::Rc => "RC",
            TransportService::Uc => "UC",
            _ => "UD",
        };
        format!("{service} {} to {} queue pair {responder}", addresses.source(), addresses.destination())
    }
}

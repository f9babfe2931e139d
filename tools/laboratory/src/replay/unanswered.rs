use std::collections::BTreeMap;
use std::sync::Arc;

use uroce::memory::{Access, HostMemory};
use uroce::time::Instant;
use uroce::transport::{Completion, Data, Destination, ReceiveRequest, SendOperation, SendRequest, Service, Sge};
use uroce::wire::{Key, PathMtu, Psn, QKey, Qpn};

use super::ReplayError;
use super::comparison::{Assumptions, Report};
use super::conversation::{Conversation, Observed};
use super::hypothesis::{Fate, Outcome};
use super::messages::{Message, Messages};
use super::regions::{Regions, Target};
use super::requester::{describe, request_difference};
use super::stand_in::{Role, StandIn, path};

/// Length of the routing header before a datagram's payload in the receive buffer, in bytes.
const GRH_BYTES: u32 = 40;

/// The buffer for SENDs, which all of them share.
struct Buffer {
    memory: Arc<HostMemory>,
    key: Key,
}

impl Buffer {
    fn new(bytes: usize, peer: &mut StandIn) -> Result<Buffer, ReplayError> {
        let memory = Arc::new(HostMemory::new(bytes)?);
        let key = peer.endpoint.memory().register(peer.pd, memory.clone(), Access::LOCAL_WRITE);
        Ok(Buffer { memory, key })
    }

    fn post(&self, length: u32, peer: &mut StandIn) {
        let sges = [Sge { address: self.memory.address(), length, lkey: self.key }].into_iter().collect();
        // A full queue has enough receive requests.
        let _ = peer.endpoint.post_receive(Instant::ZERO, peer.qpn, ReceiveRequest { wr_id: 0, sges });
    }
}

/// Replays a UC conversation with our responder.
///
/// UC has no answers. The comparison is that each message with all its packets is delivered, with its bytes, and no
/// other is.
pub(super) fn replay_uc(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    let name = format!("{}, as responder", conversation.name());
    let mtu = conversation.path_mtu();
    let requests = &conversation.requests;
    let Some(start) = requests.iter().position(|request| request.position().starts()) else {
        report.assumed.push(format!("{name}: not replayed, since no message begins in the capture"));
        return Ok(());
    };
    let mut assumptions = Assumptions::default();
    assumptions.add("UC has no answers: compared is that whole messages are delivered, and no others");
    assumptions.add_many("a packet belongs to what was before the capture", start as u64);
    let messages = whole_messages(requests, start, mtu);
    let mut peer = StandIn::new(&Role {
        service: Service::Uc,
        addresses: conversation.addresses.reversed(),
        peer: Qpn::default(),
        path_mtu: mtu,
        receive_psn: requests[start].psn(),
        send_psn: Psn::default(),
        q_key: QKey::default(),
        rnr_timer: Default::default(),
    });
    let served = Fate { outcome: Outcome::Served, answers: Vec::new() };
    let mut regions = Regions::of(requests, &vec![served; requests.len()], &mut peer)?;
    let longest = messages.values().flatten().map(|message| message.len).max().unwrap_or(0);
    let buffer = Buffer::new(longest as usize, &mut peer)?;
    let mut current = None;
    for (index, request) in requests.iter().enumerate().skip(start) {
        if request.position().starts() {
            current = messages.get(&index).cloned().flatten();
            match &current {
                Some(Message { operation: SendOperation::Write(_), .. }) => {}
                Some(Message { operation: SendOperation::WriteWithImmediate(..), .. }) => buffer.post(0, &mut peer),
                Some(message) => buffer.post(message.len, &mut peer),
                None => {}
            }
        }
        let extension = regions.translated(request);
        peer.feed(request.time, request, extension);
        let completion = peer.completions.poll();
        if !request.position().ends() {
            continue;
        }
        match (&current, completion) {
            (Some(message), completion) => {
                let target = Target::of(&requests[message.first]);
                match uc_difference(message, completion, target, &mut regions, &buffer) {
                    None => report.equal(),
                    Some(text) => report.differs(request.number, "delivery", text),
                }
            }
            (None, Some(_)) => {
                report.differs(request.number, "delivery", "a message that lacks packets was delivered".to_owned());
            }
            (None, None) => {
                assumptions.add("a message lacks packets, and is dropped");
                report.equal();
            }
        }
        current = None;
    }
    report.assumed.extend(assumptions.lines(&name));
    Ok(())
}

/// The messages with all their packets in order, by the index of their first packet; `None` for others.
fn whole_messages(requests: &[Observed], start: usize, mtu: PathMtu) -> BTreeMap<usize, Option<Message>> {
    let starts: Vec<_> =
        (start..requests.len()).filter(|&index| requests[index].position().starts()).chain([requests.len()]).collect();
    let message = |range: &[usize]| {
        let packets = &requests[range[0]..range[1]];
        let mut messages = Messages::of(packets, 0, mtu);
        let is_alone = messages.end == packets.len() && messages.list.len() == 1;
        let message = messages.list.pop().filter(|message| is_alone && message.is_whole);
        (range[0], message.map(|message| Message { first: range[0], ..message }))
    };
    starts.windows(2).map(message).collect()
}

/// A description of what is wrong with the delivery of a message; `None` when it is right.
fn uc_difference(
    message: &Message,
    completion: Option<Completion>,
    target: Option<Target>,
    regions: &mut Regions,
    buffer: &Buffer,
) -> Option<String> {
    let immediate = match message.operation {
        SendOperation::SendWithImmediate(data) | SendOperation::WriteWithImmediate(_, data) => Some(data),
        _ => None,
    };
    let is_silent = matches!(message.operation, SendOperation::Write(_));
    match completion {
        None if !is_silent => return Some(format!("a message of {} bytes was not delivered", message.len)),
        Some(done) if is_silent || done.byte_len != message.len || done.immediate != immediate => {
            return Some(format!("a message of {} bytes completed as {done:?}", message.len));
        }
        _ => {}
    }
    let placed = match target.filter(|target| target.len > 0) {
        Some(target) => regions.find(target)?.contents(target).0,
        None => buffer.memory.to_vec(0, message.len as usize),
    };
    (placed != message.payload).then(|| format!("a message of {} bytes was placed wrongly", message.len))
}

/// Replays datagrams with our responder: each must be delivered with its bytes.
pub(super) fn replay_ud(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    let name = format!("{}, as responder", conversation.name());
    let mut assumptions = Assumptions::default();
    assumptions.add("UD has no answers: compared is that datagrams are delivered");
    let q_key_of = |request: &Observed| request.packet().deth().map(|deth| deth.q_key());
    let mut votes: BTreeMap<u32, u64> = BTreeMap::new();
    for q_key in conversation.requests.iter().filter_map(q_key_of) {
        *votes.entry(q_key.0).or_default() += 1;
    }
    let Some(q_key) = votes.iter().max_by_key(|(_, count)| **count).map(|(q_key, _)| QKey(*q_key)) else {
        return Ok(());
    };
    assumptions.add(format!("the queue key is {:#010x}", q_key.0));
    let is_gsi = conversation.responder == Qpn::GSI;
    let mut peer = StandIn::new(&datagram_role(conversation, is_gsi, q_key, Psn::default()));
    let buffer = Buffer::new(GRH_BYTES as usize + PathMtu::Mtu4096.bytes(), &mut peer)?;
    for request in &conversation.requests {
        let packet = request.packet();
        if q_key_of(request) != Some(q_key) {
            assumptions.add("a datagram has another queue key, and is dropped");
            continue;
        }
        let payload = packet.payload().to_vec();
        let len = GRH_BYTES + payload.len() as u32;
        buffer.post(len, &mut peer);
        peer.feed(request.time, request, packet.headers().extension);
        let immediate = packet.imm_dt().map(|imm| imm.data());
        let source = packet.deth().map(|deth| deth.source()).unwrap_or_default();
        match peer.completions.poll() {
            Some(done)
                if (done.byte_len, done.immediate, done.source_qpn) == (len, immediate, source)
                    && buffer.memory.to_vec(GRH_BYTES as usize, payload.len()) == payload =>
            {
                report.equal();
            }
            other => report.differs(request.number, "delivery", format!("{}: {other:?}", describe(request))),
        }
    }
    report.assumed.extend(assumptions.lines(&name));
    Ok(())
}

fn datagram_role(conversation: &Conversation, is_gsi: bool, q_key: QKey, send_psn: Psn) -> Role {
    Role {
        service: if is_gsi { Service::Gsi } else { Service::Ud },
        addresses: conversation.addresses,
        peer: Qpn::default(),
        path_mtu: PathMtu::Mtu4096,
        receive_psn: Psn::default(),
        send_psn,
        q_key,
        rnr_timer: Default::default(),
    }
}

/// Replays datagrams with our requester: its packets must equal theirs.
///
/// A queue pair can also send to peers that are not in the capture, or are in another conversation, so that PSNs can
/// jump.
pub(super) fn replay_ud_requests(conversation: &Conversation, report: &mut Report) -> Result<(), ReplayError> {
    let name = format!("{}, as requester", conversation.name());
    let mut assumptions = Assumptions::default();
    let mut peers: BTreeMap<u32, (StandIn, Psn, QKey)> = BTreeMap::new();
    for request in &conversation.requests {
        let packet = request.packet();
        let Some(deth) = packet.deth() else { continue };
        let psn = packet.bth().psn();
        let source = deth.source().value();
        let goes_on = peers.get(&source).is_some_and(|(_, next, q_key)| *next == psn && *q_key == deth.q_key());
        if !goes_on {
            if peers.contains_key(&source) {
                assumptions.add("datagrams that went elsewhere have PSNs in between, or another queue key");
            }
            let role = datagram_role(conversation, deth.source() == Qpn::GSI, deth.q_key(), psn);
            peers.insert(source, (StandIn::new(&role), psn, deth.q_key()));
        }
        let (peer, next, _) = peers.get_mut(&source).expect("just inserted");
        *next = psn.plus(1);
        let payload = packet.payload().to_vec();
        let memory = Arc::new(HostMemory::new(payload.len())?);
        memory.write(0, &payload);
        let key = peer.endpoint.memory().register(peer.pd, memory.clone(), Access::empty());
        let operation = match packet.imm_dt() {
            Some(imm) => SendOperation::SendWithImmediate(imm.data()),
            None => SendOperation::Send,
        };
        let data = Data::sge(memory.address(), payload.len() as u32, key);
        let destination =
            Destination { path: path(conversation.addresses), qpn: packet.bth().destination(), q_key: deth.q_key() };
        let work = SendRequest {
            destination: Some(destination),
            solicited: packet.bth().solicited(),
            ..SendRequest::new(0, operation, data)
        };
        let posted = peer.endpoint.post_send(request.time, peer.qpn, work);
        let ours = peer.transmit(request.time);
        let _ = peer.endpoint.memory().deregister(key);
        let is_complete = peer.completions.poll().is_some();
        match (posted, ours) {
            (Ok(()), Some(ours)) => match request_difference(request, &ours) {
                None if is_complete => report.equal(),
                None => report.differs(request.number, "completion", "a datagram sent does not complete".to_owned()),
                Some(rule) => {
                    report.differs(request.number, rule, format!("{}; we send {}", describe(request), describe(&ours)));
                }
            },
            (posted, _) => {
                let text = format!("{}; we send nothing ({posted:?})", describe(request));
                report.differs(request.number, "missing-request", text);
            }
        }
    }
    report.assumed.extend(assumptions.lines(&name));
    Ok(())
}

//! Two queue pairs that know each other, ours and theirs.

use std::net::Ipv6Addr;

use rxe_rig::agent::{self, ACCESS_ALL, Ah, Cq, QKEY, Qp, QpOptions, Srq, Transport};
use uroce::verbs::{
    Access, AddressVector, Capabilities, CompletionQueue, ConnectOptions, Data, Destination, Key, PathMtu, Peer,
    PostError, Psn, QKey, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, RnrTimer, SendOperation,
    SendRequest, Service, SharedReceiveQueue,
};

use super::bench::{ALL, Bench, Operation, Request, Side};

/// What both ends of a conversation are set to.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub service: Service,
    /// 0 link-local, 1 IPv4, 2 global IPv6.
    pub gid: usize,
    pub mtu: PathMtu,
    /// The first PSN that each end sends.
    pub our_psn: u32,
    pub their_psn: u32,
    /// The ACK timeout's code of each end, the retries after timeouts and NAKs, and after RNR NAKs.
    pub our_patience: (u8, u8, u8),
    pub their_patience: (u8, u8, u8),
    /// What both ends' RNR NAKs ask the other to wait: its code.
    pub rnr_timer: u8,
    pub our_access: Access,
    pub their_access: &'static str,
}

impl Setup {
    /// IPv4, PSNs that wrap after a few packets, half a second of timeout, endless retries.
    pub fn new(mtu: PathMtu) -> Setup {
        Setup {
            service: Service::Rc,
            gid: 1,
            mtu,
            our_psn: 0xff_fff0,
            their_psn: 0xff_fffb,
            our_patience: (17, 7, 7),
            their_patience: (17, 7, 7),
            rnr_timer: 12,
            our_access: ALL,
            their_access: ACCESS_ALL,
        }
    }
}

/// READs and atomics in flight, each way.
const RD_ATOMIC: u8 = 16;

/// Where the completions of both ends go, and where their receives come from.
pub struct Queues<'a> {
    pub send: &'a CompletionQueue,
    pub receive: &'a CompletionQueue,
    pub srq: Option<&'a SharedReceiveQueue>,
    pub their_send: Cq,
    pub their_receive: Cq,
    pub their_srq: Option<Srq>,
}

/// Two queue pairs, ready to send.
pub struct Connection {
    pub qp: QueuePair,
    pub their_qp: Qp,
    /// Where datagrams go.
    datagrams: Option<(Destination, (Ah, u32, u32))>,
}

impl Connection {
    pub fn open(bench: &mut Bench, setup: &Setup, queues: &Queues<'_>) -> Connection {
        let &Queues { send, receive, srq, their_send, their_receive, their_srq } = queues;
        let service = setup.service;
        let capabilities = Capabilities { max_send_requests: 256, max_receive_requests: 256 };
        let options = QueuePairOptions { service, capabilities, send, receive, srq };
        let qp = bench.pd().create_queue_pair(&options).unwrap();

        let transport = match service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        let options = QpOptions {
            recv_cq: their_receive,
            max_send: 256,
            max_sge: 6,
            srq: their_srq,
            ..QpOptions::new(transport, their_send)
        };
        let their_qp = bench.agent.qp(&options).unwrap();
        let datagrams = if service == Service::Ud {
            Some(ready_for_datagrams(bench, setup, &qp, their_qp))
        } else {
            connect(bench, setup, &qp, their_qp);
            None
        };
        Connection { qp, their_qp, datagrams }
    }

    /// The Q_Key that datagrams carry from now on, from both ends.
    pub fn set_q_key(&mut self, key: u32) {
        let (to_them, to_us) = self.datagrams.as_mut().expect("only datagrams carry one");
        (to_them.q_key, to_us.2) = (QKey(key), key);
    }

    pub fn post(&self, bench: &mut Bench, side: Side, request: &Request) {
        match side {
            Side::Us => self.post_ours(bench, request).unwrap_or_else(|e| panic!("{request:?}: {e}")),
            Side::Rxe => self.post_theirs(bench, request),
        }
    }

    /// As [`Connection::post`], at our end, which may refuse.
    pub fn post_ours(&self, bench: &Bench, request: &Request) -> Result<(), PostError> {
        let operation = match request.operation {
            Operation::Send => SendOperation::Send,
            Operation::SendImmediate(data) => SendOperation::SendWithImmediate(data),
            Operation::SendInvalidate(key) => SendOperation::SendWithInvalidate(Key(key)),
            Operation::Write(at) => SendOperation::Write(at.ours()),
            Operation::WriteImmediate(at, data) => SendOperation::WriteWithImmediate(at.ours(), data),
            Operation::Read(at) => SendOperation::Read(at.ours()),
            Operation::CompareSwap { at, compare, swap } => {
                SendOperation::CompareSwap { remote: at.ours(), compare, swap }
            }
            Operation::FetchAdd { at, add } => SendOperation::FetchAdd { remote: at.ours(), add },
        };
        let data = if request.inline {
            let pieces = request.local.iter().map(|&(offset, len)| bench.region().memory().to_vec(offset, len));
            Data::Inline(pieces.flatten().collect())
        } else {
            Data::Sges(bench.our_sges(&request.local))
        };
        let Request { wr_id, fence, solicited, .. } = *request;
        let destination = self.datagrams.map(|(destination, _)| destination);
        self.qp.post_send(SendRequest { solicited, fence, destination, ..SendRequest::new(wr_id, operation, data) })
    }

    fn post_theirs(&self, bench: &mut Bench, request: &Request) {
        let operation = match request.operation {
            Operation::Send => agent::Operation::Send,
            Operation::SendImmediate(data) => agent::Operation::SendImm(data),
            Operation::SendInvalidate(key) => agent::Operation::SendInv(key),
            Operation::Write(at) => agent::Operation::Write(at.theirs()),
            Operation::WriteImmediate(at, data) => agent::Operation::WriteImm(at.theirs(), data),
            Operation::Read(at) => agent::Operation::Read(at.theirs()),
            Operation::CompareSwap { at, compare, swap } => {
                agent::Operation::CompareSwap { at: at.theirs(), compare, swap }
            }
            Operation::FetchAdd { at, add } => agent::Operation::FetchAdd { at: at.theirs(), add },
        };
        let Request { wr_id, fence, solicited, inline, .. } = *request;
        let sges = bench.their_sges(&request.local);
        let to = self.datagrams.map(|(_, to)| to);
        let send = agent::Send { fence, solicited, inline, to, ..agent::Send::new(operation, wr_id, &sges) };
        bench.agent.post_send(self.their_qp, &send).unwrap_or_else(|e| panic!("{request:?}: {e}"));
    }

    /// Posts a request of ours as it is, but for a datagram's destination.
    pub fn post_raw(&self, request: SendRequest) -> Result<(), PostError> {
        self.qp.post_send(SendRequest { destination: self.datagrams.map(|(destination, _)| destination), ..request })
    }

    /// Where their datagrams go, in the agent's words.
    pub fn their_destination(&self) -> String {
        self.datagrams.map_or(String::new(), |(_, (ah, qpn, key))| format!(" ah={} qpn={qpn:#x} qkey={key:#x}", ah.0))
    }

    pub fn post_receive(&self, bench: &mut Bench, side: Side, wr_id: u64, local: &[(usize, usize)]) {
        match side {
            Side::Us => self.qp.post_receive(ReceiveRequest { wr_id, sges: bench.our_sges(local) }).unwrap(),
            Side::Rxe => {
                let sges = bench.their_sges(local);
                bench.agent.post_recv(self.their_qp, wr_id, &sges).unwrap();
            }
        }
    }
}

/// How we get to them.
pub fn vector(bench: &mut Bench, gid: usize) -> AddressVector {
    AddressVector {
        source_gid_index: gid,
        destination_gid: Ipv6Addr::from(bench.agent.gid(gid as u32).unwrap()),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

fn connect(bench: &mut Bench, setup: &Setup, qp: &QueuePair, their_qp: Qp) {
    let (timeout, retry, rnr_retry) = setup.their_patience;
    let to_us = agent::Path {
        sgid_index: setup.gid as u8,
        sq_psn: setup.their_psn,
        rq_psn: setup.our_psn,
        mtu: setup.mtu.bytes() as u32,
        rd_atomic: RD_ATOMIC,
        rnr_timer: setup.rnr_timer,
        timeout,
        retry,
        rnr_retry,
        ..agent::Path::new(bench.context().gids()[setup.gid].address.octets(), qp.qpn().value())
    };
    bench.agent.init(their_qp, setup.their_access).unwrap();
    bench.agent.rtr(their_qp, &to_us).unwrap();
    bench.agent.rts(their_qp, &to_us).unwrap();

    let (timeout, retry_count, rnr_retry) = setup.our_patience;
    let attributes = QpAttributes {
        access: Some(setup.our_access),
        path_mtu: Some(setup.mtu),
        send_psn: Some(Psn::new(setup.our_psn)),
        max_dest_rd_atomic: Some(RD_ATOMIC),
        max_rd_atomic: Some(RD_ATOMIC),
        min_rnr_timer: Some(RnrTimer::new(setup.rnr_timer)),
        timeout: Some(timeout),
        retry_count: Some(retry_count),
        rnr_retry: Some(rnr_retry),
        ..Default::default()
    };
    let peer = their_end(bench, setup, their_qp);
    qp.connect_with(&peer, &ConnectOptions::new().gid_index(setup.gid).attributes(attributes)).unwrap();
}

/// Who they are.
fn their_end(bench: &mut Bench, setup: &Setup, their_qp: Qp) -> Peer {
    let gid = Ipv6Addr::from(bench.agent.gid(setup.gid as u32).unwrap());
    Peer::new(Qpn::new(their_qp.qpn), Psn::new(setup.their_psn), gid)
}

/// Makes both ready, with the same Q_Key. Returns how to get to them and to us.
fn ready_for_datagrams(
    bench: &mut Bench,
    setup: &Setup,
    qp: &QueuePair,
    their_qp: Qp,
) -> (Destination, (Ah, u32, u32)) {
    bench.agent.ready_datagram(their_qp, setup.their_psn).unwrap();
    let our_gid = bench.context().gids()[setup.gid].address.octets();
    let ah = bench.agent.ah(&our_gid, setup.gid as u8).unwrap();
    let (q_key, send_psn) = (Some(QKey(QKEY)), Some(Psn::new(setup.our_psn)));
    let attributes = QpAttributes { q_key, send_psn, ..Default::default() };
    let options = ConnectOptions::new().gid_index(setup.gid).attributes(attributes);
    let peer = their_end(bench, setup, their_qp);
    qp.connect_with(&peer, &options).unwrap();
    let to_them = qp.destination(&peer, &options).unwrap();
    (to_them, (ah, qp.qpn().value(), QKEY))
}

//! A connection by RDMA CM that is broken at each packet of a fixed exchange: connect, three SENDs, a WRITE and a READ,
//! disconnect. From some packet on the peer is dead; or one packet is lost, or arrives twice, or late; or the client is killed
//! then, and another takes its place. Whoever disconnects: each work request completes exactly once and in order, each event
//! comes once, and both ends come to rest.
//!
//! All of it happens in virtual time. A failure names the seed, the packet and what became of it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::cm::message::{Reason, Reply, Request};
use uroce::cm::{EventKind, Id, Manager};
use uroce::frame::FrameBytes;
use uroce::memory::{Access, HostMemory};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    CompletionKind, CompletionRing, Data, QpAttributes, ReceiveRequest, RecoveryMode, RecoverySettings, Remote,
    SendOperation, SendRequest, Service, Sge, State, Status,
};
use uroce::wire::{PathMtu, Psn, Qpn, RnrTimer};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::connection::{self, SERVICE, addresses_from as from};
use uroce_laboratory::world::{Host, Peering, path, pattern, with_ethernet};

const DELAY: Duration = Duration::from_micros(50);
const LATE: Duration = Duration::from_millis(30);

/// When a client asks again whose request was rejected.
const ASKS_AGAIN: Duration = Duration::from_millis(20);

/// Longer than all that either end waits for: sixteen retransmissions, and time wait.
const EVERYTHING: Duration = Duration::from_secs(600);

/// Two packets of the path MTU, and some.
const MESSAGE_BYTES: usize = 2100;
const MEMORY_BYTES: usize = 1 << 16;

/// Where the peer's WRITE goes, from where its READ comes, and where what is read goes.
const WRITTEN_AT: usize = 0x4000;
const READ_AT: usize = 0x8000;
const RESULT_AT: usize = 0xc000;

/// Of the client's requests; what is received is numbered from 1 on.
const SENDS: [u64; 5] = [11, 12, 13, 14, 15];

/// Receive requests of the client, which nobody sends to, and of the server, one more than it is sent to.
const RECEIVES: [u64; 2] = [2, 4];

in_both_modes! {
    nothing_happens_to_the_exchange
    every_packet_is_the_last_one
    every_packet_is_lost_once
    every_packet_arrives_twice
    every_packet_arrives_late
    the_client_is_killed_and_its_successor_has_the_same_queue_pair
}

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is lost, and so are all after it.
    Dead,
    Lost,
    Twice,
    Late,
    /// The client's process ends when it is sent. At once there is another one, which asks again, with a queue pair of the same
    /// number.
    Killed,
}

/// Who calls disconnect when the exchange is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closer {
    Client,
    Server,
    Both,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    recovery: RecoveryMode,
    seed: u64,
    closer: Closer,
    /// The packet's number, and what becomes of it.
    fault: Option<(usize, Fault)>,
}

enum Packet {
    /// A datagram to QP1.
    Mad(Vec<u8>),
    Frame(Vec<u8>),
}

/// What an end has seen of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    requested: u32,
    accepted: u32,
    established: u32,
    failed: u32,
    disconnected: u32,
    over: u32,
}

/// A program with its queue pair, and with one connection at most.
struct Program {
    side: usize,
    /// How many were here before it, or how many connections of those it had.
    generation: u32,
    host: Host,
    manager: Manager,
    qpn: Qpn,
    connection: Option<Id>,
    /// Completions in their order.
    done: Vec<(u64, CompletionKind, Status)>,
    seen: Seen,
    has_disconnected: bool,
    peering: Option<Peering>,
    /// When it asks again.
    asks_at: Option<Instant>,
}

struct World {
    plan: Plan,
    now: Instant,
    programs: [Program; 2],
    network: BTreeMap<(Instant, usize), (usize, Packet)>,
    sent: usize,
    arrivals: usize,
    is_killed: bool,
}

impl Program {
    fn new(side: usize, generation: u32, plan: &Plan) -> Program {
        let memory = Arc::new(HostMemory::new(MEMORY_BYTES).unwrap());
        memory.write(0, &pattern(plan.seed + side as u64 + 100 * u64::from(generation), MEMORY_BYTES));
        let recovery = RecoverySettings { recovery: plan.recovery, ..RecoverySettings::default() };
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let cq = CompletionRing::new(64, || {});
        let mut host = Host::new(plan.seed as u8 ^ (side as u8 + 1), recovery, memory, access, cq);
        let init = host.init(Service::Rc, 8, None, PathMtu::Mtu1024);
        let qpn = host.endpoint.create_queue_pair(init.clone()).unwrap();
        for _ in 0..generation {
            // The number is the same, and all that is drawn after it is not.
            let another = host.endpoint.create_queue_pair(init.clone()).unwrap();
            host.endpoint.destroy_queue_pair(another).unwrap();
        }
        let mut manager = Manager::new(7 + side as u64, side as u16 + 1, plan.seed + 99 * u64::from(generation));
        if side == 1 {
            manager.listen(Instant::ZERO, SERVICE, None, 8).unwrap();
        }
        let (done, seen) = (Vec::new(), Seen::default());
        let (has_disconnected, peering, asks_at) = (false, None, None);
        Program {
            side,
            generation,
            host,
            manager,
            qpn,
            connection: None,
            done,
            seen,
            has_disconnected,
            peering,
            asks_at,
        }
    }

    /// A server's next connection, with a queue pair of its own.
    fn renew(&mut self) {
        while self.host.cq.poll().is_some() {}
        self.host.endpoint.destroy_queue_pair(self.qpn).unwrap();
        let init = self.host.init(Service::Rc, 8, None, PathMtu::Mtu1024);
        self.qpn = self.host.endpoint.create_queue_pair(init).unwrap();
        self.generation += 1;
        self.done.clear();
        (self.seen, self.has_disconnected, self.peering) = (Seen::default(), false, None);
    }

    fn ask(&mut self, now: Instant, plan: &Plan) {
        let request = self.request(plan);
        (self.seen, self.asks_at) = (Seen::default(), None);
        self.connection = Some(self.manager.connect(now, from(0), request).unwrap());
    }

    fn psn(&self, plan: &Plan) -> Psn {
        // Near the end of the numbers, so that they wrap in some runs.
        Psn::new(0xff_fffe).plus(plan.seed as u32 * 7 + self.side as u32 + self.generation * 0x12_3456)
    }

    fn request(&self, plan: &Plan) -> Request {
        let request = connection::request(self.qpn);
        Request { responder_resources: 4, initiator_depth: 4, psn: self.psn(plan), ack_timeout: 14, ..request }
    }

    fn reply(&self, plan: &Plan) -> Reply {
        Reply { responder_resources: 4, initiator_depth: 4, psn: self.psn(plan), ..connection::reply(self.qpn) }
    }

    /// To ready to send, with what is to be received posted.
    fn connect(&mut self, now: Instant, plan: &Plan, (peer, first): (Qpn, Psn)) {
        let peering = Peering {
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            send_psn: first,
            receive_psn: self.psn(plan),
            rd_atomic: 4,
            rnr_timer: RnrTimer::new(12),
            timeout: 8,
            ..Peering::new(
                path(Ipv4Addr::new(10, 0, 0, self.side as u8 + 1), Ipv4Addr::new(10, 0, 0, 2 - self.side as u8), 0),
                peer,
            )
        };
        self.peering = Some(peering);
        peering.connect(&mut self.host.endpoint, now, self.qpn);
        for number in 0..RECEIVES[self.side] {
            let address = self.host.memory.address() + number * 0x1000;
            let sge = Sge { address, length: 0x1000, lkey: self.host.key };
            let request = ReceiveRequest { wr_id: number + 1, sges: [sge].into_iter().collect() };
            self.host.endpoint.post_receive(now, self.qpn, request).unwrap();
        }
    }

    fn post_all(&mut self, now: Instant, remote: impl Fn(usize) -> Remote) {
        let write = SendOperation::Write(remote(WRITTEN_AT));
        let read = SendOperation::Read(remote(READ_AT));
        let send = SendOperation::Send;
        for (wr_id, (operation, at)) in
            SENDS.into_iter().zip([(send, 0), (send, 0), (write, 0), (read, RESULT_AT), (send, 0)])
        {
            let address = self.host.memory.address() + at as u64;
            let data = Data::sge(address, MESSAGE_BYTES as u32, self.host.key);
            self.host.endpoint.post_send(now, self.qpn, SendRequest::new(wr_id, operation, data)).unwrap();
        }
    }

    /// What librdmacm does: the queue pair first.
    fn disconnect(&mut self, now: Instant) {
        if !self.has_disconnected
            && let Some(id) = self.connection
        {
            self.has_disconnected = true;
            self.fail(now);
            // It may have ended already.
            let _ = self.manager.disconnect(now, id);
        }
    }

    fn fail(&mut self, now: Instant) {
        let error = QpAttributes { state: Some(State::Error), ..QpAttributes::default() };
        self.host.endpoint.modify(now, self.qpn, &error).unwrap();
    }

    fn collect(&mut self, now: Instant, plan: &Plan) {
        while let Some(completion) = self.host.cq.poll() {
            assert_eq!(completion.qpn, self.qpn);
            self.done.push((completion.wr_id, completion.kind, completion.status));
            let is_last = match self.side {
                0 => completion.wr_id == SENDS[4],
                _ => completion.wr_id == 3,
            };
            let closes = match plan.closer {
                Closer::Client => self.side == 0,
                Closer::Server => self.side == 1,
                Closer::Both => true,
            };
            if completion.status != Status::Success || is_last && closes {
                self.disconnect(now);
            }
        }
    }
}

impl World {
    fn new(plan: Plan) -> World {
        let mut programs = [0, 1].map(|side| Program::new(side, 0, &plan));
        programs[0].ask(Instant::ZERO, &plan);
        let (now, network) = (Instant::ZERO, BTreeMap::new());
        World { plan, now, programs, network, sent: 0, arrivals: 0, is_killed: false }
    }

    /// Another client takes the place of the first.
    fn succeed(&mut self) {
        let qpn = self.programs[0].qpn;
        self.programs[0] = Program::new(0, 1, &self.plan);
        assert_eq!(self.programs[0].qpn, qpn);
        self.programs[0].ask(self.now, &self.plan);
    }

    fn send(&mut self, side: usize, packet: Packet) {
        let number = self.sent;
        self.sent += 1;
        let (mut copies, mut delay) = (1, DELAY);
        match self.plan.fault {
            Some((from, Fault::Dead)) if number >= from => copies = 0,
            Some((at, fault)) if number == at => match fault {
                Fault::Dead | Fault::Lost => copies = 0,
                Fault::Twice => copies = 2,
                Fault::Late => delay = LATE,
                Fault::Killed => self.is_killed = true,
            },
            _ => {}
        }
        for copy in 0..copies {
            let packet = match &packet {
                Packet::Mad(bytes) => Packet::Mad(bytes.clone()),
                Packet::Frame(bytes) => Packet::Frame(bytes.clone()),
            };
            self.arrivals += 1;
            // The second copy comes a little later, among others.
            self.network.insert((self.now + delay * (1 + copy), self.arrivals), (1 - side, packet));
        }
    }

    fn put_on_the_wire(&mut self) {
        let mut buffer = vec![0; 8192];
        for side in 0..2 {
            while let Some(outgoing) = self.programs[side].manager.poll_transmit() {
                self.send(side, Packet::Mad(outgoing.mad.to_vec()));
            }
            while let Some(transmit) = self.programs[side].host.endpoint.poll_transmit(self.now, &mut buffer) {
                self.send(side, Packet::Frame(with_ethernet(&buffer[..transmit.len])));
            }
        }
    }

    /// What the programs do about what has happened.
    fn react(&mut self) {
        let (now, plan) = (self.now, self.plan);
        for side in 0..2 {
            while let Some(event) = self.programs[side].manager.poll_event() {
                self.hear(side, event.id, event.kind);
            }
            self.programs[side].collect(now, &plan);
        }
    }

    fn hear(&mut self, side: usize, id: Id, kind: EventKind) {
        let (now, plan) = (self.now, self.plan);
        let [client, server] = &mut self.programs;
        let server_memory = (server.host.memory.address(), server.host.key);
        let program = if side == 0 { client } else { server };
        if matches!(kind, EventKind::Requested { .. }) && program.connection.take().is_some() {
            assert_eq!((plan.fault.map(|fault| fault.1), program.generation), (Some(Fault::Killed), 0), "{plan:?}");
            program.renew();
        }
        let whose = program.connection.is_none_or(|connection| connection == id);
        assert!(whose, "{plan:?}: {kind:?} of a connection that is not there");
        let seen = &mut program.seen;
        match kind {
            EventKind::Requested { request, .. } => {
                seen.requested += 1;
                program.connection = Some(id);
                program.connect(now, &plan, (request.qpn, request.psn));
                let reply = program.reply(&plan);
                program.manager.accept(now, id, reply).unwrap();
            }
            EventKind::Accepted(reply) => {
                seen.accepted += 1;
                program.connect(now, &plan, (reply.qpn, reply.psn));
                program.manager.ready_to_use(now, id).unwrap();
                let (address, key) = server_memory;
                program.post_all(now, |offset| Remote { address: address + offset as u64, key });
            }
            EventKind::Established => seen.established += 1,
            // The server still has the connection of the first client, and ends it.
            EventKind::Rejected(reject)
                if side == 0 && program.generation == 1 && reject.reason == Reason::STALE_CONNECTION =>
            {
                program.connection = None;
                program.asks_at = Some(now + ASKS_AGAIN);
            }
            EventKind::Rejected(_) | EventKind::Unreachable => {
                seen.failed += 1;
                if side == 1 || seen.accepted == 1 {
                    program.fail(now);
                }
            }
            EventKind::Disconnected => {
                seen.disconnected += 1;
                program.disconnect(now);
            }
            EventKind::TimeWaitOver => seen.over += 1,
            EventKind::Asked { .. } | EventKind::Answered(_) => panic!("{plan:?}: {kind:?}"),
        }
    }

    /// Goes on until nothing happens any more; the network is empty then, and no timer is armed.
    fn run_to_rest(&mut self) {
        let end = self.now + EVERYTHING;
        loop {
            self.react();
            self.put_on_the_wire();
            if std::mem::take(&mut self.is_killed) {
                self.succeed();
                continue;
            }
            let timers = self
                .programs
                .iter_mut()
                .flat_map(|one| [one.manager.poll_timeout(), one.host.endpoint.poll_timeout(), one.asks_at]);
            let arrival = self.network.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.flatten().chain(arrival).min() else { break };
            assert!(next <= end, "{:?}: a timer is armed for {next:?}", self.plan);
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (to, packet)) = self.network.pop_first().unwrap();
                match packet {
                    Packet::Mad(mad) => self.programs[to].manager.handle_datagram(self.now, from(1 - to), &mad),
                    Packet::Frame(frame) => {
                        self.programs[to].host.endpoint.handle_frame(self.now, FrameBytes::from(&frame[..]));
                    }
                }
            }
            for program in &mut self.programs {
                program.manager.handle_timeout(self.now);
                program.host.endpoint.handle_timeout(self.now);
                if program.asks_at.is_some_and(|at| at <= self.now) {
                    program.ask(self.now, &self.plan);
                }
            }
        }
        for program in &mut self.programs {
            assert!(!program.host.endpoint.may_transmit(), "{:?}", self.plan);
        }
    }

    /// Each request completed once and in order; from the first error on all are flushed.
    fn check_completions(&self) {
        let plan = self.plan;
        for program in &self.programs {
            let side = program.side;
            let has_queue_pair = program.peering.is_some();
            let of = |is_receive: bool| {
                let all = program.done.iter().filter(move |done| (done.0 <= 10) == is_receive);
                all.copied().collect::<Vec<_>>()
            };
            let receives: Vec<u64> = (1..=RECEIVES[side]).filter(|_| has_queue_pair).collect();
            let sends: Vec<u64> = SENDS.into_iter().filter(|_| side == 0 && has_queue_pair).collect();
            for (done, wanted) in [(of(true), receives), (of(false), sends)] {
                let numbers: Vec<u64> = done.iter().map(|done| done.0).collect();
                assert_eq!(numbers, wanted, "{plan:?}: side {side}: {done:?}");
                let failed = done.iter().skip_while(|done| done.2 == Status::Success);
                let statuses: Vec<Status> = failed.map(|done| done.2).collect();
                let (first, rest) = statuses.split_first().unzip();
                assert!(
                    matches!(first, None | Some(Status::WrFlush | Status::RetryExceeded)),
                    "{plan:?}: side {side}: {done:?}"
                );
                assert!(rest.unwrap_or(&[]).iter().all(|status| *status == Status::WrFlush), "{plan:?}: {done:?}");
            }
        }
    }

    /// What completed without error has happened.
    fn check_memory(&self) {
        let plan = self.plan;
        let [client, server] = &self.programs;
        let succeeded =
            |program: &Program, wr_id| program.done.iter().any(|done| (done.0, done.2) == (wr_id, Status::Success));
        let theirs = pattern(plan.seed + 1, MEMORY_BYTES);
        let ours = pattern(plan.seed + 100 * u64::from(client.generation), MEMORY_BYTES);
        for number in (1..=4).filter(|number| succeeded(server, *number)) {
            let at = (number - 1) as usize * 0x1000;
            assert_eq!(server.host.memory.to_vec(at, MESSAGE_BYTES), ours[..MESSAGE_BYTES], "{plan:?}: {number}");
        }
        if succeeded(client, SENDS[2]) {
            assert_eq!(server.host.memory.to_vec(WRITTEN_AT, MESSAGE_BYTES), ours[..MESSAGE_BYTES], "{plan:?}");
        }
        if succeeded(client, SENDS[3]) {
            let read = client.host.memory.to_vec(RESULT_AT, MESSAGE_BYTES);
            assert_eq!(read, theirs[READ_AT..READ_AT + MESSAGE_BYTES], "{plan:?}");
        }
    }

    fn seen(&self) -> [Seen; 2] {
        [0, 1].map(|side| self.programs[side].seen)
    }
}

/// The whole of a connection's life, as each end sees it.
const WHOLE: [Seen; 2] = [
    Seen { requested: 0, accepted: 1, established: 0, failed: 0, disconnected: 1, over: 1 },
    Seen { requested: 1, accepted: 0, established: 1, failed: 0, disconnected: 1, over: 1 },
];

/// Plays the exchange. Returns the number of packets.
fn play(plan: Plan) -> usize {
    let mut world = World::new(plan);
    world.run_to_rest();
    let is_dead = matches!(plan.fault, Some((_, Fault::Dead)));
    if is_dead {
        // Who waits for a message of the peer's waits for ever, until the program gives up.
        let now = world.now;
        world.programs.iter_mut().for_each(|program| program.disconnect(now));
        world.run_to_rest();
    }
    world.check_completions();
    world.check_memory();
    let generations = [0, 1].map(|side| world.programs[side].generation);
    assert_eq!(generations, [u32::from(matches!(plan.fault, Some((_, Fault::Killed)))); 2], "{plan:?}");
    if plan.closer == Closer::Client && !is_dead {
        // Nothing of the exchange is missing, nor is anything of a successor's.
        assert!(world.programs[0].done.iter().filter(|done| done.0 > 10).all(|done| done.2 == Status::Success));
    }
    for (side, (seen, whole)) in world.seen().into_iter().zip(WHOLE).enumerate() {
        if !is_dead {
            // A server may disconnect before it knows that its client was ready.
            let established = if plan.closer == Closer::Client { whole.established } else { seen.established.min(1) };
            let expected = if side == 1 { Seen { established, ..whole } } else { whole };
            assert_eq!(seen, expected, "{plan:?}: side {side}");
            continue;
        }
        let Seen { requested, accepted, established, failed, disconnected, over } = seen;
        let is_at_most_once = [requested, accepted, established, failed, disconnected, over].iter().all(|n| *n <= 1);
        assert!(is_at_most_once, "{plan:?}: side {side}: {seen:?}");
        // A connection that was begun ends in one way.
        let begun = if side == 0 { 1 } else { requested };
        assert_eq!((failed + over, disconnected), (begun, over), "{plan:?}: side {side}: {seen:?}");
    }
    for program in &mut world.programs {
        assert_eq!(program.manager.connections(), 0, "{plan:?}");
        program.host.endpoint.destroy_queue_pair(program.qpn).unwrap();
        assert_eq!(program.host.endpoint.queue_pairs(), 0, "{plan:?}");
    }
    world.sent
}

/// Plays the exchange with the fault at each packet of the one without.
fn play_with(recovery: RecoveryMode, fault: Fault) {
    let mut games = 0;
    for seed in 0..3 {
        for closer in [Closer::Client, Closer::Server, Closer::Both] {
            let plan = Plan { recovery, seed, closer, fault: None };
            for number in 0..play(plan) {
                play(Plan { fault: Some((number, fault)), ..plan });
                games += 1;
            }
        }
    }
    eprintln!("{games} exchanges, seeds 0 to 2, {fault:?}");
}

fn nothing_happens_to_the_exchange(recovery: RecoveryMode) {
    for seed in 0..3 {
        for closer in [Closer::Client, Closer::Server, Closer::Both] {
            let packets = play(Plan { recovery, seed, closer, fault: None });
            // Five of the connection manager, fifteen of data, and some acknowledges.
            assert!((22..=40).contains(&packets), "{packets}");
        }
    }
}

fn every_packet_is_the_last_one(recovery: RecoveryMode) {
    play_with(recovery, Fault::Dead);
}

fn every_packet_is_lost_once(recovery: RecoveryMode) {
    play_with(recovery, Fault::Lost);
}

fn every_packet_arrives_twice(recovery: RecoveryMode) {
    play_with(recovery, Fault::Twice);
}

fn every_packet_arrives_late(recovery: RecoveryMode) {
    play_with(recovery, Fault::Late);
}

fn the_client_is_killed_and_its_successor_has_the_same_queue_pair(recovery: RecoveryMode) {
    play_with(recovery, Fault::Killed);
}

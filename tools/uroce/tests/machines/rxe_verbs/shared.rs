//! Several connections whose receives come from one shared queue.

use std::time::{Duration, Instant};

use rxe_rig::agent::{Cq, Srq};
use rxe_rig::pattern;
use uroce::verbs::{CompletionQueue, Event, PathMtu, QpAttributes, ReceiveRequest, SharedReceiveQueue, State};

use super::bench::{AREA, Bench, Done, LIMIT, Operation, Request, SOURCE, Side, TARGET, kind};
use super::connection::{Connection, Queues, Setup};

/// Connections that share.
const CONNECTIONS: usize = 3;

/// Receives that the queue holds.
const CAPACITY: usize = 64;

/// Messages that come one at a time, and the limit meanwhile.
const SINGLY: u64 = 12;
const LIMIT_AT: usize = 5;

/// Messages of each connection that come all at once.
const BURST: usize = 10;

/// What memory holds before something arrives.
const BEFORE: u64 = 81;

pub fn all(bench: &mut Bench, mtu: PathMtu) {
    for sender in Side::BOTH {
        let mut shared = Sharing::new(bench, mtu, sender);
        shared.singly();
        shared.at_once();
        shared.empty();
        shared.last();
        shared.destroy();
        bench.say(&format!("{CONNECTIONS} connections by {sender:?} shared a receive queue"));
    }
}

/// The connections, the queue that they share at one end, and how far the test is.
struct Sharing<'a> {
    bench: &'a mut Bench,
    sender: Side,
    /// Bytes that a message, and a receive, may have.
    slot: usize,
    /// Messages of several lengths, one after the other.
    lengths: [usize; 5],
    connections: Vec<Connection>,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    their_cqs: [Cq; 2],
    ours: SharedReceiveQueue,
    theirs: Srq,
    /// Receives posted, and messages sent, so far; they count on.
    posted: u64,
    sent: u64,
}

impl<'a> Sharing<'a> {
    fn new(bench: &'a mut Bench, mtu: PathMtu, sender: Side) -> Sharing<'a> {
        // What went wrong on purpose before is no concern of ours.
        while bench.context().poll_event().is_some() {}
        while bench.agent.async_event(Duration::ZERO).unwrap().is_some() {}
        let send_cq = bench.context().create_completion_queue(1024);
        let receive_cq = bench.context().create_completion_queue(1024);
        let their_cqs = [0; 2].map(|_| bench.agent.cq(1024).unwrap());
        let ours = bench.pd().create_shared_receive_queue(CAPACITY).unwrap();
        let theirs = bench.agent.srq(CAPACITY as u32, 4).unwrap();
        let queues = Queues {
            send: &send_cq,
            receive: &receive_cq,
            srq: Some(&ours).filter(|_| sender == Side::Rxe),
            their_send: their_cqs[0],
            their_receive: their_cqs[1],
            their_srq: Some(theirs).filter(|_| sender == Side::Us),
        };
        let setup = Setup::new(mtu);
        let connections = (0..CONNECTIONS).map(|_| Connection::open(bench, &setup, &queues)).collect();
        let m = mtu.bytes();
        let (slot, lengths) = (4 * m, [0, 1, m, 3 * m + 5, m - 1]);
        let (posted, sent) = (0, 0);
        assert!(slot * (SINGLY as usize + CONNECTIONS * (BURST + 1)) <= AREA);
        Sharing {
            bench,
            sender,
            slot,
            lengths,
            connections,
            send_cq,
            receive_cq,
            their_cqs,
            ours,
            theirs,
            posted,
            sent,
        }
    }

    fn receiver(&self) -> Side {
        self.sender.other()
    }

    /// The receiver's number of a connection's queue pair.
    fn qpn(&self, connection: usize) -> u32 {
        let Connection { qp, their_qp, .. } = &self.connections[connection];
        if self.sender == Side::Us { their_qp.qpn } else { qp.qpn().value() }
    }

    /// Posts `count` receives, each with memory of its own.
    fn post_receives(&mut self, count: u64) {
        for wr_id in self.posted..self.posted + count {
            let place = [(TARGET + wr_id as usize * self.slot, self.slot)];
            self.bench.fill(self.receiver(), place[0].0, self.slot, BEFORE);
            if self.receiver() == Side::Us {
                self.ours.post_receive(ReceiveRequest { wr_id, sges: self.bench.our_sges(&place) }).unwrap();
            } else {
                let sges = self.bench.their_sges(&place);
                self.bench.agent.post_srq_recv(self.theirs, wr_id, &sges).unwrap();
            }
        }
        self.posted += count;
    }

    /// Sends the next message over a connection. Returns its number.
    fn send(&mut self, connection: usize) -> u64 {
        let (number, len) = (self.sent, self.length(self.sent));
        let from = SOURCE + number as usize * self.slot;
        self.bench.fill(self.sender, from, len, number);
        let request = Request::new(number, Operation::SendImmediate(number as u32), &[(from, len)]);
        self.connections[connection].post(self.bench, self.sender, &request);
        self.sent += 1;
        number
    }

    fn length(&self, number: u64) -> usize {
        self.lengths[number as usize % self.lengths.len()]
    }

    fn senders_done(&mut self, count: usize) -> Vec<Done> {
        match self.sender {
            Side::Us => self.bench.ours_done(&self.send_cq, count),
            Side::Rxe => self.bench.theirs_done(self.their_cqs[0], count),
        }
    }

    fn received(&mut self, count: usize) -> Vec<Done> {
        match self.receiver() {
            Side::Us => self.bench.ours_done(&self.receive_cq, count),
            Side::Rxe => self.bench.theirs_done(self.their_cqs[1], count),
        }
    }

    /// A receive took message `number` of `connection`: its completion is right, and so is every byte of its memory.
    fn check(&mut self, done: &Done, connection: usize, number: u64) {
        let (len, what) = (self.length(number), format!("message {number} of {:?}: {done:?}", self.sender));
        let wanted = Done {
            status: 0,
            kind: kind::RECEIVE,
            byte_len: len as u32,
            immediate: Some(number as u32),
            invalidated: None,
            qpn: self.qpn(connection),
            ..*done
        };
        assert_eq!(*done, wanted, "{what}");
        let (from, to) = (SOURCE + number as usize * self.slot, TARGET + done.wr_id as usize * self.slot);
        let mut expected = vec![0; self.slot];
        pattern::fill(&mut expected, to as u64, BEFORE);
        pattern::fill(&mut expected[..len], from as u64, number);
        let receiver = self.receiver();
        self.bench.assert_bytes(receiver, to, &expected, &what);
    }

    /// Whether the limit event came: within [`LIMIT`] when it should have.
    fn limit_event(&mut self, expected: bool) -> bool {
        let limit = if expected { LIMIT } else { Duration::ZERO };
        match self.receiver() {
            Side::Us => match self.bench.context().wait_event(limit).unwrap() {
                None => false,
                Some(event) => {
                    assert_eq!(event, Event::SrqLimit(self.ours.number()));
                    true
                }
            },
            Side::Rxe => match self.bench.agent.async_event(limit).unwrap() {
                None => false,
                Some((number, name)) => {
                    /// `IBV_EVENT_SRQ_LIMIT_REACHED`.
                    const REACHED: u32 = 15;
                    assert_eq!(number, REACHED, "{name}");
                    true
                }
            },
        }
    }

    /// Message after message, over each connection in turn: the receives are taken in the order in which they were posted,
    /// and the event comes once, when fewer than the limit are left.
    fn singly(&mut self) {
        self.post_receives(SINGLY);
        match self.receiver() {
            Side::Us => self.ours.arm(LIMIT_AT).unwrap(),
            Side::Rxe => self.bench.agent.srq_limit(self.theirs, LIMIT_AT as u32).unwrap(),
        }
        for taken in 1..=SINGLY {
            let connection = taken as usize % CONNECTIONS;
            let number = self.send(connection);
            let done = self.senders_done(1)[0];
            assert_eq!((done.wr_id, done.status), (number, 0));
            let done = self.received(1)[0];
            assert_eq!(done.wr_id, taken - 1, "receives are taken in order");
            self.check(&done, connection, number);
            let reached = SINGLY - taken == LIMIT_AT as u64 - 1;
            assert_eq!(self.limit_event(reached), reached, "after {taken} of {SINGLY} receives");
        }
    }

    /// All connections at once: each receive is taken once, and each connection's messages arrive in order.
    fn at_once(&mut self) {
        let (first, count) = (self.posted, CONNECTIONS * BURST);
        self.post_receives(count as u64);
        let mut numbers = vec![Vec::new(); CONNECTIONS];
        for _ in 0..BURST {
            for (connection, numbers) in numbers.iter_mut().enumerate() {
                numbers.push(self.send(connection));
            }
        }
        assert!(self.senders_done(count).iter().all(|done| done.status == 0));
        let all = self.received(count);
        let mut taken: Vec<_> = all.iter().map(|done| done.wr_id).collect();
        taken.sort_unstable();
        assert_eq!(taken, (first..first + count as u64).collect::<Vec<_>>(), "each receive once");
        for (connection, numbers) in numbers.iter().enumerate() {
            let qpn = self.qpn(connection);
            let mine: Vec<_> = all.iter().filter(|done| done.qpn == qpn).collect();
            assert_eq!(mine.len(), numbers.len());
            for (done, number) in mine.into_iter().zip(numbers) {
                self.check(done, connection, *number);
            }
        }
        assert!(!self.limit_event(false), "it came once, and was not armed again");
    }

    /// All connections find the queue empty, and go on when it is filled.
    fn empty(&mut self) {
        let name = if self.receiver() == Side::Us { "send_rnr_err" } else { "rcvd_rnr_err" };
        let before = self.bench.counter(name);
        let numbers: Vec<_> = (0..CONNECTIONS).map(|connection| self.send(connection)).collect();
        let start = Instant::now();
        while self.bench.counter(name) - before < CONNECTIONS as u64 {
            assert!(start.elapsed() < LIMIT, "not each was told");
            std::thread::yield_now();
        }
        self.post_receives(CONNECTIONS as u64);
        assert!(self.senders_done(CONNECTIONS).iter().all(|done| done.status == 0));
        for done in self.received(CONNECTIONS) {
            let connection = (0..CONNECTIONS).find(|&c| self.qpn(c) == done.qpn).expect("one of them");
            self.check(&done, connection, numbers[connection]);
        }
    }

    /// A queue pair in error takes no more: we tell it (IBTA 11.6.3.2), rxe does not.
    fn last(&mut self) {
        match self.receiver() {
            Side::Us => {
                let qp = &self.connections[0].qp;
                qp.modify(&QpAttributes { state: Some(State::Error), ..Default::default() }).unwrap();
                let event = self.bench.context().wait_event(LIMIT).unwrap();
                assert_eq!(event, Some(Event::LastWqeReached(qp.qpn(), self.ours.number())));
            }
            Side::Rxe => {
                let line = format!("modify {} state=err", self.connections[0].their_qp.handle);
                self.bench.agent.command(&line).unwrap();
                assert_eq!(self.bench.agent.async_event(Duration::from_millis(300)).unwrap(), None);
            }
        }
    }

    fn destroy(self) {
        let agent = &mut self.bench.agent;
        for connection in &self.connections {
            agent.destroy("qp", connection.their_qp.handle).unwrap();
        }
        agent.destroy("srq", self.theirs.0).unwrap();
        for cq in self.their_cqs {
            agent.destroy("cq", cq.0).unwrap();
        }
    }
}

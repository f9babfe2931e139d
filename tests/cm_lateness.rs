//! The connection manager when its messages come late: each message of a fixed exchange arrives twice, or late, at each
//! place of the rest of the exchange, and long after it. Both ends come to the end that both see without the fault; each
//! event comes once, and nothing is left.
//!
//! All of it happens in virtual time, without chance. A failure names the exchange, the message and when it came.

use std::collections::{BTreeMap, BTreeSet};

use uroce::cm::message::{DatagramReply, DatagramRequest, DatagramStatus, Reject};
use uroce::cm::{EventKind, Id, Listener, Mad, Manager};
use uroce::time::{Duration, Instant};
use uroce::wire::{Addresses, PKey, QKey, Qpn};
use uroce_laboratory::world::connection::{self, SERVICE, addresses_from as from};

const DELAY: Duration = Duration::from_millis(1);

/// When both ends have forgotten all, however often they have asked: sixteen messages, an answer that is kept.
const EVERYTHING: Duration = Duration::from_secs(300);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// What the programs do; times are from what they react to.
#[derive(Clone, Copy)]
struct Script {
    name: &'static str,
    service: Service,
    /// When somebody listens, from the beginning.
    listens_after: Duration,
    decision: Decision,
    decides_after: Duration,
    /// How long the client takes to move its queue pair.
    ready_after: Duration,
    /// When each end disconnects, after it has accepted or was accepted.
    ends_after: [Option<Duration>; 2],
    /// When the client closes what it has asked for, from the beginning.
    gives_up_after: Option<Duration>,
    /// What both see.
    end: [Story; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Connection,
    Datagrams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Accept,
    Reject,
}

/// What a connection, or a request for a datagram service, has come to at one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Story {
    requested: u32,
    accepted: u32,
    established: u32,
    /// Rejected, or without an answer.
    failed: u32,
    disconnected: u32,
    over: u32,
    answered: u32,
}

const NOTHING: Story =
    Story { requested: 0, accepted: 0, established: 0, failed: 0, disconnected: 0, over: 0, answered: 0 };
const CLIENTS: Story = Story { accepted: 1, disconnected: 1, over: 1, ..NOTHING };
const SERVERS: Story = Story { requested: 1, established: 1, disconnected: 1, over: 1, ..NOTHING };
const ASKED: Story = Story { requested: 1, ..NOTHING };
const FAILED: Story = Story { failed: 1, ..NOTHING };

/// A connection that the client ends.
const PLAIN: Script = Script {
    name: "the client ends it",
    service: Service::Connection,
    listens_after: Duration::ZERO,
    decision: Decision::Accept,
    decides_after: Duration::ZERO,
    ready_after: Duration::ZERO,
    ends_after: [Some(ms(10)), None],
    gives_up_after: None,
    end: [CLIENTS, SERVERS],
};

const DATAGRAMS: Script = Script {
    name: "a datagram service",
    service: Service::Datagrams,
    end: [Story { answered: 1, ..NOTHING }, ASKED],
    ..PLAIN
};

const SCRIPTS: [Script; 15] = [
    PLAIN,
    Script { name: "the server ends it", ends_after: [None, Some(ms(10))], ..PLAIN },
    Script { name: "both end it", ends_after: [Some(ms(10)), Some(ms(10))], ..PLAIN },
    Script {
        name: "the server ends it in the moment in which it accepts",
        ends_after: [None, Some(Duration::ZERO)],
        end: [CLIENTS, Story { established: 0, ..SERVERS }],
        ..PLAIN
    },
    Script {
        name: "the server accepts after 10 s",
        decides_after: ms(10_000),
        ready_after: ms(3000),
        ends_after: [Some(ms(5000)), None],
        ..PLAIN
    },
    Script { name: "the server accepts after 40 s", decides_after: ms(40_000), ..PLAIN },
    Script { name: "the server rejects", decision: Decision::Reject, end: [FAILED, ASKED], ..PLAIN },
    Script {
        name: "the server rejects after 1 s",
        decision: Decision::Reject,
        decides_after: ms(1000),
        end: [FAILED, ASKED],
        ..PLAIN
    },
    Script { name: "the server listens after 50 ms", listens_after: ms(50), ..PLAIN },
    Script { name: "the server listens after 350 ms", listens_after: ms(350), ..PLAIN },
    Script { name: "nobody listens", listens_after: EVERYTHING, end: [FAILED, NOTHING], ..PLAIN },
    Script {
        name: "the client gives up before the server decides",
        decides_after: ms(1000),
        gives_up_after: Some(ms(700)),
        end: [NOTHING, Story { failed: 1, ..ASKED }],
        ..PLAIN
    },
    DATAGRAMS,
    Script { name: "a datagram service that answers after 2 s", decides_after: ms(2000), ..DATAGRAMS },
    Script { name: "a datagram service that is there after 50 ms", listens_after: ms(50), ..DATAGRAMS },
];

/// What becomes of messages.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// One comes at another time, or again then.
    One {
        message: usize,
        at: Instant,
        is_copy: bool,
    },
    /// Each comes again so much later.
    AllTwice(Duration),
}

const REQ: u16 = 0x10;
const REP: u16 = 0x13;
const SIDR_REP: u16 = 0x18;

/// What a program does at a time.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Listen,
    Decide(Id),
    Ready(Id),
    Disconnect(usize, Id),
    GiveUp(Id),
}

struct World {
    script: Script,
    fault: Fault,
    now: Instant,
    ends: [Manager; 2],
    listener: Option<Listener>,
    deeds: BTreeMap<(Instant, usize), Deed>,
    network: BTreeMap<(Instant, usize), (usize, Addresses, Vec<u8>)>,
    serial: usize,
    /// When each message was sent, and which it was.
    sent: Vec<(Instant, u16)>,
    /// When something came.
    arrivals: Vec<Instant>,
    /// In the order in which they began, at each end.
    stories: [Vec<(Id, Story)>; 2],
}

impl World {
    fn new(script: Script, fault: Fault) -> World {
        let ends = [0, 1].map(|side| Manager::new(0x5054_00ff_fe00_0000 + side as u64, side as u16 + 1, 5));
        let mut world = World {
            script,
            fault,
            now: Instant::ZERO,
            ends,
            listener: None,
            deeds: BTreeMap::new(),
            network: BTreeMap::new(),
            serial: 0,
            sent: Vec::new(),
            arrivals: Vec::new(),
            stories: [Vec::new(), Vec::new()],
        };
        match script.listens_after {
            Duration::ZERO => world.carry_out(Deed::Listen),
            EVERYTHING => {}
            after => world.plan(after, Deed::Listen),
        }
        let id = match script.service {
            Service::Connection => world.ends[0].connect(world.now, from(0), connection::request(Qpn::new(0x11))),
            Service::Datagrams => {
                let private_data = [1; DatagramRequest::PRIVATE_BYTES];
                let ask = DatagramRequest { request_id: 0, p_key: PKey::DEFAULT, service_id: SERVICE, private_data };
                world.ends[0].ask(world.now, from(0), ask)
            }
        };
        let id = id.unwrap();
        world.stories[0].push((id, Story::default()));
        if let Some(after) = script.gives_up_after {
            world.plan(after, Deed::GiveUp(id));
        }
        world
    }

    fn plan(&mut self, after: Duration, deed: Deed) {
        self.serial += 1;
        self.deeds.insert((self.now + after, self.serial), deed);
    }

    fn carry_out(&mut self, deed: Deed) {
        let now = self.now;
        let [client, server] = &mut self.ends;
        // What it is about may have ended meanwhile.
        let _ = match deed {
            Deed::Listen => {
                self.listener = Some(server.listen(now, SERVICE, None, 8).unwrap());
                Ok(())
            }
            Deed::Decide(id) => match (self.script.service, self.script.decision) {
                (Service::Connection, Decision::Accept) => {
                    let accepted = server.accept(now, id, connection::reply(Qpn::new(0x12)));
                    if let (Ok(()), Some(after)) = (accepted, self.script.ends_after[1]) {
                        self.plan(after, Deed::Disconnect(1, id));
                    }
                    accepted
                }
                (Service::Connection, Decision::Reject) => server.reject(now, id, [7; Reject::PRIVATE_BYTES]),
                (Service::Datagrams, _) => {
                    let reply = DatagramReply {
                        request_id: 0,
                        status: DatagramStatus::SUCCESS,
                        qpn: Qpn::new(5),
                        service_id: SERVICE,
                        q_key: QKey(0x0123_4567),
                        private_data: [2; DatagramReply::PRIVATE_BYTES],
                    };
                    server.answer(now, id, reply)
                }
            },
            Deed::Ready(id) => client.ready_to_use(now, id),
            Deed::Disconnect(0, id) => client.disconnect(now, id),
            Deed::Disconnect(_, id) => server.disconnect(now, id),
            Deed::GiveUp(id) => {
                client.close(now, id);
                Ok(())
            }
        };
    }

    fn put_on_the_wire(&mut self) {
        for side in 0..2 {
            while let Some(outgoing) = self.ends[side].poll_transmit() {
                let number = self.sent.len();
                self.sent.push((self.now, Mad::parse(&outgoing.mad).unwrap().message.attribute()));
                let due = self.now + DELAY;
                let (in_time, late) = match self.fault {
                    Fault::One { message, at, is_copy } if message == number => (is_copy.then_some(due), Some(at)),
                    Fault::AllTwice(after) => (Some(due), Some(due + after)),
                    _ => (Some(due), None),
                };
                for at in [in_time, late].into_iter().flatten() {
                    self.serial += 1;
                    self.network.insert((at, self.serial), (1 - side, from(side), outgoing.mad.to_vec()));
                }
            }
        }
    }

    fn hear(&mut self, side: usize, id: Id, kind: EventKind) {
        let (script, fault) = (self.script, self.fault);
        let stories = &mut self.stories[side];
        if !stories.iter().any(|one| one.0 == id) {
            stories.push((id, Story::default()));
        }
        let story = &mut stories.iter_mut().find(|one| one.0 == id).unwrap().1;
        assert_eq!(
            (story.failed, story.over, story.answered),
            (0, 0, 0),
            "{}, {fault:?}: after the end {kind:?}",
            script.name
        );
        match kind {
            EventKind::Requested { .. } | EventKind::Asked { .. } => {
                story.requested += 1;
                self.plan(script.decides_after, Deed::Decide(id));
            }
            EventKind::Accepted(_) => {
                story.accepted += 1;
                self.plan(script.ready_after, Deed::Ready(id));
                if let Some(after) = script.ends_after[0] {
                    self.plan(script.ready_after + after, Deed::Disconnect(0, id));
                }
            }
            EventKind::Established => story.established += 1,
            EventKind::Rejected(_) | EventKind::Unreachable => story.failed += 1,
            EventKind::Disconnected => story.disconnected += 1,
            EventKind::TimeWaitOver => story.over += 1,
            EventKind::Answered(reply) => match reply.status {
                DatagramStatus::SUCCESS => story.answered += 1,
                _ => story.failed += 1,
            },
        }
    }

    /// Goes on until nothing happens any more.
    fn run_to_rest(&mut self) {
        let end = Instant::ZERO + EVERYTHING;
        loop {
            for side in 0..2 {
                while let Some(event) = self.ends[side].poll_event() {
                    self.hear(side, event.id, event.kind);
                }
            }
            self.put_on_the_wire();
            let keys = [self.network.keys().next(), self.deeds.keys().next()];
            let [arrival, deed] = keys.map(|key| key.map(|(at, _)| *at));
            let timer = self.ends.iter().filter_map(Manager::poll_timeout).min();
            let Some(next) = [arrival, deed, timer].into_iter().flatten().min() else { break };
            assert!(next < end, "{}, {:?}: {:?}", self.script.name, self.fault, self.stories);
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (to, addresses, mad)) = self.network.pop_first().unwrap();
                self.arrivals.push(self.now);
                self.ends[to].handle_datagram(self.now, addresses, &mad);
            } else if deed == Some(next) {
                let (_, deed) = self.deeds.pop_first().unwrap();
                self.carry_out(deed);
            } else {
                self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
            }
        }
    }

    fn check(&self) {
        let context = format!("{}: {:?} of {:x?}\n{:?}", self.script.name, self.fault, self.sent, self.stories);
        let [client, server] = self.script.end;
        let server_ends = self.script.ends_after[1].is_some();
        let late = match self.fault {
            Fault::One { message, .. } => Some(self.sent[message].1),
            Fault::None | Fault::AllTwice(_) => None,
        };
        let [(_, seen)] = self.stories[0][..] else { panic!("{context}") };
        // A server can have ended what its client never had.
        assert!(seen == client || server_ends && late == Some(REP) && seen == FAILED, "{context}");
        let mut servers = self.stories[1].iter().map(|one| one.1);
        let seen = servers.next().unwrap_or_default();
        // It need not know that its client was ready.
        let is_as_known = server_ends && seen == Story { established: 0, ..server };
        assert!(seen == server || is_as_known, "{context}");
        // A request that comes when all is over is a new one, which its client does not know.
        let is_late = late == Some(REQ) || matches!(self.fault, Fault::AllTwice(_));
        for Story { requested, accepted, established, failed, disconnected, over, answered } in servers {
            assert!(is_late, "{context}");
            assert_eq!((requested, failed + over, disconnected), (1, 1, over), "{context}");
            assert_eq!((accepted, established, answered), (0, 0, 0), "{context}");
        }
        for end in &self.ends {
            assert_eq!((end.connections(), end.poll_timeout()), (0, None), "{context}");
        }
    }
}

fn play(script: Script, fault: Fault) -> World {
    let mut world = World::new(script, fault);
    world.run_to_rest();
    world.check();
    world
}

/// When a message can come that was to come at `due`: after each of the others, and long after them.
fn places(due: Instant, arrivals: &[Instant]) -> BTreeSet<Instant> {
    let others = arrivals.iter().filter(|at| **at >= due).map(|at| *at + DELAY / 2);
    let later = [ms(300), ms(450), ms(1500), ms(5000), ms(10_000)].into_iter().map(|late| due + late);
    let end = arrivals.last().map(|at| *at + ms(100));
    others.chain(later).chain(end.filter(|end| *end > due)).collect()
}

/// Plays each exchange with each message late, or again, at each place. Returns the number of games.
fn play_with_one(is_copy: bool) -> usize {
    let mut games = 0;
    let mut kinds = BTreeSet::new();
    for script in SCRIPTS {
        let World { sent, arrivals, .. } = play(script, Fault::None);
        for (message, (at, kind)) in sent.into_iter().enumerate() {
            kinds.insert(kind);
            for at in places(at + DELAY, &arrivals) {
                play(script, Fault::One { message, at, is_copy });
                games += 1;
            }
        }
    }
    assert_eq!(kinds, (REQ..=SIDR_REP).collect(), "every kind of message");
    games
}

#[test]
fn each_message_may_come_again_at_each_place() {
    eprintln!("{} games", play_with_one(true));
}

#[test]
fn each_message_may_come_late_at_each_place() {
    eprintln!("{} games", play_with_one(false));
}

#[test]
fn all_messages_may_come_twice() {
    for script in SCRIPTS {
        for after in [0, 1, 2, 30, 450] {
            play(script, Fault::AllTwice(ms(after)));
        }
    }
}

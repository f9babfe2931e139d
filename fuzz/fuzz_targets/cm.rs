#![no_main]
//! Any sequence of calls, datagrams and time at two connection managers: no panic; what they send can be read; each event
//! comes at most once and in its place; and in the end nothing is left.

#[path = "../src/input.rs"]
mod input;

use std::collections::BTreeMap;

use input::Input;
use libfuzzer_sys::fuzz_target;
use uroce::cm::message::{DatagramReply, DatagramRequest, DatagramStatus, Reject, Reply, Request};
use uroce::cm::{EventKind, Id, Listener, Mad, Manager, PortSpace, ServiceId};
use uroce::time::{Duration, Instant};
use uroce::wire::{Addresses, PKey, QKey, Qpn};
use uroce_laboratory::world::connection::{self, address, addresses_from as from};

/// Messages that the network holds; more are lost.
const FLYING_MAX: usize = 64;

/// When everything that anybody waits for is over: all retries, and answers that are kept.
const EVERYTHING: Duration = Duration::from_secs(3600);

/// What an end has seen of one of its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    is_active: bool,
    is_datagram: bool,
    is_accepted: bool,
    is_established: bool,
    is_disconnected: bool,
    has_called_disconnect: bool,
}

struct Run {
    now: Instant,
    ends: [Manager; 2],
    listeners: [Vec<Listener>; 2],
    /// What each end may still hear of; what is gone is not in it.
    live: [BTreeMap<Id, Seen>; 2],
    /// To whom, from where to where, and what.
    flying: Vec<(usize, Addresses, Vec<u8>)>,
}

fn service(input: &mut Input<'_>) -> ServiceId {
    ServiceId::of(PortSpace::Tcp, 7 + u16::from(input.byte() % 2))
}

/// Few, so that old ones come again: stale connections.
fn qpn(input: &mut Input<'_>) -> Qpn {
    Qpn::new(u32::from(input.byte() % 8) + 2)
}

fn request(input: &mut Input<'_>) -> Request {
    let (service_id, base) = (service(input), connection::request(qpn(input)));
    Request {
        service_id,
        remote_response_timeout: input.byte() % 32,
        local_response_timeout: input.byte() % 32,
        max_cm_retries: input.byte() % 16,
        ack_timeout: input.byte() % 32,
        ..base
    }
}

fn reply(input: &mut Input<'_>) -> Reply {
    connection::reply(qpn(input))
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            now: Instant::ZERO,
            ends: [0, 1].map(|side| Manager::new(1 + side as u64, side as u16 + 1, seed)),
            listeners: [Vec::new(), Vec::new()],
            live: [BTreeMap::new(), BTreeMap::new()],
            flying: Vec::new(),
        }
    }

    /// One of an end's connections, or an id that it does not have.
    fn id(&self, side: usize, input: &mut Input<'_>) -> Option<Id> {
        let all = self.live[usize::from(input.is_wild()) ^ side].keys();
        let count = all.len().clamp(1, 256);
        all.copied().nth(input.below(count))
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let (side, now) = (input.below(2), self.now);
        let end = &mut self.ends[side];
        match input.below(12) {
            0 => {
                let at = input.is_wild().then(|| address(input.below(2)));
                self.listeners[side].extend(end.listen(now, service(input), at, input.below(4)));
            }
            1 if !self.listeners[side].is_empty() => {
                let at = input.below(self.listeners[side].len());
                end.unlisten(now, self.listeners[side].swap_remove(at));
            }
            2 | 3 => {
                let id = end.connect(now, from(side), request(input)).unwrap();
                self.live[side].insert(id, Seen { is_active: true, ..Seen::default() });
            }
            4 => {
                let asked = DatagramRequest {
                    request_id: 0,
                    p_key: PKey::DEFAULT,
                    service_id: service(input),
                    private_data: [0; DatagramRequest::PRIVATE_BYTES],
                };
                let id = end.ask(now, from(side), asked).unwrap();
                self.live[side].insert(id, Seen { is_active: true, is_datagram: true, ..Seen::default() });
            }
            kind => {
                let Some(id) = self.id(side, input) else { return };
                let (end, live) = (&mut self.ends[side], &mut self.live[side]);
                match kind {
                    5 | 6 => _ = end.accept(now, id, reply(input)),
                    7 => {
                        if end.reject(now, id, [0; Reject::PRIVATE_BYTES]).is_ok() {
                            live.remove(&id);
                        }
                    }
                    8 => _ = end.ready_to_use(now, id),
                    9 => end.handle_data(id),
                    10 => {
                        if end.disconnect(now, id).is_ok() {
                            live.entry(id).or_default().has_called_disconnect = true;
                        }
                    }
                    _ if input.chance(128) => {
                        end.close(now, id);
                        live.remove(&id);
                    }
                    _ => {
                        let answer = DatagramReply {
                            request_id: 0,
                            status: DatagramStatus(input.byte() % 4),
                            qpn: Qpn::new(5),
                            service_id: service(input),
                            q_key: QKey(3),
                            private_data: [0; DatagramReply::PRIVATE_BYTES],
                        };
                        if end.answer(now, id, answer).is_ok() {
                            live.remove(&id);
                        }
                    }
                }
            }
        }
    }

    /// What the network does to one of its messages, or what a stranger sends.
    fn deliver(&mut self, input: &mut Input<'_>) {
        if self.flying.is_empty() || input.is_wild() {
            let count = if input.chance(200) { 256 } else { input.below(256) };
            let mut mad = input.bytes(count);
            if let Some(header) = mad.get_mut(..4).filter(|_| input.chance(240)) {
                // Base version, class, its version, and the method.
                header.copy_from_slice(&[1, 7, 2, 3]);
            }
            if mad.len() > 17 && input.chance(240) {
                mad[16..18].copy_from_slice(&(0x10 + u16::from(input.byte() % 12)).to_be_bytes());
            }
            let side = input.below(2);
            return self.ends[side].handle_datagram(self.now, from(1 - side), &mad);
        }
        let at = input.below(self.flying.len());
        let (to, addresses, mut mad) = self.flying[at].clone();
        if !input.is_wild() {
            self.flying.remove(at);
        }
        if input.is_wild() {
            let at = input.below(mad.len());
            mad[at] ^= 1 << (input.byte() % 8);
        }
        if !input.is_wild() {
            self.ends[to].handle_datagram(self.now, addresses, &mad);
        }
    }

    fn collect(&mut self) {
        for side in 0..2 {
            let mut count = 0;
            while let Some(outgoing) = self.ends[side].poll_transmit() {
                count += 1;
                assert!(count <= 2048, "sends without an end");
                assert_eq!(outgoing.addresses, from(side));
                Mad::parse(&outgoing.mad).expect("what is sent can be read");
                if self.flying.len() < FLYING_MAX {
                    self.flying.push((1 - side, from(side), outgoing.mad.to_vec()));
                }
            }
            while let Some(event) = self.ends[side].poll_event() {
                self.hear(side, event.id, &event.kind);
            }
        }
    }

    fn hear(&mut self, side: usize, id: Id, kind: &EventKind) {
        let live = &mut self.live[side];
        if let EventKind::Requested { listener, .. } | EventKind::Asked { listener, .. } = kind {
            assert!(self.listeners[side].contains(listener), "nobody listens: {kind:?}");
            let is_datagram = matches!(kind, EventKind::Asked { .. });
            let before = live.insert(id, Seen { is_datagram, ..Seen::default() });
            assert!(before.is_none(), "{id} is in use: {before:?}");
            return;
        }
        let Some(seen) = live.get_mut(&id) else { panic!("{kind:?} of {id}, which is gone") };
        match kind {
            EventKind::Requested { .. } | EventKind::Asked { .. } => unreachable!(),
            EventKind::Accepted(_) => {
                assert!(seen.is_active && !seen.is_datagram && !seen.is_accepted, "{seen:?}");
                seen.is_accepted = true;
            }
            EventKind::Established => {
                assert!(!seen.is_active && !seen.is_established && !seen.is_disconnected, "{seen:?}");
                seen.is_established = true;
            }
            EventKind::Disconnected => {
                assert!(!seen.is_datagram && !seen.is_disconnected, "{seen:?}");
                assert!(!seen.is_active || seen.is_accepted, "{seen:?}");
                seen.is_disconnected = true;
            }
            EventKind::Answered(_) => assert!(seen.is_active && seen.is_datagram, "{seen:?}"),
            EventKind::Rejected(_) | EventKind::Unreachable => {
                assert!(!seen.is_established && !seen.is_disconnected, "{kind:?}: {seen:?}");
            }
            EventKind::TimeWaitOver => {
                assert!(seen.is_disconnected || seen.has_called_disconnect, "{seen:?}");
            }
        }
        let ends = matches!(
            kind,
            EventKind::Rejected(_) | EventKind::Unreachable | EventKind::TimeWaitOver | EventKind::Answered(_)
        );
        if ends {
            live.remove(&id);
        }
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        for end in &mut self.ends {
            end.handle_timeout(self.now);
            assert!(end.poll_timeout().is_none_or(|at| at > self.now), "a timer that has expired stays");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    input.wildness = input.byte();
    let mut run = Run::new(input.u64());
    while !input.is_empty() {
        match input.below(8) {
            0..3 => run.call(&mut input),
            3..7 => run.deliver(&mut input),
            _ => {
                let millis = [0, 1, 100, 500, 2_000, 5_000, 60_000, 140_000][input.below(8)];
                run.advance(Duration::from_millis(millis));
            }
        }
        run.collect();
    }
    for side in 0..2 {
        let ids: Vec<Id> = run.live[side].keys().copied().collect();
        ids.into_iter().for_each(|id| run.ends[side].close(run.now, id));
        run.live[side].clear();
        run.listeners[side].drain(..).for_each(|listener| _ = run.ends[side].unlisten(run.now, listener));
    }
    run.flying.clear();
    let until = run.now + EVERYTHING;
    while let Some(at) = run.ends.iter().filter_map(Manager::poll_timeout).min() {
        assert!(at <= until, "something waits for more than an hour");
        run.now = run.now.max(at);
        run.advance(Duration::ZERO);
        run.collect();
        run.flying.clear();
    }
    for end in &run.ends {
        assert_eq!(end.connections(), 0, "connections are left: {:?}", end.counters());
    }
});

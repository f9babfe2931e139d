use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::frame::Hop;
use crate::memory::{KeySource, MemoryTable, Pd};
use crate::transport::counters::Counters;
use crate::transport::receive_queue::SharedReceiveQueues;
use crate::transport::{CompletionQueue, Path, Remote, SgeList};
use crate::wire::{Addresses, Flow, Key, Qpn};

/// What a requester works with.
struct World {
    identity: Identity,
    memory: MemoryTable,
    shared: SharedReceiveQueues,
    counters: Counters,
    events: VecDeque<crate::transport::Event>,
    identification: u16,
}

impl World {
    fn new(path_mtu: PathMtu) -> World {
        let cq = Arc::new(CompletionQueue::new(16, || {}));
        let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let identity = Identity {
            qpn: Qpn::new(2),
            service: Service::Rc,
            pd: Pd(1),
            remote: Qpn::new(3),
            path_mtu,
            path: Some(Path { flow, hop: Hop(0) }),
            extension: crate::transport::extension::Extension::new(Default::default()),
            send_cq: cq.clone(),
            receive_cq: cq,
        };
        let memory = MemoryTable::new(KeySource::new([1; 32]));
        let (shared, counters) = (SharedReceiveQueues::default(), Counters::default());
        World { identity, memory, shared, counters, events: VecDeque::new(), identification: 0 }
    }

    fn with<T>(&mut self, work: impl FnOnce(&Identity, &mut Surroundings<'_>) -> T) -> T {
        let World { identity, memory, shared, counters, events, identification } = self;
        let mut cx = Surroundings {
            now: Instant::ZERO,
            memory,
            shared,
            counters,
            events,
            identification,
            multipath: &mut None,
            waiting_elsewhere: 0,
        };
        work(identity, &mut cx)
    }

    fn sends(&mut self, requester: &mut Requester) -> bool {
        self.with(|identity, cx| requester.poll_transmit(false, &mut [0; 4500], identity, cx)).unwrap().is_some()
    }
}

/// A request of `len` bytes; memory is looked at only when packets with payload are made.
fn request(wr_id: u64, operation: SendOperation, len: u64) -> SendRequest {
    const PIECE: u64 = 1 << 30;
    let sge = |length| crate::transport::Sge { address: 0, length, lkey: Key(1) };
    let whole = (0..len / PIECE).map(|_| sge(PIECE as u32));
    let sges: SgeList = whole.chain([sge((len % PIECE) as u32)]).collect();
    SendRequest::new(wr_id, operation, Data::Sges(sges))
}

const REMOTE: Remote = Remote { address: 0, key: Key(1) };

fn requester(first_psn: Psn) -> Requester {
    let mut requester = Requester::new(Service::Rc);
    let (send_psn, max_rd_atomic) = (Some(first_psn), Some(2));
    requester.configure(&QpAttributes { send_psn, max_rd_atomic, ..Default::default() });
    requester
}

#[test]
fn messages_of_half_the_psn_space_are_refused_and_all_shorter_ones_up_to_two_gib_are_taken() {
    for operation in [SendOperation::Send, SendOperation::Write(REMOTE), SendOperation::Read(REMOTE)] {
        for path_mtu in PathMtu::ALL {
            let longest = if path_mtu == PathMtu::Mtu256 { (1 << 31) - 256 } else { 1 << 31 };
            let mut requester = requester(Psn::new(0xff_fff0));
            let error = requester.post(request(1, operation, longest + 1), path_mtu).unwrap_err();
            assert_eq!(error, PostError::TooLong { len: longest + 1, limit: longest });
            assert_eq!(requester.posted(), Psn::new(0xff_fff0), "nothing was posted");
            requester.post(request(1, operation, longest), path_mtu).unwrap();
            let packets = longest as u32 / path_mtu.bytes() as u32;
            assert_eq!(requester.posted(), Psn::new(0xff_fff0).plus(packets));
            // The last packet's offset, and its bytes, fit into what headers carry.
            assert_eq!((packets - 1) * path_mtu.bytes() as u32 + path_mtu.bytes() as u32, longest as u32);
        }
    }
}

/// The longest READ there is, and behind it another: it waits until the first is complete, although there is room in
/// the window as soon as the first's last answer is all that is missing. Then both complete.
#[test]
fn requests_in_flight_never_span_half_the_psn_space() {
    for first_psn in [0, 5, 0x7f_ffff, 0x80_0000, 0xff_fffe].map(Psn::new) {
        let (mut world, mut requester) = (World::new(PathMtu::Mtu256), requester(first_psn));
        requester.post(request(1, SendOperation::Read(REMOTE), (1 << 31) - 256), PathMtu::Mtu256).unwrap();
        requester.post(request(2, SendOperation::Read(REMOTE), 1), PathMtu::Mtu256).unwrap();
        assert!(world.sends(&mut requester));
        assert!(!world.sends(&mut requester), "the window is closed");
        let end = first_psn.plus(SPAN_PACKETS);
        assert_eq!((requester.sent, requester.unacknowledged), (end, first_psn));

        // All answers but the last have come.
        requester.queue[0].received = SPAN_PACKETS - 1;
        requester.progress(end.minus(1), Instant::ZERO);
        assert!(!world.sends(&mut requester), "it would span half the space");
        assert_eq!(requester.queue.len(), 2);
        // The last one, lost, is asked for again: a request for its bytes alone.
        requester.go_back();
        assert_eq!((requester.cursor.index, requester.cursor.packet), (0, SPAN_PACKETS - 1));
        assert!(world.sends(&mut requester));

        requester.queue[0].received = SPAN_PACKETS;
        requester.reads_in_flight = 0;
        requester.progress(end, Instant::ZERO);
        world.with(|identity, cx| requester.retire(identity, cx)).unwrap();
        assert_eq!(world.identity.send_cq.poll().map(|done| (done.wr_id, done.status)), Some((1, Status::Success)));
        assert!(world.sends(&mut requester));
        requester.queue[0].received = 1;
        requester.progress(end.plus(1), Instant::ZERO);
        world.with(|identity, cx| requester.retire(identity, cx)).unwrap();
        assert_eq!(world.identity.send_cq.poll().map(|done| (done.wr_id, done.status)), Some((2, Status::Success)));
    }
}

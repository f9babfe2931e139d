use super::*;
use crate::recovery::Answer;
use crate::transport::testing::World;
use crate::transport::{Remote, SgeList};
use crate::wire::Key;

impl World {
    /// The first `count` missing answers have come.
    fn answer(&mut self, requester: &mut Requester, count: u32) {
        for number in (requester.recovery.first()..).take(count as usize) {
            assert_eq!(requester.recovery.answer(number), Answer::Expected);
            requester.recovery.answered(number, Instant::ZERO);
        }
        requester.recovery.settle(Instant::ZERO);
        self.with(|connection, cx| requester.retire(connection, cx)).unwrap();
    }

    fn sends(&mut self, requester: &mut Requester) -> bool {
        self.with(|connection, cx| {
            let (next_at, acknowledge) = (Instant::ZERO, &Cell::default());
            let all = Admission { new_packets: true, new_messages: true, is_last: false, next_at, acknowledge };
            requester.poll_transmit(all, &mut [0; 4500], connection, cx)
        })
        .unwrap()
        .is_some()
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
    let attributes = QpAttributes { send_psn, max_rd_atomic, ..Default::default() };
    World::new(PathMtu::Mtu256).with(|connection, _| requester.configure(&attributes, connection));
    requester
}

#[test]
fn messages_of_half_the_psn_space_are_refused_and_all_shorter_ones_up_to_two_gib_are_taken() {
    for operation in [SendOperation::Send, SendOperation::Write(REMOTE), SendOperation::Read(REMOTE)] {
        for path_mtu in PathMtu::ALL {
            let longest = if path_mtu == PathMtu::Mtu256 { (1 << 31) - 256 } else { 1 << 31 };
            let mut requester = requester(Psn::new(0xff_fff0));
            let error = requester.post(&mut request(1, operation, longest + 1), path_mtu).unwrap_err();
            assert_eq!(error, PostError::TooLong { len: longest + 1, limit: longest });
            assert_eq!(requester.posted(), Psn::new(0xff_fff0), "nothing was posted");
            requester.post(&mut request(1, operation, longest), path_mtu).unwrap();
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
        requester.post(&mut request(1, SendOperation::Read(REMOTE), (1 << 31) - 256), PathMtu::Mtu256).unwrap();
        requester.post(&mut request(2, SendOperation::Read(REMOTE), 1), PathMtu::Mtu256).unwrap();
        assert!(world.sends(&mut requester));
        assert!(!world.sends(&mut requester), "the window is closed");
        let end = first_psn.plus(SPAN_PACKETS);
        assert_eq!((requester.sent(), requester.unacknowledged()), (end, first_psn));

        // All answers except the last have arrived.
        world.answer(&mut requester, SPAN_PACKETS - 1);
        assert!(!world.sends(&mut requester), "it would span half the space");
        assert_eq!(requester.len(), 2);
        // The last one, lost, is asked for again: a request for its bytes alone.
        assert!(requester.recovery.sequence_error(Instant::ZERO));
        assert_eq!(requester.upcoming(), end.minus(1));
        assert!(world.sends(&mut requester));
        assert_eq!(requester.upcoming(), end);

        world.answer(&mut requester, 1);
        assert_eq!(world.connection.send_cq.poll().map(|done| (done.wr_id, done.status)), Some((1, Status::Success)));
        assert!(world.sends(&mut requester));
        world.answer(&mut requester, 1);
        assert_eq!(world.connection.send_cq.poll().map(|done| (done.wr_id, done.status)), Some((2, Status::Success)));
    }
}

/// More is posted than there are PSNs: whatever is in flight is found among it.
#[test]
fn requests_in_flight_are_found_whatever_is_posted_behind_them() {
    for first_psn in [0, 5, 0x7f_ffff, 0x80_0000, 0xff_fffe].map(Psn::new) {
        let (mut world, mut requester) = (World::new(PathMtu::Mtu4096), requester(first_psn));
        requester.post(&mut request(0, SendOperation::Read(REMOTE), 3 * 4096), PathMtu::Mtu4096).unwrap();
        requester.post(&mut request(1, SendOperation::Read(REMOTE), 4096), PathMtu::Mtu4096).unwrap();
        // Each takes 2^19 of the 2^24.
        (2..102).for_each(|wr_id| {
            requester.post(&mut request(wr_id, SendOperation::Write(REMOTE), 1 << 31), PathMtu::Mtu4096).unwrap();
        });
        assert!(world.sends(&mut requester) && world.sends(&mut requester));
        let found: Vec<_> =
            (0..4).map(|number| requester.queue.find(requester.number(first_psn.plus(number)))).collect();
        assert_eq!(found, [Some(0), Some(0), Some(0), Some(1)]);

        // The first completes, and the second is found where it is then.
        world.answer(&mut requester, 3);
        let second = requester.queue.find(requester.number(first_psn.plus(3)));
        assert_eq!((requester.len(), second), (101, Some(0)));
    }
}

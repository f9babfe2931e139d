//! Completion queues that overflow, and those of queue pairs that are destroyed.

use easy_ext::ext;
use uroce::transport::{CompletionRing, Event, RecoveryMode, RecoverySettings, SendOperation, State, Status};
use uroce::wire::{Aeth, Extension, Msn, Opcode, Syndrome};
use uroce_laboratory::world::crafted::{ALL, Crafted};

fn with(cq: CompletionRing) -> Crafted {
    Crafted::with_queue(ALL, RecoverySettings::default(), cq)
}

#[ext]
impl Crafted {
    /// Sends `count` requests, which the peer acknowledges.
    fn completes(&mut self, count: u32) {
        let (_, first) = self.endpoint.queue_pair(self.qpn).unwrap().send_progress();
        (0..count).for_each(|wr_id| self.post_send(wr_id.into(), SendOperation::Send, 0, 8));
        self.answers();
        let acknowledge = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::default()));
        self.send(self.bth(Opcode::RC_ACKNOWLEDGE, first.plus(count - 1)), acknowledge, &[]);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }

    fn wr_ids(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.completion()).map(|done| done.wr_id).collect()
    }
}

#[test]
fn an_overflow_puts_the_queue_and_all_who_complete_into_it_into_error() {
    let mut us = with(CompletionRing::new(4, || {}));
    let other = us.another_queue_pair();
    us.completes(4);
    assert_eq!((us.state(), us.events()), (State::ReadyToSend, vec![]), "it is full, and nothing was lost");
    us.completes(1);
    assert!(us.cq.has_overflowed());
    let mut fatal = [us.qpn, other];
    fatal.sort_unstable_by_key(|qpn| qpn.value());
    let fatal = fatal.map(Event::QueuePairFatal);
    assert_eq!(us.events(), [Event::CompletionQueueOverflow(us.qpn), fatal[0], fatal[1]]);
    for qpn in [us.qpn, other] {
        assert_eq!(us.endpoint.queue_pair(qpn).unwrap().state(), State::Error);
    }
    assert_eq!(us.wr_ids(), [0, 1, 2, 3], "what is in it can be polled");
    // It takes no more, and says nothing more of it.
    us.post_send(9, SendOperation::Send, 0, 8);
    assert_eq!((us.wr_ids(), us.events()), (vec![], vec![]));
}

#[test]
fn a_queue_pair_in_reset_stays_there_when_its_queue_overflows() {
    let mut us = with(CompletionRing::new(2, || {}));
    let other = us.another_queue_pair();
    let reset = uroce::transport::QpAttributes { state: Some(State::Reset), ..Default::default() };
    us.endpoint.modify(us.now, other, &reset).unwrap();
    us.completes(3);
    assert_eq!(us.events(), [Event::CompletionQueueOverflow(us.qpn), Event::QueuePairFatal(us.qpn)]);
    assert_eq!(us.endpoint.queue_pair(other).unwrap().state(), State::Reset);
}

#[test]
fn a_queue_that_ignores_overruns_fails_nobody() {
    let mut us = with(CompletionRing::new(4, || {}).ignoring_overrun());
    us.completes(7);
    assert_eq!((us.state(), us.events()), (State::ReadyToSend, vec![]));
    assert_eq!(us.wr_ids(), [3, 4, 5, 6]);
}

#[test]
fn a_destroyed_queue_pair_leaves_no_completion() {
    let mut us = Crafted::new(RecoveryMode::default());
    us.completes(3);
    let (first, second) = (us.qpn, us.another_queue_pair());
    us.qpn = second;
    us.post_send(7, SendOperation::Send, 0, 8);
    us.modify(State::Error);
    us.endpoint.destroy_queue_pair(first).unwrap();
    let left = us.completion().unwrap();
    assert_eq!((left.wr_id, left.status, left.qpn), (7, Status::WrFlush, second), "the other one's");
    assert_eq!(us.completion(), None);
}

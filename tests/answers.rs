//! Answers of a peer that knows the IBTA only, frame by frame: what comes after a gap is kept, just what is missing is asked for
//! again (IBTA 9.7.5.1.1), and `go-back-n` does none of that.

mod common;

use common::crafted::{ALL, Crafted, FIRST_PSN, MTU};
use uroce::frame::FrameBytes;
use uroce::time::Duration;
use uroce::transport::{Recovery, RecoverySettings, Remote, SendOperation, State, Status};
use uroce::wire::{Aeth, AtomicAckEth, Extension, Msn, NakCode, Opcode, Packet, Psn, RnrTimer, RoceFrame, Syndrome};

const FULL: usize = MTU.bytes();

fn psn(number: u32) -> Psn {
    FIRST_PSN.plus(number)
}

/// What is sent: opcode, PSN counted from the first, and of READs the offset and the length that they ask for.
type Sent = (Opcode, u32, Option<(u64, u32)>);

const READ: Opcode = Opcode::RC_READ_REQUEST;
const AT: u64 = 0x1000;

fn with(recovery: Recovery) -> Crafted {
    Crafted::with(ALL, RecoverySettings { recovery, ..RecoverySettings::default() })
}

impl Crafted {
    fn post_read(&mut self, wr_id: u64, offset: usize, len: u32) {
        let remote = Remote { address: AT + offset as u64, key: self.key };
        self.post_send(wr_id, SendOperation::Read(remote), offset, len);
    }

    fn sent(&mut self) -> Vec<Sent> {
        let sent = |frame: &Vec<u8>| {
            let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap().ib).unwrap();
            let read = packet.reth().filter(|_| packet.bth().opcode() == READ);
            let range = read.map(|reth| (reth.address() - AT, reth.length()));
            (packet.bth().opcode(), packet.bth().psn().since(FIRST_PSN) as u32, range)
        };
        self.frames().iter().map(sent).collect()
    }

    /// The peer answers a READ with `len` bytes, all of which are `byte`.
    fn data(&mut self, opcode: Opcode, number: u32, byte: u8, len: usize) -> Vec<Sent> {
        let extension = match opcode {
            Opcode::RC_READ_RESPONSE_MIDDLE => Extension::None,
            _ => Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1))),
        };
        let frame = self.frame(self.bth(opcode, psn(number)), extension, &vec![byte; len]);
        self.endpoint.handle_frame(self.now, FrameBytes::from(&frame[..]));
        self.sent()
    }

    fn middle(&mut self, number: u32, byte: u8) -> Vec<Sent> {
        self.data(Opcode::RC_READ_RESPONSE_MIDDLE, number, byte, FULL)
    }

    fn answer(&mut self, number: u32, syndrome: Syndrome) -> Vec<Sent> {
        let aeth = Extension::Aeth(Aeth::new(syndrome, Msn::new(1)));
        let frame = self.frame(self.bth(Opcode::RC_ACKNOWLEDGE, psn(number)), aeth, &[]);
        self.endpoint.handle_frame(self.now, FrameBytes::from(&frame[..]));
        self.sent()
    }

    /// Time passes until something is sent.
    fn next_sent(&mut self) -> Vec<Sent> {
        loop {
            let at = self.endpoint.poll_timeout().expect("a timer is armed");
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            let sent = self.sent();
            if !sent.is_empty() {
                return sent;
            }
        }
    }

    fn done(&mut self) -> Vec<(u64, Status)> {
        std::iter::from_fn(|| self.completion()).map(|done| (done.wr_id, done.status)).collect()
    }
}

fn part(first: u32, packets: u32) -> Sent {
    (READ, first, Some((u64::from(first) * FULL as u64, packets * FULL as u32)))
}

#[test]
fn just_what_lacks_is_asked_for_and_what_came_after_it_is_kept() {
    let mut us = with(Recovery::Auto);
    us.post_read(7, 0, 8 * FULL as u32);
    assert_eq!(us.sent(), [part(0, 8)]);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL), []);
    // 1 and 2 are lost, and 5.
    assert_eq!(us.middle(3, 4), [part(1, 2)]);
    assert_eq!(us.middle(4, 5), []);
    assert_eq!(us.middle(6, 7), [], "asked for 5, rxe would forget 1 and 2");
    assert_eq!(us.memory.to_vec(3 * FULL, 2 * FULL), [[4; FULL], [5; FULL]].concat(), "placed at once");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 7, 8, FULL), []);
    // rxe goes on with MIDDLE, the IBTA begins anew with FIRST or ONLY: both are the same to us.
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_FIRST, 1, 2, FULL), []);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 2, 3, FULL), [part(5, 1)]);
    assert_eq!(us.done(), []);
    // What came once is not taken again.
    us.middle(4, 99);
    assert_eq!(us.counters().stray_response, 1);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 5, 6, FULL), []);
    assert_eq!(us.done(), [(7, Status::Success)]);
    let expected: Vec<u8> = (1..=8).flat_map(|byte| [byte; FULL]).collect();
    assert_eq!(us.memory.to_vec(0, 8 * FULL), expected);
    assert_eq!((us.counters().retransmitted, us.endpoint.poll_timeout().is_some()), (2, true));
}

#[test]
fn what_is_lost_again_is_asked_for_again_by_later_answers_or_a_timeout() {
    let mut us = with(Recovery::Auto);
    us.post_read(0, 0, 6 * FULL as u32);
    us.post_read(1, 6 * FULL, 3 * FULL as u32);
    assert_eq!(us.sent(), [part(0, 6), part(6, 3)]);
    assert_eq!(us.middle(3, 4), [part(0, 3)]);
    us.middle(4, 5);
    us.data(Opcode::RC_READ_RESPONSE_LAST, 5, 6, FULL);
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 6, 7, FULL);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 8, 9, FULL), [part(7, 1)], "of another READ");
    // Of the answers to the first ask the one in the middle is lost.
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL), []);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 2, 3, FULL), [part(1, 1)]);
    // The answer to the second overtakes that to the third not.
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 7, 8, FULL), []);
    // It is lost as well, and nothing later comes.
    assert_eq!(us.next_sent(), [part(1, 1)], "what is here is not asked for again");
    assert_eq!(us.done(), []);
    // A request that was sent after that is answered: lost once more.
    us.post_read(2, 9 * FULL, FULL as u32);
    assert_eq!(us.sent(), [part(9, 1)]);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 9, 10, FULL), [part(1, 1)]);
    us.data(Opcode::RC_READ_RESPONSE_ONLY, 1, 2, FULL);
    assert_eq!(us.done(), [0, 1, 2].map(|wr_id| (wr_id, Status::Success)));
    let expected: Vec<u8> = (1..=10).flat_map(|byte| [byte; FULL]).collect();
    assert_eq!(us.memory.to_vec(0, 10 * FULL), expected);
}

#[test]
fn an_acknowledge_beyond_an_answer_tells_that_it_lacks_and_requests_are_not_sent_again() {
    let mut us = with(Recovery::Auto);
    us.post_read(0, 0, 10);
    let remote = Remote { address: AT, key: us.key };
    us.post_send(1, SendOperation::FetchAdd { remote, add: 1 }, 100, 8);
    us.post_send(2, SendOperation::Write(remote), 0, 16);
    assert_eq!(us.sent().len(), 3);
    let asked = us.answer(2, Syndrome::ACK);
    assert_eq!(asked, [(READ, 0, Some((0, 10))), (Opcode::RC_FETCH_ADD, 1, None)]);
    assert_eq!(us.done(), []);
    let atomic = Extension::AethAtomicAck(Aeth::new(Syndrome::ACK, Msn::new(2)), AtomicAckEth::new(77));
    let frame = us.frame(us.bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn(1)), atomic, &[]);
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    assert_eq!((us.sent(), us.done()), (vec![(READ, 0, Some((0, 10)))], vec![]), "the answer before it was lost again");
    us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, 10);
    assert_eq!(us.done(), [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);
    assert_eq!(us.memory.to_vec(100, 8), 77u64.to_ne_bytes());
}

#[test]
fn a_request_that_is_lost_or_refused_behind_a_missing_answer_is_dealt_with_at_once() {
    let post = |us: &mut Crafted| {
        us.post_read(0, 0, 2 * FULL as u32);
        for wr_id in 1..4 {
            us.post_send(wr_id, SendOperation::Send, 0, 16);
        }
        assert_eq!(us.sent().len(), 4);
        us.data(Opcode::RC_READ_RESPONSE_LAST, 1, 2, FULL)
    };
    let sends = [2, 3, 4].map(|number| (Opcode::RC_SEND_ONLY, number, None));

    let mut us = with(Recovery::Auto);
    assert_eq!(post(&mut us), [part(0, 1)]);
    assert_eq!(us.answer(2, Syndrome::Nak(NakCode::PsnSequenceError)), sends, "and not the READ");
    assert_eq!(us.answer(2, Syndrome::ACK), [], "an old one");
    us.answer(2, Syndrome::Nak(NakCode::PsnSequenceError));
    us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, FULL);
    us.answer(4, Syndrome::ACK);
    assert_eq!(us.done().len(), 4);

    let mut us = with(Recovery::Auto);
    post(&mut us);
    let timer = RnrTimer::new(1);
    assert_eq!(us.answer(2, Syndrome::RnrNak(timer)), []);
    us.now = us.now + (timer.delay() - Duration::from_nanos(1));
    us.endpoint.handle_timeout(us.now);
    assert_eq!(us.sent(), []);
    let again = us.next_sent();
    assert_eq!(again, [&[part(0, 1)][..], &sends].concat());

    let mut us = with(Recovery::Auto);
    post(&mut us);
    us.answer(2, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!((us.state(), us.done()), (State::ReadyToSend, vec![]), "the READ is not to blame");
}

#[test]
fn no_more_reads_are_in_flight_than_the_peer_remembers_answers_of() {
    let mut us = with(Recovery::Auto);
    (0..6).for_each(|wr_id| us.post_read(wr_id, wr_id as usize * FULL, FULL as u32));
    assert_eq!(us.sent().len(), 4, "as many as it may be asked for at once");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 1, 2, FULL), [part(0, 1)]);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 2, 3, FULL), []);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 3, 4, FULL), [], "it must still know the first");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, FULL), [part(4, 1), part(5, 1)]);
    assert_eq!(us.done().len(), 4);
}

#[test]
fn go_back_n_drops_what_comes_after_a_gap_and_asks_for_all_from_there_on() {
    let mut us = with(Recovery::GoBackN);
    us.post_read(7, 0, 4 * FULL as u32);
    us.post_send(8, SendOperation::Send, 0, 16);
    us.sent();
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL);
    assert_eq!(us.middle(2, 3), [part(1, 3), (Opcode::RC_SEND_ONLY, 4, None)]);
    assert_eq!(us.memory.to_vec(2 * FULL, 1), [0xe7], "dropped");
    assert_eq!(us.counters().retransmitted, 0);
}

/// Our own responder, asked for a part of a READ that it is still answering, answers both.
#[test]
fn a_part_of_a_read_is_answered_beside_the_rest_of_it() {
    let mut us = with(Recovery::Auto);
    let reth = |us: &Crafted, first: usize, len: usize| {
        Extension::Reth(uroce::wire::Reth::new(us.at(first * FULL), us.key, len as u32))
    };
    let request = |us: &mut Crafted, number: u32, extension| {
        let frame = us.frame(us.bth(READ, psn(number)), extension, &[]);
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    };
    let (all, some, rest) = (reth(&us, 0, 6 * FULL), reth(&us, 1, 2 * FULL), reth(&us, 4, 2 * FULL));
    let numbers = |us: &mut Crafted| us.sent().iter().map(|(_, number, _)| *number).collect::<Vec<_>>();
    request(&mut us, 0, all);
    request(&mut us, 1, some);
    assert_eq!(numbers(&mut us), [0, 1, 2, 3, 4, 5, 1, 2]);
    // To its end: that is how everybody goes back.
    request(&mut us, 0, all);
    request(&mut us, 4, rest);
    assert_eq!(numbers(&mut us), [4, 5]);
}

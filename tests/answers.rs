//! Answers of a peer that knows the IBTA only, frame by frame: all from the oldest missing one on is asked for again (IBTA
//! 9.7.5.1.1), what came after it is kept but not believed, and `go-back-n` keeps nothing.

use easy_ext::ext;
use uroce::frame::FrameBytes;
use uroce::transport::{RecoveryMode, Remote, SendOperation, Status};
use uroce::wire::{Aeth, AtomicAckEth, Extension, Msn, Opcode, Packet, RoceFrame, Syndrome};
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN, MTU, psn};

const FULL: usize = MTU.bytes();

/// What is sent: opcode, PSN counted from the first, and of READs the offset and the length that they ask for.
type Sent = (Opcode, u32, Option<(u64, u32)>);

const READ: Opcode = Opcode::RC_READ_REQUEST;
const AT: u64 = 0x1000;

#[ext]
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
        self.hand_over(&frame);
        self.sent()
    }

    fn middle(&mut self, number: u32, byte: u8) -> Vec<Sent> {
        self.data(Opcode::RC_READ_RESPONSE_MIDDLE, number, byte, FULL)
    }

    fn answer(&mut self, number: u32, syndrome: Syndrome) -> Vec<Sent> {
        let aeth = Extension::Aeth(Aeth::new(syndrome, Msn::new(1)));
        let frame = self.frame(self.bth(Opcode::RC_ACKNOWLEDGE, psn(number)), aeth, &[]);
        self.hand_over(&frame);
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
fn what_came_early_makes_up_for_an_answer_that_is_lost_twice_when_the_next_one_comes() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_read(7, 0, 8 * FULL as u32);
    assert_eq!(us.sent(), [part(0, 8)]);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL), []);
    // 1 is lost.
    assert_eq!(us.middle(2, 3), [part(1, 7)]);
    for number in 3..6 {
        assert_eq!(us.middle(number, number as u8 + 1), []);
    }
    assert_eq!(us.memory.to_vec(FULL, 5 * FULL), [0xe7; 5 * FULL], "nothing of it is believed");
    // rxe goes on with MIDDLE, the IBTA begins anew with FIRST: both are the same to us. 2 is lost now.
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_FIRST, 1, 2, FULL), []);
    assert_eq!(us.memory.to_vec(2 * FULL, FULL), [0xe7; FULL]);
    assert_eq!(us.middle(3, 4), []);
    assert_eq!(us.memory.to_vec(2 * FULL, 2 * FULL), [[3; FULL], [4; FULL]].concat());
    // 4 and 5 are lost, and 6 is not the next one after 4.
    assert_eq!(us.middle(6, 7), [part(4, 4)]);
    assert_eq!(us.memory.to_vec(4 * FULL, FULL), [0xe7; FULL]);
    assert_eq!(us.middle(5, 6), []);
    assert_eq!(us.memory.to_vec(4 * FULL, 2 * FULL), [[5; FULL], [6; FULL]].concat());
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 7, 8, FULL), []);
    // What came once is not taken again.
    us.middle(4, 99);
    assert_eq!((us.counters().stray_response, us.done()), (1, vec![(7, Status::Success)]));
    let expected: Vec<u8> = (1..=8).flat_map(|byte| [byte; FULL]).collect();
    assert_eq!(us.memory.to_vec(0, 8 * FULL), expected);
}

#[test]
fn the_answer_to_the_next_request_counts_as_the_next_one() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_read(0, 0, FULL as u32);
    us.post_send(1, SendOperation::Send, 0, 16);
    us.post_read(2, FULL, FULL as u32);
    let remote = Remote { address: AT, key: us.key };
    us.post_send(3, SendOperation::FetchAdd { remote, add: 1 }, 100, 8);
    let sent = us.sent();
    assert_eq!(sent.len(), 4);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 2, 3, FULL), sent, "0 is lost");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, FULL), []);
    assert_eq!(us.done(), [(0, Status::Success)]);
    // 2 is lost for the second time.
    let atomic = Extension::AethAtomicAck(Aeth::new(Syndrome::ACK, Msn::new(2)), AtomicAckEth::new(77));
    let frame = us.frame(us.bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn(3)), atomic, &[]);
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    assert_eq!((us.sent(), us.done()), (vec![], [1, 2, 3].map(|wr_id| (wr_id, Status::Success)).to_vec()));
    assert_eq!(us.memory.to_vec(0, 100), [1; 100]);
    assert_eq!(us.memory.to_vec(100, 8), 77u64.to_ne_bytes());
    assert_eq!(us.memory.to_vec(FULL, FULL), [3; FULL]);
}

#[test]
fn a_stranger_has_two_psns_to_hit_and_what_it_says_of_others_gives_way_to_what_the_peer_says() {
    const FORGED: u8 = 99;
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_read(0, 0, 8 * FULL as u32);
    us.sent();
    // Nothing is missing.
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL);
    assert_eq!((us.middle(3, FORGED), us.middle(4, FORGED), us.middle(5, FORGED)), (vec![part(1, 7)], vec![], vec![]));
    (1..7).for_each(|number| assert_eq!(us.middle(number, 1), []));
    us.data(Opcode::RC_READ_RESPONSE_LAST, 7, 1, FULL);
    assert_eq!((us.done(), us.memory.to_vec(0, 8 * FULL)), (vec![(0, Status::Success)], vec![1; 8 * FULL]));
    // 9 is lost; of 11 and 13 a stranger and the peer say what differs, in either order.
    us.post_read(1, 8 * FULL, 8 * FULL as u32);
    us.sent();
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 8, 1, FULL);
    assert_eq!((us.middle(10, 1), us.middle(11, FORGED)), (vec![part(9, 7)], vec![]));
    for (number, byte) in [(11, 1), (12, 1), (13, 1), (13, FORGED), (14, 1)] {
        assert_eq!(us.middle(number, byte), []);
    }
    // Both are lost again, and asked for again.
    assert_eq!((us.middle(9, 1), us.middle(10, 1), us.middle(12, 1)), (vec![], vec![], vec![part(11, 5)]));
    assert_eq!((us.middle(11, 1), us.middle(12, 1), us.middle(14, 1)), (vec![], vec![], vec![part(13, 3)]));
    assert_eq!((us.middle(13, 1), us.middle(14, 1)), (vec![], vec![]));
    us.data(Opcode::RC_READ_RESPONSE_LAST, 15, 1, FULL);
    assert_eq!((us.done(), us.memory.to_vec(0, 16 * FULL)), (vec![(1, Status::Success)], vec![1; 16 * FULL]));
}

#[test]
fn what_is_lost_at_the_end_is_asked_for_again_after_a_timeout() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_read(0, 0, 3 * FULL as u32);
    assert_eq!(us.sent(), [part(0, 3)]);
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_LAST, 2, 3, FULL), [part(1, 2)]);
    // 2, which is here already, is lost.
    assert_eq!(us.middle(1, 2), []);
    assert_eq!((us.done(), us.next_sent()), (vec![], vec![part(2, 1)]), "nothing else shows that it is the peer's");
    us.data(Opcode::RC_READ_RESPONSE_ONLY, 2, 3, FULL);
    assert_eq!(us.done(), [(0, Status::Success)]);
}

#[test]
fn an_acknowledge_beyond_an_answer_tells_that_it_is_missing() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_read(0, 0, 10);
    let remote = Remote { address: AT, key: us.key };
    us.post_send(1, SendOperation::Write(remote), 0, 16);
    let sent = us.sent();
    assert_eq!((us.answer(1, Syndrome::ACK), us.done()), (sent, vec![]));
    us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, 10);
    us.answer(1, Syndrome::ACK);
    assert_eq!(us.done(), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn no_more_reads_are_in_flight_than_the_peer_remembers_answers_of() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    (0..6).for_each(|wr_id| us.post_read(wr_id, wr_id as usize * FULL, FULL as u32));
    let sent = us.sent();
    assert_eq!(sent.len(), 4, "as many as it may be asked for at once");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 1, 2, FULL), sent);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 2, 3, FULL), []);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 3, 4, FULL), [], "it must still know the first");
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 0, 1, FULL), [part(4, 1)]);
    assert_eq!(us.data(Opcode::RC_READ_RESPONSE_ONLY, 2, 3, FULL), [part(5, 1)], "1 was lost, and is here");
    assert_eq!(us.done().len(), 3);
}

#[test]
fn go_back_n_drops_what_comes_after_a_gap_and_asks_for_all_from_there_on() {
    let mut us = Crafted::new(RecoveryMode::GoBackN);
    us.post_read(7, 0, 4 * FULL as u32);
    us.post_send(8, SendOperation::Send, 0, 16);
    us.sent();
    us.data(Opcode::RC_READ_RESPONSE_FIRST, 0, 1, FULL);
    assert_eq!(us.middle(2, 3), [part(1, 3), (Opcode::RC_SEND_ONLY, 4, None)]);
    assert_eq!(us.memory.to_vec(2 * FULL, 1), [0xe7], "dropped");
    assert_eq!(us.counters().retransmitted, 2);
}

/// Our own responder, asked for a part of a READ that it is still answering, answers both.
#[test]
fn a_part_of_a_read_is_answered_beside_the_rest_of_it() {
    let mut us = Crafted::new(RecoveryMode::Auto);
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

//! Requests that come before earlier ones (docs/EXTENSIONS.md, «What waits»), frame by frame: what goes to its place at once,
//! what waits, what a peer that lies about its packets can do, and how much there may be of all that.

use easy_ext::ext;
use proptest::prelude::*;
use uroce::memory::Access;
use uroce::transport::{Completion, QpAttributes, RecoveryMode, RecoverySettings, State, Status};
use uroce::wire::{AtomicEth, Extension, ImmDt, Key, NakCode, Opcode, Psn, RequestTrailer, Reth, Syndrome};
use uroce_laboratory::world::crafted::{ALL, Crafted, FIRST_PSN, MTU, Response, acknowledge, psn};

const FULL: usize = MTU.bytes();

/// An endpoint that knows its peer to understand the extension, and whose region lets WRITEs overtake each other.
fn relaxed() -> Crafted {
    with(RecoverySettings { recovery: RecoveryMode::Selective, ..RecoverySettings::default() })
}

fn with(recovery: RecoverySettings) -> Crafted {
    let mut us = Crafted::with(ALL, recovery);
    let key = us.key;
    us.endpoint.memory().reregister(key, None, Some(ALL | Access::RELAXED_ORDERING)).unwrap();
    us
}

/// What a packet says of its message.
fn told(index: u32, receive_number: u32, reth: Option<Reth>) -> RequestTrailer {
    RequestTrailer { reth, index, receive_number, ..Default::default() }
}

#[ext]
impl Crafted {
    fn request(&mut self, opcode: Opcode, number: u32, extension: Extension, payload: &[u8], trailer: RequestTrailer) {
        let bth = self.bth(opcode, psn(number)).with_ack_request(true).with_offer(true).with_extended(true);
        let frame = self.extended_frame(bth, extension, payload, &trailer.to_bytes());
        self.hand_over(&frame);
    }

    /// Packet `index` of `count` of a SEND that takes receive request `receive`, `len` bytes all of which are `byte`.
    fn peer_sends(&mut self, number: u32, (index, count): (u32, u32), receive: u32, byte: u8, len: usize) {
        let opcode = match (index == 0, index + 1 == count) {
            (true, true) => Opcode::RC_SEND_ONLY,
            (true, false) => Opcode::RC_SEND_FIRST,
            (false, true) => Opcode::RC_SEND_LAST,
            (false, false) => Opcode::RC_SEND_MIDDLE,
        };
        self.request(opcode, number, Extension::None, &vec![byte; len], told(index, receive, None));
    }

    /// Packet `index` of a WRITE of `len` bytes to `offset`, all of which are `byte`.
    fn peer_writes(&mut self, number: u32, index: u32, (offset, len): (usize, usize), byte: u8) {
        let reth = Reth::new(self.at(offset), self.key, len as u32);
        self.peer_writes_to(number, index, reth, byte);
    }

    fn peer_writes_to(&mut self, number: u32, index: u32, reth: Reth, byte: u8) {
        let (len, count) = (reth.length() as usize, MTU.packets(reth.length() as usize));
        let payload = vec![byte; (len - index as usize * FULL).min(FULL)];
        let (opcode, extension) = match (index == 0, index + 1 == count) {
            (true, true) => (Opcode::RC_WRITE_ONLY, Extension::Reth(reth)),
            (true, false) => (Opcode::RC_WRITE_FIRST, Extension::Reth(reth)),
            (false, true) => (Opcode::RC_WRITE_LAST, Extension::None),
            (false, false) => (Opcode::RC_WRITE_MIDDLE, Extension::None),
        };
        self.request(opcode, number, extension, &payload, told(index, 0, (index > 0).then_some(reth)));
    }

    /// A WRITE of 16 times `byte`, each to a place of its own, as peers send it that know nothing of the extension.
    fn plain_write(&mut self, number: u32, byte: u8) -> Vec<Response> {
        let bth = self.bth(Opcode::RC_WRITE_ONLY, psn(number));
        let reth = Reth::new(self.at(number as usize * 16), self.key, 16);
        self.send(bth, Extension::Reth(reth), &[byte; 16])
    }

    fn has(&self, offset: usize, len: usize, byte: u8) -> bool {
        self.memory.to_vec(offset, len).iter().all(|here| *here == byte)
    }

    fn waiting_bytes(&self) -> usize {
        assert_eq!(
            self.endpoint.waiting_bytes(),
            self.endpoint.queue_pair(self.qpn).unwrap().waiting_bytes(),
            "there is one queue pair"
        );
        self.endpoint.waiting_bytes()
    }

    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.completion()).collect()
    }

    /// The NAKs among the answers.
    fn naks(&mut self) -> Vec<(Psn, Syndrome)> {
        let answers = self.answers().into_iter();
        answers
            .filter_map(|Response { psn, syndrome, .. }| Some((psn, syndrome?)))
            .filter(|(_, s)| *s != Syndrome::ACK)
            .collect()
    }

    /// The PSN of the last answer, which is an acknowledge.
    fn acknowledged(&mut self) -> Psn {
        let answers = self.answers();
        let last = answers.last().expect("something is acknowledged");
        assert_eq!(last.syndrome, Some(Syndrome::ACK));
        last.psn
    }

    /// Receive requests of 600 bytes, one each kilobyte, up to four.
    fn post_receives(&mut self, count: u64) {
        (0..count).for_each(|number| self.post_receive(number, number as usize * 1000, 600));
    }
}

const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

fn nak(number: u32) -> Vec<Response> {
    vec![acknowledge(psn(number), SEQUENCE_ERROR)]
}

fn told_of(completions: &[Completion]) -> Vec<(u64, Status, u32)> {
    completions.iter().map(|done| (done.wr_id, done.status, done.byte_len)).collect()
}

#[test]
fn a_send_goes_into_its_receive_request_at_once_and_completes_in_its_turn() {
    let mut us = relaxed();
    us.post_receives(3);
    us.peer_sends(3, (1, 2), 1, 4, 44);
    assert!(us.has(1000 + FULL, 44, 4));
    us.peer_sends(4, (0, 1), 2, 5, 100);
    assert!(us.has(2000, 100, 5));
    us.peer_sends(2, (0, 2), 1, 3, FULL);
    us.peer_sends(1, (1, 2), 0, 2, 200);
    assert!(us.has(FULL, 200, 2) && us.has(1000, FULL, 3));
    assert_eq!((us.counters().placed_early, us.completions()), (4, vec![]), "nothing before what is missing");
    assert!(us.waiting_bytes() < 4 * 300, "{} bytes", us.waiting_bytes());
    // What came early once is not placed again.
    us.memory.write(2000, &[9; 100]);
    us.peer_sends(4, (0, 1), 2, 5, 100);
    assert!(us.has(2000, 100, 9));
    us.peer_sends(0, (0, 2), 0, 1, FULL);
    let expected = [(0, 456), (1, 300), (2, 100)].map(|(wr_id, len)| (wr_id, Status::Success, len));
    assert_eq!(told_of(&us.completions()), expected);
    assert!(us.has(0, FULL, 1) && us.has(2000, 100, 9));
    assert_eq!((us.waiting_bytes(), us.counters().bad_trailer), (0, 0));
}

#[test]
fn immediate_and_solicitation_of_what_came_early_are_kept() {
    let mut us = relaxed();
    us.post_receives(2);
    us.request(Opcode::RC_SEND_ONLY_IMM, 1, Extension::ImmDt(ImmDt::new(77)), &[2; 9], told(0, 1, None));
    let reth = Reth::new(us.at(1500), us.key, 300);
    us.request(Opcode::RC_WRITE_LAST_IMM, 3, Extension::ImmDt(ImmDt::new(78)), &[4; 44], told(1, 2, Some(reth)));
    assert_eq!(us.counters().placed_early, 1, "the WRITE has no receive request yet, and its first packet lacks");
    us.peer_sends(0, (0, 1), 0, 1, 5);
    let completions = us.completions();
    assert_eq!(told_of(&completions), [(0, Status::Success, 5), (1, Status::Success, 9)]);
    assert_eq!(completions[1].immediate, Some(77));
}

#[test]
fn when_the_queue_pair_fails_all_receive_requests_come_back_in_order() {
    for resets in [false, true] {
        let mut us = relaxed();
        us.post_receives(4);
        us.peer_sends(3, (1, 2), 1, 4, 44);
        us.peer_sends(5, (0, 1), 3, 6, 10);
        us.peer_sends(0, (0, 2), 0, 1, FULL);
        let state = if resets { State::Reset } else { State::Error };
        us.endpoint.modify(us.now, us.qpn, &QpAttributes { state: Some(state), ..Default::default() }).unwrap();
        let flushed: Vec<_> = (0..4).map(|wr_id| (wr_id, Status::WrFlush, 0)).filter(|_| !resets).collect();
        assert_eq!(told_of(&us.completions()), flushed);
        assert_eq!(us.waiting_bytes(), 0);
    }
}

#[test]
fn a_send_that_does_not_fit_or_names_bad_memory_waits_and_is_refused_in_its_turn() {
    for bad_key in [false, true] {
        let mut us = relaxed();
        us.post_receive(0, 0, 100);
        us.post_receive(1, 1000, if bad_key { 2 * FULL as u32 } else { 300 });
        let key = us.key;
        if bad_key {
            us.endpoint.memory().reregister(key, None, Some(Access::REMOTE_READ)).unwrap();
        }
        us.peer_sends(2, (1, 2), 1, 3, 100);
        us.assert_untouched("what does not fit is not placed");
        assert_eq!((us.counters().placed_early, us.counters().reordered), (0, 1));
        us.endpoint.memory().reregister(key, None, Some(ALL)).unwrap();
        us.peer_sends(0, (0, 1), 0, 1, 0);
        if bad_key {
            us.endpoint.memory().reregister(key, None, Some(Access::REMOTE_READ)).unwrap();
        }
        us.peer_sends(1, (0, 2), 1, 2, FULL);
        let (nak, status, refused) = match bad_key {
            false => (NakCode::InvalidRequest, Status::LocalLength, psn(2)),
            true => (NakCode::RemoteOperationalError, Status::LocalProtection, psn(1)),
        };
        assert_eq!(us.naks(), [(refused, Syndrome::Nak(nak))]);
        assert_eq!(told_of(&us.completions()), [(0, Status::Success, 0), (1, status, 0)]);
    }
}

#[test]
fn a_send_waits_for_earlier_ones_whose_receive_requests_have_the_same_memory() {
    let mut us = relaxed();
    us.post_receive(0, 0, 100);
    us.post_receive(1, 50, 100);
    us.post_receive(2, 150, 100);
    us.peer_sends(1, (0, 1), 1, 2, 60);
    us.peer_sends(2, (0, 1), 2, 3, 60);
    assert_eq!((us.has(150, 60, 3), us.counters().placed_early), (true, 1));
    us.peer_sends(0, (0, 1), 0, 1, 100);
    assert!(us.has(0, 50, 1) && us.has(50, 60, 2), "in the order of the messages");
}

#[test]
fn writes_to_relaxed_memory_go_to_their_place_at_once_the_last_bytes_last() {
    let mut us = relaxed();
    // Packets 0 to 3 are one WRITE, 4 and 5 another, 6 a third.
    let (first, second, third) = ((0, 4 * FULL), (2000, FULL + 8), (4000, 16));
    us.peer_writes(1, 1, first, 1);
    assert!(us.has(FULL, FULL, 1));
    us.peer_writes(3, 3, first, 3);
    us.assert_untouched_but(FULL..2 * FULL, "the last packet waits for all others");
    us.peer_writes(2, 2, first, 2);
    us.assert_untouched_but(FULL..3 * FULL, "the first is still missing");
    us.peer_writes(5, 1, second, 5);
    us.assert_untouched_but(FULL..3 * FULL, "as above");
    us.peer_writes(4, 0, second, 4);
    assert!(us.has(2000, FULL, 4) && us.has(2000 + FULL, 8, 5), "and with the others it is there");
    us.peer_writes(6, 0, third, 6);
    assert!(us.has(4000, 16, 6));
    assert_eq!(us.counters().placed_early, 5);
    us.memory.write(4000, &[9; 16]);
    us.answers();
    us.peer_writes(0, 0, first, 7);
    let memory = [(0, 7), (FULL, 1), (2 * FULL, 2), (3 * FULL, 3)];
    assert!(memory.iter().all(|(offset, byte)| us.has(*offset, FULL, *byte)));
    assert!(us.has(4000, 16, 9), "nothing is placed twice");
    assert_eq!(us.acknowledged(), psn(6));
    assert_eq!((us.waiting_bytes(), us.counters().bad_trailer), (0, 0));
}

#[test]
fn a_write_waits_for_earlier_ones_to_the_same_bytes() {
    let mut us = relaxed();
    let first = (0, 3 * FULL);
    us.peer_writes(1, 1, first, 1);
    // Over packet 0, which is missing; over packet 1, which is placed; over the one before, which waits; and elsewhere.
    us.peer_writes(3, 0, (100, 16), 3);
    us.peer_writes(4, 0, (300, 16), 4);
    us.peer_writes(5, 0, (110, 20), 5);
    us.peer_writes(6, 0, (1000, 16), 6);
    assert!(us.has(300, 16, 4) && us.has(1000, 16, 6));
    assert_eq!(us.counters().placed_early, 3);
    assert!(!us.has(100, 16, 3) && !us.has(110, 20, 5));
    // An atomic, and a WRITE behind it to its eight bytes.
    let eth = AtomicEth::new(us.at(2000), us.key, 1, 0);
    us.request(Opcode::RC_FETCH_ADD, 7, Extension::Atomic(eth), &[], told(0, 0, None));
    us.peer_writes(8, 0, (2004, 4), 8);
    us.peer_writes(9, 0, (2008, 4), 9);
    assert!(us.has(2008, 4, 9) && !us.has(2004, 4, 8));
    us.peer_writes(2, 2, first, 2);
    us.peer_writes(0, 0, first, 10);
    let memory =
        [(0, 100, 10), (100, 10, 3), (110, 20, 5), (130, 126, 10), (300, 16, 4), (2 * FULL, FULL, 2), (2004, 4, 8)];
    for (offset, len, byte) in memory {
        assert!(us.has(offset, len, byte), "{:?} at {offset}", us.memory.to_vec(offset, len));
    }
    assert!(us.answers().iter().any(|answer| answer.psn == psn(9)));
}

#[test]
fn a_write_waits_while_anything_before_it_is_unknown() {
    let mut us = relaxed();
    us.peer_writes(1, 0, (0, 16), 1);
    us.assert_untouched("packet 0 might be a WRITE to the same place");
    // From here on all is known: packets 2 to 4 are one WRITE.
    us.peer_writes(3, 1, (1000, 3 * FULL), 3);
    us.assert_untouched("packet 0 is unknown still");
    us.peer_writes(0, 0, (500, 16), 7);
    us.peer_writes(5, 0, (100, 16), 5);
    assert!(us.has(100, 16, 5) && us.has(0, 16, 1) && us.has(500, 16, 7));
}

#[test]
fn a_write_waits_for_sends_whose_receive_requests_have_the_same_memory_or_are_not_posted() {
    let mut us = relaxed();
    us.post_receive(0, 0, 600);
    us.peer_sends(1, (1, 3), 0, 2, FULL);
    let write = |us: &mut Crafted, number, offset, receives| {
        let reth = Reth::new(us.at(offset), us.key, 16);
        us.request(Opcode::RC_WRITE_ONLY, number, Extension::Reth(reth), &[number as u8; 16], told(0, receives, None));
    };
    us.peer_sends(2, (2, 3), 0, 3, 10);
    write(&mut us, 3, 100, 1);
    write(&mut us, 4, 300, 1);
    write(&mut us, 5, 3000, 1);
    write(&mut us, 6, 3100, 2);
    assert!(!us.has(100, 16, 3), "the SEND's first packet may still come there");
    assert!(us.has(300, 16, 4), "its second has");
    assert!(us.has(3000, 16, 5));
    assert!(!us.has(3100, 16, 6), "where a message between them goes is not known");
}

#[test]
fn what_a_write_needs_is_looked_up_when_it_is_placed_and_in_its_turn() {
    // A region that is gone by then.
    let mut us = relaxed();
    us.peer_writes(1, 1, (0, 3 * FULL), 1);
    assert!(us.has(FULL, FULL, 1));
    us.endpoint.memory().deregister(us.key).unwrap();
    us.peer_writes(2, 2, (0, 3 * FULL), 2);
    us.assert_untouched_but(FULL..2 * FULL, "the region is gone");
    us.peer_writes(0, 0, (0, 3 * FULL), 0);
    us.assert_untouched_but(FULL..2 * FULL, "the region is gone");
    assert_eq!(us.naks(), [(psn(0), Syndrome::Nak(NakCode::RemoteAccessError))]);

    // Memory that WRITEs must not overtake each other in, windows, and a queue pair that allows no WRITE.
    let refuse: [fn(&mut Crafted) -> Key; 3] = [
        |us| {
            us.endpoint.memory().reregister(us.key, None, Some(ALL)).unwrap();
            us.key
        },
        |us| us.bind_window(0, 4000, Access::REMOTE_WRITE),
        |us| {
            let access = Some(Access::REMOTE_READ);
            us.endpoint.modify(us.now, us.qpn, &QpAttributes { access, ..Default::default() }).unwrap();
            us.key
        },
    ];
    for refuse in refuse {
        let mut us = relaxed();
        let key = refuse(&mut us);
        let reth = Reth::new(us.at(0), key, 3 * FULL as u32);
        us.peer_writes_to(1, 1, reth, 1);
        us.assert_untouched("it waits");
        assert_eq!(us.counters().reordered, 1);
    }
}

/// Each says one thing that is not so. What it says decides nothing in the end.
#[test]
fn packets_that_lie_about_their_place_are_found_out_in_their_turn() {
    // (what packet 1 says, whether that is placed)
    let cases: [(&str, RequestTrailer, bool); 5] = [
        ("of a later message", told(0, 2, None), false),
        ("with another message's receive request", told(1, 1, None), true),
        ("beyond the queue", told(1, 70, None), false),
        ("before all messages", told(1, 0x00ff_ffff, None), false),
        ("at another place of its message", told(2, 0, None), false),
    ];
    for (what, trailer, is_placed) in cases {
        let mut us = relaxed();
        us.post_receives(2);
        us.request(Opcode::RC_SEND_LAST, 1, Extension::None, &[2; 10], trailer);
        assert_eq!(us.counters().placed_early, u64::from(is_placed), "{what}");
        us.assert_untouched_but(1000..1600, what);
        us.peer_sends(0, (0, 2), 0, 1, FULL);
        if is_placed {
            assert_eq!(us.naks(), [(psn(0), Syndrome::Nak(NakCode::InvalidRequest))], "{what}");
            assert!(us.completions().iter().all(|done| done.status == Status::WrFlush), "{what}");
            assert_eq!(us.counters().bad_trailer, 1, "{what}");
        } else {
            assert_eq!(told_of(&us.completions()), [(0, Status::Success, FULL as u32 + 10)], "{what}");
            assert!(us.has(FULL, 10, 2), "{what}");
        }
    }
}

#[test]
fn packets_of_one_message_that_contradict_each_other_are_placed_in_their_turn_or_refused() {
    let mut us = relaxed();
    let (truth, lie) = ((0, 4 * FULL), (2000, 4 * FULL));
    us.peer_writes(1, 1, truth, 1);
    us.peer_writes(2, 2, lie, 2);
    us.assert_untouched_but(FULL..2 * FULL, "the second one contradicts the first");
    assert_eq!((us.counters().bad_trailer, us.counters().placed_early), (1, 1));
    us.peer_writes(0, 0, truth, 0);
    us.peer_writes(3, 3, truth, 3);
    assert_eq!(us.acknowledged(), psn(3));
    assert!(us.has(2 * FULL, FULL, 2), "in its turn it goes where the message goes");

    // Here what was believed first is the lie.
    let mut us = relaxed();
    us.peer_writes(1, 1, lie, 1);
    us.peer_writes(0, 0, truth, 0);
    assert_eq!(us.naks(), [(psn(0), Syndrome::Nak(NakCode::InvalidRequest))]);
    assert_eq!((us.counters().bad_trailer, us.state()), (1, State::Error));

    // Messages that cannot both be.
    let mut us = relaxed();
    us.peer_writes(1, 1, (0, 4 * FULL), 1);
    us.peer_writes(3, 1, (2000, 3 * FULL), 3);
    us.assert_untouched_but(FULL..2 * FULL, "a message begins within another");
    assert_eq!(us.counters().bad_trailer, 1);
}

#[test]
fn all_queue_pairs_together_keep_to_the_endpoints_bound_and_each_goes_on_with_its_next_packet() {
    const BOUND: usize = 50_000;
    let recovery = RecoverySettings {
        recovery: RecoveryMode::Selective,
        reorder_bytes: 20_000,
        endpoint_reorder_bytes: BOUND,
        ..RecoverySettings::default()
    };
    let mut us = Crafted::with(ALL, recovery);
    let mut queue_pairs = vec![us.qpn];
    queue_pairs.extend((0..9).map(|_| us.another_queue_pair()));
    for number in 1..200 {
        for qpn in queue_pairs.clone() {
            us.qpn = qpn;
            us.peer_writes(number * 2, 0, (0, 200), 7);
            assert!(us.endpoint.waiting_bytes() <= BOUND, "{} bytes", us.endpoint.waiting_bytes());
        }
    }
    assert!(us.endpoint.waiting_bytes() > BOUND - 1000, "{} bytes", us.endpoint.waiting_bytes());
    let counters = us.counters();
    assert_eq!(counters.reordered + counters.reorder_overflow, 199 * 10);
    assert!(counters.reorder_overflow > 100);
    us.assert_untouched("all wait");
    us.answers();
    for (index, qpn) in queue_pairs.clone().into_iter().enumerate() {
        us.qpn = qpn;
        us.peer_writes(0, 0, (1000, 16), index as u8);
        assert!(us.has(1000, 16, index as u8), "the next packet needs no room");
        assert!(!us.answers().is_empty());
    }
    // Whoever goes away makes room.
    us.endpoint.destroy_queue_pair(queue_pairs[0]).unwrap();
    let error = QpAttributes { state: Some(State::Error), ..Default::default() };
    queue_pairs[1..].iter().for_each(|qpn| us.endpoint.modify(us.now, *qpn, &error).unwrap());
    assert_eq!(us.endpoint.waiting_bytes(), 0);
}

#[test]
fn what_a_plain_peer_sends_early_is_carried_out_when_it_comes_to_something_after_it_again() {
    for recovery in [RecoveryMode::Auto, RecoveryMode::GoBackN] {
        let mut us = with(RecoverySettings { recovery, ..RecoverySettings::default() });
        let write = |us: &mut Crafted, number: u32| us.plain_write(number, number as u8);
        assert_eq!(write(&mut us, 0), []);
        assert_eq!(write(&mut us, 2), nak(1));
        assert_eq!((write(&mut us, 3), write(&mut us, 5)), (vec![], vec![]), "one NAK a gap");
        // Farther ahead than such a peer can be.
        assert_eq!(write(&mut us, 200), []);
        us.assert_untouched_but(0..16, "all wait");
        assert_eq!(write(&mut us, 1), []);
        assert!(!us.has(32, 16, 2), "it may be anybody's");
        if recovery == RecoveryMode::GoBackN {
            assert_eq!(write(&mut us, 3), nak(2));
            continue;
        }
        // It goes on from there, and 2 is lost once more: nobody asks for it.
        assert_eq!(write(&mut us, 3), []);
        assert!(us.has(32, 16, 2) && us.has(48, 16, 3));
        assert_eq!(write(&mut us, 6), nak(4), "the next gap has a NAK of its own");
        assert_eq!(write(&mut us, 4), []);
        assert_eq!(write(&mut us, 2), vec![acknowledge(psn(4), Syndrome::ACK)], "not beyond what it has sent again");
        assert_eq!(write(&mut us, 6), []);
        assert!(us.has(80, 16, 5) && us.has(96, 16, 6));
        assert_eq!(write(&mut us, 5), vec![acknowledge(psn(6), Syndrome::ACK)]);
        assert_eq!((us.waiting_bytes(), us.counters().reordered), (0, 4));
    }
}

/// Found by chaos: it says where it belongs, in the same words as a peer that is known.
#[test]
fn a_send_of_a_peer_that_is_not_known_yet_is_placed_in_its_turn() {
    let mut us = with(RecoverySettings { recovery: RecoveryMode::Auto, ..RecoverySettings::default() });
    us.post_receives(2);
    us.peer_sends(1, (0, 1), 1, 2, 60);
    us.peer_writes(2, 0, (2000, 16), 3);
    us.assert_untouched("both wait");
    assert_eq!(
        (us.counters().placed_early, us.counters().reordered, us.naks()),
        (0, 2, vec![(psn(0), SEQUENCE_ERROR)])
    );
    us.peer_sends(0, (0, 1), 0, 1, 60);
    us.peer_sends(1, (0, 1), 1, 2, 60);
    us.peer_writes(2, 0, (2000, 16), 3);
    assert_eq!(told_of(&us.completions()), [(0, Status::Success, 60), (1, Status::Success, 60)]);
    assert!(us.has(0, 60, 1) && us.has(1000, 60, 2) && us.has(2000, 16, 3));
    assert_eq!(us.counters().placed_early, 0);
}

#[test]
fn what_a_stranger_sends_in_the_name_of_a_plain_peer_does_not_count() {
    let mut us = with(RecoverySettings { recovery: RecoveryMode::Auto, ..RecoverySettings::default() });
    const FORGED: u8 = 99;
    // Nothing is missing: what the peer sends in its turn counts.
    assert_eq!(us.plain_write(1, FORGED), nak(0));
    assert_eq!((us.plain_write(0, 1), us.plain_write(1, 1)), (vec![], vec![]));
    assert!(us.has(0, 32, 1));
    // 2 is lost, and 4 comes after the forged one; then 3 is lost when it comes again. Nobody can tell which 4 is the peer's.
    assert_eq!(us.plain_write(3, 1), nak(2));
    assert_eq!((us.plain_write(4, FORGED), us.plain_write(4, 1)), (vec![], vec![]));
    assert_eq!((us.plain_write(2, 1), us.plain_write(4, 1)), (vec![], nak(3)));
    assert_eq!((us.plain_write(3, 1), us.plain_write(4, 1)), (vec![], vec![]));
    assert!(us.has(0, 5 * 16, 1));
    // 5 is lost, and 6 came before the forged one, which is said twice when the peer goes back.
    assert_eq!((us.plain_write(6, 1), us.plain_write(7, 1), us.plain_write(5, 1)), (nak(5), vec![], vec![]));
    assert_eq!((us.plain_write(7, FORGED), us.plain_write(7, FORGED)), (nak(6), vec![]));
    us.assert_untouched_but(0..6 * 16, "only what the peer has come to");
    assert_eq!((us.plain_write(6, 1), us.plain_write(7, 1)), (vec![], vec![]));
    assert!(us.has(0, 8 * 16, 1));
    // 8 is lost, and a forged 9 comes before the peer's. It goes back, and 9 is lost then: 10, which comes again, shows nothing of 9.
    assert_eq!((us.plain_write(9, FORGED), us.plain_write(9, 1), us.plain_write(10, 1)), (nak(8), vec![], vec![]));
    assert_eq!((us.plain_write(8, 1), us.plain_write(10, 1)), (vec![], nak(9)));
    us.assert_untouched_but(0..9 * 16, "only what the peer has come to");
    assert_eq!((us.plain_write(9, 1), us.plain_write(10, 1)), (vec![], vec![]));
    assert!(us.has(0, 11 * 16, 1));
    // What a stranger repeats shows nothing while something before it is missing.
    assert_eq!(
        (us.plain_write(13, FORGED), us.plain_write(13, FORGED), us.plain_write(12, 1)),
        (nak(11), vec![], vec![])
    );
    us.assert_untouched_but(0..11 * 16, "only what the peer has come to");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever packets say of themselves, in whatever order: only receive requests and what the region allows is written, every
    /// receive request is reported once and in order, and what waits is bounded.
    #[test]
    fn lies_about_where_packets_belong_harm_nobody(
        packets in proptest::collection::vec((0u8..12, 0u32..24, 0u32..5, 0u32..7, 0usize..5, 0usize..300), 1..60)
    ) {
        let limit = 10_000;
        let recovery = RecoveryMode::Selective;
        let mut us = with(RecoverySettings { recovery, reorder_bytes: limit, ..RecoverySettings::default() });
        // Room to write in: from 1000 to 4000.
        us.post_receive(0, 1000, 300);
        us.post_receive(1, 1500, 600);
        us.post_receive(2, 1800, 600);
        us.post_receive(3, 2600, 100);
        let mut next = 0;
        for (kind, number, index, receive, place, len) in packets {
            let target = Reth::new(us.at(1000 + 500 * place), us.key, len as u32);
            let rest = Reth::new(target.address(), target.key(), (len + index as usize * FULL) as u32);
            let number = if kind % 3 == 0 { next } else { number };
            let (opcode, extension, len, reth) = match kind {
                0 => (Opcode::RC_SEND_FIRST, Extension::None, FULL, None),
                1 => (Opcode::RC_SEND_MIDDLE, Extension::None, FULL, None),
                2 | 3 => (Opcode::RC_SEND_LAST, Extension::None, len.min(FULL), None),
                4 => (Opcode::RC_SEND_ONLY, Extension::None, len.min(FULL), None),
                5 | 6 => (Opcode::RC_WRITE_ONLY, Extension::Reth(target), len.min(FULL), None),
                7 => (Opcode::RC_WRITE_FIRST, Extension::Reth(rest), FULL, None),
                8 => (Opcode::RC_WRITE_MIDDLE, Extension::None, FULL, Some(rest)),
                9 | 10 => (Opcode::RC_WRITE_LAST, Extension::None, len.min(FULL), Some(rest)),
                _ => (Opcode::RC_READ_REQUEST, Extension::Reth(target), 0, None),
            };
            us.request(opcode, number, extension, &vec![0x55; len], told(index, receive, reth));
            prop_assert!(us.waiting_bytes() <= limit);
            us.assert_untouched_but(1000..4600, "outside of what the peer may write");
            if us.state() != State::ReadyToSend {
                break;
            }
            next = us.endpoint.queue_pair(us.qpn).unwrap().psns().1.since(FIRST_PSN) as u32;
        }
        let error = QpAttributes { state: Some(State::Error), ..Default::default() };
        us.endpoint.modify(us.now, us.qpn, &error).unwrap();
        let reported: Vec<u64> = us.completions().iter().map(|done| done.wr_id).collect();
        prop_assert_eq!(reported, [0, 1, 2, 3]);
        prop_assert_eq!(us.waiting_bytes(), 0);
    }
}

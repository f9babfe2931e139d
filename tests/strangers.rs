//! Who may say what docs/EXTENSIONS.md adds, frame by frame: what somebody sends who knows addresses and queue pair numbers, and
//! sees nothing, switches nothing on, names no address and is not carried out between peers that know each other.

use easy_ext::ext;
use uroce::frame::FrameBytes;
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, RecoverySettings, Remote, SendOperation, SendRequest, State, Status};
use uroce::wire::{
    Aeth, Bth, Extension, Msn, Opcode, Packet, PathMtu, Psn, RequestTrailer, Reth, RoceFrame, Sack, Syndrome, Tagged,
};
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN, MTU, PEER_NONCE, acknowledge, psn};
use uroce_laboratory::world::{Chances, Pair, Side};

#[ext]
impl Crafted {
    fn is_extended(&self) -> bool {
        self.endpoint.queue_pair(self.qpn).unwrap().is_extended()
    }

    /// A WRITE of 16 times `byte` to the region's beginning, as plain peers send it, but for its flags.
    fn plain_write(&mut self, psn: Psn, byte: u8, with: fn(Bth) -> Bth) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, 16));
        let frame = self.frame(with(self.bth(Opcode::RC_WRITE_ONLY, psn).with_ack_request(true)), reth, &[byte; 16]);
        self.hand_over(&frame);
    }

    fn plain_read(&mut self, psn: Psn, length: u32, with: fn(Bth) -> Bth) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, length));
        let frame = self.frame(with(self.bth(Opcode::RC_READ_REQUEST, psn)), reth, &[]);
        self.hand_over(&frame);
    }

    fn extended_write(&mut self, psn: Psn, byte: u8) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, 16));
        let bth = self.bth(Opcode::RC_WRITE_ONLY, psn).with_offer(true).with_extended(true);
        let frame = self.extended_frame(bth, reth, &[byte; 16], &RequestTrailer::default().to_bytes());
        self.hand_over(&frame);
    }

    fn acknowledge(&mut self, psn: Psn, trailer: &[u8], with: fn(Bth) -> Bth) {
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
        let frame = self.extended_frame(with(self.bth(Opcode::RC_ACKNOWLEDGE, psn)), aeth, &[], trailer);
        self.hand_over(&frame);
    }

    fn holds(&self, byte: u8) -> bool {
        self.memory.to_vec(0, 16) == [byte; 16]
    }

    fn post_write(&mut self, wr_id: u64) {
        let remote = Remote { address: 0x1000, key: self.key };
        self.post_send(wr_id, SendOperation::Write(remote), 100, 16);
    }

    /// What is sent: whether it offers, and its tag if it is extended.
    fn marks(&mut self) -> Vec<(bool, Option<u32>)> {
        let marks = |frame: &Vec<u8>| {
            let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap().ib).unwrap();
            (packet.bth().offers(), packet.split_tag().map(|(_, tag)| tag))
        };
        self.frames().iter().map(marks).collect()
    }
}

fn plain(bth: Bth) -> Bth {
    bth
}

fn offering(bth: Bth) -> Bth {
    bth.with_offer(true)
}

fn extended(bth: Bth) -> Bth {
    bth.with_offer(true).with_extended(true)
}

fn sack() -> Vec<u8> {
    let blocks = [(psn(1), 1)].into_iter().collect();
    Sack { trigger: psn(1), attempt: 0, delay_us: 0, marked: 0, is_trigger_marked: false, blocks }.to_bytes().to_vec()
}

#[test]
fn an_offer_with_a_psn_that_cannot_be_the_peers_is_not_heard() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    for number in [1 << 20, 1 << 23, 200, (1 << 24) - 200] {
        us.plain_write(psn(number), 7, offering);
        us.acknowledge(psn(number), &[], offering);
        us.marks();
    }
    assert_eq!(us.hellos, []);
    us.assert_untouched("none was the next");
    us.plain_write(psn(0), 7, offering);
    assert_eq!(us.marks(), [(true, None)], "to whoever offers, but without a trailer");
    let &[(hello, tag)] = &us.hellos[..] else { panic!("{:?}", us.hellos) };
    assert_eq!(
        (tag, hello.tagged, hello.window, us.is_extended()),
        (0, Tagged::None, RecoverySettings::MAX_WINDOW, false)
    );
}

/// The answers to a READ take thousands of PSNs; what lacks of them is asked for when its PSN was the next long ago.
#[test]
fn an_offer_that_asks_again_for_a_part_of_a_read_is_heard() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.plain_read(psn(0), Crafted::BYTES as u32, plain);
    let after = MTU.packets(Crafted::BYTES);
    for number in 0..200 {
        us.plain_write(psn(after + number), 7, plain);
    }
    us.marks();
    us.plain_read(psn(after), 16, offering);
    us.plain_read(psn(1 << 23), 16, offering);
    us.marks();
    assert_eq!(us.hellos, [], "there was no READ");
    us.plain_read(psn(5), 16, offering);
    us.marks();
    assert_eq!(us.hellos.len(), 1);
}

/// A peer that goes back takes an acknowledge that comes before the answers to a READ for their loss.
#[test]
fn a_hello_goes_before_the_answers_to_a_read_and_does_not_acknowledge_them() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.plain_write(psn(0), 7, plain);
    us.marks();
    us.plain_read(psn(1), 600, offering);
    let mut out = [0; 2048];
    let len = us.endpoint.poll_transmit(us.now, &mut out).expect("the hello").len;
    let bytes = [&[0; 12], &[8, 0][..], &out[..len]].concat();
    let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(&bytes[..])).unwrap().ib).unwrap();
    assert_eq!((packet.bth().opcode(), packet.bth().extended()), (Opcode::RC_ACKNOWLEDGE, true));
    assert_eq!(packet.bth().psn(), psn(0));
    let psns: Vec<Psn> = us.answers().iter().map(|answer| answer.psn).collect();
    assert_eq!(psns, [psn(1), psn(2), psn(3)]);
}

#[test]
fn a_hello_that_brings_nothing_back_is_answered_and_not_believed() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    assert_eq!(us.marks(), []);
    us.hello_from_peer(Tagged::From(psn(0)));
    assert_eq!((us.marks(), us.is_extended()), (vec![], false));
    let &[(hello, PEER_NONCE)] = &us.hellos[..] else { panic!("once a millisecond: {:?}", us.hellos) };
    assert_eq!(hello.tagged, Tagged::None);
    us.post_write(0);
    assert_eq!(us.marks(), [(true, None)], "a plain request still");
    us.plain_write(psn(0), 7, plain);
    assert!(us.holds(7));
    // Whoever brings it back is the peer.
    us.tag = hello.nonce;
    us.hello_from_peer(Tagged::None);
    us.marks();
    assert!(us.is_extended());
    let (hello, tag) = us.hellos[1];
    assert_eq!(
        (hello.nonce, hello.tagged, tag),
        (us.tag, Tagged::From(psn(1)), PEER_NONCE),
        "what was sent before has no tag"
    );
}

/// An old connection's, or one of nobody's: the hello brings the right number back, in an acknowledge that cannot be.
#[test]
fn a_hello_with_a_psn_that_cannot_be_the_peers_is_not_believed() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.answers();
    us.tag = us.hellos.pop().expect("a hello is answered").0.nonce;
    for wrong in [psn(0).minus(1 << 20), psn(0)] {
        let before = us.counters().stray_response;
        us.hello_with_psn(wrong, Tagged::From(psn(0)));
        assert_eq!((us.marks(), us.hellos.len(), us.is_extended()), (vec![], 0, false), "{wrong:?}");
        assert_eq!(us.counters().stray_response - before, 2, "{wrong:?}: the hello, and the acknowledge that has it");
    }
    us.hello_with_psn(psn(0).minus(1), Tagged::From(psn(0)));
    assert!(us.is_extended());
}

#[test]
fn what_has_no_tag_is_not_taken_from_a_peer_that_has_one() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    us.post_write(0);
    assert_eq!(us.marks(), [(true, Some(PEER_NONCE))]);
    us.plain_write(psn(0), 7, plain);
    us.plain_write(psn(1), 7, offering);
    us.acknowledge(psn(0), &[], plain);
    // Nor may it be left out from an extended packet.
    let tag = std::mem::take(&mut us.tag);
    us.extended_write(psn(0), 7);
    us.acknowledge(psn(0), &sack(), extended);
    us.assert_untouched("none of these is the peer's");
    assert_eq!((us.completion(), us.counters().wrong_tag, us.marks()), (None, 5, vec![]));
    us.tag = tag;
    us.extended_write(psn(0), 8);
    us.acknowledge(psn(0), &[], extended);
    assert!(us.holds(8));
    assert_eq!(us.completion().map(|done| (done.wr_id, done.status)), Some((0, Status::Success)));
}

#[test]
fn what_has_another_tag_is_not_taken() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    us.post_write(0);
    us.marks();
    let tag = us.tag;
    let others: Vec<u32> = (0..32).map(|bit| tag ^ 1 << bit).chain([PEER_NONCE, u32::MAX]).collect();
    for other in &others {
        us.tag = *other;
        us.extended_write(psn(0), 7);
        us.acknowledge(psn(0), &[], extended);
        us.acknowledge(psn(0), &sack(), extended);
    }
    us.assert_untouched("none of these is the peer's");
    assert_eq!((us.completion(), us.counters().wrong_tag), (None, 3 * others.len() as u64));
}

#[test]
fn what_was_sent_before_the_peer_knew_us_is_taken_although_it_comes_late() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.answers();
    us.tag = us.hellos[0].0.nonce;
    us.hello_from_peer(Tagged::From(psn(2)));
    us.plain_write(psn(0), 1, plain);
    assert!(us.holds(1));
    us.plain_write(psn(2), 9, plain);
    us.plain_write(psn(3), 9, plain);
    assert_eq!(us.counters().wrong_tag, 2);
    us.plain_write(psn(1), 2, plain);
    assert!(us.holds(2));
    // All that has none was carried out: never again, wherever numbers are by then.
    us.plain_write(psn(1), 9, plain);
    us.plain_write(psn(1).minus(1 << 22), 9, plain);
    assert_eq!((us.counters().wrong_tag, us.counters().duplicate_request), (4, 0));
    us.extended_write(psn(2), 3);
    assert!(us.holds(3));
}

/// Before the queue pair may send nobody knows which PSN its first request will have.
#[test]
fn who_is_known_before_anything_can_be_sent_gets_a_tag_with_all_of_it() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.modify(State::Reset);
    us.get_ready_to_receive();
    us.get_acquainted();
    us.answers();
    let (hello, tag) = us.hellos.pop().expect("a hello is answered");
    assert_eq!((hello.tagged, tag), (Tagged::All, PEER_NONCE));
    us.get_ready_to_send();
    us.post_write(0);
    assert_eq!(us.marks(), [(true, Some(PEER_NONCE))]);
    // All that answers it has one, too.
    let tag = std::mem::take(&mut us.tag);
    us.acknowledge(psn(0), &[], offering);
    assert_eq!((us.completion(), us.counters().wrong_tag), (None, 1));
    us.tag = tag;
    us.acknowledge(psn(0), &[], extended);
    assert!(us.completion().is_some());
}

#[test]
fn a_peer_of_which_all_requests_have_a_tag_is_believed_in_nothing_else() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.answers();
    us.tag = us.hellos[0].0.nonce;
    us.hello_from_peer(Tagged::All);
    us.answers();
    us.plain_write(psn(0), 7, plain);
    us.assert_untouched("it has no tag");
    us.extended_write(psn(0), 8);
    assert!(us.holds(8));
}

/// It came without a tag, from anybody.
#[test]
fn what_waits_is_forgotten_when_the_peer_becomes_known() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.plain_write(psn(1), 9, plain);
    us.answers();
    us.hellos.clear();
    us.get_acquainted();
    us.extended_write(psn(0), 8);
    assert!(us.holds(8));
    us.answers();
    us.extended_write(psn(1), 7);
    assert!(us.holds(7));
}

/// The window of a peer that is known, which is smaller than the largest that there is.
#[test]
fn what_is_farther_ahead_than_the_peer_said_does_not_wait() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.window = 16;
    us.get_acquainted();
    us.extended_write(psn(15), 7);
    assert_eq!((us.counters().reordered, us.counters().reorder_overflow), (1, 0));
    us.extended_write(psn(16), 8);
    us.extended_write(psn(17), 8);
    us.assert_untouched("one waits, and two were dropped");
    assert_eq!((us.counters().reordered, us.counters().reorder_overflow), (1, 2));
    // The window moves on with what was carried out.
    us.extended_write(psn(0), 6);
    us.extended_write(psn(16), 8);
    assert_eq!((us.counters().reordered, us.counters().reorder_overflow), (2, 2));
    (1..15).for_each(|number| us.extended_write(psn(number), 9));
    assert!(us.holds(8), "all up to the last that waited was carried out");
}

/// The peer knows us, and goes on with tags; that it said so was lost.
#[test]
fn whoever_lost_the_hello_of_a_peer_that_knows_it_asks_for_another() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.answers();
    us.tag = us.hellos.pop().unwrap().0.nonce;
    for number in 0..3 {
        us.now = us.now + Duration::from_millis(1);
        us.extended_write(psn(number), 8);
        us.answers();
        assert_eq!(
            (us.hellos.pop().map(|(hello, tag)| (hello.tagged, tag)), us.is_extended()),
            (Some((Tagged::None, PEER_NONCE)), false)
        );
    }
    us.hello_from_peer(Tagged::From(psn(0)));
    assert!(us.is_extended());
}

/// Else what is lost of the first requests waits for the plain timeout, since a NAK waits for the answer.
#[test]
fn a_hello_that_is_not_answered_is_repeated_while_requests_are_in_flight() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.marks();
    assert_eq!(us.hellos.drain(..).map(|(_, tag)| tag).collect::<Vec<_>>(), [PEER_NONCE]);
    us.now = us.now + Duration::from_millis(5);
    us.endpoint.handle_timeout(us.now);
    assert!(us.marks().is_empty() && us.hellos.is_empty(), "nothing waits for it");
    us.post_write(1);
    us.marks();
    us.hellos.clear();
    let began = us.now;
    let mut after_ms = Vec::new();
    while us.now - began < Duration::from_millis(8) {
        us.endpoint.handle_timeout(us.now);
        us.marks();
        after_ms.extend(us.hellos.drain(..).map(|(_, tag)| (((us.now - began).as_micros() + 500) / 1000, tag)));
        us.now = us.now + Duration::from_micros(100);
    }
    assert_eq!(after_ms, [0, 2, 6].map(|ms| (ms, PEER_NONCE)), "each time after twice as long");
}

/// Their first requests cross, so that each offers before it has heard of the other, and then their hellos do, pair by pair.
#[test]
fn two_that_offer_at_once_know_each_other_after_three_ways() {
    let mut pair = Pair::new(RecoveryMode::Auto, 1, PathMtu::Mtu1024, FIRST_PSN, Chances::NONE);
    let write = |pair: &mut Pair, side: Side, wr_id: u64| {
        pair.fill(side, 0, &[side as u8 + 16 * wr_id as u8 + 1; 100]);
        let (remote, data) = (pair.remote(side.other(), Pair::HALF), pair.data(side, 0, 100));
        pair.post(side, SendRequest::new(wr_id, SendOperation::Write(remote), data));
    };
    let knows = |pair: &mut Pair, side: Side| {
        let qpn = pair.qpn(side);
        pair.endpoint(side).queue_pair(qpn).unwrap().is_extended()
    };
    let sides = [Side::A, Side::B];
    sides.into_iter().for_each(|side| write(&mut pair, side, 0));
    // A way takes 10 µs: a request; a hello to nobody; one that brings the number back.
    pair.run_for(Duration::from_micros(25));
    assert_eq!(sides.map(|side| knows(&mut pair, side)), [false; 2]);
    pair.run_for(Duration::from_micros(10));
    assert_eq!(sides.map(|side| knows(&mut pair, side)), [true; 2]);
    // What they go on with has a tag, and crosses the hellos that say so.
    sides.into_iter().for_each(|side| write(&mut pair, side, 1));
    for side in sides {
        for wr_id in 0..2 {
            let done = pair.completion(side);
            assert_eq!((done.wr_id, done.status), (wr_id, Status::Success), "{side:?}");
        }
        assert_eq!(pair.bytes(side.other(), Pair::HALF, 100), [side as u8 + 17; 100]);
        let counters = pair.counters(side);
        assert_eq!((counters.retransmitted, counters.wrong_tag), (0, 0), "{side:?}");
    }
    pair.assert_quiet();
}

#[test]
fn who_is_known_stays_who_it_is() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    // Somebody else's hello, with our nonce or without.
    let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(0)));
    let other = uroce::wire::Hello {
        nonce: 77,
        window: 5,
        takes_carried: true,
        takes_telemetry: false,
        tagged: Tagged::From(psn(9)),
    };
    let tag = us.tag;
    for tag in [0, tag, 0x1234_5678] {
        us.tag = tag;
        let frame =
            us.extended_frame(extended(us.bth(Opcode::RC_ACKNOWLEDGE, psn(0).minus(1))), aeth, &[], &other.to_bytes());
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    }
    us.tag = tag;
    us.post_write(0);
    assert_eq!(us.marks(), [(true, Some(PEER_NONCE))]);
    us.extended_write(psn(0), 8);
    assert!(us.holds(8));
}

#[test]
fn whoever_has_not_heard_a_hello_gets_another_one() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.hello_from_peer(Tagged::None);
    us.answers();
    us.tag = us.hellos[0].0.nonce;
    us.hello_from_peer(Tagged::None);
    us.answers();
    // The hello that says that we know the peer is lost: it goes on offering.
    us.hellos.clear();
    us.plain_write(psn(0), 1, offering);
    us.answers();
    assert_eq!((us.holds(1), us.hellos.len()), (true, 0), "not within a millisecond");
    us.now = us.now + Duration::from_millis(1);
    us.plain_write(psn(1), 2, offering);
    us.answers();
    assert_eq!(
        us.hellos.iter().map(|(hello, tag)| (hello.tagged, *tag)).collect::<Vec<_>>(),
        [(Tagged::From(psn(0)), PEER_NONCE)]
    );
    // A request with the tag shows that it has heard, and where those without end.
    us.extended_write(psn(2), 3);
    us.now = us.now + Duration::from_millis(1);
    us.plain_write(psn(3), 9, offering);
    us.answers();
    assert_eq!((us.holds(3), us.counters().wrong_tag, us.hellos.len()), (true, 1, 1));
}

#[test]
fn a_reset_makes_strangers_of_both() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    let old = us.tag;
    us.answers();
    us.hellos.clear();
    us.modify(State::Reset);
    us.reconnect();
    assert!(!us.is_extended());
    // Late packets of the old connection.
    us.extended_write(psn(0), 7);
    us.acknowledge(psn(0).minus(1), &[], extended);
    us.hello_from_peer(Tagged::From(psn(0)));
    assert_eq!(us.marks(), []);
    us.assert_untouched("they have the old tag");
    assert_eq!((us.is_extended(), us.counters().wrong_tag, us.hellos.len()), (false, 3, 0));
    us.tag = 0;
    us.get_acquainted();
    assert_ne!(us.tag, old);
    us.extended_write(psn(0), 8);
    assert!(us.holds(8));
}

#[test]
fn an_extended_packet_without_room_for_a_tag_is_dropped() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    let bth = extended(us.bth(Opcode::RC_ACKNOWLEDGE, psn(0).minus(1)));
    let frame = us.frame_without_tag(bth, Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1))));
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    assert_eq!((us.counters().bad_trailer, us.marks()), (1, vec![]));
    us.plain_write(psn(0), 1, plain);
    assert_eq!(us.answers(), [acknowledge(psn(0), Syndrome::ACK)]);
}

//! What the transport answers to requests that come again, packet by packet: the peer is the test.

use uroce::frame::FrameBytes;
use uroce::memory::{Access, WindowBinding, WindowKind};
use uroce::time::Duration;
use uroce::transport::{Data, RecoveryMode, SendOperation, SendRequest, State, Status};
use uroce::wire::{Aeth, AtomicEth, Extension, Key, Msn, NakCode, Opcode, Psn, Reth, RnrTimer, Syndrome};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN, MTU, RD_ATOMIC, Response, acknowledge};

in_both_modes! {
    a_duplicate_is_not_acknowledged_beyond_a_read_or_atomic_that_follows_it
    a_duplicate_does_not_take_back_an_acknowledge_that_is_owed
    answers_that_cannot_be_sent_are_bounded
    answers_owed_again_do_not_count_as_outstanding
    a_read_asked_for_again_from_its_middle_goes_on_or_starts_over_as_the_peer_wants_it
    timers_that_were_overtaken_do_not_pile_up
    a_local_operation_is_not_carried_out_again_after_going_back
    a_wait_for_the_receiver_does_not_outlive_its_cause
}

fn psn(index: u32) -> Psn {
    FIRST_PSN.plus(index)
}

/// rxe takes an acknowledge of a READ's own PSN for the READ's completion, although no data has come; found against
/// Linux 6.1 with 5 % loss.
fn a_duplicate_is_not_acknowledged_beyond_a_read_or_atomic_that_follows_it(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (key, address) = (c.key, c.at(0));
    let write = |c: &mut Crafted, index| {
        let bth = c.bth(Opcode::RC_WRITE_ONLY, psn(index)).with_ack_request(true);
        c.send(bth, Extension::Reth(Reth::new(address, key, 4)), &[1; 4])
    };
    let ack = |index| vec![acknowledge(psn(index), Syndrome::ACK)];
    // WRITE 0, WRITE 1, READ 2 to 4, WRITE 5, atomic 6, WRITE 7
    assert_eq!(write(&mut c, 0), ack(0));
    assert_eq!(write(&mut c, 1), ack(1));
    let read = c.bth(Opcode::RC_READ_REQUEST, psn(2));
    let reth = Extension::Reth(Reth::new(address, key, 3 * MTU.bytes() as u32));
    assert_eq!(c.send(read, reth, &[]).len(), 3);
    assert_eq!(write(&mut c, 5), ack(5));
    let atomic = c.bth(Opcode::RC_FETCH_ADD, psn(6));
    assert_eq!(c.send(atomic, Extension::Atomic(AtomicEth::new(address, key, 1, 0)), &[]).len(), 1);
    assert_eq!(write(&mut c, 7), ack(7));

    assert_eq!(write(&mut c, 0), ack(1), "before the READ: as far as possible");
    assert_eq!(write(&mut c, 1), ack(1));
    assert_eq!(write(&mut c, 5), ack(5), "between the READ and the atomic");
    assert_eq!(write(&mut c, 7), ack(7));
    assert_eq!(c.counters().duplicate_request, 4);
    assert_eq!(u64::from_ne_bytes(c.memory.to_vec(0, 8).try_into().unwrap()) & 0xffff_ffff, 0x0101_0101);
}

/// An acknowledge that is owed for something new is not taken back by a duplicate.
fn a_duplicate_does_not_take_back_an_acknowledge_that_is_owed(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let reth = Extension::Reth(Reth::new(c.at(0), c.key, 4));
    let atomic = Extension::Atomic(AtomicEth::new(c.at(0), c.key, 1, 0));
    let mut frames = Vec::new();
    for (opcode, index, extension, payload) in [
        (Opcode::RC_WRITE_ONLY, 0, reth, &[1; 4][..]),
        (Opcode::RC_FETCH_ADD, 1, atomic, &[]),
        (Opcode::RC_WRITE_ONLY, 2, reth, &[1; 4]),
        (Opcode::RC_WRITE_ONLY, 0, reth, &[1; 4]),
    ] {
        frames.push(c.frame(c.bth(opcode, psn(index)).with_ack_request(true), extension, payload));
    }
    for frame in &frames {
        c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
    }
    let atomic = Response {
        opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE,
        syndrome: Some(Syndrome::ACK),
        psn: psn(1),
        payload_bytes: 0,
    };
    let ack = |index| acknowledge(psn(index), Syndrome::ACK);
    assert_eq!(c.answers(), [ack(0), atomic, ack(2)]);
}

/// A peer that asks and never lets us answer is owed no more than it may have outstanding.
fn answers_that_cannot_be_sent_are_bounded(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    // An acknowledge after each NAK, so that neither can be merged: a gap, then what was missing, and again. What came early is
    // sent once more, for those who did not keep it.
    let reth = Extension::Reth(Reth::new(c.at(0), c.key, 4));
    for round in 0..1000 {
        for at in [2, 0, 1, 2].map(|step| 3 * round + step) {
            let frame = c.frame(c.bth(Opcode::RC_WRITE_ONLY, psn(at)).with_ack_request(true), reth, &[1; 4]);
            c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
        }
    }
    let owed = c.answers();
    assert!(owed.len() <= 4 * usize::from(RD_ATOMIC) + 2, "{} answers are owed", owed.len());
    assert!(c.counters().answer_overflow > 0);
    // What was not answered is asked for again, and then it is.
    let bth = c.bth(Opcode::RC_WRITE_ONLY, psn(2999)).with_ack_request(true);
    assert_eq!(c.send(bth, reth, &[1; 4]), [acknowledge(psn(2999), Syndrome::ACK)]);
}

/// The answers to READs arrive late, the peer has asked for them again meanwhile, and goes on with new ones: it has no
/// more outstanding than it may, although as many answers are still owed again.
fn answers_owed_again_do_not_count_as_outstanding(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let reth = Extension::Reth(Reth::new(c.at(0), c.key, 4));
    let limit = u32::from(RD_ATOMIC);
    let frames: Vec<_> = (0..2 * limit).map(|i| c.frame(c.bth(Opcode::RC_READ_REQUEST, psn(i)), reth, &[])).collect();
    let (first, next) = frames.split_at(limit as usize);
    let all = |frames: &[Vec<u8>], c: &mut Crafted| {
        for frame in frames {
            c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
        }
    };
    all(first, &mut c);
    let psns = |answers: Vec<Response>| answers.iter().map(|answer| answer.psn).collect::<Vec<_>>();
    assert_eq!(psns(c.answers()), (0..limit).map(psn).collect::<Vec<_>>());
    all(first, &mut c);
    all(next, &mut c);
    assert_eq!(psns(c.answers()), (0..2 * limit).map(psn).collect::<Vec<_>>());
}

/// What a peer with MigReq clear (rxe) gets when it asks for a READ again from its middle: the rest, beginning with MIDDLE.
/// With MigReq set (RNICs) it begins with FIRST, as the IBTA has it. A part of the rest ends with LAST.
fn a_read_asked_for_again_from_its_middle_goes_on_or_starts_over_as_the_peer_wants_it(recovery: RecoveryMode) {
    use Opcode as O;
    let mut c = Crafted::new(recovery);
    let (mtu, key, address) = (MTU.bytes() as u32, c.key, c.at(0));
    let read = |c: &mut Crafted, index, len, mig_req| {
        let bth = c.bth(O::RC_READ_REQUEST, psn(index)).with_mig_req(mig_req);
        let reth = Reth::new(address + u64::from(index * mtu), key, len);
        let answers = c.send(bth, Extension::Reth(reth), &[]);
        answers.iter().map(|answer| (answer.opcode, answer.psn, answer.payload_bytes as u32)).collect::<Vec<_>>()
    };
    let (first, middle, last) = (O::RC_READ_RESPONSE_FIRST, O::RC_READ_RESPONSE_MIDDLE, O::RC_READ_RESPONSE_LAST);
    let whole = read(&mut c, 0, 3 * mtu + 5, true);
    assert_eq!(whole, [(first, psn(0), mtu), (middle, psn(1), mtu), (middle, psn(2), mtu), (last, psn(3), 5)]);
    assert_eq!(read(&mut c, 1, 2 * mtu + 5, false), whole[1..]);
    assert_eq!(read(&mut c, 1, 2 * mtu + 5, true), [(first, psn(1), mtu), (middle, psn(2), mtu), (last, psn(3), 5)]);
    assert_eq!(read(&mut c, 1, 2 * mtu, false), [(middle, psn(1), mtu), (last, psn(2), mtu)]);
    assert_eq!(read(&mut c, 2, mtu, true), [(O::RC_READ_RESPONSE_ONLY, psn(2), mtu)]);
    assert_eq!(read(&mut c, 2, 3 * mtu, false), [], "more than there was is not given");
}

/// A peer without receive requests for a long time: each RNR NAK brings a deadline before the one of the timeout.
fn timers_that_were_overtaken_do_not_pile_up(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    c.post_send(1, SendOperation::Send, 0, 8);
    let sent = c.answers();
    assert_eq!(sent.len(), 1);
    let rnr = Extension::Aeth(Aeth::new(Syndrome::RnrNak(RnrTimer::new(1)), Msn::new(0)));
    for round in 0..1000 {
        assert_eq!(c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), rnr, &[]), []);
        c.now = c.now + Duration::from_micros(10);
        c.endpoint.handle_timeout(c.now);
        assert_eq!(c.answers(), sent, "round {round}: it is sent again");
    }
    let ack = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
    assert_eq!(c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), ack, &[]), []);
    assert_eq!(c.completion().map(|done| done.wr_id), Some(1));
    let mut wakes = 0;
    while let Some(at) = c.endpoint.poll_timeout() {
        c.endpoint.handle_timeout(at);
        wakes += 1;
    }
    assert!(wakes <= 4 + 64, "{wakes} timers are left");
}

/// Found by the simulator: binding a window once more, after a NAK for what was before it, failed.
fn a_local_operation_is_not_carried_out_again_after_going_back(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let window = c.endpoint.memory().allocate_window(c.pd, WindowKind::Two);
    let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
    let (region, address) = (c.key, c.at(0));
    let binding = WindowBinding { window, new_key, region, address, len: 100, access: Access::REMOTE_WRITE };
    c.post_send(1, SendOperation::Send, 0, 8);
    for (wr_id, operation) in [(2, SendOperation::BindWindow(binding)), (3, SendOperation::LocalInvalidate(new_key))] {
        c.endpoint.post_send(c.now, c.qpn, SendRequest::new(wr_id, operation, Data::EMPTY)).unwrap();
    }
    let sent = c.answers();
    assert_eq!(sent.len(), 1, "the SEND; the window is bound, and is invalidated only after the SEND");
    let aeth = |syndrome| Extension::Aeth(Aeth::new(syndrome, Msn::new(0)));
    let nak = aeth(Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), nak, &[]), sent, "it is sent again");
    assert_eq!(c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), aeth(Syndrome::ACK), &[]), []);
    let done: Vec<_> = std::iter::from_fn(|| c.completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert_eq!(c.state(), State::ReadyToSend);
}

/// Found by the simulator: what the receiver was not ready for arrives after all, as a copy that the network held back, and
/// is acknowledged; what follows waited for the time of the RNR NAK nevertheless.
fn a_wait_for_the_receiver_does_not_outlive_its_cause(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    c.post_send(1, SendOperation::Send, 0, 8);
    let sent = c.answers();
    let aeth = |syndrome| Extension::Aeth(Aeth::new(syndrome, Msn::new(0)));
    let rnr = aeth(Syndrome::RnrNak(RnrTimer::new(31)));
    assert_eq!(c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), rnr, &[]), [], "it waits half a second");
    c.post_send(2, SendOperation::Send, 0, 8);
    assert_eq!(c.answers(), []);
    let next = c.send(c.bth(Opcode::RC_ACKNOWLEDGE, psn(0)), aeth(Syndrome::ACK), &[]);
    assert_eq!(c.completion().map(|done| (done.wr_id, done.status)), Some((1, Status::Success)));
    assert_eq!((sent[0].psn, next.len(), next[0].psn), (psn(0), 1, psn(1)), "at once");
}

//! READ requests that come late, or again, when what they name is gone; and READs of queue pairs that go away.

use easy_ext::ext;
use uroce::memory::Access;
use uroce::transport::{Event, RecoveryMode, State};
use uroce::wire::{Extension, Ieth, Key, NakCode, Opcode, Reth, Syndrome};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, MTU, Response, acknowledge, psn};

in_both_modes! {
    a_queue_pair_that_its_program_puts_into_error_reads_no_more_memory_but_says_what_it_owes
    a_refusal_outlives_the_answers_before_it
    what_a_queue_pair_owes_is_told_before_its_reads
}

const FULL: u32 = MTU.bytes() as u32;
const REFUSED: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

#[ext]
impl Crafted {
    /// A READ request, without a look at what is to be sent for it.
    fn request(&mut self, number: u32, key: Key, len: u32) {
        let reth = Extension::Reth(Reth::new(self.at(0), key, len));
        let frame = self.frame(self.bth(Opcode::RC_READ_REQUEST, psn(number)), reth, &[]);
        self.hand_over(&frame);
    }

    fn read(&mut self, number: u32, key: Key, len: u32) -> Vec<Response> {
        self.request(number, key, len);
        self.answers().into_iter().filter(|answer| answer.opcode != Opcode::RC_ACKNOWLEDGE).collect()
    }

    fn is_alive(&mut self) {
        assert_eq!((self.state(), self.event()), (State::ReadyToSend, None));
    }

    fn packets_of_reads(&mut self) -> usize {
        self.answers().iter().filter(|answer| answer.payload_bytes > 0).count()
    }
}

/// A requester that spreads over paths asks twice for what it needs once, has the window invalidated when that has come, and only
/// then the second request arrives.
#[test]
fn a_read_that_arrives_again_after_its_window_is_gone_is_dropped() {
    for recovery in [RecoveryMode::GoBackN, RecoveryMode::Auto, RecoveryMode::Selective] {
        let mut us = Crafted::new(recovery);
        let window = us.bind_window(0, 1000, Access::REMOTE_READ);
        assert_eq!(us.read(0, window, 2 * FULL).len(), 2, "{recovery:?}");
        assert_eq!(us.read(0, window, FULL).len(), 1, "asked for again: {recovery:?}");
        us.post_receive(1, 2000, 100);
        us.send(us.bth(Opcode::RC_SEND_ONLY_INV, psn(2)), Extension::Ieth(Ieth::new(window)), &[1; 8]);
        assert_eq!(us.completion().unwrap().invalidated, Some(window));
        for count in 1..4 {
            assert_eq!(us.read(0, window, FULL), [], "{recovery:?}");
            assert_eq!(us.counters().refused_duplicate, count);
            us.is_alive();
        }
        // The connection goes on.
        assert_eq!(us.read(3, us.key, FULL).len(), 1, "{recovery:?}");
        us.is_alive();
    }
}

#[test]
fn late_reads_of_a_region_that_is_gone_do_not_hold_up_others() {
    for recovery in [RecoveryMode::GoBackN, RecoveryMode::Selective] {
        let mut us = Crafted::new(recovery);
        let gone = us.bind_window(0, 1000, Access::REMOTE_READ);
        for number in 0..3 {
            let key = if number < 2 { gone } else { us.key };
            assert_eq!(us.read(number, key, FULL).len(), 1);
        }
        us.endpoint.memory().deallocate_window(gone).unwrap();
        // All three are here before anything is sent.
        us.request(0, gone, FULL);
        us.request(1, gone, FULL);
        let answers = us.read(2, us.key, FULL);
        assert_eq!(answers.iter().map(|answer| answer.psn).collect::<Vec<_>>(), [psn(2)], "{recovery:?}");
        assert_eq!(us.counters().refused_duplicate, 2);
        us.is_alive();
    }
}

#[test]
fn a_read_whose_region_goes_away_while_it_is_answered_for_the_first_time_is_refused() {
    for recovery in [RecoveryMode::GoBackN, RecoveryMode::Selective] {
        let mut us = Crafted::new(recovery);
        us.request(0, us.key, 4 * FULL);
        let mut packet = vec![0; 8192];
        let mut sent = 0;
        while sent < 2 {
            let transmit = us.endpoint.poll_transmit(us.now, &mut packet).unwrap();
            sent += usize::from(transmit.len > FULL as usize);
        }
        // The peer asks for the first again before it is known that the rest will never come.
        us.request(0, us.key, FULL);
        us.endpoint.memory().deregister(us.key).unwrap();
        let answers = us.answers();
        assert_eq!(answers.last().map(|answer| answer.syndrome), Some(Some(REFUSED)), "{recovery:?}: {answers:?}");
        assert_eq!((us.state(), us.event(), us.event()), (State::Error, Some(Event::AccessError(us.qpn)), None));
    }
}

fn a_queue_pair_that_its_program_puts_into_error_reads_no_more_memory_but_says_what_it_owes(recovery: RecoveryMode) {
    let mut us = Crafted::new(recovery);
    us.request(0, us.key, 4 * FULL);
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 4));
    let frame = us.frame(us.bth(Opcode::RC_WRITE_ONLY, psn(4)).with_ack_request(true), reth, &[1; 4]);
    us.endpoint.handle_frame(us.now, uroce::frame::FrameBytes::from(&frame[..]));
    let mut packet = vec![0; 8192];
    assert!(us.endpoint.poll_transmit(us.now, &mut packet).is_some(), "the first answer");
    us.modify(State::Error);
    assert_eq!(us.answers(), [acknowledge(psn(4), Syndrome::ACK)]);
}

/// The NAK that led to the error state comes behind answers to READs served before; the program then cleans up.
fn a_refusal_outlives_the_answers_before_it(recovery: RecoveryMode) {
    let mut us = Crafted::new(recovery);
    us.request(0, us.key, 4 * FULL);
    let wrong = Extension::Reth(Reth::new(us.at(0), Key(us.key.0 ^ 0x100), 4));
    let frame = us.frame(us.bth(Opcode::RC_WRITE_ONLY, psn(4)), wrong, &[1; 4]);
    us.endpoint.handle_frame(us.now, uroce::frame::FrameBytes::from(&frame[..]));
    assert_eq!(us.state(), State::Error);
    let mut packet = vec![0; 8192];
    assert!(us.endpoint.poll_transmit(us.now, &mut packet).is_some(), "answers before it are sent");
    us.modify(State::Error);
    assert_eq!(us.answers(), [acknowledge(psn(4), REFUSED)]);
}

fn what_a_queue_pair_owes_is_told_before_its_reads(recovery: RecoveryMode) {
    let mut us = Crafted::new(recovery);
    us.request(0, us.key, 4 * FULL);
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 4));
    let frame = us.frame(us.bth(Opcode::RC_WRITE_ONLY, psn(4)).with_ack_request(true), reth, &[1; 4]);
    us.endpoint.handle_frame(us.now, uroce::frame::FrameBytes::from(&frame[..]));
    let (now, qpn, mut packet) = (us.now, us.qpn, vec![0; 8192]);
    let owed: Vec<usize> =
        std::iter::from_fn(|| us.endpoint.poll_owed(now, qpn, &mut packet).map(|transmit| transmit.len)).collect();
    assert_eq!(owed, [20 + 8 + 12 + 4 + 4], "one acknowledge");
    assert_eq!(us.packets_of_reads(), 4, "nothing was forgotten");
}

//! What the attributes of a queue pair do: those whose effect no other test is about.

use uroce::time::Duration;
use uroce::transport::{PostError, QpAttributes, RecoveryMode, Remote, SendOperation, State, Status};
use uroce::wire::{Aeth, Extension, Key, Msn, NakCode, Opcode, Reth, RnrTimer, Syndrome};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN, RD_ATOMIC, acknowledge};

in_both_modes! {
    no_more_reads_and_atomics_than_max_rd_atomic_are_in_flight
    more_reads_than_max_dest_rd_atomic_are_an_invalid_request
    the_timeout_is_4_096_microseconds_shifted_by_its_code_and_zero_is_none
    an_rnr_nak_carries_the_min_rnr_timer_of_its_sender
    queues_take_as_many_requests_as_they_were_made_for
}

const REMOTE: Remote = Remote { address: 0x1000, key: Key(0x77) };
const ACK: Syndrome = Syndrome::ACK;

fn to(state: State) -> QpAttributes {
    QpAttributes { state: Some(state), ..Default::default() }
}

/// Sets attributes of a connected queue pair the way there is: in SQD.
fn set(c: &mut Crafted, attributes: QpAttributes) {
    let in_between = QpAttributes { state: Some(State::SendQueueDrained), ..attributes };
    for attributes in [to(State::SendQueueDrained), in_between, to(State::ReadyToSend)] {
        c.endpoint.modify(c.now, c.qpn, &attributes).unwrap();
    }
}

fn no_more_reads_and_atomics_than_max_rd_atomic_are_in_flight(recovery: RecoveryMode) {
    for max in [1, RD_ATOMIC] {
        let mut c = Crafted::new(recovery);
        set(&mut c, QpAttributes { max_rd_atomic: Some(max), ..Default::default() });
        for wr_id in 0..8 {
            let operation = match wr_id % 2 {
                0 => SendOperation::Read(REMOTE),
                _ => SendOperation::FetchAdd { remote: REMOTE, add: 1 },
            };
            c.post_send(wr_id, operation, 0, 8);
        }
        assert_eq!(c.answers().len(), usize::from(max));
        // An answer makes room for one more.
        let aeth = Extension::Aeth(Aeth::new(ACK, Msn::default()));
        let next = c.send(c.bth(Opcode::RC_READ_RESPONSE_ONLY, FIRST_PSN), aeth, &[1; 8]);
        assert_eq!(next.len(), 1, "of {max}");
    }
    let mut c = Crafted::new(recovery);
    set(&mut c, QpAttributes { max_rd_atomic: Some(0), ..Default::default() });
    let data = uroce::transport::Data::sge(c.at(0), 8, c.key);
    let read = uroce::transport::SendRequest::new(1, SendOperation::Read(REMOTE), data);
    assert_eq!(c.endpoint.post_send(c.now, c.qpn, read), Err(PostError::NoReads));
}

fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let read = Extension::Reth(Reth::new(c.at(0), c.key, 8));
    for i in 0..u32::from(RD_ATOMIC) {
        let frame = c.frame(c.bth(Opcode::RC_READ_REQUEST, FIRST_PSN.plus(i)), read, &[]);
        c.endpoint.handle_frame(c.now, uroce::frame::FrameBytes::from(&frame[..]));
    }
    // None of them has been answered yet.
    let psn = FIRST_PSN.plus(RD_ATOMIC.into());
    let answers = c.send(c.bth(Opcode::RC_READ_REQUEST, psn), read, &[]);
    assert_eq!(answers.len(), usize::from(RD_ATOMIC) + 1);
    assert_eq!(answers.last(), Some(&acknowledge(psn, Syndrome::Nak(NakCode::InvalidRequest))));
}

fn the_timeout_is_4_096_microseconds_shifted_by_its_code_and_zero_is_none(recovery: RecoveryMode) {
    for code in [1, 10, 14, 31] {
        let mut c = Crafted::new(recovery);
        set(&mut c, QpAttributes { timeout: Some(code), retry_count: Some(2), ..Default::default() });
        c.post_send(1, SendOperation::Write(REMOTE), 0, 8);
        assert_eq!(c.answers().len(), 1);
        // Twice it is sent again, then it is over: retry_cnt.
        for _ in 0..2 {
            let due = c.now + Duration::from_nanos(4096 << code);
            assert_eq!(c.endpoint.poll_timeout(), Some(due), "code {code}");
            c.now = due;
            c.endpoint.handle_timeout(c.now);
            assert_eq!(c.answers().len(), 1);
        }
        c.now = c.endpoint.poll_timeout().unwrap();
        c.endpoint.handle_timeout(c.now);
        assert_eq!(c.answers(), []);
        assert_eq!(c.completion().map(|done| done.status), Some(Status::RetryExceeded));
    }
    let mut c = Crafted::new(recovery);
    set(&mut c, QpAttributes { timeout: Some(0), ..Default::default() });
    c.post_send(1, SendOperation::Write(REMOTE), 0, 8);
    assert_eq!((c.answers().len(), c.endpoint.poll_timeout()), (1, None));
}

fn an_rnr_nak_carries_the_min_rnr_timer_of_its_sender(recovery: RecoveryMode) {
    for code in [0, 1, 12, 31] {
        let mut c = Crafted::new(recovery);
        set(&mut c, QpAttributes { min_rnr_timer: Some(RnrTimer::new(code)), ..Default::default() });
        let answers = c.send(c.bth(Opcode::RC_SEND_ONLY, FIRST_PSN), Extension::None, &[1; 8]);
        assert_eq!(answers, [acknowledge(FIRST_PSN, Syndrome::RnrNak(RnrTimer::new(code)))]);
    }
}

fn queues_take_as_many_requests_as_they_were_made_for(recovery: RecoveryMode) {
    /// As `Crafted` makes them.
    const CAPACITY: usize = 64;
    let mut c = Crafted::new(recovery);
    for wr_id in 0..CAPACITY as u64 {
        c.post_send(wr_id, SendOperation::Write(REMOTE), 0, 8);
        c.post_receive(wr_id, 0, 8);
    }
    let data = uroce::transport::Data::sge(c.at(0), 8, c.key);
    let write = uroce::transport::SendRequest::new(99, SendOperation::Write(REMOTE), data);
    assert_eq!(c.endpoint.post_send(c.now, c.qpn, write.clone()), Err(PostError::Full(CAPACITY)));
    let receive = uroce::transport::ReceiveRequest { wr_id: 99, sges: Default::default() };
    assert_eq!(c.endpoint.post_receive(c.now, c.qpn, receive.clone()), Err(PostError::Full(CAPACITY)));
    // One that is done makes room for another.
    assert_eq!(c.answers().len(), CAPACITY);
    c.send(c.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN), Extension::Aeth(Aeth::new(ACK, Msn::default())), &[]);
    c.send(c.bth(Opcode::RC_SEND_ONLY, FIRST_PSN), Extension::None, &[1; 8]);
    assert_eq!(c.endpoint.post_send(c.now, c.qpn, write), Ok(()));
    assert_eq!(c.endpoint.post_receive(c.now, c.qpn, receive), Ok(()));
}

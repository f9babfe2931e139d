//! FLUSH and ATOMIC WRITE (IBTA A19), frame by frame: the peer is the test, and sends the bytes that rxe of Linux 6.2 and later
//! sends.

use easy_ext::ext;
use uroce::frame::FrameBytes;
use uroce::memory::Access;
use uroce::transport::{
    CompletionKind, Data, Event, PostError, QpAttributes, RecoveryMode, Remote, SendOperation, SendRequest, State,
    Status,
};
use uroce::wire::{
    Aeth, Extension, Feth, ImmDt, Msn, NakCode, Opcode, Packet, Placement, RequestTrailer, Reth, RoceFrame,
    Selectivity, Syndrome,
};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{ALL, Crafted, FIRST_PSN, PEER_QPN, RD_ATOMIC, Response, acknowledge, psn};

in_both_modes! {
    requests_are_rxes_bytes_and_so_are_their_answers
    a_flush_needs_what_it_asks_for_and_persistence_is_never_given
    duplicates_are_answered_again_and_not_carried_out_again
    as_many_flushes_as_rxe_may_send_wait_for_their_answers_and_no_more_atomic_writes_than_allowed
    what_cannot_be_posted_is_refused
}

const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
const ACK: Syndrome = Syndrome::ACK;

/// Ethernet 14, IPv4 20, UDP 8.
const IB_START: usize = 42;

/// The answer to both: a READ response without data.
fn answered(number: u32) -> Response {
    Response { opcode: Opcode::RC_READ_RESPONSE_ONLY, psn: psn(number), syndrome: Some(ACK), payload_bytes: 0 }
}

fn global(address: u64, key: uroce::wire::Key, length: u32) -> Extension {
    flush(Placement::GLOBAL, Selectivity::Range, Reth::new(address, key, length))
}

fn flush(placement: Placement, selectivity: Selectivity, reth: Reth) -> Extension {
    Extension::FethReth(Feth::new(placement, selectivity), reth)
}

/// The packet in a frame, from the BTH to what is before the ICRC.
fn ib(frame: &[u8]) -> &[u8] {
    &frame[IB_START..frame.len() - 4]
}

#[ext]
impl Crafted {
    fn flushes(&mut self, number: u32) -> Vec<Response> {
        let extension = global(self.at(0), self.key, 100);
        self.send(self.bth(Opcode::RC_FLUSH, psn(number)).with_ack_request(true), extension, &[])
    }

    fn writes_atomically(&mut self, number: u32, offset: usize, value: [u8; 8]) -> Vec<Response> {
        let extension = Extension::Reth(Reth::new(self.at(offset), self.key, 8));
        self.send(self.bth(Opcode::RC_ATOMIC_WRITE, psn(number)).with_ack_request(true), extension, &value)
    }

    fn writes(&mut self, number: u32, offset: usize, byte: u8) -> Vec<Response> {
        let extension = Extension::Reth(Reth::new(self.at(offset), self.key, 8));
        self.send(self.bth(Opcode::RC_WRITE_ONLY, psn(number)).with_ack_request(true), extension, &[byte; 8])
    }

    fn post(&mut self, wr_id: u64, operation: SendOperation) {
        let data = match operation {
            SendOperation::Flush { .. } => Data::EMPTY,
            _ => Data::sge(self.at(0), 8, self.key),
        };
        self.endpoint.post_send(self.now, self.qpn, SendRequest::new(wr_id, operation, data)).unwrap();
    }

    /// The peer answers a FLUSH or ATOMIC WRITE; what is sent then.
    fn answers_empty(&mut self, number: u32) -> Vec<Response> {
        let aeth = Extension::Aeth(Aeth::new(ACK, Msn::new(1)));
        self.send(self.bth(Opcode::RC_READ_RESPONSE_ONLY, psn(number)), aeth, &[])
    }

    fn acknowledges(&mut self, number: u32, syndrome: Syndrome) -> Vec<Response> {
        let aeth = Extension::Aeth(Aeth::new(syndrome, Msn::new(1)));
        self.send(self.bth(Opcode::RC_ACKNOWLEDGE, psn(number)), aeth, &[])
    }

    fn done(&mut self) -> Vec<(u64, CompletionKind, Status)> {
        std::iter::from_fn(|| self.completion()).map(|done| (done.wr_id, done.kind, done.status)).collect()
    }
}

fn remote(c: &Crafted, offset: usize) -> Remote {
    Remote { address: c.at(offset), key: c.key }
}

fn flush_of(c: &Crafted, offset: usize, length: u32) -> SendOperation {
    SendOperation::Flush {
        remote: remote(c, offset),
        length,
        placement: Placement::GLOBAL,
        selectivity: Selectivity::Range,
    }
}

const REMOTE: Remote = Remote { address: 0x1122_3344_5566_7788, key: uroce::wire::Key(0x99aa_bbcc) };

/// Layout: include/rdma/ib_pack.h and drivers/infiniband/sw/rxe/rxe_opcode.c, rxe_hdr.h of Linux 6.2. AckReq is set, MigReq is
/// not; the answer is what rxe sends too, but for MigReq.
fn requests_are_rxes_bytes_and_so_are_their_answers(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (qpn, key, address) = (c.qpn.value().to_be_bytes(), c.key.0.to_be_bytes(), c.at(64).to_be_bytes());
    let bth = |opcode: u8, number: u32, c: &Crafted| {
        let bth = c.bth(Opcode(opcode), psn(number)).with_ack_request(true).with_mig_req(false);
        let mut bytes = vec![opcode, 0x00, 0xff, 0xff, 0];
        bytes.extend(&qpn[1..]);
        bytes.push(0x80);
        bytes.extend(&psn(number).value().to_be_bytes()[1..]);
        (bth, bytes)
    };
    // FLUSH: BTH, FETH (global, range), RETH; no payload.
    let (header, mut bytes) = bth(0x1c, 0, &c);
    bytes.extend([0, 0, 0, 0x01]);
    bytes.extend([&address[..], &key, &[0, 0, 0, 100]].concat());
    let frame = c.frame(header, global(c.at(64), c.key, 100), &[]);
    assert_eq!(ib(&frame), bytes);
    assert_eq!(c.take(&frame), [answered(0)]);
    // ATOMIC WRITE: BTH, RETH, and eight bytes as they lie in memory.
    let (header, mut bytes) = bth(0x1d, 1, &c);
    bytes.extend([&address[..], &key, &[0, 0, 0, 8], &[1, 2, 3, 4, 5, 6, 7, 8]].concat());
    let frame = c.frame(header, Extension::Reth(Reth::new(c.at(64), c.key, 8)), &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(ib(&frame), bytes);
    c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
    let answers = c.frames();
    let mut expected = vec![0x10, 0x40, 0xff, 0xff, 0];
    expected.extend(&PEER_QPN.value().to_be_bytes()[1..]);
    expected.push(0);
    expected.extend(&psn(1).value().to_be_bytes()[1..]);
    expected.extend([0x1f, 0, 0, 2]);
    assert_eq!(answers.len(), 1);
    assert_eq!(ib(&answers[0]), expected);
    assert_eq!(c.memory.to_vec(64, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    c.assert_untouched_but(64..72, "eight bytes are written");

    // Our own requests are the same, with MigReq.
    let mut c = Crafted::new(RecoveryMode::GoBackN);
    c.memory.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let whole = SendOperation::Flush {
        remote: REMOTE,
        length: 0x0102_0304,
        placement: Placement::GLOBAL,
        selectivity: Selectivity::Region,
    };
    c.post(1, whole);
    c.post(2, SendOperation::AtomicWrite(REMOTE));
    let inline = Data::Inline([9; 8].into_iter().collect());
    let request = SendRequest::new(3, SendOperation::AtomicWrite(REMOTE), inline);
    c.endpoint.post_send(c.now, c.qpn, request).unwrap();
    let place = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc];
    let after_bth: [Vec<u8>; 3] = [
        [&[0, 0, 0, 0x11], &place[..], &[1, 2, 3, 4]].concat(),
        [&place[..], &[0, 0, 0, 8], &[1, 2, 3, 4, 5, 6, 7, 8]].concat(),
        [&place[..], &[0, 0, 0, 8], &[9; 8]].concat(),
    ];
    let frames = c.frames();
    assert_eq!(frames.len(), 3);
    for (number, (frame, after)) in frames.iter().zip(after_bth).enumerate() {
        let bth = Packet::parse(RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap().ib).unwrap().bth();
        assert_eq!(bth.opcode(), if number == 0 { Opcode::RC_FLUSH } else { Opcode::RC_ATOMIC_WRITE });
        assert!(bth.ack_request() && !bth.solicited() && bth.pad() == 0 && bth.psn() == psn(number as u32));
        assert_eq!(&ib(frame)[12..], after, "request {number}");
    }
}

fn a_flush_needs_what_it_asks_for_and_persistence_is_never_given(recovery: RecoveryMode) {
    type Change = fn(&Crafted) -> Extension;
    let cases: [(&str, Access, Change, Option<Syndrome>); 14] = [
        ("a range", ALL, |c| global(c.at(8), c.key, 100), None),
        ("the whole region", ALL, |c| global(c.at(0), c.key, Crafted::BYTES as u32), None),
        ("no bytes", ALL, |c| global(c.at(8), c.key, 0), None),
        ("no bytes of an unknown region", ALL, |c| global(c.at(8), uroce::wire::Key(c.key.0 ^ 1), 0), Some(ACCESS)),
        ("beyond the end", ALL, |c| global(c.at(8), c.key, Crafted::BYTES as u32 - 7), Some(ACCESS)),
        (
            "all that the key stands for, wherever the range is",
            ALL,
            |c| flush(Placement::GLOBAL, Selectivity::Region, Reth::new(7, c.key, u32::MAX >> 1)),
            None,
        ),
        (
            "all of another domain's region",
            ALL,
            |c| flush(Placement::GLOBAL, Selectivity::Region, Reth::new(0, c.foreign.1, 0)),
            Some(ACCESS),
        ),
        (
            "all of a region without remote access",
            ALL,
            |c| flush(Placement::GLOBAL, Selectivity::Region, Reth::new(0, c.private.1, 0)),
            Some(ACCESS),
        ),
        (
            "persistence",
            ALL,
            |c| flush(Placement::PERSISTENT, Selectivity::Range, Reth::new(c.at(0), c.key, 8)),
            Some(ACCESS),
        ),
        (
            "persistence and visibility",
            ALL,
            |c| flush(Placement::all(), Selectivity::Region, Reth::new(c.at(0), c.key, 8)),
            Some(ACCESS),
        ),
        (
            "persistence through a queue pair that does not allow it",
            ALL.difference(Access::FLUSH_PERSISTENT),
            |c| flush(Placement::all(), Selectivity::Range, Reth::new(c.at(0), c.key, 8)),
            Some(INVALID),
        ),
        (
            "nothing",
            ALL,
            |c| flush(Placement::empty(), Selectivity::Range, Reth::new(c.at(0), c.key, 8)),
            Some(INVALID),
        ),
        (
            "a reserved placement",
            ALL,
            |c| flush(Placement::from_bits_retain(5), Selectivity::Range, Reth::new(c.at(0), c.key, 8)),
            Some(INVALID),
        ),
        (
            "a reserved selectivity",
            ALL,
            |c| flush(Placement::GLOBAL, Selectivity::Unknown(2), Reth::new(c.at(0), c.key, 8)),
            Some(INVALID),
        ),
    ];
    for (what, access, change, refused) in cases {
        let mut c = Crafted::with_access(access, recovery);
        let extension = change(&c);
        let answers = c.send(c.bth(Opcode::RC_FLUSH, FIRST_PSN).with_ack_request(true), extension, &[]);
        match refused {
            None => assert_eq!((answers, c.state()), (vec![answered(0)], State::ReadyToSend), "{what}"),
            Some(syndrome) => {
                assert_eq!((answers, c.state()), (vec![acknowledge(FIRST_PSN, syndrome)], State::Error), "{what}");
                let event = if syndrome == ACCESS { Event::AccessError(c.qpn) } else { Event::RequestError(c.qpn) };
                assert_eq!(c.event(), Some(event), "{what}");
            }
        }
        c.assert_untouched(what);
    }
    // Through a window that allows it, and no further than that.
    for (offset, granted, is_served) in [
        (1000, Access::FLUSH_GLOBAL, true),
        (1001, Access::FLUSH_GLOBAL, false),
        (1000, Access::REMOTE_WRITE | Access::REMOTE_READ, false),
    ] {
        let mut c = Crafted::new(recovery);
        let window = c.bind_window(1000, 600, granted);
        let extension = global(c.at(offset), window, 600);
        let answers = c.send(c.bth(Opcode::RC_FLUSH, FIRST_PSN), extension, &[]);
        let expected = if is_served { answered(0) } else { acknowledge(FIRST_PSN, ACCESS) };
        assert_eq!(answers, [expected], "{granted:?} at {offset}");
    }
}

fn duplicates_are_answered_again_and_not_carried_out_again(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    assert_eq!(c.writes_atomically(0, 64, [1; 8]), [answered(0)]);
    assert_eq!(c.flushes(1), [answered(1)]);
    // Newer data stands there.
    assert_eq!(c.writes(2, 64, 2), [acknowledge(psn(2), ACK)]);
    // Longer ago than as many READs as may be asked for again.
    for number in 3..3 + 2 * u32::from(RD_ATOMIC) {
        assert_eq!(c.writes_atomically(number, 128, [number as u8; 8]), [answered(number)]);
    }
    assert_eq!(c.writes_atomically(0, 64, [1; 8]), [answered(0)]);
    assert_eq!(c.memory.to_vec(64, 8), [2; 8], "it is not written again");
    let key = c.key;
    c.endpoint.memory().deregister(key).unwrap();
    assert_eq!(c.writes_atomically(0, 64, [1; 8]), [answered(0)]);
    assert_eq!(c.flushes(1), [answered(1)], "the key has gone since: what was carried out was carried out");
    assert_eq!((c.memory.to_vec(64, 8), c.memory.to_vec(128, 8)), (vec![2; 8], vec![10; 8]));
    assert_eq!((c.state(), c.counters().duplicate_request), (State::ReadyToSend, 3));
}

/// rxe does not count FLUSHes against what it may have outstanding, only ATOMIC WRITEs.
fn as_many_flushes_as_rxe_may_send_wait_for_their_answers_and_no_more_atomic_writes_than_allowed(
    recovery: RecoveryMode,
) {
    /// RXE_MAX_UNACKED_PSNS.
    const UNACKNOWLEDGED: u32 = 128;
    let mut c = Crafted::new(recovery);
    let extension = global(c.at(0), c.key, 100);
    for number in 0..UNACKNOWLEDGED {
        let frame = c.frame(c.bth(Opcode::RC_FLUSH, psn(number)).with_ack_request(true), extension, &[]);
        c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
    }
    let answers = c.answers();
    assert!(answers.into_iter().eq((0..UNACKNOWLEDGED).map(answered)));
    // Whoever asks for more is refused, sooner or later: answers take memory.
    let mut refused_at = None;
    for number in UNACKNOWLEDGED..4 * UNACKNOWLEDGED {
        let frame = c.frame(c.bth(Opcode::RC_FLUSH, psn(number)), extension, &[]);
        c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
        refused_at = refused_at.or((c.state() == State::Error).then_some(number - UNACKNOWLEDGED));
    }
    assert!(refused_at.is_some_and(|at| (UNACKNOWLEDGED..UNACKNOWLEDGED + 32).contains(&at)), "{refused_at:?}");
    assert_eq!(c.answers().last().map(|answer| answer.syndrome), Some(Some(INVALID)));

    // Behind FLUSHes that are not answered yet.
    let (mut c, allowed) = (Crafted::new(recovery), u32::from(RD_ATOMIC));
    let (flush, write) = (global(c.at(0), c.key, 100), Extension::Reth(Reth::new(c.at(0), c.key, 8)));
    for number in 0..=2 * allowed {
        let frame = match number < allowed {
            true => c.frame(c.bth(Opcode::RC_FLUSH, psn(number)), flush, &[]),
            false => c.frame(c.bth(Opcode::RC_ATOMIC_WRITE, psn(number)), write, &[1; 8]),
        };
        c.endpoint.handle_frame(c.now, FrameBytes::from(&frame[..]));
    }
    let refused = acknowledge(psn(2 * allowed), INVALID);
    assert!(c.answers().into_iter().eq((0..2 * allowed).map(answered).chain([refused])));
}

#[test]
fn both_are_complete_with_their_answer_or_with_any_later_one() {
    for recovery in [RecoveryMode::GoBackN, RecoveryMode::Auto] {
        let mut c = Crafted::new(recovery);
        let (flush, write) = (flush_of(&c, 0, 100), SendOperation::Write(remote(&c, 0)));
        c.post(1, flush);
        c.post(2, SendOperation::AtomicWrite(remote(&c, 8)));
        c.post(3, write);
        assert_eq!(c.answers().len(), 3);
        // What has data, or comes out of order, is no answer.
        let aeth = Extension::Aeth(Aeth::new(ACK, Msn::new(1)));
        c.send(c.bth(Opcode::RC_READ_RESPONSE_ONLY, psn(0)), aeth, &[1; 8]);
        c.send(c.bth(Opcode::RC_READ_RESPONSE_FIRST, psn(0)), aeth, &[]);
        let negative = Extension::Aeth(Aeth::new(INVALID, Msn::new(1)));
        c.send(c.bth(Opcode::RC_READ_RESPONSE_ONLY, psn(0)), negative, &[]);
        assert_eq!((c.done(), c.counters().stray_response), (vec![], 3), "{recovery:?}");
        c.answers_empty(0);
        assert_eq!(c.done(), [(1, CompletionKind::Flush, Status::Success)], "{recovery:?}");
        // rxe does not answer a FLUSH that it gets again; what it says of later ones is enough, for itself too.
        c.acknowledges(2, ACK);
        let both = [(2, CompletionKind::AtomicWrite, Status::Success), (3, CompletionKind::Write, Status::Success)];
        assert_eq!(c.done(), both, "{recovery:?}");
        c.assert_untouched("answers have no data");
        // The same where the later answer is the other kind's, and a READ stands between them, whose answer is lost.
        c.post(4, flush);
        c.post(5, SendOperation::Read(remote(&c, 0)));
        c.post(6, SendOperation::AtomicWrite(remote(&c, 8)));
        assert_eq!(c.answers().len(), 3);
        c.answers_empty(5);
        assert_eq!(c.done(), [(4, CompletionKind::Flush, Status::Success)], "{recovery:?}");
        c.send(c.bth(Opcode::RC_READ_RESPONSE_ONLY, psn(4)), aeth, &[0xe7; 8]);
        // It goes back for the READ, and sends the ATOMIC WRITE again.
        c.answers_empty(5);
        let both = [(5, CompletionKind::Read, Status::Success), (6, CompletionKind::AtomicWrite, Status::Success)];
        assert_eq!(c.done(), both, "{recovery:?}");
        assert_eq!(c.endpoint.poll_timeout().filter(|at| *at > c.now + uroce::time::Duration::from_secs(1)), None);
        // Refused: as any other request.
        c.post(7, flush);
        assert_eq!(c.answers().len(), 1);
        c.acknowledges(6, ACCESS);
        assert_eq!(c.done(), [(7, CompletionKind::Flush, Status::RemoteAccess)], "{recovery:?}");
    }
}

#[test]
fn both_count_as_reads_and_are_sent_again_as_they_were() {
    for recovery in [RecoveryMode::GoBackN, RecoveryMode::Auto] {
        let mut c = Crafted::new(recovery);
        let flush = flush_of(&c, 0, 100);
        for wr_id in 0..8 {
            let operation = if wr_id % 2 == 0 { flush } else { SendOperation::AtomicWrite(remote(&c, 8)) };
            c.post(wr_id, operation);
        }
        let mut fenced = SendRequest::new(8, SendOperation::Write(remote(&c, 0)), Data::sge(c.at(0), 8, c.key));
        fenced.fence = true;
        c.endpoint.post_send(c.now, c.qpn, fenced).unwrap();
        let first = c.frames();
        assert_eq!(first.len(), usize::from(RD_ATOMIC), "{recovery:?}");
        // Nothing comes back.
        c.now = c.endpoint.poll_timeout().expect("a timer is armed");
        c.endpoint.handle_timeout(c.now);
        let again = c.frames();
        let without_offer = |frames: &[Vec<u8>]| {
            let clear = |frame: &Vec<u8>| [&ib(frame)[..8], &[ib(frame)[8] & 0x80], &ib(frame)[9..]].concat();
            frames.iter().map(clear).collect::<Vec<_>>()
        };
        assert_eq!(without_offer(&again), without_offer(&first), "{recovery:?}");
        // Each answer makes room for one more.
        for number in 0..4 {
            assert_eq!(c.answers_empty(number).len(), 1, "{recovery:?}: {number}");
        }
        for number in 4..7 {
            assert_eq!(c.answers_empty(number).len(), 0, "{recovery:?}: the fenced one waits for all");
        }
        assert_eq!(c.answers_empty(7).len(), 1, "{recovery:?}");
        c.acknowledges(8, ACK);
        let done = c.done();
        assert!(done.iter().map(|done| done.0).eq(0..9) && done.iter().all(|done| done.2 == Status::Success));
    }
}

fn what_cannot_be_posted_is_refused(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (flush, data) = (flush_of(&c, 0, 100), Data::sge(c.at(0), 8, c.key));
    let mut post = |operation, data| c.endpoint.post_send(c.now, c.qpn, SendRequest::new(1, operation, data));
    assert_eq!(post(flush, data.clone()), Err(PostError::TooLong { len: 8, limit: 0 }));
    assert_eq!(post(SendOperation::AtomicWrite(REMOTE), Data::EMPTY), Err(PostError::AtomicLength(0)));
    let two = Data::Inline([1; 16].into_iter().collect());
    assert_eq!(post(SendOperation::AtomicWrite(REMOTE), two), Err(PostError::AtomicLength(16)));
    for state in [State::SendQueueDrained, State::SendQueueDrained, State::ReadyToSend] {
        let max_rd_atomic = (state == State::SendQueueDrained && c.state() == state).then_some(0);
        let attributes = QpAttributes { state: Some(state), max_rd_atomic, ..Default::default() };
        c.endpoint.modify(c.now, c.qpn, &attributes).unwrap();
    }
    for (operation, data) in [(flush, Data::EMPTY), (SendOperation::AtomicWrite(REMOTE), data)] {
        let refused = c.endpoint.post_send(c.now, c.qpn, SendRequest::new(1, operation, data));
        assert_eq!(refused, Err(PostError::NoReads), "{operation:?}");
    }
}

/// A peer that repeats selectively: what comes before earlier requests waits for its turn.
#[test]
fn both_wait_for_their_turn_and_others_do_not_overtake_an_atomic_write() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    let key = us.key;
    us.endpoint.memory().reregister(key, None, Some(ALL | Access::RELAXED_ORDERING)).unwrap();
    let request = |us: &mut Crafted, opcode, number, extension: Extension, payload: &[u8]| {
        let trailer = RequestTrailer::default();
        let bth = us.bth(opcode, psn(number)).with_ack_request(true).with_offer(true).with_extended(true);
        let frame = us.extended_frame(bth, extension, payload, &trailer.to_bytes());
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
        let answers = us.answers().into_iter();
        answers.filter(|answer| answer.opcode == Opcode::RC_READ_RESPONSE_ONLY).collect::<Vec<_>>()
    };
    let at = |us: &Crafted, offset| Extension::Reth(Reth::new(us.at(offset), us.key, 8));
    // 0 is missing.
    let (cell, elsewhere) = (at(&us, 64), at(&us, 128));
    assert_eq!(request(&mut us, Opcode::RC_ATOMIC_WRITE, 1, cell, &[1; 8]), []);
    let extension = global(us.at(0), us.key, 100);
    assert_eq!(request(&mut us, Opcode::RC_FLUSH, 2, extension, &[]), []);
    assert_eq!(request(&mut us, Opcode::RC_WRITE_ONLY, 3, cell, &[3; 8]), []);
    assert_eq!(request(&mut us, Opcode::RC_WRITE_ONLY, 4, elsewhere, &[4; 8]), []);
    us.assert_untouched("what is before all of them is unknown");
    let imm = Extension::RethImmDt(Reth::new(0, us.key, 0), ImmDt::new(1));
    us.post_receive(1, 0, 0);
    // The missing one shows where it writes: nowhere. Everything is carried out, in order.
    assert_eq!(request(&mut us, Opcode::RC_WRITE_ONLY_IMM, 0, imm, &[]), [answered(1), answered(2)]);
    assert_eq!((us.memory.to_vec(64, 8), us.memory.to_vec(128, 8)), (vec![3; 8], vec![4; 8]));

    // 5 is missing, and known: a WRITE of two packets of which the second is here.
    let reth = Reth::new(us.at(1000), us.key, 256 + 8);
    let trailer = RequestTrailer { reth: Some(reth), index: 1, receive_number: 1, ..Default::default() };
    let bth = us.bth(Opcode::RC_WRITE_LAST, psn(6)).with_offer(true).with_extended(true);
    let frame = us.extended_frame(bth, Extension::None, &[6; 8], &trailer.to_bytes());
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    let write = |us: &mut Crafted, opcode, number, extension: Extension, byte: u8| {
        let trailer = RequestTrailer { receive_number: 1, ..Default::default() };
        let bth = us.bth(opcode, psn(number)).with_offer(true).with_extended(true);
        let frame = us.extended_frame(bth, extension, &[byte; 8], &trailer.to_bytes());
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    };
    write(&mut us, Opcode::RC_ATOMIC_WRITE, 7, cell, 7);
    write(&mut us, Opcode::RC_WRITE_ONLY, 8, cell, 8);
    write(&mut us, Opcode::RC_WRITE_ONLY, 9, elsewhere, 9);
    assert_eq!(us.memory.to_vec(64, 8), [3; 8], "neither the ATOMIC WRITE nor what is after it");
    assert_eq!(us.memory.to_vec(128, 8), [9; 8], "this one is placed at once");
    let trailer = RequestTrailer { attempt: 1, receive_number: 1, ..Default::default() };
    let bth = us.bth(Opcode::RC_WRITE_FIRST, psn(5)).with_offer(true).with_extended(true);
    let frame = us.extended_frame(bth, Extension::Reth(reth), &[5; 256], &trailer.to_bytes());
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    assert_eq!(us.memory.to_vec(64, 8), [8; 8]);
    assert!(us.answers().contains(&answered(7)));
    assert_eq!((us.state(), us.counters().bad_trailer), (State::ReadyToSend, 0));
}

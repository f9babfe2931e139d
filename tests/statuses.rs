//! How work requests end: every status of the verbs that ours can end with, and what brings it about.

use uroce::memory::{Access, WindowBinding};
use uroce::transport::{
    Cause, Completion, CompletionKind, Data, ReceiveRequest, RecoveryMode, Remote, SendOperation, SendRequest, Sge,
    State, Status,
};
use uroce::wire::{Aeth, AtomicAckEth, Extension, Ieth, ImmDt, Key, Msn, NakCode, Opcode, Reth, RnrTimer, Syndrome};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN};

in_both_modes! {
    answers_that_cannot_be_are_bad_responses
    answers_into_memory_that_is_not_ours_are_local_protection_errors
    a_receive_without_memory_is_a_local_protection_error_and_an_operational_error_to_the_peer
    a_key_that_the_peer_may_not_invalidate_is_a_local_access_error_of_the_receive
    a_refused_write_with_immediate_is_a_local_access_error_of_the_receive
    windows_that_cannot_be_bound_or_invalidated_are_window_errors
    naks_say_what_the_peer_found
    an_rnr_retry_count_of_seven_is_endless_patience
}

/// The numbers of `enum ibv_wc_status`, and ours. The others belong to reliable datagrams (which nobody built), to
/// hardware that failed, and to tag matching.
const STATUSES: [(&str, u8, Option<Status>); 24] = [
    ("SUCCESS", 0, Some(Status::Success)),
    ("LOC_LEN_ERR", 1, Some(Status::LocalLength)),
    ("LOC_QP_OP_ERR", 2, Some(Status::LocalQpOperation)),
    ("LOC_EEC_OP_ERR", 3, None),
    ("LOC_PROT_ERR", 4, Some(Status::LocalProtection)),
    ("WR_FLUSH_ERR", 5, Some(Status::WrFlush)),
    ("MW_BIND_ERR", 6, Some(Status::MwBind)),
    ("BAD_RESP_ERR", 7, Some(Status::BadResponse)),
    ("LOC_ACCESS_ERR", 8, Some(Status::LocalAccess)),
    ("REM_INV_REQ_ERR", 9, Some(Status::RemoteInvalidRequest)),
    ("REM_ACCESS_ERR", 10, Some(Status::RemoteAccess)),
    ("REM_OP_ERR", 11, Some(Status::RemoteOperation)),
    ("RETRY_EXC_ERR", 12, Some(Status::RetryExceeded)),
    ("RNR_RETRY_EXC_ERR", 13, Some(Status::RnrRetryExceeded)),
    ("LOC_RDD_VIOL_ERR", 14, None),
    ("REM_INV_RD_REQ_ERR", 15, None),
    ("REM_ABORT_ERR", 16, None),
    ("INV_EECN_ERR", 17, None),
    ("INV_EEC_STATE_ERR", 18, None),
    ("FATAL_ERR", 19, None),
    ("RESP_TIMEOUT_ERR", 20, None),
    ("GENERAL_ERR", 21, None),
    ("TM_ERR", 22, None),
    ("TM_RNDV_INCOMPLETE", 23, None),
];

/// The number in `vendor_err` is of use to who finds it in the guide, beside the status that it explains.
#[test]
fn the_guide_has_each_cause_once() {
    let guide = include_str!("../docs/GUIDE.md");
    let rows = guide.lines().filter(|line| line.starts_with('|'));
    let (mut status, mut found) = (0, Vec::new());
    for cells in rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()) {
        let Some(code) = cells[2].strip_prefix("0x") else { continue };
        let code = u32::from_str_radix(code, 16).unwrap();
        status = cells[1].split(',').next().and_then(|number| number.parse().ok()).unwrap_or(status);
        assert_eq!(code >> 4, status, "{code:#x}");
        found.push(code);
    }
    assert_eq!(found, Cause::ALL.map(Cause::code));
}

#[test]
fn statuses_have_the_verbs_numbers_and_those_of_others_are_never_given() {
    for (place, (name, number, ours)) in STATUSES.into_iter().enumerate() {
        assert_eq!(place, usize::from(number));
        assert!(ours.is_none_or(|status| status as u8 == number), "{name}");
        // There is no way to complete with a number that the type does not have.
        if let Some(status) = ours {
            let said = status.to_string();
            assert!(said.starts_with(&format!("IBV_WC_{name} ({number}), ")), "{said}");
            match status {
                Status::Success
                | Status::LocalLength
                | Status::LocalQpOperation
                | Status::LocalProtection
                | Status::WrFlush
                | Status::MwBind
                | Status::BadResponse
                | Status::LocalAccess
                | Status::RemoteInvalidRequest
                | Status::RemoteAccess
                | Status::RemoteOperation
                | Status::RetryExceeded
                | Status::RnrRetryExceeded => {}
            }
        }
    }
}

const REMOTE: Remote = Remote { address: 0x1000, key: Key(0x77) };

/// A place in no region of ours.
const NOWHERE: Sge = Sge { address: 0x1000, length: 600, lkey: Key(0x1234_5678) };

fn ack() -> Aeth {
    Aeth::new(Syndrome::ACK, Msn::default())
}

/// Our request has failed with `status`, and the queue pair with it.
fn failed(c: &mut Crafted, wr_id: u64, status: Status, what: &str) -> Completion {
    let done = c.completion().unwrap_or_else(|| panic!("{what}: no completion"));
    assert_eq!((done.wr_id, done.status, c.state()), (wr_id, status, State::Error), "{what}");
    done
}

fn answers_that_cannot_be_are_bad_responses(recovery: RecoveryMode) {
    type Answer = (&'static str, Opcode, Extension, usize);
    let original = Extension::AethAtomicAck(ack(), AtomicAckEth::new(1));
    let to_a_read: [Answer; 6] = [
        ("FIRST that is not full", Opcode::RC_READ_RESPONSE_FIRST, Extension::Aeth(ack()), 252),
        ("ONLY instead of FIRST", Opcode::RC_READ_RESPONSE_ONLY, Extension::Aeth(ack()), 256),
        ("LAST instead of FIRST", Opcode::RC_READ_RESPONSE_LAST, Extension::Aeth(ack()), 88),
        ("FIRST that is too long", Opcode::RC_READ_RESPONSE_FIRST, Extension::Aeth(ack()), 512),
        ("FIRST without data", Opcode::RC_READ_RESPONSE_FIRST, Extension::Aeth(ack()), 0),
        ("an atomic's answer", Opcode::RC_ATOMIC_ACKNOWLEDGE, original, 0),
    ];
    for (what, opcode, extension, len) in to_a_read {
        // Who takes answers in any order asks for parts of a READ, and a part may be of one packet.
        if recovery != RecoveryMode::GoBackN && opcode == Opcode::RC_READ_RESPONSE_ONLY {
            continue;
        }
        let mut c = Crafted::new(recovery);
        c.post_send(1, SendOperation::Read(REMOTE), 0, 600);
        assert_eq!(c.answers().len(), 1, "the request");
        c.send(c.bth(opcode, FIRST_PSN), extension, &vec![1; len]);
        assert_eq!(failed(&mut c, 1, Status::BadResponse, what).kind, CompletionKind::Read);
        c.assert_untouched(what);
    }
    let mut c = Crafted::new(recovery);
    c.post_send(1, SendOperation::FetchAdd { remote: REMOTE, add: 1 }, 0, 8);
    assert_eq!(c.answers().len(), 1);
    c.send(c.bth(Opcode::RC_READ_RESPONSE_ONLY, FIRST_PSN), Extension::Aeth(ack()), &[1; 8]);
    failed(&mut c, 1, Status::BadResponse, "a READ's answer to an atomic");
    c.assert_untouched("a READ's answer to an atomic");
}

fn answers_into_memory_that_is_not_ours_are_local_protection_errors(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let data = Data::Sges([NOWHERE].into_iter().collect());
    c.endpoint.post_send(c.now, c.qpn, SendRequest::new(1, SendOperation::Read(REMOTE), data)).unwrap();
    assert_eq!(c.answers().len(), 1);
    c.send(c.bth(Opcode::RC_READ_RESPONSE_FIRST, FIRST_PSN), Extension::Aeth(ack()), &[1; 256]);
    failed(&mut c, 1, Status::LocalProtection, "a READ into nowhere");
}

fn a_receive_without_memory_is_a_local_protection_error_and_an_operational_error_to_the_peer(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let receive = ReceiveRequest { wr_id: 1, sges: [NOWHERE].into_iter().collect() };
    c.endpoint.post_receive(c.now, c.qpn, receive).unwrap();
    let answers = c.send(c.bth(Opcode::RC_SEND_ONLY, FIRST_PSN), Extension::None, &[1; 8]);
    assert_eq!(answers[0].syndrome, Some(Syndrome::Nak(NakCode::RemoteOperationalError)));
    failed(&mut c, 1, Status::LocalProtection, "a receive into nowhere");
}

fn a_key_that_the_peer_may_not_invalidate_is_a_local_access_error_of_the_receive(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    c.post_receive(1, 0, 100);
    let region = Extension::Ieth(Ieth::new(c.key));
    let answers = c.send(c.bth(Opcode::RC_SEND_ONLY_INV, FIRST_PSN), region, &[1; 8]);
    assert_eq!(answers[0].syndrome, Some(Syndrome::Nak(NakCode::RemoteAccessError)));
    failed(&mut c, 1, Status::LocalAccess, "invalidate of a region");
}

fn a_refused_write_with_immediate_is_a_local_access_error_of_the_receive(recovery: RecoveryMode) {
    let immediate = |c: &Crafted| Extension::RethImmDt(Reth::new(0, Key(c.key.0 ^ 1), 8), ImmDt::new(7));
    let mut c = Crafted::new(recovery);
    c.post_receive(1, 0, 100);
    c.post_receive(2, 0, 100);
    let answers = c.send(c.bth(Opcode::RC_WRITE_ONLY_IMM, FIRST_PSN), immediate(&c), &[1; 8]);
    assert_eq!(answers[0].syndrome, Some(Syndrome::Nak(NakCode::RemoteAccessError)));
    failed(&mut c, 1, Status::LocalAccess, "a key that is none");
    assert_eq!(c.completion().map(|done| (done.wr_id, done.status)), Some((2, Status::WrFlush)), "the next is flushed");

    // Without immediate data there is no receive request to tell it to.
    let mut c = Crafted::new(recovery);
    c.post_receive(1, 0, 100);
    let key = Key(c.key.0 ^ 1);
    c.send(c.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN), Extension::Reth(Reth::new(0, key, 8)), &[1; 8]);
    failed(&mut c, 1, Status::WrFlush, "a WRITE without immediate data");
}

fn windows_that_cannot_be_bound_or_invalidated_are_window_errors(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let window = c.endpoint.memory().allocate_window(c.pd, uroce::memory::WindowKind::Two);
    let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
    let (memory, region) = (&c.private.0, c.private.1);
    let (address, access) = (memory.address(), Access::REMOTE_READ);
    let binding = WindowBinding { window, new_key, region, address, len: 100, access };
    let request = SendRequest::new(1, SendOperation::BindWindow(binding), Data::EMPTY);
    c.endpoint.post_send(c.now, c.qpn, request).unwrap();
    assert_eq!(c.answers(), []);
    let done = failed(&mut c, 1, Status::MwBind, "a region that allows no windows");
    assert_eq!(done.kind, CompletionKind::BindWindow);

    let mut c = Crafted::new(recovery);
    let request = SendRequest::new(1, SendOperation::LocalInvalidate(Key(0x9999_9999)), Data::EMPTY);
    c.endpoint.post_send(c.now, c.qpn, request).unwrap();
    assert_eq!(c.answers(), []);
    failed(&mut c, 1, Status::MwBind, "a key that is none");
}

fn naks_say_what_the_peer_found(recovery: RecoveryMode) {
    for (code, status, cause) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest, Cause::InvalidRequest),
        (NakCode::RemoteAccessError, Status::RemoteAccess, Cause::AccessRefused),
        (NakCode::RemoteOperationalError, Status::RemoteOperation, Cause::PeerFault),
    ] {
        let mut c = Crafted::new(recovery);
        for wr_id in 0..3 {
            c.post_send(wr_id, SendOperation::Write(REMOTE), 0, 8);
        }
        assert_eq!(c.answers().len(), 3);
        // The second one is refused: the first has arrived, and the third is flushed.
        let nak = Aeth::new(Syndrome::Nak(code), Msn::default());
        c.send(c.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN.plus(1)), Extension::Aeth(nak), &[]);
        let completion = |_| c.completion().unwrap();
        let ends: Vec<_> = (0..3).map(completion).map(|done| (done.wr_id, done.status, done.cause)).collect();
        let expected = [(0, Status::Success, None), (1, status, Some(cause)), (2, Status::WrFlush, None)];
        assert_eq!(ends, expected, "{code:?}");
        assert_eq!((c.state(), c.event()), (State::Error, None), "{code:?}: the completion says all");
    }
}

fn an_rnr_retry_count_of_seven_is_endless_patience(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    c.post_send(1, SendOperation::Send, 0, 8);
    assert_eq!(c.answers().len(), 1);
    let not_ready = Aeth::new(Syndrome::RnrNak(RnrTimer::new(1)), Msn::default());
    // rnr_retry is 7: for ever. Any number of refusals is borne.
    for _ in 0..100 {
        c.send(c.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN), Extension::Aeth(not_ready), &[]);
        assert_eq!((c.completion(), c.state()), (None, State::ReadyToSend));
        c.now = c.endpoint.poll_timeout().expect("it tries again");
        c.endpoint.handle_timeout(c.now);
        assert_eq!(c.answers().len(), 1, "the request once more");
    }
    assert_eq!(c.counters().rcvd_rnr_err, 100);
}

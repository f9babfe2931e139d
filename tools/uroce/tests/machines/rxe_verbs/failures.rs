//! What fails, and how both ends say so.

use rxe_rig::agent::ACCESS_ALL;
use rxe_rig::pattern;
use uroce::verbs::{Access, Event, PathMtu, State, Status};

use super::bench::{ALL, At, Bench, COUNTER, Operation, READABLE, RESULT, Request, SOURCE, Side, TARGET};
use super::connection::Setup;
use super::conversation::Conversation;

/// A request that the other end refuses.
struct Refused {
    name: &'static str,
    /// Our responder's memory access for the peer, and theirs.
    access: (Access, &'static str),
    request: fn(&Conversation<'_>, Side) -> Request,
    /// Bytes of the receive that the other end has posted, if any.
    receive: Option<usize>,
    /// Who can ask for it: rxe itself refuses to post some.
    by: &'static [Side],
    /// The status at the requester when we respond, and when rxe does.
    status: (Status, Status),
    /// The status of the receive, when we respond, and when rxe does.
    receive_status: Option<(Status, Status)>,
}

fn wrong_key(c: &Conversation<'_>, side: Side, offset: usize) -> At {
    let at = c.at(side.other(), offset);
    At { key: at.key ^ 0x5500, ..at }
}

fn beyond(c: &Conversation<'_>, side: Side) -> At {
    let at = c.at(side.other(), 0);
    At { address: at.address + super::bench::REGION as u64 - 99, ..at }
}

const REFUSED: &[Refused] = &[
    // IBTA 9.7.4.1.5, 9.7.5.2.4: R_Key and range violations are remote access errors.
    Refused {
        name: "WRITE with a wrong R_Key",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |c, side| Request::new(1, Operation::Write(wrong_key(c, side, TARGET)), &[(SOURCE, 5000)]),
        receive: None,
        status: (Status::RemoteAccess, Status::RemoteAccess),
        receive_status: None,
    },
    Refused {
        name: "READ with a wrong R_Key",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |c, side| Request::new(1, Operation::Read(wrong_key(c, side, READABLE)), &[(RESULT, 5000)]),
        receive: None,
        status: (Status::RemoteAccess, Status::RemoteAccess),
        receive_status: None,
    },
    Refused {
        name: "atomic with a wrong R_Key",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |c, side| {
            let at = wrong_key(c, side, COUNTER);
            Request::new(1, Operation::FetchAdd { at, add: 1 }, &[(RESULT, 8)])
        },
        receive: None,
        status: (Status::RemoteAccess, Status::RemoteAccess),
        receive_status: None,
    },
    Refused {
        name: "WRITE beyond the region",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |c, side| Request::new(1, Operation::Write(beyond(c, side)), &[(SOURCE, 100)]),
        receive: None,
        status: (Status::RemoteAccess, Status::RemoteAccess),
        receive_status: None,
    },
    Refused {
        name: "READ beyond the region",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |c, side| Request::new(1, Operation::Read(beyond(c, side)), &[(RESULT, 100)]),
        receive: None,
        status: (Status::RemoteAccess, Status::RemoteAccess),
        receive_status: None,
    },
    // IBTA 9.7.4.1.3: what the queue pair does not allow is an invalid request.
    Refused {
        name: "WRITE that the queue pair does not allow",
        by: &Side::BOTH,
        access: (Access::REMOTE_READ, "local_write,remote_read"),
        request: |c, side| Request::new(1, Operation::Write(c.at(side.other(), TARGET)), &[(SOURCE, 100)]),
        receive: None,
        status: (Status::RemoteInvalidRequest, Status::RemoteInvalidRequest),
        receive_status: None,
    },
    Refused {
        name: "READ that the queue pair does not allow",
        by: &Side::BOTH,
        access: (Access::REMOTE_WRITE, "local_write,remote_write"),
        request: |c, side| Request::new(1, Operation::Read(c.at(side.other(), READABLE)), &[(RESULT, 100)]),
        receive: None,
        status: (Status::RemoteInvalidRequest, Status::RemoteInvalidRequest),
        receive_status: None,
    },
    Refused {
        name: "atomic that the queue pair does not allow",
        by: &Side::BOTH,
        access: (Access::REMOTE_WRITE, "local_write,remote_write"),
        request: |c, side| {
            let at = c.at(side.other(), COUNTER);
            Request::new(1, Operation::CompareSwap { at, compare: 0, swap: 1 }, &[(RESULT, 8)])
        },
        receive: None,
        status: (Status::RemoteInvalidRequest, Status::RemoteInvalidRequest),
        receive_status: None,
    },
    // IBTA 9.7.4.1.3: an atomic's address is a multiple of eight.
    Refused {
        name: "misaligned atomic",
        by: &[Side::Us],
        access: (ALL, ACCESS_ALL),
        request: |c, side| {
            let at = c.at(side.other(), COUNTER + 4);
            Request::new(1, Operation::FetchAdd { at, add: 1 }, &[(RESULT, 8)])
        },
        receive: None,
        status: (Status::RemoteInvalidRequest, Status::RemoteInvalidRequest),
        receive_status: None,
    },
    // IBTA 9.7.4.1.7 and Table 59: an invalid request, and a local length error of the receive. rxe finds the work
    // request malformed instead: NAK 0x63, and a local queue pair operation error of the receive.
    Refused {
        name: "SEND longer than its receive",
        by: &Side::BOTH,
        access: (ALL, ACCESS_ALL),
        request: |_, _| Request::new(1, Operation::Send, &[(SOURCE, 3000)]),
        receive: Some(2500),
        status: (Status::RemoteInvalidRequest, Status::RemoteOperation),
        receive_status: Some((Status::LocalLength, Status::LocalQpOperation)),
    },
];

/// What memory holds before, and still holds when a request was refused.
const BEFORE: u64 = 79;

pub fn all(bench: &mut Bench, mtu: PathMtu) {
    let mut count = 0;
    for refused in REFUSED {
        for &side in refused.by {
            refuse(bench, mtu, refused, side);
            count += 1;
        }
    }
    bench.say(&format!("{count} requests refused, with the right status at both ends"));
    for side in Side::BOTH {
        no_receive_in_time(bench, mtu, side);
        late_receive(bench, mtu, side);
        for lost in Side::BOTH {
            silence(bench, mtu, side, lost);
        }
    }
}

fn refuse(bench: &mut Bench, mtu: PathMtu, refused: &Refused, side: Side) {
    let (our_access, their_access) = refused.access;
    let what = format!("{} by {side:?}", refused.name);
    while bench.context().poll_event().is_some() {}
    let mut c = bench.converse(&Setup { our_access, their_access, ..Setup::new(mtu) });
    let other = side.other();
    for offset in [TARGET, READABLE] {
        c.fill(other, offset, 6000, BEFORE);
    }
    c.fill(other, COUNTER - 64, 128, BEFORE);
    if let Some(len) = refused.receive {
        c.post_receive(other, 2, &[(RESULT, len)]);
    }
    let request = (refused.request)(&c, side);
    c.post(side, &request);
    let done = c.sent(side, 1)[0];
    let status = if side == Side::Rxe { refused.status.0 } else { refused.status.1 };
    assert_eq!((done.wr_id, done.status), (1, status as u8), "{what}");
    // What comes after it is flushed.
    c.post(side, &Request::new(3, Operation::Send, &[(SOURCE, 8)]));
    let done = c.sent(side, 1)[0];
    assert_eq!((done.wr_id, done.status), (3, Status::WrFlush as u8), "{what}, and after it");
    if let Some((ours, theirs)) = refused.receive_status {
        let status = if other == Side::Us { ours } else { theirs };
        let done = c.received(other, 1)[0];
        assert_eq!((done.wr_id, done.status), (2, status as u8), "{what}: the receive");
    }
    // Both ends are in the error state (IBTA 9.9.2.3 and 9.9.3).
    assert_eq!((c.connection.qp.state(), c.their_state().as_str()), (State::Error, "err"), "{what}");
    for (offset, len) in [(TARGET, 6000), (READABLE, 6000), (COUNTER - 64, 128)] {
        let mut expected = vec![0; len];
        pattern::fill(&mut expected, offset as u64, BEFORE);
        c.assert_bytes(other, offset, &expected, &what);
    }
    if other == Side::Us {
        let qpn = c.connection.qp.qpn();
        let wanted = match status {
            Status::RemoteAccess => Event::AccessError(qpn),
            _ => Event::RequestError(qpn),
        };
        assert_eq!(c.bench.context().poll_event(), Some(wanted), "{what}");
    }
    c.destroy();
}

/// IBTA 9.7.5.2.8: after so many RNR NAKs the requester gives up. They ask for 82 ms: each is followed by a NAK for the
/// requests behind it, and one that comes only when the delay has ended is answered by another try.
fn no_receive_in_time(bench: &mut Bench, mtu: PathMtu, side: Side) {
    let (our_patience, their_patience) = ((17, 7, 3), (17, 7, 3));
    let before = (bench.counter("send_rnr_err"), bench.counter("rcvd_rnr_err"));
    let mut c = bench.converse(&Setup { our_patience, their_patience, rnr_timer: 26, ..Setup::new(mtu) });
    for wr_id in 0..3 {
        c.post(side, &Request::new(wr_id, Operation::Send, &[(SOURCE, 100)]));
    }
    let ends: Vec<_> = c.sent(side, 3).iter().map(|done| (done.wr_id, done.status)).collect();
    let (given_up, flushed) = (Status::RnrRetryExceeded as u8, Status::WrFlush as u8);
    assert_eq!(ends, [(0, given_up), (1, flushed), (2, flushed)], "no receive for {side:?}");
    c.destroy();
    let after = (bench.counter("send_rnr_err"), bench.counter("rcvd_rnr_err"));
    let naks = if side == Side::Us { after.1 - before.1 } else { after.0 - before.0 };
    assert_eq!(naks, 4, "the first try and three retries");
    bench.say(&format!("{side:?} gave up after {naks} RNR NAKs"));
}

/// A receive that comes late is waited for, with requests behind it in flight, and nothing is placed twice.
fn late_receive(bench: &mut Bench, mtu: PathMtu, side: Side) {
    let mut c = bench.converse(&Setup::new(mtu));
    let (other, len) = (side.other(), 3 * mtu.bytes() + 5);
    c.fill(side, SOURCE, 4 * len, 11);
    c.fill(other, TARGET, 4 * len, BEFORE);
    let at = c.at(other, TARGET + 2 * len);
    c.post(side, &Request::new(0, Operation::Send, &[(SOURCE, len)]));
    c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE + len, len)]));
    c.post(side, &Request::new(2, Operation::WriteImmediate(at, 2), &[(SOURCE + 2 * len, len)]));
    for receive in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let place = if receive == 2 { vec![] } else { vec![(TARGET + receive * len, len)] };
        c.post_receive(other, receive as u64, &place);
    }
    let ends: Vec<_> = c.sent(side, 3).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(ends, [(0, 0), (1, 0), (2, 0)], "late receives for {side:?}");
    let received = c.received(other, 3);
    let received: Vec<_> = received.iter().map(|d| (d.wr_id, d.status, d.byte_len as usize, d.immediate)).collect();
    assert_eq!(received, [(0, 0, len, None), (1, 0, len, Some(1)), (2, 0, len, Some(2))]);
    let mut expected = vec![0; 4 * len];
    pattern::fill(&mut expected, TARGET as u64, BEFORE);
    pattern::fill(&mut expected[..3 * len], SOURCE as u64, 11);
    c.assert_bytes(other, TARGET, &expected, &format!("after late receives for {side:?}"));
    c.assert_healthy();
    c.destroy();
    bench.say(&format!("late receives waited for by {side:?}"));
}

/// IBTA 9.9.2.3: a peer that does not answer, because nothing of `lost` arrives any more.
fn silence(bench: &mut Bench, mtu: PathMtu, side: Side, lost: Side) {
    let patience = (14, 3, 7); // 67 ms, though rxe may wait for up to four times as long
    let mut c = bench.converse(&Setup { our_patience: patience, their_patience: patience, ..Setup::new(mtu) });
    let from = if lost == Side::Us { "port0" } else { "tap0" };
    c.bench.lab.rule(&format!("iifname {from} udp dport 4791 counter drop")).unwrap();
    let at = c.at(side.other(), TARGET);
    c.post(side, &Request::new(0, Operation::Write(at), &[(SOURCE, 5000)]));
    c.post(side, &Request::new(1, Operation::Read(at), &[(RESULT, 5000)]));
    let ends: Vec<_> = c.sent(side, 2).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(ends, [(0, Status::RetryExceeded as u8), (1, Status::WrFlush as u8)], "{side:?}, {lost:?} lost");
    c.bench.lab.remove_rules().unwrap();
    c.destroy();
    bench.say(&format!("{side:?} gave up when nothing of {lost:?} arrived"));
}

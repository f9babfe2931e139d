//! Every operation on every service, local keys that are wrong, windows that cannot be: how it ends, with us and with rxe.

use rxe_rig::agent::{Operation, Send};
use uroce::verbs::{
    Access, Data, Key, PathMtu, ReceiveRequest, Remote, SendOperation, SendRequest, Status, WindowBinding, WindowKind,
};

use super::attributes::SERVICES;
use super::bench::{Bench, RESULT, Request, SOURCE, Side, TARGET};
use super::connection::Setup;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It completes with this `enum ibv_wc_status`.
    Completed(u8),
    /// It is not taken.
    Refused,
    /// It is taken, and nothing is heard of it.
    Silence,
}

const DONE: End = End::Completed(Status::Success as u8);
/// What rxe says of a request that its service does not know: it takes it, and the queue pair fails.
const UNKNOWN_TO_RXE: End = End::Completed(Status::LocalQpOperation as u8);

/// Somewhere in the peer's memory, put in later.
const THERE: Remote = Remote { address: 0, key: Key(0) };

fn with_remote(operation: SendOperation, at: Remote) -> SendOperation {
    match operation {
        SendOperation::Write(_) => SendOperation::Write(at),
        SendOperation::WriteWithImmediate(_, data) => SendOperation::WriteWithImmediate(at, data),
        SendOperation::Read(_) => SendOperation::Read(at),
        SendOperation::CompareSwap { compare, swap, .. } => SendOperation::CompareSwap { remote: at, compare, swap },
        SendOperation::FetchAdd { add, .. } => SendOperation::FetchAdd { remote: at, add },
        other => other,
    }
}

/// Every operation on every service, and how it ends at each end. What our types cannot say stands with `None`.
pub fn on_every_service(bench: &mut Bench) {
    const WINDOW: End = End::Completed(Status::MwBind as u8);
    const ACCESS: End = End::Completed(Status::RemoteAccess as u8);
    const PROTECTION: End = End::Completed(Status::LocalProtection as u8);
    const U: End = UNKNOWN_TO_RXE;
    const NO: End = End::Refused;
    type Row = (&'static str, Option<SendOperation>, [(End, End); 3]);
    let swap = SendOperation::CompareSwap { remote: THERE, compare: 1, swap: 1 };
    // For RC, UC and UD: ours, theirs.
    let rows: [Row; 13] = [
        ("send", Some(SendOperation::Send), [(DONE, DONE); 3]),
        ("send_imm imm=1", Some(SendOperation::SendWithImmediate(1)), [(DONE, DONE); 3]),
        // The key is none: rxe acknowledges, and never delivers (docs/INTEROP.md, invalidate-of-a-region).
        ("send_inv inv=0x77", Some(SendOperation::SendWithInvalidate(Key(0x77))), [(DONE, ACCESS), (NO, U), (NO, U)]),
        ("write", Some(SendOperation::Write(THERE)), [(DONE, DONE), (DONE, DONE), (NO, U)]),
        ("write_imm imm=1", Some(SendOperation::WriteWithImmediate(THERE, 1)), [(DONE, DONE), (DONE, DONE), (NO, U)]),
        ("read", Some(SendOperation::Read(THERE)), [(DONE, DONE), (NO, U), (NO, U)]),
        ("cas compare=1 swap=1", Some(swap), [(DONE, DONE), (NO, U), (NO, U)]),
        ("fadd add=1", Some(SendOperation::FetchAdd { remote: THERE, add: 1 }), [(DONE, DONE), (NO, U), (NO, U)]),
        // A key that is none. We have windows on UC too, as IBTA Table 73.
        ("local_inv inv=0x77", Some(SendOperation::LocalInvalidate(Key(0x77))), [(WINDOW, U), (WINDOW, U), (NO, U)]),
        ("tso", None, [(NO, U); 3]),
        ("driver1", None, [(NO, U); 3]),
        ("send ip_csum", None, [(NO, DONE); 3]),
        // The library says nothing, and the kernel takes the bytes for scatter entries.
        ("read inline", None, [(NO, PROTECTION), (NO, U), (NO, U)]),
    ];
    let mut wrong = Vec::new();
    for ((service, _), column) in SERVICES.into_iter().zip(0..) {
        for (words, operation, ends) in &rows {
            let (ours, theirs) = ends[column];
            for (side, wanted) in [(Side::Us, ours), (Side::Rxe, theirs)] {
                if side == Side::Us && operation.is_none() {
                    continue;
                }
                let mut c = bench.converse(&Setup { service, ..Setup::new(PathMtu::Mtu1024) });
                let at = c.at(side.other(), TARGET);
                c.post_receive(side.other(), 1, &[(TARGET, 200)]);
                let end = match (side, *operation) {
                    (Side::Us, Some(operation)) => c.end_of_ours(with_remote(operation, at.ours())),
                    _ => c.end_of_theirs(&format!("{words} addr={:#x} rkey={:#x}", at.address, at.key)),
                };
                c.destroy();
                if end != wanted {
                    wrong.push(format!("{service} {words} by {side:?}: {end:?} instead of {wanted:?}"));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    bench.say(&format!("{} operations on three services, each ended as it should", rows.len()));
}

/// Local keys that are none, and windows over memory that allows none: the statuses at both ends.
pub fn local_faults(bench: &mut Bench) {
    let mtu = PathMtu::Mtu1024;
    let (protection, operation) = (Status::LocalProtection as u8, Status::RemoteOperation as u8);
    const WRONG: u32 = 0x1234_5678;
    for side in Side::BOTH {
        for read in [false, true] {
            let mut c = bench.converse(&Setup::new(mtu));
            let at = c.at(side.other(), TARGET);
            let end = match side {
                Side::Us => {
                    let operation = if read { SendOperation::Read(at.ours()) } else { SendOperation::Write(at.ours()) };
                    let mut sges = c.our_sges(&[(RESULT, 8)]);
                    sges[0].lkey = Key(WRONG);
                    c.connection.qp.post_send(SendRequest::new(1, operation, Data::Sges(sges))).unwrap();
                    c.sent(side, 1)[0].status
                }
                Side::Rxe => {
                    let sge = c.their_sges(&[(RESULT, 8)])[0].with_lkey(WRONG);
                    let remote = at.theirs();
                    let operation = if read { Operation::Read(remote) } else { Operation::Write(remote) };
                    let (qp, send) = (c.connection.their_qp, Send::new(operation, 1, &[sge]));
                    c.agent.post_send(qp, &send).unwrap();
                    c.sent(side, 1)[0].status
                }
            };
            // rxe 6.1 finds a send's key only when it makes the packet, and calls that an operation error.
            let wanted = if side == Side::Rxe && !read { Status::LocalQpOperation as u8 } else { protection };
            assert_eq!(end, wanted, "a wrong L_Key of {side:?}, READ: {read}");
            c.destroy();
        }
        // The receive's key is wrong.
        let mut c = bench.converse(&Setup::new(mtu));
        let other = side.other();
        match other {
            Side::Us => {
                let mut sges = c.our_sges(&[(RESULT, 8)]);
                sges[0].lkey = Key(WRONG);
                c.connection.qp.post_receive(ReceiveRequest { wr_id: 3, sges }).unwrap();
            }
            Side::Rxe => {
                let (qp, sge) = (c.connection.their_qp, c.their_sges(&[(RESULT, 8)])[0].with_lkey(WRONG));
                c.agent.post_recv(qp, 3, &[sge]).unwrap();
            }
        }
        c.post(side, &Request::new(1, super::bench::Operation::Send, &[(SOURCE, 8)]));
        let ends = (c.sent(side, 1)[0].status, c.received(other, 1)[0].status);
        let receive = if other == Side::Us { protection } else { Status::LocalQpOperation as u8 };
        assert_eq!(ends, (operation, receive), "a wrong L_Key of a receive of {other:?}");
        c.destroy();
    }
    // Memory that allows no windows.
    let mut c = bench.converse(&Setup::new(mtu));
    let plain = c.pd().allocate_region(64, Access::LOCAL_WRITE).unwrap();
    let mut window = c.pd().allocate_window(WindowKind::Two);
    let (old, new_key, Remote { address, key: region }) = (window.key(), window.next_key(), plain.remote(0));
    let binding = WindowBinding { window: old, new_key, region, address, len: 8, access: Access::REMOTE_READ };
    c.connection.qp.post_send(SendRequest::new(1, SendOperation::BindWindow(binding), Data::EMPTY)).unwrap();
    assert_eq!(c.sent(Side::Us, 1)[0].status, Status::MwBind as u8);
    let plain = c.agent.mr(64, "local_write").unwrap();
    let window = c.agent.mw(2).unwrap();
    let qp = c.connection.their_qp;
    c.agent.bind_type2(qp, &window, 1, (&plain, 0, 8), "remote_read").unwrap();
    assert_eq!(c.sent(Side::Rxe, 1)[0].status, Status::MwBind as u8);
    c.destroy();
    bench.say("local faults, with the right status at both ends");
}

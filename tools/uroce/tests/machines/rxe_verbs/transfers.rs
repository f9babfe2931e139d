//! One operation at a time, with all bytes around it.

use std::time::Duration;

use rxe_rig::pattern;
use uroce::verbs::{PathMtu, Service, Status};

use super::bench::{
    AREA, At, Bench, COUNTER, Done, LIMIT, Operation, READABLE, RESULT, Request, SOURCE, Side, TARGET, kind,
};
use super::connection::Setup;
use super::conversation::Conversation;
use super::random::Random;

/// Operations with data of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Send, Kind::SendImmediate, Kind::Write, Kind::WriteImmediate, Kind::Read];
}

/// What memory holds before something arrives.
const BEFORE: u64 = 77;

/// Bytes around a target that must stay as they are.
const GUARD: usize = 64;

/// The entries that a work request has at the most here.
const PIECES: usize = 5;

/// Carries out one operation from `side`, and checks everything: both completions, every byte at the target, the bytes
/// around it, and that the source is as it was.
pub fn transfer(c: &mut Conversation<'_>, side: Side, kind: Kind, len: usize, random: &mut Random) {
    let what = format!("{kind:?} of {len} bytes by {side:?}");
    let seed = random.below(1 << 30) as u64;
    let immediate = random.below(1 << 32) as u32;
    let slack = AREA - len - 2 * GUARD - 40 * PIECES;
    let (from, to) = (random.below(slack), GUARD + random.below(slack - GUARD));
    let (pieces_from, pieces_to) = (1 + random.below(PIECES), 1 + random.below(PIECES));
    let (source_side, target_side) = if kind == Kind::Read { (side.other(), side) } else { (side, side.other()) };
    // Remote memory is one range; local memory may be in pieces.
    let (source, target) = match kind {
        Kind::Send | Kind::SendImmediate => {
            (random.layout(SOURCE + from, len, pieces_from), random.layout(TARGET + to, len, pieces_to))
        }
        Kind::Write | Kind::WriteImmediate => {
            (random.layout(SOURCE + from, len, pieces_from), vec![(TARGET + to, len)])
        }
        Kind::Read => (vec![(READABLE + from, len)], random.layout(RESULT + to, len, pieces_to)),
    };

    // What is to be sent, and what is to be at the target afterwards.
    let extent = |pieces: &[(usize, usize)], or: usize| pieces.last().map_or(or, |&(offset, len)| offset + len);
    let source_start = source.first().map_or(0, |piece| piece.0);
    let source_bytes = extent(&source, source_start) - source_start;
    c.fill(source_side, source_start, source_bytes, seed);
    let message =
        source.iter().flat_map(|&(offset, len)| (offset..offset + len).map(|i| pattern::byte(seed, i as u64)));
    let message: Vec<u8> = message.collect();
    let target_start = target.first().map_or(TARGET + to, |piece| piece.0) - GUARD;
    let mut expected = vec![0; extent(&target, target_start + GUARD) + GUARD - target_start];
    c.fill(target_side, target_start, expected.len(), BEFORE);
    pattern::fill(&mut expected, target_start as u64, BEFORE);
    let mut rest = &message[..];
    for &(offset, len) in &target {
        expected[offset - target_start..][..len].copy_from_slice(&rest[..len]);
        rest = &rest[len..];
    }

    let at = c.at(side.other(), if kind == Kind::Read { READABLE + from } else { TARGET + to });
    let (operation, sent_as) = match kind {
        Kind::Send => (Operation::Send, kind::SEND),
        Kind::SendImmediate => (Operation::SendImmediate(immediate), kind::SEND),
        Kind::Write => (Operation::Write(at), kind::WRITE),
        Kind::WriteImmediate => (Operation::WriteImmediate(at, immediate), kind::WRITE),
        Kind::Read => (Operation::Read(at), kind::READ),
    };
    let received = match kind {
        Kind::Send | Kind::SendImmediate => Some((kind::RECEIVE, target.clone())),
        Kind::WriteImmediate => Some((kind::RECEIVE_WRITE_IMMEDIATE, Vec::new())),
        Kind::Write | Kind::Read => None,
    };
    if let Some((_, pieces)) = &received {
        c.post_receive(side.other(), 2, pieces);
    }
    c.post(side, &Request::new(1, operation, if kind == Kind::Read { &target } else { &source }));
    let done = c.sent(side, 1)[0];
    assert_eq!((done.wr_id, done.status, done.kind), (1, 0, sent_as), "{what}: {done:?}");
    if kind == Kind::Read {
        assert_eq!(done.byte_len as usize, len, "{what}");
    }
    if let Some((received_as, _)) = received {
        let immediate = (kind != Kind::Send).then_some(immediate);
        let done = c.received(side.other(), 1)[0];
        let wanted =
            Done { wr_id: 2, status: 0, kind: received_as, byte_len: len as u32, immediate, invalidated: None, ..done };
        assert_eq!(done, wanted, "{what}");
    } else if c.connection.qp.query().unwrap().service == Service::Uc {
        // Nothing tells that an unreliable WRITE has arrived, but the arrival of a message behind it.
        c.post_receive(side.other(), 4, &[]);
        c.post(side, &Request::new(3, Operation::Send, &[]));
        assert_eq!((c.sent(side, 1)[0].wr_id, c.received(side.other(), 1)[0].wr_id), (3, 4), "{what}");
    }
    c.assert_bytes(target_side, target_start, &expected, &what);
    let mut unchanged = vec![0; source_bytes];
    pattern::fill(&mut unchanged, source_start as u64, seed);
    c.assert_bytes(source_side, source_start, &unchanged, &format!("{what}, its source"));
}

/// Atomics, several in flight: each result is the value before, and the last value is right.
pub fn atomics(c: &mut Conversation<'_>, side: Side, random: &mut Random) {
    const COUNT: usize = 30;
    let first = (random.below(1 << 40) as u64) << 24 | 0xff_fff0;
    c.write(side.other(), COUNTER, &first.to_le_bytes());
    let at = c.at(side.other(), COUNTER);
    let result = |i: usize| [(RESULT + i * 24, 8)];
    let (mut value, mut before) = (first, Vec::new());
    for i in 0..COUNT {
        before.push(value);
        let operation = match i % 3 {
            0 => {
                let add = random.below(1 << 50) as u64 | 1 << 63;
                value = value.wrapping_add(add);
                Operation::FetchAdd { at, add }
            }
            // One that compares right, one that does not.
            1 => {
                let (compare, swap) = (value, random.below(1 << 62) as u64);
                value = swap;
                Operation::CompareSwap { at, compare, swap }
            }
            _ => Operation::CompareSwap { at, compare: value ^ 1, swap: 7 },
        };
        c.post(side, &Request::new(i as u64, operation, &result(i)));
    }
    for (i, done) in c.sent(side, COUNT).into_iter().enumerate() {
        let kind = if i % 3 == 0 { kind::FETCH_ADD } else { kind::COMPARE_SWAP };
        assert_eq!((done.wr_id, done.status, done.kind, done.byte_len), (i as u64, 0, kind, 8), "atomics by {side:?}");
        assert_eq!(c.number(side, result(i)[0].0), before[i], "atomic {i} by {side:?}");
    }
    assert_eq!(c.number(side.other(), COUNTER), value, "after all atomics by {side:?}");
}

/// A type 2 window is written and read through until a SEND with invalidate closes it.
pub fn windows(bench: &mut Bench, mtu: PathMtu) {
    for side in Side::BOTH {
        let mut c = bench.converse(&Setup::new(mtu));
        let other = side.other();
        let key = c.bind_window(other, TARGET + 100, 5000);
        let through = At { key, ..c.at(other, TARGET + 100) };
        c.fill(side, SOURCE, 5000, 5);
        c.post(side, &Request::new(1, Operation::Write(through), &[(SOURCE, 5000)]));
        c.post(side, &Request::new(2, Operation::Read(through), &[(RESULT, 5000)]));
        assert!(c.sent(side, 2).iter().all(|done| done.status == 0));
        let mut expected = vec![0; 5000];
        pattern::fill(&mut expected, SOURCE as u64, 5);
        c.assert_bytes(other, TARGET + 100, &expected, "through the window");
        c.assert_bytes(side, RESULT, &expected, "through the window and back");

        c.post_receive(other, 3, &[(TARGET, 64)]);
        c.post(side, &Request::new(4, Operation::SendInvalidate(key), &[(SOURCE, 64)]));
        assert_eq!(c.sent(side, 1)[0].status, 0);
        let done = c.received(other, 1)[0];
        let (kind, invalidated) = (kind::RECEIVE, Some(key));
        let wanted = Done { wr_id: 3, status: 0, kind, byte_len: 64, immediate: None, invalidated, ..done };
        assert_eq!(done, wanted);
        c.post(side, &Request::new(5, Operation::Write(through), &[(SOURCE, 1)]));
        let done = c.sent(side, 1)[0];
        assert_eq!((done.wr_id, done.status), (5, Status::RemoteAccess as u8), "the window is closed");
        c.destroy();
        bench.say(&format!("a window used and invalidated by {side:?}"));
    }
}

/// What was just read is sent back by a fenced request: without the fence it would be what was there before.
pub fn fences(bench: &mut Bench, mtu: PathMtu) {
    for side in Side::BOTH {
        let mut c = bench.converse(&Setup::new(mtu));
        let (other, len) = (side.other(), 30_000);
        for round in 0..4 {
            c.fill(other, READABLE, len, 200 + round);
            c.fill(side, RESULT, len, BEFORE);
            let mut expected = vec![0; len];
            pattern::fill(&mut expected, READABLE as u64, 200 + round);
            let (from, to) = (c.at(other, READABLE), c.at(other, TARGET));
            c.post(side, &Request::new(1, Operation::Read(from), &[(RESULT, len)]));
            let write = Request::new(2, Operation::Write(to), &[(RESULT, len)]);
            c.post(side, &Request { fence: true, ..write });
            let done = match side {
                Side::Us => c.sent(side, 2),
                Side::Rxe => fenced_of_theirs(&mut c, to),
            };
            let ids: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
            assert_eq!(ids, [(1, 0), (2, 0)]);
            c.assert_bytes(other, TARGET, &expected, &format!("read and written back by {side:?}"));
        }
        c.assert_healthy();
        c.destroy();
        bench.say(&format!("fenced WRITEs by {side:?}"));
    }
}

/// A READ and the fenced WRITE behind it, of theirs. rxe sleeps over the end of the READ if its last response comes between
/// the look at the fence and the note that it waits (rxe_req.c, `wait_fence`). Whatever is posted next wakes it.
fn fenced_of_theirs(c: &mut Conversation<'_>, to: At) -> Vec<Done> {
    let mut done = c.theirs_sent_within(2, Duration::from_secs(10));
    if done.len() == 1 {
        c.bench.say("rxe slept over the READ that a fenced WRITE waited for; it is woken");
        c.post(Side::Rxe, &Request::new(3, Operation::Write(to), &[]));
        done.extend(c.sent(Side::Rxe, 2));
        let last = done.pop().unwrap();
        assert_eq!((last.wr_id, last.status), (3, 0));
    }
    done
}

/// Solicited messages notify and others do not; inline bytes are those at the time of posting.
pub fn solicited_and_inline(bench: &mut Bench, mtu: PathMtu) {
    for side in Side::BOTH {
        let mut c = bench.converse(&Setup::new(mtu));
        let other = side.other();
        c.arm_solicited(other);
        for (wr_id, solicited) in [(1, false), (2, true)] {
            c.post_receive(other, wr_id, &[(TARGET, 60)]);
            c.fill(side, SOURCE, 60, wr_id);
            let send = Request::new(wr_id, Operation::Send, &[(SOURCE, 30), (SOURCE + 30, 30)]);
            c.post(side, &Request { solicited, inline: true, ..send });
            c.fill(side, SOURCE, 60, BEFORE);
            let limit = if solicited { LIMIT } else { Duration::from_millis(300) };
            assert_eq!(c.notified(other, limit), solicited, "a message of {side:?}, solicited: {solicited}");
            assert_eq!((c.sent(side, 1)[0].status, c.received(other, 1)[0].byte_len), (0, 60));
            let mut expected = vec![0; 60];
            pattern::fill(&mut expected, SOURCE as u64, wr_id);
            c.assert_bytes(other, TARGET, &expected, &format!("sent inline by {side:?}"));
        }
        c.assert_healthy();
        c.destroy();
        bench.say(&format!("solicited and inline messages by {side:?}"));
    }
}

//! Datagrams one at a time: every byte of the payload and of the routing header before it, and what does not arrive.

use std::net::IpAddr;
use std::time::Instant;

use rxe_rig::agent::QKEY;
use rxe_rig::pattern;
use uroce::verbs::{Completion, CompletionKind, NetworkHeader, PostError, Qpn, Service, State, Status};

use super::bench::{AREA, Bench, Done, LIMIT, Operation, Request, SOURCE, Side, TARGET, kind};
use super::connection::Setup;
use super::conversation::Conversation;
use super::random::Random;

/// What memory holds before something arrives.
const BEFORE: u64 = 80;

/// Bytes of the routing header.
const HEADER: usize = 40;

/// The entries that a work request has at the most here.
const PIECES: usize = 4;

pub fn all(bench: &mut Bench, gid: usize, random: &mut Random) {
    let mtu = bench.context().active_mtu();
    let (m, mut count) = (mtu.bytes(), 0);
    let setup = Setup { service: Service::Ud, gid, ..Setup::new(mtu) };
    let mut c = bench.converse(&setup);
    for side in Side::BOTH {
        for len in [0, 1, 3, 4, m / 2 + 1, m - 1, m] {
            for immediate in [None, Some(random.below(1 << 32) as u32)] {
                datagram(&mut c, side, gid, len, immediate, random);
                count += 1;
            }
        }
        wrong_key(&mut c, side);
        privileged_key(&mut c, side);
        no_receive(&mut c, side);
        too_long(&mut c, side, m);
    }
    c.assert_healthy();
    c.destroy();
    for side in Side::BOTH {
        small_receive(&mut bench.converse(&setup), side);
    }
    bench.say(&format!(
        "UD, path MTU {m}, GID {gid}: {count} datagrams with all bytes right, and those that do not arrive"
    ));
}

/// Sends one, and checks both completions, all bytes of the receive and between its pieces, and the routing header.
fn datagram(c: &mut Conversation<'_>, side: Side, gid: usize, len: usize, immediate: Option<u32>, random: &mut Random) {
    let (other, what) = (side.other(), format!("{len} bytes, immediate {immediate:?}, by {side:?}"));
    let seed = random.below(1 << 30) as u64;
    let slack = AREA - HEADER - len - 40 * PIECES;
    let (from, to) = (SOURCE + random.below(slack), TARGET + random.below(slack));
    let (pieces_from, pieces_to) = (1 + random.below(PIECES), 1 + random.below(PIECES));
    let source = random.layout(from, len, pieces_from);
    let target = random.layout(to, HEADER + len, pieces_to);
    let extent = |pieces: &[(usize, usize)]| pieces.last().map_or(0, |&(offset, len)| offset + len - pieces[0].0);
    if !source.is_empty() {
        c.fill(side, source[0].0, extent(&source), seed);
    }
    c.fill(other, target[0].0, extent(&target), BEFORE);

    c.post_receive(other, 2, &target);
    let operation = immediate.map_or(Operation::Send, Operation::SendImmediate);
    c.post(side, &Request::new(1, operation, &source));
    let done = c.sent(side, 1)[0];
    assert_eq!((done.wr_id, done.status, done.kind, done.source), (1, 0, kind::SEND, None), "{what}");
    let sender = if side == Side::Us { c.connection.qp.qpn().value() } else { c.connection.their_qp.qpn };
    let done = c.received(other, 1)[0];
    let (kind, byte_len) = (kind::RECEIVE, (HEADER + len) as u32);
    let wanted =
        Done { wr_id: 2, status: 0, kind, byte_len, immediate, invalidated: None, source: Some(sender), ..done };
    assert_eq!(done, wanted, "{what}");

    let have = c.bytes(other, target[0].0, extent(&target));
    let places = target.iter().flat_map(|&(offset, len)| offset..offset + len).map(|place| place - target[0].0);
    let message: Vec<u8> = places.clone().map(|place| have[place]).collect();
    let sent = source.iter().flat_map(|&(offset, len)| (offset..offset + len).map(|i| pattern::byte(seed, i as u64)));
    assert!(message[HEADER..].iter().copied().eq(sent), "{what}: the payload is wrong");
    let mut untouched = vec![0; have.len()];
    pattern::fill(&mut untouched, target[0].0 as u64, BEFORE);
    let mut expected = untouched;
    places.zip(&message).for_each(|(place, byte)| expected[place] = *byte);
    assert_eq!(have, expected, "{what}: bytes between the pieces were touched");

    let padded = len.next_multiple_of(4);
    // UDP, BTH, DETH, immediate data, payload, ICRC.
    let after_ip = 8 + 12 + 8 + if immediate.is_some() { 4 } else { 0 } + padded + 4;
    check_header(c, side, gid, &message[..HEADER], after_ip, &what);
    if other == Side::Us {
        check_way_back(c, gid, &done, &message[..HEADER], &what);
    }
}

/// A datagram of theirs names the way back to them.
fn check_way_back(c: &mut Conversation<'_>, gid: usize, done: &Done, header: &[u8], what: &str) {
    let completion = Completion {
        cause: None,
        wr_id: done.wr_id,
        status: Status::Success,
        kind: CompletionKind::Receive,
        byte_len: done.byte_len,
        immediate: done.immediate,
        invalidated: None,
        qpn: Qpn::new(done.qpn),
        source_qpn: Qpn::new(done.source.expect("of a datagram")),
        // The address is read out of the bytes, whatever they are.
        network_header: Some(NetworkHeader::Ipv6),
        time: uroce::time::Instant::ZERO,
    };
    let vector =
        c.context().reply_vector(&completion, header.try_into().unwrap()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(vector, super::connection::vector(c, gid), "{what}");
}

/// The IPv6 header, or 20 zeros and the IPv4 header (IBTA Annex A17.4.5.2).
fn check_header(c: &mut Conversation<'_>, side: Side, gid: usize, header: &[u8], after_ip: usize, what: &str) {
    let ours = c.context().gids()[gid].address;
    let theirs = c.agent.gid(gid as u32).unwrap().into();
    let [from, to] = if side == Side::Us { [ours, theirs] } else { [theirs, ours] };
    match (IpAddr::V6(from).to_canonical(), IpAddr::V6(to).to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = &header[20..];
            assert_eq!(header[..20], [0; 20], "{what}");
            assert_eq!(
                ip[..4],
                [0x45, 0, ((after_ip + 20) >> 8) as u8, (after_ip + 20) as u8],
                "{what}: {header:02x?}"
            );
            assert_eq!((ip[8], ip[9]), (64, 17), "{what}: TTL and protocol");
            assert_eq!((&ip[12..16], &ip[16..]), (&from.octets()[..], &to.octets()[..]), "{what}");
            let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{what}: the header's checksum");
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            assert_eq!(header[..4], [0x60, 0, 0, 0], "{what}");
            assert_eq!(header[4..8], [(after_ip >> 8) as u8, after_ip as u8, 17, 64], "{what}");
            assert_eq!((&header[8..24], &header[24..]), (&from.octets()[..], &to.octets()[..]), "{what}");
        }
        mixed => panic!("{mixed:?}"),
    }
}

/// A receive, a datagram that does not take it, and one behind it that does.
fn only_the_second_arrives(c: &mut Conversation<'_>, side: Side, first: u32, what: &str) {
    let other = side.other();
    c.connection.set_q_key(first);
    c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE, 8)]));
    c.connection.set_q_key(QKEY);
    c.post(side, &Request::new(2, Operation::SendImmediate(2), &[(SOURCE, 8)]));
    let done: Vec<_> = c.sent(side, 2).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, 0), (2, 0)], "{what} by {side:?}: the sender is not told");
    let done = c.received(other, 1)[0];
    assert_eq!((done.wr_id, done.status, done.immediate), (3, 0, Some(2)), "{what} by {side:?}");
}

/// Datagrams of a wrong Q_Key that the receiving end has counted.
fn violations(c: &mut Conversation<'_>, receiver: Side) -> u64 {
    match receiver {
        Side::Us => c.counter("bad_q_key"),
        Side::Rxe => c.agent.command("port").unwrap().number("qkey_viol").unwrap(),
    }
}

/// IBTA 9.6.1.4.1: a datagram with another Q_Key is dropped, and counted.
fn wrong_key(c: &mut Conversation<'_>, side: Side) {
    let before = violations(c, side.other());
    c.post_receive(side.other(), 3, &[(TARGET, 100)]);
    only_the_second_arrives(c, side, QKEY ^ 1, "a wrong Q_Key");
    assert_eq!(violations(c, side.other()) - before, 1, "a wrong Q_Key by {side:?}");
}

/// IBTA 10.2.5: of a Q_Key with the top bit set, the sender's own queue pair's goes out. rxe sends what it is given.
fn privileged_key(c: &mut Conversation<'_>, side: Side) {
    const PRIVILEGED: u32 = 0x8000_0000;
    let before = violations(c, side.other());
    c.post_receive(side.other(), 3, &[(TARGET, 100)]);
    match side {
        Side::Rxe => only_the_second_arrives(c, side, PRIVILEGED, "a privileged Q_Key"),
        Side::Us => {
            c.connection.set_q_key(PRIVILEGED);
            c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE, 8)]));
            c.connection.set_q_key(QKEY);
            assert_eq!((c.sent(side, 1)[0].status, c.received(side.other(), 1)[0].immediate), (0, Some(1)));
        }
    }
    assert_eq!(violations(c, side.other()) - before, u64::from(side == Side::Rxe));
}

/// IBTA 9.8.3.2.2: a datagram that finds no receive is dropped.
fn no_receive(c: &mut Conversation<'_>, side: Side) {
    let (other, before) = (side.other(), c.counter("dropped_message"));
    c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE, 8)]));
    assert_eq!(c.sent(side, 1)[0].status, 0);
    // When one behind it is counted it has arrived: what is posted afterwards is for what comes afterwards.
    let (counted, start) = (violations(c, other), Instant::now());
    c.connection.set_q_key(QKEY ^ 1);
    c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE, 8)]));
    c.connection.set_q_key(QKEY);
    assert_eq!(c.sent(side, 1)[0].status, 0);
    while violations(c, other) == counted {
        assert!(start.elapsed() < LIMIT, "it never arrived");
        std::thread::yield_now();
    }
    c.post_receive(other, 3, &[(TARGET, 100)]);
    c.post(side, &Request::new(2, Operation::SendImmediate(2), &[(SOURCE, 8)]));
    assert_eq!((c.sent(side, 1)[0].status, c.received(other, 1)[0].immediate), (0, Some(2)), "no receive for {side:?}");
    assert_eq!(c.counter("dropped_message") - before, u64::from(other == Side::Us));
}

/// A datagram longer than the path MTU: we refuse to post it; rxe takes it, sends nothing and reports success (it says by
/// IBTA C10-93.1.1).
fn too_long(c: &mut Conversation<'_>, side: Side, mtu: usize) {
    let request = Request::new(1, Operation::SendImmediate(1), &[(SOURCE, mtu + 1)]);
    if side == Side::Us {
        let limit = mtu as u64;
        assert_eq!(c.connection.post_ours(c.bench, &request), Err(PostError::TooLong { len: limit + 1, limit }));
        return;
    }
    c.post_receive(Side::Us, 3, &[(TARGET, mtu + 100)]);
    c.post(side, &request);
    c.post(side, &Request::new(2, Operation::SendImmediate(2), &[(SOURCE, 8)]));
    let done: Vec<_> = c.sent(side, 2).iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, 0), (2, 0)]);
    assert_eq!(c.received(Side::Us, 1)[0].immediate, Some(2), "of the first, nothing is sent");
}

/// A receive too small for the datagram and its routing header: with us the datagram is dropped and the receive waits for
/// another; rxe's receive fails, and its queue pair with it.
fn small_receive(c: &mut Conversation<'_>, side: Side) {
    let (other, before) = (side.other(), c.counter("dropped_message"));
    c.post_receive(other, 3, &[(TARGET, HEADER + 7)]);
    c.post(side, &Request::new(1, Operation::SendImmediate(1), &[(SOURCE, 8)]));
    assert_eq!(c.sent(side, 1)[0].status, 0);
    if other == Side::Us {
        c.post(side, &Request::new(2, Operation::SendImmediate(2), &[(SOURCE, 7)]));
        let done = c.received(other, 1)[0];
        assert_eq!((done.wr_id, done.status, done.immediate), (3, 0, Some(2)));
        assert_eq!((c.counter("dropped_message") - before, c.connection.qp.state()), (1, State::ReadyToSend));
    } else {
        let done = c.received(other, 1)[0];
        assert_eq!((done.wr_id, done.status), (3, Status::LocalQpOperation as u8));
        assert_eq!(c.their_state(), "err");
    }
}

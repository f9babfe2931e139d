//! Requests that break a rule, one at a time: each is answered with the NAK that the IBTA gives it, or dropped and counted
//! where it says to drop; memory that the peer may not reach, or that a refused request names, stays as it was.

use proptest::prelude::*;
use uroce::frame::FrameBytes;
use uroce::memory::Access;
use uroce::transport::{Counters, Event, RecoveryMode, State, Status};
use uroce::wire::{
    AtomicEth, Bth, Extension, Feth, ICRC_BYTES, Ieth, ImmDt, Key, NakCode, Opcode, Operation, PKey, Placement,
    Position, Psn, Qpn, Reth, Selectivity, Syndrome, icrc,
};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{ALL, Crafted, FIRST_PSN, MTU, acknowledge};

in_both_modes! {
    frames_cut_short_anywhere_are_dropped_as_malformed
    lengths_that_lie_are_malformed_or_leave_the_icrc_wrong
    headers_that_name_nobody_here_are_dropped
    keys_and_ranges_that_are_not_the_peers_are_remote_access_errors
    a_window_ends_where_it_ends
    operations_that_are_not_allowed_are_invalid_requests
    lengths_that_do_not_fit_together_are_invalid_requests
    messages_that_turn_out_longer_or_shorter_than_announced_are_invalid_requests
    every_pair_of_requests_is_served_or_refused_by_the_order_of_opcodes
    requests_that_come_too_early_are_named_once_and_not_served
    answers_to_nothing_are_strays
}

const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);

/// All requests of RC.
const REQUESTS: [Opcode; 19] = [
    Opcode::RC_SEND_FIRST,
    Opcode::RC_SEND_MIDDLE,
    Opcode::RC_SEND_LAST,
    Opcode::RC_SEND_LAST_IMM,
    Opcode::RC_SEND_LAST_INV,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_SEND_ONLY_IMM,
    Opcode::RC_SEND_ONLY_INV,
    Opcode::RC_WRITE_FIRST,
    Opcode::RC_WRITE_MIDDLE,
    Opcode::RC_WRITE_LAST,
    Opcode::RC_WRITE_LAST_IMM,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_WRITE_ONLY_IMM,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_COMPARE_SWAP,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_FLUSH,
    Opcode::RC_ATOMIC_WRITE,
];

/// Where the peer's requests go, unless they are to go wrong: bytes 512 to 1536 of the region.
const PLACE: usize = 512;

/// A request with headers and payload of the right length, over `total` bytes at `address` of `key`.
fn request(opcode: Opcode, address: u64, key: Key, total: u32, invalidated: Key) -> (Extension, Vec<u8>) {
    let reth = Reth::new(address, key, total);
    let extension = match opcode {
        Opcode::RC_WRITE_FIRST | Opcode::RC_WRITE_ONLY | Opcode::RC_READ_REQUEST | Opcode::RC_ATOMIC_WRITE => {
            Extension::Reth(reth)
        }
        Opcode::RC_FLUSH => Extension::FethReth(Feth::new(Placement::GLOBAL, Selectivity::Range), reth),
        Opcode::RC_WRITE_ONLY_IMM => Extension::RethImmDt(reth, ImmDt::new(1)),
        Opcode::RC_SEND_LAST_IMM | Opcode::RC_SEND_ONLY_IMM | Opcode::RC_WRITE_LAST_IMM => {
            Extension::ImmDt(ImmDt::new(1))
        }
        Opcode::RC_SEND_LAST_INV | Opcode::RC_SEND_ONLY_INV => Extension::Ieth(Ieth::new(invalidated)),
        Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => Extension::Atomic(AtomicEth::new(address, key, 1, 1)),
        _ => Extension::None,
    };
    let payload_bytes = match opcode.position() {
        Position::First | Position::Middle => MTU.bytes(),
        Position::Last => 4,
        Position::Only if opcode.may_have_payload() => total as usize,
        Position::Only => 0,
    };
    (extension, vec![0x11; payload_bytes])
}

/// One that a new queue pair serves: a start, of a message that goes on if it has to.
fn valid(c: &Crafted, opcode: Opcode) -> (Extension, Vec<u8>) {
    let total = match opcode {
        Opcode::RC_ATOMIC_WRITE => 8,
        _ if opcode.position() == Position::First => MTU.bytes() as u32 + 4,
        _ => 4,
    };
    request(opcode, c.at(PLACE), c.key, total, Key(0))
}

/// The peer sends one request and gets `syndrome`; both the queue pair and memory are as the IBTA wants them then.
fn refused(c: &mut Crafted, opcode: Opcode, extension: Extension, payload: &[u8], syndrome: Syndrome, what: &str) {
    assert_eq!(c.send(c.bth(opcode, FIRST_PSN), extension, payload), [acknowledge(FIRST_PSN, syndrome)], "{what}");
    assert_eq!(c.state(), State::Error, "{what}");
    let event = if syndrome == ACCESS { Event::AccessError(c.qpn) } else { Event::RequestError(c.qpn) };
    assert_eq!((c.event(), c.event()), (Some(event), None), "{what}");
    // Nothing is served any more.
    let (opcode, psn) = (Opcode::RC_WRITE_ONLY, FIRST_PSN.plus(1));
    let reth = Reth::new(c.at(PLACE), c.key, 4);
    assert_eq!(c.send(c.bth(opcode, psn), Extension::Reth(reth), &[1; 4]), [], "{what}");
    assert_eq!(c.counters().wrong_state, 1, "{what}");
    c.assert_untouched(what);
}

/// What was counted of one frame; nothing was answered and nothing written.
fn dropped(c: &mut Crafted, frame: &[u8], what: &str) -> Vec<&'static str> {
    let before = c.counters();
    assert_eq!(c.take(frame), [], "{what}");
    c.assert_untouched(what);
    assert_eq!((c.state(), c.event(), c.completion()), (State::ReadyToSend, None, None), "{what}");
    let changed = |(name, after): (&'static str, u64), before| (after != before).then_some(name);
    let after = c.counters();
    let names = after.list().zip(before.list()).filter_map(|(after, (_, before))| changed(after, before));
    names.filter(|name| !["rcvd_pkts", "rcvd_bytes"].contains(name)).collect()
}

/// Recomputes the ICRC of a frame that was changed, so that it is not what gives it away.
fn seal(frame: &mut [u8]) {
    let covered = frame.len() - ICRC_BYTES;
    let right = icrc::compute(FrameBytes::from(&frame[14..covered])).unwrap();
    frame[covered..].copy_from_slice(&right.to_le_bytes());
}

/// Ethernet 14, IPv4 20, UDP 8.
const IB_START: usize = 42;

fn frames_cut_short_anywhere_are_dropped_as_malformed(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    for opcode in [
        Opcode::RC_SEND_ONLY,
        Opcode::RC_WRITE_ONLY_IMM,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_FETCH_ADD,
        Opcode::RC_FLUSH,
        Opcode::RC_ATOMIC_WRITE,
    ] {
        let (extension, payload) = valid(&c, opcode);
        let frame = c.frame(c.bth(opcode, FIRST_PSN), extension, &payload);
        for len in 0..frame.len() {
            assert_eq!(dropped(&mut c, &frame[..len], &format!("{opcode} of {len} bytes")), ["malformed"]);
        }
        // Cut, with IP and UDP lengths that agree: then headers are missing, or the ICRC is elsewhere.
        for len in IB_START..frame.len() {
            let mut frame = frame[..len].to_vec();
            frame[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
            frame[38..40].copy_from_slice(&(len as u16 - 34).to_be_bytes());
            // The IPv4 header's checksum, which was right for another length.
            frame[24..26].fill(0);
            let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            let names = dropped(&mut c, &frame, &format!("{opcode} of {len} bytes that says so"));
            assert!(names == ["malformed"] || names == ["bad_icrc"], "{opcode} of {len} bytes: {names:?}");
        }
    }
    // None of them changed anything: the whole frame is served.
    let (extension, _) = valid(&c, Opcode::RC_READ_REQUEST);
    assert_eq!(c.send(c.bth(Opcode::RC_READ_REQUEST, FIRST_PSN), extension, &[])[0].payload_bytes, 4);
}

fn lengths_that_lie_are_malformed_or_leave_the_icrc_wrong(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (extension, payload) = valid(&c, Opcode::RC_WRITE_ONLY);
    let good = c.frame(c.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN), extension, &payload);
    for (name, at) in [("IP", 16), ("UDP", 38)] {
        let says = u16::from_be_bytes([good[at], good[at + 1]]);
        for lie in (0..=u16::MAX).step_by(97).chain([says - 4, says - 1, says + 1, says + 4]).filter(|lie| *lie != says)
        {
            let mut frame = good.clone();
            frame[at..at + 2].copy_from_slice(&lie.to_be_bytes());
            let names = dropped(&mut c, &frame, &format!("an {name} length of {lie} instead of {says}"));
            // Either the lie itself shows, or the bytes end elsewhere, or the IP header's checksum tells.
            let plausible = [["malformed"], ["bad_ip_checksum"], ["bad_icrc"]];
            assert!(plausible.contains(&[names[0]]) && names.len() == 1, "{name} {lie}: {names:?}");
        }
    }
}

proptest! {
    /// Random bytes behind the outer headers, with no right ICRC.
    #[test]
    fn random_bytes_are_dropped_and_counted_once(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let recovery = RecoveryMode::default();
        let mut c = Crafted::new(recovery);
        let frame = c.frame(c.bth(Opcode::RC_SEND_MIDDLE, FIRST_PSN), Extension::None, &bytes);
        let mut raw = frame.clone();
        raw.truncate(IB_START);
        raw.extend(&bytes);
        raw.resize(frame.len(), 0x55);
        prop_assert_eq!(dropped(&mut c, &raw, "random bytes").len(), 1);
        prop_assert_eq!(dropped(&mut c, &bytes, "nothing but random bytes"), ["malformed"]);
    }
}

/// Silent drops of IBTA 9.6 (the packet header's validation), each with its counter.
fn headers_that_name_nobody_here_are_dropped(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (extension, payload) = valid(&c, Opcode::RC_WRITE_ONLY);
    let bth = c.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN);
    let good = c.frame(bth, extension, &payload);
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        assert_ne!(frame[at], to);
        frame[at] = to;
        seal(&mut frame);
        frame
    };
    let other_qpn = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(c.qpn.value() ^ 1), FIRST_PSN);
    for (what, frame, counter) in [
        ("TVer 1 (IBTA 9.6.1.1)", changed(IB_START + 1, 0x41), "bad_tver"),
        ("TVer 15", changed(IB_START + 1, 0x4f), "bad_tver"),
        ("another queue pair (9.6.1.2)", c.frame(other_qpn, extension, &payload), "unknown_qpn"),
        ("another partition (9.6.1.1.3)", c.frame(bth.with_p_key(PKey(0x8001)), extension, &payload), "bad_p_key"),
        ("partition 0 (10.9.1.1)", c.frame(bth.with_p_key(PKey(0x8000)), extension, &payload), "bad_p_key"),
        ("a reserved opcode (9.6.1.1.1)", changed(IB_START, 0x15), "bad_opcode"),
        ("a reserved service", changed(IB_START, 0xc0), "bad_opcode"),
        ("UC's opcode", changed(IB_START, 0x2a), "bad_opcode"),
        ("UD's opcode", changed(IB_START, 0x64), "bad_opcode"),
        ("another source address (9.6.1.5)", changed(14 + 15, 9), "bad_ip_checksum"),
    ] {
        assert_eq!(dropped(&mut c, &frame, what), [counter], "{what}");
    }
    // Another source address, and the checksum right.
    let mut frame = changed(14 + 15, 9);
    let sum = u16::from_be_bytes([frame[24], frame[25]]).wrapping_sub(9 - 2);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(dropped(&mut c, &frame, "another source address"), ["wrong_address"]);
    // Every bit that the ICRC covers, one at a time.
    for bit in IB_START * 8..good.len() * 8 {
        let mut frame = good.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        if bit / 8 != IB_START + 4 {
            assert_eq!(dropped(&mut c, &frame, &format!("bit {bit} flipped")).len(), 1, "bit {bit}");
        }
    }
    assert_eq!(c.send(bth.with_ack_request(true), extension, &payload), [acknowledge(FIRST_PSN, Syndrome::ACK)]);
}

/// IBTA 9.7.4.1.5 and Table 59: R_Key violations are remote access errors, whatever asks.
fn keys_and_ranges_that_are_not_the_peers_are_remote_access_errors(recovery: RecoveryMode) {
    let starts = [
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_ONLY,
        Opcode::RC_READ_REQUEST,
        Opcode::RC_COMPARE_SWAP,
        Opcode::RC_FETCH_ADD,
        Opcode::RC_FLUSH,
        Opcode::RC_ATOMIC_WRITE,
    ];
    type Wrong = fn(&mut Crafted) -> (u64, Key);
    let wrongs: [(&str, Wrong); 12] = [
        ("an unknown key", |c| (c.at(PLACE), Key(c.key.0 ^ 0x5500))),
        ("the key's low byte", |c| (c.at(PLACE), Key(c.key.0 ^ 1))),
        ("key 0", |c| (c.at(PLACE), Key(0))),
        ("another protection domain", |c| (c.foreign.0.address(), c.foreign.1)),
        ("a region without remote access", |c| (c.private.0.address(), c.private.1)),
        ("another region's address", |c| (c.foreign.0.address(), c.key)),
        ("before the region", |c| (c.at(0) - 8, c.key)),
        ("across its end", |c| (c.at(Crafted::BYTES) & !7, c.key)),
        ("just behind it", |c| (c.at(Crafted::BYTES).next_multiple_of(8), c.key)),
        ("address 0", |c| (0, c.key)),
        ("an address that wraps", |c| (!7, c.key)),
        ("a deregistered region", |c| {
            let (address, key) = (c.at(PLACE), c.key);
            c.endpoint.memory().deregister(key).unwrap();
            (address, key)
        }),
    ];
    for (name, wrong) in wrongs {
        for opcode in starts {
            let mut c = Crafted::new(recovery);
            let (address, key) = wrong(&mut c);
            let total = match opcode {
                Opcode::RC_WRITE_FIRST => MTU.bytes() as u32 + 4,
                Opcode::RC_ATOMIC_WRITE => 8,
                _ => 16,
            };
            let (extension, payload) = request(opcode, address, key, total, Key(0));
            refused(&mut c, opcode, extension, &payload, ACCESS, &format!("{opcode}, {name}"));
        }
    }
}

/// A window gives what it was bound for, through its own key, and not one byte more.
fn a_window_ends_where_it_ends(recovery: RecoveryMode) {
    for (offset, len, granted, opcode) in [
        (999, 8, ALL, Opcode::RC_WRITE_ONLY),
        (1593, 8, ALL, Opcode::RC_WRITE_ONLY),
        (1000, 601, ALL, Opcode::RC_READ_REQUEST),
        (1000, 8, Access::REMOTE_READ, Opcode::RC_WRITE_ONLY),
        (1000, 8, Access::REMOTE_WRITE, Opcode::RC_READ_REQUEST),
    ] {
        let mut c = Crafted::new(recovery);
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let window = c.bind_window(1000, 600, granted & remote);
        let (extension, payload) = request(opcode, c.at(offset), window, len, Key(0));
        let payload = if opcode == Opcode::RC_WRITE_ONLY { payload } else { vec![] };
        let what = format!("{opcode} of {len} bytes at {offset} through a window for {granted:?}");
        refused(&mut c, opcode, extension, &payload, ACCESS, &what);
    }
    let mut c = Crafted::new(recovery);
    let window = c.bind_window(1000, 600, Access::REMOTE_WRITE);
    let bth = c.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN).with_ack_request(true);
    let reth = Extension::Reth(Reth::new(c.at(1592), window, 8));
    assert_eq!(c.send(bth, reth, &[0x11; 8]), [acknowledge(FIRST_PSN, Syndrome::ACK)]);
    c.assert_untouched_but(1592..1600, "the window's last bytes");
}

/// IBTA 9.7.4.1.3: what the queue pair does not allow, and atomics at other than multiples of eight, are invalid.
fn operations_that_are_not_allowed_are_invalid_requests(recovery: RecoveryMode) {
    for (access, opcode) in [
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, Opcode::RC_WRITE_FIRST),
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, Opcode::RC_WRITE_ONLY),
        (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, Opcode::RC_READ_REQUEST),
        (Access::REMOTE_WRITE | Access::REMOTE_READ, Opcode::RC_COMPARE_SWAP),
        (Access::REMOTE_WRITE | Access::REMOTE_READ, Opcode::RC_FETCH_ADD),
        (Access::REMOTE_WRITE | Access::FLUSH_PERSISTENT, Opcode::RC_FLUSH),
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, Opcode::RC_ATOMIC_WRITE),
    ] {
        let mut c = Crafted::with_access(access, recovery);
        let (extension, payload) = valid(&c, opcode);
        let what = format!("{opcode} where {access:?} is allowed");
        refused(&mut c, opcode, extension, &payload, INVALID, &what);
    }
    for misaligned in 1..8 {
        let mut c = Crafted::new(recovery);
        let extension = Extension::Atomic(AtomicEth::new(c.at(PLACE) + misaligned, c.key, 1, 0));
        refused(&mut c, Opcode::RC_FETCH_ADD, extension, &[], INVALID, "misaligned atomic");
        let mut c = Crafted::new(recovery);
        let extension = Extension::Reth(Reth::new(c.at(PLACE) + misaligned, c.key, 8));
        refused(&mut c, Opcode::RC_ATOMIC_WRITE, extension, &[1; 8], INVALID, "misaligned ATOMIC WRITE");
    }
}

/// IBTA 9.7.4.1.6 and 9.7.4.1.7: lengths that do not fit together are invalid requests.
fn lengths_that_do_not_fit_together_are_invalid_requests(recovery: RecoveryMode) {
    let mtu = MTU.bytes();
    use Opcode as O;
    for (opcode, total, payload) in [
        (O::RC_SEND_FIRST, 0, mtu - 1),
        (O::RC_SEND_FIRST, 0, mtu + 1),
        (O::RC_SEND_ONLY, 0, mtu + 1),
        (O::RC_WRITE_FIRST, 2 * mtu, mtu - 4),
        (O::RC_WRITE_FIRST, 2 * mtu, mtu + 4),
        // A message of one packet does not begin with FIRST.
        (O::RC_WRITE_FIRST, mtu, mtu),
        (O::RC_WRITE_ONLY, mtu + 4, mtu + 4),
        (O::RC_WRITE_ONLY, 5, 4),
        (O::RC_WRITE_ONLY, 4, 5),
        (O::RC_WRITE_ONLY, 0, 1),
        (O::RC_WRITE_ONLY, 1, 0),
        (O::RC_READ_REQUEST, 4, 4),
        (O::RC_FETCH_ADD, 0, 4),
        (O::RC_FLUSH, 4, 4),
        // IBTA A19.5: eight bytes, no more and no fewer.
        (O::RC_ATOMIC_WRITE, 0, 0),
        (O::RC_ATOMIC_WRITE, 0, 8),
        (O::RC_ATOMIC_WRITE, 8, 0),
        (O::RC_ATOMIC_WRITE, 4, 4),
        (O::RC_ATOMIC_WRITE, 8, 7),
        (O::RC_ATOMIC_WRITE, 7, 8),
        (O::RC_ATOMIC_WRITE, 16, 16),
        // More than 2^31 bytes (9.7.7).
        (O::RC_WRITE_FIRST, (1 << 31) + 1, mtu),
        (O::RC_READ_REQUEST, (1 << 31) + 1, 0),
        (O::RC_READ_REQUEST, u32::MAX as usize, 0),
        (O::RC_FLUSH, (1 << 31) + 1, 0),
    ] {
        let mut c = Crafted::new(recovery);
        c.post_receive(1, 0, 4096);
        let (extension, _) = request(opcode, c.at(PLACE), c.key, total as u32, Key(0));
        let what = format!("{opcode} of {payload} bytes, {total} in all");
        refused(&mut c, opcode, extension, &vec![0x11; payload], INVALID, &what);
    }
    // Up to 2^31 bytes it is the range that is wrong.
    for opcode in [O::RC_WRITE_FIRST, O::RC_READ_REQUEST] {
        let mut c = Crafted::new(recovery);
        let (extension, payload) = request(opcode, c.at(PLACE), c.key, 1 << 31, Key(0));
        refused(&mut c, opcode, extension, &payload, ACCESS, "2^31 bytes");
    }
}

/// The same in the later packets of a message; what came before has been placed.
fn messages_that_turn_out_longer_or_shorter_than_announced_are_invalid_requests(recovery: RecoveryMode) {
    let mtu = MTU.bytes();
    use Opcode as O;
    for (total, opcode, payload) in [
        (2 * mtu, O::RC_WRITE_LAST, mtu - 1),
        (2 * mtu, O::RC_WRITE_LAST, 0),
        (mtu + 8, O::RC_WRITE_LAST, 9),
        (mtu + 8, O::RC_WRITE_MIDDLE, mtu),
        (2 * mtu, O::RC_WRITE_MIDDLE, mtu),
        (3 * mtu, O::RC_WRITE_MIDDLE, mtu - 1),
        (3 * mtu, O::RC_WRITE_LAST, mtu),
    ] {
        let mut c = Crafted::new(recovery);
        let reth = Extension::Reth(Reth::new(c.at(PLACE), c.key, total as u32));
        assert_eq!(c.send(c.bth(O::RC_WRITE_FIRST, FIRST_PSN), reth, &vec![0x11; mtu]), []);
        let psn = FIRST_PSN.plus(1);
        let what = format!("WRITE of {total} bytes, then {opcode} of {payload}");
        let answers = c.send(c.bth(opcode, psn), Extension::None, &vec![0x22; payload]);
        assert_eq!(answers, [acknowledge(psn, INVALID)], "{what}");
        assert_eq!(c.memory.to_vec(PLACE, mtu), vec![0x11; mtu]);
        c.assert_untouched_but(PLACE..PLACE + mtu, &what);
    }
    // A SEND longer than its receive request: an invalid request to the peer, a local length error to us (Table 59).
    let mut c = Crafted::new(recovery);
    c.post_receive(5, PLACE, mtu as u32 + 3);
    assert_eq!(c.send(c.bth(O::RC_SEND_FIRST, FIRST_PSN), Extension::None, &vec![0x11; mtu]), []);
    let psn = FIRST_PSN.plus(1);
    assert_eq!(c.send(c.bth(O::RC_SEND_LAST, psn), Extension::None, &[0x22; 4]), [acknowledge(psn, INVALID)]);
    let done = c.completion().expect("the receive");
    assert_eq!((done.wr_id, done.status), (5, Status::LocalLength));
    c.assert_untouched_but(PLACE..PLACE + mtu, "a SEND too long");
}

/// IBTA 9.7.4.1.2: a message goes on as it began, none begins within another, and none goes on that did not begin.
fn every_pair_of_requests_is_served_or_refused_by_the_order_of_opcodes(recovery: RecoveryMode) {
    let (mut served, mut refused) = (0, 0);
    for first in REQUESTS {
        for second in REQUESTS {
            let mut c = Crafted::new(recovery);
            let windows = [0, 1].map(|i| c.bind_window(2000 + i * 8, 8, Access::REMOTE_READ));
            for wr_id in 0..2 {
                c.post_receive(wr_id, PLACE, 2 * MTU.bytes() as u32 + 4);
            }
            let mut open: Option<(Operation, u32)> = None;
            for (index, opcode) in [first, second].into_iter().enumerate() {
                let (operation, position) = (opcode.operation(), opcode.position());
                // As long as the first packet says, so that only the order can be wrong.
                let goes_on = second.position() == Position::Middle;
                let total = match position {
                    Position::First if goes_on => 2 * MTU.bytes() as u32 + 4,
                    Position::First => MTU.bytes() as u32 + 4,
                    _ if opcode == Opcode::RC_ATOMIC_WRITE => 8,
                    _ => 4,
                };
                let (address, psn) = (c.at(PLACE), FIRST_PSN.plus(index as u32));
                let (extension, payload) = request(opcode, address, c.key, total, windows[index]);
                let answers = c.send(c.bth(opcode, psn), extension, &payload);
                let fits = match open {
                    None => position.starts(),
                    Some((message, _)) => !position.starts() && message == operation,
                };
                let what = format!("{first}, then {second}: packet {index}");
                let naks = answers.iter().filter(|answer| matches!(answer.syndrome, Some(Syndrome::Nak(_))));
                assert_eq!(naks.count(), usize::from(!fits), "{what}: {answers:?}");
                if !fits {
                    assert_eq!(answers, [acknowledge(psn, INVALID)], "{what}");
                    assert_eq!(c.state(), State::Error, "{what}");
                    refused += 1;
                    break;
                }
                assert_eq!(c.state(), State::ReadyToSend, "{what}");
                served += 1;
                open = if position.ends() { None } else { Some((operation, total)) };
            }
            c.assert_untouched_but(PLACE..PLACE + 2 * MTU.bytes() + 4, "pairs");
        }
    }
    // Twelve requests start a message. Two of them leave one open: SEND_FIRST, which four go on, and WRITE_FIRST, which three do.
    let starts = 12;
    assert_eq!(served, starts * REQUESTS.len() + (starts - 2) * starts + 4 + 3);
    assert_eq!(refused, REQUESTS.len() * REQUESTS.len() - ((starts - 2) * starts + 4 + 3));
}

/// IBTA 9.7.5.2.8: one sequence NAK a gap, for the PSN expected; nothing of what came too early is done before its turn. By
/// default some of it is kept until then.
fn requests_that_come_too_early_are_named_once_and_not_served(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    let (extension, payload) = valid(&c, Opcode::RC_WRITE_ONLY);
    let at = |c: &Crafted, index| c.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN.plus(index)).with_ack_request(true);
    let nak = |index| acknowledge(FIRST_PSN.plus(index), Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(c.send(at(&c, 1), extension, &payload), [nak(0)]);
    for ahead in [1, 2, 100, (1 << 23) - 1] {
        assert_eq!(c.send(at(&c, ahead), extension, &payload), []);
    }
    c.assert_untouched("requests that came too early");
    // 1, 2 and 100: the last is further ahead than anybody who goes back can be.
    let keeps = recovery != RecoveryMode::GoBackN;
    let reordered = if keeps { 3 } else { 0 };
    // IPv4, UDP, BTH, RETH or AETH, payload and ICRC.
    let (rcvd_bytes, sent_bytes) = (5 * (20 + 8 + 12 + 16 + payload.len() as u64 + 4), 20 + 8 + 12 + 4 + 4);
    let counters = Counters {
        out_of_seq_request: 5,
        reordered,
        rcvd_pkts: 5,
        rcvd_bytes,
        sent_pkts: 1,
        sent_bytes,
        ..Counters::default()
    };
    assert_eq!(c.counters(), counters);
    // What has come is not taken for the peer's before that comes to it again.
    assert_eq!(c.send(at(&c, 0), extension, &payload), [acknowledge(FIRST_PSN, Syndrome::ACK)]);
    let answer = if keeps { acknowledge(FIRST_PSN.plus(2), Syndrome::ACK) } else { nak(1) };
    assert_eq!(c.send(at(&c, 2), extension, &payload), [answer]);
    if keeps {
        assert_eq!(c.send(at(&c, 4), extension, &payload), [nak(3)], "a new gap");
    }
}

/// Answers that nobody asked for are dropped and counted.
fn answers_to_nothing_are_strays(recovery: RecoveryMode) {
    let mut c = Crafted::new(recovery);
    for psn in [FIRST_PSN, FIRST_PSN.minus(1), FIRST_PSN.plus(1), Psn::new(0x7f_ffff)] {
        for syndrome in [Syndrome::ACK, INVALID, ACCESS, Syndrome::RnrNak(uroce::wire::RnrTimer::new(1))] {
            let aeth = Extension::Aeth(uroce::wire::Aeth::new(syndrome, uroce::wire::Msn::new(1)));
            for (opcode, payload) in [(Opcode::RC_ACKNOWLEDGE, 0), (Opcode::RC_READ_RESPONSE_ONLY, 8)] {
                let frame = c.frame(c.bth(opcode, psn), aeth, &vec![0x11; payload]);
                assert_eq!(dropped(&mut c, &frame, "an answer to nothing"), ["stray_response"]);
            }
        }
    }
}

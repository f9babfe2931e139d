//! Two endpoints over a network in virtual time that loses, duplicates, reorders and corrupts from a seed: every
//! operation in both directions, memory against a model, every request completed once and in order.

use uroce::memory::WindowBinding;
use uroce::time::Duration;
use uroce::transport::{CompletionKind, Data, Event, RecoveryMode, Remote, SendOperation, SendRequest, State, Status};
use uroce::wire::{Key, Opcode, PathMtu, Psn, RnrTimer};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::{Chances, Pair, Side, pattern};

use uroce::memory::Access;

in_both_modes! {
    every_operation_at_every_mtu_over_a_perfect_network
    one_request_goes_before_a_plain_acknowledge
    psns_wrap
    every_operation_survives_loss_duplication_reordering_and_corruption
    a_pipeline_completes_in_order_with_the_right_bytes_whatever_the_network_does
    a_silent_peer_ends_in_retry_exceeded_and_the_rest_is_flushed
    without_receive_requests_it_ends_in_rnr_retry_exceeded
    a_late_receive_request_is_waited_for
    wrong_keys_and_ranges_are_remote_access_errors
    a_deregistered_region_is_a_remote_access_error
    operations_that_the_queue_pair_does_not_allow_are_invalid_requests
    misaligned_atomics_are_invalid_requests
    a_send_longer_than_the_receive_request_is_an_invalid_request_and_a_local_length_error
    local_ranges_that_are_not_registered_are_local_protection_errors_after_all_before_them
    send_with_invalidate_closes_the_peers_window
    a_fenced_write_waits_for_the_read_before_it
    unsignaled_requests_complete_in_silence
}

/// One of each operation, of several lengths; then everything is compared.
fn all_operations(recovery: RecoveryMode, seed: u64, path_mtu: PathMtu, first_psn: Psn, faults: Chances) {
    let mut pair = Pair::new(recovery, seed, path_mtu, first_psn, faults);
    let mtu = path_mtu.bytes();
    for side in [Side::A, Side::B] {
        let other = side.other();
        for len in [0, 1, 3, mtu - 1, mtu, mtu + 1, 5 * mtu + 7, 70 * mtu] {
            // SEND, plain and with immediate.
            for immediate in [None, Some(0xdead_0000 | len as u32)] {
                let data = pattern(seed ^ len as u64, len);
                pair.fill(side, 0, &data);
                pair.fill(other, Pair::HALF, &vec![0; len]);
                pair.post_receive(other, 7, Pair::HALF, len as u32);
                let operation = immediate.map_or(SendOperation::Send, SendOperation::SendWithImmediate);
                pair.post(side, SendRequest::new(1, operation, pair.data(side, 0, len)));
                let received = pair.completion(other);
                assert_eq!((received.status, received.wr_id), (Status::Success, 7));
                assert_eq!((received.byte_len as usize, received.immediate), (len, immediate));
                assert_eq!(pair.completion(side).status, Status::Success);
                assert_eq!(pair.bytes(other, Pair::HALF, len), data, "SEND of {len}");
            }
            // WRITE, plain and with immediate.
            for immediate in [None, Some(len as u32)] {
                let data = pattern(seed ^ 99 ^ len as u64, len);
                pair.fill(side, 0, &data);
                pair.fill(other, Pair::HALF, &vec![0; len]);
                let remote = pair.remote(other, Pair::HALF);
                let operation = match immediate {
                    None => SendOperation::Write(remote),
                    Some(data) => SendOperation::WriteWithImmediate(remote, data),
                };
                if immediate.is_some() {
                    pair.post_receive(other, 8, 0, 0);
                }
                pair.post(side, SendRequest::new(2, operation, pair.data(side, 0, len)));
                let sent = pair.completion(side);
                assert_eq!((sent.status, sent.kind), (Status::Success, CompletionKind::Write));
                assert_eq!(pair.bytes(other, Pair::HALF, len), data, "WRITE of {len}");
                if immediate.is_some() {
                    let received = pair.completion(other);
                    assert_eq!(received.kind, CompletionKind::ReceiveWriteWithImmediate);
                    assert_eq!((received.byte_len as usize, received.immediate), (len, immediate));
                }
            }
            // READ.
            let data = pattern(seed ^ 7 ^ len as u64, len);
            pair.fill(other, Pair::HALF, &data);
            pair.fill(side, 0, &vec![0; len]);
            let operation = SendOperation::Read(pair.remote(other, Pair::HALF));
            pair.post(side, SendRequest::new(3, operation, pair.data(side, 0, len)));
            let done = pair.completion(side);
            assert_eq!((done.status, done.kind, done.byte_len as usize), (Status::Success, CompletionKind::Read, len));
            assert_eq!(pair.bytes(side, 0, len), data, "READ of {len}");
        }
        // Atomics: many in flight, each exactly once.
        pair.fill(other, Pair::HALF, &1000u64.to_ne_bytes());
        let remote = pair.remote(other, Pair::HALF);
        for i in 0..40 {
            let operation = SendOperation::FetchAdd { remote, add: i };
            pair.post(side, SendRequest::new(i, operation, pair.data(side, i as usize * 8, 8)));
        }
        let mut value = 1000;
        for i in 0..40 {
            let done = pair.completion(side);
            assert_eq!((done.status, done.wr_id), (Status::Success, i));
            assert_eq!(pair.u64(side, i as usize * 8), value, "the value before fetch and add {i}");
            value += i;
        }
        let swap = SendOperation::CompareSwap { remote, compare: value, swap: 5 };
        pair.post(side, SendRequest::new(0, swap, pair.data(side, 0, 8)));
        assert_eq!(pair.completion(side).status, Status::Success);
        assert_eq!((pair.u64(side, 0), pair.u64(other, Pair::HALF)), (value, 5));
        pair.post(side, SendRequest::new(0, swap, pair.data(side, 0, 8)));
        assert_eq!(pair.completion(side).status, Status::Success);
        assert_eq!((pair.u64(side, 0), pair.u64(other, Pair::HALF)), (5, 5), "compare fails, nothing is swapped");
    }
    for side in [Side::A, Side::B] {
        let qpn = pair.qpn(side);
        let is_extended = pair.endpoint(side).queue_pair(qpn).unwrap().is_extended();
        assert_eq!(is_extended, recovery != RecoveryMode::GoBackN, "seed {seed}: the ends know each other");
    }
    pair.assert_quiet();
}

fn every_operation_at_every_mtu_over_a_perfect_network(recovery: RecoveryMode) {
    for mtu in PathMtu::ALL {
        all_operations(recovery, 1, mtu, Psn::new(0), Chances::NONE);
    }
}

/// The engine lets a program see what arrived before it sends an acknowledge for it, so that the program's answer can go
/// first; the acknowledge follows at once.
fn one_request_goes_before_a_plain_acknowledge(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 1, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let write = SendOperation::Write(pair.remote(Side::B, Pair::HALF));
    // The sides get to know each other.
    pair.post(Side::A, SendRequest::new(0, write, pair.data(Side::A, 0, 64)));
    assert_eq!(pair.completion(Side::A).wr_id, 0);
    pair.assert_quiet();
    pair.post_receive(Side::A, 3, Pair::HALF, 64);
    pair.post(Side::A, SendRequest::new(1, write, pair.data(Side::A, 0, 64)));
    let end = pair.now + Duration::from_millis(1);
    assert!(!pair.owes_only_acknowledges(Side::A) && !pair.owes_only_acknowledges(Side::B));
    assert!(pair.step(end), "the WRITE arrives");
    assert!(pair.owes_only_acknowledges(Side::B));
    for wr_id in [4, 5] {
        pair.post(Side::B, SendRequest::new(wr_id, SendOperation::Send, pair.data(Side::B, 0, 64)));
    }
    pair.post_receive(Side::A, 6, Pair::HALF, 64);
    assert!(!pair.owes_only_acknowledges(Side::B));
    let opcodes = pair.transmit(Side::B);
    match recovery {
        RecoveryMode::GoBackN => {
            assert_eq!(opcodes, [Opcode::RC_SEND_ONLY, Opcode::RC_ACKNOWLEDGE, Opcode::RC_SEND_ONLY])
        }
        // The first carries the acknowledge.
        _ => assert_eq!(opcodes, [Opcode::RC_SEND_ONLY, Opcode::RC_SEND_ONLY]),
    }
    let mut done: Vec<_> = (0..3).map(|_| pair.completion(Side::A).wr_id).collect();
    done.sort_unstable();
    assert_eq!(done, [1, 3, 6]);
    assert_eq!([pair.completion(Side::B).wr_id, pair.completion(Side::B).wr_id], [4, 5]);
    pair.assert_quiet();
}

fn psns_wrap(recovery: RecoveryMode) {
    for before in [1, 5, 100] {
        all_operations(recovery, 2, PathMtu::Mtu256, Psn::new(0).minus(before), Chances::NONE);
    }
}

fn every_operation_survives_loss_duplication_reordering_and_corruption(recovery: RecoveryMode) {
    for seed in 0..30 {
        let faults = Chances { loss: 0.05, duplicate: 0.05, reorder: 0.05, corrupt: 0.02 };
        all_operations(recovery, seed, PathMtu::Mtu1024, Psn::new(0).minus(200), faults);
    }
}

/// A long pipeline of mixed operations with everything in flight at once; the model says what memory must hold.
fn a_pipeline_completes_in_order_with_the_right_bytes_whatever_the_network_does(recovery: RecoveryMode) {
    for seed in 0..60 {
        let faults = match seed % 4 {
            0 => Chances { loss: 0.01, ..Chances::NONE },
            1 => Chances { loss: 0.05, ..Chances::NONE },
            2 => Chances { reorder: 0.1, duplicate: 0.1, ..Chances::NONE },
            _ => Chances { loss: 0.02, duplicate: 0.02, reorder: 0.02, corrupt: 0.02 },
        };
        let mut pair = Pair::new(recovery, seed, PathMtu::Mtu256, Psn::new(0).minus(50), faults);
        pair.run_pipeline(150);
        pair.assert_quiet();
    }
}

fn a_silent_peer_ends_in_retry_exceeded_and_the_rest_is_flushed(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 3, PathMtu::Mtu1024, Psn::new(0), Chances { loss: 1.0, ..Chances::NONE });
    for wr_id in 0..3 {
        pair.post(Side::A, SendRequest::new(wr_id, SendOperation::Send, pair.data(Side::A, 0, 10)));
    }
    let ends: Vec<_> = (0..3).map(|_| pair.completion(Side::A)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(0, Status::RetryExceeded), (1, Status::WrFlush), (2, Status::WrFlush)]);
    assert_eq!(pair.state(Side::A), State::Error);
    assert_eq!(pair.counters(Side::A).completer_retry, u64::from(Pair::RETRY_COUNT));
}

fn without_receive_requests_it_ends_in_rnr_retry_exceeded(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 4, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    pair.set_rnr_retry(Side::A, 3);
    pair.post(Side::A, SendRequest::new(9, SendOperation::Send, pair.data(Side::A, 0, 10)));
    let done = pair.completion(Side::A);
    assert_eq!((done.wr_id, done.status), (9, Status::RnrRetryExceeded));
    assert_eq!(pair.counters(Side::B).send_rnr_err, 4, "the first try and three retries");
}

fn a_late_receive_request_is_waited_for(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 5, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    pair.post(Side::A, SendRequest::new(9, SendOperation::Send, pair.data(Side::A, 0, 3000)));
    pair.run_for(RnrTimer::new(12).delay() * 5);
    assert!(pair.counters(Side::B).send_rnr_err >= 3);
    pair.post_receive(Side::B, 1, 0, 3000);
    assert_eq!(pair.completion(Side::B).byte_len, 3000);
    assert_eq!(pair.completion(Side::A).status, Status::Success);
    pair.assert_quiet();
}

/// What the peer answers to a request that breaks a rule, and what its own side reports.
fn refused(
    recovery: RecoveryMode,
    request: impl Fn(&Pair) -> SendRequest,
    prepare: impl Fn(&mut Pair),
    status: Status,
    event: Event,
) {
    let mut pair = Pair::new(recovery, 6, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let before = pattern(1, Pair::BYTES);
    pair.fill(Side::B, 0, &before);
    prepare(&mut pair);
    pair.post(Side::A, request(&pair));
    assert_eq!(pair.completion(Side::A).status, status);
    assert_eq!((pair.state(Side::A), pair.state(Side::B)), (State::Error, State::Error));
    assert_eq!(pair.event(Side::B), Some(event.on(pair.qpn(Side::B))));
    assert_eq!(pair.bytes(Side::B, 0, Pair::BYTES), before, "memory is untouched");
}

trait On {
    fn on(self, qpn: uroce::wire::Qpn) -> Event;
}

impl On for Event {
    fn on(self, qpn: uroce::wire::Qpn) -> Event {
        match self {
            Event::AccessError(_) => Event::AccessError(qpn),
            Event::RequestError(_) => Event::RequestError(qpn),
            Event::QueuePairFatal(_) => Event::QueuePairFatal(qpn),
            Event::CompletionQueueOverflow(_) => Event::CompletionQueueOverflow(qpn),
            other => other,
        }
    }
}

const ACCESS: Event = Event::AccessError(uroce::wire::Qpn::GSI);
const REQUEST: Event = Event::RequestError(uroce::wire::Qpn::GSI);

fn wrong_keys_and_ranges_are_remote_access_errors(recovery: RecoveryMode) {
    let none = |_: &mut Pair| {};
    let write = |pair: &Pair, remote| SendRequest::new(0, SendOperation::Write(remote), pair.data(Side::A, 0, 100));
    let read = |pair: &Pair, remote| SendRequest::new(0, SendOperation::Read(remote), pair.data(Side::A, 0, 100));
    for wrong in [
        |mut r: Remote| {
            r.key = Key(r.key.0 ^ 0x5500);
            r
        },
        |mut r: Remote| {
            r.key = Key(r.key.0 ^ 1);
            r
        },
        |mut r: Remote| {
            r.address -= 1;
            r
        },
        |mut r: Remote| {
            r.address += (Pair::BYTES - 99) as u64;
            r
        },
        |mut r: Remote| {
            r.address = u64::MAX - 50;
            r
        },
        |mut r: Remote| {
            r.address = 0;
            r
        },
    ] as [fn(Remote) -> Remote; 6]
    {
        refused(recovery, |p| write(p, wrong(p.remote(Side::B, 0))), none, Status::RemoteAccess, ACCESS);
        refused(recovery, |p| read(p, wrong(p.remote(Side::B, 0))), none, Status::RemoteAccess, ACCESS);
    }
}

fn a_deregistered_region_is_a_remote_access_error(recovery: RecoveryMode) {
    let request = |p: &Pair| SendRequest::new(0, SendOperation::Write(p.remote(Side::B, 0)), p.data(Side::A, 0, 100));
    refused(recovery, request, |pair| pair.deregister(Side::B), Status::RemoteAccess, ACCESS);
}

fn operations_that_the_queue_pair_does_not_allow_are_invalid_requests(recovery: RecoveryMode) {
    let request = |p: &Pair| SendRequest::new(0, SendOperation::Write(p.remote(Side::B, 0)), p.data(Side::A, 0, 100));
    let prepare = |pair: &mut Pair| pair.set_access(Side::B, Access::REMOTE_READ);
    refused(recovery, request, prepare, Status::RemoteInvalidRequest, REQUEST);
}

fn misaligned_atomics_are_invalid_requests(recovery: RecoveryMode) {
    let request = |p: &Pair| {
        let operation = SendOperation::FetchAdd { remote: p.remote(Side::B, 4), add: 1 };
        SendRequest::new(0, operation, p.data(Side::A, 0, 8))
    };
    refused(recovery, request, |_| {}, Status::RemoteInvalidRequest, REQUEST);
}

fn a_send_longer_than_the_receive_request_is_an_invalid_request_and_a_local_length_error(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 7, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    pair.post_receive(Side::B, 5, 0, 1500);
    pair.post_receive(Side::B, 6, 0, 1500);
    pair.post(Side::A, SendRequest::new(1, SendOperation::Send, pair.data(Side::A, 0, 2000)));
    assert_eq!(pair.completion(Side::A).status, Status::RemoteInvalidRequest);
    let ends: Vec<_> = (0..2).map(|_| pair.completion(Side::B)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(5, Status::LocalLength), (6, Status::WrFlush)]);
}

fn local_ranges_that_are_not_registered_are_local_protection_errors_after_all_before_them(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 8, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let remote = pair.remote(Side::B, 0);
    pair.post(Side::A, SendRequest::new(1, SendOperation::Write(remote), pair.data(Side::A, 0, 5000)));
    let bad = Data::sge(0x1000, 10, Key(0x1234_5678));
    pair.post(Side::A, SendRequest::new(2, SendOperation::Write(remote), bad));
    pair.post(Side::A, SendRequest::new(3, SendOperation::Write(remote), pair.data(Side::A, 0, 10)));
    let ends: Vec<_> = (0..3).map(|_| pair.completion(Side::A)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WrFlush)]);
}

fn send_with_invalidate_closes_the_peers_window(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 9, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let window = pair.allocate_window(Side::B);
    let new_key = Key(window.0 & !0xff | (window.0.wrapping_add(1) & 0xff));
    let Remote { address, key } = pair.remote(Side::B, 100);
    let binding = WindowBinding { window, new_key, region: key, address, len: 50, access: Access::REMOTE_WRITE };
    pair.post(Side::B, SendRequest::new(1, SendOperation::BindWindow(binding), Data::EMPTY));
    let bound = pair.completion(Side::B);
    assert_eq!((bound.status, bound.kind), (Status::Success, CompletionKind::BindWindow));

    let through = Remote { address, key: new_key };
    pair.fill(Side::A, 0, b"hello");
    pair.post(Side::A, SendRequest::new(2, SendOperation::Write(through), pair.data(Side::A, 0, 5)));
    assert_eq!(pair.completion(Side::A).status, Status::Success);
    assert_eq!(pair.bytes(Side::B, 100, 5), b"hello");

    pair.post_receive(Side::B, 3, 0, 10);
    pair.post(Side::A, SendRequest::new(4, SendOperation::SendWithInvalidate(new_key), pair.data(Side::A, 0, 5)));
    assert_eq!(pair.completion(Side::B).invalidated, Some(new_key));
    assert_eq!(pair.completion(Side::A).status, Status::Success);

    pair.post(Side::A, SendRequest::new(5, SendOperation::Write(through), pair.data(Side::A, 0, 5)));
    assert_eq!(pair.completion(Side::A).status, Status::RemoteAccess);
}

fn a_fenced_write_waits_for_the_read_before_it(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 10, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let len = 50 * 1024;
    let data = pattern(3, len);
    pair.fill(Side::B, 0, &data);
    pair.post(Side::A, SendRequest::new(1, SendOperation::Read(pair.remote(Side::B, 0)), pair.data(Side::A, 0, len)));
    // Sends back what was just read: without the fence the bytes would be old ones.
    let mut write =
        SendRequest::new(2, SendOperation::Write(pair.remote(Side::B, Pair::HALF)), pair.data(Side::A, 0, len));
    write.fence = true;
    pair.post(Side::A, write);
    assert_eq!(pair.completion(Side::A).wr_id, 1);
    assert_eq!(pair.completion(Side::A).wr_id, 2);
    assert_eq!(pair.bytes(Side::B, Pair::HALF, len), data);
}

fn unsignaled_requests_complete_in_silence(recovery: RecoveryMode) {
    let mut pair = Pair::new(recovery, 11, PathMtu::Mtu1024, Psn::new(0), Chances::NONE);
    let remote = pair.remote(Side::B, 0);
    for wr_id in 0..10 {
        let mut request = SendRequest::new(wr_id, SendOperation::Write(remote), pair.data(Side::A, 0, 10));
        request.signaled = wr_id == 9;
        pair.post(Side::A, request);
    }
    assert_eq!(pair.completion(Side::A).wr_id, 9);
    pair.run_for(Duration::from_millis(1));
    assert!(pair.try_completion(Side::A).is_none());
}

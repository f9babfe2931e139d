//! UC, UD, shared receive queues, the drained and error states of send queues, and many queue pairs at once: what differs
//! from plain RC.

use std::net::IpAddr;
use std::sync::Arc;

use uroce::frame::FrameBytes;
use uroce::memory::Access;
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Capabilities, CompletionRing, Data, Endpoint, Event, NetworkHeader, PostError, QpAttributes, QueuePairInit,
    QueuePairMachine, ReceiveRequest, RecoveryMode, SendOperation, SendRequest, Service, SrqError, State, Status,
};
use uroce::wire::{Addresses, Extension, Key, Opcode, PathMtu, Psn, QKey, Qpn};
use uroce_laboratory::in_both_modes;
use uroce_laboratory::world::crafted::{Crafted, FIRST_PSN};
use uroce_laboratory::world::{Chances, Pair, PairPlan, Side, pattern, with_ethernet};

in_both_modes! {
    a_shared_receive_queue_serves_rc_and_tells_when_it_is_short
    a_reset_leaves_no_completion_of_what_was_before
    a_reset_forgets_what_was_posted
    a_drained_send_queue_finishes_what_it_began_tells_so_and_goes_on_when_told
    the_last_receive_request_is_told_of_once_an_error
}

const MTU: PathMtu = PathMtu::Mtu1024;

fn pair(service: Service, recovery: RecoveryMode) -> Pair {
    Pair::of(PairPlan { path_mtu: MTU, first_psn: Psn::new(0).minus(5), ..PairPlan::new(service, recovery) })
}

/// The same with shared receive queues.
fn sharing(service: Service, recovery: RecoveryMode) -> Pair {
    Pair::of(PairPlan { path_mtu: MTU, is_shared: true, ..PairPlan::new(service, recovery) })
}

#[test]
fn uc_carries_sends_and_writes_and_completes_without_answers() {
    let mut pair = pair(Service::Uc, RecoveryMode::default());
    for len in [0, 1, MTU.bytes(), MTU.bytes() + 1, 300 * MTU.bytes()] {
        let data = pattern(len as u64, len);
        pair.fill(Side::A, 0, &data);
        for immediate in [None, Some(7)] {
            pair.fill(Side::B, Pair::HALF, &vec![0; len]);
            pair.post_receive(Side::B, 1, Pair::HALF, len as u32);
            let operation = immediate.map_or(SendOperation::Send, SendOperation::SendWithImmediate);
            pair.post(Side::A, SendRequest::new(2, operation, pair.data(Side::A, 0, len)));
            assert_eq!(pair.completion(Side::A).status, Status::Success);
            let received = pair.completion(Side::B);
            assert_eq!((received.byte_len as usize, received.immediate), (len, immediate));
            assert_eq!(pair.bytes(Side::B, Pair::HALF, len), data);

            pair.fill(Side::B, Pair::HALF, &vec![0; len]);
            let remote = pair.remote(Side::B, Pair::HALF);
            let operation = match immediate {
                None => SendOperation::Write(remote),
                Some(data) => SendOperation::WriteWithImmediate(remote, data),
            };
            if immediate.is_some() {
                pair.post_receive(Side::B, 3, 0, 0);
            }
            pair.post(Side::A, SendRequest::new(4, operation, pair.data(Side::A, 0, len)));
            assert_eq!(pair.completion(Side::A).status, Status::Success);
            pair.run_for(Duration::from_millis(1));
            assert_eq!(pair.bytes(Side::B, Pair::HALF, len), data);
            if immediate.is_some() {
                assert_eq!(pair.completion(Side::B).immediate, immediate);
            }
        }
    }
    assert_eq!(pair.counters(Side::B).sent_pkts, 0, "UC answers nothing");
    pair.assert_quiet();
}

#[test]
fn a_uc_message_arrives_whole_or_not_at_all_and_its_receive_request_is_kept() {
    for seed in 0..20 {
        let faults = Chances { loss: 0.03, reorder: 0.02, duplicate: 0.02, corrupt: 0.02 };
        let plan = PairPlan::new(Service::Uc, RecoveryMode::default());
        let mut pair = Pair::of(PairPlan { seed, path_mtu: MTU, first_psn: Psn::new(0).minus(50), faults, ..plan });
        const MESSAGES: usize = 40;
        let len = 10 * MTU.bytes();
        for i in 0..MESSAGES {
            pair.post_receive(Side::B, i as u64, Pair::HALF + i * len, len as u32);
        }
        for i in 0..MESSAGES {
            pair.fill(Side::A, i * len, &vec![i as u8 + 1; len]);
            let operation = SendOperation::SendWithImmediate(i as u32);
            pair.post(Side::A, SendRequest::new(i as u64, operation, pair.data(Side::A, i * len, len)));
        }
        pair.run_for(Duration::from_secs(1));
        let mut last = None;
        let mut received = 0;
        while let Some(done) = pair.try_completion(Side::B) {
            assert_eq!(
                (done.status, done.wr_id),
                (Status::Success, received),
                "requests are used in order, none twice"
            );
            let sent = done.immediate.unwrap() as usize;
            assert!(last < Some(sent), "seed {seed}: messages come in order");
            let bytes = pair.bytes(Side::B, Pair::HALF + received as usize * len, len);
            assert!(bytes.iter().all(|byte| *byte == sent as u8 + 1), "seed {seed}: a message is whole");
            (last, received) = (Some(sent), received + 1);
        }
        assert!((1..MESSAGES as u64).contains(&received), "seed {seed}: {received} came, some must be lost");
    }
}

#[test]
fn services_refuse_operations_that_they_do_not_know() {
    let mut uc = pair(Service::Uc, RecoveryMode::default());
    let remote = uc.remote(Side::B, 0);
    let (now, qpn, data) = (uc.now, uc.qpn(Side::A), uc.data(Side::A, 0, 8));
    let read = SendRequest::new(1, SendOperation::Read(remote), data.clone());
    assert_eq!(uc.endpoint(Side::A).post_send(now, qpn, read), Err(PostError::Operation(Service::Uc)));

    let mut ud = pair(Service::Ud, RecoveryMode::default());
    let qpn = ud.qpn(Side::A);
    let mut post = |operation, data, destination| {
        let mut request = SendRequest::new(1, operation, data);
        request.destination = destination;
        ud.endpoint(Side::A).post_send(now, qpn, request)
    };
    assert_eq!(post(SendOperation::Write(remote), data.clone(), None), Err(PostError::Operation(Service::Ud)));
    assert_eq!(post(SendOperation::Send, data, None), Err(PostError::NoDestination));
    let long = Data::sge(0, MTU.bytes() as u32 + 1, Key(1));
    let too_long = PostError::TooLong { len: MTU.bytes() as u64 + 1, limit: MTU.bytes() as u64 };
    assert_eq!(post(SendOperation::Send, long, None), Err(too_long));
}

#[test]
fn datagrams_bring_forty_bytes_of_routing_header_and_name_their_sender() {
    let mut pair = pair(Service::Ud, RecoveryMode::default());
    for (len, immediate) in [(0, None), (1, Some(9)), (MTU.bytes(), None)] {
        let data = pattern(3, len);
        pair.fill(Side::A, 0, &data);
        pair.post_receive(Side::B, 1, 0, 40 + len as u32);
        let operation = immediate.map_or(SendOperation::Send, SendOperation::SendWithImmediate);
        let mut request = SendRequest::new(2, operation, pair.data(Side::A, 0, len));
        request.destination = Some(pair.destination(Side::A, Pair::Q_KEY));
        pair.post(Side::A, request);
        assert_eq!(pair.completion(Side::A).status, Status::Success);
        let received = pair.completion(Side::B);
        assert_eq!((received.byte_len as usize, received.immediate), (40 + len, immediate));
        assert_eq!(received.network_header, Some(NetworkHeader::Ipv4));
        assert_eq!(received.source_qpn, pair.qpn(Side::A));
        let header = pair.bytes(Side::B, 0, 40);
        assert_eq!(header[..20], [0; 20]);
        assert_eq!((header[20], &header[32..40]), (0x45, &[10, 0, 0, 1, 10, 0, 0, 2][..]));
        assert_eq!(pair.bytes(Side::B, 40, len), data);
    }
}

#[test]
fn datagrams_with_a_wrong_key_or_no_room_are_dropped_and_counted_and_the_request_stays() {
    let mut pair = pair(Service::Ud, RecoveryMode::default());
    let send = |pair: &mut Pair, q_key, len| {
        let mut request = SendRequest::new(2, SendOperation::Send, pair.data(Side::A, 0, len));
        request.destination = Some(pair.destination(Side::A, q_key));
        pair.post(Side::A, request);
        assert_eq!(pair.completion(Side::A).status, Status::Success);
        pair.run_for(Duration::from_millis(1));
    };
    send(&mut pair, Pair::Q_KEY, 10);
    assert_eq!(pair.counters(Side::B).dropped_message, 1, "no receive request");
    pair.post_receive(Side::B, 1, 0, 49);
    send(&mut pair, QKey(5), 10);
    assert_eq!(pair.counters(Side::B).bad_q_key, 1);
    send(&mut pair, Pair::Q_KEY, 10);
    assert_eq!(pair.counters(Side::B).dropped_message, 2, "ten bytes do not fit behind the header");
    assert!(pair.try_completion(Side::B).is_none());
    // A privileged key is replaced by the sender's own.
    send(&mut pair, QKey(0x8000_0000), 9);
    let received = pair.completion(Side::B);
    assert_eq!((received.wr_id, received.byte_len), (1, 49));
}

/// Whether a datagram from A to that address comes to a receive request at B; `qpn`: not to B's queue pair, but to that one.
fn arrives(pair: &mut Pair, to: IpAddr, qpn: Option<Qpn>) -> bool {
    pair.post_receive(Side::B, 1, 0, 50);
    let mut destination = pair.destination(Side::A, Pair::Q_KEY);
    destination.path.flow.addresses = Addresses::new([10, 0, 0, 1].into(), to).unwrap();
    destination.qpn = qpn.unwrap_or(destination.qpn);
    let mut request = SendRequest::new(2, SendOperation::Send, pair.data(Side::A, 0, 10));
    request.destination = Some(destination);
    pair.post(Side::A, request);
    assert_eq!(pair.completion(Side::A).status, Status::Success);
    pair.run_for(Duration::from_millis(1));
    pair.try_completion(Side::B).is_some()
}

/// Every host has one, so the address alone says whose a datagram to QP1 is.
#[test]
fn datagrams_to_qp1_of_other_addresses_are_dropped() {
    let mut pair = pair(Service::Gsi, RecoveryMode::default());
    assert_eq!([Side::A, Side::B].map(|side| pair.qpn(side)), [Qpn::GSI; 2]);
    let [own, other]: [IpAddr; 2] = [[10, 0, 0, 2].into(), [10, 0, 0, 7].into()];
    pair.endpoint(Side::B).set_local_addresses([own]);
    let strange: [IpAddr; 3] = [other, [255; 4].into(), [224, 0, 0, 9].into()];
    for to in strange {
        assert!(!arrives(&mut pair, to, None), "{to}");
    }
    assert_eq!(pair.counters(Side::B).wrong_address, strange.len() as u64);
    assert!(arrives(&mut pair, own, None));
}

/// What arrives need not be for us: a port may be promiscuous, a network may flood, and groups have many members.
#[test]
fn datagrams_to_other_addresses_are_dropped_and_those_to_a_group_are_for_who_is_attached() {
    let mut pair = pair(Service::Ud, RecoveryMode::default());
    let [own, other]: [IpAddr; 2] = [[10, 0, 0, 2].into(), [10, 0, 0, 7].into()];
    let group: IpAddr = [224, 0, 0, 9].into();
    let (to_one, to_all) = (None, Some(Qpn::MULTICAST));
    assert!(arrives(&mut pair, other, to_one), "nobody has said which addresses are ours");
    pair.endpoint(Side::B).set_local_addresses([own, "fd00::2".parse().unwrap()]);
    assert!(arrives(&mut pair, own, to_one));
    let strange = [other, [255; 4].into(), [10, 0, 0, 255].into(), group];
    for to in strange {
        assert!(!arrives(&mut pair, to, to_one), "{to}");
    }
    assert_eq!(pair.counters(Side::B).wrong_address, strange.len() as u64);
    assert!(!arrives(&mut pair, group, to_all), "nobody is attached");
    let qpn = pair.destination(Side::A, Pair::Q_KEY).qpn;
    assert_eq!(pair.endpoint(Side::B).attach(qpn, group), Ok(true));
    assert!(arrives(&mut pair, group, to_all) && arrives(&mut pair, own, to_one) && !arrives(&mut pair, other, to_one));
    assert!(!arrives(&mut pair, group, to_one), "a group's datagrams name no single queue pair");
    assert!(!arrives(&mut pair, own, to_all) && !arrives(&mut pair, [224, 0, 0, 8].into(), to_all));
    assert_eq!(pair.endpoint(Side::B).detach(qpn, group), Ok(true));
    assert!(!arrives(&mut pair, group, to_all));
}

#[test]
fn a_datagram_that_is_too_long_leaves_its_shared_receive_request_to_others() {
    let mut pair = sharing(Service::Ud, RecoveryMode::Auto);
    let send = |pair: &mut Pair, len| {
        let mut request = SendRequest::new(2, SendOperation::Send, pair.data(Side::A, 0, len));
        request.destination = Some(pair.destination(Side::A, Pair::Q_KEY));
        pair.post(Side::A, request);
        assert_eq!(pair.completion(Side::A).status, Status::Success);
        pair.run_for(Duration::from_millis(1));
    };
    let srq = pair.srq(Side::B);
    pair.endpoint(Side::B).arm_srq(srq, 1).unwrap();
    pair.post_receive(Side::B, 1, 0, 49);
    send(&mut pair, 10);
    assert_eq!(pair.counters(Side::B).dropped_message, 1);
    assert_eq!(pair.event(Side::B), None, "nothing was taken");
    // The queue pair that dropped it is destroyed; the request is still in the queue.
    let qpn = pair.qpn(Side::B);
    pair.endpoint(Side::B).destroy_queue_pair(qpn).unwrap();
    let endpoint = pair.endpoint(Side::B);
    endpoint.resize_srq(srq, 1).unwrap();
    let another = ReceiveRequest { wr_id: 2, sges: Default::default() };
    assert_eq!(endpoint.post_srq_receive(srq, another), Err(SrqError::Full(1)), "the other one is there");
}

#[test]
fn a_broken_uc_message_gives_its_shared_receive_request_back() {
    let mut pair = sharing(Service::Uc, RecoveryMode::Auto);
    let srq = pair.srq(Side::B);
    pair.post_receive(Side::B, 1, 0, 3 * MTU.bytes() as u32);
    pair.post(Side::A, SendRequest::new(1, SendOperation::Send, pair.data(Side::A, 0, 3 * MTU.bytes())));
    let now = pair.now;
    for is_lost in [false, true, false] {
        let mut packet = vec![0; 8192];
        let len = pair.endpoint(Side::A).poll_transmit(now, &mut packet).unwrap().len;
        let frame = with_ethernet(&packet[..len]);
        if !is_lost {
            pair.endpoint(Side::B).handle_frame(now, FrameBytes::from(&frame[..]));
        }
    }
    assert_eq!(pair.counters(Side::B).out_of_seq_request, 1);
    let qpn = pair.qpn(Side::B);
    let endpoint = pair.endpoint(Side::B);
    endpoint.destroy_queue_pair(qpn).unwrap();
    endpoint.resize_srq(srq, 1).unwrap();
    let another = ReceiveRequest { wr_id: 2, sges: Default::default() };
    assert_eq!(endpoint.post_srq_receive(srq, another), Err(SrqError::Full(1)), "the other one is there");
}

fn a_shared_receive_queue_serves_rc_and_tells_when_it_is_short(recovery: RecoveryMode) {
    let faults = Chances { loss: 0.02, ..Chances::NONE };
    let plan = PairPlan::new(Service::Rc, recovery);
    let mut pair = Pair::of(PairPlan { is_shared: true, seed: 3, path_mtu: MTU, faults, ..plan });
    let srq = pair.srq(Side::B);
    for wr_id in 0..20 {
        pair.post_receive(Side::B, wr_id, wr_id as usize * 3000, 3000);
    }
    pair.endpoint(Side::B).arm_srq(srq, 5).unwrap();
    for i in 0..20 {
        pair.fill(Side::A, 0, &vec![i as u8 + 1; 2500]);
        pair.post(Side::A, SendRequest::new(i, SendOperation::Send, pair.data(Side::A, 0, 2500)));
        assert_eq!(pair.completion(Side::A).status, Status::Success);
        let received = pair.completion(Side::B);
        assert_eq!((received.wr_id, received.byte_len), (i, 2500));
        assert_eq!(pair.bytes(Side::B, i as usize * 3000, 2500), vec![i as u8 + 1; 2500]);
        let expected = (i == 15).then_some(Event::SrqLimit(srq));
        assert_eq!(pair.event(Side::B), expected, "four are left after the sixteenth");
    }
    let (qpn, now) = (pair.qpn(Side::B), pair.now);
    let request = uroce::transport::ReceiveRequest { wr_id: 1, sges: Default::default() };
    assert_eq!(pair.endpoint(Side::B).post_receive(now, qpn, request), Err(PostError::HasSrq));
}

#[test]
fn a_path_mtu_that_the_link_cannot_carry_is_refused() {
    let mut pair = pair(Service::Uc, RecoveryMode::default());
    let (now, qpn) = (pair.now, pair.qpn(Side::A));
    let endpoint = pair.endpoint(Side::A);
    let path = endpoint.queue_pair(qpn).unwrap().info().attributes.path;
    for state in [State::Reset, State::Init] {
        let (port, p_key_index) = (Some(1), Some(0));
        let access = Some(Access::empty());
        let attributes = match state {
            State::Init => QpAttributes { port, p_key_index, access, ..to(state) },
            _ => to(state),
        };
        endpoint.modify(now, qpn, &attributes).unwrap();
    }
    let mut receive = |path_mtu| {
        let (destination, receive_psn) = (Some(qpn), Some(Psn::new(0)));
        let attributes =
            QpAttributes { path, path_mtu: Some(path_mtu), destination, receive_psn, ..to(State::ReadyToReceive) };
        endpoint.modify(now, qpn, &attributes).map_err(|error| error.to_string())
    };
    let refusal = "the attribute PATH_MTU must be at most the port's active MTU".to_owned();
    assert_eq!(receive(PathMtu::Mtu2048), Err(refusal));
    assert_eq!(receive(MTU), Ok(()));
}

fn to(state: State) -> QpAttributes {
    QpAttributes { state: Some(state), ..Default::default() }
}

fn a_reset_leaves_no_completion_of_what_was_before(recovery: RecoveryMode) {
    let mut pair = pair(Service::Rc, recovery);
    (0..3).for_each(|wr_id| pair.post_receive(Side::B, wr_id, 0, 10));
    pair.modify(Side::B, &to(State::Error));
    assert_eq!(pair.completion(Side::B).status, Status::WrFlush);
    pair.modify(Side::B, &to(State::Reset));
    assert!(pair.try_completion(Side::B).is_none(), "two more were flushed, and nobody polled them in time");
}

fn a_reset_forgets_what_was_posted(recovery: RecoveryMode) {
    let mut us = Crafted::new(recovery);
    us.post_receive(1, 0, 16);
    us.post_send(2, SendOperation::Send, 100, 16);
    us.modify(State::Reset);
    us.reconnect();
    assert_eq!(us.answers(), [], "nothing is sent");
    us.post_receive(3, 200, 16);
    us.send(us.bth(Opcode::RC_SEND_ONLY, FIRST_PSN), Extension::None, &[7; 16]);
    assert_eq!(us.completion().map(|done| (done.wr_id, done.status)), Some((3, Status::Success)));
    us.assert_untouched_but(200..216, "what was posted before is forgotten");
    us.post_send(4, SendOperation::Send, 100, 16);
    assert_eq!(us.answers().iter().map(|sent| sent.psn).collect::<Vec<_>>(), [FIRST_PSN], "one request");
    us.modify(State::Error);
    let flushed: Vec<_> = std::iter::from_fn(|| us.completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(flushed, [(4, Status::WrFlush)]);
}

fn a_drained_send_queue_finishes_what_it_began_tells_so_and_goes_on_when_told(recovery: RecoveryMode) {
    let mut pair = pair(Service::Rc, recovery);
    let len = 300 * MTU.bytes();
    let data = pattern(8, len);
    pair.fill(Side::A, 0, &data);
    let remote = pair.remote(Side::B, 0);
    for wr_id in 0..2 {
        pair.post(Side::A, SendRequest::new(wr_id, SendOperation::Write(remote), pair.data(Side::A, 0, len)));
    }
    // The first message is on its way: 128 packets are in flight.
    pair.run_for(Duration::from_micros(5));
    let drain = QpAttributes { notify_drained: Some(true), ..to(State::SendQueueDrained) };
    pair.modify(Side::A, &drain);
    assert_eq!(pair.event(Side::A), None, "not drained yet");
    assert_eq!(pair.completion(Side::A).wr_id, 0);
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.event(Side::A), Some(Event::SendQueueDrained(pair.qpn(Side::A))));
    assert!(pair.try_completion(Side::A).is_none(), "the second message waits");
    pair.modify(Side::A, &to(State::ReadyToSend));
    assert_eq!(pair.completion(Side::A).wr_id, 1);
    assert_eq!(pair.event(Side::A), None, "told once");
    assert_eq!(pair.bytes(Side::B, 0, len), data);
    pair.assert_quiet();
}

#[test]
fn an_unreliable_send_queue_in_error_still_receives_and_comes_back() {
    let mut pair = pair(Service::Uc, RecoveryMode::default());
    let remote = pair.remote(Side::B, 0);
    let bad = Data::sge(0x1000, 10, Key(0x1234_5678));
    pair.post(Side::A, SendRequest::new(1, SendOperation::Write(remote), bad));
    pair.post(Side::A, SendRequest::new(2, SendOperation::Write(remote), pair.data(Side::A, 0, 10)));
    let ends: Vec<_> = (0..2).map(|_| pair.completion(Side::A)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::LocalProtection), (2, Status::WrFlush)]);
    assert_eq!(pair.state(Side::A), State::SendQueueError);
    pair.post_receive(Side::A, 3, 0, 10);
    pair.post(Side::B, SendRequest::new(4, SendOperation::Send, pair.data(Side::B, 0, 10)));
    assert_eq!(pair.completion(Side::A).wr_id, 3);
    pair.modify(Side::A, &to(State::ReadyToSend));
    pair.post(Side::A, SendRequest::new(5, SendOperation::Write(remote), pair.data(Side::A, 0, 10)));
    assert_eq!(pair.completion(Side::A).status, Status::Success);
}

#[test]
fn a_send_queue_that_left_its_error_begins_nothing_while_it_is_drained() {
    let mut pair = pair(Service::Uc, RecoveryMode::default());
    let remote = pair.remote(Side::B, 0);
    let bad = Data::sge(0x1000, 10, Key(0x1234_5678));
    pair.post(Side::A, SendRequest::new(1, SendOperation::Write(remote), bad));
    assert_eq!(pair.completion(Side::A).status, Status::LocalProtection);
    pair.modify(Side::A, &to(State::ReadyToSend));
    pair.modify(Side::A, &to(State::SendQueueDrained));
    pair.post(Side::A, SendRequest::new(2, SendOperation::Write(remote), pair.data(Side::A, 0, 10)));
    assert_eq!(pair.transmit(Side::A), []);
    pair.modify(Side::A, &to(State::ReadyToSend));
    assert_eq!(pair.completion(Side::A).wr_id, 2);
}

fn the_last_receive_request_is_told_of_once_an_error(recovery: RecoveryMode) {
    let mut pair = sharing(Service::Rc, recovery);
    let (qpn, srq) = (pair.qpn(Side::A), pair.srq(Side::A));
    for _ in 0..3 {
        pair.modify(Side::A, &to(State::Error));
    }
    assert_eq!(pair.event(Side::A), Some(Event::LastWqeReached(qpn, srq)));
    assert_eq!(pair.event(Side::A), None);
}

/// What a queue pair for connections is made of, with queues of so many requests.
fn reliable(endpoint: &mut Endpoint, requests: usize) -> QueuePairInit {
    let cq = Arc::new(CompletionRing::new(16, || {}));
    QueuePairInit {
        service: Service::Rc,
        pd: endpoint.allocate_pd(),
        capabilities: Capabilities { max_send_requests: requests, max_receive_requests: requests },
        send_cq: cq.clone(),
        receive_cq: cq,
        srq: None,
        path_mtu: MTU,
    }
}

#[test]
fn ten_thousand_queue_pairs_fit_and_each_is_small() {
    let mut endpoint = Endpoint::new([5; 32]);
    let init = reliable(&mut endpoint, 16);
    let qpns: Vec<_> = (0..10_000).map(|_| endpoint.create_queue_pair(init.clone()).unwrap()).collect();
    let init = QpAttributes { p_key_index: Some(0), port: Some(1), access: Some(Access::empty()), ..to(State::Init) };
    qpns.iter().for_each(|qpn| endpoint.modify(Instant::ZERO, *qpn, &init).unwrap());
    assert_eq!(endpoint.queue_pairs(), 10_000);
    assert!(size_of::<QueuePairMachine>() <= 4096, "{} bytes a queue pair", size_of::<QueuePairMachine>());
    eprintln!("a queue pair takes {} bytes beside its work queues", size_of::<QueuePairMachine>());
    qpns.iter().for_each(|qpn| endpoint.destroy_queue_pair(*qpn).unwrap());
    assert_eq!(endpoint.queue_pairs(), 0);
}

/// Late packets of a connection that is gone must not find a new one under its number, although only twelve bits of it are
/// drawn.
#[test]
fn a_queue_pairs_number_is_not_given_again_soon() {
    let mut endpoint = Endpoint::new([6; 32]);
    let init = reliable(&mut endpoint, 1);
    let mut numbers = Vec::new();
    for _ in 0..10_000 {
        let qpn = endpoint.create_queue_pair(init.clone()).unwrap();
        endpoint.destroy_queue_pair(qpn).unwrap();
        numbers.push(qpn);
    }
    for (at, qpn) in numbers.iter().enumerate() {
        let before = &numbers[at.saturating_sub(2048)..at];
        assert!(!before.contains(qpn), "{qpn} was given again");
    }
    // All of one slot, so that numbers did come again.
    let slots: std::collections::BTreeSet<u32> = numbers.iter().map(|qpn| qpn.value() >> 12).collect();
    assert_eq!(slots.len(), 1);
}

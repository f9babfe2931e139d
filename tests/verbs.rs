//! The verbs over AF_XDP between two namespaces: events with a descriptor, answers to datagrams, what a queue pair says of
//! itself, and what a child made by fork(2) can do with its parent's device (nothing).
//!
//! Needs root.
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

mod common;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::hosts;
use uroce::Forked;
use uroce::link::device::Device;
use uroce::link::xdp::{XdpLink, XdpOptions};
use uroce::verbs::{
    Access, AddressVector, Capabilities, Completion, CompletionChannel, CompletionQueue, ConnectOptions, Context,
    CreateError, Data, Destination, Event, MemoryRegion, ModifyError, Notify, PathError, PathMtu, Peer, PostError,
    ProtectionDomain, Psn, Published, QKey, QpAttributes, QueuePair, QueuePairOptions, ROUTING_HEADER_BYTES,
    ReceiveRequest, ReplyError, RnrTimer, SendOperation, SendRequest, Service, SrqError, State, Status,
};

const LIMIT: Duration = Duration::from_secs(10);
const Q_KEY: QKey = QKey(0x1234);
const CAPABILITIES: Capabilities = Capabilities { max_send_requests: 16, max_receive_requests: 32 };

/// One host's device, some memory, and a queue pair.
struct Host {
    // Dropped in this order.
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    region: MemoryRegion,
    pd: ProtectionDomain,
    context: Context,
}

impl Host {
    fn open(pair: &hosts::Pair, host: usize, service: Service) -> Host {
        let context = pair.within(host, || {
            let link = XdpLink::open("veth0", &XdpOptions::default()).unwrap();
            let mut context = Context::with_link(Device::find(Some("veth0")).unwrap(), Box::new(link)).unwrap();
            context.publish().unwrap();
            context
        });
        let pd = context.allocate_pd();
        let region = pd.allocate_region(8192, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let channel = CompletionChannel::new().unwrap();
        let cq = context.create_completion_queue_on(64, &channel);
        let options = QueuePairOptions { service, capabilities: CAPABILITIES, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options).unwrap();
        Host { qp, cq, channel, region, pd, context }
    }

    fn modify(&self, state: State, attributes: QpAttributes) {
        self.qp.modify(&QpAttributes { state: Some(state), ..attributes }).unwrap();
    }

    /// How to get to the host with `number` (1 or 2) from our GID `index`.
    fn vector(&self, index: usize, number: u8) -> AddressVector {
        let gid = if index == 1 { format!("::ffff:10.7.0.{number}") } else { format!("fd07::{number}") };
        AddressVector {
            source_gid_index: index,
            destination_gid: gid.parse().unwrap(),
            traffic_class: 0x20,
            hop_limit: 9,
            flow_label: if index == 1 { 0 } else { 0xabcde },
        }
    }

    fn connect(&self, other: &Host, number: u8) {
        let vector = self.vector(1, number);
        let options = ConnectOptions::new()
            .gid_index(1)
            .traffic_class(vector.traffic_class)
            .hop_limit(vector.hop_limit)
            .attributes(QpAttributes {
                access: Some(Access::REMOTE_WRITE),
                path_mtu: Some(PathMtu::Mtu1024),
                send_psn: Some(Psn::new(100)),
                max_dest_rd_atomic: Some(3),
                min_rnr_timer: Some(RnrTimer::new(5)),
                retry_count: Some(6),
                rnr_retry: Some(4),
                max_rd_atomic: Some(2),
                ..Default::default()
            });
        let peer = Peer::new(other.qp.qpn(), Psn::new(100), vector.destination_gid);
        self.qp.connect_with(&peer, &options).unwrap();
    }

    fn ready_for_datagrams(&self) {
        let attributes = QpAttributes { q_key: Some(Q_KEY), send_psn: Some(Psn::new(7)), ..Default::default() };
        self.qp.connect_with(&self.qp.local(), &ConnectOptions::new().attributes(attributes)).unwrap();
    }

    fn post_receive(&self, wr_id: u64, offset: usize, len: usize) {
        self.qp
            .post_receive(ReceiveRequest { wr_id, sges: [self.region.sge(offset, len)].into_iter().collect() })
            .unwrap();
    }

    fn send(&self, wr_id: u64, offset: usize, len: usize) -> SendRequest {
        let data = Data::Sges([self.region.sge(offset, len)].into_iter().collect());
        SendRequest::new(wr_id, SendOperation::Send, data)
    }

    fn completion(&self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll() {
                return completion;
            }
            assert!(start.elapsed() < LIMIT, "no completion");
            std::thread::yield_now();
        }
    }
}

fn two(service: Service) -> (hosts::Pair, Host, Host) {
    let pair = hosts::Pair::new(hosts::PairOptions::default());
    let (a, b) = (Host::open(&pair, 0, service), Host::open(&pair, 1, service));
    (pair, a, b)
}

/// Whether poll(2) finds the descriptor readable within `limit_ms`.
fn readable(context: &Context, limit_ms: i32) -> bool {
    let mut polled = libc::pollfd { fd: context.event_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut polled, 1, limit_ms) == 1 }
}

#[test]
fn the_event_descriptor_is_readable_exactly_while_there_are_events() {
    let (_pair, a, b) = two(Service::Rc);
    a.connect(&b, 2);
    b.connect(&a, 1);
    assert!(!readable(&b.context, 0));
    assert_eq!(b.context.wait_event(Duration::ZERO).unwrap(), None);
    // A WRITE with a wrong key: nobody at B polls, so that it is B's background thread that finds it.
    let mut remote = b.region.remote(0);
    remote.key.0 ^= 0x100;
    let data = Data::Sges([a.region.sge(0, 10)].into_iter().collect());
    a.qp.post_send(SendRequest::new(1, SendOperation::Write(remote), data)).unwrap();
    assert!(readable(&b.context, 10_000), "the descriptor wakes who sleeps");
    assert_eq!(a.completion().status, Status::RemoteAccess);
    assert!(readable(&b.context, 0), "it stays readable until all events are taken");
    assert_eq!(b.context.wait_event(LIMIT).unwrap(), Some(Event::AccessError(b.qp.qpn())));
    assert_eq!(b.context.poll_event(), None, "one event for one refusal");
    assert!(!readable(&b.context, 0), "nothing is left");
    assert_eq!(a.context.poll_event(), None, "the completion has said all");
}

#[test]
fn a_datagram_is_answered_by_its_routing_header() {
    let (_pair, a, b) = two(Service::Ud);
    a.ready_for_datagrams();
    b.ready_for_datagrams();
    for index in [1, 2] {
        let vector = a.vector(index, 2);
        b.post_receive(1, 0, 200);
        a.post_receive(2, 0, 200);
        a.region.memory().write(1000, b"question");
        let path = a.context.address_handle(&vector, a.qp.qpn()).unwrap();
        let to_b = Destination { path, qpn: b.qp.qpn(), q_key: Q_KEY };
        a.qp.post_send(SendRequest { destination: Some(to_b), ..a.send(3, 1000, 8) }).unwrap();
        let received = b.completion();
        assert_eq!((received.wr_id, received.source_qpn), (1, a.qp.qpn()));

        let header: [u8; ROUTING_HEADER_BYTES] = b.region.memory().to_vec(0, 40).try_into().unwrap();
        let back = b.context.reply_vector(&received, &header).unwrap();
        assert_eq!(back, AddressVector { destination_gid: b.vector(index, 1).destination_gid, ..vector });
        let path = b.context.reply_handle(&received, &header, b.qp.qpn()).unwrap();
        b.region.memory().write(1000, b"answer");
        let to_a = Destination { path, qpn: received.source_qpn, q_key: Q_KEY };
        b.qp.post_send(SendRequest { destination: Some(to_a), ..b.send(4, 1000, 6) }).unwrap();
        assert_eq!((a.completion().wr_id, b.completion().wr_id), (3, 4));
        let received = a.completion();
        assert_eq!((received.wr_id, received.byte_len), (2, 46));
        assert_eq!(a.region.memory().to_vec(40, 6), b"answer");

        let sent = Completion { network_header: None, ..received };
        assert_eq!(b.context.reply_vector(&sent, &header), Err(ReplyError::NoRoutingHeader));
        assert_eq!(b.context.reply_vector(&received, &[0; 40]), Err(ReplyError::Malformed));
        // A's own header names A as the receiver: none of B's addresses.
        let foreign: [u8; ROUTING_HEADER_BYTES] = a.region.memory().to_vec(0, 40).try_into().unwrap();
        assert!(matches!(b.context.reply_vector(&received, &foreign), Err(ReplyError::NotOurs(_))));
    }
}

#[test]
fn a_queue_pair_says_all_that_it_was_set_to() {
    let (_pair, a, b) = two(Service::Rc);
    let fresh = a.qp.query().unwrap();
    assert_eq!((fresh.service, fresh.capabilities, fresh.srq), (Service::Rc, CAPABILITIES, None));
    let reset = |state| QpAttributes { state: Some(state), current_state: Some(state), ..Default::default() };
    assert_eq!(fresh.attributes, reset(State::Reset));
    a.connect(&b, 2);
    b.connect(&a, 1);
    let wanted = QpAttributes {
        state: Some(State::ReadyToSend),
        current_state: Some(State::ReadyToSend),
        notify_drained: None,
        access: Some(Access::REMOTE_WRITE),
        p_key_index: Some(0),
        port: Some(1),
        q_key: None,
        path: Some(a.context.path(&a.vector(1, 2), a.qp.qpn(), b.qp.qpn()).unwrap()),
        path_mtu: Some(PathMtu::Mtu1024),
        destination: Some(b.qp.qpn()),
        receive_psn: Some(Psn::new(100)),
        send_psn: Some(Psn::new(100)),
        max_dest_rd_atomic: Some(3),
        max_rd_atomic: Some(2),
        min_rnr_timer: Some(RnrTimer::new(5)),
        timeout: Some(14),
        retry_count: Some(6),
        rnr_retry: Some(4),
    };
    assert_eq!(a.qp.query().unwrap().attributes, wanted);
    // PSNs move on: three packets from A.
    b.post_receive(1, 0, 4096);
    a.qp.post_send(a.send(2, 0, 3000)).unwrap();
    assert_eq!((a.completion().status, b.completion().byte_len), (Status::Success, 3000));
    assert_eq!(a.qp.query().unwrap().attributes, QpAttributes { send_psn: Some(Psn::new(103)), ..wanted });
    assert_eq!(b.qp.query().unwrap().attributes.receive_psn, Some(Psn::new(103)));
    a.modify(State::SendQueueDrained, QpAttributes { notify_drained: Some(true), ..Default::default() });
    let drained = a.qp.query().unwrap();
    assert_eq!((drained.attributes.notify_drained, drained.is_draining), (Some(true), false));
    a.modify(State::Reset, QpAttributes::default());
    assert_eq!(a.qp.query().unwrap().attributes, reset(State::Reset));
}

/// What a child of the process finds at a device that its parent opened: an error that says so, or nothing. Returns the
/// first that is otherwise.
fn use_in_child(a: &Host, b: &Host) -> Result<(), &'static str> {
    let check = |right: bool, what| if right { Ok(()) } else { Err(what) };
    check(a.cq.poll().is_none(), "a completion of the parent's")?;
    a.cq.request_notification(Notify::Next);
    check(a.channel.wait(Duration::from_secs(5)).is_err(), "a notification of the parent's")?;
    check(a.context.wait_event(Duration::from_secs(5)).is_err(), "waits for the parent's events")?;
    check(a.context.poll_event().is_none(), "an event of the parent's")?;
    check(a.qp.post_send(a.send(9, 0, 10)) == Err(PostError::Forked(Forked)), "post_send")?;
    let receive = ReceiveRequest { wr_id: 9, sges: Default::default() };
    check(a.qp.post_receive(receive) == Err(PostError::Forked(Forked)), "post_receive")?;
    let reset = QpAttributes { state: Some(State::Error), ..Default::default() };
    check(a.qp.modify(&reset) == Err(ModifyError::Forked(Forked)), "modify")?;
    check(a.qp.query() == Err(ModifyError::Forked(Forked)), "query")?;
    let forked = PathError::Hop(uroce::link::HopError::Forked(Forked));
    check(a.context.path(&a.vector(1, 2), a.qp.qpn(), b.qp.qpn()) == Err(forked), "path")?;
    let pd = a.context.allocate_pd();
    let cq = a.context.create_completion_queue(4);
    let options =
        QueuePairOptions { service: Service::Rc, capabilities: CAPABILITIES, send: &cq, receive: &cq, srq: None };
    check(matches!(pd.create_queue_pair(&options), Err(CreateError::Forked(Forked))), "create_queue_pair")?;
    check(matches!(pd.create_shared_receive_queue(4), Err(SrqError::Forked(Forked))), "create_shared_receive_queue")?;
    check(pd.allocate_region(100, Access::empty()).is_ok(), "memory of its own")?;
    check(a.context.counters().iter().all(|(_, count)| *count == 0), "the parent's counters")?;
    // What the child writes into a region stays its own.
    a.region.memory().write(0, b"child");
    b.region.memory().write(0, b"child");
    Ok(())
}

/// Children use everything and drop everything, while a message is in flight, completions wait in a queue and the engine's
/// thread is at work; the parent's conversation goes on as if they had not been.
#[test]
fn a_child_cannot_use_its_parents_device_nor_disturb_it() {
    let (pair, a, b) = two(Service::Rc);
    a.connect(&b, 2);
    b.connect(&a, 1);
    for round in 0..20u64 {
        let message = format!("message {round}");
        a.region.memory().write(0, message.as_bytes());
        b.post_receive(round, 0, 100);
        // The channels have a notification to tell, or will have one when the message arrives.
        b.cq.request_notification(Notify::Next);
        a.qp.post_send(a.send(round, 0, message.len())).unwrap();
        // SAFETY: the child uses what it inherited, which is what is to be shown, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let used = use_in_child(&a, &b);
                if let Err(what) = used {
                    eprintln!("in the child: {what}");
                }
                // SAFETY: copies for dropping; the originals are never touched again in this process.
                unsafe {
                    drop(std::ptr::read(&a));
                    drop(std::ptr::read(&b));
                }
                used.is_ok()
            }));
            // SAFETY: ends the child; nothing else of the test's shall run in it.
            unsafe { libc::_exit(if matches!(done, Ok(true)) { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child of round {round}");
        assert_eq!((a.completion().wr_id, a.qp.state()), (round, State::ReadyToSend));
        assert_eq!(b.channel.wait(LIMIT).unwrap(), 1, "the notification is the parent's");
        assert_eq!((b.completion().wr_id, b.qp.state()), (round, State::ReadyToSend));
        assert_eq!(b.region.memory().to_vec(0, message.len()), message.as_bytes());
        assert_eq!((a.context.poll_event(), b.context.poll_event()), (None, None));
    }
    assert!(a.pd.allocate_region(1, Access::empty()).is_ok());
    let ask = || Published::list().unwrap().into_iter().map(|one| one.ask().unwrap()).collect::<Vec<_>>();
    let answers = pair.within(0, ask);
    assert!(answers.len() == 1 && answers[0].contains("\"rdma_sends\":20"), "it still answers: {answers:?}");
}

/// By the numbers of its queue pairs: what each device answers, until it is dropped.
#[test]
fn a_device_that_is_published_tells_other_processes_how_its_queue_pairs_stand() {
    let (pair, a, b) = two(Service::Rc);
    a.connect(&b, 2);
    let list = || Published::list().unwrap();
    let ask = move || list().into_iter().map(|one| one.ask().unwrap()).collect::<Vec<_>>();
    let peer = format!(r#""peer":{{"address":"10.7.0.2","qpn":{}}}"#, b.qp.qpn().value());
    for (host, qp, state, peer) in [(0, &a.qp, "RTS", peer.as_str()), (1, &b.qp, "RESET", r#""peer":null"#)] {
        let answers = pair.within(host, ask);
        let begin = format!(r#""queue_pairs":[{{"qpn":{},"service":"RC","state":"{state}""#, qp.qpn().value());
        let process = format!(r#""process":{},"#, std::process::id());
        let words = [begin.as_str(), peer, r#""device":"veth0""#, process.as_str()];
        assert!(answers.len() == 1 && words.iter().all(|words| answers[0].contains(words)), "{words:?}: {answers:?}");
    }
    // A handle's drop waits for the thread, and takes the name along.
    drop(a);
    assert_eq!((pair.within(0, list), pair.within(1, list).len()), (vec![], 1));
}

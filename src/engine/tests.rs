use std::convert::Infallible;
use std::net::Ipv4Addr;

use super::*;
use crate::frame::{FrameBytes, Hop};
use crate::link::memory::{Gives, MemoryLink};
use crate::memory::{Access, HostMemory};
use crate::transport::{
    Capabilities, CompletionRing, Data, Path, QpAttributes, QueuePairInit, Remote, SendOperation, SendRequest, Service,
};
use crate::wire::{Addresses, Bth, Extension, Flow, Headers, Opcode, PathMtu, Psn, Reth};

const FIRST_PSN: Psn = Psn::new(9);

/// No queue pair has it.
const NOBODY: Qpn = Qpn::new(99);

/// A core on a link with a connected queue pair, and the addresses from its peer.
fn connected(link: &MemoryLink, memory: &Arc<HostMemory>) -> (Core, Qpn, Reth, Flow) {
    let mut endpoint = Endpoint::new([1; 32]);
    let pd = endpoint.allocate_pd();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let key = endpoint.memory().register(pd, memory.clone(), access);
    let cq = Arc::new(CompletionRing::new(16, || {}));
    let init = QueuePairInit {
        service: Service::Rc,
        pd,
        capabilities: Capabilities { max_send_requests: 64, max_receive_requests: 16 },
        send_cq: cq.clone(),
        receive_cq: cq,
        srq: None,
        path_mtu: PathMtu::Mtu1024,
    };
    let qpn = endpoint.create_queue_pair(init).unwrap();
    let addresses = Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let attributes = QpAttributes {
        access: Some(access),
        path: Some(Path { flow, hop: Hop(0) }),
        path_mtu: Some(PathMtu::Mtu1024),
        destination: Some(Qpn::new(77)),
        receive_psn: Some(FIRST_PSN),
        send_psn: Some(FIRST_PSN),
        ..Default::default()
    };
    endpoint.connect(Instant::ZERO, qpn, &attributes).unwrap();
    let reth = Reth::new(memory.address(), key, memory.len() as u32);
    let core = Core::new(endpoint, Box::new(link.clone()), Clock::new());
    (core, qpn, reth, Flow { addresses: addresses.reversed(), ..flow })
}

fn take(core: &mut Core, flow: &Flow, bth: Bth, reth: Reth, payload: &[u8]) {
    let mut frame = vec![0; 2048];
    frame[12] = 8;
    let fill = |out: &mut [u8]| {
        out.copy_from_slice(payload);
        Ok::<(), Infallible>(())
    };
    let headers = Headers { bth, extension: Extension::Reth(reth) };
    let len = headers.write(&mut frame[14..], flow, 1, payload.len(), fill).unwrap();
    core.endpoint.handle_frame(Instant::ZERO, FrameBytes::from(&frame[..14 + len]));
}

/// The peer READs 4 MiB, 4096 packets, and WRITEs; then the queue pair goes away.
#[test]
fn what_is_owed_when_a_queue_pair_goes_away_is_an_acknowledge_and_not_megabytes() {
    let memory = Arc::new(HostMemory::new(4 << 20).unwrap());
    for all in [false, true] {
        let link = MemoryLink::new(2048, Gives::default());
        let (mut core, qpn, reth, flow) = connected(&link, &memory);
        let bth = |opcode, psn| Bth::new(opcode, qpn, psn).with_ack_request(true);
        take(&mut core, &flow, bth(Opcode::RC_READ_REQUEST, FIRST_PSN), reth, &[]);
        let write = Reth::new(reth.address(), reth.key(), 4);
        take(&mut core, &flow, bth(Opcode::RC_WRITE_ONLY, FIRST_PSN.plus(4096)), write, &[1; 4]);
        assert_eq!(core.endpoint.queue_pair(qpn).unwrap().psns().1, FIRST_PSN.plus(4097));
        match all {
            true => core.settle_all(Instant::ZERO),
            false => core.settle(Instant::ZERO, qpn),
        }
        assert_eq!(link.given().sent.len(), 1);
        assert!(core.endpoint.may_transmit(), "the answers are for whoever goes on");
    }
}

#[test]
fn a_frame_is_not_handled_at_a_time_before_it_arrived() {
    let late = Duration::from_millis(5);
    let arriving = [Frame::from_vec(vec![0; 64])].into();
    let link = MemoryLink::new(0, Gives { interruption: late, arriving, ..Gives::default() });
    let mut core = Core::new(Endpoint::new([1; 32]), Box::new(link), Clock::new());
    let before = core.clock.now();
    let (received, now) = core.receive();
    assert_eq!(received, 1);
    assert!(now - before >= late);
}

#[test]
fn a_post_takes_along_what_nobody_has_looked_for_lately() {
    let mut core = Core::new(Endpoint::new([1; 32]), Box::new(MemoryLink::new(0, Gives::default())), Clock::new());
    let looked_at = core.received_at;
    assert!(!core.step_if_nobody_does(NOBODY, looked_at + (LEFT_LYING - Duration::from_nanos(1))));
    assert_eq!(core.received_at, looked_at);
    while core.clock.now() < looked_at + LEFT_LYING {
        std::hint::spin_loop();
    }
    assert!(core.step_if_nobody_does(NOBODY, core.clock.now()));
    assert!(core.received_at > looked_at);
}

/// Each is in a buffer of the link at once, and the link calls the kernel for sixteen; and when the program polls in vain for ten
/// microseconds.
#[test]
fn what_is_posted_singly_waits_for_more_while_many_are_under_way() {
    let link = MemoryLink::new(2048, Gives::default());
    let memory = Arc::new(HostMemory::new(4096).unwrap());
    let (mut core, qpn, reth, _) = connected(&link, &memory);
    let remote = Remote { address: reth.address(), key: reth.key() };
    // By a clock that is ahead, so that no time passes meanwhile.
    let now = core.clock.now() + Duration::from_millis(100);
    let post = |core: &mut Core| {
        let data = Data::Inline([1; 8].into_iter().collect());
        core.endpoint.post_send(now, qpn, SendRequest::new(0, SendOperation::Write(remote), data)).unwrap();
        core.doorbell.over(now);
        core.step_if_nobody_does(qpn, now);
        [link.given().sent.len(), link.given().flushes]
    };
    core.received_at = now;
    let counted: Vec<[usize; 2]> = (0..50).map(|_| post(&mut core)).collect();
    assert_eq!(
        [counted[15], counted[16], counted[30], counted[31], counted[49]],
        [[16, 16], [17, 16], [31, 16], [32, 17], [50, 18]]
    );
    assert!(core.doorbell.holds());
    // Whoever drives the engine in the program's place does not wait.
    core.step();
    assert!(!core.doorbell.holds());
    core.received_at = now;
    assert_eq!(post(&mut core), [51, 19]);
    assert!(core.doorbell.holds());
    while core.doorbell.holds() {
        assert_eq!(core.rest_after(false, false), None, "it does not sleep meanwhile");
        core.step_for_program();
        assert!(core.clock.now() < now + Duration::from_millis(10_000));
    }
    assert!(core.clock.now() >= now + Duration::from_micros(10));
    assert_eq!(link.given().flushes, 20);
}

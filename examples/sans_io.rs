//! The transport alone: two endpoints without socket, thread or clock. This program is the network between them, and the time; it
//! loses a packet, and sees it sent again.
//!
//! `cargo run --example sans_io`: needs no privilege, and ends by itself.

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;

use uroce::frame::{FrameBytes, Hop};
use uroce::memory::{Access, HostMemory};
use uroce::time::{Duration, Instant};
use uroce::transport::{
    Capabilities, CompletionRing, Endpoint, Path, QpAttributes, QueuePairInit, Remote, SendOperation, SendRequest,
    Service, Sge, Status,
};
use uroce::wire::{Addresses, Flow, Key, PathMtu, Psn, Qpn};

const BYTES: usize = 10_000;

/// The packet that is lost, of ten.
const LOST: usize = 4;

/// A device: an endpoint with memory and a queue pair.
struct Host {
    address: Ipv4Addr,
    endpoint: Endpoint,
    memory: Arc<HostMemory>,
    key: Key,
    cq: Arc<CompletionRing>,
    qpn: Qpn,
}

impl Host {
    fn new(number: u8) -> Result<Host, Box<dyn Error>> {
        // The seed decides all numbers that strangers must not guess; here nobody tries.
        let mut endpoint = Endpoint::new([number; 32]);
        let pd = endpoint.allocate_pd();
        let memory = Arc::new(HostMemory::new(BYTES)?);
        let key = endpoint.memory().register(pd, memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let cq = Arc::new(CompletionRing::new(16, || {}));
        let qpn = endpoint.create_queue_pair(QueuePairInit {
            service: Service::Rc,
            pd,
            capabilities: Capabilities { max_send_requests: 16, max_receive_requests: 16 },
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            srq: None,
            path_mtu: PathMtu::Mtu1024,
        })?;
        Ok(Host { address: Ipv4Addr::new(10, 0, 0, number), endpoint, memory, key, cq, qpn })
    }

    fn connect(&mut self, now: Instant, peer: (Ipv4Addr, Qpn)) -> Result<(), Box<dyn Error>> {
        let addresses = Addresses::V4 { source: self.address, destination: peer.0 };
        let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        let attributes = QpAttributes {
            path: Some(Path { flow, hop: Hop(0) }),
            path_mtu: Some(PathMtu::Mtu1024),
            destination: Some(peer.1),
            send_psn: Some(Psn::new(7)),
            receive_psn: Some(Psn::new(7)),
            ..Default::default()
        };
        Ok(self.endpoint.connect(now, self.qpn, &attributes)?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut now = Instant::ZERO;
    let (mut a, mut b) = (Host::new(1)?, Host::new(2)?);
    a.connect(now, (b.address, b.qpn))?;
    b.connect(now, (a.address, a.qpn))?;

    let message: Vec<u8> = (0..BYTES).map(|at| (at * 7) as u8).collect();
    a.memory.write(0, &message);
    let sge = Sge { address: a.memory.address(), length: BYTES as u32, lkey: a.key };
    let remote = Remote { address: b.memory.address(), key: b.key };
    a.endpoint.post_send(now, a.qpn, SendRequest::new(1, SendOperation::Write(remote), sge.into()))?;

    // An Ethernet header is the link's affair, and the endpoint's to take off: here it says IPv4, and nothing else.
    let mut frame = vec![0; 2048];
    frame[12] = 0x08;
    let (mut sent, mut done) = (0, None);
    while done.is_none() {
        let mut is_quiet = true;
        for is_answer in [false, true] {
            let (from, to) = if is_answer { (&mut b, &mut a) } else { (&mut a, &mut b) };
            while let Some(packet) = from.endpoint.poll_transmit(now, &mut frame[14..]) {
                is_quiet = false;
                sent += usize::from(!is_answer);
                if is_answer || sent != LOST {
                    to.endpoint.handle_frame(now, FrameBytes::from(&frame[..14 + packet.len]));
                }
            }
        }
        done = a.cq.poll();
        if is_quiet && done.is_none() {
            // Nothing moves by itself: the time passes up to the next timer.
            let next = [&mut a, &mut b].into_iter().filter_map(|host| host.endpoint.poll_timeout()).min();
            now = next.ok_or("no timer is armed, and nothing is done")?.max(now + Duration::from_nanos(1));
            [&mut a, &mut b].into_iter().for_each(|host| host.endpoint.handle_timeout(now));
        }
    }

    assert_eq!(done.map(|done| done.status), Some(Status::Success));
    assert_eq!(b.memory.to_vec(0, BYTES), message);
    println!("{BYTES} bytes written in {sent} packets, one of them lost, by {:?}", now - Instant::ZERO);
    Ok(())
}

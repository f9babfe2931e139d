use std::convert::Infallible;
use std::sync::Arc;

use super::*;
use crate::frame::FrameBytes;
use crate::memory::HostMemory;
use crate::transport::counters::Counters;
use crate::transport::early::Arrival;
use crate::transport::reorder::{Early, Reorder};
use crate::transport::testing::World;
use crate::transport::{Sge, SgeList};
use crate::wire::{Body, Bth, Extension, Headers, Opcode, Qpn, RequestTrailer, RoceFrame};

const LKEY: Key = Key(1);

/// A receive request of 6 GiB.
fn large() -> ReceiveRequest {
    let sge = Sge { address: 0, length: 3 << 30, lkey: LKEY };
    ReceiveRequest { wr_id: 7, sges: SgeList::from_iter([sge, sge]) }
}

/// Serves a packet of a SEND of which `received` bytes are in memory. Its own are, too.
fn serve(received: u32, opcode: Opcode, len: u32) -> (Result<(), Refusal>, Inbound, World) {
    let mut world = World::new(PathMtu::Mtu4096);
    let mut inbound = Inbound { message: Some(Incoming::Send { request: large(), received }), ..Inbound::default() };
    let headers = Headers { bth: Bth::new(opcode, Qpn::new(2), Psn::new(9)), extension: Extension::None };
    let mut buffer = [0; Packet::HEADER_BYTES_MAX];
    let packet = Packet::of_headers(&headers, &mut buffer);
    let served = world.with(|connection, cx| inbound.serve(&packet, Some(len), connection, cx));
    (served, inbound, world)
}

#[test]
fn a_send_ends_at_two_gib_whatever_room_there_is() {
    const LIMIT: u32 = 1 << 31;
    let (served, mut inbound, world) = serve(LIMIT - 4096, Opcode::RC_SEND_LAST, 4096);
    assert!(served.is_ok() && inbound.message.take().is_none());
    assert_eq!(
        world.connection.receive_cq.poll().map(|done| (done.status, done.byte_len)),
        Some((Status::Success, LIMIT))
    );

    for (received, opcode, len) in [
        (LIMIT, Opcode::RC_SEND_LAST, 1),
        (LIMIT, Opcode::RC_SEND_MIDDLE, 4096),
        (LIMIT - 4095, Opcode::RC_SEND_LAST, 4096),
        (u32::MAX - 4095, Opcode::RC_SEND_MIDDLE, 4096),
    ] {
        let (served, ..) = serve(received, opcode, len);
        let refused = matches!(served, Err(Refusal::Nak(NakCode::InvalidRequest, Status::LocalLength)));
        assert!(refused, "{len} bytes after {received}");
    }
}

/// The last packet comes early, for whose bytes there is room two GiB into the message.
#[test]
fn no_packet_of_a_send_is_placed_beyond_two_gib() {
    const MTU: u32 = 4096;
    let mut world = World::new(PathMtu::Mtu4096);
    let memory = Arc::new(HostMemory::new(144 << 20).unwrap());
    let (address, length) = (memory.address(), memory.len() as u32);
    let lkey = world.memory.register(world.connection.pd, memory, Access::LOCAL_WRITE);
    // 2304 MiB.
    let sges: SgeList = [Sge { address, length, lkey }; 16].into_iter().collect();
    for (received, is_placed) in [((1 << 31) - 2 * MTU, true), ((1 << 31) - MTU, false)] {
        let message = Some(Incoming::Send { request: ReceiveRequest { wr_id: 7, sges: sges.clone() }, received });
        let inbound = Inbound { message, taken: 1, ..Inbound::default() };
        let (index, attempt) = (received / MTU + 1, 0);
        let trailer = RequestTrailer { index, attempt, ..Default::default() };
        let bth = Bth::new(Opcode::RC_SEND_LAST, Qpn::new(2), Psn::new(10)).with_extended(true);
        let headers = Headers { bth, extension: Extension::None };
        let flow = world.connection.path.unwrap().flow;
        let mut frame = vec![0; 8192];
        frame[12] = 8;
        let payload = |_: &mut [u8]| Ok::<(), Infallible>(());
        let len = headers.write(
            &mut frame[14..],
            &flow,
            1,
            Body { payload_bytes: MTU as usize, trailer: &trailer.to_bytes(), tag: None },
            payload,
        );
        let roce = RoceFrame::parse(FrameBytes::from(&frame[..14 + len.unwrap()])).unwrap();
        let mut packet = Packet::parse(roce.ib).unwrap();
        let trailer = packet.take_trailer().unwrap();
        let (connection, receive_pd) = (&world.connection, world.connection.pd);
        let (inbound, memory) = (&inbound, &world.memory);
        let arrival = Arrival { packet: &packet, trailer: Some(&trailer), inbound, connection, memory, receive_pd };
        let (mut reorder, mut counters) = (Reorder::default(), Counters::default());
        assert_eq!(reorder.keep(1, &arrival, (512, usize::MAX), false, &mut counters), Early::Kept);
        assert_eq!(counters.placed_early, u64::from(is_placed), "{received} bytes before the missing packet");
    }
}

//! Acknowledges that requests carry (docs/EXTENSIONS.md, kind 7), frame by frame: when, and what a peer makes of them.

use easy_ext::ext;
use uroce::frame::FrameBytes;
use uroce::time::Duration;
use uroce::transport::{RecoveryMode, Remote, SendOperation, State, Status};
use uroce::wire::{CarriedAcknowledge, Extension, Key, Opcode, Packet, RequestTrailer, Reth, RoceFrame, Sack, Tagged};
use uroce_laboratory::world::crafted::{Crafted, MTU, psn, without_tag};

/// What a frame is about: its opcode, the acknowledge that it carries, and the selective acknowledge that it is.
type Seen = (Opcode, Option<CarriedAcknowledge>, Option<Sack>);

fn seen(frame: &[u8]) -> Seen {
    let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(frame)).unwrap().ib).unwrap();
    let opcode = packet.bth().opcode();
    let trailer = without_tag(&packet).take_trailer().filter(|_| !opcode.is_response());
    (opcode, trailer.and_then(|trailer| trailer.acknowledge), packet.sack())
}

fn carried(number: u32, delay_us: u16) -> CarriedAcknowledge {
    let psn = psn(number);
    CarriedAcknowledge { psn, trigger: psn, attempt: 0, delay_us, marked: 0, is_trigger_marked: false }
}

#[ext]
impl Crafted {
    /// An endpoint whose peer takes such acknowledges, and knows it.
    fn acquainted() -> Crafted {
        let mut us = Crafted::new(RecoveryMode::Auto);
        us.takes_carried = true;
        us.get_acquainted();
        us.seen();
        us
    }

    fn seen(&mut self) -> Vec<Seen> {
        self.frames().iter().map(|frame| seen(frame)).collect()
    }

    /// The peer writes 16 bytes and asks for an acknowledge, and nothing is sent yet.
    fn write_from_peer(&mut self, number: u32, acknowledge: Option<CarriedAcknowledge>) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, 16));
        let bth = self.bth(Opcode::RC_WRITE_ONLY, psn(number)).with_ack_request(true).with_offer(true);
        let trailer = RequestTrailer { acknowledge, ..Default::default() }.to_bytes();
        let frame = self.extended_frame(bth.with_extended(true), reth, &[7; 16], &trailer);
        self.hand_over(&frame);
    }

    fn post_write(&mut self, wr_id: u64, length: u32) {
        let remote = Remote { address: 0x1000, key: self.key };
        self.post_send(wr_id, SendOperation::Write(remote), 0, length);
    }
}

const WRITE: Opcode = Opcode::RC_WRITE_ONLY;

#[test]
fn a_request_takes_the_acknowledge_along_that_is_owed() {
    let mut us = Crafted::acquainted();
    us.write_from_peer(0, None);
    us.now = us.now + Duration::from_micros(9);
    us.post_write(1, 16);
    us.post_write(2, 16);
    assert_eq!(us.seen(), [(WRITE, Some(carried(0, 9)), None), (WRITE, None, None)], "once");
    us.write_from_peer(1, None);
    let [(Opcode::RC_ACKNOWLEDGE, None, Some(_))] = us.seen()[..] else { panic!("nothing is there to carry it") };
}

#[test]
fn only_a_message_of_one_packet_with_room_for_it_carries_one() {
    let most = MTU.bytes() as u32 - CarriedAcknowledge::BYTES as u32;
    for (length, carries) in [(0, true), (most, true), (most + 1, false), (MTU.bytes() as u32 + 1, false)] {
        let mut us = Crafted::acquainted();
        us.write_from_peer(0, None);
        us.post_write(1, length);
        let seen = us.seen();
        assert_eq!(seen[0].1, carries.then(|| carried(0, 0)), "{length} bytes");
        let acknowledges = seen.iter().filter(|(opcode, ..)| *opcode == Opcode::RC_ACKNOWLEDGE).count();
        assert_eq!(acknowledges, usize::from(!carries), "{length} bytes");
    }
}

/// Their bits need room, and what is retransmitted by them is urgent.
#[test]
fn what_arrived_early_is_reported_by_an_acknowledge_of_its_own() {
    let mut us = Crafted::acquainted();
    us.write_from_peer(0, None);
    us.write_from_peer(2, None);
    us.post_write(1, 16);
    let [(WRITE, None, None), (Opcode::RC_ACKNOWLEDGE, None, Some(sack))] = &us.seen()[..] else {
        panic!("the request goes first, the report is whole")
    };
    assert_eq!(sack.blocks.iter().map(|(_, bits)| bits.count_ones()).sum::<u32>(), 1);
}

#[test]
fn a_peer_that_does_not_take_them_gets_none() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    us.seen();
    us.write_from_peer(0, None);
    us.post_write(1, 16);
    let [(WRITE, None, None), (Opcode::RC_ACKNOWLEDGE, None, Some(_))] = us.seen()[..] else { panic!("two packets") };
}

/// It has brought our nonce back, but did not get its own yet: it would not believe what our trailers say.
#[test]
fn a_peer_that_does_not_know_us_gets_none() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.takes_carried = true;
    us.hello_from_peer(Tagged::None);
    us.seen();
    let (hello, _) = us.hellos.pop().unwrap();
    us.tag = hello.nonce;
    us.hello_from_peer(Tagged::None);
    us.seen();
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 16));
    let bth = us.bth(WRITE, psn(0)).with_ack_request(true).with_offer(true);
    let frame = us.frame(bth, reth, &[7; 16]);
    us.hand_over(&frame);
    us.post_write(1, 16);
    let [(WRITE, None, None), (Opcode::RC_ACKNOWLEDGE, None, Some(_))] = us.seen()[..] else { panic!("two packets") };
    us.hello_from_peer(Tagged::All);
    us.write_from_peer(1, None);
    us.post_write(2, 16);
    assert_eq!(us.seen(), [(WRITE, Some(carried(1, 0)), None)]);
}

#[test]
fn an_acknowledge_that_a_request_carries_completes_what_it_acknowledges() {
    let mut us = Crafted::acquainted();
    for wr_id in [1, 2, 3] {
        us.post_write(wr_id, 16);
    }
    us.seen();
    us.write_from_peer(0, Some(carried(1, 0)));
    let completed: Vec<_> = std::iter::from_fn(|| us.completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(completed, [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(us.memory.to_vec(0, 16), [7; 16], "and the request is executed");
    // What was never sent cannot be acknowledged; the request is as good as any other.
    let before = us.counters().stray_response;
    us.write_from_peer(1, Some(carried(3, 0)));
    assert_eq!((us.completion(), us.counters().stray_response), (None, before + 1));
    assert_eq!(us.seen().len(), 1, "an acknowledge of both");
    // A stranger who does not know the tag.
    us.tag ^= 1;
    us.write_from_peer(2, Some(carried(2, 0)));
    assert_eq!((us.completion(), us.counters().wrong_tag), (None, 1));
}

/// All before it is complete now, so a request that could not be sent fails, and the queue pair with it.
#[test]
fn a_request_whose_acknowledge_ends_the_queue_pair_is_not_executed() {
    let mut us = Crafted::acquainted();
    us.post_write(1, 16);
    us.seen();
    let key = us.key;
    us.key = Key(!key.0);
    us.post_write(2, 16);
    us.key = key;
    us.seen();
    us.write_from_peer(0, Some(carried(0, 0)));
    let completed: Vec<_> = std::iter::from_fn(|| us.completion()).map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(completed, [(1, Status::Success), (2, Status::LocalProtection)]);
    assert_eq!((us.state(), us.counters().wrong_state), (State::Error, 1));
    us.assert_untouched("the queue pair is in error");
}

#[test]
fn a_retransmission_carries_none() {
    let mut us = Crafted::acquainted();
    us.write_from_peer(0, None);
    us.post_write(1, 16);
    assert!(us.seen()[0].1.is_some());
    us.now = us.endpoint.poll_timeout().expect("the request can be lost");
    us.endpoint.handle_timeout(us.now);
    us.write_from_peer(1, None);
    let [(WRITE, None, None), (Opcode::RC_ACKNOWLEDGE, None, Some(_))] = us.seen()[..] else { panic!("two packets") };
}

//! Telemetry of switches (docs/EXTENSIONS.md, kind 8), frame by frame: who is asked for it, what is returned, and what it can do.

use easy_ext::ext;
use uroce::congestion::{CongestionControl, Rate};
use uroce::frame::FrameBytes;
use uroce::memory::Access;
use uroce::time::Duration;
use uroce::transport::{CompletionRing, RecoverySettings, Remote, SendOperation};
use uroce::wire::{
    AcknowledgeTrailer, Aeth, Extension, LinkRecord, Msn, Opcode, Packet, RequestTrailer, Reth, RoceFrame, Sack,
    Syndrome, Telemetry,
};
use uroce_laboratory::world::crafted::{Crafted, MTU, psn, without_tag};

const WRITE: Opcode = Opcode::RC_WRITE_ONLY;
const LINE: u64 = 25_000_000_000;

/// What a frame is about.
#[derive(Debug, PartialEq)]
enum Seen {
    /// A request: whether it has room for telemetry, whether it asks for an acknowledge, and whether it carries one.
    Request { has_room: bool, asks: bool, carries: bool },
    /// An acknowledge, and the telemetry that it returns.
    Acknowledge(Option<Telemetry>),
}

fn seen(frame: &[u8]) -> Seen {
    let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(frame)).unwrap().ib).unwrap();
    let mut packet = without_tag(&packet);
    if packet.bth().opcode() == Opcode::RC_ACKNOWLEDGE {
        return match packet.acknowledge_trailer() {
            Some(AcknowledgeTrailer::Measured(_, telemetry)) => Seen::Acknowledge(Some(telemetry)),
            _ => Seen::Acknowledge(None),
        };
    }
    let trailer = packet.take_trailer().expect("requests have a trailer");
    let asks = packet.bth().ack_request();
    let has_room = packet.telemetry().is_some_and(|telemetry| telemetry == Telemetry::default());
    assert_eq!(has_room, trailer.has_telemetry);
    Seen::Request { has_room, asks, carries: trailer.acknowledge.is_some() }
}

/// An acknowledge of the peer for the request `number`, from the AETH on.
fn acknowledge(number: u32) -> Sack {
    let (trigger, blocks) = (psn(number), Default::default());
    Sack { trigger, attempt: 0, delay_us: 0, marked: 0, is_trigger_marked: false, blocks }
}

fn telemetry(number: u32) -> Telemetry {
    let link = LinkRecord { rate_bps: LINE, queue_bytes: 256 * number, time_ns: 1000 * number, sent_bytes: 7 };
    Telemetry { path: 1, links: [link].into_iter().collect() }
}

#[ext]
impl Crafted {
    /// An endpoint with a controller, on a link of that MTU, that knows a peer which takes telemetry, or does not.
    fn measured(congestion: CongestionControl, link_mtu: usize, takes_telemetry: bool) -> Crafted {
        let line_rate = Some(Rate::from_bits(LINE));
        let settings = RecoverySettings { congestion, link_mtu, line_rate, ..RecoverySettings::default() };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut us = Crafted::controlled(access, settings, CompletionRing::new(64, || {}));
        (us.takes_telemetry, us.takes_carried) = (takes_telemetry, true);
        us.get_acquainted();
        us.seen();
        us
    }

    fn seen(&mut self) -> Vec<Seen> {
        self.frames().iter().map(|frame| seen(frame)).collect()
    }

    /// The peer writes 16 bytes and asks for an acknowledge, with telemetry or without room for it.
    fn write_from_peer(&mut self, number: u32, telemetry: Option<&[u8]>) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, 16));
        let bth = self.bth(WRITE, psn(number)).with_ack_request(true).with_offer(true).with_extended(true);
        let trailer = [&RequestTrailer::default().to_bytes(), telemetry.unwrap_or_default()].concat();
        let frame = self.extended_frame(bth, reth, &[7; 16], &trailer);
        self.hand_over(&frame);
    }

    fn post_write(&mut self, length: u32) {
        let remote = Remote { address: 0x1000, key: self.key };
        self.post_send(1, SendOperation::Write(remote), 0, length);
    }

    /// The peer acknowledges the request `number`, and returns telemetry.
    fn acknowledge_from_peer(&mut self, number: u32, telemetry: &Telemetry) {
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(number + 1)));
        let bth = self.bth(Opcode::RC_ACKNOWLEDGE, psn(number)).with_offer(true).with_extended(true);
        let trailer = [&acknowledge(number).to_bytes()[..], &telemetry.to_bytes()].concat();
        let frame = self.extended_frame(bth, aeth, &[], &trailer);
        self.hand_over(&frame);
    }

    /// The rate that the controller decided on, in bits a second.
    fn rate(&self) -> u64 {
        let queue_pair = self.endpoint.queue_pair(self.qpn).unwrap();
        queue_pair.flow_status().expect("a controller").rate.map_or(0, |rate| 8 * rate.bytes())
    }
}

const ROOM: Seen = Seen::Request { has_room: true, asks: true, carries: false };

/// Each packet with room asks, as the paper's receivers acknowledge each.
#[test]
fn each_packet_of_hpcc_has_room_and_no_packet_of_others() {
    let mut us = Crafted::measured(CongestionControl::Hpcc, 1500, true);
    us.post_write(3 * MTU.bytes() as u32);
    assert_eq!(us.seen(), [ROOM, ROOM, ROOM]);
    for congestion in CongestionControl::ALL.into_iter().filter(|other| *other != CongestionControl::Hpcc) {
        let mut us = Crafted::measured(congestion, 1500, true);
        us.post_write(16);
        assert_eq!(us.seen(), [Seen::Request { has_room: false, asks: true, carries: false }], "{congestion}");
    }
}

#[test]
fn a_peer_that_does_not_take_it_is_not_asked() {
    let mut us = Crafted::measured(CongestionControl::Hpcc, 1500, false);
    us.post_write(16);
    assert_eq!(us.seen(), [Seen::Request { has_room: false, asks: true, carries: false }]);
}

/// 96 bytes are around the payload of an extended packet, and telemetry has 64.
#[test]
fn a_link_without_room_has_no_telemetry() {
    for (beyond, has_room) in [(0, true), (1, false)] {
        let mut us = Crafted::measured(CongestionControl::Hpcc, MTU.bytes() + 160 - beyond, true);
        us.post_write(16);
        assert_eq!(us.seen(), [Seen::Request { has_room, asks: true, carries: false }]);
    }
}

#[test]
fn only_of_the_trigger_is_telemetry_returned() {
    let mut us = Crafted::measured(CongestionControl::Fixed, 1500, true);
    us.write_from_peer(0, Some(&telemetry(5).to_bytes()));
    assert_eq!(us.seen(), [Seen::Acknowledge(Some(telemetry(5)))]);
    us.write_from_peer(1, Some(&telemetry(6).to_bytes()));
    us.write_from_peer(2, Some(&Telemetry::default().to_bytes()));
    assert_eq!(us.seen(), [Seen::Acknowledge(Some(Telemetry::default()))], "no switch wrote anything");
    us.write_from_peer(3, None);
    assert_eq!(us.seen(), [Seen::Acknowledge(None)]);
    assert_eq!(us.memory.to_vec(0, 16), [7; 16]);
}

#[test]
fn a_request_does_not_carry_the_acknowledge_that_returns_it() {
    let mut us = Crafted::measured(CongestionControl::Fixed, 1500, true);
    us.write_from_peer(0, None);
    us.post_write(16);
    assert_eq!(us.seen(), [Seen::Request { has_room: false, asks: true, carries: true }]);
    us.write_from_peer(1, Some(&telemetry(5).to_bytes()));
    us.post_write(16);
    let request = Seen::Request { has_room: false, asks: true, carries: false };
    assert_eq!(us.seen(), [request, Seen::Acknowledge(Some(telemetry(5)))]);
}

#[test]
fn a_request_with_telemetry_that_cannot_be_is_dropped() {
    let mut us = Crafted::measured(CongestionControl::Fixed, 1500, true);
    let good = telemetry(5).to_bytes();
    let mut too_many = good;
    too_many[62] = 6;
    for bad in [&too_many[..], &good[..60], &[good, good].concat()] {
        us.write_from_peer(0, Some(bad));
    }
    assert_eq!((us.seen(), us.counters().bad_trailer), (vec![], 3));
}

/// A link that is twice as full as it can be slows the sender down, and telemetry that makes no sense changes nothing or keeps
/// within bounds: a 2,000th of the line's rate is the least.
#[test]
fn the_sender_follows_what_is_returned() {
    let mut us = Crafted::measured(CongestionControl::Hpcc, 1500, true);
    let mut exchange = |number, telemetry: &Telemetry| {
        us.post_write(16);
        us.now = us.now + Duration::from_millis(1);
        us.seen();
        us.now = us.now + Duration::from_micros(10);
        us.acknowledge_from_peer(number, telemetry);
        us.rate()
    };
    let link = |us: u32, sent_bytes, queue_bytes| {
        let link = LinkRecord { rate_bps: LINE, queue_bytes, time_ns: us.wrapping_mul(1000), sent_bytes };
        Telemetry { path: 1, links: [link].into_iter().collect() }
    };
    assert_eq!(exchange(0, &Telemetry::default()), LINE);
    assert_eq!(exchange(1, &link(0, 0, 64_000)), LINE, "nothing to compare with");
    // It carries 31,250 bytes in T, 10 µs, and has sent 187,500 in 60: U = 1 + 64,000 / 31,250 = 3.048.
    let slowed = exchange(2, &link(60, 187_500, 64_000));
    assert!((7_800_000_000..7_810_000_000).contains(&slowed), "{slowed}");
    for number in 3..200 {
        let odd = 0x9e37_79b9_u32.wrapping_mul(number);
        let rate = exchange(number, &link(odd, odd.rotate_left(9), odd.rotate_left(20)));
        assert!((LINE / 2_001..=LINE).contains(&rate), "{rate}");
    }
}

//! Several paths to a peer (docs/EXTENSIONS.md), frame by frame: how they are found out and used, and what strangers, and a
//! peer that lies, can do about them. And two cells of `uroce sim paths` and `path-failure`, in full.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use arrayvec::ArrayVec;
use easy_ext::ext;
use uroce::congestion::CongestionControl;
use uroce::frame::{FrameBytes, Hop};
use uroce::path::{PathCondition, PathPolicy};
use uroce::transport::{RecoveryMode, RecoverySettings, Remote, SendOperation, State};
use uroce::wire::{
    AcknowledgeTrailer, AddressList, Addresses, Aeth, Bth, Extension, Flow, Msn, Opcode, Packet, PathProbe,
    RequestTrailer, Reth, RoceFrame, Syndrome,
};
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::path_failure::{DarkDirection, FailureCell};
use uroce_laboratory::sim::paths::PathsCell;
use uroce_laboratory::world::crafted::{ALL, Crafted, FIRST_PSN, PEER, US, without_tag};
use uroce_laboratory::world::{Many, flow};

/// What a frame of ours says.
#[derive(Clone, Debug)]
struct Sent {
    flow: Flow,
    opcode: Opcode,
    trailer: Option<AcknowledgeTrailer>,
}

impl Sent {
    fn probe(&self) -> Option<PathProbe> {
        match self.trailer {
            Some(AcknowledgeTrailer::Probe(probe)) => Some(probe),
            _ => None,
        }
    }

    fn list(&self) -> Option<AddressList> {
        match &self.trailer {
            Some(AcknowledgeTrailer::Addresses(list)) => Some(list.clone()),
            _ => None,
        }
    }
}

/// The second rail's addresses.
const OUR_OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const PEERS_OTHER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

const PORT: u16 = 0xc000;

fn with_paths(recovery: RecoveryMode, paths: u16) -> Crafted {
    let settings = RecoverySettings { recovery, ..RecoverySettings::default() };
    Crafted::with(ALL, settings.with_paths(paths, PathPolicy::RoundRobin))
}

#[ext]
impl Crafted {
    fn sent(&mut self) -> Vec<Sent> {
        let one = |frame: Vec<u8>| {
            let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap();
            assert!(roce.icrc_ok());
            let packet = Packet::parse(roce.ib).unwrap();
            let opcode = packet.bth().opcode();
            Sent { flow: roce.flow(), opcode, trailer: without_tag(&packet).acknowledge_trailer() }
        };
        self.frames().into_iter().map(one).collect()
    }

    fn probes(&mut self) -> Vec<(u16, PathProbe)> {
        self.sent().iter().filter_map(|sent| Some((sent.flow.source_port, sent.probe()?))).collect()
    }

    /// A packet of the peer's, between any addresses and from any port.
    fn from(&self, addresses: (Ipv4Addr, Ipv4Addr), port: u16, bth: Bth, payload: &[u8], trailer: &[u8]) -> Vec<u8> {
        let flow = Flow { source_port: port, ..flow(addresses.0, addresses.1) };
        let extension = match bth.opcode() {
            Opcode::RC_ACKNOWLEDGE => Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(0))),
            _ => Extension::Reth(Reth::new(self.at(0), self.key, payload.len() as u32)),
        };
        self.frame_along(&flow, bth, extension, payload, &self.with_tag(bth, trailer))
    }

    fn acknowledge_bth(&self) -> Bth {
        self.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN.minus(1)).with_offer(true).with_extended(true)
    }

    /// The peer sends a trailer in an acknowledge of nothing.
    fn take_trailer(&mut self, addresses: (Ipv4Addr, Ipv4Addr), port: u16, trailer: &[u8]) {
        let frame = self.from(addresses, port, self.acknowledge_bth(), &[], trailer);
        self.hand_over(&frame);
    }

    fn answer(&mut self, port: u16, probe: PathProbe) {
        self.take_trailer((PEER, US), port, &PathProbe { is_answer: true, ..probe }.to_bytes());
    }

    fn write_once(&mut self, wr_id: u64) {
        let remote = Remote { address: 0x1000, key: self.key };
        self.post_send(wr_id, SendOperation::Write(remote), 0, 100);
    }

    fn paths(&self) -> (u16, u16) {
        self.endpoint.paths(self.qpn).unwrap()
    }

    /// Lets time pass, and returns what is sent.
    fn pass(&mut self, duration: Duration) -> Vec<Sent> {
        let end = self.now + duration;
        let mut all = Vec::new();
        while let Some(at) = self.endpoint.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            all.extend(self.sent());
        }
        self.now = end;
        all
    }

    /// So many paths, all of which have been probed and answered.
    fn proved(paths: u16) -> Crafted {
        let mut us = with_paths(RecoveryMode::Selective, paths);
        us.write_once(0);
        us.sent();
        let mut open: BTreeSet<u8> = (0..=(paths - 1) as u8).collect();
        while !open.is_empty() {
            for sent in us.pass(Duration::from_micros(100)) {
                if let Some(probe) = sent.probe() {
                    us.now = us.now + Duration::from_micros(20);
                    us.answer(sent.flow.source_port, probe);
                    open.remove(&probe.path);
                }
            }
        }
        assert_eq!(us.paths(), (paths, paths));
        us
    }
}

fn addresses(texts: &[Ipv4Addr]) -> ArrayVec<IpAddr, { AddressList::MAX }> {
    texts.iter().map(|address| IpAddr::V4(*address)).collect()
}

#[test]
fn a_path_is_used_when_its_probe_was_answered_and_not_before() {
    let mut us = with_paths(RecoveryMode::Selective, 4);
    (0..4).for_each(|wr_id| us.write_once(wr_id));
    let first = us.sent();
    assert!(first.iter().all(|sent| sent.flow.source_port == PORT), "nothing is known of the other paths");
    let probes: Vec<_> =
        us.pass(Duration::from_micros(500)).iter().filter_map(|s| Some((s.flow.source_port, s.probe()?))).collect();
    let ports: Vec<_> = probes.iter().map(|(port, probe)| (*port, probe.path)).collect();
    assert_eq!(ports, [(PORT, 0), (PORT + 1, 1), (PORT + 2, 2), (PORT + 3, 3)]);
    let tokens: BTreeSet<_> = probes.iter().map(|(_, probe)| probe.token).collect();
    assert_eq!(tokens.len(), 4);
    us.answer(PORT + 2, probes[2].1);
    assert_eq!(us.paths(), (4, 2));
    (4..10).for_each(|wr_id| us.write_once(wr_id));
    let ports: Vec<_> = us.sent().iter().filter(|s| s.probe().is_none()).map(|sent| sent.flow.source_port).collect();
    assert_eq!(ports.iter().filter(|port| **port == PORT).count(), 3, "{ports:x?}");
    assert_eq!(ports.iter().filter(|port| **port == PORT + 2).count(), 3, "{ports:x?}");
}

#[test]
fn the_status_of_a_queue_pair_says_which_paths_are_good_and_how_many_bytes_went_each_way() {
    let mut us = with_paths(RecoveryMode::Selective, 4);
    us.write_once(0);
    // Without the header that the link adds.
    const ETHERNET_BYTES: usize = 14;
    let bytes_of = |frames: &[Vec<u8>]| frames.iter().map(|frame| frame.len() - ETHERNET_BYTES).sum::<usize>();
    let mut sent_bytes = bytes_of(&us.frames());
    let mut probe = None;
    while probe.is_none() {
        us.now = us.endpoint.poll_timeout().unwrap();
        us.endpoint.handle_timeout(us.now);
        let frames = us.frames();
        sent_bytes += bytes_of(&frames);
        let of = |frame: &Vec<u8>| {
            let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap().ib).unwrap();
            match without_tag(&packet).acknowledge_trailer() {
                Some(AcknowledgeTrailer::Probe(probe)) => Some(probe),
                _ => None,
            }
        };
        probe = frames.iter().find_map(|frame| of(frame).filter(|probe| probe.path == 2));
    }
    us.now = us.now + Duration::from_micros(20);
    let answer = PathProbe { is_answer: true, ..probe.unwrap() }.to_bytes();
    let frame = us.from((PEER, US), PORT + 2, us.acknowledge_bth(), &[], &answer);
    us.hand_over(&frame);
    let all: Vec<_> = us.endpoint.queue_pair_status().collect();
    let [status] = &all[..] else { panic!("{all:?}") };
    let conditions = status.paths.iter().map(|path| path.condition).collect::<Vec<_>>();
    use PathCondition::{Dark, Good};
    assert_eq!(conditions, [Good, Dark, Good, Dark]);
    assert!(status.paths[2].round_trip.is_some() && status.paths[1].round_trip.is_none(), "{status:?}");
    let counters = status.counters;
    assert_eq!((counters.sent_bytes, counters.rcvd_bytes), (sent_bytes as u64, (frame.len() - ETHERNET_BYTES) as u64));
    assert_eq!((status.qpn, status.state), (us.qpn, State::ReadyToSend));
    assert_eq!(status.peer.map(|(address, _)| address), Some(IpAddr::V4(PEER)));
}

#[test]
fn a_probe_is_answered_the_way_it_came() {
    let mut us = Crafted::proved(4);
    us.take_trailer(
        (PEER, US),
        0xd123,
        &PathProbe { path: 77, is_answer: false, delay_us: 0, token: 0xabcd }.to_bytes(),
    );
    let probe = PathProbe { path: 77, is_answer: true, delay_us: 0, token: 0xabcd };
    assert_eq!(us.probes(), [(0xd123, probe)]);
}

#[test]
fn who_knows_no_other_paths_answers_a_peer_that_does() {
    let mut us = with_paths(RecoveryMode::Auto, 1);
    us.get_acquainted();
    let probe = PathProbe { path: 3, is_answer: false, delay_us: 0, token: 5 };
    us.take_trailer((PEER, US), 0xc003, &probe.to_bytes());
    us.take_trailer((PEER, US), 0xc003, &probe.to_bytes());
    assert!(us.probes().contains(&(0xc003, PathProbe { is_answer: true, ..probe })));
    us.write_once(0);
    assert!(us.sent().iter().all(|sent| sent.flow.source_port == PORT));
}

#[test]
fn who_was_given_no_number_uses_as_many_paths_as_the_peer() {
    let settings = RecoverySettings { recovery: RecoveryMode::Auto, ..RecoverySettings::default() };
    let mut us = Crafted::with(ALL, settings);
    us.get_acquainted();
    let answer_all = |us: &mut Crafted| {
        for sent in us.pass(Duration::from_millis(1)) {
            if let Some(probe) = sent.probe().filter(|probe| !probe.is_answer) {
                us.answer(sent.flow.source_port, probe);
            }
        }
    };
    us.write_once(0);
    us.sent();
    for path in [3, 3, 1, 2] {
        let probe = PathProbe { path, is_answer: false, delay_us: 0, token: 5 };
        us.take_trailer((PEER, US), 0xc000 + u16::from(path), &probe.to_bytes());
    }
    assert_eq!(us.paths(), (4, 1));
    answer_all(&mut us);
    assert_eq!(us.paths(), (4, 4));
    (1..5).for_each(|wr_id| us.write_once(wr_id));
    let ports: BTreeSet<u16> = us.sent().iter().map(|sent| sent.flow.source_port).collect();
    assert_eq!(ports.len(), 4);
    // A path that nobody answers on carries nothing, whatever number it has.
    let probe = PathProbe { path: 255, is_answer: false, delay_us: 0, token: 5 };
    us.take_trailer((PEER, US), 0xc0ff, &probe.to_bytes());
    assert_eq!(us.paths(), (256, 4));
}

#[test]
fn strangers_probes_are_not_answered_and_counted() {
    let mut us = Crafted::proved(2);
    let trailer = PathProbe { path: 0, is_answer: false, delay_us: 0, token: 1 }.to_bytes();
    let before = us.counters();
    us.take_trailer((Ipv4Addr::new(10, 0, 0, 9), US), PORT, &trailer);
    us.take_trailer((PEER, Ipv4Addr::new(10, 0, 0, 9)), PORT, &trailer);
    us.take_trailer((PEERS_OTHER, OUR_OTHER), PORT, &trailer);
    assert_eq!(us.counters().wrong_address, before.wrong_address + 3);
    let mut damaged = us.from((PEER, US), PORT, us.acknowledge_bth(), &[], &trailer);
    let token = damaged.len() - 12;
    damaged[token] ^= 1;
    us.hand_over(&damaged);
    assert_eq!(us.counters().bad_icrc, before.bad_icrc + 1);
    let other =
        Bth::new(Opcode::RC_ACKNOWLEDGE, uroce::wire::Qpn::new(0x77_7777), FIRST_PSN.minus(1)).with_extended(true);
    let frame = us.from((PEER, US), PORT, other, &[], &trailer);
    us.hand_over(&frame);
    assert_eq!(us.counters().unknown_qpn, before.unknown_qpn + 1);
    assert!(us.probes().iter().all(|(_, probe)| !probe.is_answer));
    us.assert_untouched("nobody wrote anything");
}

#[test]
fn answers_to_what_was_not_asked_open_no_path() {
    let mut us = with_paths(RecoveryMode::Selective, 4);
    us.write_once(0);
    let sent = [us.sent(), us.pass(Duration::from_micros(100))].concat();
    let probe = sent.iter().filter_map(Sent::probe).find(|probe| probe.path == 2).unwrap();
    let wrong = [
        PathProbe { token: probe.token ^ 1, ..probe },
        PathProbe { path: 1, ..probe },
        PathProbe { path: 4, ..probe },
        PathProbe { path: 255, ..probe },
    ];
    for (index, probe) in wrong.into_iter().enumerate() {
        us.answer(PORT, probe);
        assert_eq!((us.paths(), us.counters().stray_probe), ((4, 1), index as u64 + 1));
    }
    us.answer(PORT, probe);
    assert_eq!(us.paths(), (4, 2));
    // Once is enough.
    us.answer(PORT, probe);
    assert_eq!(us.counters().stray_probe, 5);
}

#[test]
fn a_flood_of_probes_is_bounded() {
    let mut us = Crafted::proved(2);
    for token in 0..5000 {
        us.take_trailer(
            (PEER, US),
            PORT,
            &PathProbe { path: token as u8, is_answer: false, delay_us: 0, token }.to_bytes(),
        );
    }
    let answers = us.probes().iter().filter(|(_, probe)| probe.is_answer).count();
    assert_eq!((answers, us.counters().answer_overflow), (256, 5000 - 256));
    assert_eq!(us.state(), State::ReadyToSend);
}

#[test]
fn a_rail_is_used_when_both_have_named_it_and_a_probe_came_back() {
    let mut us = with_paths(RecoveryMode::Auto, 2);
    us.endpoint.set_local_rails(vec![vec![IpAddr::V4(OUR_OTHER)]]);
    us.get_acquainted();
    us.write_once(0);
    let sent = [us.sent(), us.pass(Duration::from_micros(100))].concat();
    let lists: Vec<_> = sent.iter().filter_map(Sent::list).collect();
    assert_eq!(lists, [AddressList { addresses: addresses(&[OUR_OTHER]), is_known: false }]);
    assert!(sent.iter().filter_map(Sent::probe).all(|probe| probe.path == 0), "the peer may name a rail for path 1");
    // Not yet: the peer has not named it.
    let write = us.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN).with_offer(true).with_extended(true);
    let trailer = RequestTrailer::default().to_bytes();
    let over_rail = us.from((PEERS_OTHER, OUR_OTHER), 0xc001, write, &[7; 16], &trailer);
    us.hand_over(&over_rail);
    assert_eq!(us.counters().wrong_address, 1);
    us.assert_untouched("the address was not agreed");

    let list = AddressList { addresses: addresses(&[PEERS_OTHER]), is_known: true };
    us.take_trailer((PEER, US), PORT, &list.to_bytes());
    let query = us.endpoint.poll_hop_query().expect("the link must say the next hop");
    assert_eq!((query.rail, query.source, query.destination), (1, OUR_OTHER.into(), PEERS_OTHER.into()));
    assert_eq!(us.endpoint.poll_hop_query(), None);
    us.endpoint.hop_found(us.now, query, Some(Hop(42)));
    let probes = us.pass(Duration::from_micros(100));
    let probe = probes.iter().find(|sent| sent.probe().is_some_and(|probe| probe.path == 1)).expect("a probe");
    assert_eq!(probe.flow.addresses, Addresses::V4 { source: OUR_OTHER, destination: PEERS_OTHER });
    assert_eq!(us.paths(), (2, 1));
    let answer = PathProbe { is_answer: true, ..probe.probe().unwrap() };
    us.take_trailer((PEERS_OTHER, OUR_OTHER), PORT + 1, &answer.to_bytes());
    assert_eq!(us.paths(), (2, 2));
    (1..5).for_each(|wr_id| us.write_once(wr_id));
    let writes = us.sent().into_iter().filter(|sent| sent.opcode == Opcode::RC_WRITE_ONLY);
    assert_eq!(writes.filter(|sent| sent.flow.addresses.source() == IpAddr::V4(OUR_OTHER)).count(), 2);

    // Now it is one of the peer's addresses; across rails it is not.
    us.hand_over(&over_rail);
    assert_eq!(us.memory.to_vec(0, 16), [7; 16]);
    let across = us.from((PEERS_OTHER, US), 0xc001, write, &[8; 16], &trailer);
    us.hand_over(&across);
    assert_eq!((us.memory.to_vec(0, 16), us.counters().wrong_address), (vec![7; 16], 2));

    // The link knows no way any more: path 1 is out of use.
    us.endpoint.ask_hops_again();
    let query = us.endpoint.poll_hop_query().unwrap();
    us.endpoint.hop_found(us.now, query, None);
    assert_eq!(us.paths(), (2, 1));
}

#[test]
fn lists_that_cannot_be_are_refused() {
    let mut us = with_paths(RecoveryMode::Auto, 2);
    us.endpoint.set_local_rails(vec![vec![IpAddr::V4(OUR_OTHER)]]);
    us.get_acquainted();
    us.write_once(0);
    us.sent();
    // Longer than there may be.
    let mut long = vec![10; 16 * 8];
    long.extend([0, 0, 8, 0x40]);
    us.take_trailer((PEER, US), PORT, &long);
    assert_eq!(us.counters().bad_trailer, 1);
    let bad = [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::new(239, 0, 0, 1), PEER];
    for (index, address) in bad.into_iter().enumerate() {
        let list = AddressList { addresses: addresses(&[address]), is_known: false };
        us.take_trailer((PEER, US), PORT, &list.to_bytes());
        assert_eq!((us.counters().refused_addresses, us.endpoint.poll_hop_query()), (index as u64 + 1, None));
    }
    // The first that can be holds.
    for (address, refused) in [(PEERS_OTHER, 5), (PEERS_OTHER, 5), (Ipv4Addr::new(10, 1, 0, 3), 6)] {
        let list = AddressList { addresses: addresses(&[address]), is_known: false };
        us.take_trailer((PEER, US), PORT, &list.to_bytes());
        assert_eq!(us.counters().refused_addresses, refused);
    }
    assert_eq!(us.endpoint.poll_hop_query().map(|query| query.destination), Some(PEERS_OTHER.into()));
    assert_eq!((us.endpoint.poll_hop_query(), us.state()), (None, State::ReadyToSend));
}

#[test]
fn who_has_not_negotiated_names_no_addresses_and_probes_nothing() {
    for recovery in [RecoveryMode::Auto, RecoveryMode::GoBackN] {
        let mut us = with_paths(recovery, 4);
        us.endpoint.set_local_rails(vec![vec![IpAddr::V4(OUR_OTHER)]]);
        let bth = us.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN.minus(1)).with_extended(true);
        let list = AddressList { addresses: addresses(&[PEERS_OTHER]), is_known: false }.to_bytes();
        let probe = PathProbe { path: 0, is_answer: false, delay_us: 0, token: 1 }.to_bytes();
        for trailer in [&list[..], &probe] {
            let frame = us.from((PEER, US), PORT, bth, &[], trailer);
            us.hand_over(&frame);
        }
        // Acknowledges of nothing, to who knows no trailers.
        assert_eq!((us.counters().stray_response, us.paths(), us.endpoint.poll_hop_query()), (2, (1, 1), None));
        assert!(us.pass(Duration::from_secs(1)).is_empty());
        let write = us.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN);
        let frame = us.from((PEERS_OTHER, OUR_OTHER), PORT, write, &[7; 16], &[]);
        us.hand_over(&frame);
        assert_eq!(us.counters().wrong_address, 1);
        us.assert_untouched("it came from an address that was never agreed");
    }
}

#[test]
fn trailers_of_paths_that_cannot_be_are_dropped_and_counted() {
    let mut us = Crafted::proved(2);
    let probe = PathProbe { path: 0, is_answer: false, delay_us: 0, token: 1 }.to_bytes();
    let list = AddressList { addresses: addresses(&[PEERS_OTHER]), is_known: false }.to_bytes();
    let cases =
        [probe[4..].to_vec(), [&[0; 4], &probe[..]].concat(), list[4..].to_vec(), [&[0; 16], &list[..]].concat()];
    for (index, trailer) in cases.into_iter().enumerate() {
        us.take_trailer((PEER, US), PORT, &trailer);
        assert_eq!(us.counters().bad_trailer, index as u64 + 1);
    }
    // Nor do they belong to requests.
    let write = us.bth(Opcode::RC_WRITE_ONLY, FIRST_PSN).with_offer(true).with_extended(true);
    let frame = us.from((PEER, US), PORT, write, &[7; 16], &probe);
    us.hand_over(&frame);
    assert_eq!(us.counters().bad_trailer, 5);
    us.assert_untouched("nothing was believed");
}

#[test]
fn at_rest_nothing_is_probed() {
    let mut us = Crafted::proved(3);
    us.take_trailer((PEER, US), PORT, &{
        let sack = uroce::wire::Sack {
            trigger: FIRST_PSN,
            attempt: 0,
            delay_us: 0,
            marked: 0,
            is_trigger_marked: false,
            blocks: ArrayVec::new(),
        };
        sack.to_bytes().to_vec()
    });
    let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
    let frame = us.frame(us.bth(Opcode::RC_ACKNOWLEDGE, FIRST_PSN), aeth, &[]);
    us.hand_over(&frame);
    assert_eq!(us.completion().map(|completion| completion.wr_id), Some(0));
    us.pass(Duration::from_secs(1));
    assert_eq!((us.endpoint.poll_timeout(), us.endpoint.may_transmit()), (None, false));
    // In use again, and so are all paths.
    us.write_once(1);
    us.sent();
    let probed: BTreeSet<u8> = us.pass(Duration::from_millis(3)).iter().filter_map(|s| Some(s.probe()?.path)).collect();
    assert_eq!(probed.len(), 3);
}

#[test]
fn the_capacity_of_paths_of_different_lengths_is_used() {
    let cell = PathsCell {
        operation: TransferOperation::Read,
        paths: 16,
        policy: PathPolicy::RoundRobin,
        loss: 0.001,
        congestion: CongestionControl::Fixed,
    };
    let result = cell.run(3, None, 0).unwrap();
    let share = result.goodput_bps / result.ideal_bps;
    assert!(share > 0.95, "{share}");
    assert!(result.spurious_fraction < 0.0001, "{}", result.spurious_fraction);
}

#[test]
fn the_others_make_up_for_a_path_that_goes_dark() {
    let cell = FailureCell {
        congestion: CongestionControl::Fixed,
        operation: TransferOperation::Write,
        direction: DarkDirection::Both,
        paths: 8,
        policy: PathPolicy::RoundRobin,
        round_trip: Duration::from_millis(20),
    };
    let result = cell.run(3).unwrap();
    assert!(result.lost_frames > 100, "{result:?}");
    assert!(result.recovery_rtt <= 2.0 && result.return_rtt <= 2.0 && result.qp_errors == 0, "{result:?}");
    assert!(result.worst_fraction >= 0.95 && result.restored_fraction >= 0.95, "{result:?}");
}

#[test]
fn copies_of_acknowledges_are_few_where_messages_are_short() {
    let mut many = Many::of(1, RecoverySettings::default().with_paths(16, PathPolicy::default()));
    let write = SendOperation::Write(many.remote());
    let mut packets_of = |messages: u64| {
        let before = many.packets;
        for _ in 0..messages {
            many.post(0, write, 64);
            many.complete(1);
        }
        many.packets - before
    };
    packets_of(2000);
    // A message takes a microsecond, its packet and an acknowledge. In 2 ms there are forty copies, and some probes.
    let besides = packets_of(2000) - 2 * 2000;
    assert!((40..300).contains(&besides), "{besides} packets besides");
}

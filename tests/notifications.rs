//! Standard congestion notification, frame by frame: which packets are ECN-capable, when a CNP goes to the peer, and what one
//! from the peer does.

use easy_ext::ext;
use uroce::congestion::CongestionControl;
use uroce::frame::FrameBytes;
use uroce::time::Duration;
use uroce::transport::{CompletionRing, RecoveryMode, RecoverySettings, Remote, SendOperation, State};
use uroce::wire::{
    Aeth, Cnp, Extension, Flow, Headers, Msn, Opcode, PKey, Packet, Psn, Qpn, RequestTrailer, Reth, RoceFrame, Syndrome,
};
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::notifications::{Flood, FloodCell, MarkedCell};
use uroce_laboratory::world::crafted::{ALL, Crafted, FIRST_PSN, PEER, PEER_QPN, US, psn};
use uroce_laboratory::world::flow;

const CE: u8 = 3;

fn crafted(congestion: CongestionControl, recovery: RecoveryMode) -> Crafted {
    let settings = RecoverySettings { recovery, ..RecoverySettings::default() }.with_congestion(congestion);
    Crafted::controlled(ALL, settings, CompletionRing::new(4096, || {}))
}

/// What is sent: opcodes, DSCP and ECN.
fn sent(c: &mut Crafted) -> Vec<(Opcode, u8, u8)> {
    let of = |frame: &Vec<u8>| {
        let roce = RoceFrame::parse(FrameBytes::from(&frame[..])).unwrap();
        let class = roce.ip.traffic_class();
        assert!(roce.icrc_ok() && roce.ip.checksum_ok());
        (Packet::parse(roce.ib).unwrap().bth().opcode(), class >> 2, class & 3)
    };
    c.frames().iter().map(of).collect()
}

const CNP: (Opcode, u8, u8) = (Opcode::CNP, 48, 0);
const ACKNOWLEDGE: (Opcode, u8, u8) = (Opcode::RC_ACKNOWLEDGE, 0, 0);

#[ext]
impl Crafted {
    /// A WRITE of the peer, with this ECN field.
    fn write(&mut self, psn: Psn, ecn: u8) {
        let reth = Extension::Reth(Reth::new(self.at(0), self.key, 16));
        let bth = self.bth(Opcode::RC_WRITE_ONLY, psn).with_ack_request(true);
        let frame =
            self.frame_along(&Flow { traffic_class: 26 << 2 | ecn, ..flow(PEER, US) }, bth, reth, &[7; 16], &[]);
        self.hand_over(&frame);
    }

    fn wait(&mut self, time_us: u64) {
        self.now = self.now + Duration::from_micros(time_us);
    }
}

#[test]
fn a_mark_is_answered_by_a_cnp_at_most_once_in_50_us() {
    for congestion in [CongestionControl::Fixed, CongestionControl::Steady] {
        let mut c = crafted(congestion, RecoveryMode::GoBackN);
        c.write(psn(0), 2);
        assert_eq!(sent(&mut c), [ACKNOWLEDGE], "ECN-capable, and not marked");
        c.write(psn(1), CE);
        let frames = c.frames();
        let roce = RoceFrame::parse(FrameBytes::from(&frames[0][..])).unwrap();
        assert_eq!(roce.flow(), Flow { traffic_class: 48 << 2, ..flow(US, PEER) });
        let cnp = Packet::parse(roce.ib).unwrap();
        assert_eq!(cnp.headers(), Cnp { destination: PEER_QPN }.headers());
        assert_eq!(cnp.payload().to_vec(), [0; 16]);
        assert_eq!(frames.len(), 2, "the CNP and an acknowledge");
        c.wait(49);
        c.write(psn(2), CE);
        assert_eq!(sent(&mut c), [ACKNOWLEDGE]);
        c.wait(1);
        assert_eq!(sent(&mut c), [], "no mark came since");
        c.write(psn(3), CE);
        assert_eq!(sent(&mut c), [CNP, ACKNOWLEDGE]);
        let counters = c.counters();
        assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (3, 2));
    }
}

/// Also when the packet is an answer, and when it is a duplicate.
#[test]
fn any_marked_packet_of_the_connection_is_answered() {
    let mut c = crafted(CongestionControl::Fixed, RecoveryMode::GoBackN);
    let read = SendOperation::Read(Remote { address: 0x1000, key: c.key });
    c.post_send(1, read, 100, 16);
    assert_eq!(sent(&mut c), [(Opcode::RC_READ_REQUEST, 0, 0)]);
    let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
    let bth = c.bth(Opcode::RC_READ_RESPONSE_ONLY, FIRST_PSN);
    let marked = Flow { traffic_class: CE, ..flow(PEER, US) };
    let frame = c.frame_along(&marked, bth, aeth, &[9; 16], &[]);
    c.hand_over(&frame);
    assert_eq!(sent(&mut c), [CNP]);
    assert_eq!(c.memory.to_vec(100, 16), [9; 16]);
    c.wait(100);
    c.hand_over(&frame);
    assert_eq!(sent(&mut c), [CNP], "it is late, and marked");
}

#[test]
fn nobody_else_is_notified() {
    let mut c = crafted(CongestionControl::Fixed, RecoveryMode::GoBackN);
    let reth = Extension::Reth(Reth::new(c.at(0), c.key, 16));
    let bth = c.bth(Opcode::RC_WRITE_ONLY, psn(0));
    let stranger = std::net::Ipv4Addr::new(10, 0, 0, 3);
    let frame = c.frame_along(&Flow { traffic_class: CE, ..flow(stranger, US) }, bth, reth, &[7; 16], &[]);
    c.hand_over(&frame);
    let mut damaged = c.frame_along(&Flow { traffic_class: CE, ..flow(PEER, US) }, bth, reth, &[7; 16], &[]);
    *damaged.last_mut().unwrap() ^= 1;
    c.hand_over(&damaged);
    // A marked CNP is no packet of the connection.
    let Cnp { destination } = Cnp { destination: c.qpn };
    let headers = Cnp { destination }.headers();
    let marked = Flow { traffic_class: CE, ..flow(PEER, US) };
    let frame = c.frame_along(&marked, headers.bth, headers.extension, &[0; 16], &[]);
    c.hand_over(&frame);
    assert_eq!(sent(&mut c), []);
    let counters = c.counters();
    assert_eq!((counters.wrong_address, counters.bad_icrc), (1, 1));
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (0, 0));
}

#[test]
fn only_a_queue_pair_that_is_ready_notifies() {
    for (state, cnps) in [(None, 1), (Some(State::Error), 0), (Some(State::SendQueueDrained), 0)] {
        let mut c = crafted(CongestionControl::Fixed, RecoveryMode::GoBackN);
        if let Some(state) = state {
            c.modify(state);
        }
        c.write(psn(0), CE);
        assert_eq!(sent(&mut c).iter().filter(|packet| **packet == CNP).count(), cnps, "{state:?}");
        // It was owed when the state changed.
        let mut c = crafted(CongestionControl::Fixed, RecoveryMode::GoBackN);
        c.write(psn(0), CE);
        if let Some(state) = state {
            c.modify(state);
        }
        assert_eq!(sent(&mut c).iter().filter(|packet| **packet == CNP).count(), cnps, "{state:?}");
    }
    let mut c = crafted(CongestionControl::Fixed, RecoveryMode::GoBackN);
    c.modify(State::Reset);
    c.get_ready_to_receive();
    c.write(psn(0), CE);
    assert_eq!(sent(&mut c), [CNP, ACKNOWLEDGE], "ready to receive");
}

/// Marks are in its acknowledges: docs/EXTENSIONS.md.
#[test]
fn a_known_peer_gets_no_cnp_but_the_mark_in_an_acknowledge() {
    let mut c = crafted(CongestionControl::Steady, RecoveryMode::Auto);
    c.get_acquainted();
    c.answers();
    let reth = Extension::Reth(Reth::new(c.at(0), c.key, 16));
    let bth = c.bth(Opcode::RC_WRITE_ONLY, psn(0)).with_ack_request(true).with_offer(true).with_extended(true);
    let end = c.with_tag(bth, &RequestTrailer::default().to_bytes());
    let marked = Flow { traffic_class: CE, ..flow(PEER, US) };
    let frame = c.frame_along(&marked, bth, reth, &[7; 16], &end);
    c.hand_over(&frame);
    let frames = c.frames();
    assert_eq!(frames.len(), 1);
    let roce = RoceFrame::parse(FrameBytes::from(&frames[0][..])).unwrap();
    let sack = Packet::parse(roce.ib).unwrap().sack().unwrap();
    assert!(sack.is_trigger_marked && sack.marked == 1);
    assert_eq!((c.counters().np_ecn_marked_roce_packets, c.counters().np_cnp_sent), (1, 0));
}

#[test]
fn requests_and_read_responses_are_ecn_capable_if_a_controller_decides() {
    for (congestion, ecn) in
        [(CongestionControl::Fixed, 0), (CongestionControl::Steady, 2), (CongestionControl::Swift, 0)]
    {
        let mut c = crafted(congestion, RecoveryMode::GoBackN);
        let remote = Remote { address: 0x1000, key: c.key };
        c.post_send(1, SendOperation::Write(remote), 100, 300);
        c.post_send(2, SendOperation::Send, 100, 16);
        c.post_send(3, SendOperation::Read(remote), 100, 16);
        let requests = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_LAST, Opcode::RC_SEND_ONLY, Opcode::RC_READ_REQUEST];
        assert_eq!(sent(&mut c), requests.map(|opcode| (opcode, 0, ecn)));
        // The peer's: a WRITE, a READ, a FLUSH, whose answer has no data, and an atomic.
        c.write(psn(0), 0);
        assert_eq!(sent(&mut c), [ACKNOWLEDGE]);
        let reth = Reth::new(c.at(0), c.key, 16);
        let read = c.frame(c.bth(Opcode::RC_READ_REQUEST, psn(1)), Extension::Reth(reth), &[]);
        c.hand_over(&read);
        assert_eq!(sent(&mut c), [(Opcode::RC_READ_RESPONSE_ONLY, 0, ecn)]);
        let nothing = Reth::new(c.at(0), c.key, 0);
        let read = c.frame(c.bth(Opcode::RC_READ_REQUEST, psn(2)), Extension::Reth(nothing), &[]);
        c.hand_over(&read);
        assert_eq!(sent(&mut c), [(Opcode::RC_READ_RESPONSE_ONLY, 0, 0)], "no data");
        // A NAK.
        c.write(psn(5), 0);
        assert_eq!(sent(&mut c), [ACKNOWLEDGE]);
    }
}

/// The counters of notifications: received, handled, ignored.
fn heard(c: &Crafted) -> (u64, u64, u64) {
    let counters = c.counters();
    (counters.rcvd_cnp, counters.rp_cnp_handled, counters.rp_cnp_ignored)
}

#[ext]
impl Crafted {
    /// A CNP from `source` for a queue pair of ours.
    fn notify(&mut self, source: std::net::Ipv4Addr, destination: Qpn) -> Vec<u8> {
        let headers = Cnp { destination }.headers();
        self.frame_along(&Cnp::flow(&flow(source, US)), headers.bth, headers.extension, &[0; 16], &[])
    }
}

#[test]
fn a_cnp_reaches_the_controller_of_its_queue_pair() {
    for (congestion, expected) in [(CongestionControl::Fixed, (1, 0, 1)), (CongestionControl::Steady, (1, 1, 0))] {
        let mut c = crafted(congestion, RecoveryMode::GoBackN);
        c.post_send(1, SendOperation::Send, 100, 16);
        assert_eq!(c.frames().len(), 1);
        let frame = c.notify(PEER, c.qpn);
        assert_eq!(c.take(&frame), []);
        assert_eq!(heard(&c), expected);
    }
    // Nothing was sent, so there is nothing to slow down.
    let mut c = crafted(CongestionControl::Steady, RecoveryMode::GoBackN);
    let frame = c.notify(PEER, c.qpn);
    c.hand_over(&frame);
    assert_eq!(heard(&c), (1, 0, 1));
}

#[test]
fn a_cnp_is_checked_as_any_packet_is() {
    let mut c = crafted(CongestionControl::Steady, RecoveryMode::GoBackN);
    c.post_send(1, SendOperation::Send, 100, 16);
    c.frames();
    for frame in [
        c.notify(std::net::Ipv4Addr::new(10, 0, 0, 3), c.qpn),
        c.notify(PEER, Qpn::new(c.qpn.value() ^ 1)),
        {
            let mut frame = c.notify(PEER, c.qpn);
            frame[60] ^= 1;
            frame
        },
        {
            let Headers { bth, extension } = Cnp { destination: c.qpn }.headers();
            c.frame_along(&Cnp::flow(&flow(PEER, US)), bth, extension, &[0; 12], &[])
        },
        {
            let Headers { bth, extension } = Cnp { destination: c.qpn }.headers();
            let bth = bth.with_p_key(PKey(0x8001));
            c.frame_along(&Cnp::flow(&flow(PEER, US)), bth, extension, &[0; 16], &[])
        },
    ] {
        assert_eq!(c.take(&frame), []);
    }
    let counters = c.counters();
    assert_eq!((counters.wrong_address, counters.unknown_qpn, counters.bad_icrc), (1, 1, 1));
    assert_eq!((counters.malformed, counters.bad_p_key), (1, 1));
    c.modify(State::Error);
    let frame = c.notify(PEER, c.qpn);
    c.hand_over(&frame);
    assert_eq!(c.counters().wrong_state, 1);
    assert_eq!(heard(&c), (0, 0, 0));
}

/// It would not carry our nonce: whoever forges one achieves nothing.
#[test]
fn a_cnp_of_a_known_peer_is_ignored() {
    let mut c = crafted(CongestionControl::Steady, RecoveryMode::Auto);
    c.get_acquainted();
    c.post_send(1, SendOperation::Send, 100, 16);
    c.frames();
    let frame = c.notify(PEER, c.qpn);
    c.hand_over(&frame);
    assert_eq!(heard(&c), (1, 0, 1));
}

/// The mean goodput of some round trips, in bits a second.
fn mean(goodput: &[f64]) -> f64 {
    goodput.iter().sum::<f64>() / goodput.len() as f64
}

/// An attacker floods the sender of a bulk flow with forged CNPs, one in 10 µs for two seconds. It takes up to 90 % of what
/// a plain peer got, and no more however long it lasts. After it, 80 % are back within 40 round trips. Peers that know each
/// other do not notice.
#[test]
fn a_flood_of_forged_cnps_is_bounded() {
    let round_trip = Duration::from_millis(10);
    let phases = [2, 2, 2].map(Duration::from_secs);
    let every = Duration::from_micros(10);
    let cell = |is_known| {
        let control = CongestionControl::Steady;
        FloodCell { control, is_known, line_bps: 200_000_000, round_trip, every, phases }
    };
    let Flood { goodput_bps, counters } = cell(false).run(1).unwrap();
    let [before, flooded, after] = [&goodput_bps[..200], &goodput_bps[200..400], &goodput_bps[400..]];
    let usual = mean(&before[100..]);
    assert!(usual > 180e6, "{usual}");
    assert!(counters.rp_cnp_handled > 190_000 && counters.rp_cnp_ignored == 0, "{counters:?}");
    for second in flooded[100..].chunks(25) {
        assert!(mean(second) > 0.09 * usual, "{second:?}");
    }
    let back = after.windows(10).position(|ten| mean(ten) > 0.8 * usual);
    assert!(back.is_some_and(|round_trips| round_trips <= 40), "{back:?} {after:?}");

    let Flood { goodput_bps, counters } = cell(true).run(1).unwrap();
    let [before, flooded] = [&goodput_bps[100..200], &goodput_bps[200..400]].map(mean);
    assert!(before > 180e6 && flooded > 0.99 * before, "{before} {flooded}");
    assert!(counters.rp_cnp_ignored > 190_000 && counters.rp_cnp_handled == 0, "{counters:?}");
}

/// Two flows of DCQCN over a bottleneck of 10 Gb/s that marks above 40 KB: they share it, without a loss, and with a tenth of
/// the queue at most that there is without a controller. The senders learn of marks by CNPs from plain peers, or in
/// acknowledges and reports. READ responses to plain peers, which report nothing of them, keep to the rate as well.
#[test]
fn dcqcn_shares_a_marking_bottleneck_without_losses() {
    for operation in [TransferOperation::Write, TransferOperation::Read] {
        for is_known in [false, true] {
            let cell = MarkedCell {
                control: CongestionControl::Dcqcn,
                is_known,
                operation,
                flows: 2,
                line_bps: 10_000_000_000,
                round_trip: Duration::from_micros(20),
                queue_bytes: [40_000, 1_000_000],
                times: [200, 100].map(Duration::from_millis),
            };
            let marked = cell.run(1).unwrap();
            let sum: f64 = marked.goodput_bps.iter().sum();
            assert!(sum > 8.5e9, "{marked:?}");
            assert!(marked.goodput_bps.iter().all(|goodput| (0.3..0.7).contains(&(goodput / sum))), "{marked:?}");
            assert_eq!(marked.dropped, 0);
            assert!(marked.mean_queue_bytes < 150_000.0, "{marked:?}");
            let [sender, receiver] = &marked.counters;
            assert_eq!((sender.rp_cnp_handled, receiver.np_cnp_sent > 100), (receiver.np_cnp_sent, !is_known));
            let fixed = MarkedCell { control: CongestionControl::Fixed, ..cell }.run(1).unwrap();
            assert!(fixed.mean_queue_bytes > 10.0 * marked.mean_queue_bytes, "{fixed:?}");
        }
    }
}

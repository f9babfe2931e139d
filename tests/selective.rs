//! Selective repeat (docs/EXTENSIONS.md), frame by frame: who speaks it with whom, what waits, what is sent again, and what a
//! peer that lies can do: nothing to memory and completions, and not much to ours.

use std::time::Duration;

use arrayvec::ArrayVec;
use easy_ext::ext;
use proptest::prelude::*;
use uroce::congestion::CongestionControl;
use uroce::congestion::Rate;
use uroce::frame::FrameBytes;
use uroce::transport::{RecoveryMode, RecoverySettings, Remote, SendOperation, State};
use uroce::wire::{
    Aeth, Bth, Extension, Msn, NakCode, Opcode, Packet, Psn, RequestTrailer, Reth, RoceFrame, Sack, Syndrome, Tagged,
};
use uroce_laboratory::sim::TransferOperation;
use uroce_laboratory::sim::loss_rtt::{Cell, Ends};
use uroce_laboratory::world::crafted::{ALL, Crafted, acknowledge, psn, without_tag};

/// What a frame is about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    opcode: Opcode,
    psn: Psn,
    offers: bool,
    attempt: Option<u8>,
    sack: Option<Sack>,
}

fn seen(frame: &[u8]) -> Seen {
    let packet = Packet::parse(RoceFrame::parse(FrameBytes::from(frame)).unwrap().ib).unwrap();
    let bth = packet.bth();
    let is_acknowledge = bth.opcode() == Opcode::RC_ACKNOWLEDGE;
    let attempt = without_tag(&packet).take_trailer().filter(|_| bth.extended() && !is_acknowledge).map(|t| t.attempt);
    Seen { opcode: bth.opcode(), psn: bth.psn(), offers: bth.offers(), attempt, sack: packet.sack() }
}

/// Whether a frame asks for an acknowledge.
fn asks(frame: &[u8]) -> bool {
    Packet::parse(RoceFrame::parse(FrameBytes::from(frame)).unwrap().ib).unwrap().bth().ack_request()
}

#[ext]
impl Crafted {
    fn seen(&mut self) -> Vec<Seen> {
        self.frames().iter().map(|frame| seen(frame)).collect()
    }

    fn post_writes(&mut self, count: u64) {
        for wr_id in 0..count {
            let remote = Remote { address: 0x1000, key: self.key };
            self.post_send(wr_id, SendOperation::Write(remote), 0, 100);
        }
    }

    /// The peer writes `byte` to 16 bytes at `offset`, with the offer.
    fn write_from_peer(&mut self, number: u32, offset: usize, byte: u8) -> Vec<Seen> {
        let reth = Extension::Reth(Reth::new(self.at(offset), self.key, 16));
        self.extended_request(Opcode::RC_WRITE_ONLY, number, reth, &[byte; 16]);
        self.seen()
    }

    /// The peer's request with an empty trailer comes, and nothing is sent yet.
    fn extended_request(&mut self, opcode: Opcode, number: u32, extension: Extension, payload: &[u8]) {
        let bth = self.bth(opcode, psn(number)).with_ack_request(true).with_offer(true).with_extended(true);
        let frame = self.extended_frame(bth, extension, payload, &RequestTrailer::default().to_bytes());
        self.hand_over(&frame);
    }

    /// The peer acknowledges all before `psn`, and says that `arrived` have arrived too.
    fn sack_from_peer(&mut self, before: Psn, arrived: &[(Psn, u64)]) -> Vec<Seen> {
        let blocks: ArrayVec<_, { Sack::MAX_BLOCKS }> = arrived.iter().copied().collect();
        let sack =
            Sack { trigger: before.minus(1), attempt: 0, delay_us: 0, marked: 0, is_trigger_marked: false, blocks };
        let bth = self.bth(Opcode::RC_ACKNOWLEDGE, before.minus(1)).with_offer(true).with_extended(true);
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
        let frame = self.extended_frame(bth, aeth, &[], &sack.to_bytes());
        self.hand_over(&frame);
        self.seen()
    }

    fn plain_acknowledge(&mut self, upto: Psn) -> Vec<Seen> {
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
        let frame = self.frame(self.bth(Opcode::RC_ACKNOWLEDGE, upto), aeth, &[]);
        self.hand_over(&frame);
        self.seen()
    }

    fn wait(&mut self, duration: Duration) -> Vec<Seen> {
        let end = self.now + duration;
        let mut all = Vec::new();
        while let Some(at) = self.endpoint.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            all.extend(self.seen());
        }
        self.now = end;
        all
    }
}

#[test]
fn an_offer_is_made_until_eight_answers_came_without_it() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    for number in 0..12 {
        us.post_writes(1);
        let sent = us.seen();
        assert_eq!((sent.len(), sent[0].attempt), (1, None), "plain until the peer is known");
        assert_eq!(sent[0].offers, number < 8, "request {number}");
        us.plain_acknowledge(psn(number));
    }
    // What comes now is too late: a peer does not learn it while a connection lasts.
    us.sack_from_peer(psn(12), &[]);
    us.hello_from_peer(Tagged::None);
    us.post_writes(1);
    assert!(!us.seen()[0].offers && us.hellos.is_empty());
}

#[test]
fn what_is_sent_again_because_of_a_timeout_goes_without_the_offer_every_other_time() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.post_writes(1);
    let mut offers: Vec<bool> = us.seen().iter().map(|seen| seen.offers).collect();
    offers.extend(us.wait(Duration::from_micros(3500)).iter().map(|seen| seen.offers));
    assert_eq!(offers, [true, false, true, false]);
    // Answers to what did not offer say nothing.
    for _ in 0..20 {
        us.plain_acknowledge(psn(0).minus(1));
    }
    us.plain_acknowledge(psn(0));
    us.post_writes(1);
    assert!(us.seen()[0].offers);
}

#[test]
fn whoever_speaks_go_back_n_only_offers_nothing_and_ignores_offers() {
    let mut us = Crafted::new(RecoveryMode::GoBackN);
    us.post_writes(1);
    assert_eq!(us.seen().iter().map(|seen| seen.offers).collect::<Vec<_>>(), [false]);
    // A reserved bit, to it: the request is served, and its answer plain.
    let bth = us.bth(Opcode::RC_WRITE_ONLY, psn(0)).with_ack_request(true).with_offer(true);
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 4));
    let frame = us.frame(bth, reth, &[1; 4]);
    us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    let answers = us.seen();
    assert_eq!((answers.len(), answers[0].offers, &answers[0].sack), (1, false, &None));
    assert_eq!(us.counters().bad_trailer, 0);
}

#[test]
fn requests_that_come_early_wait_and_are_carried_out_in_order() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    let answers = us.write_from_peer(2, 100, 3);
    us.assert_untouched("the second write waits");
    let sack = answers[0].sack.clone().expect("a selective acknowledge");
    assert_eq!((answers[0].psn, answers[0].offers, sack.trigger), (psn(0).minus(1), true, psn(2)));
    let arrived: Vec<Psn> = sack
        .blocks
        .iter()
        .flat_map(|(base, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| base.plus(bit)))
        .collect();
    assert_eq!(arrived, [psn(2)]);
    // Once more: it is here already.
    us.write_from_peer(2, 100, 9);
    assert_eq!((us.counters().reordered, us.counters().duplicate_request), (1, 1));
    us.write_from_peer(1, 108, 2);
    us.assert_untouched("both wait");
    let answers = us.write_from_peer(0, 100, 1);
    assert_eq!((answers[0].psn, answers[0].sack.as_ref().map(|sack| sack.blocks.len())), (psn(2), Some(0)));
    let memory = us.memory.to_vec(100, 24);
    assert_eq!((&memory[..16], &memory[16..]), (&[3; 16][..], &[2; 8][..]));
    assert_eq!(us.endpoint.queue_pair(us.qpn).unwrap().waiting_bytes(), 0);
}

#[test]
fn only_what_is_missing_is_sent_again() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_writes(6);
    let sent: Vec<_> = us.seen().iter().map(|seen| (seen.psn, seen.attempt)).collect();
    assert_eq!(sent, (0..6).map(|number| (psn(number), Some(0))).collect::<Vec<_>>());
    us.now = us.now + Duration::from_micros(100);
    // The first arrived, and the third, fourth and sixth.
    us.sack_from_peer(psn(1), &[(psn(2), 0b1011)]);
    assert_eq!(us.completion().map(|completion| completion.wr_id), Some(0));
    assert_eq!(us.completion(), None, "nothing is complete before what comes before it");
    let again: Vec<_> =
        us.wait(Duration::from_micros(200)).iter().map(|seen| (seen.opcode, seen.psn, seen.attempt)).collect();
    assert_eq!(again, [1, 4].map(|number| (Opcode::RC_WRITE_ONLY, psn(number), Some(1))));
    us.sack_from_peer(psn(6), &[]);
    let completed: Vec<_> = std::iter::from_fn(|| us.completion()).map(|completion| completion.wr_id).collect();
    assert_eq!(completed, [1, 2, 3, 4, 5]);
    assert_eq!((us.counters().retransmitted, us.endpoint.poll_timeout().is_some()), (2, true));
    assert_eq!(us.wait(Duration::from_secs(2)), []);
    assert_eq!(us.endpoint.poll_timeout(), None);
}

/// Found by chaos: the last answer to a READ was lost, and the acknowledge that would have told of it.
#[test]
fn a_read_of_which_the_last_answer_is_lost_is_asked_for_again() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_send(0, SendOperation::Read(Remote { address: 0x1000, key: us.key }), 0, 300);
    assert_eq!(us.seen().len(), 1);
    let answer = |us: &mut Crafted, number, opcode, payload: &[u8]| {
        let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
        let frame = us.frame(us.bth(opcode, psn(number)).with_offer(true), aeth, payload);
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
    };
    answer(&mut us, 0, Opcode::RC_READ_RESPONSE_FIRST, &[1; 256]);
    let again: Vec<_> = us.wait(Duration::from_millis(2)).iter().map(|seen| (seen.opcode, seen.psn)).collect();
    assert_eq!(again.first(), Some(&(Opcode::RC_READ_REQUEST, psn(1))), "{again:?}");
    answer(&mut us, 1, Opcode::RC_READ_RESPONSE_ONLY, &[2; 44]);
    assert_eq!(us.completion().map(|completion| completion.byte_len), Some(300));
}

#[test]
fn a_peer_that_answers_nothing_is_given_up() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_writes(2);
    us.seen();
    let probes = us.wait(Duration::from_secs(10));
    assert!((2..100).contains(&probes.len()), "{} probes", probes.len());
    assert_eq!(us.state(), State::Error);
    let ends: Vec<_> = std::iter::from_fn(|| us.completion()).map(|done| (done.status, done.vendor_err())).collect();
    assert_eq!(ends, [(uroce::transport::Status::RetryExceeded, 0xc1), (uroce::transport::Status::WrFlush, 0)]);
}

/// Found by rping with a tenth of all frames lost: before the first round-trip sample, intervals between probes grew
/// beyond the timeouts, and a retry count of 7 ended after 4 retransmissions.
#[test]
fn each_retry_that_silence_costs_is_a_retransmission() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_writes(1);
    us.seen();
    let again = us.wait(Duration::from_secs(60));
    let attempts: Vec<_> = again.iter().map(|seen| (seen.psn, seen.attempt)).collect();
    let expected: Vec<_> = (1..=again.len() as u8).map(|attempt| (psn(0), Some(attempt))).collect();
    assert_eq!(attempts, expected);
    assert!(again.len() >= 7, "{} retransmissions with a retry count of 7", again.len());
    assert_eq!(us.completion().map(|done| done.status), Some(uroce::transport::Status::RetryExceeded));
}

/// One that keeps to 1 Mb/s, and has sent nothing for a second.
fn at_a_low_rate() -> Crafted {
    let rate = Some(Rate::from_bits(1_000_000));
    let mut us = Crafted::with(ALL, RecoverySettings { rate, ..RecoverySettings::default() });
    us.now = us.now + Duration::from_secs(1);
    us
}

fn use_up_the_rate(us: &mut Crafted) {
    us.post_writes(20);
    let sent = us.seen().len();
    assert!((1..20).contains(&sent), "{sent} of 20 went at this rate");
}

/// One that keeps to 10 Mb/s, a packet in 0.25 ms, knows its peer, and has a message of 16 packets to send.
fn with_a_message_at(rate: Rate) -> Crafted {
    let mut us = Crafted::with(ALL, RecoverySettings { rate: Some(rate), ..RecoverySettings::default() });
    us.get_acquainted();
    us.answers();
    us.now = us.now + Duration::from_secs(1);
    us.post_send(0, SendOperation::Write(Remote { address: 0x1000, key: us.key }), 0, 16 * 256);
    us
}

/// Found by `uroce perf --rate 100M`: an acknowledge was asked for once in 13 packets, which take longer than a peer's silence
/// lasts. Each such message was sent again in part.
#[test]
fn what_is_paced_asks_for_acknowledges_in_time() {
    for rate in [10_000_000, 1_000_000] {
        let mut us = with_a_message_at(Rate::from_bits(rate));
        let (mut answers, mut attempts) = (0, Vec::new());
        while us.completion().is_none() {
            let frames = us.frames();
            let asked = frames.iter().rfind(|frame| asks(frame)).map(|frame| seen(frame));
            attempts.extend(frames.iter().filter_map(|frame| seen(frame).attempt));
            if let Some(newest) = asked {
                us.now = us.now + Duration::from_micros(50);
                us.sack_from_peer(newest.psn.plus(1), &[]);
                answers += 1;
                continue;
            }
            us.now = us.now.max(us.endpoint.poll_timeout().expect("something is to be sent"));
            us.endpoint.handle_timeout(us.now);
        }
        assert_eq!((attempts, us.counters().retransmitted), (vec![0; 16], 0), "at {rate} bit/s");
        assert!((2..=16).contains(&answers), "{answers} at {rate} bit/s");
    }
}

/// Found on a busy machine: it ran late, and took it for the peer's silence that nothing had been heard of packets that ask for
/// nothing.
#[test]
fn who_has_not_asked_does_not_take_silence_for_a_loss() {
    let mut us = with_a_message_at(Rate::from_bits(10_000_000));
    let newest = loop {
        let frames = us.frames();
        if let Some(frame) = frames.iter().rfind(|frame| asks(frame)) {
            break seen(frame).psn;
        }
        us.now = us.now.max(us.endpoint.poll_timeout().unwrap());
        us.endpoint.handle_timeout(us.now);
    };
    us.sack_from_peer(newest.plus(1), &[]);
    us.now = us.now.max(us.endpoint.poll_timeout().unwrap());
    us.endpoint.handle_timeout(us.now);
    let sent: Vec<_> = us.frames().iter().map(|frame| asks(frame)).collect();
    assert_eq!(sent, [false]);
    us.now = us.now + Duration::from_millis(2);
    us.endpoint.handle_timeout(us.now);
    let late = us.frames();
    let attempts: Vec<_> = late.iter().map(|frame| seen(frame).attempt).collect();
    assert!(!late.is_empty() && attempts.iter().all(|attempt| *attempt == Some(0)), "{attempts:?}");
    assert!(late.iter().any(|frame| asks(frame)), "it asks now");
    // Silence after that is a loss.
    let again = us.wait(Duration::from_millis(5));
    assert!(again.iter().any(|seen| seen.attempt == Some(1)), "{again:?}");
}

/// Found by chaos: our own requests had used up the rate, and the peer, which offers and is not known, waited for its NAK.
#[test]
fn a_refusal_keeps_to_no_rate() {
    let mut us = at_a_low_rate();
    let plain_write = |us: &mut Crafted, number| {
        let bth = us.bth(Opcode::RC_WRITE_ONLY, psn(number)).with_ack_request(true).with_offer(true);
        let reth = Extension::Reth(Reth::new(us.at(0), us.key, 4));
        us.send(bth, reth, &[1; 4])
    };
    assert_eq!(plain_write(&mut us, 0), [acknowledge(psn(0), Syndrome::ACK)]);
    use_up_the_rate(&mut us);
    assert_eq!(us.seen(), []);
    let nak = acknowledge(psn(1), Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(plain_write(&mut us, 2), [nak], "at once");
    assert_eq!(us.seen(), [], "our requests still wait");
}

/// Found by chaos: the peer became known while its NAK was owed, and the NAK waited for the rate from then on.
#[test]
fn a_refusal_keeps_to_no_rate_when_the_peer_is_known_either() {
    let mut us = at_a_low_rate();
    us.get_acquainted();
    use_up_the_rate(&mut us);
    us.extended_request(Opcode::RC_SEND_ONLY, 0, Extension::None, &[7; 16]);
    let answers: Vec<_> = us.answers().iter().map(|answer| (answer.opcode, answer.psn, answer.syndrome)).collect();
    let Some((Opcode::RC_ACKNOWLEDGE, refused, Some(Syndrome::RnrNak(_)))) = answers.last().copied() else {
        panic!("no receive request is there, and at once: {answers:?}");
    };
    assert_eq!(refused, psn(0));
    assert_eq!(us.seen(), [], "our requests still wait");
}

/// Found by chaos: behind a READ's answer, which waited for the rate, stood the refusal of a SEND that was carried out meanwhile. The
/// peer sent it again.
#[test]
fn a_refusal_that_is_overtaken_by_what_it_refused_is_not_sent() {
    let mut us = Crafted::new(RecoveryMode::Auto);
    us.get_acquainted();
    us.answers();
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 16));
    us.extended_request(Opcode::RC_READ_REQUEST, 0, reth, &[]);
    us.extended_request(Opcode::RC_SEND_ONLY, 1, Extension::None, &[7; 16]);
    assert_eq!((us.completion(), us.counters().send_rnr_err), (None, 1), "no receive request was there");
    us.post_receive(5, 100, 16);
    us.extended_request(Opcode::RC_SEND_ONLY, 1, Extension::None, &[7; 16]);
    assert_eq!(us.completion().map(|done| (done.wr_id, done.byte_len)), Some((5, 16)));
    let sent: Vec<_> = us.answers().iter().map(|answer| (answer.opcode, answer.psn, answer.syndrome)).collect();
    let acknowledged = Some(Syndrome::ACK);
    assert_eq!(
        sent,
        [(Opcode::RC_ACKNOWLEDGE, psn(1), acknowledged), (Opcode::RC_READ_RESPONSE_ONLY, psn(0), acknowledged)]
    );
}

/// A virtual machine that is paused, a laptop that sleeps: the peer's answers are not late, we are.
#[test]
fn a_peer_is_not_given_up_because_we_stood_still() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_writes(2);
    us.seen();
    for _ in 0..3 {
        us.now = us.now + Duration::from_secs(3600);
        us.endpoint.handle_timeout(us.now);
        assert!(!us.seen().is_empty(), "it asks again");
    }
    us.sack_from_peer(psn(2), &[]);
    let statuses: Vec<_> = std::iter::from_fn(|| us.completion()).map(|completion| completion.status).collect();
    assert_eq!((statuses, us.state()), (vec![uroce::transport::Status::Success; 2], State::ReadyToSend));
}

#[test]
fn a_flood_of_gaps_is_bounded() {
    let reorder_bytes = 10_000;
    let recovery = RecoverySettings { recovery: RecoveryMode::Auto, reorder_bytes, ..RecoverySettings::default() };
    let mut us = Crafted::with(ALL, recovery);
    us.get_acquainted();
    for number in (1..2000).map(|number| number * 3) {
        us.write_from_peer(number, 0, 7);
    }
    // Beyond any window.
    us.write_from_peer(RecoverySettings::MAX_WINDOW, 0, 7);
    us.write_from_peer(RecoverySettings::MAX_WINDOW + 77, 0, 7);
    us.assert_untouched("all wait");
    let queue_pair = us.endpoint.queue_pair(us.qpn).unwrap();
    assert!(queue_pair.waiting_bytes() <= reorder_bytes + 1000, "{} bytes wait", queue_pair.waiting_bytes());
    assert!(queue_pair.recovery_memory_bytes() < 100_000, "{} bytes", queue_pair.recovery_memory_bytes());
    let counters = us.counters();
    assert_eq!(counters.reordered + counters.reorder_overflow, 2001);
    assert!(counters.reordered > 30);
    // It still works.
    let answers = us.write_from_peer(0, 0, 1);
    assert_eq!(answers.last().map(|answer| answer.psn), Some(psn(0)));
    assert_eq!(us.memory.to_vec(0, 16), [1; 16]);
}

#[test]
fn trailers_that_cannot_be_are_dropped_and_counted() {
    let mut us = Crafted::new(RecoveryMode::Selective);
    us.post_writes(1);
    us.seen();
    let write = us.bth(Opcode::RC_WRITE_ONLY, psn(0)).with_offer(true).with_extended(true);
    let reth = Extension::Reth(Reth::new(us.at(0), us.key, 16));
    let answer = us.bth(Opcode::RC_ACKNOWLEDGE, psn(0)).with_offer(true).with_extended(true);
    let aeth = Extension::Aeth(Aeth::new(Syndrome::ACK, Msn::new(1)));
    let cases: [(Bth, Extension, &[u8], &[u8]); 6] = [
        (write, reth, &[7; 16], &[0, 0, 0, 0, 0, 0, 0, 0x13]),
        (write, reth, &[7; 16], &[0, 0, 0, 0, 0, 0, 0, 0x20]),
        (write, reth, &[], &[0, 0, 0, 0x12]),
        (answer, aeth, &[], &[0, 0, 0, 0]),
        (answer, aeth, &[], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0x20]),
        (answer, aeth, &[], &RequestTrailer::default().to_bytes()),
    ];
    for (index, (bth, extension, payload, trailer)) in cases.into_iter().enumerate() {
        let frame = us.extended_frame(bth, extension, payload, trailer);
        us.endpoint.handle_frame(us.now, FrameBytes::from(&frame[..]));
        assert_eq!(us.counters().bad_trailer, index as u64 + 1);
    }
    us.assert_untouched("nothing was believed");
    assert_eq!((us.completion(), us.state()), (None, State::ReadyToSend));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a peer says that it has: nothing completes but by what it says that it carried out, in order and once; nothing
    /// is sent that was not asked for; memory stays bounded.
    #[test]
    fn lies_about_what_arrived_complete_nothing(
        lies in proptest::collection::vec((any::<u32>(), any::<u64>(), -8i32..40, 0u64..3000), 1..60)
    ) {
        let mut us = Crafted::new(RecoveryMode::Selective);
        us.post_writes(20);
        us.seen();
        let mut carried_out = 0;
        let mut completed = 0;
        for (anywhere, bits, near, micros) in lies {
            us.wait(Duration::from_micros(micros));
            let acknowledged = if anywhere % 5 == 0 { near } else { carried_out };
            let base = if anywhere % 3 == 0 { Psn::new(anywhere) } else { psn(0).plus(near as u32) };
            us.sack_from_peer(psn(0).plus(acknowledged as u32), &[(base, bits), (base.plus(64), !bits)]);
            if us.state() != State::ReadyToSend {
                break;
            }
            // An acknowledge of what was not sent is ignored.
            if (1..=20).contains(&acknowledged) {
                carried_out = carried_out.max(acknowledged);
            }
            while let Some(completion) = us.completion() {
                prop_assert_eq!(completion.wr_id, completed);
                completed += 1;
            }
            prop_assert_eq!(completed, carried_out as u64);
            let memory = us.endpoint.queue_pair(us.qpn).unwrap().recovery_memory_bytes();
            prop_assert!(memory < 10_000, "{} bytes", memory);
        }
        us.assert_untouched("requests only read");
    }
}

/// A few cells of `uroce sim loss-rtt`, in full.
#[test]
fn goodput_holds_over_a_lossy_network() {
    for (operation, bursts, loss) in [
        (TransferOperation::Write, true, 0.01),
        (TransferOperation::Read, false, 0.05),
        (TransferOperation::Send, false, 0.05),
    ] {
        let round_trip = Duration::from_millis(1);
        let congestion = CongestionControl::Fixed;
        let cell = Cell { operation, ends: Ends::Selective, loss, bursts, round_trip, congestion };
        let result = cell.run(7).unwrap();
        let share = result.goodput_bps / result.ideal_bps;
        assert!(share > 0.97, "{cell:?}: {share}");
        // Before the peers know each other, one goes back now and then: up to 128 packets of some 70,000.
        assert!(result.spurious_fraction < 0.002, "{cell:?}: {}", result.spurious_fraction);
    }
}

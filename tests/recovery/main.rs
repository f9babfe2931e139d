//! What every [`Recovery`] must keep to: against a peer that takes requests in order, or in any, over a network that loses, delays and
//! repeats, every position is done in the end, and nothing is sent again unless a packet came or a deadline passed since.

mod peer;
mod stop_and_wait;

use std::collections::BTreeMap;

use peer::{Message, Peer, Request};
use proptest::prelude::*;
use stop_and_wait::StopAndWait;
use uroce::recovery::{Answer, Departure, GoBackN, Recovery, Said, Selective, Wants};
use uroce::time::{Duration, Instant};
use uroce::transport::PlainRecovery;
use uroce_laboratory::sim::{Random, chaos};

/// Where positions begin.
const START: u64 = 1 << 24;

const TIMEOUT: Duration = Duration::from_millis(4);

/// How long a peer that is not ready is left alone.
const NOT_READY: Duration = Duration::from_millis(1);

/// What a run is of.
#[derive(Clone, Copy, Debug)]
struct Weather {
    seed: u64,
    requests: usize,
    loss: f64,
    /// Packets take up to so much longer than others.
    jitter: Duration,
}

/// A request of as many answers; 0 for one without.
fn packet(answers: u32) -> Departure {
    Departure { count: answers.max(1), answers: answers > 0, path: 0, bytes: 100, asks: true }
}

fn weather(jitter: Duration) -> impl Strategy<Value = Weather> {
    (any::<u64>(), 1..120_usize, 0..4_u8).prop_map(move |(seed, requests, loss)| Weather {
        seed,
        requests,
        loss: f64::from(loss) * 0.08,
        jitter,
    })
}

/// The requester's side, which uses a recovery as the transport does.
struct Game<'a> {
    recovery: &'a mut dyn Recovery,
    now: Instant,
    random: Random,
    weather: Weather,
    /// In the order in which they arrive.
    wire: BTreeMap<(Instant, u64), Message>,
    sent: u64,
    /// Packets that came and deadlines that passed.
    events: u64,
    /// The peer was not ready.
    waits_until: Option<Instant>,
    /// By position: how many of these there were when it was last sent or asked for.
    asked: BTreeMap<u64, u64>,
    /// The first position of each request, and how many answers it has, 0 for none.
    requests: BTreeMap<u64, u32>,
}

impl Game<'_> {
    fn send(&mut self, message: Message) {
        let copies = 1 + u64::from(self.random.chance(0.02));
        for _ in 0..copies {
            self.sent += 1;
            if !self.random.chance(self.weather.loss) {
                let takes = Duration::from_micros(100) + self.random.up_to(self.weather.jitter);
                self.wire.insert((self.now + takes, self.sent), message.clone());
            }
        }
    }

    fn note(&mut self, position: u64, count: u32) {
        for position in position..position + u64::from(count) {
            let before = self.asked.insert(position, self.events);
            assert!(before.is_none_or(|before| before < self.events), "{position} twice, and nothing happened between");
        }
    }

    /// Sends all that may be sent now.
    fn poll(&mut self, left: &mut Vec<u32>) {
        while self.waits_until.is_none() {
            if let Some(what) = self.recovery.wants() {
                assert!(self.recovery.wants_anything());
                let position = what.position();
                let in_flight = self.recovery.first()..self.recovery.next();
                assert!(in_flight.contains(&position), "{what:?} of {in_flight:?}");
                let (first, answers) = self.requests.range(..=position).next_back().expect("it was sent");
                let rest = (first + u64::from(*answers)).saturating_sub(position) as u32;
                let (what, count) = match what {
                    Wants::Request(_) => (what, rest),
                    Wants::Answers(_, count) => (Wants::Answers(position, count.min(rest)), count.min(rest)),
                };
                self.note(position, count.max(1));
                self.recovery.sent_again(what, 0, 100, self.now);
                self.send(Message::Request(Request { position, answers: count }));
                continue;
            }
            if !self.recovery.may_send_new() {
                return;
            }
            let Some(answers) = left.pop() else { return };
            let position = self.recovery.next();
            self.note(position, answers.max(1));
            self.requests.insert(position, answers);
            self.recovery.sent(packet(answers), self.now);
            self.send(Message::Request(Request { position, answers }));
        }
    }

    fn acknowledge(&mut self, said: &Said<'_>) {
        let before = self.recovery.first();
        self.recovery.acknowledge(said, self.now);
        assert_eq!(self.recovery.first(), before, "nothing is settled");
        self.recovery.settle(self.now);
        self.recovery.implied_nak(self.now);
    }

    fn take(&mut self, message: &Message) {
        self.events += 1;
        let before = self.recovery.first();
        match message {
            Message::Acknowledge { before, arrived } => {
                self.acknowledge(&Said { arrived, ..Said::before(*before) });
            }
            Message::SequenceError { position } => {
                self.acknowledge(&Said::before(*position));
                if self.recovery.is_news_of(*position) && *position < self.recovery.next() {
                    self.recovery.sequence_error(self.now);
                }
            }
            Message::NotReady { position } => {
                self.acknowledge(&Said::before(*position));
                if self.waits_until.is_none() && self.recovery.is_news_of(*position) {
                    self.recovery.receiver_not_ready(*position, self.now);
                    self.waits_until = Some(self.now + NOT_READY);
                    return;
                }
            }
            Message::Answer { position } => match self.recovery.answer(*position) {
                Answer::Expected => {
                    self.recovery.answered(*position, self.now);
                    assert_eq!(self.recovery.first(), before, "nothing is settled");
                    self.recovery.settle(self.now);
                    assert_ne!(self.recovery.answer(*position), Answer::Expected, "it came");
                }
                Answer::Early { oldest, .. } => {
                    assert!((before..*position).contains(&oldest));
                    self.acknowledge(&Said::before(*position));
                }
                Answer::Unexpected => {}
            },
            Message::Request(_) => unreachable!("the peer sends none"),
        }
        assert!((before..=self.recovery.next()).contains(&self.recovery.first()), "what is done stays done");
        // What it was not ready for, or something before it, has arrived.
        self.waits_until = self.waits_until.filter(|_| self.recovery.first() == before);
    }
}

/// Plays it to its end.
fn play(recovery: &mut dyn Recovery, weather: Weather, mut peer: Peer) {
    let mut random = Random::new(weather.seed, 0);
    // A quarter are READs.
    let mut left: Vec<u32> =
        (0..weather.requests).map(|_| if random.chance(0.25) { random.between(1, 20) as u32 } else { 0 }).collect();
    let end = START + left.iter().map(|answers| u64::from((*answers).max(1))).sum::<u64>();
    let (wire, asked, requests) = Default::default();
    let (now, waits_until) = (Instant::ZERO, None);
    let mut game = Game { recovery, now, random, weather, wire, sent: 0, events: 0, waits_until, asked, requests };
    while game.recovery.first() < end {
        game.poll(&mut left);
        let arrival = game.wire.first_key_value().map(|((at, _), _)| *at);
        let deadline = game.waits_until.or(game.recovery.deadline());
        let next = arrival.into_iter().chain(deadline).min().expect("something is in flight: it has a deadline");
        assert!(next < Instant::ZERO + Duration::from_secs(600), "it does not come to its end");
        game.now = game.now.max(next);
        if deadline.is_some_and(|deadline| deadline <= game.now) {
            game.events += 1;
            match game.waits_until.take() {
                Some(_) => game.recovery.receiver_may_be_ready(game.now),
                None => {
                    game.recovery.handle_timeout(game.now);
                }
            }
        } else if let Some((_, message)) = game.wire.pop_first() {
            match message {
                Message::Request(request) => {
                    for answer in peer.take(request) {
                        game.send(answer);
                    }
                }
                other => game.take(&other),
            }
        }
    }
    assert_eq!((game.recovery.first(), game.recovery.next()), (end, end));
    assert!(left.is_empty() && game.recovery.wants().is_none());
}

proptest! {
    #[test]
    fn go_back_n_keeps_to_the_contract(weather in weather(Duration::ZERO)) {
        play(&mut GoBackN::new(START, Some(TIMEOUT)), weather, Peer::in_order(START));
    }

    #[test]
    fn selective_repeat_keeps_to_the_contract(weather in weather(Duration::from_millis(1))) {
        play(&mut Selective::new(START, 64, Some(TIMEOUT)), weather, Peer::in_any_order(START));
    }

    #[test]
    fn another_one_keeps_to_the_contract(weather in weather(Duration::from_millis(1))) {
        play(&mut StopAndWait::new(START, Some(TIMEOUT)), weather, Peer::in_order(START));
    }
}

#[test]
fn what_the_receiver_was_not_ready_for_is_sent_again_when_it_may_be() {
    let all: [Box<dyn Recovery>; 3] = [
        Box::new(GoBackN::new(START, Some(TIMEOUT))),
        Box::new(Selective::new(START, 64, Some(TIMEOUT))),
        Box::new(StopAndWait::new(START, Some(TIMEOUT))),
    ];
    for mut recovery in all {
        recovery.sent(packet(0), Instant::ZERO);
        assert_eq!(recovery.wants(), None);
        recovery.receiver_not_ready(START, Instant::ZERO);
        recovery.receiver_may_be_ready(Instant::ZERO + NOT_READY);
        assert_eq!(recovery.wants(), Some(Wants::Request(START)), "{recovery:?}");
    }
}

/// The same program with another recovery: all of the random programs' checks hold.
#[test]
fn random_programs_run_with_another_one() {
    let plain = PlainRecovery(|next, timeout| Box::new(StopAndWait::new(next, timeout)));
    let mut packets = 0;
    for seed in (0..400).filter(|seed| chaos::Kind::of(*seed) == chaos::Kind::Reliable) {
        let outcome = chaos::run_with_recovery(seed, plain);
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
        packets += outcome.packets;
    }
    assert!(packets > 10_000, "{packets}");
}

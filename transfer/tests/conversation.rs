//! What a sender and a receiver say to each other in one case each: what is refused, what ends, what is repaired, and what
//! happens when one of them or the path is gone.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use common::{Path, Step, To, World, contents, ms};
use uroce::time::{Duration, Instant};
use uroce_laboratory::sim::Random;
use uroce_transfer::deadline::wire::{Body, Data, Datagram, EndReason, Reason, Report, WholeWord};
use uroce_transfer::deadline::{
    DeadlineError, End, Failure, History, Receiver, Request, RequestError, Run, Sender, SenderEnd, SenderEvent, Shape,
    Source, Values,
};

const BEGIN: Instant = Instant::from_ns(5_000_000_000);
const OBJECT: u64 = 3;
const VERSION: u64 = 9;
const BLOCKS: u32 = 200;
const BLOCK_BYTES: usize = 5000;

fn shape() -> Shape {
    Shape::new(u64::from(BLOCKS) * BLOCK_BYTES as u64, BLOCK_BYTES as u32, 512).unwrap()
}

fn bytes() -> Vec<u8> {
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| contents(&mut Random::new(1, 1), BLOCKS as usize * BLOCK_BYTES));
    BYTES.clone()
}

fn block(block: u32) -> Vec<u8> {
    bytes()[block as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()
}

fn values(version: u64) -> Values {
    Values::new(version, BLOCK_BYTES as u32, bytes()).unwrap()
}

fn sender() -> Sender {
    let mut sender = Sender::new([1; 32]);
    sender.offer(OBJECT, values(VERSION));
    sender
}

fn request() -> Request {
    Request::new(OBJECT, VERSION, shape()).by(BEGIN + ms(5000))
}

fn world(request: Request) -> World {
    let receiver = Receiver::new(1, request, BEGIN).unwrap();
    World::new(sender(), receiver, Path::default(), 1, BEGIN)
}

fn refused(request: Request) -> (Reason, u64, World) {
    let mut world = world(request);
    world.run();
    match world.receiver.end() {
        Some(End::Failed(Failure::Refused(refusal))) => (refusal.reason, refusal.version, world),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_asked_for_and_cannot_be_is_an_error_at_once() {
    let error = |request: Request| Receiver::new(1, request, BEGIN).unwrap_err();
    let runs = |runs: &[(u32, u32)]| runs.iter().map(|&(first, count)| Run { first, count }).collect::<Vec<_>>();
    assert_eq!(error(request().by(BEGIN)), RequestError::DeadlinePassed { ago: ms(0) });
    assert_eq!(error(request().by(Instant::ZERO)), RequestError::DeadlinePassed { ago: ms(5000) });
    assert_eq!(error(request().with_runs(vec![])), RequestError::Nothing);
    assert_eq!(error(request().with_runs(runs(&[(4, 3), (2, 3)]))), RequestError::Twice(4));
    let beyond = RequestError::NoBlock { first: 199, last: 200, blocks: 200 };
    assert_eq!(error(request().with_runs(runs(&[(0, 2), (199, 2)]))), beyond);
    assert!(matches!(error(request().with_runs(runs(&[(3, 0)]))), RequestError::NoBlock { .. }));
    assert_eq!(error(request().with_repair(1001)), RequestError::Repair(1001));
}

#[test]
fn a_peer_that_has_something_else_says_so_within_a_round_trip() {
    let (reason, version, world) = refused(Request::new(OBJECT, VERSION + 1, shape()).by(BEGIN + ms(5000)));
    assert_eq!((reason, version), (Reason::OtherVersion, VERSION));
    assert!(world.now - BEGIN < ms(11), "{:?}", world.now - BEGIN);
    let other = Shape::new(shape().bytes(), 4999, 512).unwrap();
    assert_eq!(refused(Request::new(OBJECT, VERSION, other).by(BEGIN + ms(5000))).0, Reason::OtherShape);
    let other = Shape::new(shape().bytes() + 1, BLOCK_BYTES as u32, 512).unwrap();
    assert_eq!(refused(Request::new(OBJECT, VERSION, other).by(BEGIN + ms(5000))).0, Reason::OtherShape);
    assert_eq!(refused(Request::new(4, VERSION, shape()).by(BEGIN + ms(5000))).0, Reason::NoObject);
}

#[test]
fn symbols_that_the_senders_path_cannot_carry_are_refused() {
    let mut world = world(request());
    let mut narrow = Sender::new([1; 32]).with_datagram_bytes(512);
    narrow.offer(OBJECT, values(VERSION));
    world.sender = Some(narrow);
    world.run();
    let end = world.receiver.end();
    assert!(matches!(end, Some(End::Failed(Failure::Refused(r))) if r.reason == Reason::LongSymbols), "{end:?}");
}

#[test]
fn a_peer_without_this_mode_is_an_error_within_a_second() {
    let mut world = world(request());
    world.sender = None;
    for i in 0..3 {
        world.put(BEGIN + ms(10 * i), To::Receiver, b"what else programs SEND to each other".to_vec());
    }
    world.run();
    let expected = Failure::NoDeadlineMode { within: ms(1000), others: 3 };
    assert_eq!(world.receiver.end(), Some(End::Failed(expected)));
    assert_eq!(world.now, BEGIN + ms(1000));
    assert!(world.receiver.whole().is_empty());
}

/// Values that another thread changes while they are sent.
struct Changing {
    bytes: Vec<u8>,
    is_changed: Arc<AtomicBool>,
}

impl Source for Changing {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[offset as usize..][..into.len()]);
        if self.is_changed.load(Ordering::Relaxed) {
            into.iter_mut().for_each(|byte| *byte ^= 1);
        }
    }
}

#[test]
fn values_that_change_while_they_are_sent_are_not_whole() {
    let mut world = world(request());
    let is_changed = Arc::new(AtomicBool::new(false));
    let source = Changing { bytes: bytes(), is_changed: is_changed.clone() };
    world.sender.as_mut().unwrap().offer(OBJECT, Values::new(VERSION, BLOCK_BYTES as u32, source).unwrap());
    // The checksum of the first block is made before its first symbol, and the change comes after.
    while !matches!(world.step(), Some(Step::Arrives(To::Sender, datagram)) if {
        world.hand_over(To::Sender, &datagram);
        true
    }) {}
    let mut datagram = [0; 4096];
    let sender = world.sender.as_mut().unwrap();
    let mut first: Vec<Vec<u8>> = Vec::new();
    while first.len() < 2 {
        let len = sender.poll_transmit(world.now, &mut datagram).unwrap();
        first.push(datagram[..len].to_vec());
    }
    is_changed.store(true, Ordering::Relaxed);
    first.into_iter().for_each(|datagram| world.put(world.now, To::Receiver, datagram));
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Failed(Failure::Spoiled(1))));
    assert_eq!(world.receiver.counters().spoiled_blocks, 1);
    assert_eq!((world.receiver.block(0), world.receiver.whole().count()), (None, BLOCKS - 1));
    assert_eq!(world.receiver.missing(), [Run { first: 0, count: 1 }]);
}

#[test]
fn values_that_are_replaced_end_the_request_with_the_new_version() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.sender.as_mut().unwrap().offer(OBJECT, values(VERSION + 1));
    world.run();
    let end = world.receiver.end();
    let is_it = |r: uroce_transfer::deadline::wire::Refusal| (r.reason, r.version) == (Reason::Withdrawn, VERSION + 1);
    assert!(matches!(end, Some(End::Failed(Failure::Refused(refusal))) if is_it(refusal)), "{end:?}");
    let whole = world.receiver.whole().count();
    assert!((1..BLOCKS).contains(&whole), "{whole}");
}

/// Asks anew for what is missing, and returns how many symbols the sender then sends.
fn fetch_the_rest(world: &mut World, sender: Sender) -> u64 {
    let missing = world.receiver.missing();
    let held: Vec<u32> = (0..BLOCKS).filter(|block| world.receiver.whole().has(*block)).collect();
    assert!(held.iter().all(|number| world.receiver.block(*number) == Some(&block(*number)[..])));
    let request = Request::new(OBJECT, VERSION, shape()).with_runs(missing).by(world.now + ms(5000));
    let receiver = Receiver::new(2, request, world.now).unwrap();
    let mut rest = World::new(sender, receiver, Path::default(), 2, world.now);
    rest.run();
    assert_eq!(rest.receiver.end(), Some(End::Complete));
    assert!((0..BLOCKS).all(|block| rest.receiver.whole().has(block) != held.contains(&block)));
    rest.sender.unwrap().counters().symbols
}

fn symbols(blocks: u32) -> u64 {
    u64::from(blocks) * u64::from(shape().symbols(0))
}

#[test]
fn a_sender_that_dies_is_an_error_within_a_second_and_the_rest_is_fetched_from_another() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.sender = None;
    world.run();
    let end = world.receiver.end();
    assert!(matches!(end, Some(End::Failed(Failure::Silent(_)))), "{end:?}");
    assert!(world.now - BEGIN < ms(50 + 1000 + 200), "{:?}", world.now - BEGIN);
    let whole = world.receiver.whole().count();
    assert!((1..BLOCKS).contains(&whole), "{whole}");
    assert_eq!(fetch_the_rest(&mut world, sender()), symbols(BLOCKS - whole));
}

#[test]
fn a_sender_that_is_started_anew_says_so_at_once() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.sender = Some(sender());
    let restarted = world.now;
    world.run();
    let end = world.receiver.end();
    assert!(matches!(end, Some(End::Failed(Failure::Refused(r))) if r.reason == Reason::NoRequest), "{end:?}");
    assert!(world.now - restarted < ms(150), "{:?}", world.now - restarted);
}

#[test]
fn a_path_that_is_cut_is_an_error_within_a_second_at_both_ends() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.path.cuts.push(world.now..world.now + ms(60_000));
    world.run();
    let end = world.receiver.end();
    assert!(matches!(end, Some(End::Failed(Failure::Silent(_)))), "{end:?}");
    let whole = world.receiver.whole().count();
    world.run_until(BEGIN + ms(2200));
    let sender = world.sender.as_mut().unwrap();
    let events: Vec<_> = std::iter::from_fn(|| sender.poll_event()).collect();
    let began = SenderEvent::Began { request: 1, object: OBJECT };
    assert_eq!(events, [began, SenderEvent::Ended { request: 1, why: SenderEnd::Silent }]);
    assert_eq!((sender.requests(), sender.poll_timeout()), (0, None));
    world.path.cuts.clear();
    let sender = self::sender();
    assert_eq!(fetch_the_rest(&mut world, sender), symbols(BLOCKS - whole));
}

#[test]
fn a_receiver_that_dies_costs_the_sender_no_more_than_a_window() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.path.cuts.push(world.now..world.now + ms(60_000));
    let before = world.sender.as_ref().unwrap().counters();
    world.run_until(BEGIN + ms(3000));
    let after = world.sender.as_ref().unwrap().counters();
    assert!(after.symbols - before.symbols <= symbols(BLOCKS));
    assert_eq!((after.retransmitted, world.sender.unwrap().requests()), (before.retransmitted, 0));
}

#[test]
fn a_deadline_that_is_moved_is_kept_to_by_both_ends() {
    let mut world = world(request().by(BEGIN + ms(60)));
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(50));
    world.receiver.set_deadline(BEGIN + ms(5000), world.now).unwrap();
    assert_eq!(world.receiver.set_deadline(BEGIN, world.now), Err(DeadlineError::Passed { ago: world.now - BEGIN }));
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Complete));
    assert_eq!(world.receiver.set_deadline(BEGIN + ms(9000), world.now), Err(DeadlineError::Ended));
}

#[test]
fn the_sender_stops_when_nothing_more_arrives_in_time() {
    let mut world = world(request().by(BEGIN + ms(60)));
    world.path.rate = 2_500_000;
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Deadline));
    let sent = world.sender.as_ref().unwrap().counters();
    world.run_until(BEGIN + ms(1000));
    assert_eq!(world.sender.as_ref().unwrap().counters().symbols, sent.symbols);
    assert!(sent.symbols < symbols(BLOCKS));
    let sender = world.sender.as_mut().unwrap();
    let last = std::iter::from_fn(|| sender.poll_event()).last();
    assert_eq!(last, Some(SenderEvent::Ended { request: 1, why: SenderEnd::Told(EndReason::Deadline) }));
}

#[test]
fn a_cancelled_transfer_keeps_what_is_whole() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(60));
    let whole = world.receiver.whole().clone();
    world.receiver.cancel();
    assert_eq!(world.receiver.end(), Some(End::Cancelled));
    world.run_until(BEGIN + ms(200));
    assert!(!whole.is_empty());
    assert_eq!(world.receiver.whole(), &whole);
    assert_eq!(world.sender.unwrap().requests(), 0);
}

#[test]
fn what_is_more_important_is_sent_first() {
    let order = vec![Run { first: 15, count: 5 }, Run { first: 0, count: 15 }];
    let mut world = world(request().with_runs(order.clone()));
    world.run();
    let told: Vec<u32> = std::iter::from_fn(|| world.receiver.poll_block()).collect();
    assert_eq!(told, order.into_iter().flat_map(Run::blocks).collect::<Vec<_>>());
}

/// Loses the first transmission of symbols. Returns the world at its end, and how many symbols were sent once more.
fn lose(request: Request, is_lost: impl Fn(&Data<'_>) -> bool) -> (World, Vec<(u32, u32)>) {
    let (mut world, mut again) = (world(request), Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    while world.receiver.end().is_none() {
        match world.step().unwrap() {
            Step::Arrives(To::Receiver, datagram) => {
                if let Body::Data(data) = Datagram::parse(&datagram).unwrap().body {
                    if !seen.insert((data.block, data.symbol)) {
                        again.push((data.block, data.symbol));
                    } else if is_lost(&data) {
                        continue;
                    }
                }
                world.hand_over(To::Receiver, &datagram);
            }
            Step::Arrives(To::Sender, datagram) => world.hand_over(To::Sender, &datagram),
            Step::Time => {}
        }
    }
    assert_eq!(world.receiver.end(), Some(End::Complete));
    (world, again)
}

#[test]
fn what_is_more_important_is_repaired_first_and_only_what_was_lost() {
    let order = vec![Run { first: 7, count: 1 }, Run { first: 2, count: 1 }, Run { first: 9, count: 1 }];
    let (_, again) = lose(request().with_runs(order), |data| data.symbol >= 8);
    assert_eq!(again, [(7, 8), (7, 9), (2, 8), (2, 9), (9, 8), (9, 9)]);
}

#[test]
fn losses_within_the_repair_symbols_cost_no_round_trip() {
    // Ten symbols a block, and three repair symbols.
    let (world, again) = lose(request().with_repair(300), |data| data.symbol % 4 == 1);
    assert_eq!(again, []);
    assert_eq!(world.receiver.counters().decoded_symbols, u64::from(BLOCKS) * 3);
    assert!((0..BLOCKS).all(|number| world.receiver.block(number) == Some(&block(number)[..])));
    // One more than that, and just one is sent once more, of each block.
    let (world, again) = lose(request().with_repair(300), |data| data.symbol % 3 == 1);
    assert_eq!(again.len(), BLOCKS as usize, "{again:?}");
    assert_eq!(world.sender.unwrap().counters().repair_symbols, u64::from(BLOCKS) * 3);
}

#[test]
fn a_request_that_does_not_fit_into_a_datagram_goes_in_parts() {
    let shape = Shape::new(1000, 1, 64).unwrap();
    let order: Vec<Run> = (0..1000).rev().map(|first| Run { first, count: 1 }).collect();
    let mut world = world(Request::new(5, 1, shape).with_runs(order).by(BEGIN + ms(5000)));
    world.sender.as_mut().unwrap().offer(5, Values::new(1, 1, bytes()[..1000].to_vec()).unwrap());
    world.path.loss = 0.2;
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Complete));
    let bytes = bytes();
    assert!((0..1000).all(|block| world.receiver.block(block) == Some(&bytes[block as usize..][..1])));
}

#[test]
fn forged_and_cut_reports_change_nothing() {
    let mut world = world(request());
    world.path.rate = 5_000_000;
    world.run_until(BEGIN + ms(30));
    let report = |arrived: &[Run], words: &[WholeWord]| Report {
        sequence: u32::MAX,
        left_us: 0,
        newest: arrived.first().map_or(0, |run| run.first),
        delay_us: 0,
        arrived: arrived.to_vec(),
        words: words.to_vec(),
    };
    let one = Run { first: 1, count: 1 };
    let forged = [
        report(&[one], &[]),
        report(&[Run { first: 1, count: u32::MAX - 1 }], &[]),
        report(&[], &[WholeWord { index: 0, bits: 1 }]),
        report(&[], &[WholeWord { index: 3, bits: 1 << (BLOCKS % 64) }]),
        report(&[], &[WholeWord { index: 70_000_000, bits: 1 }]),
    ];
    let mut bytes = [0; 1024];
    let sender = world.sender.as_mut().unwrap();
    for (count, report) in (1..).zip(forged) {
        let len = Datagram { request: 1, body: Body::Report(report) }.write(&mut bytes).unwrap();
        sender.handle_datagram(world.now, &bytes[..len]);
        assert_eq!(sender.counters().forged, count);
        // Cut, it is none.
        let malformed = sender.counters().malformed;
        sender.handle_datagram(world.now, &bytes[..len - 4]);
        assert_eq!(sender.counters().malformed, malformed + 1);
    }
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Complete));
}

#[test]
fn symbols_that_the_request_does_not_have_are_not_placed() {
    let mut world = world(request().with_repair(100).with_runs(vec![Run { first: 0, count: 2 }]));
    world.run_until(BEGIN + ms(1));
    let payload = [7; 512];
    let data = |block: u32, symbol: u32, len: usize| {
        Body::Data(Data { version: VERSION, number: 8, block, symbol, crc: 5, payload: &payload[..len] })
    };
    // Blocks: none, not wanted. Symbols: after the repair symbol; as long as it is not.
    let bad = [(BLOCKS, 0, 512), (2, 0, 512), (u32::MAX, 0, 1), (0, 11, 512), (0, 0, 511), (0, 9, 512), (0, 10, 392)];
    let mut bytes = [0; 1024];
    for (count, (block, symbol, len)) in (1..).zip(bad) {
        let len = Datagram { request: 1, body: data(block, symbol, len) }.write(&mut bytes).unwrap();
        world.receiver.handle_datagram(world.now, &bytes[..len]);
        assert_eq!(world.receiver.counters().impossible, count);
    }
    assert_eq!(world.receiver.counters().placed, 0);
    world.run();
    assert_eq!(world.receiver.end(), Some(End::Complete));
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let mut sender = sender();
    let mut bytes = [0; 1024];
    let mut part = |request: u64, part: u8, version: u64, first: u32| {
        let runs = vec![Run { first, count: 2 }];
        let shape = shape();
        let asked = uroce_transfer::deadline::wire::RequestPart {
            object: OBJECT,
            version,
            shape,
            repair_per_mille: 0,
            left_us: 1_000_000,
            part,
            parts: 2,
            runs,
        };
        let len = Datagram { request, body: Body::Request(asked) }.write(&mut bytes).unwrap();
        sender.handle_datagram(BEGIN, &bytes[..len]);
        let len = sender.poll_transmit(BEGIN, &mut bytes)?;
        match Datagram::parse(&bytes[..len]).unwrap().body {
            Body::Refusal(refusal) => Some(refusal.reason),
            other => panic!("{other:?}"),
        }
    };
    // Versions mixed in one request.
    assert_eq!((part(1, 0, VERSION, 0), part(1, 1, VERSION + 1, 4)), (None, Some(Reason::Contradiction)));
    // A block twice.
    assert_eq!((part(2, 0, VERSION, 0), part(2, 1, VERSION, 1)), (None, Some(Reason::Contradiction)));
    // The refusal of a repeated request is repeated.
    assert_eq!(part(2, 0, VERSION, 0), Some(Reason::Contradiction));
    assert_eq!(sender.counters().refused, 2);
}

/// A stranger asks in somebody else's name, and reports for half a minute that nothing has arrived: the sender learns of no
/// number, and sends a few windows.
#[test]
fn who_sees_no_answers_gets_few_of_them_sent_to_others() {
    let mut sender = sender();
    let mut bytes = [0; 4096];
    let asked = uroce_transfer::deadline::wire::RequestPart {
        object: OBJECT,
        version: VERSION,
        shape: shape(),
        repair_per_mille: 0,
        left_us: 60_000_000,
        part: 0,
        parts: 1,
        runs: vec![Run { first: 0, count: BLOCKS }],
    };
    let len = Datagram { request: 1, body: Body::Request(asked) }.write(&mut bytes).unwrap();
    sender.handle_datagram(BEGIN, &bytes[..len]);
    let mut sent = 0;
    for step in 1..1500 {
        let now = BEGIN + ms(20 * u64::from(step));
        let nothing =
            Report { sequence: step, left_us: 60_000_000, newest: 0, delay_us: 0, arrived: vec![], words: vec![] };
        let len = Datagram { request: 1, body: Body::Report(nothing) }.write(&mut bytes).unwrap();
        sender.handle_datagram(now, &bytes[..len]);
        sender.handle_timeout(now);
        while let Some(len) = sender.poll_transmit(now, &mut bytes) {
            sent += len;
        }
    }
    // At once, and after 1.1, 3.4, 7.9 and 16.9 seconds.
    assert!((131_072..6 * 131_072).contains(&sent), "{sent}");
}

/// Requests of a quarter of the object, with deadlines of which 90 of 100 requests keep to, over a path that loses 2 % and becomes
/// five times as long. Only blocks that are whole by a deadline count.
#[test]
fn deadlines_by_history_are_kept_to_and_follow_the_path() {
    const SHARE: f64 = 0.9;
    const REQUESTS: usize = 400;
    let (mut sender, mut now) = (Some(sender()), BEGIN);
    let mut history = History::new(SHARE);
    let mut ended: Vec<(End, Duration)> = Vec::new();
    for number in 0..REQUESTS as u64 {
        let count = BLOCKS / 4;
        let bytes = u64::from(count) * BLOCK_BYTES as u64;
        let deadline = history.deadline(bytes).unwrap_or(ms(2000));
        let runs = vec![Run { first: number as u32 % 4 * count, count }];
        let receiver = Receiver::new(100 + number, request().with_runs(runs).by(now + deadline), now).unwrap();
        let mut world = World::new(sender.take().unwrap(), receiver, Path::default(), number, now);
        world.path.loss = 0.02;
        world.path.delay = if number < REQUESTS as u64 / 2 { ms(5) } else { ms(25) };
        world.run();
        let (end, lasted) = (world.receiver.end().unwrap(), world.now - now);
        history.record(&world.receiver, lasted);
        ended.push((end, lasted));
        // The sender hears of the end, and has nothing left to send.
        world.run_until(world.now + ms(200));
        (sender, now) = (world.sender.take(), world.now);
    }
    // Three deviations of a hundred trials are 0.09.
    let (before, after) = (&ended[50..150], &ended[300..400]);
    for some in [before, after] {
        let whole = some.iter().filter(|(end, _)| *end == End::Complete).count();
        assert!(whole as f64 / some.len() as f64 > SHARE - 0.09, "{whole}: {ended:?}");
    }
    let longest = |some: &[(End, Duration)]| some.iter().map(|(_, lasted)| *lasted).max();
    assert!(longest(before) < Some(ms(100)) && longest(after) > Some(ms(50)), "{ended:?}");
}

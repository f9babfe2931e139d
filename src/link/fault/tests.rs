use crate::pcap::Direction;
use crate::time::{Duration, Instant};

use super::spec::KEYS;
use super::*;

fn ms(ms: u64) -> Instant {
    Instant::from_ns(ms * 1_000_000)
}

#[test]
fn the_contracts_example_is_read() {
    let spec: FaultSpec = "loss=0.01,dup=0.01,reorder=0.01,delay=2ms,corrupt=0.001,seed=7".parse().unwrap();
    let expected = FaultSpec {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.01,
        delay: Duration::from_millis(2),
        corrupt: 0.001,
        seed: 7,
        ..FaultSpec::default()
    };
    assert_eq!(spec, expected);
    assert_eq!("".parse(), Ok(FaultSpec::default()));
    for text in
        ["loss=0.01,dup=1,reorder=0.125,seed=18446744073709551615", "reorder_by=9,delay=1500ns,direction=rx", ""]
    {
        assert_eq!(text.parse::<FaultSpec>().unwrap().to_string(), text);
    }
    let spec: FaultSpec = "direction=rx, delay=1.5us ,delay_share=0.25,reorder_by=9".parse().unwrap();
    assert_eq!(
        (spec.direction, spec.delay, spec.delay_share),
        (FaultDirection::Received, Duration::from_nanos(1500), 0.25)
    );
    assert_eq!(spec.reorder_by, 9);
}

#[test]
fn errors_say_which_item_is_wrong_and_what_would_be_right() {
    let error = |text: &str| text.parse::<FaultSpec>().unwrap_err().to_string();
    let share = "use a share from 0 to 1, as in 0.01 or 1%: one frame in a hundred";
    assert_eq!(error("seed=1,loss=101%"), format!("faults: item 2, `loss=101%`: {share}"));
    assert_eq!("loss=1%".parse::<FaultSpec>(), "loss=0.01".parse());
    for wrong in ["loss=2", "loss=-0.1", "loss=NaN", "loss="] {
        assert_eq!(error(wrong), format!("faults: item 1, `{wrong}`: {share}"));
    }
    assert_eq!(error("lost=1"), format!("faults: item 1, `lost=1`: there is no key `lost`; keys are {KEYS}"));
    assert_eq!(error("loss=1,,"), format!("faults: item 2, ``: not key=value; keys are {KEYS}"));
    assert_eq!(error("loss=1,loss=0"), "faults: item 2, `loss=0`: `loss` is given twice");
    for wrong in ["delay=2", "delay=ms", "delay=61s", "delay=-1ms", "delay=inf s"] {
        assert!(error(wrong).ends_with("of up to 60s, such as 2ms"), "{wrong}");
    }
    assert!(error("direction=up").ends_with("use `tx`, `rx` or `both`"));
    assert!(error("reorder_by=0").ends_with("from 1 to 1000"));
    assert!(error("seed=-1").ends_with("use a whole number from 0 to 2^64 - 1"));
}

fn fates(spec: &str, count: usize) -> Vec<Fate> {
    let mut engine = FaultEngine::new(spec.parse().unwrap());
    (0..count).map(|_| engine.decide(Direction::Sent)).collect()
}

#[test]
fn the_same_seed_gives_the_same_fates_and_another_seed_others() {
    let spec = "loss=0.1,dup=0.1,reorder=0.1,corrupt=0.1,delay=1ms,delay_share=0.5,seed=";
    assert_eq!(fates(&format!("{spec}7"), 1000), fates(&format!("{spec}7"), 1000));
    assert_ne!(fates(&format!("{spec}7"), 1000), fates(&format!("{spec}8"), 1000));
}

#[test]
fn one_direction_does_not_disturb_the_other_nor_one_kind_another() {
    let mut engine = FaultEngine::new("loss=0.1,seed=3".parse().unwrap());
    let mixed = (0..1000).map(|_| {
        engine.decide(Direction::Received);
        engine.decide(Direction::Sent).is_lost
    });
    let alone: Vec<_> = fates("loss=0.1,seed=3", 1000).iter().map(|f| f.is_lost).collect();
    assert_eq!(mixed.collect::<Vec<_>>(), alone);
    let more = fates("loss=0.1,seed=3,dup=0.5,corrupt=0.5,reorder=0.5", 1000);
    assert_eq!(more.iter().map(|f| f.is_lost).collect::<Vec<_>>(), alone);
    let mut engine = FaultEngine::new("loss=1,direction=tx".parse().unwrap());
    assert!(engine.decide(Direction::Sent).is_lost && !engine.decide(Direction::Received).is_lost);
}

/// 100,000 frames: shares lie within five standard deviations.
#[test]
fn faults_are_as_frequent_as_asked() {
    let count = 100_000;
    let fates = fates("dup=0.02,reorder=0.3,corrupt=0.001,delay=1ms,delay_share=0.5,seed=11", count);
    let share = |is: fn(&Fate) -> bool| fates.iter().filter(|f| is(f)).count() as f64 / count as f64;
    for (measured, asked) in [
        (share(|f| f.is_duplicated), 0.02),
        (share(|f| f.overtaken_by == 3), 0.3),
        (share(|f| f.corruption.is_some()), 0.001),
        (share(|f| f.delay > Duration::ZERO), 0.5),
        (share(|f| f.is_lost), 0.0),
    ] {
        let deviation = (asked * (1.0 - asked) / count as f64).sqrt();
        assert!((measured - asked).abs() <= 5.0 * deviation, "{measured} instead of {asked}");
    }
}

#[test]
fn one_to_three_bits_are_flipped() {
    let mut seen = [0; 4];
    for fate in fates("corrupt=1,seed=5", 1000) {
        let mut bytes = [0u8; 40];
        fate.corruption.unwrap().apply(&mut bytes);
        seen[bytes.iter().map(|b| b.count_ones()).sum::<u32>() as usize] += 1;
    }
    assert!(seen[0] == 0 && seen[1..].iter().all(|n| *n > 250), "{seen:?}");
    fates("corrupt=1", 1)[0].corruption.unwrap().apply(&mut []);
}

#[test]
fn delayed_frames_come_in_the_order_of_their_times() {
    let mut queue = HoldQueue::new(10);
    let delayed = |ms| Fate { delay: Duration::from_millis(ms), ..Fate::default() };
    for (name, delay) in [('a', 3), ('b', 1), ('c', 1)] {
        queue.hold(ms(0), &delayed(delay), name).unwrap();
    }
    assert_eq!((queue.release(ms(0)), queue.poll_timeout()), (None, Some(ms(1))));
    assert_eq!([queue.release(ms(1)), queue.release(ms(1)), queue.release(ms(1))], [Some('b'), Some('c'), None]);
    assert_eq!((queue.release(ms(9)), queue.poll_timeout()), (Some('a'), None));
}

#[test]
fn overtaken_frames_let_as_many_go_first_as_they_shall_or_go_on_after_a_while() {
    let mut queue = HoldQueue::new(10);
    let overtaken = |overtaken_by, delay| Fate { overtaken_by, delay: Duration::from_millis(delay), ..Fate::default() };
    queue.hold(ms(0), &overtaken(2, 0), 'a').unwrap();
    queue.overtake();
    assert_eq!(queue.release(ms(0)), None);
    queue.overtake();
    assert_eq!(queue.release(ms(0)), Some('a'));
    queue.hold(ms(5), &overtaken(2, 0), 'b').unwrap();
    assert_eq!((queue.release(ms(5)), queue.poll_timeout(), queue.release(ms(6))), (None, Some(ms(6)), Some('b')));
    // With a delay for all: the overtaken one lets two go first that come out of the delay, too.
    for (name, others) in [('c', 2), ('d', 0), ('e', 0), ('f', 0)] {
        queue.hold(ms(10), &overtaken(others, 4), name).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| queue.release(ms(14))).collect();
    assert_eq!(order, ['d', 'e', 'c', 'f']);
}

#[test]
fn a_full_queue_gives_the_frame_back() {
    let mut queue = HoldQueue::new(1);
    let fate = Fate { delay: Duration::from_millis(1), ..Fate::default() };
    assert_eq!(queue.hold(ms(0), &fate, 'a'), Ok(()));
    assert_eq!(queue.hold(ms(0), &fate, 'b'), Err('b'));
    assert_eq!(queue.len(), 1);
}

#[test]
fn captures_remark_what_happened() {
    assert_eq!(Fate { is_lost: true, ..Fate::default() }.to_string(), "fault: lost");
    let fate = Fate {
        corruption: Some(Corruption { count: 1, draws: [0; 3] }),
        is_duplicated: true,
        delay: Duration::from_millis(2),
        overtaken_by: 3,
        is_lost: false,
    };
    assert_eq!(fate.to_string(), "fault: corrupted, duplicated, delayed 2ms, overtaken by 3");
    assert_eq!(Fate::default().to_string(), "");
}

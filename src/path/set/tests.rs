use proptest::prelude::*;

use super::*;

fn at(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A set in use whose probes are answered after a round trip, but for those on paths that are dark.
struct World {
    set: PathSet,
    now: Instant,
    round_trips: Vec<Duration>,
    dark: Vec<bool>,
    on_the_way: Vec<(Instant, Probe)>,
    sent: Vec<(Instant, u8)>,
    tokens: u32,
}

impl World {
    fn new(policy: PathPolicy, round_trips: &[Duration]) -> World {
        let set = PathSet::new(round_trips.len() as u16, policy);
        let (on_the_way, sent) = (Vec::new(), Vec::new());
        let dark = vec![false; round_trips.len()];
        World { set, now: at(0), round_trips: round_trips.to_vec(), dark, on_the_way, sent, tokens: 0 }
    }

    /// Lets time pass until `until`, with the connection in use if `in_use`.
    fn run(&mut self, until: Instant, in_use: bool) {
        while self.now < until {
            if in_use {
                self.set.touch(self.now);
            }
            self.set.handle_timeout(self.now);
            while let Some(probe) = self.set.poll_probe(self.now, || {
                self.tokens += 1;
                self.tokens
            }) {
                self.sent.push((self.now, probe.path));
                if !self.dark[usize::from(probe.path)] {
                    self.on_the_way.push((self.now + self.round_trips[usize::from(probe.path)], probe));
                }
            }
            let now = self.now;
            let (due, rest) = std::mem::take(&mut self.on_the_way).into_iter().partition(|(at, _)| *at <= now);
            self.on_the_way = rest;
            let due: Vec<(Instant, Probe)> = due;
            for (_, probe) in due {
                // Nobody waits any more for one that was sent before its path failed.
                self.set.answered(probe.path, probe.token, Duration::ZERO, now);
            }
            self.now = now + Duration::from_micros(100);
        }
    }

    fn chosen(&mut self, packets: usize) -> Vec<u32> {
        let mut counts = vec![0; self.round_trips.len()];
        (0..packets).for_each(|_| counts[usize::from(self.set.choose(self.now))] += 1);
        counts
    }
}

#[test]
fn a_path_carries_packets_from_its_first_answered_probe_on() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(10), ms(10), ms(30)]);
    assert_eq!(world.chosen(6), [6, 0, 0]);
    world.run(at(9_000), true);
    assert_eq!(world.chosen(6), [6, 0, 0]);
    world.run(at(12_000), true);
    assert_eq!((world.chosen(6), world.set.good()), (vec![3, 3, 0], 2));
    world.run(at(33_000), true);
    assert_eq!((world.chosen(6), world.set.good()), (vec![2, 2, 2], 3));
    assert_eq!(world.set.spread(), ms(20));
}

#[test]
fn a_path_whose_probes_stay_unanswered_is_dark_within_two_round_trips_and_back_with_the_first_answer() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(40); 4]);
    world.run(at(400_000), true);
    assert_eq!(world.set.good(), 4);
    world.dark[2] = true;
    let from = world.now;
    while world.set.good() == 4 {
        world.run(world.now + Duration::from_micros(100), true);
        assert!(world.now - from < ms(80), "{:?}", world.now - from);
    }
    assert_eq!(world.chosen(8), [3, 3, 0, 2]);
    assert!(world.now - from > ms(45));
    // Probed ever less often.
    world.run(world.now + ms(2000), true);
    let probes =
        |world: &World| world.sent.iter().filter(|(_, path)| *path == 2).map(|(at, _)| *at).collect::<Vec<_>>();
    let times = probes(&world);
    let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let longest = pauses.iter().max().unwrap();
    assert!((ms(100)..ms(102)).contains(longest), "{longest:?}");
    world.dark[2] = false;
    world.run(world.now + ms(145), true);
    assert_eq!(world.set.good(), 4);
}

#[test]
fn a_path_whose_queue_grows_is_not_dark() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(8); 2]);
    world.run(at(400_000), true);
    assert_eq!(world.set.good(), 2);
    for step in 0..60 {
        world.round_trips[1] += Duration::from_micros(800);
        world.run(world.now + ms(1), true);
        assert_eq!(world.set.good(), 2, "after {step} ms");
    }
}

#[test]
fn when_nothing_is_answered_no_path_is_to_blame() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(10); 4]);
    world.run(at(200_000), true);
    world.dark = vec![true; 4];
    world.run(at(600_000), true);
    assert_eq!(world.set.good(), 4);
    world.dark = vec![false; 4];
    world.run(at(900_000), true);
    assert_eq!(world.set.good(), 4);
}

#[test]
fn one_lost_probe_makes_no_path_dark() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(20); 2]);
    world.run(at(200_000), true);
    for _ in 0..50 {
        // Two of eight in a round trip.
        world.dark[1] = true;
        world.run(world.now + ms(5), true);
        world.dark[1] = false;
        world.run(world.now + ms(15), true);
        assert_eq!(world.set.good(), 2);
    }
}

#[test]
fn nothing_is_probed_that_is_not_in_use() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(10); 3]);
    assert_eq!(world.set.deadline(), None);
    world.run(at(300_000), true);
    let probes = world.sent.len();
    assert!((600..=720).contains(&probes), "{probes} probes of 3 paths in 300 ms, each in 1.25 ms");
    world.run(at(500_000), false);
    assert_eq!(world.set.deadline(), None);
    let idle = world.sent.len();
    world.run(at(900_000), false);
    assert_eq!(world.sent.len(), idle);
    // In use again: what was not answered then is not held against anybody.
    world.run(at(1_200_000), true);
    assert_eq!(world.set.good(), 3);
}

#[test]
fn acknowledges_take_the_quickest_path_that_works() {
    let mut world = World::new(PathPolicy::RoundRobin, &[ms(40), ms(10), ms(20), ms(19)]);
    world.run(at(500_000), true);
    assert_eq!(world.set.quickest(), 1);
    let others: Vec<_> = (0..6).map(|_| world.set.another().unwrap()).collect();
    assert_eq!(others, [0, 2, 3, 0, 2, 3]);
    // Nearly as quick is no reason to change.
    world.round_trips[2] = Duration::from_micros(9500);
    world.run(at(1_000_000), true);
    assert_eq!(world.set.quickest(), 1);
    assert!(world.set.fail(1, world.now));
    assert_eq!(world.set.quickest(), 2);
}

#[test]
fn the_last_path_never_fails_and_a_closed_one_is_not_probed() {
    let mut set = PathSet::new(2, PathPolicy::RoundRobin);
    assert!(!set.fail(0, at(0)));
    set.open(1, false, at(0));
    set.touch(at(0));
    set.handle_timeout(at(0));
    let probe = set.poll_probe(at(0), || 7).unwrap();
    assert_eq!((probe, set.poll_probe(at(0), || 8)), (Probe { path: 0, token: 7 }, None));
    set.open(1, true, at(100));
    set.handle_timeout(at(100));
    assert_eq!(set.poll_probe(at(100), || 9), Some(Probe { path: 1, token: 9 }));
    // Answers to what was not sent, on paths that there are and are not.
    for (path, token) in [(1, 7), (0, 9), (2, 9), (255, 7)] {
        assert_eq!(set.answered(path, token, Duration::ZERO, at(200)), None);
    }
    assert!(set.answered(1, 9, Duration::ZERO, at(300)).unwrap().is_back);
    assert_eq!(set.answered(1, 9, Duration::ZERO, at(300)), None, "an answer counts once");
    assert_eq!(set.good(), 2);
    set.open(1, false, at(400));
    assert_eq!((set.good(), set.choose(at(400))), (1, 0));
}

#[test]
fn a_marked_path_is_left_alone_for_a_round_trip_by_a_policy_that_wants_that() {
    let mut world = World::new(PathPolicy::Recycle, &[ms(10); 2]);
    world.run(at(100_000), true);
    world.set.arrived(1, ms(10), true, world.now);
    assert_eq!(world.chosen(10), [10, 0]);
    world.run(world.now + ms(11), true);
    assert_eq!(world.chosen(10), [5, 5]);
}

/// What is kept of the paths is what a scan of them finds.
fn check(set: &PathSet) {
    let all = || (0..=255u8).zip(&set.states);
    let open = || all().filter(|(_, state)| state.condition != PathCondition::Closed);
    let good = || all().filter(|(_, state)| state.condition == PathCondition::Good);
    assert_eq!(set.open, open().map(|(path, _)| path).collect());
    assert_eq!(set.good, good().map(|(path, _)| path).collect());
    assert_eq!(usize::from(set.good()), good().count());
    assert!(set.usable.iter().all(|path| set.is_good(path)) && set.due.iter().all(|path| set.open.contains(path)));
    let timed: Vec<Duration> = open().filter_map(|(_, state)| state.round_trip.smoothed()).collect();
    let spread = timed.iter().max().zip(timed.iter().min()).map(|(greatest, least)| *greatest - *least);
    assert_eq!(set.spread(), spread.unwrap_or_default());
    assert_eq!(set.linger, (timed.iter().max().copied().unwrap_or_default() * LINGER_ROUND_TRIPS).max(LINGER_MIN));
    if let Some(least) = good().filter_map(|(_, state)| state.round_trip.smoothed()).min() {
        let quickest = set.states[usize::from(set.quickest())].round_trip.smoothed();
        assert!(set.is_good(set.quickest()) && quickest.is_some_and(|quickest| quickest <= least * 8 / 7 + ms(1)));
    }
    if set.tick_at.is_some() {
        let next = open().map(|(_, state)| Reverse(state.probe_at)).max();
        assert_eq!(set.ticks.greatest(), next);
        let silence = good().filter_map(|(_, state)| state.silence(set.least_interval())).min();
        assert!(silence.is_none_or(|(from, _)| set.silences.greatest() >= Some(Reverse(from))), "it is noticed");
    }
}

proptest! {
    #[test]
    fn what_is_kept_of_paths_is_what_a_scan_of_them_finds(
        steps in prop::collection::vec((0..8u8, 0..12u8, 0..20_000u64), 0..300)
    ) {
        let (mut set, mut now, mut tokens) = (PathSet::new(8, PathPolicy::Recycle), at(1_000_000), 0);
        let mut probes = Vec::new();
        for (step, path, us) in steps {
            now = now + Duration::from_micros(us);
            match step {
                0 => set.open(path, us % 2 == 0, now),
                1 => drop(set.fail(path, now)),
                2 => set.arrived(path, Duration::from_micros(us), us % 3 == 0, now),
                3 => set.grow(path.into()),
                4 => set.touch(now),
                _ => {
                    set.touch(now);
                    set.handle_timeout(now);
                    let draw = || { tokens += 1; tokens };
                    probes.extend(set.poll_probe(now, draw));
                    let index = us as usize % probes.len().max(1);
                    if us % 4 > 0 && index < probes.len() {
                        let Probe { path, token } = probes.swap_remove(index);
                        set.answered(path, token, Duration::ZERO, now);
                    }
                }
            }
            let chosen = set.choose(now);
            prop_assert!(set.good() == 0 || set.is_good(chosen));
            check(&set);
        }
    }
}

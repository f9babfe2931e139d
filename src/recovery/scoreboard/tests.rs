use proptest::prelude::*;

use super::*;

fn at(us: u64) -> Instant {
    Instant::from_ns(1_000_000_000 + us * 1000)
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn packet(count: u32, answers: bool, path: u8) -> Departure {
    Departure { count, answers, path, bytes: 100, asks: true }
}

/// Whose first `requests` requests were sent, one a microsecond from 0 on, over the path that `path` says.
fn board(requests: u64, path: impl Fn(u64) -> u8) -> Scoreboard {
    let mut board = Scoreboard::new(0, us(100_000));
    (0..requests).for_each(|position| board.sent(position, packet(1, false, path(position)), at(position)));
    board
}

/// The results of packets since the last call.
fn reports(board: &mut Scoreboard) -> Vec<PathReport> {
    let told = board.reports().to_vec();
    board.forget_reports();
    told
}

/// All that is to be sent again, which it is at that time, over `path`.
fn resend(board: &mut Scoreboard, path: u8, now: Instant) -> Vec<u64> {
    let mut again = Vec::new();
    while let Some(Wants::Request(position)) = board.wants() {
        board.sent(position, packet(1, false, path), now);
        again.push(position);
    }
    again
}

/// A READ of 256 MiB at path MTU 256 behind a window of WRITEs that never ends.
#[test]
fn what_a_long_read_took_is_given_back_although_something_is_always_in_flight() {
    // Miri takes an hour for a million.
    const ANSWERS: u32 = if cfg!(miri) { 1 << 13 } else { 1 << 20 };
    let mut board = Scoreboard::new(0, us(100_000));
    board.sent(0, packet(ANSWERS, true, 0), at(0));
    let at_most = board.memory_bytes();
    assert!(at_most >= 12 * ANSWERS as usize, "{at_most} bytes");
    // Every other answer comes first.
    for position in (1..u64::from(ANSWERS)).step_by(2).chain((0..u64::from(ANSWERS)).step_by(2)) {
        board.answered(position, at(900));
    }
    board.sent(u64::from(ANSWERS), packet(1, false, 0), at(901));
    assert_eq!(board.settle(at(902)), u64::from(ANSWERS));
    assert!(board.memory_bytes() < 64 << 10, "{} bytes", board.memory_bytes());
    // What is in flight is still known.
    board.carried_out_before(u64::from(ANSWERS) + 1, at(903));
    assert_eq!(board.settle(at(904)), u64::from(ANSWERS) + 1);
    assert_eq!(board.deadline(), None);
}

#[test]
fn the_usual_window_keeps_its_room() {
    let mut board = board(1000, |_| 0);
    let bytes = board.memory_bytes();
    board.carried_out_before(1000, at(1900));
    assert_eq!(board.settle(at(1900)), 1000);
    assert_eq!(board.memory_bytes(), bytes);
}

/// A path that is dark while two thousand million packets go over others has an arrival to its name that looks as if it was to come
/// yet: by number it is after all that is sent on it now.
#[test]
fn an_arrival_of_long_ago_has_overtaken_nothing() {
    let mut board = board(1, |_| 0);
    board.spread_over_paths(us(1000));
    board.carried_out_before(1, at(800));
    assert_eq!(board.settle(at(800)), 1);
    board.transmissions = board.transmissions.wrapping_add((1 << 31) + 5);
    board.sent(1, packet(1, false, 0), at(1000));
    board.settle(at(1001));
    assert!(!board.handle_timeout(at(1000 + 800 + 100)));
    assert_eq!(board.wants(), None, "nothing that was sent later has arrived");
}

#[test]
fn a_gap_says_nothing_before_a_round_trip_and_an_eighth_have_passed() {
    let mut board = board(10, |_| 0);
    assert!(!board.measured(9, 0, Some(us(0)), false, at(809)));
    for position in [0, 1, 3, 4, 5, 6, 7, 8, 9] {
        board.arrived(position, at(809));
    }
    board.carried_out_before(2, at(809));
    assert_eq!(board.settle(at(809)), 2);
    assert_eq!(board.wants(), None);
    // The later ones took 800 µs, and may be late by an eighth of that; packet 2 left at 2.
    let due = board.deadline().unwrap();
    assert_eq!(due, at(2 + 800 + 100));
    assert!(!board.handle_timeout(due));
    assert_eq!(resend(&mut board, 0, due), [2]);
    assert_eq!(board.attempts(2), 2);
    board.carried_out_before(10, at(1800));
    assert_eq!((board.settle(at(1800)), board.deadline()), (10, None));
}

#[test]
fn nothing_is_lost_because_of_what_left_on_another_path_until_its_own_round_trip_and_a_quarter_have_passed() {
    let mut board = board(10, |position| (position % 2) as u8);
    board.spread_over_paths(us(1000));
    board.path_answered(0, us(400), false);
    board.path_answered(1, us(1400), false);
    // All of path 0 arrives.
    (0..10).step_by(2).for_each(|position| board.arrived(position, at(400 + position)));
    board.carried_out_before(1, at(409));
    board.settle(at(409));
    let told = reports(&mut board);
    assert!(told.iter().all(|report| matches!(report, PathReport::Arrived { path: 0, .. })) && told.len() == 5);
    assert_eq!(board.deadline(), Some(at(1 + 1400 + 2 * 175)));
    board.handle_timeout(at(1 + 1400 + 2 * 175 - 1));
    assert_eq!(board.wants(), None);
    // Packet 9 was sent after all that arrived.
    board.handle_timeout(at(1800));
    assert_eq!(resend(&mut board, 0, at(1800)), [1, 3, 5, 7]);
    let told = reports(&mut board);
    assert_eq!(told.iter().filter(|report| **report == PathReport::Lost(1)).count(), 4);
    assert_eq!(told.iter().filter(|report| **report == PathReport::Dark(1)).count(), 1, "after three in a row");
}

#[test]
fn what_a_detour_told_counts_for_its_path_when_it_is_heard_the_usual_way() {
    for is_heard in [false, true] {
        let mut board = board(4, |_| 0);
        board.spread_over_paths(us(0));
        board.path_answered(0, us(800), false);
        // A copy of an acknowledge, which overtook those that tell of packet 0.
        board.listen(true);
        (1..4).for_each(|position| board.arrived(position, at(500)));
        board.listen(false);
        board.settle(at(500));
        assert_eq!(reports(&mut board).len(), 3);
        if is_heard {
            (1..4).for_each(|position| board.arrived(position, at(903)));
        }
        board.settle(at(903));
        assert_eq!(reports(&mut board).len(), 0, "they arrived once");
        board.handle_timeout(at(1100));
        assert_eq!(resend(&mut board, 0, at(1100)), if is_heard { vec![0] } else { Vec::new() });
    }
}

#[test]
fn what_was_sent_again_in_vain_makes_it_more_patient() {
    let late = |in_vain: u64| {
        let mut board = board(20, |_| 0);
        board.measured(0, 0, Some(us(0)), false, at(800));
        for position in 0..in_vain {
            board.lose(position);
            resend(&mut board, 0, at(810));
            assert!(board.measured(position, 0, Some(us(0)), false, at(820)));
            board.arrived(position, at(820));
        }
        board.arrived(19, at(819));
        board.carried_out_before(in_vain, at(820));
        board.settle(at(820));
        board.deadline().unwrap() - at(in_vain)
    };
    assert_eq!([0, 1, 2, 7, 12].map(late), [900, 1000, 1100, 1600, 1600].map(us));
}

#[test]
fn answers_are_missing_when_a_later_one_has_come_and_are_asked_for_again_together() {
    let mut board = Scoreboard::new(0, us(100_000));
    board.sent(0, packet(8, true, 0), at(0));
    board.measured(0, 0, Some(us(0)), false, at(800));
    board.arrived(0, at(800));
    for position in [0, 1, 5, 7] {
        assert!(board.awaits_answer(position));
        board.answered(position, at(800));
    }
    assert_eq!((board.settle(at(800)), board.wants()), (2, None));
    board.handle_timeout(at(900));
    assert_eq!(board.wants(), Some(Wants::Answers(2, 3)));
    board.asked(2, 3, at(900));
    assert_eq!(board.wants(), Some(Wants::Answers(6, 1)));
    board.asked(6, 1, at(900));
    assert_eq!(board.wants(), None);
    for position in [2, 3, 4, 6] {
        board.answered(position, at(1700));
    }
    assert_eq!(board.settle(at(1700)), 8);
}

/// Found with a host that was late: what it requested again, its peer's low rate could not bring in time, so it was requested
/// once more, and counted as lost each time.
#[test]
fn an_answer_that_is_asked_for_again_has_twice_as_long_each_time() {
    let mut board = Scoreboard::new(0, us(100_000));
    board.sent(0, packet(4000, true, 0), at(0));
    board.measured(0, 0, Some(us(0)), false, at(800));
    board.arrived(0, at(800));
    assert_eq!(board.patience(), us(2400));
    let mut asked = Vec::new();
    // All others come one after the other.
    for position in (0..4000).filter(|position| *position != 2) {
        let now = at(800 + 50 * position);
        board.answered(position, now);
        board.settle(now);
        if let Some(Wants::Answers(2, 1)) = board.wants() {
            board.asked(2, 1, now);
            asked.push(now);
        }
    }
    let pauses: Vec<_> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_micros() / 100 * 100).collect();
    assert_eq!(pauses, [2400, 4800, 9600, 19_200, 38_400, 76_800]);
}

#[test]
fn silence_has_the_oldest_sent_again_less_and_less_often() {
    let mut board = board(100, |_| 0);
    let mut now = board.deadline().unwrap();
    assert_eq!(now, at(99 + 100_000));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert!(board.handle_timeout(now));
        assert_eq!(resend(&mut board, 0, now), [0]);
        let next = board.deadline().unwrap();
        pauses.push((next - now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [200, 400, 800, 1600, 3200, 3200, 3200, 3200]);
}

/// A board whose four first packets took 800 µs, and whose patience is 2.4 ms from then on.
fn measured_board() -> Scoreboard {
    let mut board = board(4, |_| 0);
    board.measured(0, 0, Some(us(0)), false, at(800));
    board.carried_out_before(4, at(800));
    assert_eq!((board.settle(at(800)), board.patience()), (4, us(2400)));
    board
}

/// Found with batches at a low rate: the first packet that asks left later than the peer's silence may last.
#[test]
fn silence_is_counted_from_the_newest_packet_that_asks() {
    let mut board = measured_board();
    board.sent(4, Departure { asks: false, ..packet(1, false, 0) }, at(1000));
    board.sent(5, packet(1, false, 0), at(3000));
    board.sent(6, packet(1, false, 0), at(3100));
    assert_eq!(board.deadline(), Some(at(3100 + 2400)));
    // What is heard of an earlier one says nothing of the last.
    board.measured(5, 0, Some(us(0)), false, at(3800));
    board.carried_out_before(6, at(3800));
    board.settle(at(3800));
    assert_eq!((board.patience(), board.deadline()), (us(2000), Some(at(3100 + 2000))));
    assert!(board.handle_timeout(at(3100 + 2000)));
    assert_eq!(resend(&mut board, 0, at(3100 + 2000)), [6]);
}

/// Else acknowledges of the peer's own probes, or forged ones, would put off the probe for ever.
#[test]
fn an_acknowledge_without_news_puts_no_probe_off() {
    let mut board = board(100, |_| 0);
    board.ignore_idle_acknowledges();
    board.settle(at(50_000));
    assert_eq!(board.deadline(), Some(at(99 + 100_000)));
    let now = at(99 + 100_000);
    assert!(board.handle_timeout(now));
    board.settle(now + us(1000));
    assert_eq!(board.deadline(), Some(now + us(200_000)), "the second of them comes twice as late");
    board.carried_out_before(1, now + us(2000));
    board.settle(now + us(2000));
    assert!(board.probe_at < Some(now + us(200_000)), "news: {:?}", board.probe_at);
}

#[test]
fn one_silence_is_no_reason_to_forget_what_is_in_flight() {
    let mut board = board(100, |_| 0);
    let before = board.in_flight_bytes();
    for (silence, left) in [(1, before), (2, 128)] {
        let now = board.deadline().unwrap();
        assert!(board.handle_timeout(now));
        resend(&mut board, 0, now);
        assert_eq!(board.in_flight_bytes(), left, "after {silence}");
    }
    assert_eq!(board.progress().forgotten_bytes, before);
}

/// Found with batches of READs: the last answer was lost, and the peer's silence was waited for.
#[test]
fn the_last_answers_are_lost_when_they_come_later_than_the_others_came() {
    for (answers, first_lost, asked) in [(40, 39, true), (40, 32, true), (40, 31, false)] {
        let mut board = measured_board();
        board.sent(4, packet(answers, true, 0), at(900));
        board.arrived(4, at(1700));
        (0..first_lost).for_each(|answer| board.answered(4 + answer, at(1700 + answer * 3)));
        board.settle(at(1700 + first_lost * 3));
        // An eighth of a round trip, and twice the pause.
        let due = at(1700 + (first_lost - 1) * 3 + 100 + 6);
        assert_eq!(board.deadline() == Some(due), asked, "{first_lost}");
        board.handle_timeout(due);
        let missing = Wants::Answers(4 + first_lost, answers - first_lost as u32);
        assert_eq!(board.wants(), asked.then_some(missing), "{first_lost}");
    }
}

#[test]
fn what_is_taken_over_measures_nothing() {
    let mut board = Scoreboard::new(0, us(100_000));
    (0..3).for_each(|_| board.taken_over(1, false, at(5)));
    board.measured(2, 0, Some(us(0)), false, at(10));
    board.arrived(2, at(10));
    board.settle(at(10));
    assert_eq!((board.wants(), board.patience()), (None, us(100_000)));
}

/// Its answer's way is the peer's to find: only the timers go by it.
#[test]
fn the_round_trip_of_a_read_is_no_sample_for_congestion_control() {
    for (answers, is_sample) in [(false, true), (true, false)] {
        let mut board = Scoreboard::new(0, us(100_000));
        board.sent(0, packet(1, answers, 0), at(0));
        board.measured(0, 0, Some(us(10)), false, at(900));
        assert_eq!(board.progress().sample.map(|sample| sample.round_trip), is_sample.then_some(us(890)));
        assert_eq!(board.paths[0].round_trip.least(), Some(us(890)));
    }
}

/// When the transmission at `position` counts as lost, if one that was sent later has arrived.
fn lost_at(board: &Scoreboard, position: u64) -> Option<Instant> {
    let entry = board.entry(position).filter(|entry| entry.flags & PACKET != 0)?;
    board.unknown(position, entry.attempt)?;
    let path = &board.paths[usize::from(entry.path)];
    let late = board.late(path.round_trip.least());
    let took = path.latest.map(|(_, took_us)| us(took_us.into()));
    let wait = match path.latest.filter(|(latest, _)| is_before(entry.order, *latest)) {
        Some((_, took_us)) => us(took_us.into()) + late,
        None => {
            board.latest.filter(|latest| is_before(entry.order, *latest))?;
            path.round_trip.smoothed().unwrap_or(board.first_patience).max(took.unwrap_or_default()) + late * 2
        }
    };
    Some(Instant::from_ns(u64::from(entry.at_us) * 1000) + wait)
}

/// What is kept of the paths is what a scan of them finds, and of the packets in flight.
fn check(board: &Scoreboard, now: Instant) {
    let bright = || board.paths.iter().filter(|path| !path.is_dark);
    let patient = bright().filter(|path| path.round_trip.smoothed().is_some());
    let patience = patient.map(|path| path.round_trip.patience(board.first_patience)).max();
    assert_eq!(board.patience(), patience.unwrap_or(board.first_patience));
    let late = bright().map(|path| board.late(path.round_trip.least())).max();
    assert_eq!(board.answers_late(), late.unwrap_or(LATE_AT_LEAST) + board.spread);
    let next = (board.first..board.next).filter_map(|position| lost_at(board, position)).min();
    assert_eq!(board.lost_at, next);
    assert!(next.is_none_or(|at| at > now), "{next:?} has passed at {now:?}");
}

proptest! {
    #[test]
    fn what_is_kept_of_paths_and_packets_is_what_a_scan_of_them_finds(
        steps in prop::collection::vec((0..10u8, 0..6u8, 0..300u64), 0..300), is_multipath in any::<bool>(),
    ) {
        let (mut board, mut now) = (Scoreboard::new(0, us(2000)), Instant::ZERO);
        if is_multipath {
            board.spread_over_paths(us(100));
        }
        for (step, path, ahead) in steps {
            let path = if is_multipath { path } else { 0 };
            let position = board.first() + ahead % 16;
            now = now + us(ahead);
            match step {
                0 => board.path_answered(path, us(ahead * 3), ahead % 5 == 0),
                1 => board.carried_out_before(position, now),
                2 => drop(board.measured(position, (ahead % 2) as u8, Some(us(ahead % 7)), false, now)),
                3 => drop(board.handle_timeout(now)),
                4 => board.listen(ahead % 3 == 0),
                5 if ahead % 8 == 0 => board.lose(position),
                5..8 => board.arrived(position, now),
                _ => match board.wants() {
                    Some(Wants::Request(position)) => board.sent(position, packet(1, false, path), now),
                    _ => board.sent(board.next(), packet(1, false, path), now),
                },
            }
            board.settle(now);
            reports(&mut board);
            check(&board, now);
        }
    }
}

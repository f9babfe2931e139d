//! After start-up, choosing paths and keeping track of what is in flight on each allocates nothing: a counting allocator watches.

#[path = "common/allocations.rs"]
mod allocations;

use allocations::allocations;
use uroce::path::{PathPolicy, PathSet};
use uroce::recovery::{Departure, PathReport, Scoreboard, Wants};
use uroce::time::{Duration, Instant};

const PATHS: u16 = 16;

/// Packets in flight, one a microsecond.
const IN_FLIGHT: u64 = 1000;

/// 400,000 packets over sixteen paths, of which the last 20,000 are watched, one in a hundred lost, one in fifty marked; probes are answered a millisecond later.
#[test]
fn packets_over_many_paths_allocate_nothing() {
    for policy in PathPolicy::ALL {
        let mut set = PathSet::new(PATHS, policy);
        let mut board = Scoreboard::new(0, Duration::from_millis(100));
        board.spread_over_paths(Duration::ZERO);
        let mut probes = std::collections::VecDeque::with_capacity(1024);
        let (mut tokens, mut before, mut lost) = (0, 0, 0_u32);
        for step in 0..400_000_u64 {
            if step == 380_000 {
                before = allocations();
            }
            let now = Instant::from_ns(step * 1000);
            set.touch(now);
            set.handle_timeout(now);
            while let Some(probe) = set.poll_probe(now, || {
                tokens += 1;
                tokens
            }) {
                probes.push_back((now + Duration::from_millis(1), probe));
            }
            while let Some((_, probe)) = probes.pop_front_if(|(at, _)| *at <= now) {
                set.answered(probe.path, probe.token, Duration::ZERO, now);
            }
            let again = board.wants();
            let path = set.choose(now);
            let packet = Departure { count: 1, answers: false, path, bytes: 4200, asks: true };
            match again {
                Some(Wants::Request(position)) => board.sent(position, packet, now),
                _ => board.sent(board.next(), packet, now),
            }
            if let Some(position) = board.next().checked_sub(IN_FLIGHT)
                && position % 100 != 7
            {
                board.measured(position, 0, Some(Duration::ZERO), position % 50 == 3, now);
                board.arrived(position, now);
            }
            // What was lost has arrived by now, and all before is carried out.
            if let Some(done) = board.next().checked_sub(4 * IN_FLIGHT) {
                board.carried_out_before(done, now);
            }
            board.settle(now);
            for report in board.reports() {
                match *report {
                    PathReport::Arrived { path, took, is_marked } => set.arrived(path, took, is_marked, now),
                    PathReport::Lost(path) => {
                        lost += 1;
                        set.lost(path, now);
                    }
                    PathReport::Dark(path) => {
                        set.fail(path, now);
                    }
                }
            }
            board.forget_reports();
        }
        let made = allocations() - before;
        assert_eq!(made, 0, "{policy:?}: allocations for 20,000 packets");
        assert!(lost > 200 && set.good() == PATHS, "{policy:?}: {lost} lost, {} paths good", set.good());
    }
}

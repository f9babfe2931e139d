use std::collections::VecDeque;

use crate::congestion::{CongestionControl, Pacer, Rate};
use crate::time::{Duration, Instant};
use crate::wire::Qpn;

use super::class::Class;

/// The order in which queue pairs send: by class, and within a class in turns (docs/CLASSES.md).
///
/// ```text
///   urgent    ─ before all others ─────────────┐
///   normal    ─ ┐ share by bytes, 4 to 1 ──────┤
///   bulk      ─ ┘                              ├─► the next packet
///   scavenger ─ when nothing else waits; cap ──┤
///   a class that has waited 10 ms: one packet ─┘
/// ```
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// By class.
    lanes: [Lane; Class::ALL.len()],
    /// The lanes in which queue pairs wait, a bit each.
    waiting: u8,
    /// What the lane that sent last had been served before.
    served: u64,
    /// Whether the lane chosen last had waited too long.
    is_promoted: bool,
    /// Keeps the scavenger class to its cap; `None` without one.
    cap: Option<Box<Pacer>>,
    /// Until when the cap holds the scavenger class back.
    held_until: Option<Instant>,
}

/// The queue pairs of a class that can have something to send, each once.
#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Qpn>,
    /// Those that had only an acknowledge to send when they came: they go before the first of the others continues.
    ahead: VecDeque<Qpn>,
    /// Whether the first of these has sent its acknowledge. If it sends more, it takes its turn with the others.
    has_sent_ahead: bool,
    /// Packets that the first of the others has sent in its turn.
    turn_packets: u32,
    /// When the lane last sent, or began to wait.
    since: Instant,
    /// Bytes sent, times what a byte costs in this class.
    served: u64,
}

/// Whose turn it is to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub class: Class,
    pub qpn: Qpn,
    /// Packets that go before another one can be chosen.
    pub packets: u32,
}

/// Packets that a queue pair sends before the next one's turn: enough to profit from its cache lines, few enough that
/// the others need not wait.
const TURN_PACKETS: u32 = 16;

/// How long a class waits for higher ones before it sends a packet anyway, so that nothing starves. Mooncake's engine
/// promotes waiting requests after the same time. A packet of path MTU 4096 each 10 ms takes 3.4 Mb/s: little of any
/// line that needs classes, and enough for the acknowledges that a peer waits for.
const PROMOTION_WAIT: Duration = Duration::from_millis(10);

/// What a byte costs, by class: beside each other, normal sends four bytes for each of bulk. The others do not share.
const COST: [u64; Class::ALL.len()] = [0, 1, 4, 0];

const fn bit(class: Class) -> u8 {
    1 << class as u8
}

impl Lane {
    #[cold]
    fn drop_from_the_middle(&mut self, qpn: Qpn) {
        self.queue.retain(|other| *other != qpn);
        self.ahead.retain(|other| *other != qpn);
    }

    /// The one that sends next.
    #[inline]
    fn first(&self) -> Option<Qpn> {
        self.ahead.front().or(self.queue.front()).copied()
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.ahead.is_empty()
    }
}

impl Schedule {
    /// Makes the scavenger class keep to `cap`, over all its queue pairs; `None` for no limit.
    pub fn set_scavenger_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap.map(|cap| Box::new(Pacer::new(CongestionControl::Fixed, Some(cap))));
        self.held_until = None;
    }

    /// Queue pairs that can have something to send, in no order.
    pub fn queue_pairs(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.lanes.iter().flat_map(|lane| lane.ahead.iter().chain(&lane.queue).copied())
    }

    /// The number of these queue pairs.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.ahead.len() + lane.queue.len()).sum()
    }

    /// Whether a queue pair may send.
    pub fn may_send(&self) -> bool {
        self.waiting & !self.held_until.map_or(0, |_| bit(Class::Scavenger)) != 0
    }

    /// When a class that its cap holds back may send again; `None` when none waits for that.
    pub fn deadline(&self) -> Option<Instant> {
        self.held_until.filter(|_| self.waiting & bit(Class::Scavenger) != 0)
    }

    /// Handles the time `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.held_until = self.held_until.filter(|until| *until > now);
    }

    /// Adds a queue pair that can have something to send, and is in no lane.
    #[inline]
    pub fn add(&mut self, now: Instant, class: Class, qpn: Qpn) {
        if self.waiting & bit(class) == 0 {
            self.begin(now, class);
        }
        self.lanes[class as usize].queue.push_back(qpn);
    }

    /// Adds a queue pair that has only an acknowledge to send, and is in no lane. It does not wait for another one's turn to end: what
    /// the peer may send depends on it, and sixteen packets of path MTU 4096 take 54 µs at 10 Gb/s.
    #[inline]
    pub fn add_ahead(&mut self, now: Instant, class: Class, qpn: Qpn) {
        if self.waiting & bit(class) == 0 {
            self.begin(now, class);
        }
        self.lanes[class as usize].ahead.push_back(qpn);
    }

    /// A lane begins to wait: what it did not use before is no credit.
    fn begin(&mut self, now: Instant, class: Class) {
        self.waiting |= bit(class);
        let lane = &mut self.lanes[class as usize];
        (lane.since, lane.served, lane.turn_packets) = (now, lane.served.max(self.served), 0);
    }

    /// Removes a queue pair from the lane of `class`. It is the first there, unless it gets another class.
    #[inline]
    pub fn remove(&mut self, class: Class, qpn: Qpn) {
        let lane = &mut self.lanes[class as usize];
        if lane.ahead.front() == Some(&qpn) {
            lane.ahead.pop_front();
            lane.has_sent_ahead = false;
        } else if lane.queue.front() == Some(&qpn) {
            lane.turn_packets = 0;
            lane.queue.pop_front();
        } else {
            lane.drop_from_the_middle(qpn);
        }
        if lane.is_empty() {
            self.waiting &= !bit(class);
        }
        self.is_promoted = false;
    }

    /// The queue pair that sends next. Only where no other lane waits, and no cap, it is asked once for all packets of a turn.
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<Turn> {
        let mut lanes = self.waiting;
        if lanes & bit(Class::Scavenger) != 0 && self.is_held(now) {
            lanes &= !bit(Class::Scavenger);
        }
        let (class, is_alone) = match lanes {
            0 => return None,
            only if only.is_power_of_two() => (Class::ALL[only.trailing_zeros() as usize], self.cap.is_none()),
            _ => (self.choose(now, lanes), false),
        };
        let lane = &self.lanes[class as usize];
        let packets = if is_alone && lane.ahead.is_empty() { TURN_PACKETS - lane.turn_packets } else { 1 };
        Some(Turn { class, qpn: lane.first()?, packets })
    }

    /// Whether the cap holds the scavenger class back.
    fn is_held(&mut self, now: Instant) -> bool {
        self.held_until = self.cap.as_ref().and_then(|pacer| pacer.wait(now));
        self.held_until.is_some()
    }

    /// Chooses among several lanes.
    fn choose(&mut self, now: Instant, lanes: u8) -> Class {
        let waits = |class: &Class| lanes & bit(*class) != 0;
        let waiting = || Class::ALL.into_iter().filter(waits);
        let since = |class: Class| self.lanes[class as usize].since;
        let longest = waiting().min_by_key(|class| since(*class)).unwrap_or_default();
        self.is_promoted = now.saturating_since(since(longest)) >= PROMOTION_WAIT;
        if self.is_promoted && !mutated!("nothing-is-promoted", by "uroce --lib a_class_that_waits_sends_a_packet") {
            return longest;
        }
        if waits(&Class::Urgent) {
            return Class::Urgent;
        }
        let shares = [Class::Normal, Class::Bulk].into_iter().filter(waits);
        shares.min_by_key(|class| self.lanes[*class as usize].served).unwrap_or(Class::Scavenger)
    }

    /// Accounts for the IP packets, of `bytes` together, that a queue pair sent in its turn, as [`next`](Self::next) chose it.
    #[inline]
    pub fn sent(&mut self, now: Instant, turn: Turn, bytes: usize) {
        let Turn { class, qpn, packets } = turn;
        if class == Class::Scavenger
            && let Some(pacer) = &mut self.cap
        {
            pacer.sent(now, bytes);
        }
        let lane = &mut self.lanes[class as usize];
        lane.since = now;
        self.served = self.served.max(lane.served);
        lane.served += bytes as u64 * COST[class as usize];
        if lane.ahead.front() == Some(&qpn) {
            if std::mem::replace(&mut lane.has_sent_ahead, true) {
                lane.ahead.pop_front();
                lane.queue.push_back(qpn);
                lane.has_sent_ahead = false;
            }
            self.is_promoted = false;
            return;
        }
        lane.turn_packets += packets;
        // Who was promoted has had its turn: the next promotion is another one's.
        if (lane.turn_packets >= TURN_PACKETS || self.is_promoted) && lane.queue.front() == Some(&qpn) {
            lane.turn_packets = 0;
            lane.queue.rotate_left(1);
        }
        self.is_promoted = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URGENT: Qpn = Qpn::new(1);
    const NORMAL: Qpn = Qpn::new(2);
    const BULK: Qpn = Qpn::new(3);
    const SCAVENGER: Qpn = Qpn::new(4);
    const ALL: [Qpn; 4] = [URGENT, NORMAL, BULK, SCAVENGER];
    const START: Instant = Instant::from_ns(1_000_000_000);
    const BYTES: usize = 1000;

    /// A queue pair in each of these classes.
    fn schedule(classes: &[Class]) -> Schedule {
        let mut schedule = Schedule::default();
        classes.iter().for_each(|class| schedule.add(START, *class, ALL[*class as usize]));
        schedule
    }

    /// Who sends the next `count` packets, one each `every`, and when the last is sent.
    fn send(schedule: &mut Schedule, from: Instant, count: usize, every: Duration) -> (Vec<Qpn>, Instant) {
        let mut now = from;
        let sent = (0..count)
            .map(|_| {
                now = now + every;
                let turn = schedule.next(now).unwrap();
                schedule.sent(now, Turn { packets: 1, ..turn }, BYTES);
                turn.qpn
            })
            .collect();
        (sent, now)
    }

    const MICROSECOND: Duration = Duration::from_micros(1);

    #[test]
    fn urgent_sends_first_and_the_scavenger_when_nobody_else_waits() {
        let mut schedule = schedule(&Class::ALL);
        assert_eq!(send(&mut schedule, START, 100, MICROSECOND).0, [URGENT; 100]);
        schedule.remove(Class::Urgent, URGENT);
        assert!(!send(&mut schedule, START, 100, MICROSECOND).0.contains(&SCAVENGER));
        schedule.remove(Class::Normal, NORMAL);
        assert_eq!(send(&mut schedule, START, 100, MICROSECOND).0, [BULK; 100]);
        schedule.remove(Class::Bulk, BULK);
        assert_eq!(send(&mut schedule, START, 100, MICROSECOND).0, [SCAVENGER; 100]);
        schedule.remove(Class::Scavenger, SCAVENGER);
        assert_eq!((schedule.next(START), schedule.may_send(), schedule.len()), (None, false, 0));
    }

    #[test]
    fn normal_and_bulk_share_by_bytes_and_who_was_away_gets_nothing_back() {
        let mut schedule = schedule(&[Class::Normal, Class::Bulk]);
        let share = |sent: &[Qpn]| sent.iter().filter(|qpn| **qpn == NORMAL).count();
        assert_eq!(share(&send(&mut schedule, START, 1000, MICROSECOND).0), 800);
        schedule.remove(Class::Bulk, BULK);
        // As a queue pair that keeps to a rate: it waits only while it may send.
        for _ in 0..1000 {
            send(&mut schedule, START, 1, MICROSECOND);
            schedule.remove(Class::Normal, NORMAL);
            schedule.add(START, Class::Normal, NORMAL);
        }
        schedule.remove(Class::Normal, NORMAL);
        schedule.add(START, Class::Bulk, BULK);
        schedule.add(START, Class::Normal, NORMAL);
        assert_eq!(share(&send(&mut schedule, START, 1000, MICROSECOND).0), 800);
    }

    /// A line that is always full of urgent packets, and two queue pairs in each other class.
    #[test]
    fn a_class_that_waits_sends_a_packet_each_10_ms_its_queue_pairs_in_turn() {
        let mut schedule = schedule(&Class::ALL);
        let second = Qpn::new(9);
        schedule.add(START, Class::Scavenger, second);
        let (sent, _) = send(&mut schedule, START, 100_100, MICROSECOND);
        let count = |of: Qpn| sent.iter().filter(|qpn| **qpn == of).count();
        // Each 10 ms, and a moment later when others were promoted first.
        assert_eq!([NORMAL, BULK, SCAVENGER, second].map(count), [10, 10, 5, 5]);
        let first = |of: Qpn| sent.iter().position(|qpn| *qpn == of).unwrap();
        assert!((9_999..10_005).contains(&first(SCAVENGER)), "{}", first(SCAVENGER));
    }

    #[test]
    fn within_a_class_queue_pairs_take_turns_of_sixteen_packets_whatever_comes_between() {
        let mut schedule = schedule(&[Class::Normal]);
        let second = Qpn::new(9);
        schedule.add(START, Class::Normal, second);
        let (mut sent, now) = send(&mut schedule, START, 10, MICROSECOND);
        schedule.add(now, Class::Urgent, URGENT);
        assert_eq!(send(&mut schedule, now, 3, MICROSECOND).0, [URGENT; 3]);
        schedule.remove(Class::Urgent, URGENT);
        sent.extend(send(&mut schedule, now, 22, MICROSECOND).0);
        assert_eq!(sent, [[NORMAL; 16], [second; 16]].concat());
    }

    #[test]
    fn a_turn_is_asked_for_once_where_nobody_else_can_be_chosen_in_it() {
        let mut schedule = schedule(&[Class::Normal]);
        let packets = |schedule: &mut Schedule| {
            let turn = schedule.next(START).unwrap();
            schedule.sent(START, turn, BYTES);
            (turn.qpn, turn.packets)
        };
        assert_eq!(packets(&mut schedule), (NORMAL, 16));
        schedule.add(START, Class::Normal, URGENT);
        send(&mut schedule, START, 10, Duration::ZERO);
        assert_eq!(packets(&mut schedule), (NORMAL, 6), "the rest of a turn");
        schedule.add_ahead(START, Class::Normal, SCAVENGER);
        assert_eq!(packets(&mut schedule), (SCAVENGER, 1), "an acknowledge");
        schedule.remove(Class::Normal, SCAVENGER);
        assert_eq!(packets(&mut schedule), (URGENT, 16));
        schedule.add(START, Class::Bulk, BULK);
        assert_eq!(packets(&mut schedule).1, 1, "two lanes share");
    }

    #[test]
    fn one_that_has_only_an_acknowledge_to_send_interrupts_a_turn_for_two_packets_at_most() {
        let mut schedule = schedule(&[Class::Normal]);
        let [second, third] = [8, 9].map(Qpn::new);
        schedule.add(START, Class::Normal, second);
        let (mut sent, now) = send(&mut schedule, START, 10, MICROSECOND);
        schedule.add_ahead(now, Class::Normal, third);
        sent.extend(send(&mut schedule, now, 2, MICROSECOND).0);
        // After a packet more it waits for its turn.
        sent.extend(send(&mut schedule, now, 22 + 16, MICROSECOND).0);
        let turns = [&[NORMAL; 10][..], &[third; 2], &[NORMAL; 6], &[second; 16], &[third; 16]];
        assert_eq!((sent, schedule.len()), (turns.concat(), 3));
        schedule.remove(Class::Normal, NORMAL);
        schedule.remove(Class::Normal, second);
        schedule.remove(Class::Normal, third);
        schedule.add_ahead(now, Class::Normal, third);
        schedule.remove(Class::Normal, third);
        assert_eq!((schedule.next(now), schedule.may_send(), schedule.len()), (None, false, 0));
    }

    #[test]
    fn the_scavenger_keeps_to_its_cap_and_says_until_when_it_is_held() {
        let mut schedule = schedule(&[Class::Scavenger]);
        schedule.set_scavenger_cap(Some("1G".parse().unwrap()));
        let (mut now, mut bytes) = (START, 0);
        while now < START + Duration::from_millis(100) {
            match schedule.next(now) {
                Some(turn) => {
                    assert_eq!(turn.packets, 1, "the cap is asked before each");
                    schedule.sent(now, turn, BYTES);
                    bytes += BYTES + 14;
                }
                None => {
                    assert!(!schedule.may_send());
                    now = schedule.deadline().unwrap();
                    schedule.handle_timeout(now);
                    assert!(schedule.may_send());
                }
            }
        }
        // 1 Gb/s for 100 ms, and a burst.
        assert!((12_500_000..12_600_000).contains(&bytes), "{bytes}");
        // Others do not wait for it.
        while let Some(turn) = schedule.next(now) {
            schedule.sent(now, turn, BYTES);
        }
        schedule.add(now, Class::Bulk, BULK);
        assert_eq!(schedule.next(now), Some(Turn { class: Class::Bulk, qpn: BULK, packets: 1 }));
    }
}

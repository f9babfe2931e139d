use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use crate::sync::{Mutex, MutexGuard, PoisonError};
use crate::time::{Duration, Instant};
use crate::wire::Addresses;

use super::steady::Parted;
use super::{Controller, Flight, Progress, Rate, Steady};

/// The [`Steady`] of one of several flows to the same peer. They start as if they were one flow, and go on so as long as the part
/// of each is of a few packets, from which nobody sees much (RFC 9040 has more that flows can share).
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // nearly all are `Own`, and one place less is to be fetched
pub(super) enum Companion {
    /// One of its company.
    Joint(Seat),
    /// It goes on by itself.
    Own(Steady),
}

/// The companies of flows, by whom these are between.
#[derive(Debug, Default)]
pub struct Companies {
    companies: FxHashMap<Between, Weak<Mutex<Company>>>,
    /// How many there are when those are looked for that nobody is in any more.
    sweep_at: usize,
}

/// Companies that can be kept before those that nobody is in are looked for.
const SWEEP_LEAST: usize = 16;

/// Whom the flows of a company are between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Between {
    /// Their own address and the peer's.
    pub addresses: Addresses,
    /// Their differentiated services code point (DSCP): others wait in other queues.
    pub dscp: u8,
}

/// A flow's place in its company.
#[derive(Debug)]
pub struct Seat {
    company: Arc<Mutex<Company>>,
    number: usize,
    /// Whether its packets take turns with those of others: towards peers for which nothing is paced, they do not.
    has_turns: bool,
}

/// Flows that have one controller.
#[derive(Debug, Default)]
struct Company {
    steady: Steady,
    /// What is known of the packets of all of them.
    flight: Flight,
    /// Bytes in flight of each, by its seat; once they have parted what these were then.
    in_flight: Vec<u64>,
    /// Seats that were left.
    free: Vec<usize>,
    /// Their sum, and how many flows have bytes in flight.
    total: u64,
    active: u32,
    /// When the latest packet may go that has a turn.
    turn: Instant,
    /// Why each goes on by itself; `None` while they do not.
    parted: Option<Parted>,
}

impl Companies {
    /// A seat in the company of the flows between these, or in a new one; `None` where the way is known to be short, since all go
    /// on by themselves there.
    pub fn join(&mut self, between: Between) -> Option<Seat> {
        let present = self.companies.get(&between).and_then(Weak::upgrade);
        let parted = present.as_deref().map(|company| lock(company).parted);
        let company = match (present, parted) {
            (_, Some(Some(Parted::Short))) => return None,
            (Some(company), Some(None)) => company,
            _ => self.begin(between),
        };
        let number = lock(&company).take_seat();
        Some(Seat { company, number, has_turns: false })
    }

    fn begin(&mut self, between: Between) -> Arc<Mutex<Company>> {
        if self.companies.len() >= self.sweep_at {
            self.companies.retain(|_, company| company.strong_count() > 0);
            self.sweep_at = 2 * self.companies.len() + SWEEP_LEAST;
        }
        let company = Arc::new(Mutex::new(Company::default()));
        self.companies.insert(between, Arc::downgrade(&company));
        company
    }
}

/// Only the endpoint's own queue pairs are in a company, one after the other.
fn lock(company: &Mutex<Company>) -> MutexGuard<'_, Company> {
    company.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Company {
    fn take_seat(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(0);
            self.in_flight.len() - 1
        })
    }

    /// Whether one flow is all that ever had a seat.
    fn is_one(&self) -> bool {
        self.in_flight.len() == 1
    }

    /// Notes how many bytes a flow has in flight.
    fn set_in_flight(&mut self, seat: usize, bytes: u64) {
        if self.parted.is_some() {
            return;
        }
        let before = std::mem::replace(&mut self.in_flight[seat], bytes);
        self.total = self.total - before + bytes;
        self.active = self.active + u32::from(bytes > 0) - u32::from(before > 0);
    }

    /// How many flows share what is in flight, with the one that asks.
    fn parts(&self, seat: usize) -> u32 {
        self.active + u32::from(self.in_flight[seat] == 0)
    }

    /// Bytes of a flow that can be in flight: its part, and what the others do not use of theirs. Where no rate decides when its
    /// packets go, it is no more than its part, and only what the others leave of the window.
    fn window_bytes(&self, seat: &Seat) -> u64 {
        let window = self.steady.window_bytes();
        if self.is_one() {
            return window;
        }
        let parts = self.parts(seat.number);
        let left = window.saturating_sub(self.total) + self.in_flight[seat.number];
        match self.steady.paced_part_bytes(parts).filter(|_| seat.has_turns) {
            Some(part) => part.max(left),
            None => left.min(window / u64::from(parts)),
        }
    }

    /// Takes what became of a flow's packets, of which that flow knows this.
    fn take(&mut self, seat: usize, progress: &Progress, own: &Flight, now: Instant) {
        self.set_in_flight(seat, own.in_flight_bytes());
        self.flight.take(progress, self.total, now);
        self.steady.take(progress, &self.flight, now);
        self.parted = self.steady.parted(self.seats(), &self.flight);
    }

    fn seats(&self) -> u32 {
        (self.in_flight.len() - self.free.len()) as u32
    }

    /// What a flow goes on with by itself, of which it knows this. One that had nothing in flight when they parted has a part of
    /// what fits in reserve.
    fn part(&mut self, seat: usize, own: &Flight, now: Instant) -> Steady {
        if self.is_one() {
            return std::mem::take(&mut self.steady);
        }
        let parts = if self.in_flight[seat] > 0 { self.active } else { self.seats().max(1) };
        self.steady.part(parts, own, now)
    }

    /// When a flow's next packet may go, after one of so many bytes and after all that have a turn already; `None` where no rate
    /// decides. Else flows send at the same time, and a queue comes and goes with each packet that they have in flight.
    fn turn(&mut self, bytes: u64, earliest: Instant) -> Option<Instant> {
        let rate = self.steady.rate()?;
        let takes = if mutated!("a-company-sends-at-once") { Duration::ZERO } else { rate.takes(bytes, (1, 1)) };
        self.turn = self.turn.max(earliest) + takes;
        Some(self.turn)
    }
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, Company> {
        lock(&self.company)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut company = self.lock();
        if !mutated!("who-leaves-a-company-keeps-its-part", by "uroce --lib companion::") {
            company.set_in_flight(self.number, 0);
        }
        company.free.push(self.number);
    }
}

impl Controller for Companion {
    fn take(&mut self, progress: &Progress, flight: &Flight, now: Instant) {
        let seat = match self {
            Companion::Own(steady) => return steady.take(progress, flight, now),
            Companion::Joint(seat) => seat,
        };
        let mut company = seat.lock();
        if company.parted.is_none() {
            company.take(seat.number, progress, flight, now);
        }
        if company.parted.is_some() {
            let own = company.part(seat.number, flight, now);
            drop(company);
            *self = Companion::Own(own);
        }
    }

    fn sent(&mut self, bytes: u64, now: Instant) -> bool {
        match self {
            Companion::Own(steady) => steady.sent(bytes, now),
            Companion::Joint(seat) => {
                let mut company = seat.lock();
                let in_flight = company.in_flight[seat.number];
                company.set_in_flight(seat.number, in_flight + bytes);
                company.steady.sent(bytes, now) || in_flight == 0
            }
        }
    }

    fn notified(&mut self, flight: &Flight, now: Instant) {
        match self {
            Companion::Own(steady) => steady.notified(flight, now),
            Companion::Joint(seat) => {
                let Company { steady, flight, .. } = &mut *seat.lock();
                steady.notified(flight, now);
            }
        }
    }

    fn set_beside_urgent(&mut self, is_beside: bool, flight: &Flight, now: Instant) {
        match self {
            Companion::Own(steady) => steady.set_beside_urgent(is_beside, flight, now),
            Companion::Joint(seat) => {
                let Company { steady, flight, .. } = &mut *seat.lock();
                steady.set_beside_urgent(is_beside, flight, now);
            }
        }
    }

    fn set_scavenger(&mut self, is_scavenger: bool, now: Instant) {
        match self {
            Companion::Own(steady) => steady.set_scavenger(is_scavenger, now),
            Companion::Joint(seat) => seat.lock().steady.set_scavenger(is_scavenger, now),
        }
    }

    fn set_lateness(&mut self, late: Duration) {
        match self {
            Companion::Own(steady) => steady.set_lateness(late),
            Companion::Joint(seat) => seat.lock().steady.set_lateness(late),
        }
    }

    fn rate(&self) -> Option<Rate> {
        match self {
            Companion::Own(steady) => steady.rate(),
            Companion::Joint(seat) => {
                let company = seat.lock();
                company.steady.rate().map(|rate| rate.part(company.parts(seat.number)))
            }
        }
    }

    fn shortest_of_others(&self) -> Option<Duration> {
        let Companion::Joint(seat) = self else { return None };
        let company = seat.lock();
        company.flight.shortest().filter(|_| company.parted.is_some())
    }

    fn takes_turns(&self) -> bool {
        matches!(self, Companion::Joint(seat) if !seat.lock().is_one())
    }

    fn turn(&mut self, bytes: u64, earliest: Instant) -> Option<Instant> {
        let Companion::Joint(seat) = self else { return None };
        seat.has_turns = true;
        let mut company = seat.lock();
        if company.is_one() { None } else { company.turn(bytes, earliest) }
    }

    fn window_bytes(&self) -> u64 {
        match self {
            Companion::Own(steady) => steady.window_bytes(),
            Companion::Joint(seat) => seat.lock().window_bytes(seat),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Sample;
    use super::*;

    const FRAME: u64 = 4154;
    const FAR: Duration = Duration::from_millis(20);
    const NEAR: Duration = Duration::from_micros(50);

    fn between(dscp: u8) -> Between {
        let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
        Between { addresses, dscp }
    }

    /// A flow, and what it knows.
    struct Flow {
        controller: Companion,
        flight: Flight,
    }

    impl Flow {
        fn join(companies: &mut Companies) -> Flow {
            let seat = companies.join(between(0)).expect("nothing is known of the way");
            Flow { controller: Companion::Joint(seat), flight: Flight::default() }
        }

        /// Sends until its window is full, one packet at least, and has that in flight.
        fn fill(&mut self) -> u64 {
            let mut bytes = 0;
            while bytes == 0 || bytes < self.controller.window_bytes() {
                self.controller.sent(FRAME, Instant::ZERO);
                bytes += FRAME;
            }
            bytes
        }

        /// So many bytes arrive, of packets that were sent a round trip ago, and these are in flight then.
        fn hear(&mut self, delivered_bytes: u64, in_flight_bytes: u64, round_trip: Duration, now: Instant) {
            let sent_at = Instant::from_ns(now.as_ns() - round_trip.as_nanos() as u64);
            let sample = Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked: false };
            let progress = Progress { delivered_bytes, sample: Some(sample), ..Progress::default() };
            self.flight.take(&progress, in_flight_bytes, now);
            self.controller.take(&progress, &self.flight, now);
        }

        fn is_joint(&self) -> bool {
            matches!(self.controller, Companion::Joint(_))
        }
    }

    /// Flows that know what fits: notifications of congestion have ended the start. Each has a packet in flight.
    fn company(count: usize, delivered_bytes: u64) -> (Companies, Vec<Flow>) {
        let mut companies = Companies::default();
        let mut flows: Vec<Flow> = (0..count).map(|_| Flow::join(&mut companies)).collect();
        for flow in &mut flows {
            flow.controller.sent(FRAME, Instant::ZERO);
        }
        let mut now = Instant::ZERO + FAR;
        flows[0].hear(delivered_bytes, FRAME, FAR, now);
        for _ in 0..2 {
            now = now + FAR;
            let Flow { controller, flight } = &mut flows[0];
            controller.notified(flight, now);
        }
        (companies, flows)
    }

    proptest! {
        /// A way that is shorter at the end lets it go on by itself.
        #[test]
        fn a_flow_alone_does_what_it_does_without_a_company(
            heard in prop::collection::vec((0..5000u64, 1000..60_000u64, 0..50u64, 0..5u64, 0..500u64, any::<bool>()), 1..100),
            short_after in 0..100usize,
        ) {
            let mut alone: Vec<Box<dyn Controller>> = vec![
                Box::new(Companion::Joint(Companies::default().join(between(0)).unwrap())),
                Box::new(Steady::default()),
            ];
            let (mut flight, mut now) = (Flight::default(), Instant::from_ns(1_000_000_000));
            for (index, (passed, round_trip, delivered, lost, in_flight, is_marked)) in heard.into_iter().enumerate() {
                now = now + Duration::from_micros(passed);
                let round_trip = Duration::from_micros(if index < short_after { round_trip } else { 50 });
                let sent_at = Instant::from_ns(now.as_ns() - round_trip.as_nanos() as u64);
                let sample = Some(Sample { sent_at, round_trip, delay: Duration::ZERO, path: 0, is_marked });
                let (delivered_bytes, lost_bytes) = (delivered * FRAME, lost * FRAME);
                let progress = Progress { delivered_bytes, lost_bytes, sample, ..Progress::default() };
                flight.take(&progress, in_flight * FRAME, now);
                for controller in &mut alone {
                    controller.sent(FRAME, now);
                    controller.take(&progress, &flight, now);
                }
                let [(window, rate), expected] = [0, 1].map(|index| (alone[index].window_bytes(), alone[index].rate()));
                prop_assert_eq!((window, rate), expected);
                prop_assert!(!alone[0].takes_turns() && alone[0].turn(FRAME, now).is_none());
            }
        }
    }

    #[test]
    fn flows_that_begin_together_send_one_first_window_and_a_packet_each() {
        let mut companies = Companies::default();
        let mut flows: Vec<Flow> = (0..64).map(|_| Flow::join(&mut companies)).collect();
        let first = Steady::default().window_bytes();
        let sent: u64 = flows.iter_mut().map(Flow::fill).sum();
        assert!((first..=first + 64 * FRAME).contains(&sent), "{sent}");
    }

    #[test]
    fn each_has_its_part_of_the_rate_and_the_window_and_that_of_one_that_leaves() {
        let (_companies, mut flows) = company(4, FRAME);
        let of = |flow: &Flow| (flow.controller.rate().unwrap().bytes() as f64, flow.controller.window_bytes() as f64);
        flows[1].hear(FRAME, FRAME, FAR, Instant::ZERO + FAR * 4);
        let (rate, window) = of(&flows[0]);
        assert!(flows.iter().all(|flow| flow.is_joint() && of(flow) == (rate, window)));
        flows.pop();
        let (more, larger) = of(&flows[0]);
        assert!(
            (more / rate * 0.75 - 1.0).abs() < 1e-6 && (larger / window * 0.75 - 1.0).abs() < 1e-3,
            "{more} {rate}"
        );
        // One that has nothing in flight has no part, until it sends.
        flows[2].hear(FRAME, 0, FAR, Instant::ZERO + FAR * 4);
        let (most, _) = of(&flows[0]);
        assert!(most > 1.4 * more, "{most} {more}");
        flows[2].controller.sent(FRAME, Instant::ZERO + FAR * 4);
        assert!(of(&flows[0]).0 < 1.1 * more);
    }

    /// Else all send at the same time, and the queue is as long as they are many.
    #[test]
    fn their_packets_take_turns() {
        let (_companies, mut flows) = company(4, FRAME);
        flows[1].hear(FRAME, FRAME, FAR, Instant::ZERO + FAR * 4);
        let (now, rate) = (Instant::from_ns(1_000_000_000), flows[0].controller.rate().unwrap());
        let takes = rate.takes(FRAME, (1, 1)).as_nanos() as u64 / 4;
        let mut at = now.as_ns();
        for of in 0..8 {
            let turn = flows[of % 4].controller.turn(FRAME, now).unwrap().as_ns();
            assert!((takes - 10..=takes + 10).contains(&(turn - at)), "{turn} after {at}, of {takes}");
            at = turn;
        }
    }

    #[test]
    fn they_part_when_the_part_of_each_is_large() {
        let (_companies, mut flows) = company(4, 1_000_000);
        let now = Instant::ZERO + FAR * 4;
        let small = flows[0].controller.window_bytes();
        assert!(flows[1].is_joint() && small > 64 * FRAME, "{small}");
        flows[1].hear(FRAME, 0, FAR, now);
        let parts = [3, 2, 0].map(|index| {
            flows[index].hear(FRAME, FRAME, FAR, now);
            assert!(!flows[index].is_joint());
            flows[index].controller.window_bytes()
        });
        let whole: u64 = parts.iter().sum();
        assert!(parts.iter().all(|part| *part == parts[0]) && whole > 192 * FRAME, "{parts:?}");
        // It had nothing in flight when they parted.
        assert!(!flows[1].is_joint());
        let reserve = flows[1].controller.window_bytes();
        assert!((0.7..0.85).contains(&(reserve as f64 / parts[0] as f64)), "{reserve} beside {parts:?}");
    }

    #[test]
    fn on_a_short_way_they_part_at_once_and_no_more_come_together() {
        let mut companies = Companies::default();
        let mut flows = [0, 1].map(|_| Flow::join(&mut companies));
        for flow in &mut flows {
            flow.controller.sent(FRAME, Instant::ZERO);
        }
        flows[0].hear(FRAME, FRAME, NEAR, Instant::ZERO + NEAR);
        assert!(!flows[0].is_joint() && companies.join(between(0)).is_none());
        assert!(companies.join(between(10)).is_some(), "of another class nothing is known");
        drop(flows);
        assert!(companies.join(between(0)).is_some(), "the way can be another one by now");
    }
}

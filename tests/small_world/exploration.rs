//! Every way in which a small world can go.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use uroce::wire::Opcode;

use super::side::{Event, Place, Plan, Side};

/// Frames on their way in one direction at the most. What is sent beyond that is lost, at no charge.
const CAPACITY: usize = 4;

/// What the network may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Frames lost.
    pub drops: u8,
    /// Frames that come twice.
    pub duplicates: u8,
    /// Timers that fire although something is on its way.
    pub timeouts: u8,
}

/// How much there was to see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// States of both sides and the network together.
    pub states: u64,
    /// Ways from one to the next.
    pub steps: u64,
    /// Ways from the beginning to the end; there are so many of them that they are counted in floating point.
    pub schedules: f64,
    /// Different states of one side, over both.
    pub side_states: u64,
    /// States in which all is done and nothing is left to happen.
    pub ends: u64,
    /// States in which nothing is left to happen because a side has asked too often in vain.
    pub failures: u64,
}

/// What is known of a state of a side: it was run once and forgotten, and is run again from the beginning when needed.
struct Known {
    history: Rc<History>,
    completed: usize,
    executed: usize,
    received: usize,
    has_given_up: bool,
    may_post: bool,
    may_transmit: bool,
    will_time_out: bool,
}

/// How a side got where it is.
enum History {
    Begin,
    After(Rc<History>, Event),
}

impl History {
    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut here = self;
        while let History::After(before, event) = here {
            events.push(*event);
            here = before;
        }
        events.reverse();
        events
    }
}

/// Frames on their way in one direction, sorted; 0 is none. What finds no room is lost.
type Pipe = [u16; CAPACITY];

/// By a state of a side and what happens in it: the next state and the frames sent.
type Outcomes = FxHashMap<(u32, Event), (u32, Rc<[u16]>)>;

/// A state of the whole world.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    sides: [u32; 2],
    /// To each side; any of them may come next.
    pipes: [Pipe; 2],
    faults: Faults,
}

fn insert(pipe: &mut Pipe, frame: u16) {
    if let Some(free) = pipe.iter_mut().find(|place| **place == 0) {
        *free = frame;
        pipe.sort_unstable();
    }
}

/// Explores every order of delivery, every loss and every timeout within the limits.
///
/// Three things keep it small: what a network of four frames each way cannot hold is lost; frames that differ only in an
/// answer's MSN are one; and states that were seen before are not entered again.
///
/// What a side does depends on nothing but its own state and what happens to it. So each state of a side and each thing
/// that can happen in it is run only once, from the beginning; the world's states are pairs of theirs and the frames
/// between them.
pub struct Exploration<'a> {
    plan: &'a Plan,
    places: &'a [Place; 2],
    frames: Vec<Vec<u8>>,
    frame_numbers: FxHashMap<Vec<u8>, u16>,
    known: [Vec<Known>; 2],
    numbers: [FxHashMap<String, u32>; 2],
    /// What became of each state of a side with each event.
    outcomes: [Outcomes; 2],
    /// The ways to the end from each state of the world.
    schedules: FxHashMap<World, f64>,
    steps: u64,
    ends: u64,
    failures: u64,
    path: Vec<(usize, Event)>,
}

impl<'a> Exploration<'a> {
    /// Explores the whole world of a plan.
    ///
    /// # Errors
    /// What was wrong, and the way there.
    pub fn run(plan: &Plan, faults: Faults) -> Result<Extent, String> {
        let mut places = [Place::new(0), Place::new(1)];
        let introductions = [places[0].introduce(), places[1].introduce()];
        (places[0].peer, places[1].peer) = (Some(introductions[1]), Some(introductions[0]));
        if plan.has_prelude() {
            let preludes = preludes(&places, plan);
            places.iter_mut().zip(preludes).for_each(|(place, prelude)| place.prelude = prelude);
        }
        let mut exploration = Exploration {
            plan,
            places: &places,
            frames: Vec::new(),
            frame_numbers: FxHashMap::default(),
            known: [Vec::new(), Vec::new()],
            numbers: [FxHashMap::default(), FxHashMap::default()],
            outcomes: Default::default(),
            schedules: FxHashMap::default(),
            steps: 0,
            ends: 0,
            failures: 0,
            path: Vec::new(),
        };
        exploration.explore(faults)
    }

    fn explore(&mut self, faults: Faults) -> Result<Extent, String> {
        let mut sent = [Vec::new(), Vec::new()];
        for s in [0, 1] {
            let mut side = Side::begin(&self.places[s], self.plan);
            let first = side.first();
            sent[s] = first.into_iter().map(|frame| self.frame_number(frame)).collect();
            self.know(s, side, Rc::new(History::Begin));
        }
        let mut beginnings = Vec::new();
        let empty = World { sides: [0, 0], pipes: [[0; CAPACITY]; 2], faults };
        for world in fates(empty, 1, &sent[0]) {
            beginnings.extend(fates(world, 0, &sent[1]));
        }
        let mut schedules = 0.0;
        for world in beginnings {
            schedules += self.visit(world).map_err(|text| format!("{text}\n{}", self.tell_path()))?;
        }
        let side_states = (self.known[0].len() + self.known[1].len()) as u64;
        let Exploration { steps, ends, failures, .. } = *self;
        Ok(Extent { states: self.schedules.len() as u64, steps, schedules, side_states, ends, failures })
    }

    /// All that can happen from here on. Returns in how many ways it can end.
    fn visit(&mut self, world: World) -> Result<f64, String> {
        if let Some(schedules) = self.schedules.get(&world) {
            return Ok(*schedules);
        }
        self.check(&world)?;
        let is_calm = world.pipes == [[0; CAPACITY]; 2]
            && [0, 1].into_iter().all(|s| {
                let known = &self.known[s][world.sides[s] as usize];
                !known.may_post && !known.may_transmit
            });
        let (mut schedules, mut is_end) = (0.0, true);
        for s in [0, 1] {
            let mut last = 0;
            for at in 0..CAPACITY {
                let frame = world.pipes[s][at];
                if frame == last {
                    continue; // none, or a second copy of the same
                }
                last = frame;
                let mut next = world;
                next.pipes[s][at] = 0;
                next.pipes[s].sort_unstable();
                schedules += self.go(next, s, Event::Deliver(frame))?;
                is_end = false;
            }
            let Known { may_post, may_transmit, will_time_out, .. } = self.known[s][world.sides[s] as usize];
            if may_post {
                schedules += self.go(world, s, Event::PostReceive)?;
                is_end = false;
            }
            if may_transmit {
                schedules += self.go(world, s, Event::Transmit)?;
                is_end = false;
            }
            // When nothing is on its way the timer is all that is left; else it is impatient.
            if will_time_out && (is_calm || world.faults.timeouts > 0) {
                let mut next = world;
                next.faults.timeouts -= u8::from(!is_calm);
                schedules += self.go(next, s, Event::Timeout)?;
                is_end = false;
            }
        }
        if is_end {
            self.check_end(&world)?;
            schedules = 1.0;
        }
        self.schedules.insert(world, schedules);
        Ok(schedules)
    }

    /// Lets something happen to a side, and goes on from there with every fate of what it sends.
    fn go(&mut self, mut world: World, s: usize, event: Event) -> Result<f64, String> {
        self.path.push((s, event));
        let (side, sent) = self.outcome(s, world.sides[s], event)?;
        world.sides[s] = side;
        let mut schedules = 0.0;
        for world in fates(world, 1 - s, &sent) {
            self.steps += 1;
            schedules += self.visit(world)?;
        }
        self.path.pop();
        Ok(schedules)
    }

    fn outcome(&mut self, s: usize, from: u32, event: Event) -> Result<(u32, Rc<[u16]>), String> {
        if let Some(known) = self.outcomes[s].get(&(from, event)) {
            return Ok(known.clone());
        }
        let before = self.known[s][from as usize].history.clone();
        let mut side = Side::begin(&self.places[s], self.plan);
        side.first();
        for event in before.events() {
            side.step(event, &self.frames)?;
        }
        let sent = side.step(event, &self.frames).map_err(|text| format!("side {s}: {text}"))?;
        let sent: Rc<[u16]> = sent.into_iter().map(|frame| self.frame_number(frame)).collect();
        let outcome = (self.know(s, side, Rc::new(History::After(before, event))), sent);
        self.outcomes[s].insert((from, event), outcome.clone());
        Ok(outcome)
    }

    fn frame_number(&mut self, frame: Vec<u8>) -> u16 {
        // From 1 on.
        let next = u16::try_from(self.frames.len() + 1).expect("a small world has few different frames");
        *self.frame_numbers.entry(without_msn(&frame)).or_insert_with(|| {
            self.frames.push(frame);
            next
        })
    }

    /// The number of the state that a side is in.
    fn know(&mut self, s: usize, side: Side<'_>, history: Rc<History>) -> u32 {
        let digest = side.digest();
        if let Some(number) = self.numbers[s].get(&digest) {
            return *number;
        }
        let number = self.known[s].len() as u32;
        self.numbers[s].insert(digest, number);
        let Side { completed, executed, received, has_given_up, .. } = side;
        let (may_post, may_transmit) = (side.may_post(), side.may_transmit());
        let will_time_out = side.will_time_out();
        self.known[s].push(Known {
            history,
            completed,
            executed,
            received,
            has_given_up,
            may_post,
            may_transmit,
            will_time_out,
        });
        number
    }

    /// No request is completed before the other side has carried it out.
    fn check(&self, world: &World) -> Result<(), String> {
        for s in [0, 1] {
            let completed = self.known[s][world.sides[s] as usize].completed;
            let executed = self.known[1 - s][world.sides[1 - s] as usize].executed;
            if completed > executed {
                return Err(format!("side {s} has {completed} requests completed, and {executed} are carried out"));
            }
        }
        Ok(())
    }

    /// Nothing is left to happen: everything must be done, unless somebody has given up.
    fn check_end(&mut self, world: &World) -> Result<(), String> {
        if (0..2).any(|s| self.known[s][world.sides[s] as usize].has_given_up) {
            self.failures += 1;
            return Ok(());
        }
        self.ends += 1;
        for s in [0, 1] {
            let known = &self.known[s][world.sides[s] as usize];
            let (own, peers) = (&self.plan.requests[s], &self.plan.requests[1 - s]);
            let consumers = peers.iter().filter(|request| request.consumes()).count();
            let done = (known.completed, known.executed, known.received);
            let due = (own.len(), peers.len(), consumers);
            if done != due {
                return Err(format!("side {s} is at rest with (completed, executed, received) {done:?} of {due:?}"));
            }
        }
        Ok(())
    }

    fn tell_path(&self) -> String {
        let line = |(s, event): &(usize, Event)| match event {
            Event::Deliver(frame) => {
                let bth = &self.frames[usize::from(*frame) - 1][14 + 40 + 8..];
                let (opcode, psn, word) = (bth[0], &bth[9..12], &bth[12..16]);
                format!("side {s} receives opcode {opcode:#04x} PSN {psn:02x?}, then {word:02x?}")
            }
            event => format!("side {s}: {event:?}"),
        };
        self.path.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// What each side receives, one round after another, while both play the [prelude](Side::prelude) and nothing goes wrong.
fn preludes(places: &[Place; 2], plan: &Plan) -> [Vec<Vec<Vec<u8>>>; 2] {
    let [mut a, mut b] = [0, 1].map(|s| Side::connect(&places[s], plan));
    let mut sent = [a.prelude(), b.prelude()];
    let mut received = [Vec::new(), Vec::new()];
    while sent.iter().any(|frames| !frames.is_empty()) {
        let [from_a, from_b] = sent;
        sent = [a.take_all(&from_b), b.take_all(&from_a)];
        received[0].push(from_b);
        received[1].push(from_a);
    }
    received
}

/// A frame but for what says no more than the rest: the ICRC, and the MSN of an answer, which no requester looks at.
/// (Chaos does.)
fn without_msn(frame: &[u8]) -> Vec<u8> {
    const BTH: usize = 14 + 40 + 8;
    const MSN: std::ops::Range<usize> = BTH + 13..BTH + 16;
    let mut rest = frame[..frame.len() - 4].to_vec();
    let opcode = Opcode(frame[BTH]);
    if opcode.is_response() && opcode != Opcode::RC_READ_RESPONSE_MIDDLE {
        rest[MSN].fill(0);
    }
    rest
}

/// The worlds in which frames that were sent to side `to` arrive once, never or twice.
fn fates(world: World, to: usize, sent: &[u16]) -> Vec<World> {
    let mut worlds = vec![world];
    for &frame in sent {
        for i in 0..worlds.len() {
            if let Some(drops) = worlds[i].faults.drops.checked_sub(1) {
                let mut lost = worlds[i];
                lost.faults.drops = drops;
                worlds.push(lost);
            }
            insert(&mut worlds[i].pipes[to], frame);
            if let Some(duplicates) = worlds[i].faults.duplicates.checked_sub(1) {
                let mut twice = worlds[i];
                twice.faults.duplicates = duplicates;
                insert(&mut twice.pipes[to], frame);
                worlds.push(twice);
            }
        }
    }
    worlds
}

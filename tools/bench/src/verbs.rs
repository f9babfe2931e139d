//! This stack through its public API, as a verbs program uses it: post, and poll the completion queue.

use std::time::Instant;

use uroce::verbs::{Data, PathMtu, Remote, SendOperation, SendRequest, SgeList};

use crate::Failure;
use crate::figure::Counts;
use crate::program::{Line, Manner, Plan, Program, lines};
use crate::rig::{Meeting, Rig, Side};

/// Bytes of a bulk message, if nothing else is said.
pub const BULK_BYTES: usize = 64 << 10;

/// Memory for bulk messages: as many as fit are outstanding.
pub const REGION_BYTES: usize = 2 << 20;

/// Upper bound on the messages outstanding.
const DEPTH: usize = 32;

const SMALL_BYTES: usize = 64;

/// What is moved in bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bulk {
    Write,
    Read,
    Send,
}

/// What is moved, in messages of so many bytes and packets, and how many of a queue pair are outstanding.
#[derive(Clone, Copy)]
pub struct Load {
    pub bulk: Bulk,
    pub bytes: usize,
    pub depth: usize,
    pub packets: u64,
}

/// Messages of `bytes` one way (a READ's data comes the other way), polling.
pub fn bulk(manner: Manner<'_>, bulk: Bulk, bytes: usize, mtu: usize, seconds: f64) -> Result<Counts, Failure> {
    let mtu = PathMtu::from_bytes(mtu).ok_or("no such path MTU")?;
    let depth = REGION_BYTES / bytes;
    let load = Load { bulk, bytes, depth, packets: (bytes / mtu.bytes()) as u64 };
    let [a, b] = lines();
    let plan = Plan { mtu, bytes: REGION_BYTES, queue_pairs: 1, depth: 2 * DEPTH };
    let requester = |meeting: &Meeting| {
        let program = Program::open(manner, Side::Sender, plan, a)?;
        meeting.begin()?;
        let counts = request(&program, meeting, 0, load)?;
        meeting.finish();
        // A SEND counts where it arrives.
        Ok((bulk != Bulk::Send).then_some(counts))
    };
    let responder = |meeting: &Meeting| {
        let program = Program::open(manner, Side::Receiver, plan, b)?;
        if bulk == Bulk::Send {
            (0..2 * depth).try_for_each(|number| program.post_receive(0, number % depth, bytes))?;
        }
        meeting.begin()?;
        respond(&program, meeting, load)
    };
    manner.rig.run(seconds, requester, responder)
}

/// Keeps requests of queue pair `index` outstanding until time is up, each in a place of its own, and waits for the last ones.
/// Returns what was complete in time.
///
/// # Errors
/// When a request failed.
pub fn request(program: &Program, meeting: &Meeting, index: usize, load: Load) -> Result<Counts, Failure> {
    let pair = &program.pairs[index];
    let Load { bulk, bytes, depth, packets } = load;
    let mut meter = meeting.meter();
    let (mut slot, mut outstanding) = (0, 0);
    loop {
        let running = meter.is_running();
        while running && outstanding < depth {
            let offset = (index * depth + slot) * bytes;
            let remote = Remote { address: program.memory.address + offset as u64, ..program.memory };
            let operation = match bulk {
                Bulk::Write => SendOperation::Write(remote),
                Bulk::Read => SendOperation::Read(remote),
                Bulk::Send => SendOperation::Send,
            };
            let sges = SgeList::from_iter([program.region.sge(offset, bytes)]);
            pair.qp.post_send(SendRequest::new(slot as u64, operation, Data::Sges(sges)))?;
            slot = (slot + 1) % depth;
            outstanding += 1;
        }
        while pair.completion()?.is_some() {
            outstanding -= 1;
            if running {
                meter.count(packets, bytes as u64);
            }
        }
        if !running {
            break;
        }
    }
    let counts = meter.finish();
    while outstanding > 0 && !meeting.is_over() {
        outstanding -= usize::from(pair.completion()?.is_some());
    }
    Ok(counts)
}

fn respond(program: &Program, meeting: &Meeting, load: Load) -> Result<Option<Counts>, Failure> {
    let pair = &program.pairs[0];
    let Load { bytes, packets, .. } = load;
    let mut meter = meeting.meter();
    let mut counts = None;
    let mut received = false;
    while !meeting.is_over() {
        if counts.is_none() && !meter.is_running() {
            counts = Some(std::mem::replace(&mut meter, meeting.meter()).finish());
        }
        if let Some(done) = pair.completion()? {
            received = true;
            program.post_receive(0, done.slot, bytes)?;
            meter.count(packets, bytes as u64);
        }
    }
    Ok(counts.filter(|_| received))
}

/// WRITEs of 64 bytes in turn; each side polls the last byte of its memory for the other's.
pub fn write_round_trips(manner: Manner<'_>, seconds: f64) -> Result<Counts, Failure> {
    small_round_trips(manner, seconds, |program, turn| {
        let data = Data::Inline([turn; SMALL_BYTES].into_iter().collect());
        let request = SendRequest::new(0, SendOperation::Write(program.memory), data);
        Ok(program.pairs[0].qp.post_send(request)?)
    })
}

/// SENDs of 64 bytes in turn; each side polls its completion queue.
pub fn send_round_trips(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    small_round_trips(Manner::exclusive(rig), seconds, |program, turn| {
        let data = Data::Inline([turn; SMALL_BYTES].into_iter().collect());
        Ok(program.pairs[0].qp.post_send(SendRequest::new(0, SendOperation::Send, data))?)
    })
}

/// Both sides send in turn. A message has arrived when its last byte is in memory, whether a completion tells of it or
/// not; the completion queue is polled all the while, since that is where a program's own requests end.
fn small_round_trips(
    manner: Manner<'_>,
    seconds: f64,
    send: impl Fn(&Program, u8) -> Result<(), Failure> + Copy + Send,
) -> Result<Counts, Failure> {
    let [a, b] = lines();
    let plan = Plan { mtu: PathMtu::Mtu1024, bytes: SMALL_BYTES, queue_pairs: 1, depth: 2 * DEPTH };
    let play = |side, line: Line| {
        move |meeting: &Meeting| {
            let program = Program::open(manner, side, plan, line)?;
            (0..DEPTH).try_for_each(|_| program.post_receive(0, 0, SMALL_BYTES))?;
            meeting.begin()?;
            take_turns(&program, meeting, side, send)
        }
    };
    manner.rig.run(seconds, play(Side::Sender, a), play(Side::Receiver, b))
}

fn take_turns(
    program: &Program,
    meeting: &Meeting,
    side: Side,
    send: impl Fn(&Program, u8) -> Result<(), Failure>,
) -> Result<Option<Counts>, Failure> {
    let pair = &program.pairs[0];
    let arrived = |turn: u8| {
        if pair.completion()?.is_some_and(|done| done.is_receive) {
            program.post_receive(0, 0, SMALL_BYTES)?;
        }
        let mut last = [0];
        program.region.memory().read(SMALL_BYTES - 1, &mut last);
        Ok::<bool, Failure>(last[0] == turn)
    };
    let mut turn = 1_u8;
    if side == Side::Receiver {
        while !meeting.is_over() {
            if arrived(turn)? {
                send(program, turn)?;
                turn = turn.wrapping_add(1);
            }
        }
        return Ok(None);
    }
    let mut meter = meeting.meter();
    while meter.is_running() {
        let start = Instant::now();
        send(program, turn)?;
        while !arrived(turn)? && !meeting.is_over() {}
        meter.round_trip(start.elapsed(), SMALL_BYTES as u64);
        turn = turn.wrapping_add(1);
    }
    meeting.finish();
    Ok(Some(meter.finish()))
}

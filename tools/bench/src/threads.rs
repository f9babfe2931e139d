//! A program of many threads: each has a queue pair of its own, all of one device.

use uroce::verbs::{Data, PathMtu, Remote, SendOperation, SendRequest, SgeList};

use crate::Failure;
use crate::figure::Counts;
use crate::program::{Manner, Plan, Program, lines};
use crate::rig::{Meeting, Rig, Side};

/// WRITEs that all threads together have outstanding.
const OUTSTANDING: usize = 64;

/// WRITEs of `bytes` by so many threads, on both cores, to a side that sleeps.
pub fn writes(rig: &Rig, threads: usize, bytes: usize, seconds: f64) -> Result<Counts, Failure> {
    let [a, b] = lines();
    let mtu = PathMtu::Mtu4096;
    let plan = Plan { mtu, bytes: OUTSTANDING * bytes, queue_pairs: threads, depth: OUTSTANDING / threads };
    let sender = |meeting: &Meeting| {
        let program = Program::open(Manner::shared(rig), Side::Sender, plan, a)?;
        meeting.begin()?;
        rig.use_both_cores()?;
        let parts: Vec<Result<Counts, Failure>> = std::thread::scope(|scope| {
            let program = &program;
            let start = |index| scope.spawn(move || write(program, meeting, index, bytes));
            let running: Vec<_> = (0..threads).map(start).collect();
            running.into_iter().map(|one| one.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
        });
        meeting.finish();
        parts.into_iter().try_fold(Counts::default(), |sum, part| Ok(sum.and(&part?))).map(Some)
    };
    let receiver = |meeting: &Meeting| {
        let _program = Program::open(Manner::shared(rig), Side::Receiver, plan, b)?;
        meeting.begin()?;
        meeting.sleep_until_over();
        Ok(None)
    };
    rig.run(seconds, sender, receiver)
}

/// One thread: keeps its share of the WRITEs outstanding.
fn write(program: &Program, meeting: &Meeting, index: usize, bytes: usize) -> Result<Counts, Failure> {
    let pair = &program.pairs[index];
    let depth = OUTSTANDING / program.pairs.len();
    let packets = bytes.div_ceil(PathMtu::Mtu4096.bytes()) as u64;
    let (mut meter, mut next, mut outstanding) = (meeting.meter(), 0, 0);
    loop {
        let running = meter.is_running();
        while running && outstanding < depth {
            let offset = (index * depth + next) * bytes;
            let remote = Remote { address: program.memory.address + offset as u64, ..program.memory };
            let data = Data::Sges(SgeList::from_iter([program.region.sge(offset, bytes)]));
            pair.qp.post_send(SendRequest::new(next as u64, SendOperation::Write(remote), data))?;
            next = (next + 1) % depth;
            outstanding += 1;
        }
        while pair.completion()?.is_some() {
            outstanding -= 1;
            if running {
                meter.count(packets, bytes as u64);
            }
        }
        if !running && outstanding == 0 {
            return Ok(meter.finish());
        }
    }
}

//! A program of many threads: each has a queue pair of its own, all of one device.

use uroce::verbs::PathMtu;

use crate::Failure;
use crate::figure::Counts;
use crate::program::{Manner, Plan, Program, lines};
use crate::rig::{Meeting, Rig, Side};
use crate::verbs::{Bulk, Load, request};

/// WRITEs that all threads together have outstanding.
const OUTSTANDING: usize = 64;

/// WRITEs of `bytes` by so many threads, on both cores, to a side that sleeps.
pub fn writes(rig: &Rig, threads: usize, bytes: usize, seconds: f64) -> Result<Counts, Failure> {
    let [a, b] = lines();
    let mtu = PathMtu::Mtu4096;
    let depth = OUTSTANDING / threads;
    let plan = Plan { mtu, bytes: OUTSTANDING * bytes, queue_pairs: threads, depth };
    let load = Load { bulk: Bulk::Write, bytes, depth, packets: bytes.div_ceil(mtu.bytes()) as u64 };
    let sender = |meeting: &Meeting| {
        let program = Program::open(Manner::shared(rig), Side::Sender, plan, a)?;
        meeting.begin()?;
        rig.use_both_cores()?;
        let parts: Vec<Result<Counts, Failure>> = std::thread::scope(|scope| {
            let program = &program;
            let start = |index| scope.spawn(move || request(program, meeting, index, load));
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

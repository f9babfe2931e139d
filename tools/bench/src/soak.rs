//! A long run under loss: sixteen queue pairs send as fast as they may, every byte that arrives is compared, and memory and
//! speed are watched.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uroce::verbs::{Data, LinkKind, PathMtu, SendOperation, SendRequest, SgeList};

use crate::Failure;
use crate::figure::Counts;
use crate::program::{Done, Line, Manner, Pair, Plan, Program, lines};
use crate::rig::{Meeting, Rig, Side};

const QUEUE_PAIRS: usize = 16;

/// SENDs of so many bytes, and how many of a queue pair are outstanding; of receives twice as many are posted.
const MESSAGE_BYTES: usize = 64 << 10;
const DEPTH: usize = 4;
const SLOTS: usize = 2 * DEPTH;

/// What is lost of the frames that arrive, at either end.
const FAULTS: &str = "loss=0.1%";

/// How often memory and speed are looked at. Queues and tables have grown to their sizes after the first third of all looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What memory may grow by after that, in bytes: some pages of the allocator's.
const GROWTH_MAX: u64 = 1 << 20;

/// What was seen at a look.
#[derive(Clone, Copy, Debug)]
struct Look {
    seconds: f64,
    bytes: u64,
    resident_bytes: u64,
}

/// Runs over `link` for so many seconds. Returns what was seen.
///
/// # Errors
/// When a byte that arrived is wrong, a request fails, or memory grows.
pub fn run(rig: &Rig, link: LinkKind, seconds: f64) -> Result<Value, Failure> {
    let [a, b] = lines();
    let (mut looks, mut lost) = (Vec::new(), 0);
    let sender = move |meeting: &Meeting| {
        let mut soak = Soak::open(rig, link, Side::Sender, a)?;
        meeting.begin()?;
        soak.send(meeting)?;
        Ok(None)
    };
    let receiver = |meeting: &Meeting| {
        let mut soak = Soak::open(rig, link, Side::Receiver, b)?;
        for (queue_pair, slot) in (0..QUEUE_PAIRS).flat_map(|pair| (0..SLOTS).map(move |slot| (pair, slot))) {
            soak.post_receive(queue_pair, slot)?;
        }
        meeting.begin()?;
        let counts = soak.receive(meeting, &mut looks)?;
        let counters = soak.program.context.counters();
        let counters = counters.iter().filter(|(name, _)| ["fault_tx_lost", "fault_rx_lost"].contains(name));
        lost = counters.map(|(_, value)| value).sum();
        Ok(Some(counts))
    };
    let counts = rig.run(seconds, sender, receiver)?;
    judge(link, &counts, &looks, lost)
}

fn judge(link: LinkKind, counts: &Counts, looks: &[Look], lost: u64) -> Result<Value, Failure> {
    let resident = |look: Option<&Look>| look.map_or(0, |look| look.resident_bytes);
    let (first, last) = (resident(looks.get(looks.len() / 3)), resident(looks.last()));
    let speed = |looks: &[Look]| match (looks.first(), looks.last()) {
        (Some(a), Some(b)) if b.seconds > a.seconds => (b.bytes - a.bytes) as f64 * 8.0 / (b.seconds - a.seconds),
        _ => 0.0,
    };
    let halves = looks.split_at(looks.len() / 2);
    let report = json!({
        "link": format!("{link:?}").to_lowercase(),
        "seconds": counts.seconds,
        "messages": counts.packets,
        "bytes": counts.bytes,
        "frames_lost": lost,
        "resident_bytes_first": first,
        "resident_bytes_last": last,
        "bit_per_s_first_half": speed(halves.0),
        "bit_per_s_second_half": speed(halves.1),
    });
    if last > first + GROWTH_MAX {
        return Err(format!("memory grew from {first} to {last} bytes: {report}").into());
    }
    if lost == 0 {
        return Err(format!("no frame was lost: {report}").into());
    }
    Ok(report)
}

/// One side.
struct Soak {
    program: Program,
    /// The messages of each queue pair that were sent, or have arrived.
    numbers: [u64; QUEUE_PAIRS],
    buffer: Vec<u8>,
}

/// The bytes of a message: each word tells its queue pair, its number and its place.
fn fill(buffer: &mut [u8], queue_pair: usize, number: u64) {
    let first = (queue_pair as u64) << 56 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (place, word) in buffer.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = first.wrapping_add(place as u64).to_le_bytes();
    }
}

impl Soak {
    fn open(rig: &Rig, link: LinkKind, side: Side, line: Line) -> Result<Soak, Failure> {
        let bytes = QUEUE_PAIRS * SLOTS * MESSAGE_BYTES;
        let plan = Plan { mtu: PathMtu::Mtu4096, bytes, queue_pairs: QUEUE_PAIRS, depth: SLOTS };
        let program = Program::open(Manner::faulty(rig, link, FAULTS), side, plan, line)?;
        Ok(Soak { program, numbers: [0; QUEUE_PAIRS], buffer: vec![0; MESSAGE_BYTES] })
    }

    /// The place in the region of a queue pair's message, in messages.
    fn place(queue_pair: usize, slot: usize) -> usize {
        queue_pair * SLOTS + slot
    }

    fn post_receive(&self, queue_pair: usize, slot: usize) -> Result<(), Failure> {
        self.program.post_receive(queue_pair, Soak::place(queue_pair, slot), MESSAGE_BYTES)
    }

    fn post_send(&mut self, queue_pair: usize) -> Result<(), Failure> {
        let number = self.numbers[queue_pair];
        let offset = Soak::place(queue_pair, number as usize % SLOTS) * MESSAGE_BYTES;
        fill(&mut self.buffer, queue_pair, number);
        let region = &self.program.region;
        region.memory().write(offset, &self.buffer);
        let data = Data::Sges(SgeList::from_iter([region.sge(offset, MESSAGE_BYTES)]));
        self.program.pairs[queue_pair].qp.post_send(SendRequest::new(number, SendOperation::Send, data))?;
        self.numbers[queue_pair] += 1;
        Ok(())
    }

    /// What is complete, with its queue pair. All are asked in turn.
    fn completions(&self) -> Result<Vec<(usize, Done)>, Failure> {
        let of = |(index, pair): (usize, &Pair)| Ok(pair.completion()?.map(|done| (index, done)));
        self.program.pairs.iter().enumerate().map(of).filter_map(Result::transpose).collect()
    }

    /// Keeps all queue pairs busy until time is up, and ends when all is acknowledged.
    fn send(&mut self, meeting: &Meeting) -> Result<(), Failure> {
        let mut outstanding = QUEUE_PAIRS * DEPTH;
        for queue_pair in (0..QUEUE_PAIRS).cycle().take(QUEUE_PAIRS * DEPTH) {
            self.post_send(queue_pair)?;
        }
        while outstanding > 0 {
            for (queue_pair, _) in self.completions()? {
                match meeting.is_stopped() {
                    true => outstanding -= 1,
                    false => self.post_send(queue_pair)?,
                }
            }
        }
        meeting.finish();
        Ok(())
    }

    /// Takes and compares all that comes.
    fn receive(&mut self, meeting: &Meeting, looks: &mut Vec<Look>) -> Result<Counts, Failure> {
        let (start, mut counts) = (Instant::now(), Counts::default());
        let (mut expected, mut next) = (vec![0; MESSAGE_BYTES], LOOK_EVERY);
        while !meeting.is_over() {
            if start.elapsed() >= next {
                next += LOOK_EVERY;
                let seconds = start.elapsed().as_secs_f64();
                let look = Look { seconds, bytes: counts.bytes, resident_bytes: resident_bytes()? };
                looks.push(look);
                eprint!(
                    "\r{seconds:.0} s, {:.1} GB, {} KiB resident ",
                    counts.bytes as f64 / 1e9,
                    look.resident_bytes >> 10
                );
            }
            for (queue_pair, done) in self.completions()? {
                let number = self.numbers[queue_pair];
                self.program.region.memory().read(done.slot * MESSAGE_BYTES, &mut self.buffer);
                fill(&mut expected, queue_pair, number);
                if let Some(at) = self.buffer.iter().zip(&expected).position(|(is, was)| is != was) {
                    return Err(format!("byte {at} of message {number} on queue pair {queue_pair} is wrong").into());
                }
                self.numbers[queue_pair] += 1;
                self.program.post_receive(queue_pair, done.slot, MESSAGE_BYTES)?;
                counts.packets += 1;
                counts.bytes += MESSAGE_BYTES as u64;
            }
        }
        eprintln!();
        counts.seconds = start.elapsed().as_secs_f64();
        Ok(counts)
    }
}

/// What this process has in memory.
fn resident_bytes() -> Result<u64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("/proc/self/statm has no second number")?.parse()?;
    Ok(pages * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grows_and_a_run_without_losses_fail() {
        let looks = |growth: u64| -> Vec<Look> {
            (1..=20)
                .map(|i| Look { seconds: i as f64, bytes: i * 125, resident_bytes: (1 << 30) + growth * i })
                .collect()
        };
        let counts = Counts { bytes: 2500, packets: 1, seconds: 20.0, ..Counts::default() };
        let report = judge(LinkKind::Udp, &counts, &looks(0), 7).unwrap();
        assert_eq!((report["bit_per_s_first_half"].as_f64(), report["frames_lost"].as_u64()), (Some(1000.0), Some(7)));
        assert!(judge(LinkKind::Udp, &counts, &looks(1 << 20), 7).is_err());
        assert!(judge(LinkKind::Udp, &counts, &looks(0), 0).is_err());
    }

    #[test]
    fn messages_differ_by_queue_pair_number_and_place() {
        let message = |queue_pair, number| {
            let mut bytes = vec![0; 64];
            fill(&mut bytes, queue_pair, number);
            bytes
        };
        assert_eq!(message(1, 2), message(1, 2));
        assert!(message(1, 2) != message(2, 2) && message(1, 2) != message(1, 3));
        assert_ne!(message(1, 2)[..8], message(1, 2)[8..16]);
    }
}

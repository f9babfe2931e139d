use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::clock;
use crate::delays::Delays;
use crate::frame::Flow;
use crate::messages::BATCH;
use crate::path::{Counts, Fate, Path};
use crate::port::{Frame, Pool, Port, PortCounts};
use crate::stop::Stop;

/// Frames held at a time, at the most: 10 Gb/s of full frames for 50 ms, or 300 MB. What comes on top is dropped and
/// counted.
pub(crate) const HELD_FRAMES_MAX: usize = 65_536;

/// Batches taken from an interface before the others, and frames that are due, get their turn.
const BATCHES_A_TURN: usize = 4;

/// How often the kernel is asked for what costs a system call, while frames are on their way.
const ASK_EVERY_NS: u64 = 10_000_000;

/// While frames keep coming, a wait does not end with each: they have the kernel's time stamps and are not due before the
/// shortest delay is over. They are looked after at least this often (and four times a delay), which the kernel's buffer
/// holds at any rate. It takes a quarter less of the processor at 1 Gb/s.
const LOOK_EVERY_NS: u64 = 200_000;

/// What the forwarding thread and its owner share.
pub(crate) struct Shared {
    /// By the port that frames come from: the paths that they may take.
    pub paths: Vec<Vec<Path>>,
    pub ports: Vec<PortCounts>,
    pub lateness: Delays,
    pub usage: Usage,
}

impl Shared {
    /// The least that any frame takes.
    fn shortest_delay_ns(&self) -> u64 {
        let delays = self.paths.iter().flatten().map(|path| path.conditions().delay.as_nanos() as u64);
        delays.min().unwrap_or(0)
    }
}

/// What the forwarding thread has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Whether it runs before all ordinary threads.
    pub is_realtime: bool,
    /// Seconds that it has run.
    pub seconds: f64,
    /// Seconds of processor in that time. They include what the hosts' kernels do when a frame reaches them, up to their
    /// sockets, since the kernel does that at once.
    pub processor_seconds: f64,
}

impl Usage {
    /// The share of one processor, 0 to 1.
    pub fn share(&self) -> f64 {
        self.processor_seconds / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// What was used after `before`.
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            is_realtime: self.is_realtime,
            seconds: self.seconds - before.seconds,
            processor_seconds: self.processor_seconds - before.processor_seconds,
        }
    }
}

/// Everything that was counted, at one moment.
#[derive(Clone, Debug)]
pub struct WanCounts {
    /// By port that frames come from, then by path. Ports 2r and 2r + 1 are rail r's, at the side of host A and of host B.
    pub paths: Vec<Vec<Counts>>,
    /// By port.
    pub ports: Vec<PortCounts>,
    /// Of all frames that left.
    pub lateness: Delays,
    /// Of the forwarding thread.
    pub usage: Usage,
}

impl WanCounts {
    /// All frames of all paths.
    pub fn total(&self) -> Counts {
        self.paths.iter().flatten().fold(Counts::default(), |sum, path| Counts {
            arrived: sum.arrived + path.arrived,
            arrived_bytes: sum.arrived_bytes + path.arrived_bytes,
            lost: sum.lost + path.lost,
            queue_full: sum.queue_full + path.queue_full,
            marked: sum.marked + path.marked,
            overflowed: sum.overflowed + path.overflowed,
            refused: sum.refused + path.refused,
            forwarded: sum.forwarded + path.forwarded,
            forwarded_bytes: sum.forwarded_bytes + path.forwarded_bytes,
            held: sum.held + path.held,
        })
    }
}

/// A frame on its way.
struct Held {
    leave_ns: u64,
    /// Of two that leave at once, the one that came first goes first.
    serial: u64,
    from: u32,
    path: u32,
    frame: Frame,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        (self.leave_ns, self.serial).cmp(&(other.leave_ns, other.serial))
    }
}

/// Forwards between the two ports of each rail until it is told to stop.
pub(crate) struct Forwarder {
    ports: Vec<Port>,
    pool: Pool,
    shared: Arc<Mutex<Shared>>,
    /// Frames on their way, the next first.
    held: BinaryHeap<Reverse<Held>>,
    /// By port: frames that leave now.
    due: Vec<VecDeque<Held>>,
    serial: u64,
    seed: u64,
    /// When the kernel was last asked for frames missed.
    asked_ns: u64,
    /// When a frame came last.
    received_ns: u64,
    stop: Stop,
}

/// Locks what is shared; a panic elsewhere does not make the counts wrong.
pub(crate) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The port at the other side of the same rail.
fn opposite(port: usize) -> usize {
    port ^ 1
}

impl Forwarder {
    pub fn new(ports: Vec<Port>, pool: Pool, shared: Arc<Mutex<Shared>>, seed: u64, stop: Stop) -> Forwarder {
        let due = ports.iter().map(|_| VecDeque::with_capacity(BATCH)).collect();
        Forwarder {
            ports,
            pool,
            shared,
            held: BinaryHeap::new(),
            due,
            serial: 0,
            seed,
            asked_ns: 0,
            received_ns: 0,
            stop,
        }
    }

    /// Forwards until it is told to stop. Frames that are on their way then stay held.
    ///
    /// # Errors
    /// What the system says about a socket, with the interface's name.
    pub fn run(mut self, is_realtime: bool) -> io::Result<()> {
        let (start_ns, start_cpu_ns) = (clock::now_ns(), clock::thread_cpu_ns());
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
        let shared = Arc::clone(&self.shared);
        loop {
            let mut all = lock(&shared);
            let mut received = 0;
            for port in 0..self.ports.len() {
                received += self.take(port, &mut all)?;
            }
            self.release(&mut all)?;
            let (now_ns, is_stopped) = (clock::now_ns(), self.stop.is_set());
            if is_stopped || self.held.is_empty() || now_ns.abs_diff(self.asked_ns) > ASK_EVERY_NS {
                self.asked_ns = now_ns;
                self.ports.iter_mut().for_each(Port::ask);
                all.usage = Usage {
                    is_realtime,
                    seconds: seconds(start_ns, now_ns),
                    processor_seconds: seconds(start_cpu_ns, clock::thread_cpu_ns()),
                };
            }
            all.ports.iter_mut().zip(&self.ports).for_each(|(counts, port)| *counts = port.counts());
            if is_stopped {
                return Ok(());
            }
            if received > 0 {
                self.received_ns = now_ns;
            }
            let look_after_ns = LOOK_EVERY_NS.min(all.shortest_delay_ns() / 4);
            drop(all);
            let keeps_coming = now_ns.abs_diff(self.received_ns) < look_after_ns;
            self.wait(keeps_coming.then_some(look_after_ns))?;
        }
    }

    /// Takes what has come to a port, and decides what becomes of it; how many frames.
    fn take(&mut self, from: usize, shared: &mut Shared) -> io::Result<usize> {
        let Forwarder { ports, pool, held, serial, seed, .. } = self;
        let port = &mut ports[from];
        let paths = &mut shared.paths[from];
        let (mut dropped, mut all) = (Vec::new(), 0);
        for _ in 0..BATCHES_A_TURN {
            let each = |mut frame: Frame, arrived_ns| {
                // What is no IP (ARP, say) has no flow to spread.
                let index = Flow::of(frame.bytes()).map_or(0, |flow| flow.path(paths.len(), *seed));
                let path = &mut paths[index];
                let Fate::Leaves { at_ns } = path.arrive(arrived_ns, frame.bytes_mut()) else {
                    return dropped.push(frame);
                };
                if held.len() >= HELD_FRAMES_MAX {
                    path.counts_mut().held -= 1;
                    path.counts_mut().overflowed += 1;
                    return dropped.push(frame);
                }
                *serial += 1;
                let on_its_way =
                    Held { leave_ns: at_ns, serial: *serial, from: from as u32, path: index as u32, frame };
                held.push(Reverse(on_its_way));
            };
            let received = port.receive(pool, each).map_err(|e| named(e, "receiving from", port.interface()))?;
            dropped.drain(..).for_each(|frame| pool.give_back(frame));
            all += received;
            if received < BATCH {
                break;
            }
        }
        Ok(all)
    }

    /// Sends what is due.
    fn release(&mut self, shared: &mut Shared) -> io::Result<()> {
        let Forwarder { ports, pool, held, due, .. } = self;
        let Shared { paths, lateness, .. } = shared;
        loop {
            let now_ns = clock::now_ns();
            let mut number = 0;
            while number < BATCH
                && let Some(next) = held.peek_mut()
                && next.0.leave_ns <= now_ns
            {
                let Reverse(next) = std::collections::binary_heap::PeekMut::pop(next);
                due[opposite(next.from as usize)].push_back(next);
                number += 1;
            }
            if number == 0 {
                return Ok(());
            }
            for (port, queue) in ports.iter_mut().zip(due.iter_mut()).filter(|(_, queue)| !queue.is_empty()) {
                let done = |item: Held, is_sent| {
                    let counts = paths[item.from as usize][item.path as usize].counts_mut();
                    counts.held -= 1;
                    if is_sent {
                        counts.forwarded += 1;
                        counts.forwarded_bytes += item.frame.bytes().len() as u64;
                        lateness.note(clock::now_ns().saturating_sub(item.leave_ns));
                    } else {
                        counts.refused += 1;
                    }
                    pool.give_back(item.frame);
                };
                port.send(queue, |item| &item.frame, done).map_err(|e| named(e, "sending to", port.interface()))?;
            }
        }
    }

    /// Waits for the next frame's time to leave, or for one to come; with `look_after_ns` so long at the most instead of
    /// the latter.
    fn wait(&self, look_after_ns: Option<u64>) -> io::Result<()> {
        let due_in_ns = self.held.peek().map(|next| next.0.leave_ns.saturating_sub(clock::now_ns()));
        let timeout = due_in_ns.into_iter().chain(look_after_ns).min().map(|ns| libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        });
        let ports = self.ports.iter().map(Port::fd).filter(|_| look_after_ns.is_none());
        let polled = [self.stop.as_fd()].into_iter().chain(ports);
        let mut polled: Vec<libc::pollfd> =
            polled.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
        let timeout = timeout.as_ref().map_or(std::ptr::null(), |timeout| &raw const *timeout);
        // SAFETY: the list and the time live through the call; no mask of signals is given.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as _, timeout, std::ptr::null()) };
        match ready {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
        }
    }
}

fn named(error: io::Error, doing: &str, interface: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {interface} in the middle of the network: {error}"))
}

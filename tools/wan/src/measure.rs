//! What a network is really like, found out from the outside: with datagrams that carry the time they were sent at, and
//! that the kernel stamps when they reach the other host; and with TCP connections.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::conditions::{Conditions, Loss};
use crate::delays::of_sorted;
use crate::forwarder::{Usage, WanCounts};
use crate::frame::Flow;
use crate::messages::{self, BATCH, set};
use crate::network::{Direction, Wan};
use crate::path::{Fate, Path};
pub use crate::tcp::{Schedule, TcpFigures, congestion_controls, measure_tcp, run_tcp};

/// The port that probes go to: discard (RFC 863).
const PROBE_PORT: u16 = 9;

/// Where source ports of probes begin; there are enough for each of 256 paths to be found.
const SOURCE_PORTS: std::ops::Range<u16> = 20_000..60_000;

/// Ethernet, IPv4 and UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;

/// Its number and the time it was sent at.
const PROBE_BYTES: usize = 16;

/// The ECN bits of probes: their ends know about it (ECT(0), RFC 3168).
const ECN_CAPABLE: u8 = 2;

/// Payload of probes for delay and loss.
const SMALL_BYTES: usize = 64;

/// The fastest that probes for loss follow each other: slow enough that no buffer of the kernel's overflows.
const PROBE_EVERY: Duration = Duration::from_micros(25);

/// How long after the last probe could have come it is given up.
const PATIENCE: Duration = Duration::from_millis(300);

/// What was found out about one path in one direction.
#[derive(Clone, Debug)]
pub struct PathFigures {
    /// Which pair of interfaces.
    pub rail: usize,
    /// Which way.
    pub direction: Direction,
    /// Which path.
    pub path: usize,
    /// What it should be like.
    pub conditions: Conditions,
    /// How long probes took, `None` when none arrived.
    pub delay: Option<DelayFigures>,
    /// How many were lost.
    pub loss: LossFigures,
    /// What comes through when more is offered than the rate, or as much as can be without one.
    pub rate: RateFigures,
}

/// One-way delays of small frames on an idle path.
#[derive(Clone, Copy, Debug)]
pub struct DelayFigures {
    /// What it should be: the path's delay, and the frame's time at the path's rate. Jitter comes on top.
    pub wanted: Duration,
    /// Half of the frames took no longer.
    pub median: Duration,
    /// How much longer than wanted: the least, the median, and what 99 % did not exceed; jitter included.
    pub over: [Duration; 3],
    /// How many frames.
    pub frames: usize,
}

/// Losses of small frames that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct LossFigures {
    /// Sent.
    pub frames: usize,
    /// Of those, how many did not arrive.
    pub lost: usize,
    /// How often one was lost and the one before it was not.
    pub bursts: usize,
}

/// Full frames, at 1.2 times the path's rate, or as fast as they can be sent.
#[derive(Clone, Copy, Debug)]
pub struct RateFigures {
    /// What should arrive: the path's rate without its losses; `None` without a rate.
    pub wanted_bps: Option<f64>,
    /// What arrived, in bits a second of Ethernet frames.
    pub bps: f64,
    /// Frames sent and arrived.
    pub frames: [usize; 2],
    /// How many of those that arrived were marked «congestion experienced». They all said that their ends know about ECN.
    pub marked: usize,
    /// The share of them that should be; `None` without a threshold for marks.
    pub marked_wanted: Option<f64>,
    /// What the forwarding thread used meanwhile.
    pub usage: Usage,
}

/// All that was found out.
#[derive(Clone, Debug)]
pub struct Figures {
    /// By path.
    pub paths: Vec<PathFigures>,
    /// By rail and congestion control.
    pub tcp: Vec<TcpFigures>,
    /// What was counted in the middle, at the end.
    pub counts: WanCounts,
}

/// Measures every path of every rail both ways, and TCP on every rail: some `seconds` for each figure.
///
/// # Errors
/// What the system says about a socket.
pub fn measure(wan: &Wan, seconds: f64) -> io::Result<Figures> {
    let mut paths = Vec::new();
    let mut tcp = Vec::new();
    for rail in 0..wan.plan().rails.len() {
        for direction in [Direction::AToB, Direction::BToA] {
            for path in 0..wan.plan().rails[rail].paths(direction).len() {
                paths.push(measure_path(wan, rail, direction, path, seconds)?);
            }
        }
        for control in congestion_controls(wan) {
            tcp.push(measure_tcp(wan, rail, &control, seconds)?);
        }
    }
    Ok(Figures { paths, tcp, counts: wan.counts() })
}

fn measure_path(wan: &Wan, rail: usize, direction: Direction, path: usize, seconds: f64) -> io::Result<PathFigures> {
    let conditions = wan.conditions(rail, direction, path);
    let course = Course::new(wan, rail, direction, path)?;
    let time_at_rate = |payload: usize| {
        let bits = (8 * (HEADER_BYTES + payload)) as f64;
        Duration::from_secs_f64(conditions.rate_bps.map_or(0.0, |rate| bits / rate as f64))
    };

    // An idle path: a probe every millisecond, and never two in the queue.
    let every = Duration::from_millis(1).max(4 * time_at_rate(SMALL_BYTES));
    let probes = course.run(SMALL_BYTES, every, (seconds / every.as_secs_f64()).ceil() as usize)?;
    let delay = delay_figures(&probes, conditions.delay + time_at_rate(SMALL_BYTES));

    // Half of the rate at the most, so that nothing is dropped for want of room.
    let every = PROBE_EVERY.max(2 * time_at_rate(SMALL_BYTES));
    let probes = course.run(SMALL_BYTES, every, (seconds / every.as_secs_f64()).ceil() as usize)?;
    let loss = loss_figures(&probes);

    let payload = usize::from(wan.plan().mtu) - (HEADER_BYTES - 14);
    let every = time_at_rate(payload).div_f64(1.2);
    let number = if every.is_zero() { usize::MAX } else { (seconds / every.as_secs_f64()).ceil() as usize };
    let probes = course.run_for(payload, every, number, Duration::from_secs_f64(seconds))?;
    let wanted_bps = conditions.rate_bps.map(|rate| rate as f64 * (1.0 - conditions.loss.share()));
    let marked_wanted = conditions.ecn_bytes.map(|_| marked_share(&conditions, payload, every, probes.sent));
    let rate = RateFigures { wanted_bps, marked_wanted, ..rate_figures(&probes, payload) };
    Ok(PathFigures { rail, direction, path, conditions, delay, loss, rate })
}

/// The share of full frames that a path marks, of those that it lets pass, when so many come so often.
fn marked_share(conditions: &Conditions, payload: usize, every: Duration, number: usize) -> f64 {
    let mut path = Path::new(Conditions { loss: Loss::Nothing, ..*conditions }, 0, 0);
    let mut frame = vec![0; HEADER_BYTES + payload];
    let mut passed = 0_u32;
    for nth in 0..number as u64 {
        // IPv4 whose ends know about ECN.
        (frame[12], frame[14], frame[15]) = (0x08, 0x45, ECN_CAPABLE);
        let fate = path.arrive(nth * every.as_nanos() as u64, &mut frame);
        passed += u32::from(matches!(fate, Fate::Leaves { .. }));
    }
    path.counts().marked as f64 / f64::from(passed.max(1))
}

/// Probes that were sent, and those that arrived.
struct Probes {
    sent: usize,
    /// What the forwarding thread used while they were sent.
    usage: Usage,
    arrived: Vec<Arrived>,
}

/// A probe that arrived; times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    number: u64,
    sent_ns: u64,
    arrived_ns: u64,
    is_marked: bool,
}

/// Sockets at both ends of a path.
struct Course<'a> {
    wan: &'a Wan,
    from: UdpSocket,
    to: UdpSocket,
    /// How long after the last was sent the last may arrive.
    longest: Duration,
}

impl Course<'_> {
    fn new(wan: &Wan, rail: usize, direction: Direction, path: usize) -> io::Result<Course<'_>> {
        let (source, destination) = direction.sides();
        let target = SocketAddr::from((wan.host(destination, rail).ipv4, PROBE_PORT));
        let origin = |port| SocketAddr::from((wan.host(source, rail).ipv4, port));
        let takes_it = |port: &u16| wan.path_of(&Flow::udp(origin(*port), target), rail, direction) == path;
        let port = SOURCE_PORTS.into_iter().find(takes_it);
        let port = port.ok_or_else(|| io::Error::other(format!("no source port leads to path {path}")))?;
        let to = wan.namespace(destination).run(|| UdpSocket::bind(target))?;
        set(to.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 32_i32 << 20)?;
        set(to.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1_i32)?;
        set(to.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTOS, 1_i32)?;
        let from = wan.namespace(source).run(|| UdpSocket::bind(origin(port)))?;
        from.connect(target)?;
        set(from.as_fd(), libc::IPPROTO_IP, libc::IP_TOS, i32::from(ECN_CAPABLE))?;
        let conditions = wan.conditions(rail, direction, path);
        let queue = conditions.rate_bps.map_or(0.0, |rate| 8.0 * conditions.queue_bytes() as f64 / rate as f64);
        let longest = conditions.delay + conditions.jitter + Duration::from_secs_f64(queue) + PATIENCE;
        Ok(Course { wan, from, to, longest })
    }

    /// Sends `number` probes with `payload` bytes, one `every` so often.
    fn run(&self, payload: usize, every: Duration, number: usize) -> io::Result<Probes> {
        self.run_for(payload, every, number, Duration::MAX)
    }

    /// As [`run`](Course::run), and no longer than `limit`.
    fn run_for(&self, payload: usize, every: Duration, number: usize, limit: Duration) -> io::Result<Probes> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| self.receive(payload, &is_over));
            let before = self.wan.counts().usage;
            let sent = self.send(payload, every, number, limit);
            let usage = self.wan.counts().usage.since(&before);
            std::thread::sleep(self.longest);
            is_over.store(true, Ordering::Release);
            let arrived = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok(Probes { sent: sent?, usage, arrived })
        })
    }

    fn send(&self, payload: usize, every: Duration, number: usize, limit: Duration) -> io::Result<usize> {
        let start = Instant::now();
        let mut buffers = vec![vec![0x5a; payload]; BATCH];
        let mut sent = 0;
        while sent < number {
            let elapsed = start.elapsed();
            if elapsed > limit {
                break;
            }
            // How many should have been sent by now.
            let due = match every {
                Duration::ZERO => number,
                every => ((elapsed.as_secs_f64() / every.as_secs_f64()) as usize + 1).min(number),
            };
            if due <= sent {
                std::thread::sleep(every.mul_f64(sent as f64).saturating_sub(elapsed));
                continue;
            }
            let batch = (due - sent).min(BATCH);
            let now_ns = clock::now_ns();
            for (buffer, serial) in buffers[..batch].iter_mut().zip(sent as u64..) {
                buffer[..8].copy_from_slice(&serial.to_be_bytes());
                buffer[8..PROBE_BYTES].copy_from_slice(&now_ns.to_be_bytes());
            }
            match messages::send(self.from.as_fd(), buffers[..batch].iter().map(|buffer| &buffer[..])) {
                Ok(number) => sent += number,
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ECONNREFUSED)) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    fn receive(&self, payload: usize, is_over: &AtomicBool) -> io::Result<Vec<Arrived>> {
        let mut buffers = vec![vec![0; payload]; BATCH];
        let mut arrived = Vec::new();
        let mut found = Vec::with_capacity(BATCH);
        loop {
            let all = buffers.iter_mut().map(|buffer| &mut buffer[..]);
            match messages::receive(self.to.as_fd(), all, |index, message| found.push((index, message))) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && is_over.load(Ordering::Acquire) => return Ok(arrived),
                Err(e) if e.kind() == ErrorKind::WouldBlock => wait_for(&self.to),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            for (index, message) in found.drain(..).filter(|(_, message)| message.bytes == payload) {
                let number =
                    |at: usize| buffers[index][at..].first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                arrived.push(Arrived {
                    number: number(0),
                    sent_ns: number(8),
                    arrived_ns: message.stamp_ns.unwrap_or_else(clock::now_ns),
                    is_marked: message.traffic_class.is_some_and(|class| class & 3 == 3),
                });
            }
        }
    }
}

/// Waits for a datagram, some milliseconds at the most.
fn wait_for(socket: &UdpSocket) {
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` lives until the call returns.
    unsafe { libc::poll(&raw mut polled, 1, 5) };
}

fn delay_figures(probes: &Probes, wanted: Duration) -> Option<DelayFigures> {
    let mut took: Vec<u64> =
        probes.arrived.iter().map(|probe| probe.arrived_ns.saturating_sub(probe.sent_ns)).collect();
    took.sort_unstable();
    let at = |share: f64| of_sorted(&took, share).copied().map(Duration::from_nanos);
    let over = [at(0.0)?, at(0.5)?, at(0.99)?].map(|took| took.saturating_sub(wanted));
    Some(DelayFigures { wanted, median: at(0.5)?, over, frames: took.len() })
}

fn loss_figures(probes: &Probes) -> LossFigures {
    let mut has_arrived = vec![false; probes.sent];
    for probe in &probes.arrived {
        if let Some(arrived) = usize::try_from(probe.number).ok().and_then(|number| has_arrived.get_mut(number)) {
            *arrived = true;
        }
    }
    let lost = has_arrived.iter().filter(|arrived| !**arrived).count();
    let first = usize::from(has_arrived.first() == Some(&false));
    let bursts = first + has_arrived.windows(2).filter(|pair| pair[0] && !pair[1]).count();
    LossFigures { frames: probes.sent, lost, bursts }
}

fn rate_figures(probes: &Probes, payload: usize) -> RateFigures {
    let stamps = probes.arrived.iter().map(|probe| probe.arrived_ns);
    let (first, last) = stamps.fold((u64::MAX, 0), |(first, last), ns| (first.min(ns), last.max(ns)));
    let bits = 8 * (HEADER_BYTES + payload) * probes.arrived.len().saturating_sub(1);
    let seconds = last.saturating_sub(first) as f64 / 1e9;
    let bps = if seconds > 0.0 { bits as f64 / seconds } else { 0.0 };
    RateFigures {
        wanted_bps: None,
        bps,
        frames: [probes.sent, probes.arrived.len()],
        marked: probes.arrived.iter().filter(|probe| probe.is_marked).count(),
        marked_wanted: None,
        usage: probes.usage,
    }
}

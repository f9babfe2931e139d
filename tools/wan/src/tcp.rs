use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::forwarder::Usage;
use crate::messages::set;
use crate::network::{Direction, Side, Wan};

/// A read and a write.
const BYTES: usize = 128 << 10;

/// How long a connection may take to come about: Linux sends its first segment again after 1 and 3 seconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How often a side that waits looks at the time.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The longest name of a congestion control (TCP_CA_NAME_MAX), with its zero.
const NAME_BYTES: usize = 16;

/// What a connection that pauses has written and not sent yet at the most: that goes into the pause. 7 ms at 300 Mb/s. Linux's own
/// buffer grows to twice what is in flight.
const UNSENT_BYTES: libc::c_int = 256 << 10;

/// When a connection sends, and when what arrives counts: times since it came about.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// It sends for so long, and then pauses for as long; `None` when it always sends.
    pub pauses: Option<Duration>,
    /// What arrives meanwhile counts.
    pub counts: Range<Duration>,
    /// It ends then.
    pub end: Duration,
}

/// What one TCP connection from A to B reached.
#[derive(Clone, Debug)]
pub struct TcpFigures {
    /// Which pair of interfaces.
    pub rail: usize,
    /// The congestion control.
    pub control: String,
    /// Bits of payload a second; 0 also when no connection came about, as on a path that is dark or in a burst of loss.
    pub goodput_bps: f64,
    /// What the forwarding thread used meanwhile.
    pub usage: Usage,
}

/// The congestion controls that the hosts' kernel has, of those that are worth a comparison: CUBIC, which Linux uses, and
/// BBR, which does not take loss for congestion.
pub fn congestion_controls(wan: &Wan) -> Vec<String> {
    let file = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = wan.namespace(Side::A).run(|| std::fs::read_to_string(file)).unwrap_or_default();
    let is_there = |name: &&str| available.split_whitespace().any(|word| word == *name);
    ["cubic", "bbr"].iter().filter(|name| is_there(name)).map(|name| (*name).to_owned()).collect()
}

/// Sends from A to B on a rail over one TCP connection with a congestion control: `seconds`, after as long as it takes to
/// get going (20 round trips).
///
/// # Errors
/// What the system says; that there is no such congestion control, say.
pub fn measure_tcp(wan: &Wan, rail: usize, control: &str, seconds: f64) -> io::Result<TcpFigures> {
    let delay = wan.conditions(rail, Direction::AToB, 0).delay + wan.conditions(rail, Direction::BToA, 0).delay;
    let warm_up = 20 * delay + Duration::from_millis(200);
    let end = warm_up + Duration::from_secs_f64(seconds);
    let before = wan.counts().usage;
    let goodput_bps = run_tcp(wan, rail, control, &Schedule { pauses: None, counts: warm_up..end, end })?;
    let usage = wan.counts().usage.since(&before);
    Ok(TcpFigures { rail, control: control.to_owned(), goodput_bps, usage })
}

/// Sends from A to B on a rail over one TCP connection, as the schedule says: bits of payload a second that arrived while it
/// counts, pauses included. 0 when no connection comes about.
///
/// # Errors
/// As [`measure_tcp`].
pub fn run_tcp(wan: &Wan, rail: usize, control: &str, schedule: &Schedule) -> io::Result<f64> {
    let (source, destination) = Direction::AToB.sides();
    // Any port: several connections may be there at the same time.
    let any = SocketAddr::from((wan.host(destination, rail).ipv4, 0));
    let listener = wan.namespace(destination).run(|| TcpListener::bind(any))?;
    let target = listener.local_addr()?;
    // It is complete before anybody accepts it.
    let sender = match wan.namespace(source).run(|| TcpStream::connect_timeout(&target, CONNECT_LIMIT)) {
        Err(e) if e.kind() == ErrorKind::TimedOut => return Ok(0.0),
        connected => connected?,
    };
    let (receiver, _) = listener.accept()?;
    let mut name = [0_u8; NAME_BYTES];
    name.iter_mut().zip(control.bytes().take(NAME_BYTES - 1)).for_each(|(to, byte)| *to = byte);
    set(sender.as_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
        .map_err(|e| io::Error::new(e.kind(), format!("TCP congestion control {control}: {e}")))?;
    if schedule.pauses.is_some() {
        set(sender.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES)?;
    }
    let start = Instant::now();
    let (sent, goodput_bps) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| count(receiver, start, schedule));
        let sent = send(sender, start, schedule);
        (sent, counting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    sent?;
    goodput_bps
}

impl Schedule {
    /// How long a pause still lasts then; `None` while it sends.
    fn paused_for(&self, now: Duration) -> Option<Duration> {
        let period = self.pauses?;
        let ns = now.as_nanos() % (2 * period).as_nanos().max(1);
        let since = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        (since >= period).then(|| 2 * period - since)
    }
}

/// Whether it only says that there was nothing to do for a while.
fn is_idle(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Writes as long as there is time, and pauses as it should.
fn send(mut stream: TcpStream, start: Instant, schedule: &Schedule) -> io::Result<()> {
    let buffer = vec![0x5a; BYTES];
    stream.set_write_timeout(Some(LOOK_EVERY))?;
    loop {
        let now = start.elapsed();
        if now >= schedule.end {
            break;
        }
        if let Some(left) = schedule.paused_for(now) {
            std::thread::sleep(left.min(schedule.end - now));
            continue;
        }
        match stream.write(&buffer) {
            Ok(_) => {}
            Err(e) if is_idle(&e) => {}
            // The other side looks at the same clock.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => break,
            Err(e) => return Err(e),
        }
    }
    abandon(&stream)
}

/// Reads, and counts what comes while it counts: bits a second.
fn count(mut stream: TcpStream, start: Instant, schedule: &Schedule) -> io::Result<f64> {
    let mut buffer = vec![0; BYTES];
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    let mut bytes = 0;
    loop {
        let read = stream.read(&mut buffer);
        let now = start.elapsed();
        match read {
            // The end, or what the other side does at its end.
            Ok(0) => break,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Err(e) if is_idle(&e) => {}
            Ok(read) if schedule.counts.contains(&now) => bytes += read,
            Ok(_) => {}
            Err(e) => return Err(e),
        }
        if now >= schedule.end {
            break;
        }
    }
    abandon(&stream)?;
    Ok(8.0 * bytes as f64 / (schedule.counts.end - schedule.counts.start).as_secs_f64())
}

/// Has the connection forgotten when it is closed: what is queued would be sent for a while, beside what is measured next.
fn abandon(stream: &TcpStream) -> io::Result<()> {
    set(stream.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sends_as_long_as_it_pauses() {
        let seconds = Duration::from_secs_f64;
        let of = |pauses: Option<f64>, now: f64| {
            let schedule =
                Schedule { pauses: pauses.map(seconds), counts: seconds(0.0)..seconds(9.0), end: seconds(9.0) };
            schedule.paused_for(seconds(now)).map(|left| left.as_secs_f64())
        };
        assert_eq!(
            [0.0, 1.9, 2.0, 3.5, 4.0, 6.5].map(|now| of(Some(2.0), now)),
            [None, None, Some(2.0), Some(0.5), None, Some(1.5)]
        );
        assert_eq!(of(None, 3.0), None);
    }
}

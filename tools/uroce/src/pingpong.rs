//! `uroce pingpong`: the peer of ibv_rc_pingpong, with its flags, its handshake and its output.
//!
//! The handshake over TCP: the client sends 52 bytes `lid:qpn:psn:gid` in hexadecimal with a NUL at the end; the server
//! brings its queue pair to RTS and answers likewise; the client sends `done` and a NUL.

#![allow(clippy::disallowed_methods)] // it measures real time

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use uroce::verbs::{
    Access, AddressVector, Capabilities, CompletionChannel, CompletionQueue, Context, Data, MemoryRegion, Notify,
    PathMtu, Psn, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, RnrTimer, SendOperation, SendRequest,
    Service, State, Status,
};

use crate::Failure;
use crate::device_arguments::DeviceArguments;

/// Bounce messages with another uroce, or with ibv_rc_pingpong on an RNIC or rxe
#[derive(Args)]
pub struct Arguments {
    /// The server's host; without it, be the server
    host: Option<String>,

    /// The transport service
    #[arg(long, value_enum, default_value = "rc")]
    transport: Transport,

    #[command(flatten)]
    device: DeviceArguments,

    /// Index of the local GID; default: the first IPv4 one, else 0
    #[arg(short = 'g', long = "gid-idx")]
    gid_index: Option<usize>,

    /// Device port; there is only 1
    #[arg(short = 'i', long = "ib-port", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=1))]
    _ib_port: u8,

    /// TCP port of the handshake
    #[arg(short = 'p', long, default_value_t = 18515)]
    port: u16,

    /// Bytes of a message
    #[arg(short = 's', long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=1 << 30))]
    size: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short = 'm', long, default_value = "1024", value_parser = parse_mtu)]
    mtu: PathMtu,

    /// Messages each way
    #[arg(short = 'n', long = "iters", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,

    /// Receive requests to keep posted
    #[arg(short = 'r', long = "rx-depth", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=65536))]
    receive_depth: u32,

    /// Service level, which becomes the upper bits of the traffic class
    #[arg(short = 'l', long = "sl", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    service_level: u8,

    /// Sleep on completion events instead of polling
    #[arg(short = 'e', long)]
    events: bool,

    /// Check the bytes that come back
    #[arg(short = 'c', long = "chk")]
    check: bool,

    /// Local ACK timeout code: 4.096 µs × 2^code
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    timeout: u8,

    /// Give up when nothing has happened for so many seconds
    #[arg(long, default_value_t = 60)]
    patience: u64,

    /// One JSON object on stdout instead of ibv_rc_pingpong's lines
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Reliable connection
    Rc,
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().map_err(|_| format!("{text:?} is no number of bytes"))?;
    PathMtu::from_bytes(bytes).ok_or_else(|| format!("{bytes} is none of 256, 512, 1024, 2048, 4096"))
}

/// What the handshake says of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    qpn: Qpn,
    psn: Psn,
    gid: Ipv6Addr,
}

const HANDSHAKE_BYTES: usize = 52;
const DONE: &[u8; 5] = b"done\0";

impl Destination {
    fn to_bytes(self) -> [u8; HANDSHAKE_BYTES] {
        let (qpn, psn, gid) = (self.qpn.value(), self.psn.value(), u128::from(self.gid));
        let text = format!("0000:{qpn:06x}:{psn:06x}:{gid:032x}\0");
        text.as_bytes().try_into().expect("4 + 6 + 6 + 32 digits, three colons and a NUL")
    }

    fn parse(bytes: &[u8; HANDSHAKE_BYTES]) -> Result<Destination, Failure> {
        let text = std::str::from_utf8(bytes).unwrap_or("").trim_end_matches('\0');
        let wrong =
            || format!("the peer's handshake {text:?} is not lid:qpn:psn:gid; is it an ibv pingpong of the same kind?");
        let mut fields = text.split(':');
        let mut next = |digits: usize| fields.next().filter(|field| field.len() == digits).ok_or_else(wrong);
        let _lid = next(4)?;
        let qpn = u32::from_str_radix(next(6)?, 16).map_err(|_| wrong())?;
        let psn = u32::from_str_radix(next(6)?, 16).map_err(|_| wrong())?;
        let gid = u128::from_str_radix(next(32)?, 16).map_err(|_| wrong())?;
        Ok(Destination { qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Ipv6Addr::from(gid) })
    }
}

/// One side, ready to play.
struct Side<'a> {
    arguments: &'a Arguments,
    context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    region: MemoryRegion,
    qp: QueuePair,
    gid_index: usize,
    receives_posted: u32,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Transport::Rc = arguments.transport;
    let mut side = Side::new(arguments)?;
    let local = Destination {
        qpn: side.qp.qpn(),
        psn: side.context.random_psn(),
        gid: side.context.gids()[side.gid_index].address,
    };
    let is_client = arguments.host.is_some();
    if is_client && arguments.check {
        side.region.memory().write(0, &check_pattern(arguments.size));
    }
    if !arguments.json {
        print_address("local address: ", local);
    }
    side.post_receives(arguments.receive_depth)?;

    let remote = match &arguments.host {
        Some(host) => {
            let mut stream = connect(host, arguments.port, Duration::from_secs(arguments.patience))?;
            stream.write_all(&local.to_bytes())?;
            let remote = read_destination(&mut stream)?;
            stream.write_all(DONE)?;
            side.connect(local, remote)?;
            remote
        }
        None => {
            let mut stream = accept(arguments.port)?;
            stream.set_read_timeout(Some(Duration::from_secs(arguments.patience)))?;
            let remote = read_destination(&mut stream)?;
            side.connect(local, remote)?;
            stream.write_all(&local.to_bytes())?;
            let mut done = [0; DONE.len()];
            stream.read_exact(&mut done).map_err(|e| format!("the client ended the handshake early: {e}"))?;
            remote
        }
    };
    if !arguments.json {
        print_address("remote address:", remote);
    }

    let (elapsed, mut round_trips) = side.play(is_client)?;
    report(arguments, elapsed, &mut round_trips);
    side.drain();
    if arguments.check {
        side.check(is_client)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl<'a> Side<'a> {
    fn new(arguments: &'a Arguments) -> Result<Side<'a>, Failure> {
        let context = arguments.device.open()?;
        if arguments.mtu > context.active_mtu() {
            let (device, active, wanted) =
                (&context.device().name, context.active_mtu().bytes(), arguments.mtu.bytes());
            return Err(format!("{device} has an active MTU of {active}, less than -m {wanted}: give -m {active}, or enlarge its MTU with `ip link set {device} mtu {}`", wanted + 80).into());
        }
        let gid_index = match arguments.gid_index {
            Some(index) if index < context.gids().len() => index,
            Some(index) => {
                return Err(format!(
                    "-g {index}: {} has {} GIDs, see `uroce devices`",
                    context.device().name,
                    context.gids().len()
                )
                .into());
            }
            None => context.gids().iter().position(|gid| gid.ip().is_ipv4()).unwrap_or(0),
        };
        let pd = context.allocate_pd();
        let region = pd.allocate_region(arguments.size as usize, Access::LOCAL_WRITE)?;
        // What ibv_rc_pingpong fills its buffer with.
        region.memory().write(0, &vec![0x7b; arguments.size as usize]);
        let channel = CompletionChannel::new()?;
        let cq = context.create_completion_queue_on(arguments.receive_depth as usize + 1, &channel);
        let capabilities =
            Capabilities { max_send_requests: 1, max_receive_requests: arguments.receive_depth as usize };
        let options = QueuePairOptions { service: Service::Rc, capabilities, send: &cq, receive: &cq, srq: None };
        let qp = pd.create_queue_pair(&options)?;
        let init = QpAttributes {
            state: Some(State::Init),
            p_key_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..Default::default()
        };
        qp.modify(&init)?;
        Ok(Side { arguments, context, channel, cq, region, qp, gid_index, receives_posted: 0 })
    }

    fn connect(&self, local: Destination, remote: Destination) -> Result<(), Failure> {
        if remote.gid.is_unspecified() {
            return Err("the peer's GID is all zeros; RoCE needs one: start the peer with -g INDEX".into());
        }
        let vector = AddressVector {
            source_gid_index: self.gid_index,
            destination_gid: remote.gid,
            traffic_class: self.arguments.service_level << 5,
            hop_limit: 0,
            flow_label: 0,
        };
        let to_receive = QpAttributes {
            state: Some(State::ReadyToReceive),
            path: Some(self.context.path(&vector, local.qpn, remote.qpn)?),
            path_mtu: Some(self.arguments.mtu),
            destination: Some(remote.qpn),
            receive_psn: Some(remote.psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::new(12)),
            ..Default::default()
        };
        let to_send = QpAttributes {
            state: Some(State::ReadyToSend),
            send_psn: Some(local.psn),
            timeout: Some(self.arguments.timeout),
            retry_count: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Default::default()
        };
        self.qp.modify(&to_receive)?;
        self.qp.modify(&to_send)?;
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<(), Failure> {
        let sges: uroce::verbs::SgeList = [self.region.sge(0, self.region.len())].into_iter().collect();
        for _ in 0..count {
            self.qp.post_receive(ReceiveRequest { wr_id: 1, sges: sges.clone() })?;
        }
        self.receives_posted += count;
        Ok(())
    }

    fn post_send(&self) -> Result<(), Failure> {
        let data = Data::Sges([self.region.sge(0, self.region.len())].into_iter().collect());
        Ok(self.qp.post_send(SendRequest::new(2, SendOperation::Send, data))?)
    }

    /// Sends and receives all messages. Returns the time of all, and of each round trip.
    fn play(&mut self, is_client: bool) -> Result<(Duration, Vec<Duration>), Failure> {
        let iterations = self.arguments.iterations;
        let mut round_trips = Vec::with_capacity(iterations as usize);
        let (mut sent, mut received) = (0, 0);
        let (mut send_pending, mut receive_pending) = (false, true);
        if self.arguments.events {
            self.cq.request_notification(Notify::Next);
        }
        let start = Instant::now();
        let mut last = start;
        if is_client {
            self.post_send()?;
            send_pending = true;
        }
        while sent < iterations || received < iterations {
            let Some(completion) = self.cq.poll() else {
                if last.elapsed() > Duration::from_secs(self.arguments.patience) {
                    return Err(format!(
                        "nothing has come from the peer for {} s, after {received} messages",
                        self.arguments.patience
                    )
                    .into());
                }
                if self.arguments.events {
                    self.channel.wait(Duration::from_secs(1))?;
                    self.cq.request_notification(Notify::Next);
                }
                continue;
            };
            if completion.status != Status::Success {
                let what = if completion.wr_id == 1 { "receive" } else { "send" };
                return Err(
                    format!("a {what} request failed: {:?} ({})", completion.status, completion.status as u8).into()
                );
            }
            if completion.wr_id == 2 {
                sent += 1;
                send_pending = false;
            } else {
                received += 1;
                receive_pending = false;
                let now = Instant::now();
                round_trips.push(now - last);
                last = now;
                self.receives_posted -= 1;
                if self.receives_posted <= 1 {
                    self.post_receives(self.arguments.receive_depth - self.receives_posted)?;
                }
            }
            if sent < iterations && !send_pending && !receive_pending {
                self.post_send()?;
                (send_pending, receive_pending) = (true, true);
            }
        }
        Ok((start.elapsed(), round_trips))
    }

    /// The peer may still ask for an acknowledge again, if the last one was lost: answers for a moment.
    fn drain(&self) {
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn check(&self, is_client: bool) -> Result<(), Failure> {
        let bytes = self.region.memory().to_vec(0, self.region.len());
        let wrong = if is_client {
            // The server sends back what it got, so this went there and back again each time.
            bytes.iter().zip(check_pattern(self.arguments.size)).position(|(have, want)| *have != want)
        } else {
            (0..bytes.len()).step_by(PAGE_BYTES).find(|at| bytes[*at] != 0)
        };
        match wrong {
            None => Ok(()),
            Some(at) => Err(format!("invalid data in page {}, byte {at}", at / PAGE_BYTES).into()),
        }
    }
}

const PAGE_BYTES: usize = 4096;

/// What a checking client sends: each page starts with zero, which is all that ibv_rc_pingpong looks at; the rest tells
/// bytes apart.
fn check_pattern(size: u32) -> Vec<u8> {
    let byte = |at: usize| if at.is_multiple_of(PAGE_BYTES) { 0 } else { (at * 7 + (at >> 8) * 13 + (at >> 16)) as u8 };
    (0..size as usize).map(byte).collect()
}

fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, Failure> {
    let failure =
        |e: &dyn std::fmt::Display| format!("cannot connect to {host} port {port}: {e}; is the server running?");
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|e| failure(&e))?.collect();
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| failure(&"no address"), |e| failure(&e)).into())
}

/// Waits for one client, over IPv6 or IPv4.
fn accept(port: u16) -> Result<TcpStream, Failure> {
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), std::net::Ipv4Addr::UNSPECIFIED.into()];
    // A socket on [::] takes IPv4 too; where there is no IPv6, 0.0.0.0 does.
    let listener = TcpListener::bind((any[0], port)).or_else(|_| TcpListener::bind((any[1], port)));
    let listener = listener.map_err(|e| format!("cannot listen on TCP port {port}: {e}; choose another with -p"))?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn read_destination(stream: &mut TcpStream) -> Result<Destination, Failure> {
    let mut bytes = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut bytes).map_err(|e| format!("the peer sent no handshake: {e}"))?;
    Destination::parse(&bytes)
}

fn print_address(what: &str, Destination { qpn, psn, gid }: Destination) {
    println!("  {what} LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {gid}", qpn.value(), psn.value());
}

fn report(arguments: &Arguments, elapsed: Duration, round_trips: &mut [Duration]) {
    round_trips.sort_unstable();
    let at = |share: f64| round_trips[((round_trips.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let (bytes, seconds) = (u64::from(arguments.size) * u64::from(arguments.iterations) * 2, elapsed.as_secs_f64());
    let mbit = bytes as f64 * 8.0 / seconds / 1e6;
    let usec = seconds * 1e6 / f64::from(arguments.iterations);
    if arguments.json {
        let result = json!({
            "iterations": arguments.iterations, "size": arguments.size, "bytes": bytes, "seconds": seconds,
            "mbit_per_second": mbit, "usec_per_iteration": usec,
            "round_trip_usec": {"min": at(0.0), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)},
        });
        println!("{result}");
        return;
    }
    println!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec");
    println!("{} iters in {seconds:.2} seconds = {usec:.2} usec/iter", arguments.iterations);
    println!("round trip: min {:.2}, median {:.2}, 99 % {:.2}, max {:.2} usec", at(0.0), at(0.5), at(0.99), at(1.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_is_that_of_ibv_rc_pingpong() {
        // Captured from Debian 12's ibv_rc_pingpong.
        let bytes = b"0000:9c4102:1c26ea:00000000000000000000ffff7f000001\0";
        let destination = Destination::parse(bytes).unwrap();
        assert_eq!(destination.qpn, Qpn::new(0x9c4102));
        assert_eq!(destination.psn, Psn::new(0x1c26ea));
        assert_eq!(destination.gid, "::ffff:127.0.0.1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(&destination.to_bytes(), bytes);
    }

    #[test]
    fn other_handshakes_are_refused_with_what_was_expected() {
        for bytes in [
            [0; HANDSHAKE_BYTES],
            [b'x'; HANDSHAKE_BYTES],
            *b"0000:9c4102:1c26ea:000000000000000000ffff7f0000010\xff\0",
        ] {
            assert!(Destination::parse(&bytes).unwrap_err().to_string().contains("lid:qpn:psn:gid"));
        }
    }
}

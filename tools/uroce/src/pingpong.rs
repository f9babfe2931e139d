//! `uroce pingpong`: the peer of ibv_{rc,uc,ud,srq}_pingpong, with their flags, their handshake and their output.
//!
//! The handshake over TCP: the client sends 52 bytes `lid:qpn:psn:gid` in hexadecimal with a NUL at the end, for each
//! queue pair (srq: 256 times, unused ones all zeros); the server brings its queue pairs to RTS and answers likewise; the client sends `done` and a NUL.

#![allow(clippy::disallowed_methods)] // it measures real time

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use uroce::verbs::{
    Access, Capabilities, Class, CompletionChannel, CompletionQueue, ConnectOptions, Context, Data, MemoryRegion,
    Notify, PathMtu, Peer, Psn, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, SendOperation,
    SendRequest, Service, SgeList, SharedReceiveQueue, Status,
};

use crate::Failure;
use crate::choices::{Q_KEY, check_mtu, choose_gid, parse_mtu, parse_patience, parse_size_or_nothing};
use crate::device_arguments::DeviceArguments;
use crate::failed_request::{Around, FailedRequest, Probe};
use crate::interrupt::{self, Interruptible};
use crate::losses::Losses;
use crate::tcp::{self, Listener, PeerProgram};
use crate::terms::Terms;
use crate::watch::{Stalled, Watch};

const EXAMPLES: &str = "\
Examples:
  uroce pingpong                               a server, also for ibv_rc_pingpong
  uroce pingpong -s 64k -n 10000 10.0.0.1      its client; both ends need the same -s and -n
  uroce pingpong --dev 127.0.0.2 --forever     a server on the loopback that serves one client after the other";

/// Bounce messages with another uroce, or with ibv_{rc,uc,ud,srq}_pingpong on an RNIC or rxe
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Host of the server; omit to be the server
    host: Option<String>,

    /// Messages in each direction
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 1000, help_heading = "Test",
          value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,

    /// Verify the received bytes
    #[arg(short = 'c', long = "chk", help_heading = "Test")]
    check: bool,

    /// Message size: 0 to 1G bytes, as in 4096 or 64k. Default: 4096, or 1024 for ud
    #[arg(short = 's', long, value_name = "BYTES", help_heading = "Messages", value_parser = parse_size_or_nothing)]
    size: Option<u32>,

    /// Receive requests to keep posted: 1 to 65536
    #[arg(short = 'r', long = "rx-depth", value_name = "N", default_value_t = 500, help_heading = "Messages",
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    receive_depth: u32,

    /// Sleep on completion events instead of polling
    #[arg(short = 'e', long, help_heading = "Messages")]
    events: bool,

    /// The transport service
    #[arg(long, value_name = "NAME", value_enum, default_value = "rc", help_heading = "Connection")]
    transport: Transport,

    /// Queue pairs, 1 to 256, for srq
    #[arg(short = 'q', long = "num-qp", value_name = "N", default_value_t = 16, help_heading = "Connection",
          value_parser = clap::value_parser!(u32).range(1..=256))]
    queue_pairs: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short = 'm', long, value_name = "BYTES", default_value = "1024", help_heading = "Connection",
          value_parser = parse_mtu)]
    mtu: PathMtu,

    /// TCP port of the handshake
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 18515, help_heading = "Connection")]
    port: u16,

    /// Local ACK timeout: 4.096 µs × 2^N, N from 0 (none) to 31
    #[arg(long, value_name = "N", default_value_t = 14, help_heading = "Connection",
          value_parser = clap::value_parser!(u8).range(0..=31))]
    timeout: u8,

    /// Service level, 0 to 15: 1 to 7 become the class selector of that number, unless --tclass has a DSCP
    #[arg(short = 'l', long = "sl", value_name = "N", default_value_t = 0, help_heading = "Connection",
          value_parser = clap::value_parser!(u8).range(0..=15))]
    service_level: u8,

    /// Traffic class, 0 to 255: DSCP in the upper six bits, ECN in the lower two
    #[arg(long = "tclass", value_name = "N", default_value_t = 0, help_heading = "Connection")]
    traffic_class: u8,

    /// Give up after this time without progress, as in 60 (seconds) or 2m
    #[arg(long, value_name = "TIME", default_value = "60s", help_heading = "Connection", value_parser = parse_patience)]
    patience: Duration,

    /// A server that serves one client after the other until a signal ends it
    #[arg(long, help_heading = "Connection", conflicts_with = "host")]
    forever: bool,

    #[command(flatten)]
    device: DeviceArguments,

    /// Index of the local GID. Default: the first IPv4 one, otherwise the first that is not link-local, otherwise 0
    #[arg(short = 'g', long = "gid-idx", value_name = "N", help_heading = "Device")]
    gid_index: Option<usize>,

    /// Device port; there is only 1
    #[arg(short = 'i', long = "ib-port", value_name = "N", default_value_t = 1, help_heading = "Device",
          value_parser = clap::value_parser!(u8).range(1..=1))]
    _ib_port: u8,

    /// Print one JSON object instead of ibv_rc_pingpong's lines (docs/JSON.md)
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection: a lost message ends the test
    Uc,
    /// Unreliable datagrams: a lost message ends the test
    Ud,
    /// Reliable connections with a shared receive queue
    Srq,
}

impl Arguments {
    fn size(&self) -> u32 {
        self.size.unwrap_or(if self.transport == Transport::Ud { 1024 } else { 4096 })
    }

    fn service(&self) -> Service {
        match self.transport {
            Transport::Rc | Transport::Srq => Service::Rc,
            Transport::Uc => Service::Uc,
            Transport::Ud => Service::Ud,
        }
    }

    /// What a peer that is uroce must be given, too.
    fn terms(&self) -> Terms {
        let transport = self.transport.to_possible_value().expect("no transport is hidden");
        let terms = Terms::new("pingpong").with("--transport", transport.get_name()).with("-s", self.size());
        let terms = terms.with("-n", self.iterations).with("-m", self.mtu.bytes());
        if self.transport == Transport::Srq { terms.with("-q", self.queue_pairs) } else { terms }
    }

    /// Refuses sizes that the device cannot carry.
    fn check_sizes(&self, context: &Context) -> Result<(), Failure> {
        if self.transport != Transport::Ud {
            return check_mtu(context, self.mtu);
        }
        let (device, active, size) = (&context.device().name, context.active_mtu().bytes(), self.size());
        match size as usize <= active {
            true => Ok(()),
            false => Err(format!(
                "a datagram of {size} bytes does not fit into the active MTU of {device}, {active}: use -s {active} or \
                 less"
            )
            .into()),
        }
    }

    /// How long a queue pair waits for an acknowledge.
    fn ack_timeout(&self) -> Duration {
        if self.timeout == 0 { Duration::ZERO } else { Duration::from_nanos(4096 << self.timeout) }
    }

    /// Where messages begin in the buffer: datagrams leave room for the routing header.
    fn offset(&self) -> usize {
        if self.transport == Transport::Ud { 40 } else { 0 }
    }
}

/// What the handshake says of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Destination {
    /// Whether its program is uroce, by the LID.
    is_uroce: bool,
    qpn: Qpn,
    psn: Psn,
    gid: Ipv6Addr,
}

const HANDSHAKE_BYTES: usize = 52;
/// Queue pairs that ibv_srq_pingpong has room for (MAX_QP).
const SRQ_TABLE: usize = 256;
/// Bytes of perftest's version.
const VERSION_BYTES: usize = 16;
const DONE: &[u8; 5] = b"done\0";

impl Destination {
    /// An unused place in the table.
    const NONE: Destination =
        Destination { is_uroce: false, qpn: Qpn::new(0), psn: Psn::new(0), gid: Ipv6Addr::UNSPECIFIED };

    fn to_bytes(self) -> [u8; HANDSHAKE_BYTES] {
        let (qpn, psn, gid) = (self.qpn.value(), self.psn.value(), u128::from(self.gid));
        let lid = if self.is_uroce { Terms::LID } else { 0 };
        let text = format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid:032x}\0");
        text.as_bytes().try_into().expect("4 + 6 + 6 + 32 digits, three colons and a NUL")
    }

    fn parse(bytes: &[u8; HANDSHAKE_BYTES]) -> Result<Destination, Failure> {
        let text = std::str::from_utf8(bytes).unwrap_or("").trim_end_matches('\0');
        let wrong =
            || format!("the peer's handshake {text:?} is not lid:qpn:psn:gid; is it an ibv pingpong of the same kind?");
        let mut fields = text.split(':');
        let mut next = |digits: usize| fields.next().filter(|field| field.len() == digits).ok_or_else(wrong);
        let is_uroce = u16::from_str_radix(next(4)?, 16) == Ok(Terms::LID);
        let qpn = u32::from_str_radix(next(6)?, 16).map_err(|_| wrong())?;
        let psn = u32::from_str_radix(next(6)?, 16).map_err(|_| wrong())?;
        let gid = u128::from_str_radix(next(32)?, 16).map_err(|_| wrong())?;
        Ok(Destination { is_uroce, qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Ipv6Addr::from(gid) })
    }
}

/// One side, ready to play.
struct Side<'a> {
    arguments: &'a Arguments,
    context: &'a Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    region: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    players: Vec<Player>,
    /// How queue pairs are connected.
    ways: ConnectOptions,
    receives_posted: u32,
}

/// A queue pair, and what it waits for.
struct Player {
    qp: QueuePair,
    local: Destination,
    /// Where datagrams go.
    datagrams_to: Option<uroce::verbs::Destination>,
    send_pending: bool,
    receive_pending: bool,
}

const RECEIVE: u64 = 1;
const SEND: u64 = 2;

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let context = arguments.device.open()?;
    arguments.check_sizes(&context)?;
    let gid_index = choose_gid(&context, "-g", arguments.gid_index)?;
    let _told = arguments.device.watch(&context, arguments.json)?;
    arguments.device.announce(&context, gid_index);
    let mut side = Side::new(arguments, &context, gid_index)?;
    if let Some(host) = &arguments.host {
        side.begin()?;
        let mut stream = tcp::connect(host, arguments.port, arguments.patience)?;
        let remotes = side.introduce_to_server(&mut stream)?;
        side.run(&stream, &remotes)?;
        return Ok(ExitCode::SUCCESS);
    }
    let serve = |mut side: Side, mut stream: TcpStream| {
        let remotes = side.introduce_to_client(&mut stream)?;
        side.run(&stream, &remotes)
    };
    let listener = Listener::bind(arguments.port)?;
    if arguments.forever {
        drop(side);
        return Err(listener.serve_all(arguments.json, |stream| {
            let mut side = Side::new(arguments, &context, gid_index)?;
            side.begin()?;
            serve(side, stream)
        }));
    }
    side.begin()?;
    let stream = listener.accept()?;
    drop(listener);
    serve(side, stream)?;
    Ok(ExitCode::SUCCESS)
}

impl<'a> Side<'a> {
    fn new(arguments: &'a Arguments, context: &'a Context, gid_index: usize) -> Result<Side<'a>, Failure> {
        let pd = context.allocate_pd();
        let bytes = arguments.offset() + arguments.size() as usize;
        let region = pd.allocate_region(bytes, Access::LOCAL_WRITE)?;
        // What the ibv pingpongs fill their buffers with.
        region.memory().write(0, &vec![0x7b; bytes]);
        let (shared, count) =
            if arguments.transport == Transport::Srq { (true, arguments.queue_pairs) } else { (false, 1) };
        let depth = arguments.receive_depth.max(2 * count);
        let channel = CompletionChannel::new()
            .map_err(|e| format!("no descriptor for completion events: {e}; see `ulimit -n`"))?;
        let cq = context.create_completion_queue_on((depth + count) as usize, &channel);
        let srq = if shared { Some(pd.create_shared_receive_queue(depth as usize)?) } else { None };
        let options = QueuePairOptions {
            service: arguments.service(),
            capabilities: Capabilities { max_send_requests: 1, max_receive_requests: depth as usize },
            send: &cq,
            receive: &cq,
            srq: srq.as_ref(),
        };
        let traffic_class = Class::traffic_class(arguments.traffic_class, arguments.service_level);
        let ways = ConnectOptions::new().gid_index(gid_index).traffic_class(traffic_class).attributes(QpAttributes {
            access: Some(Access::empty()),
            q_key: Some(Q_KEY),
            path_mtu: Some(arguments.mtu),
            max_dest_rd_atomic: Some(1),
            max_rd_atomic: Some(1),
            timeout: Some(arguments.timeout),
            ..Default::default()
        });
        let mut players = Vec::new();
        for _ in 0..count {
            let qp = pd.create_queue_pair(&options)?;
            qp.init(&ways)?;
            let local = qp.local_with(&ways)?;
            let local = Destination { is_uroce: true, qpn: local.qpn, psn: local.psn, gid: local.gid };
            players.push(Player { qp, local, datagrams_to: None, send_pending: false, receive_pending: true });
        }
        Ok(Side { arguments, context, channel, cq, region, srq, players, ways, receives_posted: 0 })
    }

    /// What is done before there is a peer.
    fn begin(&mut self) -> Result<(), Failure> {
        let arguments = self.arguments;
        if arguments.host.is_some() && arguments.check {
            self.region.memory().write(arguments.offset(), &check_pattern(arguments.size()));
        }
        if !arguments.json {
            self.players.iter().for_each(|player| print_address("local address: ", player.local));
        }
        self.post_receives(arguments.receive_depth)
    }

    /// The game with a peer whose queue pairs are connected with ours, and its result.
    fn run(&mut self, stream: &TcpStream, remotes: &[Destination]) -> Result<(), Failure> {
        let (arguments, is_client) = (self.arguments, self.arguments.host.is_some());
        if !arguments.json {
            remotes.iter().for_each(|remote| print_address("remote address:", *remote));
        }
        let losses = Losses::begin(self.context);
        let peer = remotes[0].is_uroce.then_some(stream);
        let interruptible = Interruptible::begin();
        let played = self.play(is_client, peer);
        drop(interruptible);
        let (elapsed, mut round_trips) = played.map_err(|failure| self.explain(failure, stream, remotes))?;
        self.drain();
        if !round_trips.is_empty() {
            self.report(elapsed, &mut round_trips);
        }
        losses.tell(self.context);
        interrupt::check()?;
        if arguments.check { self.check(is_client) } else { Ok(()) }
    }

    /// Messages of the handshake each way. ibv_srq_pingpong always sends its whole table, however many queue pairs it
    /// uses.
    fn handshake_messages(&self) -> usize {
        if self.srq.is_some() { SRQ_TABLE } else { 1 }
    }

    fn handshake(&self) -> Vec<u8> {
        let own = self.players.iter().map(|player| player.local);
        own.chain(std::iter::repeat(Destination::NONE))
            .take(self.handshake_messages())
            .flat_map(Destination::to_bytes)
            .collect()
    }

    /// The handshake with a server: the peer's queue pairs.
    fn introduce_to_server(&mut self, stream: &mut TcpStream) -> Result<Vec<Destination>, Failure> {
        send(stream, &self.handshake(), "handshake")?;
        let remotes = self.read_destinations(stream)?;
        if remotes[0].is_uroce {
            let theirs = read::<{ Terms::BYTES }>(stream, "terms")?;
            send(stream, &self.arguments.terms().to_bytes(), "terms")?;
            self.arguments.terms().agree(&theirs, &tcp::peer_address(stream))?;
        }
        self.check_count(&remotes)?;
        send(stream, DONE, "handshake")?;
        self.connect(&remotes)?;
        Ok(remotes)
    }

    /// The handshake with a client: the peer's queue pairs.
    fn introduce_to_client(&mut self, stream: &mut TcpStream) -> Result<Vec<Destination>, Failure> {
        let patience = Some(self.arguments.patience);
        stream.set_read_timeout(patience).map_err(|e| format!("the client is gone again: {e}; check its output"))?;
        let remotes = self.read_destinations(stream)?;
        let is_uroce = remotes[0].is_uroce;
        if !is_uroce {
            self.check_count(&remotes)?;
        }
        self.connect(&remotes)?;
        send(stream, &self.handshake(), "handshake")?;
        if is_uroce {
            send(stream, &self.arguments.terms().to_bytes(), "terms")?;
            let theirs = read::<{ Terms::BYTES }>(stream, "terms")?;
            self.arguments.terms().agree(&theirs, &tcp::peer_address(stream))?;
        }
        read::<{ DONE.len() }>(stream, "end of the handshake")?;
        Ok(remotes)
    }

    fn read_destinations(&self, stream: &mut TcpStream) -> Result<Vec<Destination>, Failure> {
        let all: Vec<Destination> =
            (0..self.handshake_messages()).map(|_| read_destination(stream)).collect::<Result<_, _>>()?;
        let used = all.iter().filter(|destination| **destination != Destination::NONE).count();
        match used {
            0 => Err("the peer names no queue pair; is it an ibv pingpong of the same kind?".into()),
            _ => Ok(all[..used].to_vec()),
        }
    }

    fn check_count(&self, remotes: &[Destination]) -> Result<(), Failure> {
        let (theirs, ours) = (remotes.len(), self.players.len());
        match theirs == ours {
            true => Ok(()),
            false => {
                Err(format!("the peer has {theirs} queue pairs, we have {ours}: use the same -q at both ends").into())
            }
        }
    }

    /// Says more of a failure: what the peer's end of the TCP connection, and a small packet, tell of it.
    fn explain(&self, failure: Failure, stream: &TcpStream, remotes: &[Destination]) -> Failure {
        let is_uroce = remotes[0].is_uroce;
        let program = match tcp::peer_program(stream) {
            // The ibv pingpongs close it when the game begins.
            PeerProgram::Ended if !is_uroce => PeerProgram::Unknown,
            program => program,
        };
        let at = tcp::peer_address(stream);
        match failure.downcast::<FailedRequest>() {
            Ok(failed) => {
                let around = Around { at, program, is_uroce, mtu: self.arguments.mtu };
                let is_reliable = self.arguments.service() == Service::Rc;
                let bytes = if is_reliable { self.arguments.size() as usize } else { 0 };
                failed.explain(&around, bytes, |qpn| self.probe(qpn, remotes)).into()
            }
            Err(other) => match other.downcast::<Stalled>() {
                Ok(stalled) => stalled.explain(program, &at).into(),
                Err(other) => other,
            },
        }
    }

    /// What it takes to send a queue pair's peer one more packet.
    fn probe(&self, qpn: Qpn, remotes: &[Destination]) -> Option<Probe<'_>> {
        let (player, remote) = self.players.iter().zip(remotes).find(|(player, _)| player.qp.qpn() == qpn)?;
        let peer = Peer::new(remote.qpn, remote.psn, remote.gid);
        Some(Probe { qp: &player.qp, cq: &self.cq, peer, ways: &self.ways })
    }

    fn connect(&mut self, remotes: &[Destination]) -> Result<(), Failure> {
        for (player, remote) in self.players.iter_mut().zip(remotes) {
            if remote.gid.is_unspecified() {
                return Err("the peer's GID is all zeros; RoCE needs one: start the peer with -g INDEX".into());
            }
            let peer = Peer::new(remote.qpn, remote.psn, remote.gid);
            if self.arguments.service() == Service::Ud {
                player.datagrams_to = Some(player.qp.destination(&peer, &self.ways)?);
            }
            player.qp.connect_with(&peer, &self.ways)?;
        }
        Ok(())
    }

    fn post_receives(&mut self, count: u32) -> Result<(), Failure> {
        let sges: SgeList = [self.region.sge(0, self.region.len())].into_iter().collect();
        for _ in 0..count {
            let request = ReceiveRequest { wr_id: RECEIVE, sges: sges.clone() };
            match &self.srq {
                Some(srq) => srq.post_receive(request)?,
                None => self.players[0].qp.post_receive(request)?,
            }
        }
        self.receives_posted += count;
        Ok(())
    }

    fn post_send(&mut self, index: usize) -> Result<(), Failure> {
        let sge = self.region.sge(self.arguments.offset(), self.arguments.size() as usize);
        let mut request = SendRequest::new(SEND, SendOperation::Send, Data::Sges([sge].into_iter().collect()));
        let player = &mut self.players[index];
        request.destination = player.datagrams_to;
        player.qp.post_send(request)?;
        (player.send_pending, player.receive_pending) = (true, true);
        Ok(())
    }

    /// Sends and receives all messages, or as many as a signal leaves time for. Returns the time of all, and of each round trip.
    /// `peer` is the connection that a peer keeps as long as its program runs.
    fn play(&mut self, is_client: bool, peer: Option<&TcpStream>) -> Result<(Duration, Vec<Duration>), Failure> {
        let iterations = self.arguments.iterations;
        let mut watch = Watch::new(self.arguments.patience, self.arguments.ack_timeout(), peer);
        let mut round_trips = Vec::with_capacity(iterations as usize);
        let (mut sent, mut received) = (0, 0);
        if self.arguments.events {
            self.cq.request_notification(Notify::Next);
        }
        let start = Instant::now();
        let mut last = start;
        if is_client {
            (0..self.players.len()).try_for_each(|index| self.post_send(index))?;
        }
        while (sent < iterations || received < iterations) && !interrupt::is_pending() {
            let Some(completion) = self.cq.poll() else {
                watch.nothing(|| format!("after {received} messages"))?;
                if self.arguments.events {
                    self.channel
                        .wait(Duration::from_secs(1))
                        .map_err(|e| format!("cannot wait for a completion: {e}"))?;
                    self.cq.request_notification(Notify::Next);
                }
                continue;
            };
            if completion.status != Status::Success {
                let what = if completion.wr_id == RECEIVE { "receive" } else { "send" };
                return Err(Box::new(FailedRequest { what, completion }));
            }
            let Some(index) = self.players.iter().position(|player| player.qp.qpn() == completion.qpn) else {
                continue;
            };
            if completion.wr_id == SEND {
                sent += 1;
                self.players[index].send_pending = false;
            } else {
                received += 1;
                self.players[index].receive_pending = false;
                let now = Instant::now();
                round_trips.push(now - last);
                last = now;
                watch.moved(now);
                self.receives_posted -= 1;
                if self.receives_posted <= self.players.len() as u32 {
                    self.post_receives(self.arguments.receive_depth.saturating_sub(self.receives_posted))?;
                }
            }
            let Player { send_pending, receive_pending, .. } = self.players[index];
            if sent < iterations && !send_pending && !receive_pending {
                self.post_send(index)?;
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

    fn report(&self, elapsed: Duration, round_trips: &mut [Duration]) {
        let arguments = self.arguments;
        round_trips.sort_unstable();
        let at = |share: f64| round_trips[((round_trips.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        // All of them, unless a signal came.
        let iterations = round_trips.len();
        let (bytes, seconds) = (u64::from(arguments.size()) * iterations as u64 * 2, elapsed.as_secs_f64());
        let mbit = bytes as f64 * 8.0 / seconds / 1e6;
        let usec = seconds * 1e6 / iterations as f64;
        if arguments.json {
            let counters: BTreeMap<_, _> = self.context.counters().into_iter().collect();
            let result = json!({
                "schema": "uroce.pingpong/1", "partial": interrupt::is_pending(),
                "iterations": iterations, "size": arguments.size(), "bytes": bytes, "seconds": seconds,
                "mbit_per_second": mbit, "usec_per_iteration": usec,
                "link_mode": self.context.link_mode(), "counters": counters,
                "round_trip_usec": {"min": at(0.0), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)},
            });
            println!("{result}");
            return;
        }
        println!("{bytes} bytes in {seconds:.2} seconds = {mbit:.2} Mbit/sec");
        println!("{iterations} iters in {seconds:.2} seconds = {usec:.2} usec/iter");
        println!(
            "round trip: min {:.2}, median {:.2}, 99 % {:.2}, max {:.2} usec",
            at(0.0),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }

    fn check(&self, is_client: bool) -> Result<(), Failure> {
        let bytes = self.region.memory().to_vec(self.arguments.offset(), self.arguments.size() as usize);
        let wrong = if is_client {
            // The server sends back what it got, so this went there and back again each time.
            bytes.iter().zip(check_pattern(self.arguments.size())).position(|(have, want)| *have != want)
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

fn read_destination(stream: &mut TcpStream) -> Result<Destination, Failure> {
    let mut bytes = [0; HANDSHAKE_BYTES];
    // A client of perf or perftest begins with its version, and then waits.
    let (version, rest) = bytes.split_at_mut(VERSION_BYTES);
    version.copy_from_slice(&read::<VERSION_BYTES>(stream, "handshake")?);
    if version[..4].contains(&b'.') {
        return Err("the peer sends a version, as perf and perftest do: use the same program at both ends".into());
    }
    rest.copy_from_slice(&read::<{ HANDSHAKE_BYTES - VERSION_BYTES }>(stream, "handshake")?);
    Destination::parse(&bytes)
}

/// Reads a message.
fn read<const N: usize>(stream: &mut TcpStream, what: &str) -> Result<[u8; N], Failure> {
    let (mut bytes, at) = ([0; N], tcp::peer_address(stream));
    match stream.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(format!("the peer at {at} sent no {what}: is it a pingpong of the same kind?").into())
        }
        Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => Err(format!(
            "the peer at {at} closed the TCP connection before sending its {what}: its program ended; check its output"
        )
        .into()),
        Err(e) => Err(format!("cannot read the {what} of the peer at {at}: {e}; check its output").into()),
    }
}

/// Sends a message.
fn send(stream: &mut TcpStream, bytes: &[u8], what: &str) -> Result<(), Failure> {
    stream.write_all(bytes).map_err(|e| {
        let at = tcp::peer_address(stream);
        format!("cannot send the peer at {at} our {what}: {e}; check its output").into()
    })
}

fn print_address(what: &str, Destination { qpn, psn, gid, .. }: Destination) {
    println!("  {what} LID 0x0000, QPN {:#08x}, PSN {:#08x}, GID {gid}", qpn.value(), psn.value());
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

//! Whether errors say their cause: a blind trial. Twelve causes are injected over real frames. Of each failure only the text
//! is kept, and a reader's table, which knows nothing of what was injected, names the cause by it.
//!
//! Once each; with UROCE_FULL ten times each. The table is printed (`--nocapture`).

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv6Addr, TcpListener};
use std::time::{Duration, Instant};

use crate::common::plays_all;
use crate::common::programs::{Running, run, uroce, wait_for_listener};
use rxe_rig::{Netns, VethPair};
use uroce::verbs::{
    Access, Cause, Completion, CompletionQueue, ConnectOptions, Context, Key, LinkKind, MemoryRegion, OpenOptions,
    Peer, ProtectionDomain, Psn, QpAttributes, Qpn, QueuePair, QueuePairOptions, ReceiveRequest, Remote, RnrTimer,
    SendOperation, SendRequest, Service, State, Status,
};

const PORT: u16 = 18515;

/// The end of the peer, and that of who reads the error: addresses of the loopback of a namespace.
const THERE: &str = "127.0.0.2";
const HERE: &str = "127.0.0.3";

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    PortClosed,
    NoListener,
    PathTooSmall,
    PeerKilled,
    TcpClosed,
    PeerInError,
    AccessRefused,
    NotReady,
    OtherTest,
    OtherSize,
    OtherQueuePairs,
    PathsDark,
}

const ALL: [Wrong; 12] = [
    Wrong::PortClosed,
    Wrong::NoListener,
    Wrong::PathTooSmall,
    Wrong::PeerKilled,
    Wrong::TcpClosed,
    Wrong::PeerInError,
    Wrong::AccessRefused,
    Wrong::NotReady,
    Wrong::OtherTest,
    Wrong::OtherSize,
    Wrong::OtherQueuePairs,
    Wrong::PathsDark,
];

/// What a reader concludes from which words: the first line decides of which all words are there.
const READER: [(&[&str], Wrong); 13] = [
    (&["nobody listens there", "is the server running"], Wrong::NoListener),
    (&["differ: perf "], Wrong::OtherTest),
    (&["differ: -s "], Wrong::OtherSize),
    (&["differ: -q "], Wrong::OtherQueuePairs),
    (&["differ: -c "], Wrong::OtherQueuePairs),
    (&["closed the TCP connection before"], Wrong::TcpClosed),
    (&["program at", "has ended"], Wrong::PeerKilled),
    (&["carries small packets and none of", "use -m 1024"], Wrong::PathTooSmall),
    (&["is UDP port 4791 open"], Wrong::PortClosed),
    (&["all paths are dark"], Wrong::PathsDark),
    (&["TCP connection is open", "queue pair is in the error state"], Wrong::PeerInError),
    (&["the peer refused the access"], Wrong::AccessRefused),
    (&["had no receive request"], Wrong::NotReady),
];

/// What a reader concludes from the number in `vendor_err`, when no words tell.
const READER_OF_CODES: [(u32, Wrong); 3] =
    [(0xa1, Wrong::AccessRefused), (0xc4, Wrong::PathsDark), (0xd1, Wrong::NotReady)];

fn read(said: &str) -> Option<Wrong> {
    let by_words = READER.iter().find(|(words, _)| words.iter().all(|word| said.contains(word)));
    let by_code = || READER_OF_CODES.iter().find(|(code, _)| Some(*code) == vendor_error(said));
    by_words.map(|(_, wrong)| *wrong).or_else(|| by_code().map(|(_, wrong)| *wrong))
}

fn vendor_error(said: &str) -> Option<u32> {
    let (_, rest) = said.split_once("vendor error 0x")?;
    u32::from_str_radix(rest.get(..2)?, 16).ok()
}

#[test]
fn each_of_twelve_causes_is_told_by_what_is_said() {
    let runs = if plays_all() { 10 } else { 1 };
    let mut table = String::new();
    let mut right = 0;
    for wrong in ALL {
        let (mut hits, mut last, mut codes) = (0, String::new(), Vec::new());
        for run in 0..runs {
            let said = injected(wrong, run);
            hits += usize::from(read(&said) == Some(wrong));
            assert!(!has_bare_errors(&said), "{wrong:?}: {said}");
            codes.push(vendor_error(&said).map_or("none".to_owned(), |code| format!("{code:#x}")));
            last = said;
        }
        codes.sort();
        codes.dedup();
        right += usize::from(hits == runs);
        let _ = writeln!(table, "{wrong:?}: {hits} of {runs}, vendor error {}\n    {}", codes.join(", "), last.trim());
    }
    eprintln!("{table}");
    assert!(right >= 11, "{right} of {} causes told each time:\n{table}", ALL.len());
}

/// Whether a library's words are all that is said.
fn has_bare_errors(said: &str) -> bool {
    said.contains("failed to fill whole buffer")
        || said.lines().any(|line| line.trim_end().ends_with(')') && line.contains("(os error"))
}

/// Makes it go wrong, and returns what the end said that a person looks at.
fn injected(wrong: Wrong, run: usize) -> String {
    let flags = |there: &[&str], here: &[&str]| refused_at_both_ends(there, here);
    match wrong {
        Wrong::PortClosed => port_closed(),
        Wrong::NoListener => {
            let namespace = loopback();
            last_line(client(&namespace, &["perf", "send-bw"]))
        }
        Wrong::PathTooSmall => path_too_small(run),
        Wrong::PeerKilled => peer_killed(),
        Wrong::TcpClosed => tcp_closed(run),
        Wrong::PeerInError => peer_in_error(),
        Wrong::AccessRefused => library(|here, there, _| {
            let remote = there.region.remote(0);
            here.send(SendOperation::Write(Remote { key: Key(remote.key.0 ^ 0x100), ..remote }), 64)
        }),
        Wrong::NotReady => library(|here, _, _| here.send(SendOperation::Send, 64)),
        Wrong::OtherTest => flags(&["perf", "send-bw"], &["perf", "write-bw"]),
        Wrong::OtherSize => match run % 2 {
            0 => flags(&["perf", "write-bw", "-s", "100"], &["perf", "write-bw", "-s", "200"]),
            _ => flags(&["pingpong", "-s", "100"], &["pingpong", "-s", "200"]),
        },
        Wrong::OtherQueuePairs => match run % 2 {
            0 => flags(&["perf", "send-bw", "-q", "1"], &["perf", "send-bw", "-q", "2"]),
            _ => flags(&["perf", "send-bw", "-c", "RC"], &["perf", "send-bw", "-c", "UC"]),
        },
        Wrong::PathsDark => paths_dark(),
    }
}

/// A namespace with nothing but a loopback, whose addresses are hosts.
fn loopback() -> Netns {
    Netns::create("errors").unwrap()
}

fn server(namespace: &Netns, words: &[&str]) -> Running {
    let server = uroce(namespace, &[words, &["--dev", THERE]].concat());
    wait_for_listener(namespace, PORT);
    server
}

fn client(namespace: &Netns, words: &[&str]) -> Running {
    uroce(namespace, &[words, &["--dev", HERE, THERE]].concat())
}

/// The error of a program that fails.
fn last_line(running: Running) -> String {
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
    ended.stderr.lines().last().unwrap_or_default().to_owned()
}

/// Both ends say how they differ: each its own first.
fn refused_at_both_ends(there: &[&str], here: &[&str]) -> String {
    let namespace = loopback();
    let (server, client) = (server(&namespace, there), client(&namespace, here));
    let (at_client, at_server) = (last_line(client), last_line(server));
    assert!(at_server.contains("differ: "), "{at_server}");
    at_client
}

/// No packet arrives at the server: a firewall drops them.
fn port_closed() -> String {
    let namespace = loopback();
    let _server = server(&namespace, &["perf", "send-bw", "--fault", "loss=1,direction=rx"]);
    last_line(client(&namespace, &["perf", "send-bw"]))
}

/// Packets of path MTU 4096 are dropped, those of 1024 are not.
fn path_too_small(run: usize) -> String {
    let namespace = loopback();
    drop_by(&namespace, "udp dport 4791 meta length > 1600 drop");
    let game: &[&str] = match run % 3 {
        0 => &["perf", "send-bw"],
        1 => &["perf", "write-bw"],
        _ => &["pingpong", "-m", "4096"],
    };
    let _server = server(&namespace, game);
    last_line(client(&namespace, game))
}

/// Adds a rule for what arrives.
fn drop_by(namespace: &Netns, rule: &str) {
    let chain = "add table inet t; add chain inet t in { type filter hook input priority 0; }";
    namespace.exec("nft", &[&format!("{chain}; add rule inet t in {rule}")]).unwrap();
}

fn peer_killed() -> String {
    let namespace = loopback();
    let server = server(&namespace, &["perf", "send-bw", "-D", "20"]);
    let client = client(&namespace, &["perf", "send-bw", "-D", "20"]);
    std::thread::sleep(Duration::from_millis(700));
    server.stop();
    last_line(client)
}

/// A server that ends in the middle of the handshake, with a few bytes sent or none.
fn tcp_closed(run: usize) -> String {
    let namespace = loopback();
    namespace.run(|| {
        let listener = TcpListener::bind((THERE, PORT)).unwrap();
        let game: &[&str] = if run.is_multiple_of(2) { &["perf", "send-bw"] } else { &["pingpong"] };
        let client = client(&namespace, game);
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(&b"6.06"[..run % 4]).unwrap();
        drop(stream);
        last_line(client)
    })
}

/// The path carries nothing any more, on either interface, while a test runs.
fn paths_dark() -> String {
    let pair = VethPair::create(1500).unwrap();
    pair.second_cable(1500).unwrap();
    let game = ["perf", "write-bw", "-D", "20", "--link", "udp"];
    let _server = uroce(&pair.a, &[&game[..], &["-d", "uroce0,uroce2"]].concat());
    wait_for_listener(&pair.a, PORT);
    let client = uroce(&pair.b, &[&game[..], &["-d", "uroce1,uroce3", &VethPair::A.ipv4.to_string()]].concat());
    std::thread::sleep(Duration::from_millis(1500));
    drop_by(&pair.a, "udp dport 4791 drop");
    last_line(client)
}

/// A host of the library.
struct Host {
    // Dropped in this order.
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    _pd: ProtectionDomain,
    _context: Context,
}

impl Host {
    fn open(address: &str) -> Host {
        let context = OpenOptions::new().device(address).link(LinkKind::Udp).open().unwrap();
        let pd = context.allocate_pd();
        let region = pd.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let cq = context.create_completion_queue(16);
        let qp = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq)).unwrap();
        Host { qp, cq, region, _pd: pd, _context: context }
    }

    /// Three RNR NAKs are too many.
    fn connect(&self, peer: &Peer) {
        let attributes = QpAttributes {
            access: Some(Access::REMOTE_WRITE),
            rnr_retry: Some(2),
            min_rnr_timer: Some(RnrTimer::new(12)),
            timeout: Some(14),
            ..Default::default()
        };
        self.qp.connect_with(peer, &ConnectOptions::new().attributes(attributes)).unwrap();
    }

    fn send(&self, operation: SendOperation, length: usize) -> Completion {
        self.qp.post_send(SendRequest::new(1, operation, self.region.sge(0, length).into())).unwrap();
        self.completion()
    }

    fn receive(&self) {
        let sges = [self.region.sge(0, 4096)].into_iter().collect();
        self.qp.post_receive(ReceiveRequest { wr_id: 2, sges }).unwrap();
    }

    fn completion(&self) -> Completion {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(done) = self.cq.poll() {
                return done;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What a program of the library prints of the completion of a request that fails.
fn library(fails: impl FnOnce(&Host, &Host, &Netns) -> Completion + Send) -> String {
    let namespace = loopback();
    namespace.run(|| {
        let (here, there) = (Host::open(HERE), Host::open(THERE));
        here.connect(&there.qp.local());
        there.connect(&here.qp.local());
        let done = fails(&here, &there, &namespace);
        assert_eq!(done.vendor_err(), done.cause.map_or(0, Cause::code));
        let why = done.cause.map(|cause| cause.to_string()).unwrap_or_default();
        format!("{}, vendor error {:#x}: {why}", done.status, done.vendor_err())
    })
}

/// What a program sees that has no TCP connection to ask: small packets are answered, and larger ones never.
#[test]
fn a_path_for_small_packets_only_has_a_number_of_its_own() {
    let said = library(|here, there, namespace| {
        drop_by(namespace, "udp dport 4791 meta length > 1600 drop");
        let write = |length| here.send(SendOperation::Write(there.region.remote(0)), length);
        assert_eq!(write(1024).status, Status::Success);
        let failed = write(4096);
        assert_eq!((failed.status, failed.cause), (Status::RetryExceeded, Some(Cause::LargeUnanswered)));
        failed
    });
    assert_eq!(vendor_error(&said), Some(0xc3), "{said}");
    // Where larger ones were answered before, it is the peer, or the path as a whole.
    let said = library(|here, there, namespace| {
        let write = |length| here.send(SendOperation::Write(there.region.remote(0)), length);
        assert_eq!(write(4096).status, Status::Success);
        drop_by(namespace, "udp dport 4791 meta length > 1600 drop");
        write(4096)
    });
    assert_eq!(vendor_error(&said), Some(0xc2), "{said}");
}

/// perftest prints the number of the completion of a failed request as «syndrom».
#[test]
fn unmodified_programs_get_the_number() {
    let namespace = loopback();
    let program = "ib_write_bw -F -x 0 -n 5 -s 64";
    let server = run(&namespace, &format!("--dev {THERE} --fault loss=1,direction=rx {program}"));
    wait_for_listener(&namespace, PORT);
    let ended = run(&namespace, &format!("--dev {HERE} {program} {THERE}")).end();
    server.stop();
    let said = ended.stdout.clone() + &ended.stderr;
    assert!(said.contains("Failed status 12") && said.contains("syndrom 0xc1"), "{ended:#?}");
}

/// A pingpong's server that plays one message, and whose queue pair then goes to the error state, while its program stays.
fn peer_in_error() -> String {
    let namespace = loopback();
    namespace.run(|| {
        let listener = TcpListener::bind((THERE, PORT)).unwrap();
        let there = Host::open(THERE);
        let client = client(&namespace, &["pingpong", "-s", "64"]);
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = [0; 52];
        stream.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text[..51].to_vec()).unwrap();
        let fields: Vec<&str> = text.split(':').collect();
        let number = |at: usize| u32::from_str_radix(fields[at], 16).unwrap();
        let gid = Ipv6Addr::from(u128::from_str_radix(fields[3], 16).unwrap());
        there.connect(&Peer::new(Qpn::new(number(1)), Psn::new(number(2)), gid));
        there.receive();
        let own = there.qp.local();
        let (qpn, psn, gid) = (own.qpn.value(), own.psn.value(), u128::from(own.gid));
        write!(stream, "0000:{qpn:06x}:{psn:06x}:{gid:032x}\0").unwrap();
        assert_eq!(there.completion().status, Status::Success);
        assert_eq!(there.send(SendOperation::Send, 64).status, Status::Success);
        there.qp.modify(&QpAttributes { state: Some(State::Error), ..Default::default() }).unwrap();
        last_line(client)
    })
}

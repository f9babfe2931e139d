//! Programs in Rust over rdma-core, unmodified, by `uroce run` at both ends, over AF_XDP and, as nobody, over UDP sockets. The
//! examples of the crate sideway load libibverbs.so.1 and librdmacm.so.1 at run time: two bounce messages, one makes and ends
//! connections by RDMA CM, two say what devices there are. Streams of the crate rdma-io compare every byte.
//!
//! They are compiled: this test is of `cargo xtask test --full programs`, which does so.

#![allow(clippy::disallowed_methods, reason = "tests of programs on the wall clock")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::compared::{OVER_UDP, OVER_XDP, Start};
use common::programs::{Ended, Running, sent_packets};
use rxe_rig::VethPair;

const LIMIT: Duration = Duration::from_secs(60);

/// Of the examples that bounce messages.
const PORT: u16 = 18515;

/// By RDMA CM, one after the other.
const CONNECTIONS: u64 = 100;

/// What the streams carry each way: a mebibyte in messages of 1500 bytes at most, over each of two transports.
const STREAM_PACKETS: u64 = 2 * (1 << 20) / 1500;

/// What the set-up compiled.
fn compiled(name: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    let file = target.join("rust_programs/bin").join(name);
    assert!(file.exists(), "{} is missing: cargo xtask test --full programs", file.display());
    file.display().to_string()
}

/// A twentieth of the frames is lost at each end. The last DREP of a server that then ends, too; its client would wait for
/// another for a minute, if the kernel did not say that nobody is there.
const LOSS: &str = "--fault loss=0.05,seed=3";
const LIMIT_WITH_LOSS: Duration = Duration::from_secs(30);

/// A server's and a client's words after the program's name, and how the server says that it listens.
struct Game<'a> {
    /// Of `uroce run`.
    options: &'a str,
    program: &'a str,
    words: [String; 2],
    listens: fn(&mut Running, &VethPair) -> Result<(), String>,
    /// Each end sends as many at least.
    fewest_packets: u64,
}

fn by_tcp(server: &mut Running, pair: &VethPair) -> Result<(), String> {
    server.listens(&pair.a, PORT, LIMIT)
}

fn by_rdma_cm(server: &mut Running, _pair: &VethPair) -> Result<(), String> {
    server.prints(&["rdma_listen: done"], LIMIT)
}

impl Game<'_> {
    /// Plays it; returns the server and the client, which have succeeded.
    #[track_caller]
    fn play(&self, (start, link): (Start, &str), pair: &VethPair) -> [Ended; 2] {
        let program = compiled(self.program);
        let line = |words: &str| format!("--link {link} {} --trace -- {program} {words}", self.options);
        let mut server = start(&pair.a, &line(&self.words[0]));
        (self.listens)(&mut server, pair).unwrap();
        let client = start(&pair.b, &line(&self.words[1]));
        let ended = [client, server].map(|program| program.end_within(LIMIT).unwrap().succeeded());
        for ended in &ended {
            let sent = sent_packets(&ended.stderr);
            assert!(sent >= self.fewest_packets, "{sent} packets, not {}: {ended:#?}", self.fewest_packets);
        }
        let [client, server] = ended;
        [server, client]
    }
}

fn messages_bounce(link: (Start, &str)) {
    const MESSAGES: u64 = 1000;
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4;
    // Messages of one packet by the IPv4 GID; of sixteen, with time stamps of their completions, by the link-local one.
    for (options, packets) in
        [(format!("-g 1 -n {MESSAGES}"), 1), (format!("-g 0 -t -s 65536 -m 4096 -n {MESSAGES}"), 16)]
    {
        for program in ["rc_pingpong", "rc_pingpong_split"] {
            let words = [options.clone(), format!("{options} {host}")];
            let game = Game { options: "", program, words, listens: by_tcp, fewest_packets: MESSAGES * packets };
            for ended in game.play(link, &pair) {
                assert!(ended.stdout.contains(&format!("\n{MESSAGES} iters in ")), "{ended:#?}");
                let stamped = ended.stdout.contains("\nMax receive completion clock cycles = ");
                assert_eq!(stamped, options.contains("-t"), "{ended:#?}");
            }
        }
    }
}

fn connections_come_and_go(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let count = format!("-c {CONNECTIONS}");
    let words = [count.clone(), format!("{count} -s {}", VethPair::A.ipv4)];
    // The server sends a REP and a DREP for each; the client a REQ, an RTU and a DREQ.
    let game = Game { options: "", program: "cmtime", words, listens: by_rdma_cm, fewest_packets: 2 * CONNECTIONS };
    for (options, limit) in [("", LIMIT), (LOSS, LIMIT_WITH_LOSS)] {
        let begins = Instant::now();
        let [_, client] = Game { options, words: game.words.clone(), ..game }.play(link, &pair);
        assert!(begins.elapsed() < limit, "{:?}: {client:#?}", begins.elapsed());
        for step in ["ResolveAddr", "ResolveRoute", "CreateQueuePair", "Connect", "Disconnect"] {
            assert!(client.stdout.contains(&format!(" {step} ")), "no {step}: {client:#?}");
        }
        // What fails is a line, and the example waits for ever.
        assert!(!client.stdout.contains("vent"), "{client:#?}");
    }
}

fn streams_are_compared(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let host = VethPair::A.ipv4;
    let words = [format!("serve {host}:7471"), format!("{host}:7471")];
    let game =
        Game { options: "", program: "rdma_io_streams", words, listens: by_rdma_cm, fewest_packets: STREAM_PACKETS };
    for ended in game.play(link, &pair) {
        assert_eq!(ended.stdout, "all bytes compared\n", "{ended:#?}");
    }
}

fn devices_are_listed(link: (Start, &str)) {
    let pair = VethPair::create(4500).unwrap();
    let (start, name) = link;
    let says = |program: &str| {
        let line = format!("--link {name} -- {}", compiled(program));
        start(&pair.a, &line).end_within(LIMIT).unwrap().succeeded().stdout
    };
    let (interface, address) = (VethPair::A.interface, VethPair::A.ipv4.to_string());
    let gids = says("show_gids");
    assert!(gids.lines().any(|line| [interface, &address, "RoCEv2"].iter().all(|word| line.contains(word))), "{gids}");
    let device = says("ibv_devinfo");
    let words = [&format!("hca_id: {interface}\n"), "Active (4)", "Mtu4096 (5)", "Ethernet"];
    assert!(words.iter().all(|words| device.contains(*words)), "{device}");
}

fn play(link: (Start, &str)) {
    devices_are_listed(link);
    messages_bounce(link);
    connections_come_and_go(link);
    streams_are_compared(link);
}

#[test]
fn sideway_and_rdma_io_talk_over_af_xdp() {
    play(OVER_XDP);
}

#[test]
fn sideway_and_rdma_io_talk_over_udp_sockets() {
    play(OVER_UDP);
}

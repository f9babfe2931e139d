//! Real frames through the network: every one is accounted for, in the middle and at the hosts; none is faster than its
//! path; ping and TCP pass; paths and interfaces are apart from each other; and what goes down comes back.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rxe_rig::netns::{Netns, ipv6_on_this_host};
use wan::{Conditions, Counts, Direction, Fate, Flow, Loss, Path, Plan, Rail, Side, Wan, WanCounts};

const PORT: u16 = 7009;

/// Nothing here takes longer.
const LIMIT: Duration = Duration::from_secs(60);

fn conditions(text: &str) -> Conditions {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn start(plan: Plan) -> Wan {
    Wan::start(plan).unwrap_or_else(|error| panic!("{error}"))
}

/// Sockets of the hosts on a rail: from a port of A to the one of B.
fn sockets(wan: &Wan, rail: usize, port: u16) -> (UdpSocket, UdpSocket) {
    let [from, to] = [Side::A, Side::B].map(|side| IpAddr::from(wan.host(side, rail).ipv4));
    let sender = wan.namespace(Side::A).run(|| UdpSocket::bind((from, port)).unwrap());
    let receiver = wan.namespace(Side::B).run(|| UdpSocket::bind((to, PORT)).unwrap());
    sender.connect((to, PORT)).unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    // All that is sent in a test, should the receiver not run for a while.
    set(&receiver, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
    (sender, receiver)
}

/// Sets a socket option.
fn set(socket: &UdpSocket, level: i32, option: i32, value: i32) {
    // SAFETY: the value lives through the call, and its length is right.
    let done = unsafe {
        let len = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    assert_eq!(done, 0, "socket option {option}: {}", std::io::Error::last_os_error());
}

/// Sends datagrams of 1000 bytes as fast as it can.
fn send(socket: &UdpSocket, number: u64) {
    (0..number).for_each(|_| assert_eq!(socket.send(&[0; 1000]).unwrap(), 1000));
}

/// Waits until nothing is on its way any more, and nothing new comes.
fn settled(wan: &Wan) -> WanCounts {
    let end = Instant::now() + LIMIT;
    let mut before = None;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let counts = wan.counts();
        let total = counts.total();
        if total.held == 0 && before == Some(total) {
            return counts;
        }
        before = Some(total);
        assert!(Instant::now() < end, "it does not come to rest: {total:?}");
    }
}

/// A counter of an interface, as its own kernel has it.
fn interface_counter(namespace: &Netns, interface: &str, counter: &str) -> u64 {
    let file = format!("/sys/class/net/{interface}/statistics/{counter}");
    let text = namespace.run(|| std::fs::read_to_string(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    text.trim().parse().unwrap()
}

/// Every frame is accounted for: on each path, and from the ports to the paths.
fn assert_conserved(counts: &WanCounts) {
    counts.paths.iter().flatten().for_each(|path| assert!(path.is_conserved(), "{path:?}"));
    for (port, port_counts) in counts.ports.iter().enumerate() {
        let sum = |port: usize, of: fn(&Counts) -> u64| counts.paths[port].iter().map(of).sum::<u64>();
        assert_eq!(port_counts.received - port_counts.too_long, sum(port, |path| path.arrived), "port {port}");
        assert_eq!(port_counts.sent, sum(port ^ 1, |path| path.forwarded), "port {port}");
        assert_eq!(port_counts.refused, sum(port ^ 1, |path| path.refused), "port {port}");
    }
    assert_eq!(counts.lateness.frames(), counts.total().forwarded);
}

/// What the hosts' kernels have sent and received, by port.
fn host_counters(wan: &Wan) -> Vec<(u64, u64)> {
    let counters = (0..wan.plan().rails.len()).flat_map(|rail| {
        [Side::A, Side::B].map(|side| {
            let counter = |name| interface_counter(wan.namespace(side), &wan.host(side, rail).interface, name);
            (counter("tx_packets"), counter("rx_packets"))
        })
    });
    counters.collect()
}

/// Waits until the network is at rest; then every frame is accounted for from the hosts' own counters to the paths.
fn settled_and_conserved(wan: &Wan) -> WanCounts {
    let end = Instant::now() + LIMIT;
    loop {
        let before = host_counters(wan);
        let counts = settled(wan);
        // Their kernels say something by themselves now and then.
        if host_counters(wan) != before {
            assert!(Instant::now() < end, "the hosts do not come to rest");
            continue;
        }
        assert_conserved(&counts);
        for (port, (counters, (sent, received))) in counts.ports.iter().zip(before).enumerate() {
            assert_eq!(sent, counters.received + counters.missed, "sent to port {port}, {counters:?}");
            assert_eq!(received, counters.sent, "received from port {port}");
        }
        return counts;
    }
}

/// How many of `frames` that come one after the other a path loses.
fn lost_of(conditions: Conditions, seed: u64, frames: u64) -> u64 {
    // The first path of the first rail; nothing waits, so only loss takes any.
    let mut path = Path::new(Conditions { rate_bps: None, ..conditions }, seed, 1);
    (0..frames).filter(|_| path.arrive(0, &mut [0; 60]) == Fate::Lost).count() as u64
}

/// 20 ms, 1 %, 500 Mb/s: the frames lost are those that the seed says, as many as 1 % means, and no other is missing.
#[test]
fn every_frame_is_accounted_for_and_none_is_too_early() {
    const FRAMES: u64 = 20_000;
    const BYTES: usize = 1000;
    let path = conditions("delay=20ms,loss=0.01,rate=500M");
    for seed in [1, 2] {
        let mut wan = start(Plan::simple(path, seed));
        let (sender, receiver) = sockets(&wan, 0, 20_000);
        let begin = Instant::now();
        let is_over = AtomicBool::new(false);
        let arrived = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let (mut arrived, mut buffer) = (Vec::new(), [0; BYTES]);
                loop {
                    // Asked before the socket is found empty: nothing comes after that.
                    let was_over = is_over.load(Ordering::Acquire);
                    if receiver.recv(&mut buffer).is_ok() {
                        let number = |at: usize| u64::from_be_bytes(buffer[at..at + 8].try_into().unwrap());
                        arrived.push((number(0), begin.elapsed() - Duration::from_nanos(number(8))));
                    } else if was_over {
                        return arrived;
                    }
                }
            });
            let mut buffer = [0; BYTES];
            for number in 0..FRAMES {
                buffer[..8].copy_from_slice(&number.to_be_bytes());
                buffer[8..16].copy_from_slice(&(begin.elapsed().as_nanos() as u64).to_be_bytes());
                sender.send(&buffer).unwrap();
                // Some 300 Mb/s.
                if number % 8 == 7 {
                    std::thread::sleep(Duration::from_micros(150));
                }
            }
            settled(&wan);
            is_over.store(true, Ordering::Release);
            receiver.join().unwrap()
        });
        let counts = settled_and_conserved(&wan);

        let there = counts.paths[0][0];
        assert_eq!((there.overflowed, there.held, counts.ports[0].missed), (0, 0, 0), "{counts:?}");
        assert!(there.arrived >= FRAMES, "{there:?}");
        assert_eq!(there.lost, lost_of(path, seed, there.arrived - there.queue_full), "seed {seed}");
        // Five standard deviations of the binomial distribution.
        let bound = 5.0 * (0.01 * 0.99 / there.arrived as f64).sqrt();
        assert!((there.loss_share() - 0.01).abs() < bound, "seed {seed}: {}", there.loss_share());

        // What the program received is what was forwarded: whatever the hosts' kernels say by themselves goes there, too.
        let others = there.arrived - FRAMES;
        let missing = FRAMES - arrived.len() as u64;
        assert!((missing.saturating_sub(others)..=missing + others).contains(&(there.lost + there.queue_full)));
        assert!(arrived.windows(2).all(|pair| pair[0].0 < pair[1].0), "order");
        let shortest = arrived.iter().map(|(_, took)| *took).min().unwrap();
        // 1042 bytes at 500 Mb/s are 16.7 µs.
        assert!(shortest >= Duration::from_nanos(20_016_672), "{shortest:?}");
        assert_conserved(&wan.stop().unwrap());
    }
}

#[test]
fn ping_and_tcp_pass() {
    const BYTES: usize = 2 << 20;
    let wan = start(Plan::simple(conditions("delay=20ms,loss=0.01,rate=500M"), 3));
    let to = wan.host(Side::B, 0);
    let ping = wan.namespace(Side::A).exec("ping", &["-n", "-c", "20", "-i", "0.01", &to.ipv4.to_string()]).unwrap();
    // rtt min/avg/max/mdev = 40.1/…
    let least = ping.split("min/avg/max/mdev = ").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    assert!(least.parse::<f64>().unwrap() >= 40.0, "{ping}");

    let mut addresses = vec![IpAddr::from(to.ipv4)];
    addresses.extend(ipv6_on_this_host().then_some(IpAddr::from(to.ipv6)));
    for address in addresses {
        let target = SocketAddr::new(address, PORT);
        let listener = wan.namespace(Side::B).run(|| TcpListener::bind(target).unwrap());
        let data: Vec<u8> = (0..BYTES).map(|i| (i * 31 + i / 251) as u8).collect();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(move || {
                let (mut stream, mut received) = (listener.accept().unwrap().0, Vec::new());
                stream.read_to_end(&mut received).unwrap();
                received
            });
            let mut stream = wan.namespace(Side::A).run(|| TcpStream::connect(target).unwrap());
            stream.write_all(&data).unwrap();
            drop(stream);
            receiver.join().unwrap()
        });
        assert!(received == data, "{address}: {} bytes arrived, not all as they were sent", received.len());
    }
    let counts = settled_and_conserved(&wan);
    assert!(counts.paths.iter().all(|paths| paths[0].forwarded > 100), "{counts:?}");
}

/// Flows take the path that is foretold for them, and those of one rail and path know nothing of the others.
#[test]
fn paths_and_rails_are_apart() {
    const FLOWS: u16 = 40;
    /// More than the few frames that the hosts' kernels say by themselves.
    const DATAGRAMS: u64 = 20;
    let fast: Vec<Conditions> = vec![conditions("delay=1ms"); 4];
    // 1042 bytes at 1 Mb/s take 8 ms: of 200 at once, the queue holds less than half.
    let slow = [conditions("rate=1M,queue=50k")];
    let rails = vec![Rail { there: fast, back: vec![conditions("")] }, Rail::symmetric(&slow)];
    let wan = start(Plan { mtu: 1500, rails, seed: 5, realtime: true });
    let before = settled(&wan);
    let mut expected = [0; 4];
    let mut receiver = None;
    for port in 0..FLOWS {
        drop(receiver.take());
        let (sender, to) = sockets(&wan, 0, 20_000 + port);
        let flow = Flow::udp(sender.local_addr().unwrap(), to.local_addr().unwrap());
        expected[wan.path_of(&flow, 0, Direction::AToB)] += DATAGRAMS;
        send(&sender, DATAGRAMS);
        receiver = Some(to);
    }
    let (sender, _receiver) = sockets(&wan, 1, 20_000);
    send(&sender, 200);
    let counts = settled_and_conserved(&wan);
    assert!(expected.iter().all(|number| *number > 0), "{expected:?}");
    for (path, expected) in expected.into_iter().enumerate() {
        let (before, after) = (before.paths[0][path], counts.paths[0][path]);
        let forwarded = after.forwarded - before.forwarded;
        assert!((expected..expected + DATAGRAMS).contains(&forwarded), "path {path}: {forwarded}, not {expected}");
        assert_eq!((after.lost, after.queue_full), (0, 0));
    }
    let slow = counts.paths[2][0];
    assert!(slow.queue_full > 100 && slow.forwarded >= 45, "{slow:?}");
}

#[test]
fn what_knows_of_ecn_is_marked_when_the_queue_is_long() {
    let wan = start(Plan::simple(conditions("delay=1ms,rate=10M,ecn=20k"), 1));
    let (sender, receiver) = sockets(&wan, 0, 20_000);
    for ecn in [0, 2] {
        let before = settled(&wan).paths[0][0];
        set(&sender, libc::IPPROTO_IP, libc::IP_TOS, ecn);
        send(&sender, 60);
        // A wrong header checksum would be the end of them.
        let received = (0..60).filter(|_| receiver.recv(&mut [0; 1000]).is_ok()).count();
        let after = settled(&wan).paths[0][0];
        assert_eq!(received, 60);
        let marked = after.marked - before.marked;
        // 60 frames of 1042 bytes come at once, or nearly: about 40 find more than 20,000 bytes waiting.
        assert!(if ecn == 0 { marked == 0 } else { (1..=41).contains(&marked) }, "{marked} marked");
    }
}

/// A path that goes dark, an interface that goes down: frames are counted, nothing else happens, and they come back.
#[test]
fn what_goes_down_comes_back() {
    let mut wan = start(Plan::simple(conditions("delay=1ms"), 1));
    let (sender, receiver) = sockets(&wan, 0, 20_000);
    let arrives = |wan: &Wan, is_expected: bool| {
        settled(wan);
        // A host that asks for its neighbour, or stands still for a moment, is given the time.
        let end = Instant::now() + if is_expected { LIMIT } else { Duration::ZERO };
        let comes = || {
            sender.send(b"here").unwrap();
            receiver.recv(&mut [0; 10]).is_ok()
        };
        let came = std::iter::repeat_with(comes).find(|came| *came || Instant::now() >= end);
        assert_eq!(came, Some(is_expected));
        let counts = settled(wan);
        while receiver.recv(&mut [0; 10]).is_ok() {}
        counts
    };
    let fine = wan.conditions(0, Direction::AToB, 0);
    arrives(&wan, true);
    wan.set_conditions(0, Direction::AToB, 0, Conditions { loss: Loss::Everything, ..fine });
    arrives(&wan, false);
    wan.set_conditions(0, Direction::AToB, 0, fine);
    // The hosts' kernels may have said something, too, until now.
    let dark = settled(&wan).paths[0][0];
    assert!(dark.lost > 0, "{dark:?}");
    arrives(&wan, true);

    let before = settled(&wan).paths[0][0];
    assert_eq!(before.lost, dark.lost, "{before:?}");
    let mut refused = before.refused;
    for (namespace, interface) in [(wan.middle(), "to-b0"), (wan.namespace(Side::B), "b0")] {
        namespace.ip(&["link", "set", interface, "down"]).unwrap();
        let down = arrives(&wan, false).paths[0][0];
        assert!(down.refused > refused && down.lost == dark.lost, "{interface}: {down:?}");
        namespace.ip(&["link", "set", interface, "up"]).unwrap();
        refused = arrives(&wan, true).paths[0][0].refused;
    }
    let counts = wan.stop().unwrap();
    // What a host says while an interface comes up may reach nobody: its own counter has more.
    assert_conserved(&counts);
}

/// The measure of the network's own, on a path that it must find again.
#[test]
fn the_measure_finds_what_the_network_is_like() {
    let path = conditions("delay=5ms,loss=0.05,burst=8,rate=200M,queue=1M,ecn=500k");
    let mut plan = Plan::simple(path, 9);
    plan.rails[0].back = vec![conditions("delay=2ms")];
    let wan = start(plan);
    let figures = wan::measure::measure(&wan, 0.4).unwrap();
    let there = &figures.paths[0];
    let delay = there.delay.unwrap();
    assert!(delay.frames > 200 && delay.median >= delay.wanted, "{delay:?}");
    assert!(delay.wanted > Duration::from_millis(5), "{delay:?}");
    let loss = there.loss.lost as f64 / there.loss.frames as f64;
    let burst = there.loss.lost as f64 / there.loss.bursts as f64;
    // 100 bursts in 16,000 frames: five standard deviations of their number and length are more than half.
    assert!((0.01..0.1).contains(&loss) && (4.0..12.0).contains(&burst), "{loss} in bursts of {burst}");
    assert!(there.rate.bps > 0.0 && there.rate.frames[1] < there.rate.frames[0], "{:?}", there.rate);
    // A queue of 1 MB that takes 5 MB/s on is half full after 100 ms: of 400 ms, three quarters are marked. A busy machine
    // offers less, and late.
    let (marked, wanted) = (there.rate.marked as f64 / there.rate.frames[1] as f64, there.rate.marked_wanted.unwrap());
    assert!((0.7..0.8).contains(&wanted) && (0.01..=0.9).contains(&marked), "{marked}, not {wanted}");
    assert_eq!((figures.paths[1].loss.lost, figures.paths[1].rate.marked_wanted), (0, None));
    // These losses may well stop a connection for as long as this measure takes.
    let connections = figures.tcp.len();
    assert!(connections > 0 && figures.tcp[0].control == "cubic", "{:?}", figures.tcp);
    let report = wan::Report::of_figures(figures);
    let names: Vec<_> = report.to_json().iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, [&["path"; 2], &vec!["tcp"; connections][..], &["frames"]].concat());
    assert_eq!(report.to_json()[2 + connections]["conserved"], true);
}

#[test]
fn tcp_is_measured_by_congestion_control() {
    let wan = start(Plan::simple(conditions("delay=1ms,rate=100M"), 1));
    let figures = wan::measure::measure_tcp(&wan, 0, "cubic", 0.3).unwrap();
    // The rate, not the cable's, and far more than nothing. A busy machine finds some of it in its buffers when it begins to count.
    assert!((1e6..2e8).contains(&figures.goodput_bps), "{figures:?}");
    let error = wan::measure::measure_tcp(&wan, 0, "no-such-one", 0.3).unwrap_err().to_string();
    assert!(error.contains("no-such-one"), "{error}");
}

/// Connections beside each other share the line; one that pauses has less than it has without pauses.
#[test]
fn tcp_that_pauses_leaves_half_of_the_time() {
    let wan = start(Plan::simple(conditions("delay=1ms,rate=20M,queue=50k"), 1));
    let end = Duration::from_millis(1600);
    let run = |pauses| {
        let schedule = wan::measure::Schedule { pauses, counts: Duration::ZERO..end, end };
        wan::measure::run_tcp(&wan, 0, "cubic", &schedule).unwrap()
    };
    let (alone, pausing) = (run(None), run(Some(Duration::from_millis(400))));
    let both: f64 = std::thread::scope(|scope| {
        [scope.spawn(|| run(None)), scope.spawn(|| run(None))].map(|flow| flow.join().unwrap()).iter().sum()
    });
    // Of 20 Mb/s; what is on its way when a pause begins still arrives.
    assert!((1e6..14e6).contains(&pausing) && pausing < alone, "{pausing}, without pauses {alone}");
    assert!((1e6..22e6).contains(&both), "{both}");
}

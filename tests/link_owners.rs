//! Who has an interface: of two links on one, whichever kinds they are and whichever comes first, the second is refused with the
//! name of the process that has it; and what is opened when nobody says how.
//!
//! Needs root, for namespaces.
#![cfg(all(feature = "xdp", feature = "udp"))]
#![allow(clippy::disallowed_methods, reason = "two real hosts are on the wall clock")]

mod common;

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use aya::programs::{Xdp, XdpMode};
use common::hosts::{Pair, PairOptions};
use uroce::link::device::Device;
use uroce::link::udp::{self, UdpLink};
use uroce::link::xdp::{self, XdpLink, XdpOptions};
use uroce::verbs::{Context, LinkKind, OpenError, OpenOptions};
use uroce::wire::ROCE_PORT;

fn open_xdp(pair: &Pair, name: &'static str) -> Result<XdpLink, xdp::XdpOpenError> {
    pair.within(0, move || XdpLink::open(name, &XdpOptions::default()))
}

fn open_udp(pair: &Pair, name: &'static str) -> Result<UdpLink, udp::UdpOpenError> {
    pair.within(0, move || UdpLink::open(name))
}

fn open(pair: &Pair, options: OpenOptions) -> Result<Context, OpenError> {
    pair.within(0, move || Context::open(&options))
}

/// How this process is named to others.
fn this_process() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    format!("process {} ({})", std::process::id(), name.trim_end())
}

/// What `uroce devices` says is missing for a link on `veth0`: of AF_XDP, of UDP sockets.
fn missing(pair: &Pair) -> [String; 2] {
    let modes = pair.within(0, || Device::find(Some("veth0")).unwrap().link_modes().unwrap());
    [0, 1].map(|mode| modes[mode].missing.join("; "))
}

#[test]
fn the_second_link_of_either_kind_is_refused_and_told_who_has_the_interface() {
    let pair = Pair::new(PairOptions::default());
    pair.second_cable(1500);
    let process = this_process();
    for _ in 0..2 {
        let first = open_xdp(&pair, "veth0").unwrap();
        let error = open_udp(&pair, "veth0").err().expect("its frames would not come");
        let text = error.to_string();
        assert!(matches!(error, udp::UdpOpenError::OverXdp { .. }) && text.contains(&process), "{text}");
        let error = open_xdp(&pair, "veth0").err().expect("one at a time");
        let text = error.to_string();
        assert!(matches!(error, xdp::XdpOpenError::Taken { .. }) && text.contains(&process), "{text}");
        assert!(!text.contains("off") && !text.contains("end it"), "no advice that ends its owner: {text}");
        assert!(missing(&pair).iter().all(|mode| mode.contains(&process)), "{:?}", missing(&pair));
        drop(first);

        let first = open_udp(&pair, "veth0").unwrap();
        let error = open_xdp(&pair, "veth0").err().expect("it would take the first one's frames");
        let text = error.to_string();
        assert!(matches!(error, xdp::XdpOpenError::Sockets { .. }) && text.contains(&process), "{text}");
        assert!(text.contains("4791 of 10.7.0.1") || text.contains("4791 of f"), "which address: {text}");
        assert!(missing(&pair).iter().all(|mode| mode.contains(&process)), "{:?}", missing(&pair));
        drop(first);
        assert_eq!(missing(&pair), ["", ""]);
    }
    // Interfaces are apart, and so are namespaces: the same number there is another interface.
    let _one = open_xdp(&pair, "veth0").unwrap();
    let _other = open_udp(&pair, "veth1").unwrap();
    let _beyond = pair.within(1, || UdpLink::open("veth0")).unwrap();
}

/// Sockets of others on the port: those that would lose their packets are in the way, those of other interfaces are not.
#[test]
fn sockets_that_would_lose_their_packets_are_in_the_way_of_af_xdp() {
    let pair = Pair::new(PairOptions::default());
    for (address, is_in_the_way) in [
        ("0.0.0.0", true),
        ("[::]", true),
        ("10.7.0.1", true),
        ("[fd07::1]", true),
        ("127.0.0.1", false),
        ("[::1]", false),
    ] {
        let socket = pair
            .within(0, move || UdpSocket::bind(format!("{address}:4791")).unwrap_or_else(|e| panic!("{address}: {e}")));
        let opened = open_xdp(&pair, "veth0").map(drop);
        assert_eq!(opened.is_err(), is_in_the_way, "{address}: {opened:?}");
        drop(socket);
        pair.within(0, wait_for_port);
    }
}

/// Waits until nobody has the port: a process that another test starts has a copy of a socket until it executes its program.
fn wait_for_port() {
    let is_taken = |family: &str| {
        let sockets = std::fs::read_to_string(format!("/proc/thread-self/net/{family}")).unwrap();
        sockets.contains(&format!(":{ROCE_PORT:04X} "))
    };
    let start = Instant::now();
    while ["udp", "udp6"].into_iter().any(is_taken) {
        assert!(start.elapsed() < Duration::from_secs(10), "somebody has the port");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn of_two_links_opened_at_once_one_is_and_neither_hangs() {
    let pair = Pair::new(PairOptions::default());
    let start = Instant::now();
    for round in 0..8 {
        let barrier = Arc::new(Barrier::new(2));
        let wait = [barrier.clone(), barrier];
        let [xdp, udp] = wait;
        let xdp = pair.spawn(0, move || {
            xdp.wait();
            XdpLink::open("veth0", &XdpOptions::default())
        });
        let udp = pair.spawn(0, move || {
            udp.wait();
            // One or the other is a little later.
            std::thread::sleep(Duration::from_micros(500 * round));
            UdpLink::open("veth0")
        });
        let (xdp, udp) = (xdp.join().unwrap(), udp.join().unwrap());
        let said = (xdp.as_ref().err().map(ToString::to_string), udp.as_ref().err().map(ToString::to_string));
        assert_eq!([xdp.is_ok(), udp.is_ok()].iter().filter(|opened| **opened).count(), 1, "{round}: {said:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(120), "a second or so a round: {:?}", start.elapsed());
}

#[test]
fn an_xdp_program_of_others_is_named_with_its_process_and_left_alone() {
    let pair = Pair::new(PairOptions::default());
    // Attached by a process: this one, which holds it as strangers do, without a claim.
    let index = pair.within(0, || Device::find(Some("veth0")).unwrap().index);
    let foreign = pair.within(0, move || {
        let mut foreign = aya::Ebpf::load(include_bytes!("../xdp/uroce.bpf.o")).unwrap();
        let program: &mut Xdp = foreign.program_mut("uroce").unwrap().try_into().unwrap();
        program.load().unwrap();
        program.attach_to_if_index(index, XdpMode::Skb).unwrap();
        foreign
    });
    let refused = |words: &[&str]| {
        let error = open_xdp(&pair, "veth0").err().expect("the kernel takes one program");
        let text = error.to_string();
        assert!(matches!(error, xdp::XdpOpenError::OtherProgram { .. }), "{text}");
        assert!(!text.contains("xdp off") && text.contains("--link udp"), "{text}");
        let said = [text, missing(&pair)[0].clone()];
        assert!(said.iter().all(|text| words.iter().all(|word| text.contains(word))), "{words:?}: {said:?}");
        // Sockets beside it, since who knows what it takes; and that is what is taken when nobody says how.
        assert_eq!(missing(&pair)[1], "");
        let context = open(&pair, OpenOptions::new().device("veth0")).unwrap();
        assert_eq!(context.link_mode(), "udp");
        assert!(context.why_not_xdp().is_some_and(|why| why.contains("another XDP program")), "{context:?}");
    };
    refused(&[&this_process()]);
    drop(foreign);
    assert_eq!(missing(&pair)[0], "");
    // Attached by nobody who is still there.
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/xdp/uroce.bpf.o");
    pair.ip(0, &format!("link set dev veth0 xdpgeneric obj {object} sec xdp.frags"));
    refused(&["no process", "ip -d link show veth0"]);
    let (_, shown) = pair.exec(0, "ip link show veth0");
    assert!(shown.contains("xdpgeneric"), "it is still there: {shown}");
}

/// A thread whose capabilities suffice, but for memory: both what is promised and what is opened know.
#[test]
fn too_little_lockable_memory_is_said_before_and_sockets_are_opened_instead() {
    let pair = Pair::new(PairOptions::default());
    let (modes, context, small) = pair.within(0, || {
        let limit = libc::rlimit { rlim_cur: 8 << 20, rlim_max: 8 << 20 };
        // SAFETY: the limit is a valid rlimit; the other tests of this process have CAP_IPC_LOCK.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        // CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and not CAP_IPC_LOCK.
        common::privileges::keep_capabilities(1 << 12 | 1 << 13 | 1 << 39);
        let options = OpenOptions::new().device("veth0");
        let xdp = XdpOptions { receive_frames: 512, transmit_packets: 64, ..XdpOptions::default() };
        let modes = Device::find(Some("veth0")).unwrap().link_modes().unwrap();
        let opened = Context::open(&options).unwrap();
        let context = (opened.link_mode(), opened.why_not_xdp().map(str::to_owned));
        drop(opened);
        (modes, context, options.xdp(xdp).open().unwrap().link_mode())
    });
    let said = modes[0].missing.join("; ");
    assert!(said.contains("8192 KiB") && said.contains("ulimit -l 65536"), "{said}");
    let (mode, why) = context;
    assert!(mode == "udp" && why.as_ref().is_some_and(|why| why.contains("67108864 bytes")), "{mode} {why:?}");
    assert_eq!(small, "xdp-native-copy");
}

/// What is wrong with the options is no reason to do something else.
#[test]
fn wrong_options_are_refused_and_not_avoided() {
    let pair = Pair::new(PairOptions::default());
    let xdp = XdpOptions { receive_frames: 1, ..XdpOptions::default() };
    let options = OpenOptions::new().device("veth0").xdp(xdp);
    let error = open(&pair, options).expect_err("one frame is too few");
    assert!(matches!(error, OpenError::Xdp(xdp::XdpOpenError::Option { .. })), "{error}");
}

/// The interface by which the host reaches the world is opened over UDP sockets, unless somebody names it.
#[test]
fn the_interface_of_the_default_route_must_be_named_for_af_xdp() {
    for route in ["route add default via 10.7.0.2", "-6 route add default via fd07::2"] {
        let pair = Pair::new(PairOptions::default());
        let unnamed = OpenOptions::new();
        let named = unnamed.clone().device("veth0");
        let picked = named.clone().picked(true);
        let mode = |options: &OpenOptions| open(&pair, options.clone()).unwrap().link_mode();
        assert_eq!([&unnamed, &named, &picked].map(mode), ["xdp-native-copy"; 3], "no route yet");
        pair.ip(0, route);
        assert_eq!([&unnamed, &picked, &named].map(mode), ["udp", "udp", "xdp-native-copy"], "{route}");
        let why = open(&pair, unnamed.clone()).unwrap().why_not_xdp().unwrap().to_owned();
        assert!(why.contains("default route") && why.contains("--dev veth0"), "{why}");
        let error = open(&pair, unnamed.link(LinkKind::Xdp)).expect_err("not by accident");
        assert!(matches!(error, OpenError::Unnamed { .. }), "{error}");
        let listed = pair.within(0, || Device::list().unwrap());
        let outward: Vec<_> = listed.iter().filter(|d| d.has_default_route).map(|d| d.name.as_str()).collect();
        assert_eq!(outward, ["veth0"]);
    }
}

#[test]
fn the_loopback_is_taken_when_nothing_else_is_up() {
    let pair = Pair::new(PairOptions::default());
    pair.ip(0, "link set veth0 down");
    let context = open(&pair, OpenOptions::default()).unwrap();
    assert_eq!((context.device().name.as_str(), context.link_mode().as_str()), ("lo", "udp"));
    assert_eq!(context.gids()[0].ip(), IpAddr::from([127, 0, 0, 1]));
    pair.ip(0, "link set lo down");
    let error = open(&pair, OpenOptions::default()).expect_err("nothing is up").to_string();
    assert!(error.contains("ip link"), "{error}");
}

//! **uroce**: a RoCE v2 stack in userspace, over AF_XDP or ordinary UDP sockets. Kernel rxe peers and RNICs talk to it as to another
//! RNIC; it needs no RDMA hardware, no kernel module, and over UDP sockets no privilege.
//!
//! For Linux on x86-64 and aarch64. With AF_XDP it is built with gcc, make, m4, pkg-config, libelf-dev, zlib1g-dev, clang and
//! libclang-dev; [without](#features), with Rust and a linker.
//!
//! # A program
//!
//! Two queue pairs of one device; one WRITEs into memory that is the other's:
//!
//! ```
//! use uroce::verbs::{Access, OpenOptions, QueuePairOptions, SendOperation, SendRequest, Service, Status};
//!
//! # // One program at a time has the port of the loopback's addresses: another test may.
//! # let patience = |error: &uroce::verbs::OpenError| {
//! #     eprintln!("{error}");
//! #     std::thread::sleep(std::time::Duration::from_millis(500));
//! # };
//! # let context = (0..60).find_map(|_| OpenOptions::new().device("lo").open().inspect_err(patience).ok());
//! # let context = context.expect("the loopback opens");
//! # #[cfg(any())]
//! let context = OpenOptions::new().device("lo").open()?;
//! let pd = context.allocate_pd();
//! let here = pd.allocate_region(4096, Access::LOCAL_WRITE)?;
//! let there = pd.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let cq = context.create_completion_queue(16);
//! let a = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq))?;
//! let b = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq))?;
//! a.connect(&b.local())?;
//! b.connect(&a.local())?;
//!
//! here.memory().write(0, b"hello, RDMA");
//! let write = SendOperation::Write(there.remote(64));
//! a.post_send(SendRequest::new(1, write, here.sge(0, 11).into()))?;
//! let done = loop {
//!     if let Some(done) = cq.poll() {
//!         break done;
//!     }
//! };
//! assert_eq!((done.wr_id, done.status), (1, Status::Success));
//! assert_eq!(there.memory().to_vec(64, 11), b"hello, RDMA");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to call, in which order
//!
//! The names are those of ibverbs and the IBTA; all are in [`verbs`].
//!
//! 1. [`OpenOptions`](verbs::OpenOptions), by calls or [from the environment](verbs::OpenOptions::from_env), then
//!    [`open`](verbs::OpenOptions::open): a [`Context`](verbs::Context), with a thread that answers peers while the program does
//!    something else.
//! 2. [`allocate_pd`](verbs::Context::allocate_pd): a domain, whose queue pairs and regions work together.
//! 3. [`allocate_region`](verbs::ProtectionDomain::allocate_region): memory that peers reach as its
//!    [`Access`](verbs::Access) says. A peer learns of a place in it by [`remote`](verbs::MemoryRegion::remote).
//! 4. [`create_completion_queue`](verbs::Context::create_completion_queue), and
//!    [`create_queue_pair`](verbs::ProtectionDomain::create_queue_pair) over it.
//! 5. [`local`](verbs::QueuePair::local): who we are, a [`Peer`](verbs::Peer). As text or otherwise it goes to the other program, by TCP,
//!    say, and the other's comes back.
//! 6. [`post_receive`](verbs::QueuePair::post_receive), if the peer will SEND: after [`init`](verbs::QueuePair::init), before
//! 7. [`connect`](verbs::QueuePair::connect) with what the other said, at both ends.
//! 8. [`post_send`](verbs::QueuePair::post_send), and [`poll`](verbs::CompletionQueue::poll) until each request is reported, once and in
//!    order. Instead of polling, sleep on a [`CompletionChannel`](verbs::CompletionChannel).
//!
//! What peers do wrong, and what becomes of requests, is no `Err`: it is a completion's [`Status`](verbs::Status) or an
//! [`Event`](verbs::Event).
//!
//! The folder `examples` has whole programs: `write` is the one above, `events` sleeps, `pingpong` is two programs, and `sans_io` uses the
//! transport alone.
//!
//! # Features
//!
//! - `xdp` (default): links over AF_XDP. Building takes a C compiler, make, m4, pkg-config and the headers of libelf and
//!   zlib, all for libbpf. An XDP program other than the committed object takes clang too.
//! - `udp` (default): links over UDP sockets.
//! - `capture` (default): [`pcap`] reads and writes capture files, and links in use write them.
//! - `tracing`: events of the crate `tracing` when a state changes, a packet is refused or sent again, or a path goes
//!   dark.
//!
//! `verbs`, `engine` and `link` need `xdp` or `udp`. A feature that is off takes no name from those that are on: a link or
//! a capture that was not built cannot be opened, and the error names its feature.
//!
//! Without features the core is left: [`wire`], [`memory`], [`recovery`], [`path`], [`congestion`] and [`transport`]. It
//! is a state machine without clock, thread or socket, for programs that have their own.
//!
//! # Layers
//!
//! Each uses those above it in this table; most programs need the last one only.
//!
//! | module | what it is |
//! |---|---|
//! | [`time`], [`frame`] | points in time; who owns bytes |
//! | [`wire`] | headers, opcodes, the ICRC: views over bytes, which never panic |
//! | [`memory`] | protection domains, regions, windows, keys |
//! | [`recovery`], [`path`], [`congestion`] | what was lost and when it is sent again; which path a packet takes; how fast a queue pair sends |
//! | [`transport`] | queue pairs as state machines, without clock, thread, socket or randomness: [`Endpoint`](transport::Endpoint) |
//! | [`pcap`] | captures: reading and writing |
//! | [`link`] | where frames go: AF_XDP, UDP sockets; captures and faults around them |
//! | [`engine`] | the loop that drives an endpoint over a link, and the only clock |
//! | [`verbs`] | the API for programs |
//!
//! [`verbs`] is what versions keep to; below it names may change with any.

#![cfg_attr(
    not(all(feature = "xdp", feature = "udp", feature = "capture")),
    allow(
        dead_code,
        unused_imports,
        reason = "what links have in common is not all used by each; with all of them it is"
    )
)]

#[doc(hidden)]
#[macro_use]
pub mod mutants;
#[macro_use]
mod trace;
#[macro_use]
mod counters;

#[cfg(not(all(target_os = "linux", target_endian = "little", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "uroce is for Linux on x86-64 and aarch64: copies to registered memory are in assembly (src/memory/copy.rs)"
);

pub mod congestion;
#[cfg(feature = "link")]
pub mod engine;
pub mod frame;
#[cfg(feature = "link")]
pub mod link;
pub mod memory;
pub mod path;
pub mod pcap;
pub mod recovery;
mod sync;
pub mod time;
pub mod transport;
#[cfg(feature = "link")]
pub mod verbs;
pub mod wire;

//! **uroce** is a RoCE v2 stack in userspace, over AF_XDP or ordinary UDP sockets. Kernel rxe peers and RNICs talk to
//! it as to another RNIC. It needs no RDMA hardware and no kernel module, and over UDP sockets no privilege.
//!
//! It runs on Linux on x86-64 and aarch64. The build with AF_XDP needs gcc, make, m4, pkg-config, libclang-dev,
//! libelf-dev and zlib1g-dev; the build [without](#features) needs only Rust and a linker.
//!
//! # A program
//!
//! Two queue pairs of one device: one of them WRITEs into the memory of the other.
//!
//! ```
//! use uroce::verbs::{
//!     Access, OpenOptions, QueuePairOptions, SendOperation, SendRequest, Service, Status,
//! };
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
//!    [`open`](verbs::OpenOptions::open). The result is a [`Context`](verbs::Context), whose thread answers peers while
//!    the program does something else.
//! 2. [`allocate_pd`](verbs::Context::allocate_pd): a protection domain, whose queue pairs and regions work together.
//! 3. [`allocate_region`](verbs::ProtectionDomain::allocate_region): memory that peers reach as its
//!    [`Access`](verbs::Access) allows. [`remote`](verbs::MemoryRegion::remote) makes the address and key that a peer
//!    needs.
//! 4. [`create_completion_queue`](verbs::Context::create_completion_queue), and
//!    [`create_queue_pair`](verbs::ProtectionDomain::create_queue_pair) over it.
//! 5. [`local`](verbs::QueuePair::local): the [`Peer`](verbs::Peer) that describes this queue pair. The programs
//!    exchange theirs by any means, for example as text over TCP.
//! 6. [`post_receive`](verbs::QueuePair::post_receive), if the peer will SEND: after [`init`](verbs::QueuePair::init)
//!    and before `connect`.
//! 7. [`connect`](verbs::QueuePair::connect) with the other program's `Peer`, at both ends.
//! 8. [`post_send`](verbs::QueuePair::post_send), and [`poll`](verbs::CompletionQueue::poll) until each request has
//!    completed, once and in order. Instead of polling, a program can sleep on a
//!    [`CompletionChannel`](verbs::CompletionChannel).
//!
//! Faults of peers and results of requests are never an `Err`: they are a completion's [`Status`](verbs::Status) or an
//! [`Event`](verbs::Event).
//!
//! The folder `examples` has whole programs: `write` is the one above, `events` sleeps, `pingpong` is two programs, and
//! `sans_io` uses the transport alone.
//!
//! # Features
//!
//! - `xdp` (default): links over AF_XDP. The build needs a C compiler, make, m4, pkg-config, libclang and the headers
//!   of libelf and zlib, all for libbpf and its bindings. Clang is needed only to build an XDP program other than the
//!   committed object.
//! - `udp` (default): links over UDP sockets.
//! - `capture` (default): [`pcap`] reads and writes capture files, and links in use write them.
//! - `tracing`: events of the crate `tracing` when a state changes, a packet is refused or retransmitted, or a path
//!   goes dark.
//!
//! `verbs`, `engine` and `link` need `xdp` or `udp`. With either, all public names of the three exist. A link or a
//! capture that was not built cannot be opened, and the error names its feature.
//!
//! Without features the core remains: [`wire`], [`memory`], [`recovery`], [`path`], [`congestion`], [`transport`]
//! and [`cm`]. These are state machines without clock, thread or socket, for programs that have their own.
//!
//! # Layers
//!
//! Each layer uses those above it in this table; most programs need only the last one.
//!
//! | module | what it is |
//! |---|---|
//! | [`time`], [`frame`] | points in time; ownership of bytes |
//! | [`wire`] | headers, opcodes, the ICRC: views over bytes, which never panic |
//! | [`memory`] | protection domains, regions, windows, keys |
//! | [`recovery`] | which packets were lost, and when they are retransmitted |
//! | [`path`], [`congestion`] | which path a packet takes; how fast a queue pair sends |
//! | [`transport`] | [`Endpoint`](transport::Endpoint): queue pairs as state machines without clock, thread, socket |
//! | [`cm`] | the connection manager: a state machine beside them, for RDMA CM |
//! | [`pcap`] | captures: reading and writing |
//! | [`link`] | where frames go: AF_XDP, UDP sockets; captures and faults around them |
//! | [`engine`] | the loop that drives an endpoint over a link, and the only clock |
//! | [`verbs`] | the API for programs |
//!
//! Version numbers follow the API of [`verbs`]; names of the layers below it can change with any version.

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

mod cache;
pub mod cm;
pub mod congestion;
#[cfg(feature = "link")]
pub mod engine;
mod forked;
pub mod frame;
#[cfg(feature = "link")]
pub mod link;
pub mod memory;
pub mod path;
pub mod pcap;
pub mod quantity;
pub mod recovery;
mod sync;
pub mod time;
mod tournament;
pub mod transport;
#[cfg(feature = "link")]
pub mod verbs;
pub mod wire;

pub use forked::Forked;

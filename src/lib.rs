//! **uroce**: a RoCE v2 stack in userspace over AF_XDP.
//!
//! `docs/ARCHITECTURE.md` has the map and the invariants.
//!
//! # Features
//!
//! - `xdp` (default): links over AF_XDP. Building takes a C compiler, make, m4, pkg-config and the headers of libelf and zlib, all
//!   for libbpf; clang too when the XDP program is to be another one than the committed object.
//! - `udp` (default): links over UDP sockets.
//! - `tracing`: events of the crate `tracing` when a state changes, something is refused or sent again, or a path goes dark.
//! - `capture` (default): [`pcap`] reads and writes capture files, and links in use write them.
//!
//! `verbs`, `engine` and `link` are there with `xdp` or `udp`. A feature takes no name away that another one has: a
//! link or a capture that was not built cannot be opened, and the error says so.
//!
//! Without any the core is left: `wire`, [`memory`], [`recovery`], [`path`], [`congestion`] and [`transport`], a state machine
//! without clock, thread or socket, for programs that have their own.

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
#[cfg(all(feature = "xdp", feature = "udp", feature = "capture"))]
pub mod replay;
#[cfg(all(feature = "xdp", feature = "udp", feature = "capture"))]
pub mod sim;
mod sync;
pub mod time;
pub mod transport;
#[cfg(feature = "link")]
pub mod verbs;
pub mod wire;

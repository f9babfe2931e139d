//! A real peer for tests: the Linux kernel's Soft-RoCE driver (`rdma_rxe`) in QEMU under software emulation, on a bridge
//! in a network namespace, with a veth end for our side; and a scripted verbs client that runs on it.
//!
//! - [`image::ensure`] builds the kernel and the initramfs (cached under `target/rxe/`),
//! - [`Lab`] boots up to two machines and wires them to a namespace for our side,
//! - [`Agent`] drives `verbs-agent` (guest/verbs-agent.c) in a machine, or on any libibverbs,
//! - [`pyverbs`] has rdma-core's tests in Python, for a machine and for anything else,
//! - [`netns`] has the namespaces by themselves, and [`netns::VethPair`] two of them back to back.
//!
//! Needs Linux, root, x86-64 and Debian's packages; `cargo xtask setup` installs what is missing. Everything is cleaned
//! up on `Drop`; what a killed process leaves behind, the next one removes ([`netns::sweep`]). Correctness only: no
//! speed may be read off an emulated machine.
#![allow(clippy::disallowed_methods, reason = "a test rig waits for processes and sockets: it lives on the wall clock")]

pub mod agent;
pub mod capture;
mod cpio;
pub mod error;
pub mod image;
mod instructions;
pub mod lab;
pub mod netns;
pub mod pattern;
pub mod process;
pub mod pyverbs;
pub mod vm;
mod vmlinux;

pub use agent::Agent;
pub use capture::Capture;
pub use error::{Result, RigError};
pub use lab::{Lab, LabOptions};
pub use netns::{Netns, VethPair};
pub use vm::{Job, Output, Vm};

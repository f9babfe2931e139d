//! The tests of the command line that take a machine in QEMU: conversations with the kernel's rxe, and uroce on an older kernel. A
//! machine takes one processor, so they are played beside the others, and one at a time: `cargo test -p uroce-cli --test machines
//! rxe_perf::` plays those of one file.

#[path = "../common/mod.rs"]
mod common;

mod linux_6_1;
mod rxe_cm;
mod rxe_perf;
mod rxe_pingpong;
mod rxe_qperf;
mod rxe_run;
mod rxe_verbs;

//! The tests of the command line, in one program: it is compiled and linked once. `cargo test -p uroce-cli --test cli perf::` plays
//! those of one file.
//!
//! What takes a machine, what is large, and what takes a feature of its own, is a program apart: Cargo.toml names them.

mod common;

mod addresses;
mod beside;
mod c_programs;
mod classes;
mod closed_pipe;
mod completions;
mod containers;
mod deadline;
mod decode;
mod elsewhere;
mod errors;
mod flood;
mod gloo;
mod goldens;
mod habits;
mod json;
mod kv;
mod lab;
mod leaks;
mod libfabric;
mod log;
mod marks;
mod mooncake;
mod mpi;
mod nixl;
mod offer;
mod owners;
mod perf;
mod perftest;
mod pingpong;
mod pyverbs;
mod qperf;
mod rails;
mod rdma_cm;
mod readme;
mod replay;
mod run;
mod seen;
mod sharing;
mod sim;
mod stat;
mod storms;
mod stream;
mod system_calls;
mod tshark;
mod ucx;
mod udp;
mod vanish;
mod wireshark;

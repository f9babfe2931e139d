//! Frames a second through a bare AF_XDP socket pair and through two `XdpLink`s, on the same veth, in one run.
//!
//! Needs root and `ip`. The bare pipe is the socket library alone: a sender that submits prepared frames and collects
//! completions, a receiver that returns chunks to the fill ring. The link's pipe writes the headers and reads the first
//! bytes of every frame, as the stack does. Interleaved, best of the rounds; one JSON object a line.
//!
//! `cargo run --release --example xdp_pipe [-- ROUNDS [SECONDS]]`

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::hosts::{Pair, PairOptions};
use uroce::link::Link;
use uroce::link::xdp::{AttachMode, XdpLink, XdpOptions};
use xsk_rs::FrameDesc;
use xsk_rs::config::{BindFlags, FrameSize, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::socket::{RxQueue, Socket, TxQueue};
use xsk_rs::umem::{CompQueue, FillQueue, Umem};

/// Packets a system call; more brings nothing.
const BATCH: usize = 64;
const RECEIVE_FRAMES: u32 = 4096;
const TRANSMIT_PACKETS: u32 = 512;

/// What the two ends of a pipe share.
struct Run {
    start: Barrier,
    stop: AtomicBool,
    received: AtomicU64,
}

/// Counts what `receive` takes from when the sender starts until it stops; packets a second.
fn measure<S, R>(pair: &Pair, seconds: f64, sender: S, receiver: R) -> f64
where
    S: FnOnce(&Run) + Send + 'static,
    R: FnOnce(&Run) + Send + 'static,
{
    let run = Arc::new(Run { start: Barrier::new(3), stop: AtomicBool::new(false), received: AtomicU64::new(0) });
    let (a, b) = (Arc::clone(&run), Arc::clone(&run));
    let threads = [pair.spawn(0, move || sender(&a)), pair.spawn(1, move || receiver(&b))];
    run.start.wait();
    std::thread::sleep(Duration::from_millis(100));
    let (from, began) = (run.received.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let pps = (run.received.load(Ordering::Relaxed) - from) as f64 / began.elapsed().as_secs_f64();
    run.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a pipe's end");
    }
    pps
}

/// An IPv4/UDP packet to port 4791 with `payload` bytes.
fn write_packet(to: &mut [u8], payload: usize) -> usize {
    let len = 28 + payload;
    to[..20].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2]);
    to[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    to[20..28].copy_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 0, 0, 0]);
    to[24..26].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    len
}

fn link_pipe(pair: &Pair, mode: AttachMode, payload: usize, seconds: f64) -> f64 {
    let options = XdpOptions {
        mode: Some(mode),
        receive_frames: RECEIVE_FRAMES,
        transmit_packets: TRANSMIT_PACKETS,
        ..XdpOptions::default()
    };
    let [mut a, mut b] = [0, 1].map(|host| {
        let options = options.clone();
        pair.within(host, move || XdpLink::open("veth0", &options).unwrap_or_else(|e| panic!("{e}")))
    });
    let epoch = Instant::now();
    let now = move || uroce::time::Instant::from_ns(epoch.elapsed().as_nanos() as u64);
    let addresses = [1, 2].map(|last| IpAddr::from([10, 7, 0, last]));
    measure(
        pair,
        seconds,
        move |run| {
            let hop = a.hop(addresses[0], addresses[1]).expect("a route");
            run.start.wait();
            while !run.stop.load(Ordering::Relaxed) {
                let at = now();
                for _ in 0..BATCH {
                    let Some(buffer) = a.transmit_buffer() else { break };
                    let len = write_packet(buffer, payload);
                    a.transmit(at, len, hop);
                }
                a.flush(at);
            }
        },
        move |run| {
            run.start.wait();
            let mut frames = Vec::with_capacity(BATCH);
            while !run.stop.load(Ordering::Relaxed) {
                let at = now();
                let number = b.receive(at, &mut frames, BATCH);
                for frame in frames.drain(..) {
                    assert_eq!(frame.bytes().head[36..38], [0x12, 0xb7]);
                }
                run.received.fetch_add(number as u64, Ordering::Relaxed);
                if number == 0 {
                    b.flush(at);
                }
            }
        },
    )
}

/// A bare socket with its memory: half of the chunks, or all of them, go to the fill ring.
struct Bare {
    umem: Umem,
    descriptors: Vec<FrameDesc>,
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
}

impl Bare {
    fn open(frames: u32, multi_buffer: bool) -> Bare {
        let size = |n: u32| QueueSize::new(n.next_power_of_two()).unwrap();
        let umem_config = UmemConfig::builder()
            .frame_size(FrameSize::new(4096).unwrap())
            .fill_queue_size(size(frames))
            .comp_queue_size(size(frames))
            .build()
            .unwrap();
        let (umem, descriptors) = Umem::new(umem_config, frames.try_into().unwrap(), false).unwrap();
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        flags.set(BindFlags::XDP_USE_SG, multi_buffer);
        let config = SocketConfig::builder()
            .rx_queue_size(size(frames))
            .tx_queue_size(size(frames))
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags)
            .build();
        for _ in 0..40 {
            // SAFETY: no program is loaded by the library, and the memory has one socket.
            match unsafe { Socket::new(config, &umem, &"veth0".parse().unwrap(), 0) } {
                Ok((tx, rx, Some((fill, completion)))) => return Bare { umem, descriptors, tx, rx, fill, completion },
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        panic!("the queue stays busy");
    }
}

fn bare_pipe(pair: &Pair, mode: AttachMode, payload: usize, seconds: f64) -> f64 {
    use std::os::fd::AsRawFd;
    let frame_bytes = 14 + 28 + payload;
    let parts = if frame_bytes > 3840 { 2 } else { 1 };
    let macs = pair.within(1, || interface_mac());
    // Both ends attach a program, as the links do.
    let [program_a, program_b] = [0, 1].map(|host| pair.within(host, move || attach(mode)));
    let mut a = pair.within(0, move || Bare::open(TRANSMIT_PACKETS * parts, parts > 1));
    let mut b = pair.within(1, move || Bare::open(RECEIVE_FRAMES, parts > 1));
    let mut program_b = program_b;
    let map = program_b.map_mut("xsks").unwrap();
    aya::maps::XskMap::try_from(map).unwrap().set(0, b.rx.fd().as_raw_fd(), 0).unwrap();
    let pps = measure(
        pair,
        seconds,
        move |run| {
            let parts = parts as usize;
            let mut packet = vec![0; frame_bytes];
            packet[..6].copy_from_slice(&macs);
            packet[12] = 8;
            write_packet(&mut packet[14..], payload);
            let mut free: Vec<FrameDesc> = Vec::new();
            for (number, mut descriptor) in a.descriptors.iter().copied().enumerate() {
                let part = if number % parts == 0 { &packet[..frame_bytes.min(3840)] } else { &packet[3840..] };
                // SAFETY: nobody else has the chunk yet.
                let mut data = unsafe { a.umem.data_mut(&mut descriptor) };
                data.cursor().set_pos(part.len());
                data.contents_mut().copy_from_slice(part);
                free.push(descriptor);
            }
            let lengths: Vec<usize> = free.iter().map(|d| d.lengths().data()).collect();
            let mut batch = vec![FrameDesc::default(); BATCH * parts];
            run.start.wait();
            while !run.stop.load(Ordering::Relaxed) {
                let number = (BATCH * parts).min(free.len()) / parts * parts;
                let from = free.len() - number;
                for (at, slot) in batch[..number].iter_mut().enumerate() {
                    *slot = free[from + at];
                    slot.set_options(u32::from(parts == 2 && at % 2 == 0));
                }
                // SAFETY: the chunks leave `free`.
                let sent = unsafe { a.tx.produce(&batch[..number]) };
                assert_eq!(sent, number);
                free.truncate(from);
                a.tx.wakeup().unwrap();
                loop {
                    // SAFETY: the memory's only socket.
                    let done = unsafe { a.completion.consume(&mut batch) };
                    for descriptor in &mut batch[..done] {
                        let chunk = descriptor.addr() / 4096;
                        // SAFETY: completed, so ours again.
                        unsafe { a.umem.data_mut(descriptor) }.cursor().set_pos(lengths[chunk]);
                        free.push(*descriptor);
                    }
                    if done < batch.len() {
                        break;
                    }
                }
            }
        },
        move |run| {
            // SAFETY: nobody else has the chunks.
            unsafe { b.fill.produce(&b.descriptors[..RECEIVE_FRAMES as usize / 2]) };
            let mut batch = vec![FrameDesc::default(); BATCH];
            run.start.wait();
            while !run.stop.load(Ordering::Relaxed) {
                // SAFETY: the memory's only socket; every chunk goes back to the fill ring.
                unsafe {
                    let number = b.rx.consume(&mut batch);
                    let mut packets = 0;
                    for descriptor in &batch[..number] {
                        packets += u64::from(!descriptor.has_more_frames());
                    }
                    b.fill.produce(&batch[..number]);
                    run.received.fetch_add(packets, Ordering::Relaxed);
                }
            }
        },
    );
    drop((program_a, program_b));
    pps
}

fn interface_mac() -> [u8; 6] {
    let device = uroce::link::device::Device::find(Some("veth0")).expect("veth0 is there");
    device.mac
}

fn attach(mode: AttachMode) -> aya::Ebpf {
    let object = include_bytes!("../xdp/uroce.bpf.o").to_vec();
    let mut ebpf = aya::Ebpf::load(&object).unwrap();
    let program: &mut aya::programs::Xdp = ebpf.program_mut("uroce").unwrap().try_into().unwrap();
    program.load().unwrap();
    let mode = match mode {
        AttachMode::Native => aya::programs::XdpMode::Driver,
        AttachMode::Skb => aya::programs::XdpMode::Skb,
    };
    program.attach("veth0", mode).unwrap();
    ebpf
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(4, |a| a.parse().expect("ROUNDS is a number"));
    let seconds: f64 = arguments.next().map_or(1.0, |a| a.parse().expect("SECONDS is a number"));
    let pair = Pair::new(PairOptions { mtu: 4500, ..PairOptions::default() });
    for mode in [AttachMode::Native, AttachMode::Skb] {
        // UDP payloads: the smallest, and path MTUs of 1024, 2048 and 4096 with their headers.
        for payload in [64, 1060, 2108, 4160] {
            let (mut bare, mut link) = (0f64, 0f64);
            for _ in 0..rounds {
                bare = bare.max(bare_pipe(&pair, mode, payload, seconds));
                link = link.max(link_pipe(&pair, mode, payload, seconds));
            }
            let gbps = link * payload as f64 * 8.0 / 1e9;
            println!(
                "{{\"name\":\"xdp-pipe\",\"mode\":\"{}\",\"payload_bytes\":{payload},\"bare_pps\":{bare:.0},\"link_pps\":{link:.0},\"link_gbps\":{gbps:.2},\"ns_a_packet\":{:.0},\"ratio\":{:.3}}}",
                mode.name(),
                1e9 / link,
                link / bare
            );
        }
    }
}

//! The bare AF_XDP pipe: the socket library and nothing else, as the measure of what any stack over it can reach.
//!
//! One way, the sender submits frames of exactly the size of a WRITE_MIDDLE, and the receiver gives their chunks back
//! unread; only payload counts, so that goodputs compare. The «copy-crc» pipe also does what any RDMA stack must: the
//! sender copies the payload from its memory and puts a CRC-32 behind it, the receiver checks that and copies the payload
//! to its memory.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, XskMap};
use aya::programs::{Xdp, XdpMode};
use uroce::link::xdp::AttachMode;
use xsk_rs::FrameDesc;
use xsk_rs::config::{BindFlags, FrameSize, LibxdpFlags, QueueSize, SocketConfig, UmemConfig};
use xsk_rs::socket::{RxQueue, Socket, TxQueue};
use xsk_rs::umem::{CompQueue, FillQueue, Umem};

use crate::Failure;
use crate::figure::Counts;
use crate::rig::{LOST_AFTER, Meeting, Rig, Side, Spin};

/// Packets a system call, as the stack's engine has it; more brings nothing.
const BATCH: usize = 64;

/// Packets that the sender may be ahead: what half of the receive chunks hold, two a packet.
const WINDOW: u64 = 1024;

/// Chunks to receive into: those of two windows. The stack's own link has more, for peers that keep to no window. Packets to
/// send from: as that link has.
const RECEIVE_CHUNKS: usize = 4096;
const TRANSMIT_PACKETS: usize = 512;

const CHUNK_BYTES: usize = 4096;

/// Frame bytes in one chunk: the kernel keeps 256 free at its start.
const CHUNK_CAPACITY: usize = CHUNK_BYTES - 256;

/// Ethernet 14, IPv4 20, UDP 8 and BTH 12 bytes.
const HEADER_BYTES: usize = 54;

/// The CRC covers what the ICRC does: from the IP header on.
const IP_START: usize = 14;

const CRC_BYTES: usize = 4;

/// Memory that payloads are copied from and to: as much as the verbs figures have registered.
const MEMORY_BYTES: usize = 2 << 20;

/// Socket option of 6.17 (linux/if_xdp.h): how many packets one call sends; 32 without it.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../xdp/uroce.bpf.o"));

/// ELF parsers want it aligned.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// One way: payload bits a second with frames of a path MTU.
pub fn pipe(rig: &Rig, mtu: usize, copies: bool, seconds: f64) -> Result<Counts, Failure> {
    rig.run(
        seconds,
        |meeting| send(Bare::open(rig, Side::Sender, mtu)?, meeting, mtu, copies).map(|()| None),
        |meeting| receive(Bare::open(rig, Side::Receiver, mtu)?, meeting, mtu, copies).map(Some),
    )
}

/// Round trips of WRITE_ONLY-sized frames with 64 bytes of payload, both ends spinning.
pub fn round_trips(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    /// A RETH (16 bytes) and the data.
    const PAYLOAD: usize = 16 + 64;
    let lead = |meeting: &Meeting| {
        let mut bare = Bare::open(rig, Side::Sender, PAYLOAD)?;
        meeting.begin()?;
        let mut meter = meeting.meter();
        let mut turn = 0_u8;
        while meter.is_running() {
            let start = Instant::now();
            turn = turn.wrapping_add(1);
            bare.bounce(turn)?;
            // A lost frame would stop the game; one that only came late must not count twice.
            while bare.take() != Some(turn) && !meeting.is_stopped() && start.elapsed() < LOST_AFTER {}
            meter.round_trip(start.elapsed(), 64);
        }
        meeting.finish();
        Ok(Some(meter.finish()))
    };
    let follow = |meeting: &Meeting| {
        let mut bare = Bare::open(rig, Side::Receiver, PAYLOAD)?;
        meeting.begin()?;
        while !meeting.is_over() {
            if let Some(turn) = bare.take() {
                bare.bounce(turn)?;
            }
        }
        Ok(None)
    };
    rig.run(seconds, lead, follow)
}

fn send(mut bare: Bare, meeting: &Meeting, mtu: usize, copies: bool) -> Result<(), Failure> {
    let source = vec![0x5a_u8; MEMORY_BYTES];
    let mut at = 0;
    meeting.begin()?;
    let mut window = meeting.window(WINDOW);
    while !meeting.is_stopped() {
        let number = BATCH.min(bare.free.len());
        window.wait(number as u64);
        let mut batch = std::mem::take(&mut bare.batch);
        batch.clear();
        for packet in bare.free.drain(bare.free.len() - number..) {
            let from = RECEIVE_CHUNKS + packet * bare.parts;
            let parts = &mut bare.descriptors[from..from + bare.parts];
            if copies {
                // SAFETY: the packet was free, so its chunks are nobody's.
                unsafe { write_payload(&bare.umem, parts, &source[at..at + mtu]) };
                at = (at + mtu) % MEMORY_BYTES;
            }
            batch.extend_from_slice(parts);
        }
        bare.batch = batch;
        bare.submit()?;
    }
    meeting.finish();
    Ok(())
}

fn receive(mut bare: Bare, meeting: &Meeting, mtu: usize, copies: bool) -> Result<Counts, Failure> {
    let mut memory = vec![0_u8; MEMORY_BYTES];
    let mut at = 0;
    let mut head = None;
    let mut received = [FrameDesc::default(); BATCH];
    meeting.begin()?;
    let (mut meter, mut spin) = (meeting.meter(), Spin::default());
    let fd = bare.rx.fd().as_raw_fd();
    while meter.is_running() {
        // SAFETY: the memory's only socket.
        let number = unsafe { bare.rx.consume(&mut received) };
        spin.note(number > 0, fd);
        let mut packets = 0;
        for descriptor in &received[..number] {
            if descriptor.has_more_frames() {
                head = Some(*descriptor);
                continue;
            }
            packets += 1;
            let (first, second) = match head.take() {
                Some(head) => (head, Some(*descriptor)),
                None => (*descriptor, None),
            };
            if copies {
                // SAFETY: the receive ring has just given us the chunks.
                let right = unsafe { read_payload(&bare.umem, &first, second.as_ref(), &mut memory[at..at + mtu]) };
                if !right {
                    return Err("a frame arrived with a wrong CRC".into());
                }
                at = (at + mtu) % MEMORY_BYTES;
            }
        }
        // SAFETY: the chunks are ours; a head without its tail was read or is not read at all.
        let returned = unsafe { bare.fill.produce(&received[..number]) };
        debug_assert_eq!(returned, number);
        meter.count(packets, packets * mtu as u64);
    }
    Ok(meter.finish())
}

/// Copies the payload into the chunks behind the headers, and the CRC behind it.
///
/// # Safety
/// The chunks must be the caller's.
unsafe fn write_payload(umem: &Umem, parts: &mut [FrameDesc], payload: &[u8]) {
    let mut crc = crc32fast::Hasher::new();
    let (first, second) = parts.split_at_mut(1);
    // SAFETY: the caller's chunks, and descriptors of this memory.
    let mut head = unsafe { umem.data_mut(&mut first[0]) };
    let head = head.contents_mut();
    match second {
        [] => {
            let (covered, end) = head.split_at_mut(HEADER_BYTES + payload.len());
            covered[HEADER_BYTES..].copy_from_slice(payload);
            crc.update(&covered[IP_START..]);
            end.copy_from_slice(&crc.finalize().to_le_bytes());
        }
        [second, ..] => {
            let (now, later) = payload.split_at(head.len() - HEADER_BYTES);
            head[HEADER_BYTES..].copy_from_slice(now);
            crc.update(&head[IP_START..]);
            // SAFETY: as above.
            let mut tail = unsafe { umem.data_mut(second) };
            let (covered, end) = tail.contents_mut().split_at_mut(later.len());
            covered.copy_from_slice(later);
            crc.update(covered);
            end.copy_from_slice(&crc.finalize().to_le_bytes());
        }
    }
}

/// Checks the CRC and copies the payload out. Returns whether the CRC was right.
///
/// # Safety
/// The chunks must be the caller's.
unsafe fn read_payload(umem: &Umem, first: &FrameDesc, second: Option<&FrameDesc>, out: &mut [u8]) -> bool {
    let mut crc = crc32fast::Hasher::new();
    // SAFETY: the caller's chunks, and descriptors of this memory.
    let head = unsafe { umem.data(first) };
    let head = head.contents();
    let stored = match second {
        None => {
            let Some((covered, stored)) = head.split_at_checked(HEADER_BYTES + out.len()) else { return false };
            crc.update(&covered[IP_START..]);
            out.copy_from_slice(&covered[HEADER_BYTES..]);
            stored
        }
        Some(second) => {
            // SAFETY: as above.
            let tail = unsafe { umem.data(second) };
            let in_head = head.len() - HEADER_BYTES;
            let Some((covered, stored)) = tail.contents().split_at_checked(out.len() - in_head) else { return false };
            crc.update(&head[IP_START..]);
            crc.update(covered);
            out[..in_head].copy_from_slice(&head[HEADER_BYTES..]);
            out[in_head..].copy_from_slice(covered);
            return stored == crc.finalize().to_le_bytes();
        }
    };
    stored == crc.finalize().to_le_bytes()
}

/// A socket with its memory, and a program that sends it RoCE.
struct Bare {
    _program: aya::Ebpf,
    umem: Umem,
    /// By chunk, those of packets to send with their lengths.
    descriptors: Vec<FrameDesc>,
    tx: TxQueue,
    rx: RxQueue,
    fill: FillQueue,
    completion: CompQueue,
    /// Chunks a packet.
    parts: usize,
    /// Packets that may be sent.
    free: Vec<usize>,
    batch: Vec<FrameDesc>,
}

impl Bare {
    /// Opens `side`'s end for packets with `payload` bytes of payload, and prepares them.
    fn open(rig: &Rig, side: Side, payload: usize) -> Result<Bare, Failure> {
        let interface = rig.interface(side);
        let frame_bytes = HEADER_BYTES + payload + CRC_BYTES;
        let parts = frame_bytes.div_ceil(CHUNK_CAPACITY);
        let mut program = attach(interface, rig.mode())?;
        let (umem, descriptors, (tx, rx, mut fill, completion)) = bind(interface, parts)?;
        let map = program.map_mut("xsks").ok_or("the program has no socket map")?;
        XskMap::try_from(map)?.set(0, rx.fd().as_raw_fd(), 0)?;
        let addresses = program.map_mut("addresses").ok_or("the program has no map of addresses")?;
        HashMap::<_, [u8; 16], u8>::try_from(addresses)?.insert(Rig::end(side).ipv4.to_ipv6_mapped().octets(), 1, 0)?;
        // SAFETY: nobody else has the chunks.
        unsafe { fill.produce(&descriptors[..RECEIVE_CHUNKS / 2]) };
        let mut bare = Bare {
            _program: program,
            umem,
            descriptors,
            tx,
            rx,
            fill,
            completion,
            parts,
            free: (0..TRANSMIT_PACKETS).collect(),
            batch: Vec::with_capacity(BATCH * parts),
        };
        let frame = frame(side, frame_bytes)?;
        for (index, descriptor) in bare.descriptors[RECEIVE_CHUNKS..].iter_mut().enumerate() {
            let part = index % parts;
            let bytes = &frame[part * CHUNK_CAPACITY..frame_bytes.min((part + 1) * CHUNK_CAPACITY)];
            // SAFETY: nobody else has the chunk yet.
            let mut data = unsafe { bare.umem.data_mut(descriptor) };
            data.cursor().set_pos(bytes.len());
            data.contents_mut().copy_from_slice(bytes);
            descriptor.set_options(u32::from(part + 1 < parts));
        }
        Ok(bare)
    }

    /// Sends the batch in one system call, and collects what was sent before.
    fn submit(&mut self) -> Result<(), Failure> {
        // SAFETY: the packets have left `free`.
        let sent = unsafe { self.tx.produce(&self.batch) };
        if sent < self.batch.len() {
            return Err("the transmit ring is full".into());
        }
        self.tx.wakeup()?;
        let mut done = [FrameDesc::default(); BATCH];
        loop {
            // SAFETY: the memory's only socket.
            let number = unsafe { self.completion.consume(&mut done) };
            for descriptor in &done[..number] {
                let index = descriptor.addr() / CHUNK_BYTES - RECEIVE_CHUNKS;
                if index.is_multiple_of(self.parts) {
                    self.free.push(index / self.parts);
                }
            }
            if number < done.len() {
                return Ok(());
            }
        }
    }

    /// Sends one packet with a number.
    fn bounce(&mut self, turn: u8) -> Result<(), Failure> {
        let packet = self.free.pop().ok_or("no packet is free")?;
        let descriptor = &mut self.descriptors[RECEIVE_CHUNKS + packet];
        // SAFETY: the packet was free, so its chunk is nobody's.
        unsafe { self.umem.data_mut(descriptor) }.contents_mut()[HEADER_BYTES] = turn;
        self.batch.clear();
        self.batch.push(*descriptor);
        self.submit()
    }

    /// Takes one packet's number, if one is there.
    fn take(&mut self) -> Option<u8> {
        let mut one = [FrameDesc::default()];
        // SAFETY: the memory's only socket.
        if unsafe { self.rx.consume(&mut one) } == 0 {
            return None;
        }
        // SAFETY: the receive ring has just given us the chunk.
        let turn = unsafe { self.umem.data(&one[0]) }.contents().get(HEADER_BYTES).copied();
        // SAFETY: nobody reads it any more.
        unsafe { self.fill.produce(&one) };
        turn
    }
}

type Rings = (TxQueue, RxQueue, FillQueue, CompQueue);

/// Makes the memory and the socket on queue 0.
fn bind(interface: &str, parts: usize) -> Result<(Umem, Vec<FrameDesc>, Rings), Failure> {
    /// The queue stays busy for up to 15 ms after its last socket was closed.
    const TRIES: usize = 40;
    let size = |entries: usize| QueueSize::new((entries as u32).next_power_of_two());
    let chunks = RECEIVE_CHUNKS + TRANSMIT_PACKETS * parts;
    let umem_config = UmemConfig::builder()
        .frame_size(FrameSize::new(CHUNK_BYTES as u32)?)
        .fill_queue_size(size(RECEIVE_CHUNKS)?)
        .comp_queue_size(size(TRANSMIT_PACKETS * parts)?)
        .build()?;
    let (umem, descriptors) = Umem::new(umem_config, (chunks as u32).try_into()?, false)?;
    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    flags.set(BindFlags::XDP_USE_SG, parts > 1);
    let config = SocketConfig::builder()
        .rx_queue_size(size(RECEIVE_CHUNKS)?)
        .tx_queue_size(size(TRANSMIT_PACKETS * parts)?)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags)
        .build();
    let name = interface.parse()?;
    let mut last: Failure = "the queue is bound already".into();
    for _ in 0..TRIES {
        // SAFETY: the library loads no program, and the memory has one socket.
        match unsafe { Socket::new(config, &umem, &name, 0) } {
            Ok((tx, rx, Some((fill, completion)))) => {
                let budget = config.tx_queue_size().get();
                // SAFETY: a plain system call on an open descriptor. Older kernels do not know the option.
                unsafe {
                    let (value, len) = ((&raw const budget).cast(), size_of::<u32>() as libc::socklen_t);
                    libc::setsockopt(tx.fd().as_raw_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, value, len);
                }
                return Ok((umem, descriptors, (tx, rx, fill, completion)));
            }
            Ok(_) => {}
            Err(error) => last = error.into(),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("{interface}: {last}").into())
}

fn attach(interface: &str, mode: AttachMode) -> Result<aya::Ebpf, Failure> {
    let mut ebpf = aya::Ebpf::load(&OBJECT.0)?;
    let program: &mut Xdp = ebpf.program_mut("uroce").ok_or("the object has no program")?.try_into()?;
    program.load()?;
    let mode = match mode {
        AttachMode::Native => XdpMode::Driver,
        AttachMode::Skb => XdpMode::Skb,
    };
    program.attach(interface, mode).map_err(|e| format!("{interface}: attaching a program: {e}"))?;
    Ok(ebpf)
}

/// A frame of `bytes` from `side` to the other: headers, and zeros.
fn frame(side: Side, bytes: usize) -> Result<Vec<u8>, Failure> {
    let (from, to) = match side {
        Side::Sender => (Rig::end(Side::Sender), Rig::end(Side::Receiver)),
        Side::Receiver => (Rig::end(Side::Receiver), Rig::end(Side::Sender)),
    };
    let mut frame = Vec::with_capacity(bytes);
    for mac in [to.mac, from.mac] {
        for byte in mac.split(':') {
            frame.push(u8::from_str_radix(byte, 16)?);
        }
    }
    frame.extend([0x08, 0x00]);
    frame.extend([0x45, 0]);
    frame.extend(((bytes - IP_START) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(from.ipv4.octets());
    frame.extend(to.ipv4.octets());
    frame.extend([0xc0, 0x00]);
    frame.extend(uroce::wire::ROCE_PORT.to_be_bytes());
    frame.extend(((bytes - IP_START - 20) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(bytes, 0);
    Ok(frame)
}

//! What the kernel's own protocols reach on the same cable: UDP a datagram a packet and with segmentation offload, TCP.
//! Receivers spin, as the stack's do.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::figure::Counts;
use crate::rig::{LOST_AFTER, Meeting, Rig, Side, Spin};

const PORT: u16 = 7001;

/// Datagrams a system call, as the stack's engine has it.
const BATCH: usize = 64;

/// Datagrams that the sender may be ahead: as with the bare pipe, and no more than the receive buffer holds.
const WINDOW: u64 = 1024;

/// The largest datagram, and a super-datagram's payload at the most.
const DATAGRAM_BYTES: usize = 65535;

/// Segments of a super-datagram at the most: UDP_MAX_SEGMENTS is 128 since 6.9 and 64 before, and all must fit into 64 KiB.
const GSO_SEGMENTS: usize = 60;

/// Bytes of a TCP write and read: iperf's default.
const TCP_BYTES: usize = 128 << 10;

/// Enough for a receiver that is descheduled for some milliseconds.
const RECEIVE_BUFFER_BYTES: libc::c_int = 8 << 20;

/// What a segment has beside its payload, as a packet of a WRITE.
const HEADER_BYTES: usize = 12;
const CRC_BYTES: usize = 4;

/// What is copied from and to, at either end: as much as the stack's figures use.
const MEMORY_BYTES: usize = 2 << 20;

/// Super-datagrams a system call where they are read: they stay in the cache.
const GRO_BATCH: usize = 4;

const ROUND_TRIP_BYTES: usize = 64;

fn address(side: Side) -> SocketAddr {
    (Rig::end(side).ipv4, PORT).into()
}

/// Datagrams of `payload` bytes one way; with `segmented`, super-datagrams that are cut into such.
pub fn udp_bulk(rig: &Rig, payload: usize, segmented: bool, seconds: f64) -> Result<Counts, Failure> {
    let sender = |meeting: &Meeting| {
        let socket = udp(Side::Sender)?;
        let number = if segmented { 1 } else { BATCH };
        let bytes = if segmented { payload * GSO_SEGMENTS } else { payload };
        if segmented {
            set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, payload as libc::c_int)?;
        }
        let mut messages = Messages::new(number, bytes);
        meeting.begin()?;
        let mut window = meeting.window(WINDOW);
        while !meeting.is_stopped() {
            window.wait((number * bytes / payload) as u64);
            messages.send(socket.as_raw_fd())?;
        }
        meeting.finish();
        Ok(None)
    };
    let receiver = |meeting: &Meeting| {
        let socket = udp_receiver(segmented)?;
        let mut messages = Messages::new(BATCH, if segmented { DATAGRAM_BYTES } else { payload });
        meeting.begin()?;
        let (mut meter, mut spin) = (meeting.meter(), Spin::default());
        while meter.is_running() {
            let bytes = messages.receive(socket.as_raw_fd())?.map(|datagram| datagram.len() as u64).sum();
            spin.note(bytes > 0, socket.as_raw_fd());
            meter.count(bytes / payload as u64, bytes);
        }
        Ok(Some(meter.finish()))
    };
    rig.run(seconds, sender, receiver)
}

/// The same with segmentation offload, and what any RDMA stack must do besides: the sender copies the payload of each
/// datagram from its memory and puts a CRC-32 behind it, the receiver checks that and copies the payload to its memory.
pub fn udp_copy_crc(rig: &Rig, payload: usize, seconds: f64) -> Result<Counts, Failure> {
    let datagram = HEADER_BYTES + payload + CRC_BYTES;
    let segments = DATAGRAM_BYTES / datagram;
    let sender = |meeting: &Meeting| {
        let socket = udp(Side::Sender)?;
        set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, datagram as libc::c_int)?;
        let memory = vec![0x5a; MEMORY_BYTES];
        let mut source = memory.chunks_exact(payload).cycle();
        let mut messages = Messages::new(1, segments * datagram);
        meeting.begin()?;
        let mut window = meeting.window(WINDOW);
        while !meeting.is_stopped() {
            for (out, payload) in messages.buffers[0].chunks_exact_mut(datagram).zip(&mut source) {
                let (covered, end) = out.split_at_mut(datagram - CRC_BYTES);
                covered[HEADER_BYTES..].copy_from_slice(payload);
                end.copy_from_slice(&crc32fast::hash(covered).to_le_bytes());
            }
            window.wait(segments as u64);
            messages.send(socket.as_raw_fd())?;
        }
        meeting.finish();
        Ok(None)
    };
    let receiver = |meeting: &Meeting| {
        let socket = udp_receiver(true)?;
        let mut memory = vec![0; MEMORY_BYTES];
        let mut at = 0;
        let mut messages = Messages::new(GRO_BATCH, DATAGRAM_BYTES);
        meeting.begin()?;
        let (mut meter, mut spin) = (meeting.meter(), Spin::default());
        while meter.is_running() {
            let (mut packets, mut wrong) = (0, 0);
            for bytes in messages.receive(socket.as_raw_fd())?.flat_map(|run| run.chunks_exact(datagram)) {
                let (covered, stored) = bytes.split_at(datagram - CRC_BYTES);
                wrong += u64::from(crc32fast::hash(covered).to_le_bytes() != stored);
                memory[at..at + payload].copy_from_slice(&covered[HEADER_BYTES..]);
                at = if at + 2 * payload > MEMORY_BYTES { 0 } else { at + payload };
                packets += 1;
            }
            spin.note(packets > 0, socket.as_raw_fd());
            if wrong > 0 {
                return Err(format!("{wrong} wrong checksums").into());
            }
            meter.count(packets, packets * payload as u64);
        }
        Ok(Some(meter.finish()))
    };
    rig.run(seconds, sender, receiver)
}

/// Round trips of small datagrams.
pub fn udp_round_trips(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    let side = |side| {
        move |meeting: &Meeting| {
            let socket = udp(side)?;
            socket.set_nonblocking(true)?;
            let receive = |buffer: &mut [u8]| socket.recv(buffer);
            bounce(meeting, side, receive, |bytes| socket.send(bytes))
        }
    };
    rig.run(seconds, side(Side::Sender), side(Side::Receiver))
}

/// A TCP connection, one way.
pub fn tcp_bulk(rig: &Rig, seconds: f64) -> Result<Counts, Failure> {
    let sender = |meeting: &Meeting| {
        let mut stream = tcp(Side::Sender)?;
        let buffer = vec![0x5a; TCP_BYTES];
        meeting.begin()?;
        while !meeting.is_stopped() {
            stream.write_all(&buffer)?;
        }
        Ok(None)
    };
    let receiver = |meeting: &Meeting| {
        let mut stream = tcp(Side::Receiver)?;
        stream.set_nonblocking(true)?;
        let mut buffer = vec![0; TCP_BYTES];
        meeting.begin()?;
        let mut meter = meeting.meter();
        let mut received = |stream: &mut TcpStream| loop {
            match stream.read(&mut buffer) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        };
        let fd = stream.as_raw_fd();
        let mut spin = Spin::default();
        while meter.is_running() {
            let bytes = received(&mut stream)? as u64;
            spin.note(bytes > 0, fd);
            meter.count(bytes.div_ceil(TCP_BYTES as u64), bytes);
        }
        let counts = meter.finish();
        // The sender may be in the middle of a write.
        while !meeting.is_over() && received(&mut stream).is_ok() {}
        Ok(Some(counts))
    };
    rig.run(seconds, sender, receiver)
}

/// Round trips over a TCP connection; if a side `sleeps`, it waits for a message in the kernel instead of asking for it again and
/// again.
pub fn tcp_round_trips(rig: &Rig, sleeps: bool, seconds: f64) -> Result<Counts, Failure> {
    let side = |side| {
        move |meeting: &Meeting| {
            let stream = tcp(side)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(!sleeps)?;
            stream.set_read_timeout(sleeps.then_some(LOST_AFTER))?;
            bounce(meeting, side, |buffer| (&stream).read(buffer), |bytes| (&stream).write(bytes))
        }
    };
    rig.run(seconds, side(Side::Sender), side(Side::Receiver))
}

/// Sends and awaits small messages in turn. Both functions return at once, or soon.
fn bounce(
    meeting: &Meeting,
    side: Side,
    mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    mut send: impl FnMut(&[u8]) -> io::Result<usize>,
) -> Result<Option<Counts>, Failure> {
    let mut buffer = [0; ROUND_TRIP_BYTES];
    let mut arrived = |buffer: &mut [u8]| match receive(buffer) {
        Ok(0) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
        Ok(_) => Ok(true),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => Ok(false),
        Err(e) => Err(e),
    };
    meeting.begin()?;
    if side == Side::Receiver {
        while !meeting.is_over() {
            if arrived(&mut buffer).is_ok_and(|arrived| arrived) {
                send(&buffer)?;
            }
        }
        return Ok(None);
    }
    let mut meter = meeting.meter();
    let mut turn = 0_u8;
    while meter.is_running() {
        let start = Instant::now();
        turn = turn.wrapping_add(1);
        buffer[0] = turn;
        send(&buffer)?;
        // A lost datagram would stop the game; one that only came late must not count twice.
        loop {
            let here = arrived(&mut buffer)? && buffer[0] == turn;
            if here || meeting.is_stopped() || start.elapsed() > LOST_AFTER {
                break;
            }
        }
        meter.round_trip(start.elapsed(), ROUND_TRIP_BYTES as u64);
    }
    meeting.finish();
    Ok(Some(meter.finish()))
}

/// A socket connected to the other side.
fn udp(side: Side) -> Result<UdpSocket, Failure> {
    let other = if side == Side::Sender { Side::Receiver } else { Side::Sender };
    let socket = UdpSocket::bind(address(side))?;
    socket.connect(address(other))?;
    Ok(socket)
}

/// The receiver's, which takes super-datagrams with `segmented`.
fn udp_receiver(segmented: bool) -> Result<UdpSocket, Failure> {
    let socket = udp(Side::Receiver)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)?;
    if segmented {
        set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    }
    Ok(socket)
}

/// A connection to the other side.
fn tcp(side: Side) -> Result<TcpStream, Failure> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let end = Instant::now() + PATIENCE;
    match side {
        Side::Receiver => {
            let listener = TcpListener::bind(address(side))?;
            listener.set_nonblocking(true)?;
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false)?;
                        return Ok(stream);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < end => std::thread::yield_now(),
                    Err(e) => return Err(format!("waiting for the connection: {e}").into()),
                }
            }
        }
        Side::Sender => loop {
            match TcpStream::connect_timeout(&address(Side::Receiver), PATIENCE) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return Ok(done?),
            }
        },
    }
}

fn set(socket: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> Result<(), Failure> {
    // SAFETY: the value lives through the call, and its length is right.
    let done = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(format!("socket option {option}: {}", io::Error::last_os_error()).into()) }
}

/// Buffers for many datagrams a system call.
struct Messages {
    buffers: Vec<Vec<u8>>,
    _vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

impl Messages {
    fn new(number: usize, bytes: usize) -> Messages {
        let mut buffers = vec![vec![0x5a; bytes]; number];
        let mut vectors: Vec<libc::iovec> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: plain memory, for which zeros are a value.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Messages { buffers, _vectors: vectors, headers }
    }

    fn send(&mut self, socket: RawFd) -> io::Result<()> {
        // SAFETY: the headers point at buffers that `self` owns and that do not move.
        let sent = unsafe { libc::sendmmsg(socket, self.headers.as_mut_ptr(), self.headers.len() as u32, 0) };
        if sent >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            // The kernel's memory for it is full, or the other side has closed its socket.
            e if matches!(e.raw_os_error(), Some(libc::ENOBUFS)) || e.kind() == ErrorKind::ConnectionRefused => Ok(()),
            e => Err(e),
        }
    }

    /// Takes what is there: datagrams.
    fn receive(&mut self, socket: RawFd) -> io::Result<impl Iterator<Item = &[u8]>> {
        let (headers, number) = (self.headers.as_mut_ptr(), self.headers.len() as u32);
        // SAFETY: as for sending.
        let received =
            unsafe { libc::recvmmsg(socket, headers, number, libc::MSG_DONTWAIT as _, std::ptr::null_mut()) };
        let received = match usize::try_from(received).map_err(|_| io::Error::last_os_error()) {
            Ok(received) => received,
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
                ) =>
            {
                0
            }
            Err(e) => return Err(e),
        };
        let arrived = self.buffers.iter().zip(&self.headers).take(received);
        Ok(arrived.map(|(buffer, header)| &buffer[..header.msg_len as usize]))
    }
}

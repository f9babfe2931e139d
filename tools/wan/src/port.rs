use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::clock;
use crate::messages::{self, BATCH, set};

/// Bytes in front of each received frame, for the VLAN tag that the kernel took out of it.
const HEADROOM: usize = 4;

/// Both addresses, after which a VLAN tag stands.
const ADDRESS_BYTES: usize = 12;

/// What the kernel may keep of frames that nobody has taken yet: those of 100 ms at 1 Gb/s, which the kernel counts at
/// up to twice their size (bookkeeping and whole pages).
const RECEIVE_BUFFER_BYTES: i32 = 32 << 20;
const SEND_BUFFER_BYTES: i32 = 8 << 20;

/// Frames on an interface, as seen from the middle of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Taken from the interface.
    pub received: u64,
    /// Lost because this program did not take them in time.
    pub missed: u64,
    /// Longer than the interface's MTU allows, and dropped.
    pub too_long: u64,
    /// Given to the interface.
    pub sent: u64,
    /// Refused by the interface: it was down, or its other end's ring full.
    pub refused: u64,
}

/// A frame in a buffer of its own.
pub(crate) struct Frame {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Frame {
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Puts a VLAN tag back where it was.
    fn insert_tag(&mut self, (ether_type, tag): (u16, u16)) {
        if self.start < HEADROOM || self.end - self.start < ADDRESS_BYTES {
            return;
        }
        self.buffer.copy_within(self.start..self.start + ADDRESS_BYTES, self.start - HEADROOM);
        self.start -= HEADROOM;
        let at = self.start + ADDRESS_BYTES;
        self.buffer[at..at + 2].copy_from_slice(&ether_type.to_be_bytes());
        self.buffer[at + 2..at + 4].copy_from_slice(&tag.to_be_bytes());
    }
}

/// Buffers of one size, used again and again.
pub(crate) struct Pool {
    bytes: usize,
    free: Vec<Box<[u8]>>,
}

impl Pool {
    /// For frames of up to `frame_bytes`, tag included.
    pub fn new(frame_bytes: usize) -> Pool {
        Pool { bytes: HEADROOM + frame_bytes, free: Vec::new() }
    }

    fn take(&mut self) -> Box<[u8]> {
        self.free.pop().unwrap_or_else(|| vec![0; self.bytes].into_boxed_slice())
    }

    pub fn give_back(&mut self, frame: Frame) {
        self.free.push(frame.buffer);
    }
}

/// A packet socket on one interface.
pub(crate) struct Port {
    socket: OwnedFd,
    interface: String,
    /// Buffers to receive into.
    buffers: VecDeque<Box<[u8]>>,
    counts: PortCounts,
}

impl Port {
    /// Opens it, in the network namespace of the calling thread.
    pub fn open(interface: &str) -> io::Result<Port> {
        // Without a protocol it hears nothing yet, not even other interfaces.
        // SAFETY: no pointers; the descriptor is new, and ours alone.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let fd = socket.as_fd();
        set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)?;
        set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)?;
        set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1_i32)?;
        set(fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1_i32)?;
        // What it sends itself would come back.
        set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1_i32)?;
        // Nothing is to be queued behind what has its time already.
        set(fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1_i32)?;
        let name = CString::new(interface).map_err(|_| ErrorKind::InvalidInput)?;
        // SAFETY: the name ends with a zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: plain memory, for which zeros are a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address lives through the call, and its length is right.
        let bound = unsafe {
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len)
        };
        if bound < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Port { socket, interface: interface.to_owned(), buffers: VecDeque::new(), counts: PortCounts::default() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// What it has counted, as of the last [`ask`](Port::ask) for the frames missed.
    pub fn counts(&self) -> PortCounts {
        self.counts
    }

    /// Asks the kernel how many frames it had to drop.
    pub fn ask(&mut self) {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the structure and its length live through the call.
        let read = unsafe {
            let to = (&raw mut statistics).cast();
            libc::getsockopt(self.socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut len)
        };
        if read == 0 {
            // Reading sets the kernel's counter to zero.
            self.counts.missed += u64::from(statistics.tp_drops);
        }
    }

    /// Takes up to [`BATCH`] frames that are there, each with the time of its arrival; returns how many.
    ///
    /// # Errors
    /// What the system says, other than that nothing is there or the interface is down.
    pub fn receive(&mut self, pool: &mut Pool, mut each: impl FnMut(Frame, u64)) -> io::Result<usize> {
        while self.buffers.len() < BATCH {
            self.buffers.push_back(pool.take());
        }
        let mut messages = [None; BATCH];
        let buffers = self.buffers.iter_mut().map(|buffer| &mut buffer[HEADROOM..]);
        let received = match messages::receive(self.socket.as_fd(), buffers, |at, message| messages[at] = Some(message))
        {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock || is_passing(&error) => return Ok(0),
            Err(error) => return Err(error),
        };
        for message in messages.into_iter().take(received).flatten() {
            let Some(buffer) = self.buffers.pop_front() else { break };
            let mut frame = Frame { buffer, start: HEADROOM, end: HEADROOM + message.bytes };
            self.counts.received += 1;
            if message.is_cut {
                self.counts.too_long += 1;
                pool.give_back(frame);
                continue;
            }
            if let Some(tag) = message.vlan {
                frame.insert_tag(tag);
            }
            each(frame, message.stamp_ns.unwrap_or_else(clock::now_ns));
        }
        Ok(received)
    }

    /// Sends frames in order; `done` takes each back, with whether it was sent.
    ///
    /// # Errors
    /// What the system says, other than that the interface does not take a frame.
    pub fn send<T>(
        &mut self,
        queue: &mut VecDeque<T>,
        frame_of: impl Fn(&T) -> &Frame,
        mut done: impl FnMut(T, bool),
    ) -> io::Result<()> {
        while !queue.is_empty() {
            let batch = queue.iter().take(BATCH).map(|item| frame_of(item).bytes());
            let (number, is_sent) = match messages::send(self.socket.as_fd(), batch) {
                Ok(number) => (number, true),
                Err(error) if is_refusal(&error) => (1, false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.counts.sent += if is_sent { number as u64 } else { 0 };
            self.counts.refused += u64::from(!is_sent);
            queue.drain(..number).for_each(|item| done(item, is_sent));
        }
        Ok(())
    }
}

/// Whether it says that the interface does not take this frame, and may take others.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EMSGSIZE))
        || error.kind() == ErrorKind::WouldBlock
        || is_passing(error)
}

/// Whether it says that the interface is down, or was: it may come back.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_back_behind_the_addresses() {
        let mut pool = Pool::new(64);
        let mut buffer = pool.take();
        buffer[HEADROOM..].iter_mut().zip(1..).for_each(|(byte, value)| *byte = value);
        let mut frame = Frame { buffer, start: HEADROOM, end: HEADROOM + 20 };
        frame.insert_tag((0x8100, 0x2005));
        let expected: Vec<u8> = (1..=12).chain([0x81, 0x00, 0x20, 0x05]).chain(13..=20).collect();
        assert_eq!(frame.bytes(), expected);
        pool.give_back(frame);
        assert_eq!(pool.free.len(), 1);
    }

    /// The kernel takes tags out of frames before a socket sees them: they are back when it did, and frames without one
    /// are as they were.
    #[test]
    fn frames_come_out_as_they_went_in() {
        let namespace = rxe_rig::Netns::create("port").unwrap();
        namespace.ip(&["link", "add", "left", "type", "veth", "peer", "name", "right"]).unwrap();
        ["left", "right"].iter().for_each(|end| drop(namespace.ip(&["link", "set", end, "up"]).unwrap()));
        let (mut left, mut right) = namespace.run(|| (Port::open("left").unwrap(), Port::open("right").unwrap()));
        let mut pool = Pool::new(1518);
        let frame = |pool: &mut Pool, tag: &[u8], bytes: usize| {
            let mut frame = Frame { buffer: pool.take(), start: 0, end: bytes };
            let head = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], tag, &[0x88, 0xb5]].concat();
            frame.bytes_mut()[..head.len()].copy_from_slice(&head);
            frame.bytes_mut()[head.len()..].iter_mut().zip(0..).for_each(|(byte, value): (_, u16)| *byte = value as u8);
            frame
        };
        let tags: [&[u8]; 3] = [&[], &[0x81, 0x00, 0x20, 0x05], &[0x88, 0xa8, 0x00, 0x07]];
        let mut queue: VecDeque<Frame> = tags
            .iter()
            .flat_map(|tag| [60, 1514].map(|bytes| (tag, bytes)))
            .map(|(tag, bytes)| frame(&mut pool, tag, bytes))
            .collect();
        let expected: Vec<Vec<u8>> = queue.iter().map(|frame| frame.bytes().to_vec()).collect();
        let before_ns = clock::now_ns();
        left.send(&mut queue, |frame| frame, |_, is_sent| assert!(is_sent)).unwrap();
        let mut received = Vec::new();
        // The kernel's own frames (IPv6) come, too.
        right
            .receive(&mut pool, |frame, at_ns| {
                if frame.bytes()[..12] == expected[0][..12] {
                    assert!((before_ns..=clock::now_ns()).contains(&at_ns));
                    received.push(frame.bytes().to_vec());
                }
            })
            .unwrap();
        assert!(received == expected, "{received:02x?}\nis not\n{expected:02x?}");
        assert_eq!((left.counts().sent, right.counts().too_long), (6, 0));
        // What it sent itself does not come back.
        left.receive(&mut pool, |frame, _| assert_ne!(frame.bytes()[..12], expected[0][..12])).unwrap();
    }
}

//! Many messages a system call, each with the kernel's time stamp.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::clock;

/// Messages a system call: enough that its cost is shared, few enough that the first does not wait for long.
pub(crate) const BATCH: usize = 32;

/// Room for a time stamp (32 bytes) and a packet socket's auxiliary data (40), with their headers.
const CONTROL_BYTES: usize = 128;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// What is known of a received message beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// How many bytes of the buffer it fills.
    pub bytes: usize,
    /// Whether it was longer than the buffer.
    pub is_cut: bool,
    /// When the kernel got it, on the clock of [`clock::now_ns`]; `None` unless the socket was told to say.
    pub stamp_ns: Option<u64>,
    /// The VLAN tag that the kernel took out of the frame: its EtherType and its tag.
    pub vlan: Option<(u16, u16)>,
    /// The byte with the ECN bits, for IPv4 sockets that were told to say.
    pub traffic_class: Option<u8>,
}

/// Receives up to [`BATCH`] messages that are there, one into each buffer, and tells of each; returns how many.
pub(crate) fn receive<'a>(
    socket: BorrowedFd<'_>,
    buffers: impl IntoIterator<Item = &'a mut [u8]>,
    mut each: impl FnMut(usize, Received),
) -> io::Result<usize> {
    let mut controls = [Control([0; CONTROL_BYTES]); BATCH];
    // SAFETY: plain memory, for which zeros are a value.
    let (mut vectors, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for (buffer, (vector, (header, control))) in
        buffers.into_iter().zip(vectors.iter_mut().zip(headers.iter_mut().zip(&mut controls)))
    {
        *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        count += 1;
    }
    // SAFETY: the headers point at buffers and controls that live through the call, each in one header alone.
    let received = unsafe {
        let flags = libc::MSG_DONTWAIT as _;
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags, std::ptr::null_mut())
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (index, header) in headers[..received].iter().enumerate() {
        let mut message = Received {
            bytes: header.msg_len as usize,
            is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            stamp_ns: None,
            vlan: None,
            traffic_class: None,
        };
        // SAFETY: the kernel has filled the header and its control buffer.
        unsafe { read_control(&header.msg_hdr, &mut message) };
        each(index, message);
    }
    Ok(received)
}

/// Reads what came along with a message.
///
/// # Safety
/// `header` must be as recvmmsg(2) left it, and its control buffer with it.
unsafe fn read_control(header: &libc::msghdr, message: &mut Received) {
    // SAFETY: the caller's header; the kernel writes whole items, and each is read unaligned and as what its type says.
    unsafe {
        let mut item = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = item.as_ref() {
            let data = libc::CMSG_DATA(item);
            match (head.cmsg_level, head.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    message.stamp_ns = Some(clock::to_ns(&data.cast::<libc::timespec>().read_unaligned()));
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    let auxiliary = data.cast::<libc::tpacket_auxdata>().read_unaligned();
                    if auxiliary.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                        let has_type = auxiliary.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                        let ether_type = if has_type { auxiliary.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
                        message.vlan = Some((ether_type, auxiliary.tp_vlan_tci));
                    }
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => message.traffic_class = Some(data.read()),
                _ => {}
            }
            item = libc::CMSG_NXTHDR(header, item);
        }
    }
}

/// Sends up to [`BATCH`] messages, in order; returns how many the kernel took. An error is about the first.
pub(crate) fn send<'a>(socket: BorrowedFd<'_>, messages: impl IntoIterator<Item = &'a [u8]>) -> io::Result<usize> {
    // SAFETY: plain memory, for which zeros are a value.
    let (mut vectors, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for (message, (vector, header)) in messages.into_iter().zip(vectors.iter_mut().zip(&mut headers)) {
        *vector = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
    }
    // SAFETY: the headers point at messages that live through the call, which only reads them.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sets a socket option.
pub(crate) fn set<T: Copy>(socket: BorrowedFd<'_>, level: i32, option: i32, value: T) -> io::Result<()> {
    // SAFETY: the value lives through the call, and its length is right; the options used here take plain values.
    let done = unsafe {
        let len = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn messages_come_whole_and_with_the_kernels_time() {
        let [from, to] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        set(to.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1_i32).unwrap();
        set(to.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTOS, 1_i32).unwrap();
        set(from.as_fd(), libc::IPPROTO_IP, libc::IP_TOS, 2_i32).unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        let before = clock::now_ns();
        let texts: [&[u8]; 3] = [b"one", b"", b"three and more"];
        assert_eq!(send(from.as_fd(), texts).unwrap(), 3);
        let mut buffers = vec![[0; 8]; BATCH];
        let mut seen = Vec::new();
        let count = receive(to.as_fd(), buffers.iter_mut().map(|b| &mut b[..]), |at, message| seen.push((at, message)));
        let after = clock::now_ns();
        assert_eq!(count.unwrap(), 3);
        assert_eq!(
            seen.iter().map(|(at, m)| (*at, m.bytes, m.is_cut)).collect::<Vec<_>>(),
            [(0, 3, false), (1, 0, false), (2, 8, true)]
        );
        for (_, message) in &seen {
            let stamp = message.stamp_ns.unwrap();
            // The kernel may need a moment before it stamps at arrival; it stamps at receipt until then.
            assert!((before..=after).contains(&stamp), "{before} {stamp} {after}");
            assert_eq!((message.traffic_class, message.vlan), (Some(2), None));
        }
        assert_eq!((&buffers[0][..3], &buffers[2][..]), (&b"one"[..], &b"three an"[..]));
        let nothing = receive(to.as_fd(), buffers.iter_mut().map(|b| &mut b[..]), |_, _| {}).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}

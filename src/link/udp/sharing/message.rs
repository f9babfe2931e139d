//! What a program and the arbiter say to each other: one message each way, over a Unix socket that keeps messages apart.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::link::Requests;

/// Most descriptors with a message (SCM_MAX_FD is 253).
const DESCRIPTORS_MAX: usize = 64;

/// Length of each message in bytes.
const BYTES: usize = 32;

/// The error of an address on which another arbiter made the group of sockets, and is gone.
pub(super) const ORPHANED: i32 = libc::EBUSY;

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A socket of its slot on an address, whose interface has the index `scope`. The answer has three descriptors: the
    /// socket, the parcel that keeps its group, and the page of urgency. `runs`: the program takes runs of packets as one datagram.
    Join { address: IpAddr, scope: u32, runs: bool },
    /// Requests for connections come to its slot.
    Take(Requests),
    /// They do not any more.
    Leave(Requests),
}

/// What the arbiter answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// 0, or the number of an error.
    pub error: i32,
    /// The program's slot.
    pub slot: u8,
}

impl Request {
    fn encode(&self) -> [u8; BYTES] {
        let (kind, address, number) = match *self {
            Request::Join { address, scope, .. } => (0, Some(address), u64::from(scope)),
            Request::Take(Requests::Unclaimed) => (1, None, 0),
            Request::Leave(Requests::Unclaimed) => (2, None, 0),
            Request::Take(Requests::For { service_id, address }) => (3, address, service_id),
            Request::Leave(Requests::For { service_id, address }) => (4, address, service_id),
        };
        let mut bytes = [0; BYTES];
        bytes[0] = kind;
        bytes[1] = u8::from(address.is_some());
        bytes[2] = u8::from(matches!(self, Request::Join { runs: true, .. }));
        bytes[8..16].copy_from_slice(&number.to_be_bytes());
        if let Some(address) = address {
            let octets = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            bytes[16..32].copy_from_slice(&octets);
        }
        bytes
    }

    fn decode(bytes: &[u8; BYTES]) -> Option<Request> {
        let number = u64::from_be_bytes(*bytes[8..].first_chunk()?);
        let address = (bytes[1] != 0).then_some(IpAddr::from(Ipv6Addr::from(*bytes[16..].first_chunk::<16>()?)));
        let address = address.map(|address| address.to_canonical());
        let service = Requests::For { service_id: number, address };
        Some(match bytes[0] {
            0 => Request::Join { address: address?, scope: number.try_into().ok()?, runs: bytes[2] != 0 },
            1 => Request::Take(Requests::Unclaimed),
            2 => Request::Leave(Requests::Unclaimed),
            3 => Request::Take(service),
            4 => Request::Leave(service),
            _ => return None,
        })
    }

    pub fn send(&self, to: BorrowedFd<'_>) -> io::Result<()> {
        send(to, &self.encode(), &[])
    }

    /// The next request; `None` when its sender is gone, or says what nobody says.
    pub fn receive(from: BorrowedFd<'_>) -> Option<Request> {
        receive(from, &mut Vec::new()).ok().and_then(|bytes| Request::decode(&bytes))
    }
}

impl Answer {
    pub fn send(&self, to: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [0; BYTES];
        bytes[0] = self.slot;
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        send(to, &bytes, descriptors)
    }

    /// The next answer; `descriptors` gets those that come with it.
    pub fn receive(from: BorrowedFd<'_>, descriptors: &mut Vec<OwnedFd>) -> io::Result<Answer> {
        let bytes = receive(from, descriptors)?;
        Ok(Answer { slot: bytes[0], error: i32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) })
    }
}

/// Sends a message with up to 64 descriptors.
pub(super) fn send(to: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(from: BorrowedFd<'_>, descriptors: &mut Vec<OwnedFd>) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(got) = message {
            descriptors.extend(got);
        }
    }
    if received.bytes == BYTES { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let v4 = IpAddr::from([192, 0, 2, 1]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let service = |address| Requests::For { service_id: 0x0106_1d2b, address };
        for request in [
            Request::Join { address: v4, scope: 7, runs: false },
            Request::Join { address: v6, scope: u32::MAX, runs: true },
            Request::Take(Requests::Unclaimed),
            Request::Leave(Requests::Unclaimed),
            Request::Take(service(Some(v6))),
            Request::Take(service(None)),
            Request::Leave(service(Some(v4))),
        ] {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        assert_eq!(Request::decode(&[9; BYTES]), None);
    }
}

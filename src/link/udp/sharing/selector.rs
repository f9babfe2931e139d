//! Which slot a datagram is for: a filter of the kernel's classic kind, which needs no privilege to attach.
//!
//! `xdp/uroce.bpf.c` has the same rules for AF_XDP; `tests/slots.rs` gives both the same packets.

use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::SLOTS;
use crate::link::Requests;
use crate::wire::Qpn;

// Offsets from the UDP payload's start: BTH 12 bytes, DETH 8, a management datagram's header 24.
const DESTINATION_QPN_AT: u32 = 4;
const ATTRIBUTE_AT: u32 = 12 + 8 + 16;
const MESSAGE_AT: u32 = 12 + 8 + 24;
/// Of REQ and SIDR_REQ: the service.
const SERVICE_ID_AT: u32 = MESSAGE_AT + 8;
/// Of SIDR_REP: the request's id, which its receiver chose.
const REQUEST_ID_AT: u32 = MESSAGE_AT;
/// Of all others: the connection's id that their receiver chose.
const REMOTE_ID_AT: u32 = MESSAGE_AT + 4;

// Attributes of the connection manager's messages (IBTA 12.6, 12.11).
const REQ: u32 = 0x10;
const SIDR_REQ: u32 = 0x17;
const SIDR_REP: u32 = 0x18;

/// Upper bound on listeners in a filter: each takes five of 4096 instructions.
const LISTENERS_MAX: usize = 800;

// From linux/bpf_common.h, which the libc crate does not have for this target.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const RETURN_VALUE: u16 = 0x16;
const RETURN: u16 = 0x06;

/// Who gets the requests for connections of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    /// Service and slot.
    pub listeners: Vec<(u64, u8)>,
    /// The slot for requests that nobody listens for.
    pub unclaimed: u8,
}

impl Selector {
    /// The filter returns the number of a socket in its group. It returns 0 for a datagram that is too short.
    fn program(&self) -> Vec<libc::sock_filter> {
        let slot_mask = u32::from(SLOTS) - 1;
        let mut program = vec![
            step(LOAD_WORD, DESTINATION_QPN_AT),
            step(AND, 0x00ff_ffff),
            jump(Qpn::GSI.value(), 0, 3),
            step(LOAD_HALF, ATTRIBUTE_AT),
            jump(REQ, 11, 0),
            jump(SIDR_REQ, 10, 3),
            // A queue pair's number: 12 bits slot, 12 bits local.
            step(SHIFT_RIGHT, 12),
            step(AND, slot_mask),
            step(RETURN_VALUE, 0),
            // A message to a connection, by its id: 12 bits slot, 20 bits local.
            jump(SIDR_REP, 2, 0),
            step(LOAD_WORD, REMOTE_ID_AT),
            jump_always(1),
            step(LOAD_WORD, REQUEST_ID_AT),
            step(SHIFT_RIGHT, 20),
            step(AND, slot_mask),
            step(RETURN_VALUE, 0),
        ];
        for &(service, slot) in self.listeners.iter().take(LISTENERS_MAX) {
            program.extend([
                step(LOAD_WORD, SERVICE_ID_AT),
                jump((service >> 32) as u32, 0, 3),
                step(LOAD_WORD, SERVICE_ID_AT + 4),
                jump(service as u32, 0, 1),
                step(RETURN, slot.into()),
            ]);
        }
        program.push(step(RETURN, self.unclaimed.into()));
        program
    }

    /// Puts the filter in the place of the one that the socket's group has.
    pub fn attach(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        set_filter(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &self.program())
    }
}

/// Makes a socket drop all that arrives.
pub fn close(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_filter(socket, libc::SO_ATTACH_FILTER, &[step(RETURN, 0)])
}

/// Undoes [`close`].
pub(super) fn reopen(socket: BorrowedFd<'_>) -> io::Result<()> {
    let unused: libc::c_int = 0;
    set(socket, libc::SO_DETACH_FILTER, &unused)
}

/// What a program listens for at one address, as a filter asks for it.
pub(super) fn listens_at(requests: &Requests, address: IpAddr) -> Option<u64> {
    match requests {
        Requests::Unclaimed => None,
        Requests::For { service_id, address: at } => at.is_none_or(|at| at == address).then_some(*service_id),
    }
}

fn set_filter(socket: BorrowedFd<'_>, option: libc::c_int, program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel only reads the program.
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(socket, option, &filter)
}

fn set<T>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is of that size, and what it points to outlives the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const *value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Skips `then` instructions if the value is `k`, and `otherwise` if not.
fn jump(k: u32, then: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: JUMP_EQUAL, jt: then, jf: otherwise, k }
}

fn jump_always(k: u32) -> libc::sock_filter {
    step(JUMP, k)
}

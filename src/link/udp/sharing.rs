//! Several programs of one user on the addresses of an interface.
//!
//! One UDP port belongs to one socket, or to a group of them (SO_REUSEPORT). Here a group has a socket for each of 64
//! slots, and a filter in the kernel that picks the socket for each datagram ([`selector`]). A program leases a slot.
//! Its queue pairs' numbers and its connections' ids carry the slot, so packets find their program and no other
//! program sees them.
//!
//! A process of its own, the [`Arbiter`], makes the groups and gives out the slots. The first program starts it, and it
//! ends with the last. No packet goes through it. A socket that is closed would leave its place to the last one of the
//! group, so every program keeps all sockets of a group open. They lie in a message that nobody receives (the parcel),
//! which takes one descriptor. If the arbiter ends too early, all connections continue. New programs cannot share the
//! interface until the last of the old ones has ended.
//!
//! The kernel merges packets in a row from one sender to runs (GRO), if it finds a socket of the group that takes runs.
//! It does not ask the filter for that, and merges packets for several slots. So sockets take runs only while there is
//! one program.
//!
//! The arbiter also gives each program a page on which all say until when urgent messages of theirs are under way
//! ([`Urgency`](urgency::Urgency)): the flows of class bulk and scavenger of all give way.
//!
//! This holds between users: another user can neither join the group nor use the arbiter, and has an arbiter of its own
//! for other addresses of the interface. Programs of one user can send each other whatever they want, over any socket.

#[allow(clippy::disallowed_methods, reason = "a process of its own, in which there is no engine")]
mod arbiter;
#[allow(clippy::disallowed_methods, reason = "waits for a process that it started")]
mod lease;
mod message;
mod selector;
mod start;
mod urgency;

pub use arbiter::{Arbiter, ArbiterError};
pub(super) use lease::{Lease, LeaseError, is_ours};

pub(super) use selector::close as drop_all;

use rustix::net::SocketAddrUnix;

/// Slots of an interface, of which slot 0 is nobody's. What no program asked for goes there, and is dropped.
const SLOTS: u8 = 64;

/// The name of the arbiter that this user's programs share an interface by, which all processes of its network namespace
/// see. Other users have arbiters of their own, on other addresses of the interface. Other versions of the protocol have
/// other names.
fn name(interface: u32) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid();
    SocketAddrUnix::new_abstract_name(format!("uroce-udp-2-{user}-{interface}").as_bytes())
}

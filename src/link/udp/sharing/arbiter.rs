use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::message::{self, Answer, Request};
use super::selector::{self, Selector};
use super::urgency::Urgency;
use super::{SLOTS, name};
use crate::link::Requests;
use crate::link::netlink::Netlink;
use crate::link::udp::socket::{Socket, receive_runs};

/// How long the first program may take to come.
const FIRST_PROGRAM: Duration = Duration::from_secs(10);

/// How long requests still come to a program that does not take them any more. It remembers that it did, and programs
/// listen anew between connections.
const LEAVING: Duration = Duration::from_secs(1);

/// Gives the slots of an interface to programs of one user. It is a process of its own, on no packet's way.
pub struct Arbiter {
    listener: OwnedFd,
    groups: Vec<Group>,
    programs: Vec<Program>,
    taken: Vec<Taken>,
    /// What programs write there, the others read.
    urgency: OwnedFd,
    /// The slot that was given out last. A slot rests as long as others are free, so that packets to a dead program
    /// find nobody.
    last_slot: u8,
}

/// The sockets on port 4791 of one address, one for each slot.
struct Group {
    address: IpAddr,
    sockets: Vec<Socket>,
    /// A socket with an unread message, which has all of them.
    parcel: OwnedFd,
    selector: Selector,
}

/// A connection of a program, and the slot that it leases.
struct Program {
    connection: OwnedFd,
    slot: Option<u8>,
    /// Whether it takes runs of packets as one datagram.
    runs: bool,
}

struct Taken {
    requests: Requests,
    slot: u8,
    /// When nobody takes them any more; `None` while the program takes them.
    ends: Option<Instant>,
}

/// Why there is no arbiter.
#[derive(Debug, thiserror::Error)]
pub enum ArbiterError {
    /// The interface does not exist, or the kernel does not answer.
    #[error("{0}: no such interface")]
    NoInterface(String),
    /// The interface has an arbiter already.
    #[error("{0} has an arbiter already")]
    Exists(String),
    /// A call to the kernel failed.
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

impl Arbiter {
    /// The arbiter of an interface, in the calling thread's network namespace. From now on programs reach it.
    ///
    /// # Errors
    /// [`ArbiterError`] when the interface does not exist or has an arbiter, or a call fails.
    pub fn new(interface: &str) -> Result<Arbiter, ArbiterError> {
        let interfaces = Netlink::open().and_then(|mut netlink| netlink.interfaces())?;
        let index = interfaces.iter().find(|one| one.name == interface).map(|one| one.index);
        let index = index.ok_or_else(|| ArbiterError::NoInterface(interface.to_owned()))?;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(io::Error::from)?;
        let bound = name(index).and_then(|name| rustix::net::bind(&listener, &name));
        bound.map_err(|error| match error {
            rustix::io::Errno::ADDRINUSE => ArbiterError::Exists(interface.to_owned()),
            error => ArbiterError::Kernel(error.into()),
        })?;
        rustix::net::listen(&listener, i32::from(SLOTS)).map_err(io::Error::from)?;
        let urgency = Urgency::create()?;
        Ok(Arbiter { listener, groups: Vec::new(), programs: Vec::new(), taken: Vec::new(), urgency, last_slot: 0 })
    }

    /// Serves programs until the last one is gone, or none came.
    ///
    /// # Errors
    /// That of poll(2).
    pub fn serve(mut self) -> io::Result<()> {
        let mut until = Some(Instant::now() + FIRST_PROGRAM);
        loop {
            let mut descriptors = vec![PollFd::new(&self.listener, PollFlags::IN)];
            descriptors.extend(self.programs.iter().map(|program| PollFd::new(&program.connection, PollFlags::IN)));
            let next = until.into_iter().chain(self.taken.iter().filter_map(|taken| taken.ends)).min();
            let left = next.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match poll(&mut descriptors, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let is_ready: Vec<bool> = descriptors.iter().map(|one| !one.revents().is_empty()).collect();
            for at in (0..self.programs.len()).rev().filter(|at| is_ready[at + 1]) {
                self.serve_program(at);
            }
            if is_ready[0] {
                self.admit();
                until = None;
            }
            self.forget_ended(Instant::now());
            if self.programs.is_empty() && until.is_none_or(|until| until <= Instant::now()) {
                return Ok(());
            }
        }
    }

    /// Admits a program of this user. Others see that the connection ends.
    fn admit(&mut self) {
        let Ok(connection) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) else { return };
        let user = sockopt::socket_peercred(&connection).map(|peer| peer.uid);
        if user == Ok(rustix::process::geteuid()) {
            self.programs.push(Program { connection, slot: None, runs: false });
        }
    }

    fn serve_program(&mut self, at: usize) {
        let Some(request) = Request::receive(self.programs[at].connection.as_fd()) else {
            let gone = self.programs.swap_remove(at);
            return gone.slot.map_or((), |slot| self.free(slot));
        };
        let mut descriptors = Vec::new();
        let result = match request {
            Request::Join { address, scope, runs } => self.join(at, (address, scope), runs).map(|group| {
                let slot = usize::from(self.programs[at].slot.unwrap_or(0));
                let group = &self.groups[group];
                descriptors.extend([group.sockets[slot].as_fd(), group.parcel.as_fd(), self.urgency.as_fd()]);
            }),
            Request::Take(requests) => self.take(at, requests),
            Request::Leave(requests) => {
                self.leave(at, requests);
                Ok(())
            }
        };
        let error = result.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
        let answer = Answer { error, slot: self.programs[at].slot.unwrap_or(0) };
        // A program that does not hear it is gone, which the next turn sees.
        let _ = answer.send(self.programs[at].connection.as_fd(), &descriptors);
    }

    /// Opens the program's socket on an address. Returns the number of the group.
    fn join(&mut self, at: usize, (address, scope): (IpAddr, u32), runs: bool) -> io::Result<usize> {
        let slot = match self.programs[at].slot {
            Some(slot) => slot,
            None => self.free_slot().ok_or(io::Error::from_raw_os_error(libc::EUSERS))?,
        };
        let group = match self.groups.iter().position(|group| group.address == address) {
            Some(group) => group,
            None => {
                self.groups.push(Group::open(address, scope)?);
                self.attach_selectors()?;
                self.groups.len() - 1
            }
        };
        // A slot that was another's may hold datagrams for it.
        let socket = &self.groups[group].sockets[usize::from(slot)];
        while rustix::net::recv(socket, &mut [0; 1][..], rustix::net::RecvFlags::DONTWAIT).is_ok() {}
        selector::reopen(socket.as_fd())?;
        (self.programs[at].slot, self.programs[at].runs, self.last_slot) = (Some(slot), runs, slot);
        self.decide_on_runs();
        Ok(group)
    }

    /// Has the kernel deliver runs of packets to a program that takes them, if it is the only one.
    ///
    /// Among several none may: the kernel could merge packets for different programs to one run, and give that to one of
    /// them. It looks only for some socket of the group that takes runs, since it has not read the packets yet.
    fn decide_on_runs(&self) {
        let leases: Vec<(u8, bool)> = self.programs.iter().filter_map(|one| Some((one.slot?, one.runs))).collect();
        for group in &self.groups {
            for &(slot, runs) in &leases {
                // A kernel that knows no runs delivers none.
                let _ = receive_runs(group.sockets[usize::from(slot)].as_fd(), runs && leases.len() == 1);
            }
        }
    }

    /// The slot that was in use longest ago.
    fn free_slot(&self) -> Option<u8> {
        let used = |slot: &u8| self.programs.iter().any(|program| program.slot == Some(*slot));
        let all = 1..SLOTS;
        all.clone().cycle().skip(self.last_slot.into()).take(all.len()).find(|slot| !used(slot))
    }

    /// A program is gone: nothing comes to its slot any more.
    fn free(&mut self, slot: u8) {
        self.taken.retain(|taken| taken.slot != slot);
        let _ = self.attach_selectors();
        for group in &self.groups {
            let socket = group.sockets[usize::from(slot)].as_fd();
            // If the kernel refuses, the socket's buffer fills up.
            let _ = selector::close(socket);
            let _ = receive_runs(socket, false);
        }
        self.decide_on_runs();
    }

    fn take(&mut self, at: usize, requests: Requests) -> io::Result<()> {
        let slot = self.programs[at].slot.ok_or(io::ErrorKind::InvalidInput)?;
        // Each program may take those that nobody else does.
        let is_shared = requests == Requests::Unclaimed;
        let collides = |taken: &&Taken| taken.requests.overlaps(&requests) && taken.slot != slot && !is_shared;
        if self.taken.iter().filter(collides).any(|taken| taken.ends.is_none()) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        self.taken.retain(|taken| !collides(&taken) && (taken.requests, taken.slot) != (requests, slot));
        self.taken.push(Taken { requests, slot, ends: None });
        self.attach_selectors()
    }

    fn leave(&mut self, at: usize, requests: Requests) {
        let slot = self.programs[at].slot;
        let ends = Some(Instant::now() + LEAVING);
        let mut its = self.taken.iter_mut().filter(|taken| (taken.requests, Some(taken.slot)) == (requests, slot));
        its.by_ref().for_each(|taken| taken.ends = ends);
    }

    fn forget_ended(&mut self, now: Instant) {
        let before = self.taken.len();
        self.taken.retain(|taken| taken.ends.is_none_or(|ends| now < ends));
        if self.taken.len() < before {
            let _ = self.attach_selectors();
        }
    }

    /// Tells the kernel who takes which requests, where that has changed.
    fn attach_selectors(&mut self) -> io::Result<()> {
        for group in &mut self.groups {
            let listeners = self.taken.iter();
            let listeners = listeners
                .filter_map(|taken| Some((selector::listens_at(&taken.requests, group.address)?, taken.slot)))
                .collect();
            let unclaimed =
                self.taken.iter().find(|taken| taken.requests == Requests::Unclaimed && taken.ends.is_none());
            let selector = Selector { listeners, unclaimed: unclaimed.map_or(0, |taken| taken.slot) };
            if selector != group.selector {
                selector.attach(group.sockets[0].as_fd())?;
                group.selector = selector;
            }
        }
        Ok(())
    }
}

impl Group {
    fn open(address: IpAddr, scope: u32) -> io::Result<Group> {
        // Fails if anybody has the port, also a group that another arbiter of this user made. Only such a group can be
        // joined; the socket is the last of it, and leaves it as it was.
        Socket::bind(address, scope).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse if Socket::bind_shared(address, scope).is_ok() => {
                io::Error::from_raw_os_error(message::ORPHANED)
            }
            _ => error,
        })?;
        let sockets: Vec<Socket> =
            (0..SLOTS).map(|_| Socket::bind_shared(address, scope)).collect::<io::Result<_>>()?;
        for socket in &sockets {
            selector::close(socket.as_fd())?;
        }
        let selector = Selector::default();
        selector.attach(sockets[0].as_fd())?;
        let (parcel, sender) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        message::send(sender.as_fd(), &[0], &descriptors)?;
        Ok(Group { address, sockets, parcel, selector })
    }
}

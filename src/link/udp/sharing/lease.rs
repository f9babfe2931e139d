use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::message::{Answer, ORPHANED, Request};
use super::start::{Life, Started, start};
use super::urgency::Urgency;
use crate::link::Requests;

/// How long the arbiter may take to be there, and to answer: an emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long sockets may stay whose arbiter is gone: its last program is just ending.
const ENDING: Duration = Duration::from_secs(1);

/// Pause before what is not there yet is tried again; an arbiter that has just been started, or the end of another.
const PAUSE: Duration = Duration::from_millis(1);

/// A slot of this program, and the sockets of it. They stay for the program and all others as long as it lives.
#[derive(Debug)]
pub(in crate::link::udp) struct Lease {
    slot: u8,
    /// They keep the groups of sockets.
    _parcels: Vec<OwnedFd>,
    /// What all programs know of urgent messages; `None` where the kernel maps no page.
    urgency: Option<Urgency>,
    /// The arbiter frees the slot when this is closed, after the sockets: the next arbiter needs their port.
    arbiter: OwnedFd,
}

/// A socket of the slot on one address.
#[derive(Debug)]
pub(in crate::link::udp) struct Joined {
    pub socket: OwnedFd,
    pub address: IpAddr,
    pub scope: u32,
}

/// Why there is no lease.
#[derive(Debug)]
pub(in crate::link::udp) enum LeaseError {
    /// There is no arbiter, and none was started; or another user's has its name.
    NoArbiter,
    /// All slots are in use.
    Full,
    /// The arbiter could not make the sockets on this address.
    Address(IpAddr, io::Error),
}

impl Lease {
    /// Leases a slot on those of the addresses that are there, each with the index of its interface. Without an arbiter
    /// `program` is started as `program arbiter NAME`. `runs`: this program takes runs of packets as one datagram.
    ///
    /// # Errors
    /// [`LeaseError`]. Addresses that are not there yet, or of a family that is off, are left out.
    pub fn take(
        interface: (u32, &str),
        addresses: &[(IpAddr, u32)],
        program: Option<&Path>,
        runs: bool,
    ) -> Result<(Lease, Vec<Joined>), LeaseError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let arbiter = reach(interface, program, deadline).map_err(|_| LeaseError::NoArbiter)?;
            if !is_of_this_user(&arbiter) {
                return Err(LeaseError::NoArbiter);
            }
            match join_all(arbiter, addresses, runs) {
                // It ended with its last program just now.
                Err(LeaseError::NoArbiter) if Instant::now() < deadline => {}
                done => return done,
            }
        }
    }

    /// The number of the slot, 1 to 63.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Tells the other programs for how long urgent messages of this one count as under way. Returns for how long those of all
    /// do.
    pub fn share_urgency(&self, own: Duration) -> Duration {
        self.urgency.as_ref().map_or(Duration::ZERO, |urgency| urgency.share(own))
    }

    /// Has requests for connections come to this slot.
    ///
    /// # Errors
    /// EADDRINUSE when another program takes them; the error of the socket when the arbiter is gone.
    pub fn take_requests(&self, requests: Requests) -> io::Result<()> {
        self.ask(Request::Take(requests))
    }

    /// Ends that.
    pub fn leave_requests(&self, requests: Requests) {
        // What is gone takes none.
        let _ = self.ask(Request::Leave(requests));
    }

    fn ask(&self, request: Request) -> io::Result<()> {
        request.send(self.arbiter.as_fd())?;
        let answer = Answer::receive(self.arbiter.as_fd(), &mut Vec::new())?;
        if answer.error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(answer.error)) }
    }
}

/// Whether programs of this user share an interface now.
pub(in crate::link::udp) fn is_ours(interface: u32) -> bool {
    let deadline = Instant::now();
    reach((interface, ""), None, deadline).is_ok_and(|arbiter| is_of_this_user(&arbiter))
}

fn is_of_this_user(arbiter: &OwnedFd) -> bool {
    sockopt::socket_peercred(arbiter).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn join_all(arbiter: OwnedFd, addresses: &[(IpAddr, u32)], runs: bool) -> Result<(Lease, Vec<Joined>), LeaseError> {
    let (mut slot, mut parcels, mut all, mut urgency) = (0, Vec::new(), Vec::new(), None);
    let deadline = Instant::now() + ENDING;
    for &(address, scope) in addresses {
        let mut descriptors = Vec::new();
        let request = Request::Join { address, scope, runs };
        let mut answer = join(&arbiter, request, &mut descriptors)?;
        while answer.error == ORPHANED && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            answer = join(&arbiter, request, &mut descriptors)?;
        }
        let mut descriptors = descriptors.into_iter();
        match (answer.error, descriptors.next(), descriptors.next()) {
            (0, Some(socket), Some(parcel)) => {
                slot = answer.slot;
                parcels.push(parcel);
                urgency = urgency.or_else(|| Urgency::map(&descriptors.next()?).ok());
                all.push(Joined { socket, address, scope });
            }
            // Not ours, not yet (duplicate address detection), or of a family that is off.
            (libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT, ..) => {}
            (libc::EUSERS, ..) => return Err(LeaseError::Full),
            (ORPHANED, ..) => return Err(LeaseError::Address(address, Errno::ADDRINUSE.into())),
            (error, ..) => return Err(LeaseError::Address(address, io::Error::from_raw_os_error(error))),
        }
    }
    Ok((Lease { arbiter, slot, _parcels: parcels, urgency }, all))
}

fn join(arbiter: &OwnedFd, request: Request, descriptors: &mut Vec<OwnedFd>) -> Result<Answer, LeaseError> {
    let asked = request.send(arbiter.as_fd());
    let answer = asked.and_then(|()| Answer::receive(arbiter.as_fd(), descriptors));
    answer.map_err(|_| LeaseError::NoArbiter)
}

/// A connection to the arbiter of the interface, which is started if need be.
fn reach((index, name): (u32, &str), program: Option<&Path>, deadline: Instant) -> io::Result<OwnedFd> {
    let address = super::name(index)?;
    let mut started: Option<Started> = None;
    let mut pause = PAUSE;
    loop {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::CONNREFUSED) => match (started.as_ref().map(Started::life), program) {
                (None, Some(program)) => started = Some(start(program, name)?),
                (Some(Life::Runs), _) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                // It found another, which has ended since; or it finds a fault each time.
                (Some(Life::Ended), Some(program)) if Instant::now() < deadline => {
                    std::thread::sleep(pause);
                    pause *= 2;
                    started = Some(start(program, name)?);
                }
                _ => return Err(Errno::CONNREFUSED.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

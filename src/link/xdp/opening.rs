//! What comes before the sockets: whether the interface can be had, who has it, and the program on it.

use std::io;
use std::net::IpAddr;

use super::program::Program;
use super::{AttachMode, XdpOpenError, XdpOptions, rings};
use crate::link::holder::{self, Claim};
use crate::link::host;
use crate::link::netlink::{Interface, Netlink};

/// Checks what can be known before anything is done.
pub(super) fn check(interface: &Interface, options: &XdpOptions) -> Result<(), XdpOpenError> {
    let name = || interface.name.clone();
    let range = |what, value: u32, least: u32, most: u32| {
        if (least..=most).contains(&value) { Ok(()) } else { Err(XdpOpenError::Option { what, value, least, most }) }
    };
    range("receive_frames", options.receive_frames, 64, 65536)?;
    range("transmit_packets", options.transmit_packets, 16, 16384)?;
    range("queues", options.queues.unwrap_or(1), 1, interface.rx_queues)?;
    if interface.mac.is_none() || interface.loopback {
        return Err(XdpOpenError::NotEthernet { interface: name() });
    }
    if !interface.up {
        return Err(XdpOpenError::Down { interface: name() });
    }
    let missing = host::missing_capabilities();
    if !missing.is_empty() {
        return Err(XdpOpenError::Capability { interface: name(), missing });
    }
    Ok(())
}

/// Claims the interface, and checks whether sockets receive RoCE on its addresses.
pub(super) fn claim(interface: &Interface, addresses: &[IpAddr]) -> Result<Claim, XdpOpenError> {
    let name = || interface.name.clone();
    let claim = rings::while_busy(|| Claim::new(interface.index)).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => taken(interface),
        _ => XdpOpenError::Step { interface: name(), what: "claiming the interface", error },
    })?;
    // Who is opening sockets right now sees the claim, and gives way.
    let mut found = None;
    let _ = rings::while_busy(|| {
        found = holder::sockets_that_lose(&interface.name, addresses);
        if found.is_some() { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Ok(()) }
    });
    match found {
        None => Ok(claim),
        Some(socket) => {
            Err(XdpOpenError::Sockets { interface: name(), address: socket.0, holder: holder::loser(&socket) })
        }
    }
}

/// Claims the interface for one of the programs that share its addresses. Their sockets lose nothing.
pub(super) fn claim_shared(interface: &Interface) -> Result<Claim, XdpOpenError> {
    let name = || interface.name.clone();
    let mut other = None;
    let claim = rings::while_busy(|| match Claim::shared(interface.index) {
        Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            other = holder::claimant(interface.index).filter(|_| holder::is_shared(interface.index));
            // One of them has it, and keeps it: no need to wait.
            if other.is_some() { Ok(None) } else { Err(error) }
        }
        done => done.map(Some),
    });
    match (claim, other) {
        (Ok(Some(claim)), _) => Ok(claim),
        (_, Some(holder)) => Err(XdpOpenError::Shared { interface: name(), holder }),
        (Err(error), None) if error.raw_os_error() != Some(libc::EADDRINUSE) => {
            Err(XdpOpenError::Step { interface: name(), what: "claiming the interface", error })
        }
        _ => Err(taken(interface)),
    }
}

fn taken(interface: &Interface) -> XdpOpenError {
    let gone = || "a process that has ended by now".to_owned();
    let holder = holder::claimant(interface.index).unwrap_or_else(gone);
    XdpOpenError::Taken { interface: interface.name.clone(), holder }
}

/// The error that names the owner of the program on the interface.
fn other_program(interface: &Interface) -> XdpOpenError {
    // It may have come after the interfaces were listed.
    let interfaces = Netlink::open().and_then(|mut netlink| netlink.interfaces()).unwrap_or_default();
    let now = interfaces.into_iter().find(|i| i.index == interface.index);
    let program = now.and_then(|now| now.xdp_program);
    XdpOpenError::OtherProgram {
        interface: interface.name.clone(),
        owner: holder::attached_by(program, &interface.name),
    }
}

/// Attaches the program, natively where the driver can, unless the options name a mode.
pub(super) fn attach(
    program: &mut Program,
    interface: &Interface,
    options: &XdpOptions,
) -> Result<AttachMode, XdpOpenError> {
    let name = || interface.name.clone();
    let modes: &[AttachMode] = match options.mode {
        Some(AttachMode::Native) => &[AttachMode::Native],
        Some(AttachMode::Skb) => &[AttachMode::Skb],
        None => &[AttachMode::Native, AttachMode::Skb],
    };
    let mut last = None;
    for &mode in modes {
        let error = match rings::while_busy(|| program.attach(interface.index, mode)) {
            Ok(()) => return Ok(mode),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => return Err(other_program(interface)),
            Some(libc::EPERM | libc::EACCES) => return Err(XdpOpenError::LoadRefused { interface: name(), error }),
            _ => last = Some((mode, error)),
        }
    }
    let (mode, error) = last.expect("at least one mode was tried");
    Err(match error.raw_os_error() {
        Some(libc::ERANGE) => XdpOpenError::Mtu { interface: name(), mtu: interface.mtu, mode },
        _ => XdpOpenError::Attach { interface: name(), mode, error },
    })
}

use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

/// A device of a running program of this user that gives snapshots: [`Context::publish`](super::Context::publish).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    /// The number of the process, in its own PID namespace.
    pub process: u32,
    /// Which of the process's devices it is, from 0 on.
    pub serial: u32,
}

/// The sockets of the network namespace, one a line.
const SOCKETS: &str = "/proc/thread-self/net/unix";

/// The flags of a socket that listens (`__SO_ACCEPTCON`). The connections that it accepted have the same name.
const LISTENS: &str = "00010000";

/// How long a program has to answer. It needs its engine's lock once.
const PATIENCE: Duration = Duration::from_secs(1);

impl Published {
    /// All in this network namespace, by process.
    ///
    /// # Errors
    /// [`io::Error`] when `/proc` is not there.
    pub fn list() -> io::Result<Vec<Published>> {
        let text = fs::read(SOCKETS)?;
        let mut all: Vec<Published> = String::from_utf8_lossy(&text).lines().filter_map(Published::of_line).collect();
        all.sort();
        Ok(all)
    }

    /// The one of a line of [`SOCKETS`]: address, references, protocol, flags, type, state, inode and name.
    fn of_line(line: &str) -> Option<Published> {
        let mut words = line.split_whitespace();
        let (flags, name) = (words.nth(3)?, words.nth(3)?);
        let (process, serial) = name.strip_prefix('@')?.strip_prefix(&prefix())?.split_once('-')?;
        let found = Published { process: process.parse().ok()?, serial: serial.parse().ok()? };
        (flags == LISTENS).then_some(found)
    }

    /// The abstract name of its socket. Another protocol would have another name.
    pub(super) fn name(self) -> String {
        format!("{}{}-{}", prefix(), self.process, self.serial)
    }

    /// A [`Snapshot`](super::Snapshot) of it now, as JSON.
    ///
    /// # Errors
    /// [`io::Error`] when it is gone, is another user's, or does not answer within a second.
    pub fn ask(self) -> io::Result<String> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It does not wait for a program that has stopped to answer.
        rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(self.name().as_bytes())?)?;
        if sockopt::socket_peercred(&socket)?.uid != rustix::process::geteuid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
    }
}

/// What the names of this user begin with.
fn prefix() -> String {
    format!("uroce-stat-1-{}-", rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_are_found_by_their_names() {
        let one = Published { process: 4711, serial: 2 };
        let line = |flags: &str, name: &str| format!("0000000000000000: 00000002 00000000 {flags} 0001 01 99 {name}");
        assert_eq!(Published::of_line(&line(LISTENS, &format!("@{}", one.name()))), Some(one));
        let accepted = line("00000000", &format!("@{}", one.name()));
        let file = line(LISTENS, &format!("/tmp/{}", one.name()));
        let strange = line(LISTENS, &format!("@{}x-1", prefix()));
        for other in ["", "Num RefCount Protocol Flags Type St Inode Path", &accepted, &file, &strange] {
            assert_eq!(Published::of_line(other), None, "{other}");
        }
    }
}

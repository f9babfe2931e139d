//! The TCP connection over which two ends tell each other of their queue pairs.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::interrupt::Interrupted;
use crate::{Failure, failure};

/// Connects to a server. Reading from it fails when nothing comes for as long as `patience`.
pub fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, Failure> {
    let failure = |e: &std::io::Error| {
        let hint = match e.kind() {
            ErrorKind::ConnectionRefused => "nobody listens there: is the server running, with the same -p?",
            _ => "is the server running?",
        };
        format!("cannot connect to {host} port {port}: {e}; {hint}")
    };
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|e| format!("cannot find the address of {host}: {e}; is the name right?"))?
        .collect();
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect(address) {
            Ok(stream) => {
                return match stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(patience))) {
                    Ok(()) => Ok(stream),
                    Err(error) => Err(failure(&error).into()),
                };
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| format!("{host} has no address"), |e| failure(&e)).into())
}

/// A server's port.
pub struct Listener {
    listener: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens over IPv6 and IPv4.
    pub fn bind(port: u16) -> Result<Listener, Failure> {
        let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        // A socket on [::] takes IPv4 too; where there is no IPv6, 0.0.0.0 does.
        let listener = TcpListener::bind((any[0], port)).or_else(|_| TcpListener::bind((any[1], port)));
        let listener =
            listener.map_err(|e| format!("cannot listen on TCP port {port}: {e}; choose another with -p"))?;
        Ok(Listener { listener, port })
    }

    /// Waits for the next client.
    pub fn accept(&self) -> Result<TcpStream, Failure> {
        let port = self.port;
        let (stream, _) =
            self.listener.accept().map_err(|e| format!("cannot accept a client on TCP port {port}: {e}; try again"))?;
        stream.set_nodelay(true).map_err(|e| format!("the client is gone again: {e}; check its output"))?;
        Ok(stream)
    }

    /// Serves one client after the other, and says a line of each on stderr; a failure is one more line, and with `json` an
    /// object. It ends with what accepting a client fails of.
    pub fn serve_all(&self, json: bool, mut serve: impl FnMut(TcpStream) -> Result<(), Failure>) -> Failure {
        for number in 1.. {
            let stream = match self.accept() {
                Ok(stream) => stream,
                Err(failure) => return failure,
            };
            let at = peer_address(&stream);
            eprintln!("uroce: client {number} from {at}");
            match serve(stream) {
                Ok(()) => {}
                Err(failure) if failure.is::<Interrupted>() => return failure,
                Err(failure) => {
                    eprintln!("uroce: client {number} from {at}: {failure}");
                    if json {
                        println!("{}", failure::object("failure", 1, &failure.to_string()));
                    }
                }
            }
        }
        "no more clients can be counted".into()
    }
}

/// What the TCP connection says of the peer's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProgram {
    /// It has closed the connection, or its kernel has: programs do that when they end.
    Ended,
    /// The connection is open.
    Runs,
    /// The connection does not say: the peer's kind closes it after the handshake, say.
    Unknown,
}

/// Whether the peer's program still has the connection. It is asked without waiting, and whatever is unread.
pub fn peer_program(stream: &TcpStream) -> PeerProgram {
    let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut polled = [PollFd::new(stream, closed)];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) if polled[0].revents().intersects(closed) => PeerProgram::Ended,
        Ok(_) => PeerProgram::Runs,
        Err(_) => PeerProgram::Unknown,
    }
}

/// The peer's address, for people.
pub fn peer_address(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "an unknown address".to_owned(), |peer| peer.ip().to_canonical().to_string())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_program_that_ended_is_known_even_if_its_last_words_are_unread() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, _) = listener.accept().unwrap();
        assert_eq!(peer_program(&here), PeerProgram::Runs);
        there.write_all(b"keys").unwrap();
        assert_eq!(peer_program(&here), PeerProgram::Runs);
        drop(there);
        assert_eq!(peer_program(&here), PeerProgram::Ended);
    }
}

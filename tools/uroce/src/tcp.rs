//! The TCP connection over which two ends tell each other of their queue pairs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::Failure;

/// Connects to a server. Reading from it fails when nothing comes for as long as `patience`.
pub fn connect(host: &str, port: u16, patience: Duration) -> Result<TcpStream, Failure> {
    let failure =
        |e: &dyn std::fmt::Display| format!("cannot connect to {host} port {port}: {e}; is the server running?");
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|e| failure(&e))?.collect();
    let mut last = None;
    for address in &addresses {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| failure(&"no address"), |e| failure(&e)).into())
}

/// Waits for one client, over IPv6 or IPv4.
pub fn accept(port: u16) -> Result<TcpStream, Failure> {
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    // A socket on [::] takes IPv4 too; where there is no IPv6, 0.0.0.0 does.
    let listener = TcpListener::bind((any[0], port)).or_else(|_| TcpListener::bind((any[1], port)));
    let listener = listener.map_err(|e| format!("cannot listen on TCP port {port}: {e}; choose another with -p"))?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

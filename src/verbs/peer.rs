use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::wire::{PathMtu, Psn, Qpn};

/// What one end of a connection needs to know of the other. [`QueuePair::local`](super::QueuePair::local) makes it, and
/// [`QueuePair::connect`](super::QueuePair::connect) takes it.
///
/// The programs decide how it gets from one process to the other; as text it is one word.
///
/// ```
/// use uroce::verbs::Peer;
///
/// let text = "qpn=0x000011,psn=0x1a2b3c,gid=::ffff:10.0.0.1,mtu=1024,reads=16";
/// let peer: Peer = text.parse()?;
/// assert_eq!((peer.qpn.value(), peer.to_string().as_str()), (17, text));
/// # Ok::<(), uroce::verbs::PeerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// The number of the peer's queue pair (`qpn`).
    pub qpn: Qpn,
    /// The first PSN that the peer will send (`psn`).
    pub psn: Psn,
    /// The peer's GID; `::ffff:a.b.c.d` for an IPv4 address (`gid`).
    pub gid: Ipv6Addr,
    /// The largest path MTU that the peer accepts (`mtu`, in bytes); `None` when it is not given.
    pub path_mtu: Option<PathMtu>,
    /// The READs and atomics that the peer accepts at once (`reads`, 0 to 255); `None` when it is not given.
    pub max_dest_rd_atomic: Option<u8>,
}

/// A text that does not describe a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` does not describe a peer: {reason}; the format is \
     qpn=0x000011,psn=0x1a2b3c,gid=::ffff:10.0.0.1,mtu=1024,reads=16; mtu and reads are optional"
)]
pub struct PeerError {
    text: String,
    reason: String,
}

impl Peer {
    /// A peer without path MTU and number of READs.
    pub fn new(qpn: Qpn, psn: Psn, gid: Ipv6Addr) -> Peer {
        Peer { qpn, psn, gid, path_mtu: None, max_dest_rd_atomic: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Peer { qpn, psn, gid, path_mtu, max_dest_rd_atomic } = self;
        write!(f, "qpn={:#08x},psn={:#08x},gid={gid}", qpn.value(), psn.value())?;
        if let Some(mtu) = path_mtu {
            write!(f, ",mtu={}", mtu.bytes())?;
        }
        max_dest_rd_atomic.map_or(Ok(()), |reads| write!(f, ",reads={reads}"))
    }
}

impl FromStr for Peer {
    type Err = PeerError;

    /// Reads items `key=value`, separated by commas, in any order. Unknown keys are ignored: later versions can add
    /// some.
    fn from_str(text: &str) -> Result<Peer, PeerError> {
        read(text.trim()).map_err(|reason| PeerError { text: text.to_owned(), reason })
    }
}

fn read(text: &str) -> Result<Peer, String> {
    let (mut qpn, mut psn, mut gid) = (None, None, None);
    let (mut path_mtu, mut max_dest_rd_atomic) = (None, None);
    for item in text.split(',') {
        let (key, value) = item.split_once('=').ok_or_else(|| format!("`{item}` is not key=value"))?;
        match key {
            "qpn" => qpn = Some(Qpn::new(number24(key, value)?)),
            "psn" => psn = Some(Psn::new(number24(key, value)?)),
            "gid" => gid = Some(value.parse().map_err(|_| format!("gid is `{value}`, not an IPv6 address"))?),
            "mtu" => path_mtu = Some(value.parse::<PathMtu>().map_err(|error| error.to_string())?),
            "reads" => {
                max_dest_rd_atomic = Some(value.parse().map_err(|_| format!("reads is `{value}`, not 0 to 255"))?);
            }
            _ => {}
        }
    }
    let missing = |key: &str| format!("{key} is missing");
    let peer = Peer::new(
        qpn.ok_or_else(|| missing("qpn"))?,
        psn.ok_or_else(|| missing("psn"))?,
        gid.ok_or_else(|| missing("gid"))?,
    );
    Ok(Peer { path_mtu, max_dest_rd_atomic, ..peer })
}

/// Reads a number below 2^24: hexadecimal after `0x`, otherwise decimal.
fn number24(key: &str, value: &str) -> Result<u32, String> {
    let number = match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let fitting = number.ok().filter(|number| *number < 1 << 24);
    fitting.ok_or_else(|| format!("{key} is `{value}`, not a number below 2^24, as 17 or 0x11"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_what_it_wrote_and_what_others_leave_out_or_add() {
        let short = Peer::new(Qpn::new(0xabcdef), Psn::new(5), Ipv6Addr::LOCALHOST);
        let long = Peer { path_mtu: Some(PathMtu::Mtu4096), max_dest_rd_atomic: Some(1), ..short };
        for peer in [short, long] {
            assert_eq!(peer.to_string().parse(), Ok(peer));
        }
        assert_eq!("colour=red,gid=::1,psn=5,qpn=0xabcdef\n".parse(), Ok(short));
    }

    #[test]
    fn what_is_no_peer_says_why() {
        for (text, reason) in [
            ("", "`` is not key=value"),
            ("qpn=1,psn=2", "gid is missing"),
            ("qpn=0x1000000,psn=2,gid=::1", "qpn is `0x1000000`, not a number below 2^24, as 17 or 0x11"),
            ("qpn=1,psn=2,gid=10.0.0.1", "gid is `10.0.0.1`, not an IPv6 address"),
            ("qpn=1,psn=2,gid=::1,mtu=1000", "`1000` is not a path MTU: use 256, 512, 1024, 2048 or 4096"),
            ("qpn=1,psn=2,gid=::1,reads=many", "reads is `many`, not 0 to 255"),
        ] {
            assert_eq!(text.parse::<Peer>().unwrap_err().reason, reason);
        }
    }
}

//! perftest's handshake over TCP. In every exchange the client writes and then reads, the server reads and then writes.
//! A perftest takes what one read() gives it for a whole message, so each goes out in one piece.

#![allow(clippy::disallowed_methods, reason = "it waits for a peer in real time")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use uroce::verbs::{Context, PathMtu};

use super::keys::Keys;
use super::report::Bandwidth;
use super::settings::Settings;
use crate::tcp::PeerProgram;
use crate::terms::Terms;
use crate::{Failure, interrupt, tcp};

/// What Debian 12's perftest 4.5 says it is. From 6.28 on there would be a negotiation whose layout depends on the build.
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

/// The oldest version that perftest 4.5 talks to.
const OLDEST_VERSION: f64 = 5.7;

/// How often a wait looks whether the network side still moves.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What messages of keys are called in errors.
const KEYS: &str = "keys";

/// The most keys that go ahead of the peer's. Neither end waits for room in a socket with so few.
const AHEAD: usize = 64;

/// How long the peer's end is waited for when everything is done. It has nothing more to do than to say so.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What both ends use: of the path MTUs the smaller, of the others the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub mtu: PathMtu,
    /// Small messages walk through so many bytes of each queue pair's buffers.
    pub cycle_bytes: usize,
    /// They do so in steps of whole cache lines.
    pub line_bytes: usize,
}

impl Agreed {
    /// The most that a peer may ask for: 64 KiB pages are the largest there are.
    const MAX_CYCLE_BYTES: usize = 1 << 16;
    const MAX_LINE_BYTES: usize = 1 << 12;

    /// What we ask for: pages and cache lines of x86.
    fn ours(mtu: PathMtu) -> Agreed {
        Agreed { mtu, cycle_bytes: 4096, line_bytes: 64 }
    }
}

/// The connection to the other end's program.
pub struct Exchange<'a> {
    stream: TcpStream,
    is_client: bool,
    patience: Duration,
    /// What the peer must be given as well, until it is known to be.
    terms: Option<Terms>,
    /// Whether the peer is uroce, and has agreed to the terms.
    is_uroce: bool,
    /// A number that changes as long as the network side of the test moves: the peer is busy then.
    progress: Box<dyn Fn() -> u64 + 'a>,
}

impl<'a> Exchange<'a> {
    /// Begins over a connection with the server, or with a client.
    pub fn begin(stream: TcpStream, settings: &Settings, context: &'a Context) -> Result<Exchange<'a>, Failure> {
        let progress = || context.counters().iter().map(|(_, count)| count).sum();
        Exchange::over(stream, settings.is_client, settings.patience, progress)
    }

    fn over(
        stream: TcpStream,
        is_client: bool,
        patience: Duration,
        progress: impl Fn() -> u64 + 'a,
    ) -> Result<Exchange<'a>, Failure> {
        stream.set_read_timeout(Some(LOOK_AGAIN)).map_err(|e| format!("the TCP connection fails: {e}; try again"))?;
        Ok(Exchange { stream, is_client, patience, terms: None, is_uroce: false, progress: Box::new(progress) })
    }

    /// Agrees on versions, buffers and the path MTU, of which `mtu` is what we can do.
    pub fn negotiate(&mut self, mtu: PathMtu) -> Result<Agreed, Failure> {
        let ours = Agreed::ours(mtu);
        let theirs = self.swap(VERSION, "version")?;
        let text = String::from_utf8_lossy(&theirs);
        let text = text.trim_end_matches('\0');
        if text.contains(':') {
            return Err(
                "the peer sends a pingpong's handshake, not a version: start `uroce pingpong` here, or the same \
                        test of perf there"
                    .into(),
            );
        }
        if !text.parse().is_ok_and(|version: f64| version >= OLDEST_VERSION) {
            return Err(
                format!("the peer reports version {text:?}; perftest {OLDEST_VERSION} or later is needed").into()
            );
        }
        let mut larger = |own: usize, limit: usize, what| -> Result<usize, Failure> {
            let theirs = u32::from_be_bytes(self.swap(&(own as u32).to_be_bytes(), what)?) as usize;
            match theirs <= limit {
                true => Ok(own.max(theirs)),
                false => Err(format!("the peer asks for a {what} of {theirs} bytes; the limit is {limit}").into()),
            }
        };
        let cycle_bytes = larger(ours.cycle_bytes, Agreed::MAX_CYCLE_BYTES, "cycle buffer")?;
        let line_bytes = larger(ours.line_bytes, Agreed::MAX_LINE_BYTES, "cache line")?;
        let [digit, _] = self.swap(&[b'0' + mtu as u8, 0], "path MTU")?;
        let Some(theirs) = PathMtu::from_code(digit.wrapping_sub(b'0')) else {
            let code = char::from(digit);
            return Err(format!("the peer's path MTU code {code:?} is not valid: the codes are 1 to 5").into());
        };
        Ok(Agreed { mtu: mtu.min(theirs), cycle_bytes, line_bytes })
    }

    /// Exchanges what there is to know of a queue pair. Also how both ends wait for each other: then the keys are those
    /// of the first queue pair, once more.
    pub fn keys(&mut self, own: &Keys) -> Result<Keys, Failure> {
        let theirs = Keys::parse(&self.swap(&own.to_bytes(), KEYS)?)?;
        // The first keys of all tests are exchanged alike: from here on, tests that differ get out of step.
        if let Some(terms) = self.terms.take()
            && theirs.is_uroce
        {
            let said = self.swap(&terms.to_bytes(), "terms")?;
            terms.agree(&said, &self.peer_address())?;
            self.is_uroce = true;
        }
        Ok(theirs)
    }

    /// Exchanges what there is to know of each queue pair. A client's go ahead of a uroce's answers: else each takes a round
    /// trip. A perftest takes them one by one, since it could be given a part of one.
    pub fn all_keys(&mut self, own: &[Keys]) -> Result<Vec<Keys>, Failure> {
        let (mut theirs, mut written) = (Vec::with_capacity(own.len()), 0);
        for (index, keys) in own.iter().enumerate() {
            if !(self.is_client && self.is_uroce) {
                theirs.push(self.keys(keys)?);
                written = index + 1;
                continue;
            }
            while written < own.len().min(index + AHEAD) {
                self.write(&own[written].to_bytes(), KEYS)?;
                written += 1;
            }
            let mut bytes = [0; Keys::BYTES];
            self.read(&mut bytes, KEYS)?;
            theirs.push(Keys::parse(&bytes)?);
        }
        Ok(theirs)
    }

    /// Has a peer that is uroce compared with these terms, when the first keys are exchanged.
    pub fn compare(&mut self, terms: Terms) {
        self.terms = Some(terms);
    }

    /// Whether the peer is uroce.
    pub fn is_uroce(&self) -> bool {
        self.is_uroce
    }

    /// The connection.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether the peer's program is still there.
    pub fn peer_program(&self) -> PeerProgram {
        tcp::peer_program(&self.stream)
    }

    /// The peer's address, for people.
    pub fn peer_address(&self) -> String {
        tcp::peer_address(&self.stream)
    }

    /// Exchanges results, number by number.
    pub fn report(&mut self, own: &Bandwidth) -> Result<Bandwidth, Failure> {
        let mut number = |own: [u8; 8]| self.swap(&own, "report");
        Ok(Bandwidth {
            size: u64::from_be_bytes(number(own.size.to_be_bytes())?),
            iterations: u64::from_be_bytes(number(own.iterations.to_be_bytes())?),
            peak: f64::from_be_bytes(number(own.peak.to_be_bytes())?),
            average: f64::from_be_bytes(number(own.average.to_be_bytes())?),
            message_rate: f64::from_be_bytes(number(own.message_rate.to_be_bytes())?),
        })
    }

    /// Says that we are done.
    pub fn done(&mut self) -> Result<(), Failure> {
        // The peer may have closed already: it does not wait for this.
        match self.stream.write_all(b"done\0") {
            Err(e) if !is_gone(&e) => Err(format!("cannot signal the end to the peer: {e}").into()),
            _ => Ok(()),
        }
    }

    /// Stays until the peer has ended, for a while at the most: until then it may ask for acknowledges again.
    pub fn wait_for_end(mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let (end, mut rest) = (Instant::now() + END_LIMIT, [0; 64]);
        while Instant::now() < end && !interrupt::is_pending() {
            match self.stream.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if is_only_late(&e) => {}
                Err(_) => break,
            }
        }
    }

    /// Gives the peer a message and takes its own of the same length.
    fn swap<const N: usize>(&mut self, own: &[u8; N], what: &str) -> Result<[u8; N], Failure> {
        if self.is_client {
            self.write(own, what)?;
        }
        let mut theirs = [0; N];
        self.read(&mut theirs, what)?;
        if !self.is_client {
            self.write(own, what)?;
        }
        Ok(theirs)
    }

    fn write(&mut self, own: &[u8], what: &str) -> Result<(), Failure> {
        self.stream.write_all(own).map_err(|e| format!("cannot send the peer our {what}: {e}; check its output").into())
    }

    /// Reads a message. Gives up when neither it nor a packet has come for as long as our patience lasts.
    fn read(&mut self, message: &mut [u8], what: &str) -> Result<(), Failure> {
        let at = self.peer_address();
        let ended = || {
            Failure::from(format!(
                "the peer at {at} closed the TCP connection before sending its {what}: its program ended; check its \
                 output, and use the same test and flags at both ends"
            ))
        };
        let (mut filled, mut last, mut seen) = (0, Instant::now(), (self.progress)());
        while filled < message.len() {
            match self.stream.read(&mut message[filled..]) {
                Err(e) if is_gone(&e) => return Err(ended()),
                Ok(0) => return Err(ended()),
                Ok(bytes) => {
                    filled += bytes;
                    last = Instant::now();
                }
                Err(e) if is_only_late(&e) => {
                    interrupt::check()?;
                    let now = (self.progress)();
                    if now != seen {
                        (seen, last) = (now, Instant::now());
                    } else if last.elapsed() > self.patience {
                        let (seconds, of) = (self.patience.as_secs_f64(), message.len());
                        return Err(format!(
                            "nothing has come from the peer for {seconds} s, with {filled} of {of} bytes of its \
                             {what} received: use the same test and flags at both ends, and a GID (-x)"
                        )
                        .into());
                    }
                }
                Err(e) => return Err(format!("cannot read the peer's {what}: {e}").into()),
            }
        }
        Ok(())
    }
}

/// Whether the peer has closed the connection.
fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// Whether a read merely took too long, or was interrupted.
fn is_only_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::{Ipv6Addr, TcpListener};
    use uroce::verbs::{Key, Psn, Qpn};

    /// A server's exchange over loopback, and its client.
    fn pair<'a>(patience_ms: u64, progress: impl Fn() -> u64 + 'a) -> (Exchange<'a>, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        (Exchange::over(stream, false, Duration::from_millis(patience_ms), progress).unwrap(), client)
    }

    /// What a client says to begin with, captured from Debian 12's ib_write_bw, with its path MTU's code.
    fn beginning(mtu: &[u8; 2]) -> Vec<u8> {
        [VERSION, &b"\0\0\x10\0"[..], b"\0\0\0\x40", mtu].concat()
    }

    #[test]
    fn both_ends_use_the_smaller_mtu_and_the_larger_buffers() {
        for (ours, theirs, agreed) in [
            (PathMtu::Mtu4096, b"3\0", PathMtu::Mtu1024),
            (PathMtu::Mtu1024, b"5\0", PathMtu::Mtu1024),
            (PathMtu::Mtu256, b"1\0", PathMtu::Mtu256),
        ] {
            let (mut server, mut client) = pair(5000, || 0);
            client.write_all(&beginning(theirs)).unwrap();
            let found = server.negotiate(ours).unwrap();
            assert_eq!(found, Agreed { mtu: agreed, cycle_bytes: 4096, line_bytes: 64 });
            // What ib_write_bw's server said to its client.
            let mut said = vec![0; 26];
            client.read_exact(&mut said).unwrap();
            assert_eq!(said, beginning(&[b'0' + ours as u8, 0]));
        }
        let (mut server, mut client) = pair(5000, || 0);
        client.write_all(&[VERSION, &b"\0\x01\0\0"[..], b"\0\0\0\x80", b"3\0"].concat()).unwrap();
        let found = server.negotiate(PathMtu::Mtu1024).unwrap();
        assert_eq!((found.cycle_bytes, found.line_bytes), (65536, 128));
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let wrong = |at: usize, bytes: &[u8], words: &str| {
            let (mut server, mut client) = pair(5000, || 0);
            let mut all = beginning(b"3\0");
            all[at..at + bytes.len()].copy_from_slice(bytes);
            client.write_all(&all).unwrap();
            let error = server.negotiate(PathMtu::Mtu1024).unwrap_err().to_string();
            assert!(error.contains(words), "no {words:?}: {error}");
        };
        wrong(0, b"5.60", "5.60");
        wrong(0, b"0000:1c2", "pingpong");
        wrong(0, b"nan\0", "nan");
        wrong(0, &[0xff; 16], "version");
        wrong(16, b"\xff\xff\xff\xff", "cycle buffer of 4294967295 bytes");
        wrong(20, b"\x7f\0\0\0", "cache line");
        wrong(24, b"6", "'6'");
        wrong(24, b"\0", "path MTU");
    }

    /// The server answers nothing before it has as many: one by one they would never come.
    #[test]
    fn keys_of_many_queue_pairs_go_ahead_of_the_answers_of_uroce() {
        let (server, client) = pair(5000, || 0);
        let mut client = Exchange::over(client, true, Duration::from_secs(5), || 0).unwrap();
        client.is_uroce = true;
        let keys = |qpn| Keys {
            is_uroce: true,
            outstanding: 1,
            qpn: Qpn::new(qpn),
            psn: Psn::new(1),
            key: Key(2),
            address: 3,
            gid: Ipv6Addr::LOCALHOST,
        };
        let mut stream = server.stream;
        let answers = std::thread::spawn(move || {
            let mut heard = vec![0; (AHEAD + 10) * Keys::BYTES];
            let (first, rest) = heard.split_at_mut(AHEAD * Keys::BYTES);
            stream.read_exact(first).unwrap();
            for qpn in 0..AHEAD + 10 {
                stream.write_all(&keys(1000 + qpn as u32).to_bytes()).unwrap();
            }
            stream.read_exact(rest).unwrap();
            heard
        });
        let own: Vec<Keys> = (0..AHEAD as u32 + 10).map(keys).collect();
        let theirs = client.all_keys(&own).unwrap();
        assert_eq!(theirs, (0..AHEAD as u32 + 10).map(|qpn| keys(1000 + qpn)).collect::<Vec<_>>());
        let heard = answers.join().unwrap();
        assert_eq!(heard, own.iter().flat_map(|keys| keys.to_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_that_ends_or_says_nothing_is_not_waited_for_but_one_whose_packets_come_is() {
        let (mut server, client) = pair(60_000, || 0);
        drop(client);
        assert!(server.negotiate(PathMtu::Mtu1024).unwrap_err().to_string().contains("its program ended"));

        let (mut server, mut client) = pair(300, || 0);
        client.write_all(&VERSION[..7]).unwrap();
        let error = server.negotiate(PathMtu::Mtu1024).unwrap_err().to_string();
        assert!(error.contains("7 of 16 bytes"), "{error}");

        // Ten times it is looked whether packets have come; ten times they have.
        let looked = Cell::new(0);
        let (mut server, client) = pair(300, || {
            looked.set(looked.get() + 1);
            looked.get().min(10)
        });
        assert!(server.negotiate(PathMtu::Mtu1024).is_err());
        assert!(looked.get() > 10, "{looked:?}");
        drop(client);
    }
}

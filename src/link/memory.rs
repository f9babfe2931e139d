use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{EthernetHeader, Hop, HopError, Imposed, Link};
use crate::frame::Frame;
use crate::time::{Duration, Instant};

/// A link in memory, for tests: it keeps what it is given, and gives what the test says. A clone is the same link in the
/// test's hand.
#[derive(Clone)]
pub(crate) struct MemoryLink {
    given: Arc<Mutex<Given>>,
    gives: Arc<Mutex<Gives>>,
    buffer: Vec<u8>,
    is_lent: bool,
}

/// What a link in memory was given, and asked for.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub sent: Vec<Sent>,
    pub flushes: usize,
    /// Calls that looked for frames.
    pub looks: usize,
    /// Addresses between which the next hop was asked for.
    pub asked: Vec<(IpAddr, IpAddr)>,
    pub expects_unreliable: bool,
}

/// A packet, where it went, and when.
pub(crate) type Sent = (Vec<u8>, Hop, Instant);

/// What a link in memory gives, and answers.
#[derive(Default)]
pub(crate) struct Gives {
    pub arriving: VecDeque<Frame>,
    /// For how long the thread is interrupted when it looks for frames.
    pub interruption: Duration,
    /// How many packets can still be sent; `None` for any number.
    pub buffers: Option<usize>,
    /// The next hop to everywhere; `None` where there is no route.
    pub next_hop: Option<Hop>,
    /// The only hop that is resolved.
    pub resolved: Option<(Hop, EthernetHeader)>,
    pub route_changes: u64,
    pub slot: Option<u8>,
    pub imposed: Option<Imposed>,
    pub poll_fds: Vec<RawFd>,
    pub poll_timeout: Option<Instant>,
    pub mode: String,
}

impl MemoryLink {
    /// A link whose largest packet has `buffer_bytes`.
    pub fn new(buffer_bytes: usize, gives: Gives) -> MemoryLink {
        let gives = Arc::new(Mutex::new(gives));
        MemoryLink { given: Arc::default(), gives, buffer: vec![0; buffer_bytes], is_lent: false }
    }

    /// What it was given so far.
    pub fn given(&self) -> Given {
        self.given.lock().unwrap().clone()
    }

    /// What it gives, for changes.
    pub fn gives(&self) -> MutexGuard<'_, Gives> {
        self.gives.lock().unwrap()
    }
}

impl Link for MemoryLink {
    fn receive(&mut self, _: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        self.given.lock().unwrap().looks += 1;
        let mut gives = self.gives();
        #[allow(clippy::disallowed_methods)] // as whatever interrupts a thread
        std::thread::sleep(gives.interruption);
        let count = budget.min(gives.arriving.len());
        frames.extend(gives.arriving.drain(..count));
        count
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        let has_buffers = self.gives().buffers != Some(0);
        self.is_lent |= has_buffers;
        self.is_lent.then_some(&mut self.buffer[..])
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        assert!(std::mem::take(&mut self.is_lent), "no buffer is lent");
        if let Some(left) = &mut self.gives().buffers {
            *left -= 1;
        }
        self.given.lock().unwrap().sent.push((self.buffer[..len].to_vec(), hop, now));
        self.buffer.fill(0xee);
    }

    fn flush(&mut self, _: Instant) {
        self.given.lock().unwrap().flushes += 1;
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        self.given.lock().unwrap().asked.push((source, destination));
        self.gives().next_hop.ok_or(HopError::NoRoute(source, destination))
    }

    fn slot(&self) -> Option<u8> {
        self.gives().slot
    }

    fn expect_unreliable(&mut self) {
        self.given.lock().unwrap().expects_unreliable = true;
    }

    fn route_changes(&self) -> u64 {
        self.gives().route_changes
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        self.gives().resolved.filter(|(of, _)| *of == hop).map(|(_, header)| header)
    }

    fn imposed(&self) -> Option<Imposed> {
        self.gives().imposed
    }

    fn max_packet_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.gives().poll_fds.clone()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.gives().poll_timeout
    }

    fn mode(&self) -> String {
        self.gives().mode.clone()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("tx_frames", self.given.lock().unwrap().sent.len() as u64)]
    }
}

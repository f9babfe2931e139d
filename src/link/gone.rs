use std::net::IpAddr;
use std::os::fd::RawFd;

use super::{Hop, HopError, Link};
use crate::Forked;
use crate::frame::Frame;
use crate::time::Instant;

/// The link of a device that belongs to another process: no frame arrives, and none can be sent.
#[derive(Debug)]
pub struct Gone;

impl Link for Gone {
    fn receive(&mut self, _: Instant, _: &mut Vec<Frame>, _: usize) -> usize {
        0
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        None
    }

    fn transmit(&mut self, _: Instant, _: usize, _: Hop) {
        panic!("no buffer was lent");
    }

    fn flush(&mut self, _: Instant) {}

    fn hop(&mut self, _: IpAddr, _: IpAddr) -> Result<Hop, HopError> {
        Err(HopError::Forked(Forked))
    }

    fn max_packet_bytes(&self) -> usize {
        0
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn mode(&self) -> String {
        "gone".to_owned()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use super::fault::{Corruption, Fate, FaultEngine, FaultSpec, HoldQueue};
use super::{Capture, EthernetHeader, Hop, HopError, Imposed, Link, Requests};
use crate::frame::{Frame, FrameBytes};
use crate::pcap::{Direction, Record};
use crate::time::{Duration, Instant, earliest};
use crate::wire::Bth;

/// Upper bound on the frames that wait in each direction; more are dropped, as by a full queue in a network. At 4 KiB
/// each they take 16 MiB, and they are 2 ms of a link at 2 Mpps.
const HELD_FRAMES_MAX: usize = 4096;

/// The remark of a capture on a frame whose next hop has no Ethernet address yet; the addresses in it are zero.
const UNRESOLVED: &str = "next hop unresolved";

/// A link with a capture of it, faults on it, or both.
///
/// The capture has the frames as a network interface would see them. Sent frames are recorded after the faults: a
/// delayed one when it leaves, and a corrupted one as it leaves. A lost one is recorded, and marked as such, although
/// it does not leave. Received frames are recorded before the faults, as they arrive. pcapng files have the marks; pcap
/// has no place for them.
///
/// Without faults it costs one comparison a frame and direction, and with a capture one copy. Faults copy and allocate:
/// they are for tests.
///
/// A packet that a fault holds back leaves its transmit buffer lent. So [`transmit`](Link::transmit) and
/// [`flush`](Link::flush) can overwrite a buffer that was lent and not sent: the borrower writes it again.
pub struct Tapped<L> {
    inner: L,
    capture: Option<Capture>,
    faults: Option<Box<Faults>>,
}

struct Faults {
    engine: FaultEngine,
    sent: HoldQueue<Sent>,
    /// Sent frames whose wait is over, and for which there was no buffer.
    sent_ready: VecDeque<Sent>,
    received: HoldQueue<(Frame, Fate)>,
    /// Received frames whose wait is over, and that exceeded the budget.
    received_ready: VecDeque<Frame>,
    arrived: Vec<Frame>,
    sent_counters: Counters,
    received_counters: Counters,
}

/// A packet that leaves later than it was sent to us.
struct Sent {
    packet: Vec<u8>,
    hop: Hop,
    fate: Fate,
    is_copy: bool,
}

/// Counters of the frames of one direction. `entered + duplicated = left + lost + overflowed + those held`.
#[derive(Default)]
struct Counters {
    entered: u64,
    left: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    delayed: u64,
    reordered: u64,
    overflowed: u64,
}

impl Counters {
    fn count(&mut self, fate: &Fate) {
        self.entered += 1;
        self.lost += u64::from(fate.is_lost);
        self.duplicated += u64::from(fate.is_duplicated);
        self.corrupted += u64::from(fate.corruption.is_some());
        self.delayed += u64::from(!fate.delay.is_zero());
        self.reordered += u64::from(fate.overtaken_by > 0);
    }

    /// Counts a frame, and its duplicate if it was to have one, that found no place to wait.
    fn overflow(&mut self, fate: &Fate) {
        self.overflowed += 1 + u64::from(fate.is_duplicated);
    }
}

impl<L: Link> Tapped<L> {
    /// Puts a capture and faults around `inner`. A specification without faults costs nothing.
    pub fn new(inner: L, capture: Option<Capture>, faults: Option<FaultSpec>) -> Tapped<L> {
        let does_something = |spec: &FaultSpec| {
            let delays = !spec.delay.is_zero() && spec.delay_share > 0.0;
            spec.loss + spec.duplicate + spec.reorder + spec.corrupt > 0.0 || delays
        };
        let faults = faults.filter(does_something).map(|spec| {
            Box::new(Faults {
                engine: FaultEngine::new(spec),
                sent: HoldQueue::new(HELD_FRAMES_MAX),
                sent_ready: VecDeque::new(),
                received: HoldQueue::new(HELD_FRAMES_MAX),
                received_ready: VecDeque::new(),
                arrived: Vec::new(),
                sent_counters: Counters::default(),
                received_counters: Counters::default(),
            })
        });
        Tapped { inner, capture, faults }
    }

    /// The link inside, without capture and faults.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The link inside, without capture and faults, for changes.
    pub fn inner_mut(&mut self) -> &mut L {
        &mut self.inner
    }

    /// The capture; `None` when there is none.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Sends the packet in the lent buffer, and records it.
    fn send(&mut self, now: Instant, len: usize, hop: Hop, comment: &str) {
        if self.capture.is_some() {
            self.inner.finish(len, hop);
            record_sent(&mut self.inner, self.capture.as_mut(), Leaving { now, len, hop, comment });
        }
        self.inner.transmit(now, len, hop);
    }

    fn flush_by<T>(&mut self, now: Instant, flush: impl FnOnce(&mut L) -> T) -> T {
        self.release_sent(now);
        let flushed = flush(&mut self.inner);
        if let Some(capture) = &mut self.capture {
            capture.poll(now);
        }
        flushed
    }

    /// Sends packets whose wait is over, as far as there are buffers.
    fn release_sent(&mut self, now: Instant) {
        while let Some(faults) = &mut self.faults {
            if faults.sent_ready.is_empty() {
                let Some(sent) = faults.sent.release(now) else { return };
                if sent.fate.is_duplicated {
                    let copy = Sent { packet: sent.packet.clone(), is_copy: true, ..sent };
                    faults.sent_ready.extend([sent, copy]);
                } else {
                    faults.sent_ready.push_back(sent);
                }
            }
            let Some(buffer) = self.inner.transmit_buffer() else { return };
            let Some(sent) = faults.sent_ready.pop_front() else { return };
            buffer[..sent.packet.len()].copy_from_slice(&sent.packet);
            faults.sent_counters.left += 1;
            self.send(now, sent.packet.len(), sent.hop, &mark(&sent.fate, sent.is_copy));
        }
    }
}

/// The remark on a frame in the capture.
fn mark(fate: &Fate, is_copy: bool) -> String {
    if is_copy { format!("{fate} (copy)") } else { fate.to_string() }
}

/// The packet in the lent buffer, which leaves now or is lost.
struct Leaving<'a> {
    now: Instant,
    len: usize,
    hop: Hop,
    comment: &'a str,
}

fn record_sent<L: Link>(inner: &mut L, capture: Option<&mut Capture>, leaving: Leaving<'_>) {
    let Some(capture) = capture else { return };
    let Leaving { now, len, hop, comment } = leaving;
    let header = inner.ethernet_header(hop);
    let joined;
    let comment = match (header, comment) {
        (Some(_), comment) => comment,
        (None, "") => UNRESOLVED,
        (None, comment) => {
            joined = format!("{comment}; {UNRESOLVED}");
            &joined
        }
    };
    let header = header.unwrap_or(EthernetHeader::new([0; 6], [0; 6], None));
    let Some(packet) = inner.transmit_buffer() else { return };
    let packet = &packet[..len];
    let mut bytes = [0; EthernetHeader::BYTES_MAX];
    header.write(&mut bytes, packet.first().map_or(4, |first| first >> 4));
    capture.record(Record {
        time: now,
        direction: Direction::Sent,
        parts: &[&bytes[..header.len()], packet],
        comment: (!comment.is_empty()).then_some(comment),
    });
}

fn record_received(capture: Option<&mut Capture>, now: Instant, bytes: FrameBytes<'_>, comment: &str) {
    let Some(capture) = capture else { return };
    capture.record(Record {
        time: now,
        direction: Direction::Received,
        parts: &[bytes.head, bytes.tail],
        comment: (!comment.is_empty()).then_some(comment),
    });
}

/// Flips bits from the BTH to the end of a packet that begins with its IP header; anywhere when the headers are
/// unclear.
///
/// Byte 4 of the BTH is left alone: routers can change it, the ICRC leaves it out, and no check would notice.
fn corrupt(packet: &mut [u8], corruption: &Corruption) {
    let start = match packet.first().map(|first| first >> 4) {
        Some(4) => 20 + 8,
        Some(6) => 40 + 8,
        _ => 0,
    };
    if packet.len() < start + Bth::BYTES {
        return corruption.apply(packet);
    }
    let ib = &mut packet[start..];
    let last = ib.len() - 1;
    ib.swap(4, last);
    corruption.apply(&mut ib[..last]);
    ib.swap(4, last);
}

/// Flips bits in an Ethernet frame, as [`corrupt`] in a packet.
fn corrupt_frame(frame: &mut [u8], corruption: &Corruption) {
    let ip = if frame.len() > 18 && matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]) { 18 } else { 14 };
    match frame.get_mut(ip..) {
        Some(packet) => corrupt(packet, corruption),
        None => corruption.apply(frame),
    }
}

impl Faults {
    /// Applies the fate of a frame that has just arrived.
    fn arrive(&mut self, now: Instant, frame: Frame, fate: Fate) {
        self.received_counters.count(&fate);
        if fate.is_lost {
            return;
        }
        let mut frame = frame;
        if fate.corruption.is_some() || fate.is_held() {
            // In memory of its own: the link's own is scarce, and others may not write to it.
            let mut bytes = frame.bytes().to_vec();
            if let Some(corruption) = &fate.corruption {
                corrupt_frame(&mut bytes, corruption);
            }
            frame = Frame::from_vec(bytes);
        }
        if fate.is_held() {
            if self.received.hold(now, &fate, (frame, fate)).is_err() {
                self.received_counters.overflow(&fate);
            }
            return;
        }
        self.pass(frame, &fate);
        self.received.overtake();
        self.release_received(now);
    }

    fn release_received(&mut self, now: Instant) {
        while let Some((frame, fate)) = self.received.release(now) {
            self.pass(frame, &fate);
        }
    }

    fn pass(&mut self, frame: Frame, fate: &Fate) {
        let copy = fate.is_duplicated.then(|| Frame::from_vec(frame.bytes().to_vec()));
        self.received_ready.push_back(frame);
        self.received_ready.extend(copy);
    }
}

impl<L: Link> Link for Tapped<L> {
    fn slot(&self) -> Option<u8> {
        self.inner.slot()
    }

    fn share_urgency(&mut self, own: Duration) -> Duration {
        self.inner.share_urgency(own)
    }

    fn expect_unreliable(&mut self) {
        self.inner.expect_unreliable();
    }

    fn take_requests(&mut self, requests: Requests) -> io::Result<()> {
        self.inner.take_requests(requests)
    }

    fn leave_requests(&mut self, requests: Requests) {
        self.inner.leave_requests(requests);
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn receive(&mut self, now: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let before = frames.len();
        let Some(faults) = &mut self.faults else {
            let count = self.inner.receive(now, frames, budget);
            if self.capture.is_some() {
                frames[before..].iter().for_each(|f| record_received(self.capture.as_mut(), now, f.bytes(), ""));
            }
            return count;
        };
        faults.release_received(now);
        let wanted = budget.saturating_sub(faults.received_ready.len());
        let mut arrived = std::mem::take(&mut faults.arrived);
        self.inner.receive(now, &mut arrived, wanted);
        for frame in arrived.drain(..) {
            let fate = faults.engine.decide(Direction::Received);
            record_received(self.capture.as_mut(), now, frame.bytes(), &fate.to_string());
            faults.arrive(now, frame, fate);
        }
        faults.arrived = arrived;
        let count = budget.min(faults.received_ready.len());
        faults.received_counters.left += count as u64;
        frames.extend(faults.received_ready.drain(..count));
        count
    }

    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        self.inner.transmit_buffer()
    }

    fn transmit(&mut self, now: Instant, len: usize, hop: Hop) {
        let Some(faults) = &mut self.faults else { return self.send(now, len, hop, "") };
        let fate = faults.engine.decide(Direction::Sent);
        faults.sent_counters.count(&fate);
        if fate.is_nothing() {
            faults.sent_counters.left += 1;
            faults.sent.overtake();
            self.send(now, len, hop, "");
            return self.release_sent(now);
        }
        // What is lost, held or damaged is so as it would have left.
        self.inner.finish(len, hop);
        if fate.is_lost {
            let comment = &fate.to_string();
            record_sent(&mut self.inner, self.capture.as_mut(), Leaving { now, len, hop, comment });
            return;
        }
        let packet = &mut self.inner.transmit_buffer().expect("transmit follows transmit_buffer")[..len];
        if let Some(corruption) = &fate.corruption {
            corrupt(packet, corruption);
        }
        let copy = (fate.is_held() || fate.is_duplicated).then(|| packet.to_vec());
        let sent = copy.map(|packet| Sent { packet, hop, fate, is_copy: !fate.is_held() });
        if fate.is_held() {
            if let Some(sent) = sent
                && faults.sent.hold(now, &fate, sent).is_err()
            {
                faults.sent_counters.overflow(&fate);
                let comment = "fault: lost, too many held";
                record_sent(&mut self.inner, self.capture.as_mut(), Leaving { now, len, hop, comment });
            }
        } else {
            faults.sent_counters.left += 1;
            faults.sent.overtake();
            faults.sent_ready.extend(sent);
            self.send(now, len, hop, &fate.to_string());
        }
        self.release_sent(now);
    }

    fn flush(&mut self, now: Instant) {
        self.flush_by(now, |link| link.flush(now));
    }

    fn flush_whole_runs(&mut self, now: Instant) -> usize {
        self.flush_by(now, |link| link.flush_whole_runs(now))
    }

    fn settle(&mut self) {
        self.inner.settle();
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        self.inner.hop(source, destination)
    }

    fn route_changes(&self) -> u64 {
        self.inner.route_changes()
    }

    fn ethernet_header(&self, hop: Hop) -> Option<EthernetHeader> {
        self.inner.ethernet_header(hop)
    }

    fn imposed(&self) -> Option<Imposed> {
        self.inner.imposed()
    }

    fn max_packet_bytes(&self) -> usize {
        self.inner.max_packet_bytes()
    }

    fn poll_fds(&self) -> Vec<RawFd> {
        self.inner.poll_fds()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let capture = self.capture.as_ref().and_then(Capture::poll_timeout);
        let faults = self.faults.as_ref().and_then(|faults| {
            // Packets for which there was no buffer go when the link has sent others, which wakes nobody.
            if !faults.received_ready.is_empty() || !faults.sent_ready.is_empty() {
                return Some(Instant::ZERO);
            }
            earliest([faults.sent.poll_timeout(), faults.received.poll_timeout()])
        });
        earliest([self.inner.poll_timeout(), capture, faults])
    }

    fn mode(&self) -> String {
        self.inner.mode()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.inner.counters();
        if let Some(capture) = &self.capture {
            let (frames, missed) = capture.frames();
            counters.extend([("capture_frames", frames), ("capture_missed", missed)]);
        }
        if let Some(faults) = &self.faults {
            let (tx, rx) = (&faults.sent_counters, &faults.received_counters);
            // A frame whose double is still to be made counts as two, as it will leave.
            let waiting = |c: &Counters| c.entered + c.duplicated - c.left - c.lost - c.overflowed;
            counters.extend([
                ("fault_tx_entered", tx.entered),
                ("fault_tx_left", tx.left),
                ("fault_tx_lost", tx.lost),
                ("fault_tx_duplicated", tx.duplicated),
                ("fault_tx_corrupted", tx.corrupted),
                ("fault_tx_delayed", tx.delayed),
                ("fault_tx_reordered", tx.reordered),
                ("fault_tx_overflowed", tx.overflowed),
                ("fault_tx_held", waiting(tx)),
                ("fault_rx_entered", rx.entered),
                ("fault_rx_left", rx.left),
                ("fault_rx_lost", rx.lost),
                ("fault_rx_duplicated", rx.duplicated),
                ("fault_rx_corrupted", rx.corrupted),
                ("fault_rx_delayed", rx.delayed),
                ("fault_rx_reordered", rx.reordered),
                ("fault_rx_overflowed", rx.overflowed),
                ("fault_rx_held", waiting(rx)),
            ]);
        }
        counters
    }
}

#[cfg(test)]
mod tests;

//! Frames are conserved under every mix of faults, the capture holds what the wire saw, and a seed settles everything.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::link::memory::{Gives, MemoryLink, Sent};
use crate::pcap::{CapturedFrame, Format, Reader};
use crate::time::Duration;
use crate::wire::{Addresses, Extension, Flow, Headers, Opcode, Packet, Psn, Qpn, RoceFrame};

fn header() -> EthernetHeader {
    EthernetHeader::new([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], Some((5, 0x8100)))
}

/// A file in memory that the test keeps a hand on.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn frames(&self) -> Vec<CapturedFrame> {
        Reader::new(&self.0.lock().unwrap()[..]).unwrap().map(Result::unwrap).collect()
    }
}

/// A link over which hop 7 is resolved, and the file that it is captured to.
fn tapped(spec: &str) -> (Tapped<MemoryLink>, Shared) {
    let link = MemoryLink::new(1500, Gives { resolved: Some((Hop(7), header())), ..Gives::default() });
    let file = Shared::default();
    let capture = Capture::new("memory".into(), Box::new(file.clone()), Format::Pcapng).unwrap();
    (Tapped::new(link, Some(capture), Some(spec.parse().unwrap())), file)
}

/// An IP packet whose PSN is its number.
fn packet(psn: u32) -> Vec<u8> {
    let addresses = Addresses::V4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    let flow = Flow { addresses, source_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let headers =
        Headers { bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(3), Psn::new(psn)), extension: Extension::None };
    let mut packet = vec![0; 200];
    let len = headers.write(&mut packet, &flow, 0, 32, |_| Ok::<_, Infallible>(())).unwrap();
    packet.truncate(len);
    packet
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header().len()];
    header().write(&mut bytes, packet[0] >> 4);
    [&bytes, packet].concat()
}

/// PSN and whether the ICRC is right; a corrupted BTH can make it any PSN.
fn read(frame: &[u8]) -> (u32, bool) {
    let roce = RoceFrame::parse(FrameBytes::from(frame)).unwrap();
    let psn = Bth::psn(zerocopy::FromBytes::ref_from_prefix(roce.ib.head).unwrap().0).value();
    (psn, roce.icrc_ok() && Packet::parse(roce.ib).is_ok())
}

fn send(link: &mut Tapped<MemoryLink>, now: Instant, psn: u32) {
    let packet = packet(psn);
    link.transmit_buffer().unwrap()[..packet.len()].copy_from_slice(&packet);
    link.transmit(now, packet.len(), Hop(7));
}

fn us(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

fn counter(link: &Tapped<MemoryLink>, name: &str) -> u64 {
    link.counters().into_iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// What came out of `count` frames 10 µs apart, in both directions, with the capture and the counters.
type Run = (Vec<Sent>, Vec<Vec<u8>>, Vec<CapturedFrame>, BTreeMap<&'static str, u64>);

fn run(spec: &str, count: u32) -> Run {
    let (mut link, file) = tapped(spec);
    let mut received = Vec::new();
    let mut now = Instant::ZERO;
    for i in 0..count {
        now = us(u64::from(i) * 10);
        link.inner().gives().arriving.push_back(Frame::from_vec(frame(&packet(i))));
        link.receive(now, &mut received, 8);
        send(&mut link, now, i);
        link.flush(now);
        let c: BTreeMap<_, _> = link.counters().into_iter().collect();
        for side in ["tx", "rx"] {
            let at = |name: &str| c[format!("fault_{side}_{name}").as_str()];
            let held = match &link.faults {
                Some(f) if side == "tx" => f.sent.len() + f.sent_ready.len(),
                Some(f) => f.received.len() + f.received_ready.len(),
                None => 0,
            };
            assert!(at("held") >= held as u64, "doubles of held frames are counted, too: {spec}");
            assert_eq!(
                at("entered") + at("duplicated"),
                at("left") + at("lost") + at("overflowed") + at("held"),
                "{spec}"
            );
        }
    }
    while let Some(due) = link.poll_timeout() {
        now = now.max(due);
        link.receive(now, &mut received, 8);
        link.flush(now);
    }
    let counters = link.counters().into_iter().collect();
    let Tapped { inner, capture, .. } = link;
    drop(capture);
    let received = received.iter().map(|f| f.bytes().to_vec()).collect();
    (inner.given().sent, received, file.frames(), counters)
}

#[test]
fn frames_are_conserved_whatever_happens_to_them() {
    for (spec, loses) in [
        ("loss=0.2,seed=1", true),
        ("dup=0.2,seed=2", false),
        ("reorder=0.2,seed=3", false),
        ("delay=200us,seed=4", false),
        ("delay=200us,delay_share=0.3,seed=5", false),
        ("corrupt=0.2,seed=6", false),
        ("loss=0.1,dup=0.1,reorder=0.1,delay=55us,delay_share=0.5,corrupt=0.1,seed=7", true),
        ("loss=1", true),
    ] {
        let count = 1000;
        let (sent, received, _, counters) = run(spec, count);
        for (side, out) in [("tx", sent.len()), ("rx", received.len())] {
            let at = |name: &str| counters[format!("fault_{side}_{name}").as_str()];
            assert_eq!(at("entered"), u64::from(count));
            assert_eq!((at("held"), at("overflowed"), at("left")), (0, 0, out as u64), "{spec} {side}");
            assert_eq!(at("entered") + at("duplicated"), at("left") + at("lost"), "{spec} {side}");
            assert_eq!(at("lost") > 0, loses);
        }
        // Every frame that is there is one that was sent, or a corrupted one that the ICRC tells.
        let frames: Vec<_> = sent.iter().map(|(packet, ..)| frame(packet)).collect();
        for frames in [&frames, &received] {
            let good = frames.iter().map(|f| read(f)).filter(|(_, ok)| *ok);
            let psns: std::collections::BTreeSet<_> = good.map(|(psn, _)| psn).collect();
            assert!(psns.iter().all(|psn| *psn < count));
        }
    }
}

#[test]
fn a_seed_settles_the_fate_of_every_frame() {
    let spec = "loss=0.1,dup=0.1,reorder=0.1,delay=55us,delay_share=0.5,corrupt=0.1,seed=";
    let once = run(&format!("{spec}7"), 500);
    assert_eq!(once, run(&format!("{spec}7"), 500));
    assert_ne!(once.0, run(&format!("{spec}8"), 500).0);
}

#[test]
fn the_capture_holds_what_left_and_marks_what_did_not() {
    let (sent, _, frames, counters) =
        run("loss=0.1,dup=0.1,reorder=0.1,delay=55us,delay_share=0.5,corrupt=0.1,seed=7,direction=tx", 1000);
    let outgoing: Vec<_> = frames.iter().filter(|f| f.direction == Some(Direction::Sent)).collect();
    let is_lost = |f: &CapturedFrame| f.comment.as_deref() == Some("fault: lost");
    let left: Vec<_> = outgoing.iter().filter(|f| !is_lost(f)).collect();
    assert_eq!(left.len(), sent.len());
    for (captured, (packet, _, time)) in left.iter().zip(&sent) {
        assert_eq!((&captured.bytes, captured.time), (&frame(packet), *time));
        let comment = captured.comment.as_deref().unwrap_or("");
        assert_eq!(read(&captured.bytes).1, !comment.contains("corrupted"), "{comment}");
    }
    let count =
        |text: &str| outgoing.iter().filter(|f| f.comment.as_deref().unwrap_or("").contains(text)).count() as u64;
    assert_eq!(count("fault: lost"), counters["fault_tx_lost"]);
    assert_eq!(count("(copy)"), counters["fault_tx_duplicated"]);
    assert_eq!(counters["capture_frames"], frames.len() as u64);
}

#[test]
fn received_frames_are_captured_as_they_arrive() {
    let (_, received, frames, counters) = run("loss=0.2,dup=0.2,corrupt=0.3,delay=1ms,seed=9,direction=rx", 500);
    let incoming: Vec<_> = frames.iter().filter(|f| f.direction == Some(Direction::Received)).collect();
    assert_eq!(incoming.len(), 500);
    for (i, captured) in incoming.iter().enumerate() {
        assert_eq!((read(&captured.bytes), captured.time), ((i as u32, true), us(i as u64 * 10)));
    }
    let lost = incoming.iter().filter(|f| f.comment.as_deref() == Some("fault: lost")).count();
    assert_eq!(lost as u64, counters["fault_rx_lost"]);
    let corrupted = received.iter().filter(|f| !read(f).1).count() as u64;
    assert!(corrupted >= counters["fault_rx_corrupted"], "every corrupted one is found, doubles twice");
}

#[test]
fn without_faults_everything_passes_and_is_recorded() {
    let (mut link, file) = tapped("");
    assert!(link.faults.is_none());
    send(&mut link, us(1), 5);
    let mut frames = Vec::new();
    link.inner().gives().arriving.extend([1, 2, 3].map(|i| Frame::from_vec(frame(&packet(i)))));
    assert_eq!((link.receive(us(2), &mut frames, 2), link.receive(us(3), &mut frames, 2)), (2, 1));
    // Another hop, which has no Ethernet address yet.
    let packet = packet(6);
    link.transmit_buffer().unwrap()[..packet.len()].copy_from_slice(&packet);
    link.transmit(us(4), packet.len(), Hop(1));
    assert_eq!(link.poll_timeout(), Some(us(100_001)), "the capture wants to go to the file");
    link.flush(us(100_001));
    assert_eq!((link.poll_timeout(), link.inner().given().flushes, counter(&link, "tx_frames")), (None, 1, 2));
    let captured = file.frames();
    assert_eq!(
        captured.iter().map(|f| read(&f.bytes)).collect::<Vec<_>>(),
        [(5, true), (1, true), (2, true), (3, true), (6, true)]
    );
    assert_eq!(captured[4].bytes[..12], [0; 12]);
    assert_eq!(
        captured.iter().map(|f| f.comment.as_deref()).collect::<Vec<_>>(),
        [None, None, None, None, Some(UNRESOLVED)]
    );
}

#[test]
fn delayed_frames_are_due_when_they_say() {
    let (mut link, _) = tapped("delay=2ms");
    send(&mut link, us(10), 1);
    assert_eq!(
        (link.inner().given().sent.len(), link.poll_timeout(), counter(&link, "fault_tx_held")),
        (0, Some(us(2010)), 1)
    );
    link.flush(us(2009));
    assert_eq!(link.inner().given().sent.len(), 0);
    link.flush(us(2010));
    assert_eq!((link.inner().given().sent.len(), counter(&link, "fault_tx_held")), (1, 0));
}

#[test]
fn more_than_can_be_held_is_dropped_and_counted() {
    let (mut link, file) = tapped("delay=1s,dup=1");
    for i in 0..HELD_FRAMES_MAX as u32 + 10 {
        send(&mut link, us(0), i);
    }
    assert_eq!(
        (counter(&link, "fault_tx_overflowed"), counter(&link, "fault_tx_held")),
        (20, 2 * HELD_FRAMES_MAX as u64)
    );
    link.flush(us(1_000_000));
    assert_eq!((link.inner().given().sent.len(), counter(&link, "fault_tx_held")), (2 * HELD_FRAMES_MAX, 0));
    drop(link);
    let overflowed =
        file.frames().iter().filter(|f| f.comment.as_deref() == Some("fault: lost, too many held")).count();
    assert_eq!(overflowed, 10);
}

#[test]
fn frames_wait_for_a_transmit_buffer_when_there_is_none() {
    let (mut link, _) = tapped("dup=1");
    link.inner().gives().buffers = Some(1);
    send(&mut link, us(0), 1);
    assert_eq!((link.inner().given().sent.len(), link.poll_timeout()), (1, Some(Instant::ZERO)));
    link.inner().gives().buffers = None;
    link.flush(us(1));
    assert_eq!(link.inner().given().sent.len(), 2);
    assert_eq!(link.inner().given().sent[0].0, link.inner().given().sent[1].0);
    let timeout = link.poll_timeout();
    assert_eq!(timeout, Some(us(0) + Duration::from_millis(100)), "only the capture is left");
}

#[test]
fn doubles_beyond_the_budget_come_the_next_time() {
    let (mut link, _) = tapped("dup=1");
    link.inner().gives().arriving.extend([1, 2].map(|i| Frame::from_vec(frame(&packet(i)))));
    let mut frames = Vec::new();
    assert_eq!((link.receive(us(0), &mut frames, 2), link.poll_timeout()), (2, Some(Instant::ZERO)));
    assert_eq!((link.receive(us(0), &mut frames, 3), link.receive(us(0), &mut frames, 3)), (2, 0));
    assert_eq!(frames.iter().map(|f| read(f.bytes().head).0).collect::<Vec<_>>(), [1, 1, 2, 2]);
}

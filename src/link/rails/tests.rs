//! Rails of links in memory: what goes where, what is copied, and that one that has failed stops none of the others.

use std::sync::{Arc, Mutex};

use super::*;

/// What a link in memory was given, and what it gives.
#[derive(Default)]
struct Inside {
    sent: Vec<(Vec<u8>, Hop)>,
    arriving: Vec<Frame>,
    /// Buffers that it has; each packet takes one for good.
    buffers: usize,
    flushed: usize,
    hops: Vec<(IpAddr, IpAddr)>,
    has_route: bool,
    changes: u64,
}

/// A link in memory; the test looks into it.
struct Memory {
    inside: Arc<Mutex<Inside>>,
    buffer: Vec<u8>,
    is_lent: bool,
    number: u8,
}

impl Link for Memory {
    fn receive(&mut self, _: Instant, frames: &mut Vec<Frame>, budget: usize) -> usize {
        let mut inside = self.inside.lock().unwrap();
        let count = budget.min(inside.arriving.len());
        frames.extend(inside.arriving.drain(..count));
        count
    }
    fn transmit_buffer(&mut self) -> Option<&mut [u8]> {
        self.is_lent |= self.inside.lock().unwrap().buffers > 0;
        self.is_lent.then_some(&mut self.buffer[..])
    }
    fn transmit(&mut self, _: Instant, len: usize, hop: Hop) {
        assert!(std::mem::take(&mut self.is_lent), "no buffer is lent");
        let mut inside = self.inside.lock().unwrap();
        inside.buffers -= 1;
        inside.sent.push((self.buffer[..len].to_vec(), hop));
    }
    fn flush(&mut self, _: Instant) {
        self.inside.lock().unwrap().flushed += 1;
    }
    fn hop(&mut self, source: IpAddr, destination: IpAddr) -> Result<Hop, HopError> {
        let mut inside = self.inside.lock().unwrap();
        if !inside.has_route {
            return Err(HopError::NoRoute(source, destination));
        }
        inside.hops.push((source, destination));
        Ok(Hop(inside.hops.len() as u64 + 6))
    }
    fn route_changes(&self) -> u64 {
        self.inside.lock().unwrap().changes
    }
    fn max_packet_bytes(&self) -> usize {
        self.buffer.len()
    }
    fn poll_fds(&self) -> Vec<RawFd> {
        vec![100 + RawFd::from(self.number)]
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Some(Instant::from_ns(10 - u64::from(self.number)))
    }
    fn mode(&self) -> String {
        format!("memory{}", self.number)
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("tx_frames", self.inside.lock().unwrap().sent.len() as u64)]
    }
}

fn address(rail: u8, host: u8) -> IpAddr {
    IpAddr::from([10, 0, rail, host])
}

/// Rails with buffers of 100, 101, … bytes, of which each has a thousand.
fn rails(count: u8) -> (Rails, Vec<Arc<Mutex<Inside>>>) {
    let insides: Vec<_> = (0..count)
        .map(|_| Arc::new(Mutex::new(Inside { buffers: 1000, has_route: true, ..Inside::default() })))
        .collect();
    let rail = |(number, inside): (u8, &Arc<Mutex<Inside>>)| {
        let buffer = vec![0; 100 + usize::from(number)];
        let link = Box::new(Memory { inside: inside.clone(), buffer, is_lent: false, number });
        Rail { link, addresses: vec![address(number, 1)] }
    };
    (Rails::new((0..count).zip(&insides).map(rail).collect()), insides)
}

fn send(rails: &mut Rails, bytes: &[u8], hop: Hop) {
    rails.transmit_buffer().unwrap()[..bytes.len()].copy_from_slice(bytes);
    rails.transmit(Instant::ZERO, bytes.len(), hop);
}

fn counter(rails: &Rails, name: &str) -> u64 {
    rails.counters().into_iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no counter {name}")).1
}

/// A hop to each rail's peer.
fn hops(rails: &mut Rails) -> Vec<Hop> {
    (0..rails.rails.len() as u8).map(|rail| rails.hop(address(rail, 1), address(rail, 2)).unwrap()).collect()
}

#[test]
fn packets_leave_by_the_rail_of_their_hop_whole_and_in_order() {
    let (mut rails, insides) = rails(3);
    let hops = hops(&mut rails);
    // In turn, one alone, in turn without one, and anyhow.
    let mut order: Vec<usize> = (0..30).map(|n| n % 3).chain([1; 30]).chain((0..30).map(|n| n % 2)).collect();
    order.extend((0..200_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 16) as usize % 3));
    for (number, rail) in order.iter().enumerate() {
        send(&mut rails, &[number as u8, *rail as u8], hops[*rail]);
    }
    for (rail, inside) in insides.iter().enumerate() {
        let expected = order.iter().enumerate().filter(|(_, to)| **to == rail);
        let expected: Vec<_> = expected.map(|(number, _)| (vec![number as u8, rail as u8], Hop(7))).collect();
        assert_eq!(inside.lock().unwrap().sent, expected, "rail {rail}");
        assert_eq!(counter(&rails, COUNTERS[rail][0]), expected.len() as u64);
    }
    assert_eq!((counter(&rails, "tx_frames"), counter(&rails, "rails_lost")), (290, 0));
}

#[test]
fn who_takes_rails_in_turn_stays_with_one_or_leaves_one_out_pays_for_no_copy() {
    let (mut rails, _) = rails(3);
    let hops = hops(&mut rails);
    let mut copies = |order: &[usize]| {
        let before = counter(&rails, "rails_copied");
        order.iter().for_each(|&rail| send(&mut rails, &[1], hops[rail]));
        counter(&rails, "rails_copied") - before
    };
    let repeated = |pattern: &[usize]| -> Vec<usize> { pattern.iter().copied().cycle().take(60).collect() };
    assert_eq!(copies(&repeated(&[0, 1, 2])), 0);
    // Each change of habit costs one packet a rail at the most.
    assert!(copies(&repeated(&[1])) <= 3);
    assert_eq!(copies(&repeated(&[1])), 0);
    assert!(copies(&repeated(&[0, 2])) <= 3);
    assert_eq!(copies(&repeated(&[0, 2])), 0);
}

#[test]
fn a_rail_without_buffers_loses_its_own_packets_and_no_others() {
    let (mut rails, insides) = rails(2);
    let hops = hops(&mut rails);
    insides[1].lock().unwrap().buffers = 3;
    for number in 0..20 {
        send(&mut rails, &[number], hops[usize::from(number) % 2]);
    }
    let bytes = |rail: usize| insides[rail].lock().unwrap().sent.iter().map(|(b, _)| b[0]).collect::<Vec<_>>();
    assert_eq!(bytes(0), (0..20).step_by(2).collect::<Vec<u8>>());
    assert_eq!(bytes(1), [1, 3, 5]);
    assert_eq!(counter(&rails, "rails_lost"), 7);
    // It has some again.
    insides[1].lock().unwrap().buffers = 2;
    send(&mut rails, &[77], hops[1]);
    assert_eq!(bytes(1), [1, 3, 5, 77]);
    // None has any: nothing is lent, and nothing is lost.
    insides.iter().for_each(|inside| inside.lock().unwrap().buffers = 0);
    for state in &mut rails.rails {
        // What is lent stays so until it is used.
        if state.rail.link.transmit_buffer().is_some() {
            insides.iter().for_each(|inside| inside.lock().unwrap().buffers = 1);
            state.rail.link.transmit(Instant::ZERO, 1, Hop(7));
            insides.iter().for_each(|inside| inside.lock().unwrap().buffers = 0);
        }
    }
    assert!(rails.transmit_buffer().is_none());
    assert_eq!(counter(&rails, "rails_lost"), 7);
    let nowhere = Hop(5 << RAIL_SHIFT);
    insides[0].lock().unwrap().buffers = 1;
    send(&mut rails, &[1], nowhere);
    assert_eq!(counter(&rails, "rails_lost"), 8);
}

#[test]
fn the_same_buffer_is_lent_until_it_is_sent() {
    let (mut rails, insides) = rails(2);
    let hops = hops(&mut rails);
    rails.transmit_buffer().unwrap()[..2].copy_from_slice(&[4, 2]);
    assert_eq!(rails.transmit_buffer().unwrap()[..2], [4, 2]);
    assert_eq!(rails.transmit_buffer().unwrap().len(), 100, "what all rails can carry");
    rails.transmit(Instant::ZERO, 2, hops[1]);
    assert_eq!(insides[1].lock().unwrap().sent, [(vec![4, 2], Hop(7))]);
}

#[test]
fn each_rail_has_its_turn_to_receive() {
    let (mut rails, insides) = rails(3);
    for (number, inside) in insides.iter().enumerate() {
        inside.lock().unwrap().arriving = (0..40).map(|_| Frame::from_vec(vec![number as u8; 60])).collect();
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        let mut frames = Vec::new();
        assert_eq!(rails.receive(Instant::ZERO, &mut frames, 20), 20);
        seen.push(frames[0].bytes().head[0]);
        for rail in 0..3 {
            let share = frames.iter().filter(|frame| frame.bytes().head[0] == rail).count();
            assert!((6..=7).contains(&share), "{share} of 20 from rail {rail}");
        }
    }
    seen[..3].sort_unstable();
    assert_eq!(seen[..3], [0, 1, 2], "a busy rail does not starve the others");
    assert_eq!((0..3).map(|rail| counter(&rails, COUNTERS[rail][1])).collect::<Vec<_>>(), [40, 40, 40]);
    assert_eq!(rails.receive(Instant::ZERO, &mut Vec::new(), 20), 0);
    // One alone has all.
    insides[1].lock().unwrap().arriving = (0..40).map(|_| Frame::from_vec(vec![1; 60])).collect();
    assert_eq!(rails.receive(Instant::ZERO, &mut Vec::new(), 20), 20);
}

#[test]
fn the_source_address_says_which_rail_and_all_is_asked_of_it() {
    let (mut rails, insides) = rails(2);
    let [first, second] = [0, 1].map(|rail| rails.hop(address(rail, 1), address(rail, 2)).unwrap());
    assert_ne!(first, second);
    // Whose source is nobody's is for the first to say.
    rails.hop(address(9, 1), address(9, 2)).unwrap();
    let asked = |rail: usize| insides[rail].lock().unwrap().hops.clone();
    assert_eq!(asked(0), [(address(0, 1), address(0, 2)), (address(9, 1), address(9, 2))]);
    assert_eq!(asked(1), [(address(1, 1), address(1, 2))]);
    insides[1].lock().unwrap().has_route = false;
    let refused = rails.hop(address(1, 1), address(1, 2));
    assert_eq!(refused, Err(HopError::NoRoute(address(1, 1), address(1, 2))));
    assert_eq!(rails.route_changes(), 0);
    insides[1].lock().unwrap().changes = 3;
    assert_eq!(rails.route_changes(), 3);
}

#[test]
fn what_is_asked_of_the_whole_is_of_all_rails() {
    let (mut rails, insides) = rails(3);
    rails.flush(Instant::ZERO);
    assert!(insides.iter().all(|inside| inside.lock().unwrap().flushed == 1));
    assert_eq!(rails.mode(), "memory0+memory1+memory2");
    assert_eq!(rails.poll_fds(), [100, 101, 102]);
    assert_eq!(rails.poll_timeout(), Some(Instant::from_ns(8)));
    assert_eq!((rails.max_packet_bytes(), rails.imposed()), (100, None));
    assert_eq!(rails.ethernet_header(Hop(8 << RAIL_SHIFT)), None);
}

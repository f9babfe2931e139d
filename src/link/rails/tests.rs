//! Rails of links in memory: what goes where, what is copied, and that one that has failed stops none of the others.

use super::*;
use crate::link::memory::{Gives, MemoryLink};

fn address(rail: u8, host: u8) -> IpAddr {
    IpAddr::from([10, 0, rail, host])
}

/// Rails with buffers of 100, 101, … bytes.
fn rails(count: u8) -> (Rails, Vec<MemoryLink>) {
    let link = |number: u8| {
        let gives = Gives {
            next_hop: Some(Hop(7)),
            poll_fds: vec![100 + RawFd::from(number)],
            poll_timeout: Some(Instant::from_ns(10 - u64::from(number))),
            mode: format!("memory{number}"),
            ..Gives::default()
        };
        MemoryLink::new(100 + usize::from(number), gives)
    };
    let links: Vec<MemoryLink> = (0..count).map(link).collect();
    let rail =
        |(number, link): (u8, &MemoryLink)| Rail { link: Box::new(link.clone()), addresses: vec![address(number, 1)] };
    (Rails::new((0..count).zip(&links).map(rail).collect()), links)
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
    let (mut rails, links) = rails(3);
    let hops = hops(&mut rails);
    // In turn, one alone, in turn without one, and anyhow.
    let mut order: Vec<usize> = (0..30).map(|n| n % 3).chain([1; 30]).chain((0..30).map(|n| n % 2)).collect();
    order.extend((0..200_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 16) as usize % 3));
    for (number, rail) in order.iter().enumerate() {
        send(&mut rails, &[number as u8, *rail as u8], hops[*rail]);
    }
    for (rail, link) in links.iter().enumerate() {
        let expected = order.iter().enumerate().filter(|(_, to)| **to == rail);
        let expected: Vec<_> =
            expected.map(|(number, _)| (vec![number as u8, rail as u8], Hop(7), Instant::ZERO)).collect();
        assert_eq!(link.given().sent, expected, "rail {rail}");
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
    let (mut rails, links) = rails(2);
    let hops = hops(&mut rails);
    links[1].gives().buffers = Some(3);
    for number in 0..20 {
        send(&mut rails, &[number], hops[usize::from(number) % 2]);
    }
    let bytes = |rail: usize| links[rail].given().sent.iter().map(|(b, ..)| b[0]).collect::<Vec<_>>();
    assert_eq!(bytes(0), (0..20).step_by(2).collect::<Vec<u8>>());
    assert_eq!(bytes(1), [1, 3, 5]);
    assert_eq!(counter(&rails, "rails_lost"), 7);
    // It has some again.
    links[1].gives().buffers = Some(2);
    send(&mut rails, &[77], hops[1]);
    assert_eq!(bytes(1), [1, 3, 5, 77]);
    // None has any: nothing is lent, and nothing is lost.
    links.iter().for_each(|link| link.gives().buffers = Some(0));
    for state in &mut rails.rails {
        // What is lent stays so until it is used.
        if state.rail.link.transmit_buffer().is_some() {
            links.iter().for_each(|link| link.gives().buffers = Some(1));
            state.rail.link.transmit(Instant::ZERO, 1, Hop(7));
            links.iter().for_each(|link| link.gives().buffers = Some(0));
        }
    }
    assert!(rails.transmit_buffer().is_none());
    assert_eq!(counter(&rails, "rails_lost"), 7);
    let nowhere = Hop(5 << RAIL_SHIFT);
    links[0].gives().buffers = Some(1);
    send(&mut rails, &[1], nowhere);
    assert_eq!(counter(&rails, "rails_lost"), 8);
}

#[test]
fn the_same_buffer_is_lent_until_it_is_sent() {
    let (mut rails, links) = rails(2);
    let hops = hops(&mut rails);
    rails.transmit_buffer().unwrap()[..2].copy_from_slice(&[4, 2]);
    assert_eq!(rails.transmit_buffer().unwrap()[..2], [4, 2]);
    assert_eq!(rails.transmit_buffer().unwrap().len(), 100, "what all rails can carry");
    rails.transmit(Instant::ZERO, 2, hops[1]);
    assert_eq!(links[1].given().sent, [(vec![4, 2], Hop(7), Instant::ZERO)]);
}

#[test]
fn each_rail_has_its_turn_to_receive() {
    let (mut rails, links) = rails(3);
    for (number, link) in links.iter().enumerate() {
        link.gives().arriving = (0..40).map(|_| Frame::from_vec(vec![number as u8; 60])).collect();
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
    links[1].gives().arriving = (0..40).map(|_| Frame::from_vec(vec![1; 60])).collect();
    assert_eq!(rails.receive(Instant::ZERO, &mut Vec::new(), 20), 20);
}

#[test]
fn the_source_address_says_which_rail_and_all_is_asked_of_it() {
    let (mut rails, links) = rails(2);
    let [first, second] = [0, 1].map(|rail| rails.hop(address(rail, 1), address(rail, 2)).unwrap());
    assert_ne!(first, second);
    // Whose source is nobody's is for the first to say.
    rails.hop(address(9, 1), address(9, 2)).unwrap();
    let asked = |rail: usize| links[rail].given().asked.clone();
    assert_eq!(asked(0), [(address(0, 1), address(0, 2)), (address(9, 1), address(9, 2))]);
    assert_eq!(asked(1), [(address(1, 1), address(1, 2))]);
    links[1].gives().next_hop = None;
    let refused = rails.hop(address(1, 1), address(1, 2));
    assert_eq!(refused, Err(HopError::NoRoute(address(1, 1), address(1, 2))));
    assert_eq!(rails.route_changes(), 0);
    links[1].gives().route_changes = 3;
    assert_eq!(rails.route_changes(), 3);
}

#[test]
fn what_is_asked_of_the_whole_is_of_all_rails() {
    let (mut rails, links) = rails(3);
    rails.flush(Instant::ZERO);
    assert!(links.iter().all(|link| link.given().flushes == 1));
    assert_eq!(rails.mode(), "memory0+memory1+memory2");
    assert_eq!(rails.poll_fds(), [100, 101, 102]);
    assert_eq!(rails.poll_timeout(), Some(Instant::from_ns(8)));
    assert_eq!((rails.max_packet_bytes(), rails.imposed()), (100, None));
    assert_eq!(rails.ethernet_header(Hop(8 << RAIL_SHIFT)), None);
}

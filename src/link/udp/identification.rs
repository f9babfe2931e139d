//! The IPv4 identification of packets that came through a UDP socket: the ICRC covers it, and the socket does not show
//! it.
//!
//! A CRC is linear: the difference of the ICRC from the one computed with identification zero gives the identification.
//! That takes 16 of its 32 bits, so one in 65,536 damaged packets would pass instead of one in 4 billion. Senders count
//! their packets, or write the same number into all of them. A peer that has done so for a while must continue to,
//! which restores most of the bits.
//!
//! The same sum gives a packet that is sent another identification, without reading it again.

use std::net::Ipv4Addr;

use rustc_hash::FxHashMap;

use super::outbox::RUN_PACKETS_MAX;
use crate::time::{Duration, Instant};
use crate::wire::ICRC_BYTES;

/// The CRC-32 of Ethernet, reflected: bit 31 is the lowest power.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1, in that order.
const ONE: u32 = 1 << 31;

/// Where the identification and the checksum lie in an IPv4 header.
const FIELD: std::ops::Range<usize> = 4..6;
const CHECKSUM: std::ops::Range<usize> = 10..12;

/// Solves for the identification that makes a packet's ICRC right, or makes the ICRC right for an identification.
#[derive(Debug)]
pub(super) struct Solver {
    /// x^(8 n), by n: what n bytes of zeros do to a CRC.
    bytes: Vec<u32>,
    /// The inverse of that.
    undo_bytes: Vec<u32>,
}

impl Solver {
    /// A solver for packets of up to `max_packet_bytes` from the IP header to the ICRC.
    pub fn new(max_packet_bytes: usize) -> Solver {
        let powers = |step: fn(u32) -> u32| {
            let next = move |value: &u32| Some((0..8).fold(*value, |value, _| step(value)));
            std::iter::successors(Some(ONE), next).take(max_packet_bytes + 1).collect()
        };
        Solver { bytes: powers(multiply_by_x), undo_bytes: powers(divide_by_x) }
    }

    /// The identification of a packet that has `covered_bytes` from the IP header to the ICRC. To find that it is the `likely` one
    /// takes less.
    ///
    /// `difference` is the exclusive-or of its ICRC and the one computed with zero for the identification. `None` when
    /// no identification makes it right.
    pub fn solve(&self, difference: u32, covered_bytes: usize, likely: u16) -> Option<u16> {
        if self.difference(likely, covered_bytes) == Some(difference) {
            return Some(likely);
        }
        let field = multiply(difference, *self.undo_bytes.get(behind(covered_bytes)?)?);
        // The first byte on the wire enters the CRC at its low end.
        u16::try_from(field).ok().map(u16::swap_bytes)
    }

    /// The exclusive-or of the ICRC with this identification and the one with zero. `None` for a packet that is too short or too
    /// long.
    fn difference(&self, identification: u16, covered_bytes: usize) -> Option<u32> {
        // Two bytes of zeros more make up for the shift, with which the product of small numbers takes few steps.
        let power = self.bytes.get(behind(covered_bytes)? + 2)?;
        Some(multiply(u32::from(identification.swap_bytes()) << 16, *power))
    }

    /// Writes another identification into an IPv4 packet, with the header checksum and the ICRC that go with it. What
    /// was wrong with either stays wrong. A packet that is too short for an ICRC keeps its own.
    pub fn renumber(&self, packet: &mut [u8], identification: u16) {
        let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC_BYTES>() else { return };
        if covered.len() < CHECKSUM.end {
            return;
        }
        let before = u16::from_be_bytes([covered[FIELD.start], covered[FIELD.start + 1]]);
        if before == identification {
            return;
        }
        let Some(difference) = self.difference(before ^ identification, covered.len()) else { return };
        let checksum = u16::from_be_bytes([covered[CHECKSUM.start], covered[CHECKSUM.start + 1]]);
        let checksum = with_replaced(checksum, before, identification);
        covered[FIELD].copy_from_slice(&identification.to_be_bytes());
        covered[CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        *icrc = (u32::from_le_bytes(*icrc) ^ difference).to_le_bytes();
    }
}

/// The bytes of zeros that count as read after the identification: those behind it, and its own two.
fn behind(covered_bytes: usize) -> Option<usize> {
    covered_bytes.checked_sub(FIELD.start)
}

/// An internet checksum after one word of what it covers was replaced (RFC 1624).
fn with_replaced(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

fn multiply_by_x(value: u32) -> u32 {
    if value & 1 == 0 { value >> 1 } else { value >> 1 ^ POLYNOMIAL }
}

fn divide_by_x(value: u32) -> u32 {
    if value & ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 }
}

fn multiply(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = multiply_by_x(b);
    }
    product
}

/// The identifications that each peer uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracker {
    peers: FxHashMap<Ipv4Addr, Track>,
    /// When the tracker last looked for idle peers.
    swept_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Track {
    last: u16,
    at: Instant,
    /// Packets in a row that were near the one before, and that were equal to it; up to [`TRUSTED`].
    near: u8,
    equal: u8,
    /// When the first of the latest refusals was, and how many they are, up to [`REFUSALS_MAX`].
    refused_at: Instant,
    refusals: u8,
}

/// Packets in a row after which a peer must continue its pattern.
const TRUSTED: u8 = 64;

/// Maximum distance of a counting peer from its latest packet: one window, half of it lost or to other peers.
const NEAR: u64 = 64;

/// Upper bound on the remembered peers. For others any identification that solves the ICRC is accepted.
const PEERS_MAX: usize = 4096;

/// Silence after which a peer makes room for another. After its return it must continue its pattern after 64 packets
/// again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// Upper bound on the refusals of a peer in [`REFUSALS_EVERY`]: somebody else who sends in its name, at whatever numbers,
/// delays the peer's packets, and prevents none. A thousand damaged packets a second are refused as often as that.
const REFUSALS_MAX: u8 = 4;

/// The time in which refusals are counted.
const REFUSALS_EVERY: Duration = Duration::from_secs(60);

/// Minimum interval between two searches for idle peers, when there is no room: a search costs some 10 µs.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Tracker {
    /// Whether a packet with the solved `identification` is accepted.
    ///
    /// Without a pattern every identification is. A packet that breaks its peer's pattern is not, and the peer has no
    /// pattern from then on: so a sender that jumps loses one packet a jump, and at most [`REFUSALS_MAX`] a minute.
    pub fn accepts(&mut self, peer: Ipv4Addr, identification: u16, now: Instant) -> bool {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&peer) {
            self.forget_idle(now);
            if self.peers.len() >= PEERS_MAX {
                return true;
            }
        }
        let fresh = Track { last: identification, at: now, near: 0, equal: 0, refused_at: now, refusals: 0 };
        let track = self.peers.entry(peer).or_insert(fresh);
        let ahead = u64::from(identification.wrapping_sub(track.last));
        let behind = u64::from(track.last.wrapping_sub(identification));
        // Linux counts per destination, and adds up to a tick of 1 ms for each that has passed (ip_idents_reserve).
        let idle_ms = now.saturating_since(track.at).as_millis() as u64;
        let is_near = ahead <= NEAR + idle_ms || behind <= NEAR;
        let is_equal = ahead == 0;
        // Each run of ours begins with 0.
        let is_in_run = track.last == 0 && usize::from(identification) < RUN_PACKETS_MAX;
        let accepted = match track {
            Track { equal: TRUSTED, .. } => is_equal || is_in_run,
            Track { near: TRUSTED, .. } => is_near,
            _ => true,
        };
        if !accepted {
            let is_recent = track.refusals > 0 && now.saturating_since(track.refused_at) < REFUSALS_EVERY;
            let (refused_at, refusals) = if is_recent { (track.refused_at, track.refusals) } else { (now, 0) };
            let is_believed = refusals == REFUSALS_MAX;
            *track = Track { refused_at, refusals: (refusals + 1).min(REFUSALS_MAX), ..fresh };
            return is_believed;
        }
        track.near = if is_near { (track.near + 1).min(TRUSTED) } else { 0 };
        track.equal = if is_equal { (track.equal + 1).min(TRUSTED) } else { 0 };
        track.at = now;
        // One that was overtaken is no news of where the sender is, unless it begins a run.
        if behind == 0 || behind > NEAR || identification == 0 {
            track.last = identification;
        }
        true
    }

    fn forget_idle(&mut self, now: Instant) {
        if self.swept_at.is_some_and(|at| now.saturating_since(at) < SWEEP_EVERY) {
            return;
        }
        self.swept_at = Some(now);
        self.peers.retain(|_, track| now.saturating_since(track.at) < FORGOTTEN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::FrameBytes;
    use crate::wire::icrc;

    /// A packet with some identification, and what its ICRC differs by from one computed with zero.
    fn difference(len: usize, identification: u16) -> u32 {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        packet[0] = 0x45;
        packet[4..6].copy_from_slice(&identification.to_be_bytes());
        let right = icrc::compute(FrameBytes::from(&packet[..])).unwrap();
        packet[4..6].fill(0);
        right ^ icrc::compute(FrameBytes::from(&packet[..])).unwrap()
    }

    #[test]
    fn every_identification_is_found_at_every_length() {
        let solver = Solver::new(4200);
        for len in [40, 41, 60, 1084, 4160, 4200] {
            for identification in (0..=u16::MAX).step_by(251).chain([1, 0x00ff, 0xff00, u16::MAX]) {
                for likely in [0, identification, identification ^ 0x0101] {
                    let found = solver.solve(difference(len, identification), len, likely);
                    assert_eq!(found, Some(identification), "{len} bytes");
                }
            }
        }
        assert_eq!(solver.solve(1, 4201, 0), None, "longer than it was made for");
    }

    /// One wrong bit elsewhere is solved by no identification at all: a field of 16 bits and that bit is a burst, or as
    /// good as one.
    #[test]
    fn damage_elsewhere_is_hardly_ever_solved() {
        let solver = Solver::new(4200);
        let damaged = (0..32)
            .map(|bit| 1u32 << bit)
            .filter(|error| solver.solve(difference(1084, 77) ^ error, 1084, 77).is_some());
        assert_eq!(damaged.count(), 0);
        let solved =
            (1..=1_000_000u32).filter(|n| solver.solve(n.wrapping_mul(0x9e37_79b9), 1084, 0).is_some()).count();
        assert!((1..60).contains(&solved), "{solved} of a million: 15 are to be expected");
    }

    const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_counting_peer_is_held_to_its_count_and_may_be_idle() {
        let mut tracker = Tracker::default();
        assert!((0..200u16).all(|n| tracker.accepts(PEER, n.wrapping_add(65500), at(0))));
        let last = 199u16.wrapping_add(65500);
        for near in [last, last - 64, last + 1, last + 64] {
            assert!(tracker.clone().accepts(PEER, near, at(0)), "{near}");
        }
        for far in [last - 65, last + 65, last + 30000] {
            assert!(!tracker.clone().accepts(PEER, far, at(0)), "{far}");
        }
        assert!(tracker.accepts(PEER, last + 1000, at(1000)), "a second later");
    }

    #[test]
    fn a_peer_with_one_number_is_held_to_it() {
        let mut tracker = Tracker::default();
        assert!((0..100).all(|_| tracker.accepts(PEER, 7, at(0))));
        assert!(!tracker.accepts(PEER, 8, at(5000)));
    }

    /// As our own sockets number them: single packets, and runs that are lost in part.
    #[test]
    fn a_peer_that_sends_runs_loses_none_and_is_held_to_their_numbers() {
        let mut tracker = Tracker::default();
        let mut accepts = |mut run: std::ops::Range<u16>| run.all(|n| tracker.accepts(PEER, n, at(0)));
        assert!((0..100).all(|_| accepts(0..1)));
        for run in [0..15, 3..64, 63..64, 0..2] {
            assert!(accepts(run.clone()), "{run:?}");
            assert!((0..3).all(|_| accepts(0..1)));
        }
        assert!(!accepts(65..66));
        assert!((0..100).all(|_| accepts(0..1)));
        assert!(!accepts(64..65), "no run is that long");
    }

    /// Of every length, from and to any number, and with damage that stays what it was.
    #[test]
    fn a_packet_gets_another_number_without_being_read() {
        let solver = Solver::new(4200);
        let written = |len: usize, identification: u16| {
            let mut packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            packet[..20].copy_from_slice(&[0x45; 20]);
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            packet[10..12].fill(0);
            let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&packet[..20]).ones_complement().to_be();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            let icrc = icrc::compute(FrameBytes::from(&packet[..])).unwrap();
            packet.extend(icrc.to_le_bytes());
            packet
        };
        for len in [40, 41, 60, 1084, 4160, 4196] {
            for [from, to] in [[0, 1], [1, 0], [0, 63], [12, 12], [0xfffe, 0x0100], [0x1234, 0xffff]] {
                let mut packet = written(len, from);
                packet[25] ^= 0x10;
                solver.renumber(&mut packet, to);
                packet[25] ^= 0x10;
                assert_eq!(packet, written(len, to), "{len} bytes, {from:#x} to {to:#x}");
            }
        }
        for len in 0..16 {
            let mut short = vec![0x45; len];
            solver.renumber(&mut short, 9);
            assert_eq!(short, vec![0x45; len]);
        }
    }

    #[test]
    fn a_peer_that_jumps_loses_one_packet_a_jump_and_one_that_always_does_none() {
        let mut tracker = Tracker::default();
        assert!((0..100).all(|n| tracker.accepts(PEER, n, at(0))));
        assert!(!tracker.accepts(PEER, 20_000, at(0)));
        assert!((20_001..20_100).all(|n| tracker.accepts(PEER, n, at(0))));
        let mut tracker = Tracker::default();
        assert!((0..1000u16).all(|n| tracker.accepts(PEER, n.wrapping_mul(7919), at(0))));
    }

    /// A thousand packets a second in the peer's name, with numbers of their own, and one of the peer's each second.
    #[test]
    fn a_peer_in_whose_name_others_send_loses_four_packets_a_minute() {
        let jumps: [fn(u16) -> u16; 3] = [|n| n, |_| 7, |n| (n / 100).wrapping_mul(7919)];
        for forged in jumps {
            let mut tracker = Tracker::default();
            let lost = |seconds: std::ops::Range<u16>, tracker: &mut Tracker| {
                let lost = seconds.filter(|second| {
                    for n in 0..1000 {
                        tracker.accepts(PEER, forged(n), at(u64::from(*second) * 1000));
                    }
                    !tracker.accepts(PEER, 30_000, at(u64::from(*second) * 1000))
                });
                lost.count()
            };
            assert!(lost(0..60, &mut tracker) <= 4);
            assert!(lost(60..120, &mut tracker) <= 4);
        }
        let mut tracker = Tracker::default();
        assert!((0..100).all(|_| tracker.accepts(PEER, 0, at(0))));
        let refused = (0..1000u16).filter(|n| !(0..65).all(|_| tracker.accepts(PEER, 1 + n, at(1)))).count();
        assert_eq!(refused, 4);
        tracker.accepts(PEER, 0, at(70_000));
        assert!((0..65).all(|_| tracker.accepts(PEER, 0, at(70_000))));
        assert!(!tracker.accepts(PEER, 64, at(70_000)), "a minute later it is held to its number again");
    }

    #[test]
    fn more_peers_than_are_remembered_are_believed() {
        let mut tracker = Tracker::default();
        let peers = (0..2 * PEERS_MAX as u32).map(Ipv4Addr::from);
        assert!(peers.clone().all(|peer| tracker.accepts(peer, 1, at(0))));
        assert_eq!(tracker.peers.len(), PEERS_MAX);
    }

    #[test]
    fn a_peer_that_is_silent_for_a_minute_makes_room_for_a_new_one() {
        let mut tracker = Tracker::default();
        let old = (0..PEERS_MAX as u32).map(Ipv4Addr::from);
        assert!(old.clone().all(|peer| tracker.accepts(peer, 1, at(0))));
        // Half of them go on; the new one is believed meanwhile, but not held to anything.
        old.step_by(2).for_each(|peer| assert!(tracker.accepts(peer, 1, at(59_000))));
        let new = Ipv4Addr::new(10, 0, 0, 2);
        assert!((0..100).all(|n| tracker.accepts(new, n * 500, at(59_500))));
        assert_eq!(tracker.peers.len(), PEERS_MAX);
        assert!((0..100).all(|_| tracker.accepts(new, 7, at(60_500))));
        assert_eq!(tracker.peers.len(), PEERS_MAX / 2 + 1);
        assert!(!tracker.accepts(new, 8, at(60_501)), "it is held to its number");
    }
}

use std::net::IpAddr;

use arrayvec::ArrayVec;

use crate::frame::Hop;
use crate::time::{Duration, Instant};
use crate::wire::{AddressList, Addresses};

/// The rails of one queue pair: the pairs of addresses that its packets go between.
///
/// Rail 0 is the queue pair's address vector. Each side announces its further addresses to the other, and rail i is
/// between the two that were announced i-th. A rail is used once the link has resolved a next hop for it, and a probe
/// has come back over it. When a peer announces addresses of other hosts, these are probed, and nothing more.
#[derive(Debug, Default)]
pub(super) struct Rails {
    own: ArrayVec<IpAddr, { AddressList::MAX }>,
    peer: ArrayVec<IpAddr, { AddressList::MAX }>,
    /// Whether the peer has announced its further addresses.
    peer_said: bool,
    /// Whether the peer has confirmed that it knows ours.
    peer_knows: bool,
    /// Next hops, from rail 1 on, and whether the link must resolve any.
    hops: [RailHop; AddressList::MAX],
    has_query: bool,
    /// Whether a list is owed to the peer.
    is_owed: bool,
    /// When to repeat the list while the peer does not know it, and how often it was repeated.
    repeat_at: Option<Instant>,
    repeats: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct RailHop {
    hop: Option<Hop>,
    /// Whether the link must resolve the hop.
    is_wanted: bool,
}

/// A rail whose next hop the link must resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailQuery {
    pub rail: u8,
    pub source: IpAddr,
    pub destination: IpAddr,
}

/// The first interval before a list is repeated; it doubles each time.
const REPEAT_AFTER: Duration = Duration::from_millis(10);

/// Upper bound on the repetitions of a list: the last is due after ten seconds.
const REPEATS_MAX: u32 = 10;

impl Rails {
    /// The rails of a queue pair with these addresses, on a device whose further interfaces have the addresses `local`.
    pub fn new(addresses: Addresses, local: &[Vec<IpAddr>], now: Instant) -> Rails {
        let own: ArrayVec<_, { AddressList::MAX }> =
            local.iter().filter_map(|interface| address_for(addresses, interface)).take(AddressList::MAX).collect();
        let is_owed = !own.is_empty();
        let repeat_at = is_owed.then(|| now + REPEAT_AFTER);
        Rails { own, is_owed, repeat_at, ..Rails::default() }
    }

    /// The number of rails, with rail 0.
    pub fn count(&self) -> usize {
        1 + self.own.len().min(self.peer.len())
    }

    /// Whether the peer can still announce addresses that make rails.
    pub fn may_grow(&self) -> bool {
        !self.peer_said && self.repeat_at.is_some()
    }

    /// The addresses and the next hop of a rail, from 1 on. `None` when there is no such rail, or the link knows no
    /// next hop.
    pub fn rail(&self, rail: usize) -> Option<(Addresses, Hop)> {
        let index = rail.checked_sub(1).filter(|_| rail < self.count())?;
        let hop = self.hops[index].hop?;
        Some((Addresses::new(self.own[index], self.peer[index])?, hop))
    }

    /// The rail, from 1 on, that a packet with these addresses came over, if it is one.
    pub fn find(&self, addresses: Addresses) -> Option<u8> {
        let pair = (addresses.destination(), addresses.source());
        let rails = self.own.iter().zip(&self.peer);
        rails.zip(1..).find(|((own, peer), _)| (**own, **peer) == pair).map(|(_, rail)| rail)
    }

    /// Takes the peer's list of further addresses. Returns whether it is accepted: the list must not change, and each
    /// address must be usable.
    pub fn take(&mut self, list: &AddressList, primary: Addresses) -> bool {
        let addresses: ArrayVec<IpAddr, { AddressList::MAX }> = list.addresses.clone();
        if self.peer_said && addresses != self.peer {
            return false;
        }
        let usable = |(index, address): (usize, &IpAddr)| {
            address.is_ipv4() == primary.source().is_ipv4()
                && !(address.is_unspecified() || address.is_multicast() || address.is_loopback())
                && *address != IpAddr::from([255; 4])
                && *address != primary.destination()
                && !addresses[..index].contains(address)
        };
        if !addresses.iter().enumerate().all(usable) {
            return false;
        }
        if !self.peer_said {
            (self.peer, self.peer_said) = (addresses, true);
            self.ask_again();
        }
        self.peer_knows |= list.is_known;
        if self.peer_knows {
            self.repeat_at = None;
        }
        // A peer that reports that it does not know our list gets it again.
        self.is_owed |= !list.is_known;
        true
    }

    /// Takes the list to be sent now, if one is owed.
    pub fn poll(&mut self) -> Option<AddressList> {
        std::mem::take(&mut self.is_owed).then(|| AddressList { addresses: self.own.clone(), is_known: self.peer_said })
    }

    pub fn is_owed(&self) -> bool {
        self.is_owed
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.repeat_at
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.repeat_at.is_none_or(|at| at > now) {
            return;
        }
        self.is_owed = true;
        self.repeats += 1;
        self.repeat_at = (self.repeats < REPEATS_MAX).then(|| now + REPEAT_AFTER * (1 << self.repeats));
    }

    /// The next rail whose next hop the link must resolve.
    pub fn poll_query(&mut self) -> Option<RailQuery> {
        let rails = self.count() - 1;
        let index = self.hops[..rails].iter().position(|hop| hop.is_wanted);
        self.has_query = index.is_some();
        let index = index?;
        self.hops[index].is_wanted = false;
        Some(RailQuery { rail: index as u8 + 1, source: self.own[index], destination: self.peer[index] })
    }

    /// Whether [`poll_query`](Self::poll_query) can have a rail.
    pub fn has_query(&self) -> bool {
        self.has_query
    }

    /// Takes the link's answer. Returns whether there is such a rail.
    pub fn hop_found(&mut self, query: RailQuery, hop: Option<Hop>) -> bool {
        let index = usize::from(query.rail).wrapping_sub(1);
        let is_ours =
            index < self.count() - 1 && (self.own[index], self.peer[index]) == (query.source, query.destination);
        if is_ours {
            self.hops[index].hop = hop;
        }
        is_ours
    }

    /// Has the link resolve the next hops of all rails: they are new, or its routes have changed.
    pub fn ask_again(&mut self) {
        let rails = self.count() - 1;
        self.hops[..rails].iter_mut().for_each(|hop| hop.is_wanted = true);
        self.has_query = rails > 0;
    }
}

/// The first address of an interface that fits a queue pair's own: of its family, and global before link-local.
fn address_for(primary: Addresses, interface: &[IpAddr]) -> Option<IpAddr> {
    let link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let of_family = || interface.iter().filter(|address| address.is_ipv4() == primary.source().is_ipv4());
    of_family().find(|address| !link_local(address)).or(of_family().next()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(source: &str, destination: &str) -> Addresses {
        Addresses::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap()
    }

    fn list(texts: &[&str], is_known: bool) -> AddressList {
        AddressList { addresses: texts.iter().map(|text| text.parse().unwrap()).collect(), is_known }
    }

    fn rails(interfaces: &[&[&str]]) -> (Rails, Addresses) {
        let local: Vec<Vec<IpAddr>> =
            interfaces.iter().map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect()).collect();
        let primary = addresses("10.0.0.1", "10.0.0.2");
        (Rails::new(primary, &local, Instant::ZERO), primary)
    }

    #[test]
    fn each_interface_gives_its_first_address_of_the_family_global_before_link_local() {
        let (mut rails, _) = rails(&[&["fe80::1", "10.1.0.1", "10.1.0.9"], &["fd00::1"], &["169.254.0.1", "10.2.0.1"]]);
        assert_eq!(rails.poll(), Some(list(&["10.1.0.1", "10.2.0.1"], false)));
        let primary = addresses("fd00::a", "fd00::b");
        let local = [vec!["fe80::1".parse().unwrap(), "fd01::1".parse().unwrap()], vec!["fe80::2".parse().unwrap()]];
        assert_eq!(Rails::new(primary, &local, Instant::ZERO).poll(), Some(list(&["fd01::1", "fe80::2"], false)));
    }

    #[test]
    fn a_rail_is_between_the_addresses_that_were_named_in_the_same_place() {
        let (mut rails, primary) = rails(&[&["10.1.0.1"], &["10.2.0.1"]]);
        assert!(rails.may_grow() && rails.count() == 1);
        assert!(rails.take(&list(&["10.1.0.2"], false), primary));
        assert_eq!((rails.count(), rails.may_grow()), (2, false));
        let query = rails.poll_query().unwrap();
        assert_eq!(rails.poll_query(), None);
        assert_eq!(rails.rail(1), None, "no hop yet");
        assert!(rails.hop_found(query, Some(Hop(7))));
        assert_eq!(rails.rail(1), Some((addresses("10.1.0.1", "10.1.0.2"), Hop(7))));
        assert_eq!(rails.find(addresses("10.1.0.2", "10.1.0.1")), Some(1));
        assert_eq!(rails.find(addresses("10.1.0.1", "10.1.0.2")), None, "our own packets");
        assert_eq!(rails.find(addresses("10.1.0.2", "10.2.0.1")), None, "across");
        assert!(!rails.hop_found(RailQuery { rail: 2, ..query }, Some(Hop(8))));
        assert!(!rails.hop_found(RailQuery { rail: 0, ..query }, Some(Hop(8))));
        rails.ask_again();
        assert_eq!(rails.poll_query(), Some(query));
    }

    #[test]
    fn a_list_is_repeated_until_the_peer_knows_it_and_not_for_ever() {
        let (mut rails, primary) = rails(&[&["10.1.0.1"]]);
        assert_eq!(rails.poll(), Some(list(&["10.1.0.1"], false)));
        assert_eq!(rails.poll(), None);
        rails.handle_timeout(rails.deadline().unwrap());
        assert_eq!(rails.poll(), Some(list(&["10.1.0.1"], false)));
        assert!(rails.take(&list(&[], false), primary));
        assert_eq!(rails.poll(), Some(list(&["10.1.0.1"], true)), "the peer does not know that we know");
        assert!(rails.take(&list(&[], true), primary));
        assert_eq!((rails.poll(), rails.deadline()), (None, None));

        let (mut rails, _) = self::rails(&[&["10.1.0.1"]]);
        let mut sent = 0;
        while let Some(at) = rails.deadline() {
            sent += u32::from(rails.poll().is_some());
            rails.handle_timeout(at);
        }
        assert_eq!(sent, REPEATS_MAX);
    }

    #[test]
    fn addresses_that_cannot_be_are_refused_and_what_was_said_is_not_changed() {
        let (mut rails, primary) = rails(&[&["10.1.0.1"], &["10.2.0.1"]]);
        for wrong in ["fd00::1", "0.0.0.0", "224.0.0.1", "127.0.0.1", "255.255.255.255", "10.0.0.2"] {
            assert!(!rails.take(&list(&[wrong], false), primary), "{wrong}");
        }
        assert!(!rails.take(&list(&["10.1.0.2", "10.1.0.2"], false), primary));
        assert_eq!((rails.count(), rails.has_query()), (1, false));
        assert!(rails.take(&list(&["10.1.0.2"], false), primary));
        assert!(!rails.take(&list(&["10.1.0.3"], true), primary));
        assert!(!rails.take(&list(&["10.1.0.2", "10.2.0.2"], true), primary));
        assert_eq!(rails.count(), 2);
    }
}

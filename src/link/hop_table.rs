use std::mem;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use super::Hop;

/// Upper bound on the next hops that a link remembers. One costs some 200 bytes.
pub(super) const MAX_HOPS: usize = 1 << INDEX_BITS;

/// The bits of a hop's number that are its place in the table,
const INDEX_BITS: u32 = 16;

/// and the bits above those, which count the hops that had that place before. The upper eight bits are left to
/// [`Rails`](super::Rails). At 20 µs for a hop, a place takes eight months to repeat a number, were it the only one.
const GENERATION_BITS: u32 = 40;

/// The next hops that a link has given out, by source and destination; `T` is what the link knows of one.
///
/// No caller gives a hop back: queue pairs, address handles and posted datagrams keep copies of its number for any
/// time. When the table is full, a new hop replaces one that was not used for nearly the longest time. The number of a
/// replaced hop is not given out again, so it never leads elsewhere. The link resolves the hop of such a packet again
/// from the addresses in the packet.
pub(super) struct HopTable<T> {
    entries: Vec<Entry<T>>,
    by_addresses: FxHashMap<(IpAddr, IpAddr), u32>,
    /// Where the search for a hop to replace continues.
    hand: usize,
}

struct Entry<T> {
    addresses: (IpAddr, IpAddr),
    generation: u64,
    /// Whether it was used since the search passed it: then it has a second chance.
    is_used: bool,
    value: T,
}

impl<T> HopTable<T> {
    pub(super) fn new() -> HopTable<T> {
        HopTable { entries: Vec::new(), by_addresses: FxHashMap::default(), hand: 0 }
    }

    /// The hop between these addresses, if it is remembered. This counts as a use of it.
    pub(super) fn find(&mut self, source: IpAddr, destination: IpAddr) -> Option<Hop> {
        let index = *self.by_addresses.get(&(source, destination))? as usize;
        self.entries[index].is_used = true;
        Some(self.number(index))
    }

    /// Remembers the hop between these addresses, which must not be there yet. Returns what was known of a hop that it
    /// replaced, if it replaced one.
    pub(super) fn insert(&mut self, source: IpAddr, destination: IpAddr, value: T) -> (Hop, Option<T>) {
        let addresses = (source, destination);
        let (index, forgotten) = if self.entries.len() < MAX_HOPS {
            self.entries.push(Entry { addresses, generation: 0, is_used: false, value });
            (self.entries.len() - 1, None)
        } else {
            let index = self.least_used();
            let entry = &mut self.entries[index];
            self.by_addresses.remove(&entry.addresses);
            let generation = (entry.generation + 1) % (1 << GENERATION_BITS);
            let old = mem::replace(entry, Entry { addresses, generation, is_used: false, value });
            (index, Some(old.value))
        };
        self.by_addresses.insert(addresses, index as u32);
        (self.number(index), forgotten)
    }

    /// What is known of the hop of a packet; `None` when it was replaced.
    pub(super) fn use_hop(&mut self, hop: Hop) -> Option<&mut T> {
        let index = self.index(hop)?;
        self.entries[index].is_used = true;
        Some(&mut self.entries[index].value)
    }

    /// What is known of a hop, without counting as a use.
    pub(super) fn get(&self, hop: Hop) -> Option<&T> {
        Some(&self.entries[self.index(hop)?].value)
    }

    /// What is known of a hop, to be changed, without counting as a use.
    pub(super) fn get_mut(&mut self, hop: Hop) -> Option<&mut T> {
        let index = self.index(hop)?;
        Some(&mut self.entries[index].value)
    }

    /// The number of hops.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hop at a place below [`len`](Self::len), with its source and destination.
    pub(super) fn at(&self, index: usize) -> (Hop, IpAddr, IpAddr) {
        let (source, destination) = self.entries[index].addresses;
        (self.number(index), source, destination)
    }

    /// The place of a hop; `None` when it was replaced.
    fn index(&self, hop: Hop) -> Option<usize> {
        let index = hop.0 as usize % MAX_HOPS;
        (self.entries.get(index)?.generation == hop.0 >> INDEX_BITS).then_some(index)
    }

    fn number(&self, index: usize) -> Hop {
        Hop(self.entries[index].generation << INDEX_BITS | index as u64)
    }

    /// The next hop that was not used since the search passed it. It is found within two rounds.
    fn least_used(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (index + 1) % self.entries.len();
            if !mem::take(&mut self.entries[index].is_used) {
                return index;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn address(number: usize) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number as u32).to_be_bytes())
    }

    fn insert(table: &mut HopTable<usize>, number: usize) -> (Hop, Option<usize>) {
        table.insert(SOURCE, address(number), number)
    }

    /// A full table and the hops in it.
    fn full() -> (HopTable<usize>, Vec<Hop>) {
        let mut table = HopTable::new();
        let hops = (0..MAX_HOPS).map(|number| insert(&mut table, number).0).collect();
        (table, hops)
    }

    #[test]
    fn a_full_table_forgets_one_hop_for_each_new_one_and_the_oldest_first() {
        let (mut table, hops) = full();
        for number in MAX_HOPS..2 * MAX_HOPS + 3 {
            let (_, forgotten) = insert(&mut table, number);
            assert_eq!(forgotten, Some(number - MAX_HOPS));
            assert_eq!(table.find(SOURCE, address(number - MAX_HOPS)), None);
        }
        assert_eq!((table.len(), table.by_addresses.len()), (MAX_HOPS, MAX_HOPS));
        assert!(hops.iter().all(|hop| table.get(*hop).is_none()));
    }

    #[test]
    fn the_number_of_a_forgotten_hop_never_means_another_one() {
        let (mut table, hops) = full();
        let mut former = vec![hops[0]];
        for round in 1..=5 {
            let new: Vec<Hop> = (0..MAX_HOPS).map(|number| insert(&mut table, round * MAX_HOPS + number).0).collect();
            assert_eq!(table.at(0), (new[0], SOURCE, address(round * MAX_HOPS)));
            assert_eq!(table.get(new[0]), Some(&(round * MAX_HOPS)));
            for hop in &former {
                assert_eq!((table.get(*hop).copied(), table.use_hop(*hop).copied()), (None, None), "{hop:?}");
            }
            assert!(!former.contains(&new[0]));
            former.push(new[0]);
        }
        assert!(table.get(Hop(u64::MAX)).is_none());
    }

    #[test]
    fn what_is_used_is_not_forgotten() {
        let (mut table, hops) = full();
        let (sent, asked, idle) = (hops[5], hops[7], hops[6]);
        for number in MAX_HOPS..4 * MAX_HOPS {
            if number % (MAX_HOPS / 2) == 0 {
                assert_eq!(table.use_hop(sent), Some(&mut 5));
                assert_eq!(table.find(SOURCE, address(7)), Some(asked));
            }
            insert(&mut table, number);
        }
        assert_eq!((table.get(sent), table.get(asked), table.get(idle)), (Some(&5), Some(&7), None));
    }
}

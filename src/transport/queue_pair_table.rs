use crate::wire::Qpn;

/// Things by the number of their queue pair. One of many is found with one look at what others have not used just before: a hash
/// table would take two.
pub(super) struct QueuePairTable<T> {
    /// By the upper half of the number, and then by the lower half. The numbers of an endpoint have few upper halves.
    halves: Vec<Option<Half<T>>>,
    len: usize,
}

type Half<T> = Box<[Option<Box<T>>]>;

/// Bits of a number in each half.
const BITS: u32 = 12;

/// What each half can be.
const PLACES: usize = 1 << BITS;

impl<T> Default for QueuePairTable<T> {
    fn default() -> QueuePairTable<T> {
        QueuePairTable { halves: Vec::new(), len: 0 }
    }
}

impl<T> QueuePairTable<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, qpn: Qpn) -> bool {
        self.get(qpn).is_some()
    }

    #[inline]
    pub fn get(&self, qpn: Qpn) -> Option<&T> {
        let (upper, lower) = split(qpn);
        self.halves.get(upper)?.as_deref()?[lower].as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, qpn: Qpn) -> Option<&mut T> {
        let (upper, lower) = split(qpn);
        self.halves.get_mut(upper)?.as_deref_mut()?[lower].as_deref_mut()
    }

    /// Puts in what belongs to a queue pair that has nothing here.
    pub fn insert(&mut self, qpn: Qpn, value: Box<T>) {
        let (upper, lower) = split(qpn);
        if self.halves.is_empty() {
            self.halves.resize_with(PLACES, || None);
        }
        let half = self.halves[upper].get_or_insert_with(|| (0..PLACES).map(|_| None).collect());
        let before = half[lower].replace(value);
        debug_assert!(before.is_none(), "{qpn:?} is in use");
        self.len += 1;
    }

    pub fn remove(&mut self, qpn: Qpn) -> Option<Box<T>> {
        let (upper, lower) = split(qpn);
        let removed = self.halves.get_mut(upper)?.as_deref_mut()?[lower].take()?;
        self.len -= 1;
        Some(removed)
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Qpn, &T)> {
        let halves = self.halves.iter().enumerate().filter_map(|(upper, half)| Some((upper, half.as_deref()?)));
        halves.flat_map(|(upper, half)| {
            half.iter().enumerate().filter_map(move |(lower, value)| Some((join(upper, lower), value.as_deref()?)))
        })
    }

    /// As [`iter`](Self::iter), to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Qpn, &mut T)> {
        let halves = self.halves.iter_mut().enumerate().filter_map(|(upper, half)| Some((upper, half.as_deref_mut()?)));
        halves.flat_map(|(upper, half)| {
            half.iter_mut()
                .enumerate()
                .filter_map(move |(lower, value)| Some((join(upper, lower), value.as_deref_mut()?)))
        })
    }
}

/// The upper and the lower half of a number.
fn split(qpn: Qpn) -> (usize, usize) {
    let number = qpn.value() as usize;
    (number >> BITS, number % PLACES)
}

fn join(upper: usize, lower: usize) -> Qpn {
    Qpn::new((upper << BITS | lower) as u32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside an ordered map. Few numbers, so that some come twice, in three upper halves.
        #[test]
        fn it_has_what_was_put_in(changes in prop::collection::vec((0..3usize, 0..6usize, any::<u32>()), 0..100)) {
            let (mut table, mut map) = (QueuePairTable::default(), BTreeMap::new());
            for (upper, lower, value) in changes {
                let qpn = join(upper * 0x7ff, lower * 0x333);
                match map.remove(&qpn.value()) {
                    Some(before) => prop_assert_eq!(table.remove(qpn), Some(Box::new(before))),
                    None => {
                        prop_assert_eq!(table.remove(qpn), None);
                        table.insert(qpn, Box::new(value));
                        map.insert(qpn.value(), value);
                    }
                }
                table.get_mut(qpn).into_iter().for_each(|value| *value ^= 1);
                map.get_mut(&qpn.value()).into_iter().for_each(|value| *value ^= 1);
                prop_assert_eq!((table.get(qpn), table.contains(qpn)), (map.get(&qpn.value()), map.contains_key(&qpn.value())));
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.iter().map(|(qpn, value)| (qpn.value(), *value)).eq(map.clone()));
                prop_assert!(table.iter_mut().map(|(qpn, value)| (qpn.value(), *value)).eq(map.clone()));
            }
        }
    }

    #[test]
    fn it_has_room_for_the_greatest_number() {
        let mut table = QueuePairTable::default();
        assert!(table.get(Qpn::MULTICAST).is_none() && table.remove(Qpn::MULTICAST).is_none());
        table.insert(Qpn::MULTICAST, Box::new(7));
        assert_eq!((table.get(Qpn::MULTICAST), table.len()), (Some(&7), 1));
    }
}

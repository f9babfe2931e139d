//! The greatest of numbered values that change one at a time.

use crate::cache;

/// The greatest of numbered values, each of which can be absent: a tournament tree.
///
/// ```text
///          9            the greatest of all
///      9       4        of each half
///    2   9   4   -      the values
/// ```
///
/// A change takes as many steps as the binary logarithm of their number, and fewer when the greatest of a part stays what
/// it was. For the least of values, they are [`Reverse`](std::cmp::Reverse)d.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tournament<T> {
    /// The root is at 0, the children of i are at 2i + 1 and 2i + 2. The values are at the end, by number.
    nodes: Box<[Option<T>]>,
}

impl<T: Copy + Ord> Tournament<T> {
    /// Has its beginning fetched into the caches.
    pub fn prefetch(&self) {
        self.nodes.first().into_iter().for_each(cache::prefetch);
    }

    /// Replaces the value of that number; `None` for no value.
    #[inline]
    pub fn set(&mut self, number: usize, value: Option<T>) {
        // Most queue pairs have one path, and most values of many stay what they are.
        let node = self.nodes.len() / 2 + number;
        match self.nodes.get_mut(node) {
            Some(same) if *same == value => {}
            Some(only) if node == 0 => *only = value,
            _ => self.set_among_others(number, value),
        }
    }

    #[inline(never)]
    fn set_among_others(&mut self, number: usize, value: Option<T>) {
        if number >= self.room() {
            if value.is_none() {
                return;
            }
            self.grow(number + 1);
        }
        let mut node = self.nodes.len() / 2 + number;
        self.nodes[node] = value;
        while node > 0 {
            node = (node - 1) / 2;
            let greatest = self.greatest_child(node);
            if self.nodes[node] == greatest {
                return;
            }
            self.nodes[node] = greatest;
        }
    }

    /// The value of that number.
    pub fn value(&self, number: usize) -> Option<T> {
        self.nodes.get(self.nodes.len() / 2 + number).copied().flatten()
    }

    /// The greatest value; `None` when there is none.
    pub fn greatest(&self) -> Option<T> {
        self.nodes.first().copied().flatten()
    }

    /// The lowest number that has the greatest value; `None` when there is no value.
    pub fn winner(&self) -> Option<usize> {
        let greatest = self.greatest();
        greatest?;
        let (mut node, first) = (0, self.nodes.len() / 2);
        while node < first {
            node = 2 * node + 1;
            if self.nodes[node] != greatest {
                node += 1;
            }
        }
        Some(node - first)
    }

    /// Removes the greatest value, if it is at least that; returns its number.
    pub fn take(&mut self, at_least: T) -> Option<usize> {
        if self.greatest()? < at_least {
            return None;
        }
        let winner = self.winner()?;
        self.set(winner, None);
        Some(winner)
    }

    /// How many values it has room for.
    fn room(&self) -> usize {
        self.nodes.len().div_ceil(2)
    }

    fn greatest_child(&self, node: usize) -> Option<T> {
        self.nodes[2 * node + 1].max(self.nodes[2 * node + 2])
    }

    /// Makes room for `count` values, at least 1.
    fn grow(&mut self, count: usize) {
        let (first, room) = (self.nodes.len() / 2, count.next_power_of_two());
        let mut nodes = vec![None; 2 * room - 1].into_boxed_slice();
        nodes[room - 1..][..self.room()].copy_from_slice(&self.nodes[first..]);
        self.nodes = nodes;
        for node in (0..room - 1).rev() {
            self.nodes[node] = self.greatest_child(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside a scan of all values. Few of them differ, so that there are ties, and some are absent.
        #[test]
        fn the_winner_is_the_first_of_the_greatest(
            changes in prop::collection::vec((0..40usize, prop::option::of(0..8u8)), 0..200)
        ) {
            let (mut tournament, mut values) = (Tournament::default(), [None; 40]);
            for (number, value) in changes {
                tournament.set(number, value);
                values[number] = value;
                prop_assert_eq!(tournament.value(39 - number), values[39 - number]);
                let greatest = values.iter().flatten().max().copied();
                prop_assert_eq!(tournament.greatest(), greatest);
                let winner = values.iter().position(|value| value.is_some() && *value == greatest);
                prop_assert_eq!(tournament.winner(), winner);
                let taken = tournament.clone().take(4);
                prop_assert_eq!(taken, winner.filter(|_| greatest >= Some(4)));
            }
        }
    }

    #[test]
    fn without_values_nobody_wins() {
        let mut tournament = Tournament::<u8>::default();
        tournament.set(7, None);
        assert_eq!((tournament.greatest(), tournament.winner()), (None, None));
        tournament.set(0, Some(1));
        tournament.set(0, None);
        assert_eq!((tournament.greatest(), tournament.winner()), (None, None));
    }

    #[test]
    fn what_is_taken_comes_in_order() {
        let mut tournament = Tournament::default();
        (0..9).for_each(|number| tournament.set(number, Some(number as u8 * 4 % 9)));
        let taken = std::iter::from_fn(|| tournament.take(3)).collect::<Vec<_>>();
        assert_eq!(taken, [2, 4, 6, 8, 1, 3]);
    }
}

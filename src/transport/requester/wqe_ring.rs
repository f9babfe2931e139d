use std::ops::{Index, IndexMut};

use crate::cache;

use super::wqe::Wqe;

/// Requests in a ring, the oldest first. They are large: each is filled and discarded in its place.
#[derive(Debug, Default)]
pub struct WqeRing {
    /// The places, a power of two of them, or none. Those without a request hold what was there before.
    places: Vec<Wqe>,
    /// Where the oldest is.
    first: usize,
    len: usize,
}

/// Places of the first request and the next ones.
const PLACES_MIN: usize = 4;

impl WqeRing {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has its next place fetched into the caches.
    pub fn prefetch(&self) {
        self.places.get(self.place(self.len)).into_iter().for_each(cache::prefetch);
    }

    #[inline]
    fn place(&self, index: usize) -> usize {
        (self.first + index) & self.places.len().wrapping_sub(1)
    }

    /// A place behind the newest, for the caller to fill.
    #[inline]
    pub fn push(&mut self) -> &mut Wqe {
        if self.len == self.places.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.len += 1;
        &mut self.places[place]
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.first);
        self.first = 0;
        let places = (2 * self.len).max(PLACES_MIN);
        self.places.reserve_exact(places - self.len);
        self.places.resize_with(places, Wqe::default);
    }

    /// The oldest.
    #[inline]
    pub fn front(&self) -> Option<&Wqe> {
        if self.len > 0 { self.places.get(self.first) } else { None }
    }

    /// Removes the oldest.
    pub fn pop(&mut self) -> Option<Wqe> {
        let wqe = if self.len > 0 { std::mem::take(&mut self.places[self.first]) } else { return None };
        self.leave_first();
        Some(wqe)
    }

    /// Removes the oldest, if there is one, and leaves it in its place except for data of its own.
    #[inline]
    pub fn discard(&mut self) {
        if self.len > 0 {
            self.places[self.first].request.data.discard_own();
            self.leave_first();
        }
    }

    fn leave_first(&mut self) {
        (self.first, self.len) = (self.place(1), self.len - 1);
    }

    /// How many of the oldest meet `condition`, which none does after one that does not.
    pub fn partition_point(&self, condition: impl Fn(&Wqe) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low.midpoint(high);
            (low, high) = if condition(&self[middle]) { (middle + 1, high) } else { (low, middle) };
        }
        low
    }
}

impl Index<usize> for WqeRing {
    type Output = Wqe;

    #[inline]
    fn index(&self, index: usize) -> &Wqe {
        debug_assert!(index < self.len, "place {index} of {} requests", self.len);
        &self.places[self.place(index)]
    }
}

impl IndexMut<usize> for WqeRing {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut Wqe {
        debug_assert!(index < self.len, "place {index} of {} requests", self.len);
        let place = self.place(index);
        &mut self.places[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oldest go while others come, some by value and some in their places, over several sizes of the ring.
    #[test]
    fn requests_keep_their_order_while_the_ring_turns_and_grows() {
        let (mut ring, mut oldest, mut next) = (WqeRing::default(), 0, 0);
        assert!(ring.front().is_none() && ring.pop().is_none());
        for turn in 0..100 {
            for _ in 0..turn % 7 + 1 {
                ring.push().first = next;
                next += 1;
            }
            for index in 0..ring.len() {
                assert_eq!(ring[index].first, oldest + index as u64);
            }
            let older = |bound: u64| ring.partition_point(|wqe| wqe.first < bound) as u64;
            assert_eq!([older(0), older(oldest + 1), older(next)], [0, 1, next - oldest]);
            for _ in 0..turn % 5 {
                assert_eq!(ring.front().map(|wqe| wqe.first), Some(oldest));
                match turn % 2 {
                    0 => assert_eq!(ring.pop().map(|wqe| wqe.first), Some(oldest)),
                    _ => ring.discard(),
                }
                oldest += 1;
                if oldest == next {
                    break;
                }
            }
        }
        assert_eq!(ring.len() as u64, next - oldest);
    }
}

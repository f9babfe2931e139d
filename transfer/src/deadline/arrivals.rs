use std::collections::BTreeMap;

/// Which packet numbers have arrived, as ranges.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// The first number of each range, and how many.
    ranges: BTreeMap<u32, u32>,
}

/// Upper bound on the ranges that are kept: the oldest are forgotten. A report has room for fewer.
const RANGES_MAX: usize = 256;

impl Arrivals {
    pub fn insert(&mut self, number: u32) {
        let before = self.ranges.range(..=number).next_back().map(|(first, count)| (*first, *count));
        let after = self.ranges.get(&number.wrapping_add(1)).copied();
        match before {
            Some((first, count)) if number - first < count => {}
            Some((first, count)) if number - first == count => {
                self.ranges.insert(first, count + 1 + after.unwrap_or(0));
                if after.is_some() {
                    self.ranges.remove(&(number + 1));
                }
            }
            _ => {
                self.ranges.insert(number, 1 + after.unwrap_or(0));
                if after.is_some() {
                    self.ranges.remove(&(number + 1));
                }
            }
        }
        if self.ranges.len() > RANGES_MAX {
            self.ranges.pop_first();
        }
    }

    /// The first number of each range and how many, the newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ranges.iter().rev().map(|(first, count)| (*first, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order_become_ranges() {
        let mut arrivals = Arrivals::default();
        for number in [5, 7, 6, 6, 1, 3, 2, 100, u32::MAX] {
            arrivals.insert(number);
        }
        let ranges: Vec<_> = arrivals.newest_first().collect();
        assert_eq!(ranges, [(u32::MAX, 1), (100, 1), (5, 3), (1, 3)]);
    }

    #[test]
    fn the_oldest_of_many_ranges_are_forgotten() {
        let mut arrivals = Arrivals::default();
        (0..1000).for_each(|number| arrivals.insert(2 * number));
        assert_eq!((arrivals.newest_first().count(), arrivals.newest_first().next()), (256, Some((1998, 1))));
    }
}

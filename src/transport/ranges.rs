use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges of this process's memory, each with an owner. They can overlap.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Key: the first address and the owner. Value: the end, and the offset of the first byte in the owner's message.
    by_start: BTreeMap<(usize, u64), (usize, u64)>,
    /// The length of the longest range so far, in bytes.
    longest: usize,
}

/// Upper bound on the ranges that a query examines: more than overlap where each message has a buffer of its own. With
/// more of them the answer is the conservative one.
const LOOK_AT: usize = 64;

impl Ranges {
    pub fn insert(&mut self, range: Range<usize>, owner: u64, offset: u64) {
        self.longest = self.longest.max(range.len());
        let (end, _) = self.by_start.entry((range.start, owner)).or_insert((range.end, offset));
        *end = range.end.max(*end);
    }

    pub fn remove(&mut self, start: usize, owner: u64) {
        self.by_start.remove(&(start, owner));
    }

    /// Whether `is_fine` holds for all ranges that overlap `range`. It gets the owner, and the overlap as offsets in
    /// the owner's message. False, too, when there are too many ranges to examine.
    pub fn all_overlapping(&self, range: &Range<usize>, is_fine: impl Fn(u64, Range<u64>) -> bool) -> bool {
        let from = range.start.saturating_sub(self.longest);
        let mut candidates = self.by_start.range((from, 0)..(range.end, 0)).rev();
        for (&(start, owner), &(end, offset)) in candidates.by_ref().take(LOOK_AT) {
            let (first, last) = (start.max(range.start), end.min(range.end));
            let part = |address: usize| offset + (address - start) as u64;
            if first < last && !is_fine(owner, part(first)..part(last)) {
                return false;
            }
        }
        candidates.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_overlap_are_asked_for_with_their_part() {
        let mut ranges = Ranges::default();
        ranges.insert(100..200, 1, 0);
        ranges.insert(150..160, 2, 1000);
        ranges.insert(150..250, 3, 0);
        let asked = |range: Range<usize>| {
            let asked = std::cell::RefCell::new(Vec::new());
            let note = |owner, part| {
                asked.borrow_mut().push((owner, part));
                true
            };
            assert!(ranges.all_overlapping(&range, note));
            asked.into_inner()
        };
        assert_eq!(asked(0..100), []);
        assert_eq!(asked(0..101), [(1, 0..1)]);
        assert_eq!(asked(155..1000), [(3, 5..100), (2, 1005..1010), (1, 55..100)]);
        assert_eq!(asked(250..251), []);
        assert_eq!(asked(155..155), []);
        assert!(!ranges.all_overlapping(&(155..156), |owner, _| owner != 1));
    }

    #[test]
    fn with_too_many_candidates_the_answer_is_no() {
        let mut ranges = Ranges::default();
        for owner in 0..LOOK_AT as u64 {
            ranges.insert(0..10, owner, 0);
        }
        assert!(ranges.all_overlapping(&(5..6), |_, _| true));
        ranges.insert(0..10, 1000, 0);
        assert!(!ranges.all_overlapping(&(5..6), |_, _| true));
        ranges.remove(0, 1000);
        assert!(ranges.all_overlapping(&(5..6), |_, _| true));
    }
}

/// A set of path numbers, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathMask {
    words: [u64; WORDS],
}

/// Words of 64 numbers each.
const WORDS: usize = 4;

impl PathMask {
    /// Whether it has the path.
    pub fn contains(&self, path: u8) -> bool {
        self.words[usize::from(path / 64)] & bit(path) != 0
    }

    /// Whether it has no path.
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// The number of paths, 0 to 256.
    pub fn len(&self) -> u16 {
        self.words.iter().map(|word| word.count_ones() as u16).sum()
    }

    /// Adds the path if it `is_in`, and otherwise removes it.
    pub fn set(&mut self, path: u8, is_in: bool) {
        let word = &mut self.words[usize::from(path / 64)];
        *word = if is_in { *word | bit(path) } else { *word & !bit(path) };
    }

    /// The next path from `from` on; after 255 comes 0. `None` when there is no path.
    pub fn next_from(&self, from: u8) -> Option<u8> {
        let word = usize::from(from / 64);
        let rest = self.words[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(first_of(word, rest));
        }
        // What comes before `from` in its own word comes last.
        let mut others = (1..=WORDS).map(|ahead| (word + ahead) % WORDS);
        others.find(|word| self.words[*word] != 0).map(|word| first_of(word, self.words[word]))
    }

    /// The lowest path.
    pub fn first(&self) -> Option<u8> {
        self.next_from(0)
    }

    /// All of them, the lowest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let path = rest.first()?;
            rest.set(path, false);
            Some(path)
        })
    }
}

impl FromIterator<u8> for PathMask {
    fn from_iter<I: IntoIterator<Item = u8>>(paths: I) -> PathMask {
        let mut mask = PathMask::default();
        paths.into_iter().for_each(|path| mask.set(path, true));
        mask
    }
}

fn bit(path: u8) -> u64 {
    1 << (path % 64)
}

/// The number of the lowest bit of a word, which is not zero.
fn first_of(word: usize, bits: u64) -> u8 {
    (word * 64) as u8 + bits.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside an ordered set.
        #[test]
        fn it_has_what_was_put_in(changes in prop::collection::vec((any::<u8>(), any::<bool>(), any::<u8>()), 0..300)) {
            let (mut mask, mut set) = (PathMask::default(), BTreeSet::new());
            for (path, is_in, from) in changes {
                mask.set(path, is_in);
                if is_in { set.insert(path) } else { set.remove(&path) };
                prop_assert_eq!(mask, set.iter().copied().collect());
                prop_assert!(mask.iter().eq(set.iter().copied()));
                prop_assert_eq!((mask.len(), mask.is_empty()), (set.len() as u16, set.is_empty()));
                prop_assert_eq!(mask.contains(from), set.contains(&from));
                prop_assert_eq!(mask.next_from(from), set.range(from..).chain(&set).next().copied());
                prop_assert_eq!(mask.first(), set.first().copied());
            }
        }
    }

    #[test]
    fn it_has_room_for_all_of_them() {
        let mask: PathMask = (0..=255).collect();
        assert_eq!((mask.len(), mask.next_from(255)), (256, Some(255)));
    }
}

//! Who was seen lately, in a fixed number of bytes: stands before a memory, so that what is asked for
//! once does not take the place of what is asked for often. (The *doorkeeper* of G.
//! Einziger, R. Friedman and B. Manes, [TinyLFU](https://arxiv.org/abs/1512.00727), 2015, which has a
//! Bloom filter for it.)

use std::hash::{BuildHasher as _, Hash, RandomState};

/// How many marks share a place: so that those of one page hardly ever push each other out, which
/// they would do at each look.
const MARKS: usize = 4;

/// Marks of those who came last, in the place that the hash of each tells.
pub(crate) struct Doorkeeper {
    /// In each place, the latest comes first.
    places: Box<[[u32; MARKS]]>,
    hasher: RandomState,
}

impl Doorkeeper {
    /// Returns one with room for so many marks of 4 bytes, and for some at least.
    pub(crate) fn new(marks: usize) -> Self {
        let places = vec![[0; MARKS]; marks.div_ceil(MARKS).max(1)].into_boxed_slice();
        Self { places, hasher: RandomState::new() }
    }

    /// Returns whether somebody was seen lately, and has them seen now. Of those who have the same
    /// place, one of two billion is taken for them.
    pub(crate) fn has_seen<I: Hash>(&mut self, id: &I) -> bool {
        let hash = self.hasher.hash_one(id);
        // 0 is nobody's.
        let mark = hash as u32 | 1;
        let place = (hash >> 32) as usize % self.places.len();
        let marks = &mut self.places[place];
        let seen = marks.iter().position(|&other| other == mark);
        marks[..=seen.unwrap_or(MARKS - 1)].rotate_right(1);
        marks[0] = mark;
        seen.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_again_soon_was_seen() {
        let mut doorkeeper = Doorkeeper::new(1 << 18);
        let seen = |doorkeeper: &mut Doorkeeper| {
            (0..1000_u64).filter(|id| doorkeeper.has_seen(id)).count()
        };
        assert_eq!(seen(&mut doorkeeper), 0);
        // There are places enough that no five of them share one.
        assert_eq!(seen(&mut doorkeeper), 1000);
    }

    #[test]
    fn those_who_come_together_do_not_push_each_other_out() {
        let mut doorkeeper = Doorkeeper::new(MARKS);
        let together = [1_u64, 2, 3, 4];
        assert_eq!(together.map(|id| doorkeeper.has_seen(&id)), [false; MARKS]);
        assert_eq!(together.map(|id| doorkeeper.has_seen(&id)), [true; MARKS]);
    }

    #[test]
    fn who_comes_again_late_was_not() {
        let mut doorkeeper = Doorkeeper::new(16);
        assert!(!doorkeeper.has_seen(&7_u64));
        assert!(doorkeeper.has_seen(&7_u64));
        for other in 1000..2000_u64 {
            doorkeeper.has_seen(&other);
        }
        assert!(!doorkeeper.has_seen(&7_u64));
    }
}

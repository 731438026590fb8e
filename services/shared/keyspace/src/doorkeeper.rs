//! Who was seen lately, in a fixed number of bytes: stands before a memory that is full, so that what
//! is asked for once does not take the place of what is asked for often. (The *doorkeeper* of G.
//! Einziger, R. Friedman and B. Manes, [TinyLFU](https://arxiv.org/abs/1512.00727), 2015, which has a
//! Bloom filter for it.)

use std::hash::{BuildHasher as _, Hash, RandomState};

/// Marks of those who came last, each in the place that its hash tells: whoever comes to the same
/// place takes it.
pub(crate) struct Doorkeeper {
    marks: Box<[u32]>,
    hasher: RandomState,
}

impl Doorkeeper {
    /// Returns one with so many places of 4 bytes, at least one.
    pub(crate) fn new(places: usize) -> Self {
        let marks = vec![0; places.max(1)].into_boxed_slice();
        Self { marks, hasher: RandomState::new() }
    }

    /// Returns whether somebody was seen lately, and has them seen now. One of four billion others is
    /// taken for them.
    pub(crate) fn has_seen<I: Hash>(&mut self, id: &I) -> bool {
        let hash = self.hasher.hash_one(id);
        let place = (hash >> 32) as usize % self.marks.len();
        // 0 is nobody's.
        let mark = hash as u32 | 1;
        std::mem::replace(&mut self.marks[place], mark) == mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_again_soon_was_seen() {
        let mut doorkeeper = Doorkeeper::new(1 << 16);
        let seen = |doorkeeper: &mut Doorkeeper| {
            (0..1000_u64).filter(|id| doorkeeper.has_seen(id)).count()
        };
        assert_eq!(seen(&mut doorkeeper), 0);
        // Some dozen places of a thousand are taken twice, at most.
        assert!(seen(&mut doorkeeper) > 900);
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

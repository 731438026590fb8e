//! Logical partitions: the unit of placement on the nodes of the store.

use std::fmt;

/// One of 1,024 logical partitions. Every key has its partition as hash tag. All keys of a
/// partition therefore share a Redis Cluster slot, and one atomic function can use them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// Number of partitions. Part of every id, so it can never change.
    pub const COUNT: u16 = 1024;

    /// Returns the partition with a number, modulo [`Self::COUNT`].
    pub const fn new(number: u16) -> Self {
        Self(number % Self::COUNT)
    }

    /// Returns the partition encoded in an id.
    pub const fn of_id(id: u64) -> Self {
        Self(((id >> 2) % Self::COUNT as u64) as u16)
    }

    /// Returns all partitions, in order.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..Self::COUNT).map(Self)
    }

    /// Returns the number, below [`Self::COUNT`].
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_encodes_its_partition() {
        assert_eq!(Partition::of_id(0b1111_1111_1100).number(), 1023);
        assert_eq!(Partition::of_id(4096).number(), 0);
        assert_eq!(Partition::of_id(7).number(), 1);
    }
}

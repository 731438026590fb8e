//! Stamps: time-ordered numbers of a partition, the basis of all ids.

use std::{
    num::NonZeroU64,
    time::{Duration, SystemTime},
};

use crate::Partition;

/// A time-ordered number: 41 bits of milliseconds since 2006-01-01T00:00:00Z, 10 bits of partition,
/// 2 bits of sequence. Below 2^53, hence exact as a sorted-set score and in JSON.
///
/// The epoch is before the first microblogs, so that posts imported from elsewhere keep their times. Stamps
/// end in 2075.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// 2006-01-01T00:00:00Z in milliseconds since the Unix epoch.
    pub const EPOCH_MS: u64 = 1_136_073_600_000;
    /// Greater than every stamp.
    pub const END: u64 = 1 << 53;

    /// Returns the stamp with this value, or `None` from 2^53 up.
    pub const fn new(value: u64) -> Option<Self> {
        if value < Self::END { Some(Self(value)) } else { None }
    }

    /// Returns the first stamp of a partition at a time; times before the epoch count as the epoch.
    pub fn first_at(time: SystemTime, partition: Partition) -> Self {
        let unix_ms =
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let ms = unix_ms.saturating_sub(Self::EPOCH_MS) & ((1 << 41) - 1);
        Self((ms << 12) | (u64::from(partition.number()) << 2))
    }

    /// Returns the stamp of an id.
    pub(crate) const fn of_id(id: NonZeroU64) -> Self {
        Self(id.get())
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the time, to the millisecond.
    pub fn time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(Self::EPOCH_MS + (self.0 >> 12))
    }

    /// Returns the partition whose clock issued it.
    pub const fn partition(self) -> Partition {
        Partition::of_id(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_encodes_time_and_partition() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        let stamp = Stamp::first_at(time, Partition::new(1023));
        assert_eq!(stamp.time(), time);
        assert_eq!(stamp.partition(), Partition::new(1023));
        assert!(stamp.get() < Stamp::END);
    }
}

//! Stamps and the ids made of them.

use std::{
    fmt,
    num::NonZeroU64,
    time::{Duration, SystemTime},
};

use crate::{Invalid, Partition};

/// A moment in a partition: 41 bits of milliseconds since 2024-01-01T00:00:00Z, 10 bits of
/// partition, 2 bits of sequence. Below 2^53, hence exact as a sorted-set score and in JSON.
///
/// The partition's clock key issues stamps inside the function that uses them, as `max(now,
/// last + 1)`: a partition's stamps only grow, and in a burst borrow from the next milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(u64);

impl Stamp {
    /// 2024-01-01T00:00:00Z in milliseconds since the Unix epoch.
    pub const EPOCH_MS: u64 = 1_704_067_200_000;
    /// Above every stamp.
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

    /// Returns the number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the time of the stamp, to the millisecond.
    pub fn time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(Self::EPOCH_MS + (self.0 >> 12))
    }

    /// Returns the partition whose clock issued it.
    pub const fn partition(self) -> Partition {
        Partition::of_id(self.0)
    }
}

/// Identifies an account: a stamp, and never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(NonZeroU64);

impl UserId {
    /// Returns the id with this value, or `None` for 0 and from 2^53 up.
    pub const fn new(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(id) if value < Stamp::END => Some(Self(id)),
            _ => None,
        }
    }

    /// Reads the id in a request's field.
    pub fn parse(field: &str, value: u64) -> Result<Self, Invalid> {
        Self::new(value)
            .ok_or_else(|| Invalid::new(field, "must be an account id: from 1 to 2^53 - 1"))
    }

    /// Reads a list of up to `max` ids in a request's field.
    pub fn parse_list(field: &str, values: &[u64], max: usize) -> Result<Vec<Self>, Invalid> {
        if values.len() > max {
            let problem = format!("must have at most {max} items, has {}", values.len());
            return Err(Invalid::new(field, problem));
        }
        let parse = |(i, &value)| Self::parse(&format!("{field}[{i}]"), value);
        values.iter().enumerate().map(parse).collect()
    }

    /// Returns the number itself.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the partition in which all of the account's own data lies.
    pub const fn partition(self) -> Partition {
        Partition::of_id(self.get())
    }

    /// Returns when the account was made.
    pub fn created_at(self) -> SystemTime {
        Stamp(self.get()).time()
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserId({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_its_time_and_partition() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        let stamp = Stamp::first_at(time, Partition::new(1023));
        assert_eq!(stamp.time(), time);
        assert_eq!(stamp.partition(), Partition::new(1023));
        assert!(stamp.get() < Stamp::END);
    }

    #[test]
    fn ids_are_from_1_to_below_2_to_the_53() {
        assert!(UserId::new(0).is_none());
        assert!(UserId::new(1).is_some());
        assert!(UserId::new((1 << 53) - 1).is_some());
        assert!(UserId::new(1 << 53).is_none());
        assert!(UserId::new(1 << 63).is_none());
    }

    #[test]
    fn a_bad_id_in_a_list_is_named() {
        let error = UserId::parse_list("user_ids", &[1, 0], 500).unwrap_err();
        assert_eq!(error.field, "user_ids[1]");
        let error = UserId::parse_list("user_ids", &[1; 501], 500).unwrap_err();
        assert_eq!(error.problem, "must have at most 500 items, has 501");
    }
}

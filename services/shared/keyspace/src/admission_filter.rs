//! Admission filter of the client-side cache: admits ids that were requested recently. A key that
//! is read once does not evict a key that is read often.
//!
//! It is the *doorkeeper* of [TinyLFU](https://arxiv.org/abs/1512.00727) (G. Einziger, R. Friedman
//! and B. Manes, 2015), with a set-associative table of fingerprints in place of a Bloom filter.

use std::hash::{BuildHasher as _, Hash, RandomState};

/// Fingerprints in a bucket: enough that the ids of one page rarely evict each other, which they
/// would repeat at each read.
const WAYS: usize = 4;

/// A fixed-size table of fingerprints. The hash of an id selects its bucket.
pub(crate) struct AdmissionFilter {
    /// In each bucket, the most recent fingerprint comes first.
    buckets: Box<[[u32; WAYS]]>,
    hasher: RandomState,
}

impl AdmissionFilter {
    /// Returns a filter of at least `capacity` fingerprints of 4 bytes, and at least one bucket.
    pub(crate) fn new(capacity: usize) -> Self {
        let buckets = vec![[0; WAYS]; capacity.div_ceil(WAYS).max(1)].into_boxed_slice();
        Self { buckets, hasher: RandomState::new() }
    }

    /// Records an id, and returns whether it was recorded recently. Two ids of one bucket have the
    /// same fingerprint with a probability of 1 in 2^31.
    pub(crate) fn record<I: Hash>(&mut self, id: &I) -> bool {
        let hash = self.hasher.hash_one(id);
        // 0 marks an empty slot.
        let fingerprint = hash as u32 | 1;
        let bucket = (hash >> 32) as usize % self.buckets.len();
        let bucket = &mut self.buckets[bucket];
        let position = bucket.iter().position(|&other| other == fingerprint);
        bucket[..=position.unwrap_or(WAYS - 1)].rotate_right(1);
        bucket[0] = fingerprint;
        position.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_recently_recorded_ids() {
        let mut filter = AdmissionFilter::new(1 << 18);
        let admitted =
            |filter: &mut AdmissionFilter| (0..1000_u64).filter(|id| filter.record(id)).count();
        assert_eq!(admitted(&mut filter), 0);
        // With so many buckets, no five ids share one.
        assert_eq!(admitted(&mut filter), 1000);
    }

    #[test]
    fn ids_of_one_bucket_do_not_evict_each_other() {
        let mut filter = AdmissionFilter::new(WAYS);
        let ids = [1_u64, 2, 3, 4];
        assert_eq!(ids.map(|id| filter.record(&id)), [false; WAYS]);
        assert_eq!(ids.map(|id| filter.record(&id)), [true; WAYS]);
    }

    #[test]
    fn rejects_ids_recorded_long_ago() {
        let mut filter = AdmissionFilter::new(16);
        assert!(!filter.record(&7_u64));
        assert!(filter.record(&7_u64));
        for other in 1000..2000_u64 {
            filter.record(&other);
        }
        assert!(!filter.record(&7_u64));
    }
}

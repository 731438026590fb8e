//! The entries of the client-side cache: an LRU cache behind an admission filter. Does no I/O.

use hashlink::LruCache;
use redis::Value;

use super::kind::{Id, Kind};
use crate::{admission_filter::AdmissionFilter, cache_metrics::CacheMetrics};

// Approximate overhead of an entry in the LRU list and the hash table.
const ENTRY_OVERHEAD_BYTES: usize = 64;

// Cache bytes for each fingerprint of the admission filter: about one fingerprint for each entry.
const BYTES_PER_FINGERPRINT: usize = 256;

/// The values that were read on one tracked connection and not invalidated since.
pub(super) struct Entries<I, T> {
    values: LruCache<I, T>,
    kind: Kind<I, T>,
    bytes: usize,
    bytes_max: usize,
    /// The ids that were requested recently.
    admission_filter: AdmissionFilter,
    /// The number of push messages received.
    pushed: u64,
    metrics: CacheMetrics,
}

/// Cache misses, sorted and without duplicates.
pub(super) struct Misses<I> {
    /// To be read on the tracked connection and cached.
    pub(super) admitted: Vec<I>,
    /// Rejected by the admission filter: to be read without caching.
    pub(super) rejected: Vec<I>,
}

/// A value that was just read.
pub(super) struct Fresh<I, T> {
    pub(super) id: I,
    pub(super) value: T,
    pub(super) is_cacheable: bool,
}

impl<I, T> Drop for Entries<I, T> {
    fn drop(&mut self) {
        self.metrics.record_size((self.values.len(), self.bytes), (0, 0));
    }
}

impl<I: Id, T: Clone> Entries<I, T> {
    pub(super) fn new(kind: Kind<I, T>, bytes_max: usize, metrics: CacheMetrics) -> Self {
        let values = LruCache::new_unbounded();
        let admission_filter = AdmissionFilter::new(bytes_max / BYTES_PER_FINGERPRINT);
        Self { values, kind, bytes: 0, bytes_max, admission_filter, pushed: 0, metrics }
    }

    /// Returns the number of values and of bytes.
    fn size(&self) -> (usize, usize) {
        (self.values.len(), self.bytes)
    }

    fn insert(&mut self, id: I, value: T) {
        self.bytes += self.bytes_of(&value);
        if let Some(previous) = self.values.insert(id, value) {
            self.bytes -= self.bytes_of(&previous);
        }
        while self.bytes > self.bytes_max
            && let Some((_, evicted)) = self.values.remove_lru()
        {
            self.bytes -= self.bytes_of(&evicted);
        }
    }

    fn remove(&mut self, id: I) {
        if let Some(value) = self.values.remove(&id) {
            self.bytes -= self.bytes_of(&value);
            // Admits the next read of an invalidated id.
            self.admission_filter.record(&id);
        }
    }

    fn clear(&mut self) {
        self.values.clear();
        self.bytes = 0;
    }

    fn bytes_of(&self, value: &T) -> usize {
        ENTRY_OVERHEAD_BYTES + size_of::<T>() + (self.kind.heap_bytes)(value)
    }

    /// Returns the ids without an entry, and records them in the admission filter, except for one that is
    /// always admitted.
    pub(super) fn misses(&mut self, ids: &[I], always: Option<I>) -> Misses<I> {
        let mut missing: Vec<I> =
            ids.iter().copied().filter(|id| !self.values.contains_key(id)).collect();
        missing.sort_unstable();
        missing.dedup();
        let is_admitted = |id: &I| always == Some(*id) || self.admission_filter.record(id);
        let (admitted, rejected) = missing.into_iter().partition(is_admitted);
        Misses { admitted, rejected }
    }

    /// Returns the values of `ids`, from `fresh` (sorted by id) or from the cache. Inserts the
    /// cacheable ones of `fresh` if no push message has followed its first reply, before which there
    /// were `pushed`.
    pub(super) fn insert_and_get(
        &mut self,
        ids: &[I],
        fresh: Vec<Fresh<I, T>>,
        pushed: u64,
    ) -> Vec<Option<T>> {
        let value =
            |entries: &mut Self, id: I| match fresh.binary_search_by_key(&id, |fresh| fresh.id) {
                Ok(index) => Some(fresh[index].value.clone()),
                Err(_) => entries.values.get(&id).cloned(),
            };
        let values = ids.iter().map(|&id| value(self, id)).collect();
        if pushed == self.pushed {
            let before = self.size();
            let cacheable = fresh.into_iter().filter(|fresh| fresh.is_cacheable);
            cacheable.for_each(|Fresh { id, value, .. }| self.insert(id, value));
            self.metrics.record_size(before, self.size());
        }
        values
    }

    /// Handles a push message: `invalidate` with a list of keys, or with nil for all keys.
    pub(super) fn invalidate(&mut self, message: &[Value]) {
        self.pushed += 1;
        self.metrics.record_invalidation();
        let before = self.size();
        match message {
            [Value::BulkString(kind), Value::Array(keys)] if kind == b"invalidate" => {
                for key in keys {
                    let key = if let Value::BulkString(key) = key { &**key } else { b"" };
                    match (self.kind.id)(key) {
                        Some(id) => self.remove(id),
                        None => self.clear(),
                    }
                }
            }
            // FLUSHALL or FLUSHDB, or an unsupported message.
            _ => self.clear(),
        }
        self.metrics.record_size(before, self.size());
    }
}

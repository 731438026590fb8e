//! Metrics of the client-side cache: hits, misses, invalidations, entries and bytes.

use opentelemetry::{
    KeyValue, global,
    metrics::{BoundCounter, BoundUpDownCounter},
};

/// The instruments of the caches of one keyspace.
#[derive(Clone)]
pub(crate) struct CacheMetrics {
    hits: BoundCounter<u64>,
    misses: BoundCounter<u64>,
    untracked: BoundCounter<u64>,
    invalidations: BoundCounter<u64>,
    values: BoundUpDownCounter<i64>,
    bytes: BoundUpDownCounter<i64>,
}

impl CacheMetrics {
    pub(crate) fn new(keyspace: &'static str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let keyspace = || KeyValue::new("microblog.keyspace", keyspace);
        let reads = meter
            .u64_counter("microblog.cache.reads")
            .with_unit("{value}")
            .with_description("Values read: cache hit, cache miss, or no tracked connection")
            .build();
        let read = |result| from_zero(reads.bind(&[keyspace(), KeyValue::new("result", result)]));
        let invalidations = meter
            .u64_counter("microblog.cache.invalidations")
            .with_unit("{message}")
            .with_description("Invalidation messages from Redis")
            .build();
        let values = meter
            .i64_up_down_counter("microblog.cache.values")
            .with_unit("{value}")
            .with_description("Values in the client-side cache")
            .build();
        let bytes = meter
            .i64_up_down_counter("microblog.cache.size")
            .with_unit("By")
            .with_description("Approximate memory of the values in the client-side cache")
            .build();
        Self {
            hits: read("hit"),
            misses: read("miss"),
            untracked: read("untracked"),
            invalidations: from_zero(invalidations.bind(&[keyspace()])),
            values: values.bind(&[keyspace()]),
            bytes: bytes.bind(&[keyspace()]),
        }
    }

    /// Records `all` lookups, of which `missing` were cache misses.
    pub(crate) fn record_lookups(&self, all: usize, missing: usize) {
        self.hits.add(all.saturating_sub(missing) as u64);
        self.misses.add(missing as u64);
    }

    /// Records reads without a tracked connection.
    pub(crate) fn record_untracked(&self, count: usize) {
        self.untracked.add(count as u64);
    }

    /// Records an invalidation message.
    pub(crate) fn record_invalidation(&self) {
        self.invalidations.add(1);
    }

    /// Records a change of a cache's size, each given as (values, bytes).
    pub(crate) fn record_size(&self, before: (usize, usize), now: (usize, usize)) {
        if before != now {
            self.values.add(now.0 as i64 - before.0 as i64);
            self.bytes.add(now.1 as i64 - before.1 as i64);
        }
    }
}

/// Exports a counter from the start: a rate ignores what precedes the first exported value.
fn from_zero(counter: BoundCounter<u64>) -> BoundCounter<u64> {
    counter.add(0);
    counter
}

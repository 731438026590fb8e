//! What is measured of memories of what was read: how much is in them, and how often that spared
//! Redis something.

use opentelemetry::{
    KeyValue, global,
    metrics::{BoundCounter, BoundUpDownCounter},
};

/// The memories of one keyspace.
#[derive(Clone)]
pub(crate) struct Remembered {
    hits: BoundCounter<u64>,
    misses: BoundCounter<u64>,
    untracked: BoundCounter<u64>,
    invalidations: BoundCounter<u64>,
    values: BoundUpDownCounter<i64>,
    bytes: BoundUpDownCounter<i64>,
}

impl Remembered {
    pub(crate) fn new(keyspace: &'static str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let own = || KeyValue::new("microblog.keyspace", keyspace);
        let reads = meter
            .u64_counter("microblog.recall.reads")
            .with_unit("{value}")
            .with_description("Values read, by whether they were remembered, or could not be")
            .build();
        let read = |result| from_zero(reads.bind(&[own(), KeyValue::new("result", result)]));
        let invalidations = meter
            .u64_counter("microblog.recall.invalidations")
            .with_unit("{message}")
            .with_description("Messages of Redis that something has changed")
            .build();
        let values = meter
            .i64_up_down_counter("microblog.recall.values")
            .with_unit("{value}")
            .with_description("Values that are remembered")
            .build();
        let bytes = meter
            .i64_up_down_counter("microblog.recall.size")
            .with_unit("By")
            .with_description("Memory of the values that are remembered, about")
            .build();
        Self {
            hits: read("hit"),
            misses: read("miss"),
            untracked: read("untracked"),
            invalidations: from_zero(invalidations.bind(&[own()])),
            values: values.bind(&[own()]),
            bytes: bytes.bind(&[own()]),
        }
    }

    /// Notes that so many values were looked for in a memory, and so many of them were not there.
    pub(crate) fn looked(&self, all: usize, missing: usize) {
        self.hits.add(all.saturating_sub(missing) as u64);
        self.misses.add(missing as u64);
    }

    /// Notes that so many values were read where Redis tells nobody of changes.
    pub(crate) fn untracked(&self, count: usize) {
        self.untracked.add(count as u64);
    }

    /// Notes that Redis told of a change.
    pub(crate) fn invalidated(&self) {
        self.invalidations.add(1);
    }

    /// Notes that a memory, which had so many values and bytes, has others now.
    pub(crate) fn changed(&self, before: (usize, usize), now: (usize, usize)) {
        if before != now {
            self.values.add(now.0 as i64 - before.0 as i64);
            self.bytes.add(now.1 as i64 - before.1 as i64);
        }
    }
}

/// Returns a counter that is there from the start: a rate knows nothing of what came before the first
/// number.
fn from_zero(counter: BoundCounter<u64>) -> BoundCounter<u64> {
    counter.add(0);
    counter
}

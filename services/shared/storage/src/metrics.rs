//! Metrics of reads and writes of items.

use opentelemetry::{KeyValue, global, metrics::BoundCounter};

/// The counters of the reads of a keyspace.
#[derive(Clone)]
pub(crate) struct ReadMetrics {
    /// Answered by the cache.
    pub(crate) hits: BoundCounter<u64>,
    /// Answered by the database, with an entry that is installed if no change intervenes.
    pub(crate) loads: BoundCounter<u64>,
    /// Answered by the database alone: the cache is away or not trusted, or another read loads the item.
    pub(crate) bypasses: BoundCounter<u64>,
}

impl ReadMetrics {
    pub(crate) fn new(keyspace: &'static str) -> Self {
        let reads = global::meter("microblog-storage")
            .u64_counter("microblog.item.reads")
            .with_unit("{item}")
            .with_description(
                "Items read: cache hit, loaded into the cache, or from the database alone",
            )
            .build();
        let read = |result| {
            let keyspace = KeyValue::new("microblog.keyspace", keyspace);
            from_zero(reads.bind(&[keyspace, KeyValue::new("result", result)]))
        };
        Self { hits: read("hit"), loads: read("load"), bypasses: read("bypass") }
    }
}

/// The counters of the writes of a keyspace.
#[derive(Clone)]
pub(crate) struct WriteMetrics {
    /// Transactions.
    pub(crate) groups: BoundCounter<u64>,
    /// The calls in them.
    pub(crate) calls: BoundCounter<u64>,
}

impl WriteMetrics {
    pub(crate) fn new(keyspace: &'static str) -> Self {
        let meter = global::meter("microblog-storage");
        let keyspace = || KeyValue::new("microblog.keyspace", keyspace);
        let groups = meter
            .u64_counter("microblog.write.groups")
            .with_unit("{transaction}")
            .with_description("Groups of calls that were tried as one transaction")
            .build();
        let calls = meter
            .u64_counter("microblog.write.calls")
            .with_unit("{call}")
            .with_description("Calls in groups")
            .build();
        Self {
            groups: from_zero(groups.bind(&[keyspace()])),
            calls: from_zero(calls.bind(&[keyspace()])),
        }
    }
}

/// Exports a counter from the start: a rate ignores what precedes the first exported value.
fn from_zero(counter: BoundCounter<u64>) -> BoundCounter<u64> {
    counter.add(0);
    counter
}

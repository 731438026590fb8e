//! Metrics of the archive, for OpenTelemetry. Cheap when no exporter is configured.

use opentelemetry::{global, metrics::Counter};

/// The instruments of the service.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    evictable: Counter<u64>,
    evicted: Counter<u64>,
}

impl Metrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-post");
        let metrics = Self {
            evictable: meter
                .u64_counter("microblog.post.archive.evictable")
                .with_description("Posts that became evictable")
                .with_unit("{post}")
                .build(),
            evicted: meter
                .u64_counter("microblog.post.archive.evicted")
                .with_description("Posts that were evicted from Redis")
                .with_unit("{post}")
                .build(),
        };
        // Counters exist from the start, so that the first increment shows as a rate.
        metrics.add_evictions(0, 0);
        metrics
    }

    /// Counts posts that became evictable, and posts that were evicted.
    pub(crate) fn add_evictions(&self, evictable: u64, evicted: u64) {
        self.evictable.add(evictable, &[]);
        self.evicted.add(evicted, &[]);
    }
}

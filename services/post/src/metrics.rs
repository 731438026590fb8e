//! Metrics of the archive, for OpenTelemetry. Cheap when no exporter is configured.

use std::time::Duration;

use opentelemetry::{
    global,
    metrics::{Counter, Gauge},
};

/// The instruments of the service.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    backlog: Gauge<u64>,
    age: Gauge<f64>,
    archived: Counter<u64>,
    evictable: Counter<u64>,
    evicted: Counter<u64>,
}

impl Metrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-post");
        let metrics = Self {
            backlog: meter
                .u64_gauge("microblog.post.archive.backlog")
                .with_description("Length of the archive outbox: posts, comments and deletions")
                .with_unit("{change}")
                .build(),
            age: meter
                .f64_gauge("microblog.post.archive.age")
                .with_description("Age of the oldest entry in the archive outbox")
                .with_unit("s")
                .build(),
            archived: meter
                .u64_counter("microblog.post.archive.changes")
                .with_description("Posts, comments and deletions written to the archive")
                .with_unit("{change}")
                .build(),
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
        metrics.add_archived(0);
        metrics.add_evictions(0, 0);
        metrics
    }

    /// Records the length of the archive outbox and the age of its oldest entry.
    pub(crate) fn set_backlog(&self, count: u64, age: Option<Duration>) {
        self.backlog.record(count, &[]);
        self.age.record(age.unwrap_or_default().as_secs_f64(), &[]);
    }

    /// Counts changes that were written to the archive.
    pub(crate) fn add_archived(&self, count: u64) {
        self.archived.add(count, &[]);
    }

    /// Counts posts that became evictable, and posts that were evicted.
    pub(crate) fn add_evictions(&self, evictable: u64, evicted: u64) {
        self.evictable.add(evictable, &[]);
        self.evicted.add(evicted, &[]);
    }
}

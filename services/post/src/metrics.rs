//! What is measured of the archive, for OpenTelemetry. Where nothing is exported, it costs next to
//! nothing.

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
                .with_description("Posts, comments and deletions that the archive may not know")
                .with_unit("{change}")
                .build(),
            age: meter
                .f64_gauge("microblog.post.archive.age")
                .with_description("Age of the oldest of them")
                .with_unit("s")
                .build(),
            archived: meter
                .u64_counter("microblog.post.archive.changes")
                .with_description("Posts, comments and deletions written to the archive")
                .with_unit("{change}")
                .build(),
            evictable: meter
                .u64_counter("microblog.post.archive.retired")
                .with_description("Posts that were taken off their authors' lists in Redis")
                .with_unit("{post}")
                .build(),
            evicted: meter
                .u64_counter("microblog.post.archive.evicted")
                .with_description("Posts that left Redis")
                .with_unit("{post}")
                .build(),
        };
        // There from the start: a rate knows nothing of what came before the first number.
        metrics.add_archived(0);
        metrics.add_evictions(0, 0);
        metrics
    }

    /// Notes how much the archive may not know, and since when.
    pub(crate) fn set_backlog(&self, count: u64, age: Option<Duration>) {
        self.backlog.record(count, &[]);
        self.age.record(age.unwrap_or_default().as_secs_f64(), &[]);
    }

    /// Notes that so much was written to the archive.
    pub(crate) fn add_archived(&self, count: u64) {
        self.archived.add(count, &[]);
    }

    /// Notes that so many posts were taken off their lists, and so many left Redis.
    pub(crate) fn add_evictions(&self, evictable: u64, evicted: u64) {
        self.evictable.add(evictable, &[]);
        self.evicted.add(evicted, &[]);
    }
}

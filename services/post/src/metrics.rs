//! Metrics of the archive, for OpenTelemetry. Cheap when no exporter is configured.

use std::time::SystemTime;

use opentelemetry::{
    global,
    metrics::{Counter, Gauge},
};

/// The instruments of the service.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    evictable: Counter<u64>,
    evicted: Counter<u64>,
    missing: Counter<u64>,
    backed_up_until: Gauge<f64>,
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
            missing: meter
                .u64_counter("microblog.post.archive.missing")
                .with_description("Posts that neither Redis nor a restored database has")
                .with_unit("{post}")
                .build(),
            // A time and not an age, which would stand still where a process has ceased to measure it.
            backed_up_until: meter
                .f64_gauge("microblog.post.archive.backed_up_until")
                .with_description("The Unix time of the last backup of the database")
                .with_unit("s")
                .build(),
        };
        // Counters exist from the start, so that the first increment shows as a rate.
        metrics.add_evictions(0, 0);
        metrics.add_missing(0);
        metrics
    }

    /// Counts posts that became evictable, and posts that were evicted.
    pub(crate) fn add_evictions(&self, evictable: u64, evicted: u64) {
        self.evictable.add(evictable, &[]);
        self.evicted.add(evicted, &[]);
    }

    /// Counts posts that neither store has.
    pub(crate) fn add_missing(&self, posts: u64) {
        self.missing.add(posts, &[]);
    }

    /// Records the moment of the last backup.
    pub(crate) fn set_backed_up_until(&self, time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.backed_up_until.record(since.as_secs_f64(), &[]);
    }
}

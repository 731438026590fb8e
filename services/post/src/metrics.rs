//! Metrics of deliveries and deletions, for OpenTelemetry. Cheap when no exporter is configured.

use std::time::Duration;

use opentelemetry::{KeyValue, global, metrics::Gauge};

/// The instruments of the posts that wait to be delivered.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryMetrics {
    undelivered: Gauge<u64>,
    age: Gauge<f64>,
}

impl DeliveryMetrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-post");
        let undelivered = meter
            .u64_gauge("microblog.post.undelivered")
            .with_description("Posts that calls could not deliver to the timelines")
            .with_unit("{post}")
            .build();
        let age = meter
            .f64_gauge("microblog.post.undelivered.age")
            .with_description("Age of the oldest post that calls could not deliver")
            .with_unit("s")
            .build();
        Self { undelivered, age }
    }

    /// Records how many posts wait, and the age of the oldest one.
    pub(crate) fn note(&self, undelivered: u64, age: Duration) {
        self.undelivered.record(undelivered, &[]);
        self.age.record(age.as_secs_f64(), &[]);
    }
}

/// The instruments of what is being deleted.
#[derive(Clone, Debug)]
pub(crate) struct DeletionMetrics(Gauge<u64>);

impl DeletionMetrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-post");
        let gauge = meter
            .u64_gauge("microblog.post.deleting")
            .with_description("Deleted accounts and posts of which something remains")
            .with_unit("{item}")
            .build();
        Self(gauge)
    }

    /// Records how many there are of a kind: `account` or `post`.
    pub(crate) fn note(&self, kind: &'static str, count: u64) {
        self.0.record(count, &[KeyValue::new("kind", kind)]);
    }
}

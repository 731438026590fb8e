//! Backlog metrics: the size and age of a sweeper's backlog, and the stale entries taken from it.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{BoundCounter, BoundGauge},
};

/// The instruments of one backlog.
#[derive(Clone, Debug)]
pub struct BacklogMetrics {
    size: BoundGauge<u64>,
    age: BoundGauge<f64>,
    stale: BoundCounter<u64>,
}

impl BacklogMetrics {
    /// Returns the instruments of a backlog, by its name.
    pub fn new(name: &'static str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let attributes = [KeyValue::new("backlog", name)];
        let size = meter
            .u64_gauge("microblog.backlog.size")
            .with_unit("{entry}")
            .with_description("Entries in the backlog of a sweeper")
            .build();
        let age = meter
            .f64_gauge("microblog.backlog.age")
            .with_unit("s")
            .with_description("Time since a sweeper first saw the oldest entry of its backlog")
            .build();
        let stale = meter
            .u64_counter("microblog.backlog.taken_up")
            .with_unit("{entry}")
            .with_description("Stale entries that a sweeper started to complete")
            .build();
        let stale = stale.bind(&attributes);
        // Exports the counter from the start: a rate ignores what precedes the first value.
        stale.add(0);
        Self { size: size.bind(&attributes), age: age.bind(&attributes), stale }
    }

    /// Records the size and age of the backlog, and the number of stale entries taken now.
    pub fn note(&self, size: usize, age: Duration, taken_up: usize) {
        self.size.record(size as u64);
        self.age.record(age.as_secs_f64());
        self.stale.add(taken_up as u64);
    }
}

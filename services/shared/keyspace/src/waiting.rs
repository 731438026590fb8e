//! What is measured of backlogs: how much waits in them and since when, and how much was taken up
//! since whoever was to do it had died, or could not.

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
    taken_up: BoundCounter<u64>,
}

impl BacklogMetrics {
    /// Returns those of the backlog of this name, of the process's meter.
    pub fn new(name: &'static str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let own = [KeyValue::new("backlog", name)];
        let size = meter
            .u64_gauge("microblog.backlog.size")
            .with_unit("{entry}")
            .with_description("What a sweeper sees wait to be completed")
            .build();
        let age = meter
            .f64_gauge("microblog.backlog.age")
            .with_unit("s")
            .with_description("How long a sweeper has seen the oldest of it wait")
            .build();
        let taken_up = meter
            .u64_counter("microblog.backlog.taken_up")
            .with_unit("{entry}")
            .with_description("How often a sweeper took something up that was left behind")
            .build();
        let taken_up = taken_up.bind(&own);
        // There from the start: a rate knows nothing of what came before the first number.
        taken_up.add(0);
        Self { size: size.bind(&own), age: age.bind(&own), taken_up }
    }

    /// Notes what waits, and since when, and how much of it is taken up now.
    pub fn note(&self, size: usize, age: Duration, taken_up: usize) {
        self.size.record(size as u64);
        self.age.record(age.as_secs_f64());
        self.taken_up.add(taken_up as u64);
    }
}

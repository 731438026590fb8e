//! How many connections to Redis there are, and how long they took to make, as OpenTelemetry's
//! conventions for connection pools have it
//! (<https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>).

use std::time::Instant;

use opentelemetry::{
    KeyValue, global,
    metrics::{Histogram, UpDownCounter},
};
use redis::RedisResult;

// In seconds: from one beside us to one that does not answer.
const BOUNDARIES: [f64; 8] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];

/// The connections of one kind.
#[derive(Clone)]
pub(crate) struct Connected {
    count: UpDownCounter<i64>,
    times: Histogram<f64>,
    pool: String,
}

impl Connected {
    /// Returns those of a keyspace and a kind, such as `shared`.
    pub(crate) fn new(keyspace: &str, kind: &str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let count = meter
            .i64_up_down_counter("db.client.connection.count")
            .with_unit("{connection}")
            .with_description("Connections to a store that there are")
            .build();
        let times = meter
            .f64_histogram("db.client.connection.create_time")
            .with_unit("s")
            .with_description("How long it takes to connect to Redis and log in, or to fail")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        Self { count, times, pool: format!("{keyspace} {kind}") }
    }

    /// Makes a connection, which counts as long as what comes with it is kept.
    pub(crate) async fn make<T>(
        &self,
        connect: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<(T, Counted)> {
        let begun = Instant::now();
        let made = connect.await;
        let mut attributes = vec![self.name()];
        if let Err(error) = &made {
            let kind = if error.is_timeout() { "timeout" } else { "unavailable" };
            let kind = error.code().unwrap_or(kind).to_owned();
            attributes.push(KeyValue::new("error.type", kind));
        }
        self.times.record(begun.elapsed().as_secs_f64(), &attributes);
        Ok((made?, self.counted()))
    }

    /// Counts a connection as long as what is returned is kept.
    pub(crate) fn counted(&self) -> Counted {
        let attributes = [self.name(), KeyValue::new("db.client.connection.state", "used")];
        self.count.add(1, &attributes);
        Counted { count: self.count.clone(), attributes }
    }

    fn name(&self) -> KeyValue {
        KeyValue::new("db.client.connection.pool.name", self.pool.clone())
    }
}

/// A connection that counts until this is dropped.
pub(crate) struct Counted {
    count: UpDownCounter<i64>,
    attributes: [KeyValue; 2],
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.add(-1, &self.attributes);
    }
}

//! Connection metrics: the number of connections to Redis and the time to connect, after the
//! OpenTelemetry conventions (<https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>).

use std::time::Instant;

use opentelemetry::{
    KeyValue, global,
    metrics::{Histogram, UpDownCounter},
};
use redis::RedisResult;

// In seconds: from a local connection to a timeout.
const BOUNDARIES: [f64; 8] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0];

/// The instruments of one connection pool.
#[derive(Clone)]
pub(crate) struct ConnectionMetrics {
    count: UpDownCounter<i64>,
    create_time: Histogram<f64>,
    pool: String,
}

impl ConnectionMetrics {
    /// Returns the instruments of a keyspace's pool, such as `shared`.
    pub(crate) fn new(keyspace: &str, pool: &str) -> Self {
        let meter = global::meter("microblog-keyspace");
        let count = meter
            .i64_up_down_counter("db.client.connection.count")
            .with_unit("{connection}")
            .with_description("Connections to a store that there are")
            .build();
        let create_time = meter
            .f64_histogram("db.client.connection.create_time")
            .with_unit("s")
            .with_description("Time to connect to Redis and authenticate, or to fail")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        Self { count, create_time, pool: format!("{keyspace} {pool}") }
    }

    /// Measures the time to connect, and counts the connection until the guard is dropped.
    pub(crate) async fn measure<T>(
        &self,
        connect: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<(T, ConnectionGuard)> {
        let started_at = Instant::now();
        let connected = connect.await;
        let mut attributes = vec![self.pool_name()];
        if let Err(error) = &connected {
            let error_type = if error.is_timeout() { "timeout" } else { "unavailable" };
            let error_type = error.code().unwrap_or(error_type).to_owned();
            attributes.push(KeyValue::new("error.type", error_type));
        }
        self.create_time.record(started_at.elapsed().as_secs_f64(), &attributes);
        Ok((connected?, self.count()))
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn count(&self) -> ConnectionGuard {
        let attributes = [self.pool_name(), KeyValue::new("db.client.connection.state", "used")];
        self.count.add(1, &attributes);
        ConnectionGuard { count: self.count.clone(), attributes }
    }

    fn pool_name(&self) -> KeyValue {
        KeyValue::new("db.client.connection.pool.name", self.pool.clone())
    }
}

/// Counts a connection until dropped.
pub(crate) struct ConnectionGuard {
    count: UpDownCounter<i64>,
    attributes: [KeyValue; 2],
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.count.add(-1, &self.attributes);
    }
}

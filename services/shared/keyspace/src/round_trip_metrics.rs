//! Redis round-trip metrics and spans, after the OpenTelemetry conventions
//! (<https://opentelemetry.io/docs/specs/semconv/db/redis/>). Each round trip is measured. It has a
//! span if the current span is recorded. Keys and arguments never appear, only command names.

mod error_type;
mod operation_name;
mod server_address;

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use opentelemetry::{
    KeyValue, global,
    metrics::{BoundHistogram, Histogram},
};
use redis::{Cmd, Value};
use tracing::{Span, field::Empty};

pub(crate) use self::server_address::ServerAddress;
use self::{
    error_type::ErrorType,
    operation_name::{OperationName, PIPELINE, first_command},
};
use crate::Error;

// In seconds. The buckets of the conventions start at a millisecond, which most round trips beat.
const BOUNDARIES: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Frequent commands, with bound instruments. Other commands are measured by name too, at a higher
/// cost.
const COMMON: [&str; 18] = [
    PIPELINE, "FCALL", "GET", "PING", "ZRANGE", "ZSCORE", "ZCARD", "HMGET", "HGET", "MGET", "XADD",
    "XLEN", "XRANGE", "XPENDING", "GETRANGE", "SSCAN", "ZREM", "ZADD",
];

/// The instruments of one keyspace in one worker. The exporter aggregates all workers.
pub(crate) struct RoundTripMetrics {
    keyspace: &'static str,
    server: ServerAddress,
    durations: Histogram<f64>,
    /// For successful common commands: a bound instrument saves the look-up of its attributes.
    common: [OnceLock<BoundHistogram<f64>>; COMMON.len()],
}

impl RoundTripMetrics {
    /// Returns the instruments of a keyspace, which has the name of its library.
    pub(crate) fn new(keyspace: &'static str, server: ServerAddress) -> Arc<Self> {
        let durations = global::meter("microblog-keyspace")
            .f64_histogram("db.client.operation.duration")
            .with_unit("s")
            .with_description("How long operations of a store take, with their repeats and waits")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        let common = std::array::from_fn(|_| OnceLock::new());
        Arc::new(Self { keyspace, server, durations, common })
    }

    pub(crate) fn keyspace(&self) -> &'static str {
        self.keyspace
    }

    /// Begins a round trip of at least one command.
    pub(crate) fn begin<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone,
    ) -> RoundTrip<'_> {
        // Without a current span, skips the cost of the names.
        let span =
            if Span::current().is_none() { Span::none() } else { self.span(commands.clone()) };
        let name = if commands.len() > 1 { PIPELINE.as_bytes() } else { first_command(commands) };
        let index = COMMON.iter().position(|common| common.as_bytes() == name);
        let operation = match index {
            Some(index) => Operation::Common(index),
            None => Operation::Rare(String::from_utf8_lossy(name).into_owned()),
        };
        RoundTrip { metrics: self, operation, span, started_at: Instant::now() }
    }

    fn span<'a>(&self, commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone) -> Span {
        let count = commands.len();
        let OperationName { operation, function } = OperationName::of(commands);
        let name = match &function {
            Some(function) => format!("{operation} {function}"),
            None => operation.to_string(),
        };
        tracing::info_span!(
            target: "microblog::redis",
            "redis",
            otel.name = name,
            otel.kind = "client",
            otel.status_code = Empty,
            db.system.name = "redis",
            db.namespace = self.server.database,
            db.operation.name = &*operation,
            db.operation.batch.size = (count > 1).then_some(count),
            db.stored_procedure.name = function.as_deref(),
            db.response.status_code = Empty,
            error.type = Empty,
            server.address = self.server.address,
            server.port = self.server.port,
            microblog.keyspace = self.keyspace,
        )
    }

    fn attributes(&self, operation: impl Into<opentelemetry::Value>) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("db.system.name", "redis"),
            KeyValue::new("db.namespace", self.server.database.clone()),
            KeyValue::new("db.operation.name", operation),
            KeyValue::new("server.address", self.server.address.clone()),
            KeyValue::new("microblog.keyspace", self.keyspace),
        ];
        let port = self.server.port.map(i64::from);
        attributes.extend(port.map(|port| KeyValue::new("server.port", port)));
        attributes
    }
}

enum Operation {
    /// The index in [`COMMON`].
    Common(usize),
    Rare(String),
}

/// A round trip in flight. It is not measured if dropped before its end, as by a cancelled call.
pub(crate) struct RoundTrip<'a> {
    metrics: &'a RoundTripMetrics,
    operation: Operation,
    span: Span,
    started_at: Instant,
}

impl RoundTrip<'_> {
    /// Records the duration and the outcome. The first error reply is the error of the round trip.
    pub(crate) fn end(self, replies: Result<&[Value], &Error>) {
        let seconds = self.started_at.elapsed().as_secs_f64();
        let error = match replies {
            Ok(replies) => ErrorType::of_replies(replies),
            Err(error) => Some(ErrorType::of_error(error)),
        };
        match (&self.operation, &error) {
            (&Operation::Common(index), None) => {
                let bind = || self.metrics.durations.bind(&self.metrics.attributes(COMMON[index]));
                self.metrics.common[index].get_or_init(bind).record(seconds);
            }
            _ => self.record_unbound(seconds, error.as_ref()),
        }
        if let Some(error) = error
            && !self.span.is_none()
        {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", error.name());
            if let ErrorType::Redis(code) = error {
                self.span.record("db.response.status_code", code);
            }
        }
    }

    fn record_unbound(&self, seconds: f64, error: Option<&ErrorType<'_>>) {
        let mut attributes = match &self.operation {
            &Operation::Common(index) => self.metrics.attributes(COMMON[index]),
            Operation::Rare(name) => self.metrics.attributes(name.clone()),
        };
        let name = error.map(|error| error.name().to_owned());
        attributes.extend(name.map(|name| KeyValue::new("error.type", name)));
        self.metrics.durations.record(seconds, &attributes);
    }
}

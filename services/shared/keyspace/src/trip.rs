//! What is measured of a round trip to Redis, as OpenTelemetry's conventions for databases have it
//! (<https://opentelemetry.io/docs/specs/semconv/db/redis/>): how long it took, of each; and a span,
//! where what it works for is recorded. Commands are told by their names: keys and arguments show
//! nowhere.

mod commands;
mod failure;
mod server;

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

pub(crate) use self::server::Server;
use self::{
    commands::{Names, PIPELINE, first},
    failure::Failure,
};
use crate::Error;

// In seconds. Those of the conventions begin at a millisecond, in which most round trips end.
const BOUNDARIES: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// What is sent often. Anything else is counted under its own name as well, which costs more.
const COMMON: [&str; 18] = [
    PIPELINE, "FCALL", "GET", "PING", "ZRANGE", "ZSCORE", "ZCARD", "HMGET", "HGET", "MGET", "XADD",
    "XLEN", "XRANGE", "XPENDING", "GETRANGE", "SSCAN", "ZREM", "ZADD",
];

/// The round trips of one keyspace in one worker; whoever takes metrics gets those of all workers
/// as one.
pub(crate) struct Trips {
    keyspace: &'static str,
    server: Server,
    durations: Histogram<f64>,
    /// Of those that are common and end well: what is bound need not look for its attributes.
    common: [OnceLock<BoundHistogram<f64>>; COMMON.len()],
}

impl Trips {
    /// Returns those of a keyspace that is called by its library's name.
    pub(crate) fn new(keyspace: &'static str, server: Server) -> Arc<Self> {
        let durations = global::meter("microblog-keyspace")
            .f64_histogram("db.client.operation.duration")
            .with_unit("s")
            .with_description("How long operations of a store take, with their repeats and waits")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        let common = std::array::from_fn(|_| OnceLock::new());
        Arc::new(Self { keyspace, server, durations, common })
    }

    /// Returns the name of the keyspace.
    pub(crate) fn keyspace(&self) -> &'static str {
        self.keyspace
    }

    /// Begins one with some commands, at least one.
    pub(crate) fn begin<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone,
    ) -> Trip<'_> {
        // Asked first: where nothing is recorded, there is no span.
        let span =
            if Span::current().is_none() { Span::none() } else { self.span(commands.clone()) };
        let name = if commands.len() > 1 { PIPELINE.as_bytes() } else { first(commands) };
        let place = COMMON.iter().position(|common| common.as_bytes() == name);
        let operation = match place {
            Some(place) => Operation::Common(place),
            None => Operation::Rare(String::from_utf8_lossy(name).into_owned()),
        };
        Trip { trips: self, operation, span, begun: Instant::now() }
    }

    fn span<'a>(&self, commands: impl ExactSizeIterator<Item = &'a Cmd> + Clone) -> Span {
        let count = commands.len();
        let Names { operation, function } = Names::of(commands);
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
    /// Of the common ones, by its place.
    Common(usize),
    Rare(String),
}

/// A round trip that is under way. One that is dropped before its end, as by a caller who leaves, is
/// not counted.
pub(crate) struct Trip<'a> {
    trips: &'a Trips,
    operation: Operation,
    span: Span,
    begun: Instant,
}

impl Trip<'_> {
    /// Ends it with answers, some of which may be refusals: the first one is its error.
    pub(crate) fn end(self, answers: Result<&[Value], &Error>) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let failure = match answers {
            Ok(answers) => Failure::among(answers),
            Err(error) => Some(Failure::of(error)),
        };
        match (&self.operation, &failure) {
            (&Operation::Common(place), None) => {
                let bind = || self.trips.durations.bind(&self.trips.attributes(COMMON[place]));
                self.trips.common[place].get_or_init(bind).record(seconds);
            }
            _ => self.record_seldom(seconds, failure.as_ref()),
        }
        if let Some(failure) = failure
            && !self.span.is_none()
        {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", failure.name());
            if let Failure::Refused(code) = failure {
                self.span.record("db.response.status_code", code);
            }
        }
    }

    fn record_seldom(&self, seconds: f64, failure: Option<&Failure<'_>>) {
        let mut attributes = match &self.operation {
            &Operation::Common(place) => self.trips.attributes(COMMON[place]),
            Operation::Rare(name) => self.trips.attributes(name.clone()),
        };
        let name = failure.map(|failure| failure.name().to_owned());
        attributes.extend(name.map(|name| KeyValue::new("error.type", name)));
        self.trips.durations.record(seconds, &attributes);
    }
}

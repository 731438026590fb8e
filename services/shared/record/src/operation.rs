//! Metrics and spans of a database's operations, by OpenTelemetry's conventions
//! (<https://opentelemetry.io/docs/specs/semconv/db/sql/>): the duration of each operation, and a
//! span if its caller is traced. An operation is named by its verb and tables; neither statements
//! nor parameters are recorded.

use std::{borrow::Cow, time::Instant};

use opentelemetry::{KeyValue, global, metrics::Histogram};
use tracing::{Span, field::Empty};
use url::Url;

use crate::error::{self, Error};

/// In seconds: from a cached read of some pages to a post with a million likes.
const BOUNDARIES: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// The operations of a database in one worker. Exporters sum those of all workers.
pub(crate) struct Operations {
    system: &'static str,
    /// The address of the database, unless it is a file.
    server: Option<Server>,
    durations: Histogram<f64>,
}

struct Server {
    address: String,
    port: Option<u16>,
    database: String,
}

impl Operations {
    /// Returns the operations of the database at a URL. They record no secrets.
    pub(crate) fn new(url: &str) -> Self {
        let durations = global::meter("microblog-record")
            .f64_histogram("db.client.operation.duration")
            .with_unit("s")
            .with_description("How long operations of a store take, with their repeats and waits")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        let url = Url::parse(url).ok();
        let is_embedded = url.as_ref().is_some_and(|url| url.scheme() == "sqlite");
        let system = if is_embedded { "sqlite" } else { "postgresql" };
        let server = url.as_ref().filter(|_| !is_embedded).map(Server::at);
        Self { system, server, durations }
    }

    /// Begins an operation. Its summary is the verb and the tables.
    pub(crate) fn begin(&self, summary: &'static str) -> Operation<'_> {
        // Checked first: an untraced caller gets no span.
        let span = if Span::current().is_none() { Span::none() } else { self.span(summary) };
        Operation { all: self, summary, span, begun: Instant::now() }
    }

    fn span(&self, summary: &'static str) -> Span {
        let server = self.server.as_ref();
        tracing::info_span!(
            target: "microblog::sql",
            "sql",
            otel.name = summary,
            otel.kind = "client",
            otel.status_code = Empty,
            db.system.name = self.system,
            db.namespace = server.map(|server| &*server.database),
            db.operation.name = name(summary),
            db.query.summary = summary,
            db.response.status_code = Empty,
            error.type = Empty,
            server.address = server.map(|server| &*server.address),
            server.port = server.and_then(|server| server.port),
        )
    }

    fn attributes(&self, summary: &'static str) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("db.system.name", self.system),
            KeyValue::new("db.operation.name", name(summary)),
            KeyValue::new("db.query.summary", summary),
        ];
        if let Some(server) = &self.server {
            attributes.push(KeyValue::new("db.namespace", server.database.clone()));
            attributes.push(KeyValue::new("server.address", server.address.clone()));
            let port = server.port.map(|port| KeyValue::new("server.port", i64::from(port)));
            attributes.extend(port);
        }
        attributes
    }
}

impl Server {
    fn at(url: &Url) -> Self {
        Self {
            address: url.host_str().unwrap_or_default().to_owned(),
            port: url.port(),
            database: url.path().trim_start_matches('/').to_owned(),
        }
    }
}

/// Returns the operation's name: the first word of its summary.
fn name(summary: &'static str) -> &'static str {
    summary.split(' ').next().unwrap_or(summary)
}

/// An operation in flight. Not recorded if it is dropped before its end, as by a cancelled call.
pub struct Operation<'a> {
    all: &'a Operations,
    summary: &'static str,
    span: Span,
    begun: Instant,
}

/// How an operation failed, as its metrics and spans tell.
pub struct Failure<'a> {
    /// The value of `error.type`.
    error_type: Cow<'a, str>,
    /// The database's error code.
    code: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Error> for Failure<'a> {
    fn from(error: &'a Error) -> Self {
        Self { error_type: error.error_type(), code: error.database_code() }
    }
}

/// `None` is a timeout.
impl<'a> From<Option<&'a sqlx::Error>> for Failure<'a> {
    fn from(error: Option<&'a sqlx::Error>) -> Self {
        let code = error.and_then(error::code);
        let other = if error.is_none() { "timeout" } else { "unavailable" };
        Self { error_type: code.clone().unwrap_or(other.into()), code }
    }
}

impl Operation<'_> {
    /// Records the duration and the result.
    pub fn end(self, failure: Option<Failure<'_>>) {
        let seconds = self.begun.elapsed().as_secs_f64();
        let mut attributes = self.all.attributes(self.summary);
        if let Some(Failure { error_type, code }) = failure {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", &*error_type);
            self.span.record("db.response.status_code", code.as_deref());
            attributes.push(KeyValue::new("error.type", error_type.into_owned()));
        }
        self.all.durations.record(seconds, &attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_a_database_without_its_password() {
        let operations = Operations::new("postgres://user:secret@host:1234/posts?sslmode=disable");
        let server = operations.server.unwrap();
        assert_eq!(
            (&*server.address, server.port, &*server.database),
            ("host", Some(1234), "posts")
        );
        assert_eq!(operations.system, "postgresql");
        let file = Operations::new("sqlite:///path/to/file?mode=rwc");
        assert!(file.server.is_none() && file.system == "sqlite");
    }
}

//! How long calls take, as a metric: `rpc.server.call.duration` of OpenTelemetry's conventions
//! (<https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>).

use std::time::Duration;

use opentelemetry::{KeyValue, global, metrics::Histogram};
use tonic::Code;

use crate::methods::Method;

// Those that the conventions advise, in seconds.
const BOUNDARIES: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
// The conventions' name for all methods that the server does not know.
const UNKNOWN: &str = "_OTHER";

/// The durations of the calls of one server in one worker; the collector gets those of all of
/// them as one.
#[derive(Debug)]
pub(crate) struct Durations(Histogram<f64>);

impl Durations {
    /// Must be called after the process has set up its telemetry; what is counted goes nowhere
    /// otherwise.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-chassis");
        let histogram = meter
            .f64_histogram("rpc.server.call.duration")
            .with_unit("s")
            .with_description("how long calls take, from their headers to the end of the answer")
            .with_boundaries(BOUNDARIES.to_vec());
        Self(histogram.build())
    }

    pub(super) fn record(&self, method: &'static Method, code: Code, duration: Duration) {
        let method = if method.is_known() { method.name() } else { UNKNOWN };
        let attributes = [
            KeyValue::new("rpc.system.name", "grpc"),
            KeyValue::new("rpc.method", method),
            KeyValue::new("rpc.response.status_code", name(code)),
        ];
        self.0.record(duration.as_secs_f64(), &attributes);
    }
}

/// Returns a code's name in the specification of gRPC.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

//! How long calls take, as a metric: `rpc.server.call.duration` of OpenTelemetry's conventions
//! (<https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>).

use std::{sync::OnceLock, time::Duration};

use opentelemetry::{
    KeyValue, global,
    metrics::{BoundHistogram, Histogram},
};
use tonic::Code;

use crate::{
    methods::{self, Method},
    status,
};

// Those that the conventions advise, in seconds.
const BOUNDARIES: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
// The conventions' name for all methods that the server does not know.
const UNKNOWN: &str = "_OTHER";

/// The durations of the calls of one server in one worker; the collector gets those of all of
/// them as one.
#[derive(Debug)]
pub(crate) struct CallDurations {
    histogram: Histogram<f64>,
    /// For each method by its place, that of its calls that were ok_by_method with OK: what is bound
    /// need not look for its attributes, which costs more than to count.
    ok_by_method: Box<[OnceLock<BoundHistogram<f64>>]>,
}

impl CallDurations {
    /// Must be called after the process has set up its telemetry; what is counted goes nowhere
    /// otherwise.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-chassis");
        let histogram = meter
            .f64_histogram("rpc.server.call.duration")
            .with_unit("s")
            .with_description(
                "duration of calls, from the request headers to the end of the response",
            )
            .with_boundaries(BOUNDARIES.to_vec());
        let ok_by_method = (0..methods::count()).map(|_| OnceLock::new()).collect();
        Self { histogram: histogram.build(), ok_by_method }
    }

    pub(crate) fn record(&self, method: &'static Method, code: Code, duration: Duration) {
        let seconds = duration.as_secs_f64();
        match self.ok_by_method.get(method.index).filter(|_| code == Code::Ok) {
            Some(ok_by_method) => {
                let bind = || self.histogram.bind(&attributes(method, code));
                ok_by_method.get_or_init(bind).record(seconds);
            }
            None => self.histogram.record(seconds, &attributes(method, code)),
        }
    }
}

fn attributes(method: &'static Method, code: Code) -> [KeyValue; 3] {
    let method = if method.is_known() { method.name() } else { UNKNOWN };
    [
        KeyValue::new("rpc.system.name", "grpc"),
        KeyValue::new("rpc.method", method),
        KeyValue::new("rpc.response.status_code", status::code_name(code)),
    ]
}

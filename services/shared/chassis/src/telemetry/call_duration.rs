//! Call duration metric: `rpc.server.call.duration` of the semantic conventions
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

// The bucket boundaries that the conventions recommend, in seconds.
const BOUNDARIES: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
// The conventions' name for unknown methods.
const UNKNOWN: &str = "_OTHER";

/// The histogram of one server in one worker; exporters merge those of all workers.
#[derive(Debug)]
pub(crate) struct CallDurations {
    histogram: Histogram<f64>,
    /// Bound histograms of calls with status OK, by method index: binding skips the attribute
    /// lookup, which costs more than recording.
    ok_by_method: Box<[OnceLock<BoundHistogram<f64>>]>,
}

impl CallDurations {
    /// Must be called after telemetry is set up; otherwise nothing is exported.
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

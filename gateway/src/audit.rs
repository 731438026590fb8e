//! What service callers do: a metric of their calls, and the audit log of those that may change
//! something.

use microblog_chassis::status;
use microblog_domain::UserId;
use opentelemetry::{KeyValue, global, metrics::Counter};
use tonic::{Code, Status};

use crate::callers::{AuthenticatedCaller, is_read};

/// The target of the audit log's lines.
const TARGET: &str = "microblog::audit";

/// The metric of service callers.
pub(crate) struct CallerMetrics(Counter<u64>);

/// A call of a service caller. Recorded with its outcome, as CANCELLED if it is dropped earlier: a
/// canceled call may have had its effect.
pub(crate) struct CallerCall<'a> {
    metrics: &'a CallerMetrics,
    caller: &'a str,
    acts_for: Option<UserId>,
    method: &'static str,
    code: Code,
}

impl CallerMetrics {
    /// Registers the metric. Call it in a worker.
    pub(crate) fn register() -> Self {
        let calls = global::meter("microblog-gateway")
            .u64_counter("microblog.gateway.callers.calls")
            .with_unit("{call}")
            .with_description("Calls of service callers, by caller and gRPC status code")
            .build();
        Self(calls)
    }

    /// Starts the record of a call.
    pub(crate) fn start<'a>(
        &'a self,
        caller: &'a AuthenticatedCaller,
        acts_for: Option<UserId>,
        method: &'static str,
    ) -> CallerCall<'a> {
        let caller = caller.name();
        CallerCall { metrics: self, caller, acts_for, method, code: Code::Cancelled }
    }
}

impl CallerCall<'_> {
    /// Records the outcome.
    pub(crate) fn end<T>(mut self, result: &Result<T, Status>) {
        self.code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
    }
}

impl Drop for CallerCall<'_> {
    fn drop(&mut self) {
        let Self { metrics, caller, acts_for, method, code } = self;
        let attributes = [
            KeyValue::new("caller", (*caller).to_owned()),
            KeyValue::new("rpc.response.status_code", status::code_name(*code)),
        ];
        metrics.0.add(1, &attributes);
        if !is_read(method) {
            let viewer = acts_for.map(UserId::get);
            tracing::info!(target: TARGET, caller, viewer, method, ?code, "call of a service caller");
        }
    }
}

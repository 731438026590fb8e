//! What service callers do: a metric of their calls, and the audit log of those that may change
//! something.

use microblog_chassis::{AUDIT_TARGET, status};
use microblog_domain::UserId;
use microblog_proto::common::ErrorReason;
use opentelemetry::{KeyValue, global, metrics::Counter};
use tonic::{Code, Status};

use crate::callers::{AuthenticatedCaller, is_read};

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

    /// Counts a call that was rejected because no service caller has its credentials.
    pub(crate) fn count_invalid(&self, status: &Status) {
        if status::reason_of(status) == Some(ErrorReason::CallerInvalid) {
            self.count("", status.code());
        }
    }

    fn count(&self, caller: &str, code: Code) {
        let attributes = [
            KeyValue::new("caller", caller.to_owned()),
            KeyValue::new("rpc.response.status_code", status::code_name(code)),
        ];
        self.0.add(1, &attributes);
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
        metrics.count(caller, *code);
        if is_read(method) != Some(true) {
            let viewer = acts_for.map(UserId::get);
            tracing::info!(target: AUDIT_TARGET, caller, viewer, method, ?code, "call of a service caller");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use microblog_testkit::Files;

    use super::*;
    use crate::callers::Callers;

    #[test]
    fn changes_are_logged_with_their_outcome_and_reads_are_not() {
        let files = Files::new();
        let content = r#"{"callers": [{"name": "search", "certificate_names": ["search.test"],
            "methods": ["Publish"], "acts_for": "anybody"}]}"#;
        let callers = Callers::open(files.write("callers.json", content)).unwrap();
        let caller = callers.of_certificate(&["search.test".to_owned()]).unwrap();
        let log = files.path("log");
        let lines = tracing_subscriber::fmt()
            .with_writer(Arc::new(fs::File::create(&log).unwrap()))
            .with_ansi(false)
            .finish();
        let metrics = CallerMetrics::register();
        tracing::subscriber::with_default(lines, || {
            let start = |viewer, method| metrics.start(&caller, UserId::new(viewer), method);
            start(7, "Publish").end(&Ok(()));
            start(7, "Publish").end::<()>(&Err(Status::permission_denied("no")));
            drop(start(8, "Follow"));
            start(0, "EnsureUser").end(&Ok(()));
            start(7, "ViewHome").end(&Ok(()));
        });
        let log = fs::read_to_string(log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        assert!(lines.iter().all(|line| line.contains("microblog::audit")), "{log}");
        assert!(lines.iter().all(|line| line.contains("caller=\"search\"")), "{log}");
        let expected = [
            ["viewer=7", "method=\"Publish\"", "code=Ok"],
            ["viewer=7", "method=\"Publish\"", "code=PermissionDenied"],
            ["viewer=8", "method=\"Follow\"", "code=Cancelled"],
            ["", "method=\"EnsureUser\"", "code=Ok"],
        ];
        assert_eq!(lines.len(), expected.len(), "{log}");
        for (line, parts) in lines.iter().zip(expected) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        assert!(!lines[3].contains("viewer="), "{log}");
    }
}

//! Metrics of the change feed: what its readers were sent.

use std::time::SystemTime;

use microblog_proto::common::FeedPage;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};

/// The metrics of the readers of the change feed.
#[derive(Clone)]
pub(crate) struct FeedMetrics {
    changes: Counter<u64>,
    position: Gauge<u64>,
    sent_until: Gauge<f64>,
}

impl FeedMetrics {
    /// Registers the metrics. Call it in a worker.
    pub(crate) fn register() -> Self {
        let meter = global::meter("microblog-gateway");
        let changes = meter
            .u64_counter("microblog.gateway.change_feed.changes")
            .with_unit("{change}")
            .with_description("Changes sent, by caller and service")
            .build();
        let position = meter
            .u64_gauge("microblog.gateway.change_feed.position")
            .with_unit("{transaction}")
            .with_description("The newest sequence number sent, by caller and service")
            .build();
        // A time and not an age: the age of a reader that has gone grows on.
        let sent_until = meter
            .f64_gauge("microblog.gateway.change_feed.sent_until")
            .with_unit("s")
            .with_description(
                "The Unix time until when all changes are sent, by caller and service",
            )
            .build();
        Self { changes, position, sent_until }
    }

    /// Records what a caller was sent of a service.
    pub(crate) fn sent(&self, caller: &str, service: &'static str, page: &FeedPage) {
        let attributes =
            [KeyValue::new("caller", caller.to_owned()), KeyValue::new("service", service)];
        self.changes.add(page.changes.len() as u64, &attributes);
        self.position.record(page.position.unwrap_or_default().sequence, &attributes);
        let until = page.recorded_at.and_then(|at| SystemTime::try_from(at).ok());
        if let Some(until) =
            until.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok())
        {
            self.sent_until.record(until.as_secs_f64(), &attributes);
        }
    }
}

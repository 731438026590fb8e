//! What is measured of peers, for OpenTelemetry. Where nothing is exported, it costs next to nothing.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, UpDownCounter},
};

use crate::methods::Method;

/// RetryReason a request was sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryReason {
    /// Nobody had seen it.
    Unsent,
    /// It was answered UNAVAILABLE, or not at all.
    Unanswered,
}

/// What came of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// As before.
    Failed,
    /// It was not sent, since too many were.
    Denied,
}

/// The instruments of one peer in one worker.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    peer: String,
    retries: Counter<u64>,
    endpoints: UpDownCounter<i64>,
}

impl Metrics {
    /// Returns the instruments of the process's meter.
    pub(super) fn new(peer: String) -> Self {
        let meter = global::meter("microblog-chassis");
        Self {
            peer,
            retries: meter
                .u64_counter("microblog.peer.retries")
                .with_description("Retried calls to a peer, by reason and outcome")
                .with_unit("{call}")
                .build(),
            // What all workers count adds up.
            endpoints: meter
                .i64_up_down_counter("microblog.peer.endpoints")
                .with_description("Endpoints of a peer that a worker knows, by state")
                .with_unit("{endpoint}")
                .build(),
        }
    }

    /// Notes that a call was made again, or would have been.
    pub(super) fn record_retry(
        &self,
        method: &'static Method,
        reason: RetryReason,
        outcome: Outcome,
    ) {
        let reason = match reason {
            RetryReason::Unsent => "unseen",
            RetryReason::Unanswered => "unanswered",
        };
        let outcome = match outcome {
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::Denied => "denied",
        };
        let attributes = [
            KeyValue::new("microblog.rpc.service", method.service()),
            KeyValue::new("why", reason),
            KeyValue::new("outcome", outcome),
        ];
        self.retries.add(1, &attributes);
    }

    /// Notes that there is one address more, or fewer, that answers or does not.
    pub(super) fn add_endpoints(&self, is_live: bool, change: i64) {
        let state = if is_live { "live" } else { "out" };
        let attributes = [KeyValue::new("peer", self.peer.clone()), KeyValue::new("state", state)];
        self.endpoints.add(change, &attributes);
    }
}

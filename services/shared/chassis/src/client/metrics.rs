//! OpenTelemetry metrics of peers.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, UpDownCounter},
};

use crate::methods::Method;

/// Why a call was retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryReason {
    /// No server has seen it.
    Unsent,
    /// It was answered UNAVAILABLE, or not at all.
    Unanswered,
}

/// Outcome of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// The retry failed as well.
    Failed,
    /// The retry budget was exhausted.
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
    /// Creates the instruments with the global meter.
    pub(super) fn new(peer: String) -> Self {
        let meter = global::meter("microblog-chassis");
        Self {
            peer,
            retries: meter
                .u64_counter("microblog.peer.retries")
                .with_description("Retried calls to a peer, by reason and outcome")
                .with_unit("{call}")
                .build(),
            // An up-down counter, so that the values of all workers add up.
            endpoints: meter
                .i64_up_down_counter("microblog.peer.endpoints")
                .with_description("Endpoints of a peer that a worker knows, by state")
                .with_unit("{endpoint}")
                .build(),
        }
    }

    /// Records a retry, or a denied one.
    pub(super) fn record_retry(
        &self,
        method: &'static Method,
        reason: RetryReason,
        outcome: Outcome,
    ) {
        let reason = match reason {
            RetryReason::Unsent => "unsent",
            RetryReason::Unanswered => "unanswered",
        };
        let outcome = match outcome {
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::Denied => "denied",
        };
        let attributes = [
            KeyValue::new("microblog.rpc.service", method.service()),
            KeyValue::new("reason", reason),
            KeyValue::new("outcome", outcome),
        ];
        self.retries.add(1, &attributes);
    }

    /// Adds endpoints to the gauge of a state, or removes them.
    pub(super) fn add_endpoints(&self, is_live: bool, change: i64) {
        let state = if is_live { "live" } else { "unavailable" };
        let attributes = [KeyValue::new("peer", self.peer.clone()), KeyValue::new("state", state)];
        self.endpoints.add(change, &attributes);
    }
}

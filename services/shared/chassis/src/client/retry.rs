//! Retries: sends each call to an endpoint of a remote peer, and again to another one where that is
//! safe, within a retry budget.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::{Status, body::Body};
use tower::retry::budget::{Budget as _, TpsBudget};

use super::{
    failure::{Failure, Kind, describe},
    load_balancer::LoadBalancer,
    metrics::{Outcome, RetryReason},
    request::{self, BufferedRequest},
    response::PeerResponse,
};
use crate::{
    methods::{Idempotency, Method},
    status,
};

// Retry budget: this share of the calls in the window, and a minimum per second. Without it,
// retries to an overloaded peer would prevent its recovery.
const RETRY_BUDGET_WINDOW: Duration = Duration::from_secs(10);
const RETRY_BUDGET_RATIO: f32 = 0.1;
const RETRY_BUDGET_PER_SECOND_MIN: u32 = 10;
// Bound on retries of unsent requests: one per connection that a stopping server closes, for
// several servers at once.
const UNSENT_RETRIES_MAX: u32 = 16;
// One of several connections may recover before the others. Without a cooldown, their last failures
// would each log a new outage.
const LOG_COOLDOWN: Duration = Duration::from_secs(1);

/// A remote peer in one worker.
pub(super) struct Remote {
    balancer: Arc<LoadBalancer>,
    budget: TpsBudget,
    throttle: LogThrottle,
}

impl Remote {
    pub(super) fn new(peer: String, balancer: Arc<LoadBalancer>) -> Self {
        let budget =
            TpsBudget::new(RETRY_BUDGET_WINDOW, RETRY_BUDGET_PER_SECOND_MIN, RETRY_BUDGET_RATIO);
        Self { balancer, budget, throttle: LogThrottle::new(peer) }
    }

    /// Returns the response, or DEADLINE_EXCEEDED.
    pub(super) async fn call(
        self: Arc<Self>,
        request: Request<Body>,
        method: &'static Method,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        let response = self.call_with_retries(request, method, deadline);
        match deadline {
            Some(deadline) => {
                let late = |_elapsed| Err(status::deadline_exceeded());
                timeout_at(deadline, response).await.unwrap_or_else(late)
            }
            None => response.await,
        }
    }

    async fn call_with_retries(
        &self,
        request: Request<Body>,
        method: &'static Method,
        deadline: Option<Instant>,
    ) -> Result<Response<Body>, Status> {
        let request = request::buffer(request).await?;
        self.budget.deposit();
        let mut retry = RetryState::default();
        let response = loop {
            let response = self.attempt(&request, method, deadline, &mut retry.last).await;
            if !self.should_retry(&response, method, &mut retry) {
                break response;
            }
        };
        if let Some(reason) = retry.reason {
            let is_success = response.as_ref().is_ok_and(|response| !response.is_unavailable());
            let outcome = if is_success { Outcome::Answered } else { Outcome::Failed };
            self.balancer.metrics().record_retry(method, reason, outcome);
        }
        match response {
            // The first attempt may have been carried out: a rejection of the second one, by an
            // overloaded server or a full store, does not say that nothing was changed.
            Ok(response)
                if retry.is_retried
                    && method.idempotency != Idempotency::NoSideEffects
                    && response.is_rejected() =>
            {
                self.throttle.succeeded();
                Err(status::peer_unavailable())
            }
            Ok(response) => {
                self.throttle.succeeded();
                Ok(response.into_response(deadline))
            }
            Err(failure) => {
                self.throttle.failed(&method.path, &failure.cause);
                Err(status::peer_unavailable())
            }
        }
    }

    /// Sends the request to an endpoint, preferring another one than the last.
    async fn attempt(
        &self,
        request: &BufferedRequest,
        method: &'static Method,
        deadline: Option<Instant>,
        last: &mut Option<SocketAddr>,
    ) -> Result<PeerResponse, Failure> {
        let lease = self.balancer.acquire(*last).await;
        let mut lease = lease.ok_or_else(|| Failure::unavailable(self.balancer.last_error()))?;
        *last = Some(lease.endpoint().address);
        if method.streaming {
            // Boxed: must not enlarge the future of unary calls.
            let other = Box::pin(lease.for_stream()).await;
            lease = other.map_err(|error| Failure::unsent(describe(&error)))?;
        }
        let sent = request::attempt(request, &lease.endpoint().origin, deadline);
        if let Some(stream) = lease.connection().call_stream(&sent).filter(|_| !method.streaming) {
            let reply = stream.call(sent).await.and_then(PeerResponse::batched);
            return reply.inspect_err(|failure| lease.on_failure(failure));
        }
        match lease.connection().send(sent).await {
            Ok(response) if method.streaming => Ok(PeerResponse::stream(response, lease)),
            Ok(response) => PeerResponse::unary(response, lease).await,
            Err(error) => {
                let failure = Failure::of_request(&error);
                lease.on_failure(&failure);
                Err(failure)
            }
        }
    }

    /// Returns whether to retry a call, and records it.
    fn should_retry(
        &self,
        response: &Result<PeerResponse, Failure>,
        method: &'static Method,
        retry: &mut RetryState,
    ) -> bool {
        let may_retry = match response {
            Ok(response) if !response.is_unavailable() => return false,
            // Another endpoint may succeed; the same one has just failed.
            Ok(response) => {
                method.idempotency != Idempotency::None
                    && !response.forbids_retry()
                    && self.balancer.has_other(retry.last)
            }
            Err(failure) => match failure.kind {
                Kind::Unavailable => return false,
                Kind::Unsent => {
                    retry.unsent += 1;
                    retry.reason.get_or_insert(RetryReason::Unsent);
                    return retry.unsent <= UNSENT_RETRIES_MAX;
                }
                Kind::Reset => method.idempotency != Idempotency::None,
                // The first attempt of a write may still be running. A retry could reorder it with
                // the caller's next write.
                Kind::TimedOut => method.idempotency == Idempotency::NoSideEffects,
            },
        };
        if !may_retry || retry.is_retried {
            return false;
        }
        if !self.budget.withdraw() {
            self.balancer.metrics().record_retry(method, RetryReason::Unanswered, Outcome::Denied);
            return false;
        }
        retry.is_retried = true;
        retry.reason = Some(RetryReason::Unanswered);
        true
    }
}

/// Retry state of one call.
#[derive(Debug, Default)]
struct RetryState {
    /// The last attempt's endpoint.
    last: Option<SocketAddr>,
    unsent: u32,
    is_retried: bool,
    /// Why it was retried.
    reason: Option<RetryReason>,
}

/// Log throttle for the outage of a peer: one line at its start and one at its end, instead of one
/// per call.
#[derive(Debug)]
struct LogThrottle {
    peer: String,
    // Read without a lock while the peer is available.
    is_failing: AtomicBool,
    last_failure: Mutex<Option<Instant>>,
}

impl LogThrottle {
    /// Returns a throttle for a peer without an outage.
    fn new(peer: String) -> Self {
        Self { peer, is_failing: AtomicBool::new(false), last_failure: Mutex::new(None) }
    }

    /// Records a call that did not reach its handler.
    fn failed(&self, method: &str, cause: &str) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let began = last.replace(Instant::now()).is_none();
        self.is_failing.store(true, Ordering::Relaxed);
        if began {
            tracing::warn!(peer = self.peer, method, cause, "peer unavailable");
        } else {
            tracing::debug!(peer = self.peer, method, cause, "peer still unavailable");
        }
    }

    /// Records a call with a response.
    fn succeeded(&self) {
        if !self.is_failing.load(Ordering::Relaxed) {
            return;
        }
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if last.take_if(|last| last.elapsed() >= LOG_COOLDOWN).is_some() {
            self.is_failing.store(false, Ordering::Relaxed);
            tracing::info!(peer = self.peer, "peer available again");
        }
    }
}

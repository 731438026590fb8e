//! Health checks (`grpc.health.v1`): readiness of a service over all workers, and liveness of the
//! process under the name `liveness`. Kubernetes must probe them separately: a server without Redis
//! is not ready, but must not be restarted.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::stream::{BoxStream, StreamExt as _};
use opentelemetry::{KeyValue, global};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

/// Service name for liveness checks.
const LIVENESS: &str = "liveness";

// Above the longest interval between two reports of a healthy worker, including a slow probe.
const REPORT_AGE_MAX: Duration = Duration::from_secs(8);

/// Health state of one service over all workers. tonic-health's own reporter starts as SERVING, and
/// its streams would block the drain.
#[derive(Debug)]
pub(super) struct HealthState {
    name: &'static str,
    workers: Mutex<Workers>,
    serving: watch::Sender<bool>,
    /// Ends the health watches.
    closing: CancellationToken,
}

#[derive(Debug)]
struct Workers {
    /// When each worker last reported ready; `None` if it is not.
    ready: Vec<Option<Instant>>,
    draining: bool,
}

impl Workers {
    /// Returns whether all workers are ready. The report of a stuck worker expires.
    fn are_ready(&self, now: Instant) -> bool {
        let counts = |at: Instant| now.saturating_duration_since(at) <= REPORT_AGE_MAX;
        !self.draining && self.ready.iter().all(|&ready| ready.is_some_and(counts))
    }
}

impl HealthState {
    /// Returns the state of a service whose workers have not reported yet.
    pub(super) fn new(name: &'static str, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            workers: Mutex::new(Workers { ready: vec![None; workers], draining: false }),
            serving: watch::Sender::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// Registers the observable metric.
    pub(super) fn observe(self: &Arc<Self>) {
        let (name, serving) = (self.name, self.serving.subscribe());
        global::meter("microblog-chassis")
            .u64_observable_gauge("microblog.serving")
            .with_description("Whether a service reports SERVING: 1, or 0")
            .with_callback(move |observer| {
                let service = KeyValue::new("microblog.rpc.service", name);
                observer.observe(u64::from(*serving.borrow()), &[service]);
            })
            .build();
    }

    /// Returns the health service of a listener.
    pub(super) fn server(self: &Arc<Self>) -> HealthServer<impl Health> {
        HealthServer::new(HealthService(self.clone()))
    }

    /// Records the result of a worker's readiness probe.
    pub(super) fn set_ready(&self, worker: usize, ready: bool) {
        self.set_ready_at(Instant::now(), worker, ready);
    }

    fn set_ready_at(&self, now: Instant, worker: usize, ready: bool) {
        self.update(now, |workers| {
            if let Some(report) = workers.ready.get_mut(worker) {
                *report = ready.then_some(now);
            }
        });
    }

    /// Reports NOT_SERVING from now on.
    pub(super) fn drain(&self) {
        self.update(Instant::now(), |workers| workers.draining = true);
    }

    /// Ends the health watches.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    // Every report re-evaluates all workers, so that a stuck worker is detected by the others.
    fn update(&self, now: Instant, change: impl FnOnce(&mut Workers)) {
        // Held while sending, so that updates stay in order.
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut workers);
        let serving = workers.are_ready(now);
        let changed =
            self.serving.send_if_modified(|report| std::mem::replace(report, serving) != serving);
        if changed {
            tracing::info!(service = self.name, serving, "health changed");
        }
    }

    fn is_named(&self, service: &str) -> bool {
        service.is_empty() || service == self.name
    }
}

struct HealthService(Arc<HealthState>);

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            LIVENESS => Ok(Response::new(response(ServingStatus::Serving))),
            name if self.0.is_named(name) => {
                Ok(Response::new(response(status(*self.0.serving.borrow()))))
            }
            _ => Err(Status::not_found("unknown service")),
        }
    }

    /// Sends the status now and at each change. By the protocol, an unknown service is
    /// SERVICE_UNKNOWN, not an error: it may appear later.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let health = &self.0;
        let closed = health.closing.clone().cancelled_owned();
        let steady = |status| {
            let first = futures::stream::iter([Ok(response(status))]);
            first.chain(futures::stream::pending()).take_until(closed).boxed()
        };
        let stream = match request.get_ref().service.as_str() {
            LIVENESS => steady(ServingStatus::Serving),
            name if health.is_named(name) => changes(health),
            _ => steady(ServingStatus::ServiceUnknown),
        };
        Ok(Response::new(stream))
    }
}

fn changes(health: &HealthState) -> BoxStream<'static, Result<HealthCheckResponse, Status>> {
    let mut serving_changes = health.serving.subscribe();
    serving_changes.mark_changed();
    let closing = health.closing.clone();
    futures::stream::unfold(
        (serving_changes, closing),
        |(mut serving_changes, closing)| async move {
            tokio::select! {
                // The last change is sent before the stream ends.
                biased;
                changed = serving_changes.changed() => changed.ok()?,
                () = closing.cancelled() => return None,
            }
            let serving = *serving_changes.borrow_and_update();
            Some((Ok(response(status(serving))), (serving_changes, closing)))
        },
    )
    .boxed()
}

fn status(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_serving_only_if_all_workers_are_ready() {
        let health = HealthState::new("service", 2);
        let mut serving = health.serving.subscribe();
        health.set_ready(0, true);
        assert!(!*serving.borrow_and_update());
        health.set_ready(1, true);
        assert!(*serving.borrow_and_update());
        health.set_ready(0, true);
        assert!(!serving.has_changed().unwrap(), "an unchanged status is not sent");
        health.set_ready(0, false);
        assert!(!*serving.borrow_and_update());
        health.set_ready(0, true);
        health.drain();
        health.set_ready(1, true);
        assert!(!*serving.borrow_and_update(), "a draining service is never ready again");
    }

    #[test]
    fn stale_worker_report_makes_the_service_not_serving() {
        let health = HealthState::new("service", 2);
        let serving = health.serving.subscribe();
        let start = Instant::now();
        health.set_ready_at(start, 0, true);
        health.set_ready_at(start, 1, true);
        for second in 1..=7 {
            health.set_ready_at(start + Duration::from_secs(second), 0, true);
            assert!(*serving.borrow(), "it may be between two probes");
        }
        health.set_ready_at(start + Duration::from_secs(9), 0, true);
        assert!(!*serving.borrow());
        health.set_ready_at(start + Duration::from_secs(10), 1, true);
        assert!(*serving.borrow());
    }
}

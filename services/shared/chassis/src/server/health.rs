//! Health checks (`grpc.health.v1`): readiness of a service over all workers, and liveness of the
//! process under the name `liveness`, which a stuck worker ends. Kubernetes must probe them separately:
//! a server without Redis is not ready, but must not be restarted.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{ready, select_all},
    stream::{self, BoxStream, StreamExt as _},
};
use microblog_proto::common::ErrorReason;
use opentelemetry::{KeyValue, global};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};

use crate::status;

/// Service name for liveness checks.
const LIVENESS: &str = "liveness";

// Above the longest interval between two reports of a healthy worker, including a slow probe.
const REPORT_AGE_MAX: Duration = Duration::from_secs(8);

// A worker without a report for so long is stuck, not slow: only a restart of the process helps.
const STUCK_AGE: Duration = Duration::from_secs(60);

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
    /// The last report of each worker; `None` before the first one.
    reports: Vec<Option<Report>>,
    draining: bool,
}

/// The result of a worker's readiness probe.
#[derive(Clone, Copy, Debug)]
struct Report {
    at: Instant,
    is_ready: bool,
}

impl Report {
    fn is_within(self, age: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.at) <= age
    }
}

impl Workers {
    /// Returns whether all workers are ready. The report of a stuck worker expires.
    fn are_ready(&self, now: Instant) -> bool {
        let counts = |report: Report| report.is_ready && report.is_within(REPORT_AGE_MAX, now);
        !self.draining && self.reports.iter().all(|report| report.is_some_and(counts))
    }

    /// Returns whether no worker is stuck. While it drains, the process ends by itself.
    fn are_alive(&self, now: Instant) -> bool {
        let counts = |report: Report| report.is_within(STUCK_AGE, now);
        self.draining || self.reports.iter().all(|report| report.is_none_or(counts))
    }
}

impl HealthState {
    /// Returns the state of a service whose workers have not reported yet.
    pub(super) fn new(name: &'static str, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            workers: Mutex::new(Workers { reports: vec![None; workers], draining: false }),
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

    /// Records the result of a worker's readiness probe.
    pub(super) fn set_ready(&self, worker: usize, ready: bool) {
        self.set_ready_at(Instant::now(), worker, ready);
    }

    fn set_ready_at(&self, now: Instant, worker: usize, ready: bool) {
        self.update(now, |workers| {
            if let Some(report) = workers.reports.get_mut(worker) {
                *report = Some(Report { at: now, is_ready: ready });
            }
        });
    }

    /// Returns whether no worker is stuck.
    fn is_alive(&self, now: Instant) -> bool {
        self.workers().are_alive(now)
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports NOT_SERVING from now on.
    pub(super) fn drain(&self) {
        self.update(Instant::now(), |workers| workers.draining = true);
    }

    /// Ends the health watches.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// Completes when the health watches end.
    fn closed(&self) -> WaitForCancellationFutureOwned {
        self.closing.clone().cancelled_owned()
    }

    // Every report re-evaluates all workers, so that a stuck worker is detected by the others.
    fn update(&self, now: Instant, change: impl FnOnce(&mut Workers)) {
        // Held while sending, so that updates stay in order.
        let mut workers = self.workers();
        change(&mut workers);
        let serving = workers.are_ready(now);
        let changed =
            self.serving.send_if_modified(|report| std::mem::replace(report, serving) != serving);
        if changed {
            tracing::info!(service = self.name, serving, "health changed");
        }
    }
}

/// Returns whether all of these services report SERVING.
pub(super) fn are_serving(states: &[Arc<HealthState>]) -> bool {
    states.iter().all(|state| *state.serving.borrow())
}

/// Returns the health service of a listener for these services, of which there is at least one. The
/// empty name stands for all of them.
pub(super) fn server(states: Vec<Arc<HealthState>>) -> HealthServer<impl Health> {
    HealthServer::new(HealthService(states))
}

struct HealthService(Vec<Arc<HealthState>>);

impl HealthService {
    /// Returns the states of a name; none if it is unknown.
    fn named(&self, service: &str) -> Vec<Arc<HealthState>> {
        let is_named = |state: &&Arc<HealthState>| service.is_empty() || service == state.name;
        self.0.iter().filter(is_named).cloned().collect()
    }

    /// Returns whether the process works: any worker answers, but another one may be stuck.
    fn is_alive(&self) -> bool {
        let now = Instant::now();
        self.0.iter().all(|state| state.is_alive(now))
    }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let name = request.get_ref().service.as_str();
        if name == LIVENESS {
            return Ok(Response::new(response(self.is_alive())));
        }
        let states = self.named(name);
        if states.is_empty() {
            return Err(status::not_found(ErrorReason::NameUnknown, "unknown service"));
        }
        Ok(Response::new(response(are_serving(&states))))
    }

    /// Sends the status now and at each change. By the protocol, an unknown service is
    /// SERVICE_UNKNOWN, not an error: it may appear later.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let steady = |response| {
            let closed = select_all(self.0.iter().map(|state| state.closed().boxed()));
            let first = stream::once(ready(Ok(response)));
            first.chain(stream::pending()).take_until(closed).boxed()
        };
        let stream = match request.get_ref().service.as_str() {
            LIVENESS => steady(response(self.is_alive())),
            name => match self.named(name) {
                states if states.is_empty() => {
                    steady(HealthCheckResponse { status: ServingStatus::ServiceUnknown.into() })
                }
                states => changes(states),
            },
        };
        Ok(Response::new(stream))
    }
}

/// Returns the common status of services, now and at each change, until one of them closes.
fn changes(
    states: Vec<Arc<HealthState>>,
) -> BoxStream<'static, Result<HealthCheckResponse, Status>> {
    let each = states.iter().map(|state| {
        stream::unfold(state.serving.subscribe(), |mut serving| async move {
            serving.changed().await.ok()?;
            Some(((), serving))
        })
        .boxed()
    });
    let closed = select_all(states.iter().map(|state| state.closed().boxed()));
    let now = || stream::once(ready(()));
    // The last change is sent before the stream ends.
    let changes = now().chain(stream::select_all(each)).take_until(closed).chain(now());
    let mut last = None;
    let status = move |()| {
        let serving = are_serving(&states);
        let is_new = last.replace(serving) != Some(serving);
        ready(is_new.then(|| Ok(response(serving))))
    };
    changes.filter_map(status).boxed()
}

fn response(serving: bool) -> HealthCheckResponse {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
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

    #[test]
    fn a_process_with_a_stuck_worker_is_not_alive() {
        let health = HealthState::new("service", 2);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(health.is_alive(after(3600)), "before the first reports, the startup probe counts");
        health.set_ready_at(start, 0, true);
        // A worker without Redis is not stuck.
        health.set_ready_at(start, 1, false);
        assert!(health.is_alive(after(60)));
        health.set_ready_at(after(61), 1, false);
        assert!(!health.is_alive(after(61)));
        health.set_ready_at(after(61), 0, false);
        assert!(health.is_alive(after(61)));
        health.drain();
        assert!(health.is_alive(after(3600)));
    }

    #[tokio::test]
    async fn empty_name_watches_all_services() {
        let states = ["a", "b"].map(|name| HealthState::new(name, 1));
        let mut all = changes(states.to_vec());
        let mut next = async || all.next().await.map(|next| next.unwrap().status());
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        states[0].set_ready(0, true);
        states[1].set_ready(0, true);
        assert_eq!(next().await, Some(ServingStatus::Serving));
        states[1].drain();
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        states[1].close();
        assert_eq!(next().await, None);
        let service = HealthService(states.to_vec());
        assert_eq!(["", "a", "c"].map(|name| service.named(name).len()), [2, 1, 0]);
    }
}

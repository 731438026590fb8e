//! Process life cycle: telemetry, workers, signals, drain.

use std::{
    collections::HashMap,
    error::Error,
    future::{Future, pending},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use futures::future::try_join_all;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{ProcessState, health::HealthState, listeners::Listeners, serve_health, serve_in};
use crate::{
    call::context,
    config::Config,
    service::{ServiceListener, Worker},
    telemetry::Telemetry,
};

// For a worker's blocking tasks after its drain, such as hashing a password.
const RUNTIME_STOP: Duration = Duration::from_secs(1);
// Beyond the delay and timeout of the drain, a worker is stuck.
const STOP_MARGIN: Duration = Duration::from_secs(3);

// Index of the health check listener, after those of all services.
const HEALTH_LISTENER: usize = usize::MAX;

/// Runs a process: sets up telemetry, starts the workers, and drains them on SIGTERM or SIGINT.
/// Each worker is a thread with its own runtime, listeners and connections, which `start` creates.
/// A second signal exits immediately.
///
/// Returns failure if a worker failed, or the drain did not complete. Errors are already logged.
pub fn run<F, Fut, E>(config: &Config, start: F) -> ExitCode
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<ServiceListener>, E>>,
    E: Error,
{
    let started = runtime().map_err(|error| error.to_string()).and_then(|runtime| {
        // This otherwise idle runtime drives the exporters' connections.
        let telemetry = runtime.block_on(async { Telemetry::start(config, current_trace_id) });
        telemetry.map(|telemetry| (runtime, telemetry)).map_err(|error| describe(&error))
    });
    let (runtime, telemetry) = match started {
        Ok(started) => started,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        let code = supervise(config, start).await;
        telemetry.stop().await;
        code
    })
}

/// State shared by the workers of a process.
struct Supervisor {
    state: ProcessState,
    /// Read once: the number of cores may change.
    workers: usize,
    listeners: Listeners,
    health_states: Mutex<HashMap<usize, Arc<HealthState>>>,
    stop: CancellationToken,
}

impl Supervisor {
    /// Returns the health state of a service, which all workers share.
    fn health(&self, index: usize, name: &'static str, workers: usize) -> Arc<HealthState> {
        let mut health_states = self.health_states.lock().unwrap_or_else(PoisonError::into_inner);
        let create = || {
            let health = HealthState::new(name, workers);
            health.observe();
            health
        };
        health_states.entry(index).or_insert_with(create).clone()
    }

    /// Serves `--health-listen` for all services in every worker, so that a stuck worker is detected
    /// as on the services' ports. Returns only on error.
    async fn serve_health_checks(
        &self,
        worker: Worker,
        health_states: Vec<Arc<HealthState>>,
    ) -> Result<(), String> {
        let config = &self.state.config;
        let Some(address) = config.health_listen else { return pending().await };
        let listener =
            self.listeners.listen(HEALTH_LISTENER, address).map_err(|error| describe(&error))?;
        let address = listener.socket.local_addr().map_err(|error| describe(&error))?;
        if worker.is_first() {
            tracing::info!(%address, "serving health checks");
        }
        serve_health(listener, config, health_states).await.map_err(|error| describe(&error))
    }
}

async fn supervise<F, Fut, E>(config: &Config, start: F) -> ExitCode
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<ServiceListener>, E>>,
    E: Error,
{
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "cannot install signal handlers");
            return ExitCode::FAILURE;
        }
    };
    let state = match ProcessState::new(config) {
        Ok(state) => state,
        Err(error) => {
            tracing::error!(error = describe(&error), "cannot set up TLS");
            return ExitCode::FAILURE;
        }
    };
    state.admission.observe();
    let workers = config.workers();
    let supervisor = Arc::new(Supervisor {
        state,
        workers,
        listeners: Listeners::of(workers),
        health_states: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let (ended, mut exits) = mpsc::unbounded_channel();
    if let Err(error) = spawn(&supervisor, start, &ended) {
        tracing::error!(%error, "cannot start a worker");
        return ExitCode::FAILURE;
    }
    drop(ended);
    let failed = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            false
        }
        // A worker exits by itself only after a failure.
        _ = exits.recv() => true,
    };
    supervisor.stop.cancel();
    drain(config, &mut signals, &mut exits, failed).await
}

/// Waits for all workers, within a limit.
async fn drain(
    config: &Config,
    signals: &mut Signals,
    exits: &mut UnboundedReceiver<WorkerExit>,
    mut failed: bool,
) -> ExitCode {
    let all_ended = async {
        while let Some(exit) = exits.recv().await {
            failed |= exit == WorkerExit::Failed;
        }
    };
    let limit = config.drain_delay() + config.drain_timeout() + STOP_MARGIN;
    tokio::select! {
        ended = timeout(limit, all_ended) => {
            if ended.is_err() {
                tracing::error!("worker did not stop in time");
                failed = true;
            }
        }
        signal = signals.next() => {
            tracing::warn!(signal, "second signal, exiting immediately");
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerExit {
    Drained,
    Failed,
}

fn spawn<F, Fut, E>(
    supervisor: &Arc<Supervisor>,
    start: F,
    ended: &UnboundedSender<WorkerExit>,
) -> io::Result<()>
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<ServiceListener>, E>>,
    E: Error,
{
    let start = Arc::new(start);
    let count = supervisor.workers;
    for index in 0..count {
        let (supervisor, start, ended) = (supervisor.clone(), start.clone(), ended.clone());
        let work = move || {
            let worker = Worker { index, count };
            let result =
                catch_unwind(AssertUnwindSafe(|| run_worker(&supervisor, worker, &*start)));
            let exit = match result {
                Ok(Ok(())) => WorkerExit::Drained,
                Ok(Err(error)) => {
                    tracing::error!(worker = index, error, "worker failed");
                    WorkerExit::Failed
                }
                Err(_panic) => WorkerExit::Failed,
            };
            // The receiver is gone after a second signal.
            let _ = ended.send(exit);
        };
        thread::Builder::new().name(format!("worker-{index}")).spawn(work)?;
    }
    Ok(())
}

/// Runs one worker. Errors are text, since they need not be `Send`.
fn run_worker<F, Fut, E>(supervisor: &Supervisor, worker: Worker, start: &F) -> Result<(), String>
where
    F: Fn(Worker) -> Fut,
    Fut: Future<Output = Result<Vec<ServiceListener>, E>>,
    E: Error,
{
    let runtime = runtime().map_err(|error| describe(&error))?;
    let result = runtime.block_on(async {
        let started = tokio::select! {
            started = start(worker) => started.map_err(|error| describe(&error))?,
            () = supervisor.stop.cancelled() => return Ok(()),
        };
        let (mut servers, mut health_states) = (Vec::new(), Vec::new());
        for (index, ServiceListener { address, service }) in started.into_iter().enumerate() {
            let listener =
                supervisor.listeners.listen(index, address).map_err(|error| describe(&error))?;
            let address = listener.socket.local_addr().map_err(|error| describe(&error))?;
            if worker.is_first() {
                tracing::info!(service = service.name, %address, workers = worker.count, "listening");
            }
            let health = supervisor.health(index, service.name, worker.count);
            let stop = supervisor.stop.cancelled();
            servers.push(serve_in(worker, listener, service, &supervisor.state, health.clone(), stop));
            health_states.push(health);
        }
        tokio::select! {
            served = try_join_all(servers) => served.map(drop).map_err(|error| describe(&error)),
            ended = supervisor.serve_health_checks(worker, health_states) => ended,
        }
    });
    runtime.shutdown_timeout(RUNTIME_STOP);
    result
}

/// SIGTERM and SIGINT: both start a graceful shutdown.
#[derive(Debug)]
struct Signals {
    // Sent by Kubernetes, systemd and docker before they kill.
    terminate: Signal,
    // Sent by Ctrl-C.
    interrupt: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A single-threaded runtime: half the CPU per call of a multi-threaded one, as connections are
/// driven once per batch of messages.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn current_trace_id() -> Option<String> {
    context::trace().map(|trace| trace.id().to_string())
}

/// Formats an error with its sources.
fn describe(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

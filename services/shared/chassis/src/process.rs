//! A process from its start to its end: telemetry, workers, signals, drain.

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
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Config, Listening, Worker,
    health::Board,
    ports::Ports,
    server::{Common, serve_health, serve_in},
    signals::Signals,
    telemetry::Telemetry,
};

// For a worker's own clean-up after its drain: it may be in the middle of hashing a password.
const RUNTIME_STOP: Duration = Duration::from_secs(1);
// Beyond delay and time-out of the drain, a worker is stuck.
const STOP_MARGIN: Duration = Duration::from_secs(3);

// The place of the port for health checks, behind those of all services.
const HEALTH: usize = usize::MAX;

/// Runs a process to its end: sets up telemetry, starts the workers (each a thread with a
/// runtime, listeners and connections of its own, which `start` makes), and on SIGTERM or SIGINT
/// drains them. A second signal ends it at once.
///
/// Returns failure if a worker could not start or failed, or if the drain was cut short by a
/// second signal. What went wrong is in the log by then.
pub fn run<F, Fut, E>(config: &Config, start: F) -> ExitCode
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Listening>, E>>,
    E: Error,
{
    let started = runtime().map_err(|error| error.to_string()).and_then(|runtime| {
        // The exporters' connections live in this runtime, which is idle otherwise.
        let telemetry = runtime.block_on(async { Telemetry::start(config) });
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

/// What the workers of a process share.
#[derive(Debug)]
struct Process {
    common: Common,
    /// How many workers there are, asked once: how many cores there are may change.
    workers: usize,
    ports: Ports,
    boards: Mutex<HashMap<usize, Arc<Board>>>,
    stop: CancellationToken,
}

impl Process {
    /// Returns the board of the service at a place, which all workers share.
    fn board(&self, place: usize, name: &'static str, workers: usize) -> Arc<Board> {
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = || {
            let board = Board::new(name, workers);
            board.observe();
            board
        };
        boards.entry(place).or_insert_with(begin).clone()
    }

    /// Answers health checks where that is asked for, in this worker as in all others: one that is
    /// stuck is found out as at the service's own port. Ends only with an error.
    async fn answer_probes(&self, worker: Worker, boards: &[Arc<Board>]) -> Result<(), String> {
        let config = &self.common.config;
        let Some(address) = config.health_listen else { return pending().await };
        let [board] = boards else {
            return Err("--health-listen is for a process with one service".to_owned());
        };
        let listener = self.ports.listen(HEALTH, address).map_err(|error| describe(&error))?;
        let address = listener.socket.local_addr().map_err(|error| describe(&error))?;
        if worker.is_first() {
            tracing::info!(%address, "answering health checks");
        }
        serve_health(listener, config, board).await.map_err(|error| describe(&error))
    }
}

async fn supervise<F, Fut, E>(config: &Config, start: F) -> ExitCode
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Listening>, E>>,
    E: Error,
{
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(%error, "cannot take over signals");
            return ExitCode::FAILURE;
        }
    };
    let common = match Common::new(config) {
        Ok(common) => common,
        Err(error) => {
            tracing::error!(error = describe(&error), "TLS cannot be set up");
            return ExitCode::FAILURE;
        }
    };
    common.admission.observe();
    let workers = config.workers();
    let process = Arc::new(Process {
        common,
        workers,
        ports: Ports::of(workers),
        boards: Mutex::default(),
        stop: CancellationToken::new(),
    });
    let (ended, mut endings) = mpsc::unbounded_channel();
    if let Err(error) = spawn(&process, start, &ended) {
        tracing::error!(%error, "cannot start a worker");
        return ExitCode::FAILURE;
    }
    drop(ended);
    let failed = tokio::select! {
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            false
        }
        // A worker ends by itself only if it failed.
        _ = endings.recv() => true,
    };
    process.stop.cancel();
    drain(config, &mut signals, &mut endings, failed).await
}

/// Waits until all workers have ended, but not for ever.
async fn drain(
    config: &Config,
    signals: &mut Signals,
    endings: &mut UnboundedReceiver<Ending>,
    mut failed: bool,
) -> ExitCode {
    let all_ended = async {
        while let Some(ending) = endings.recv().await {
            failed |= ending == Ending::Failed;
        }
    };
    let limit = config.drain_delay() + config.drain_timeout() + STOP_MARGIN;
    tokio::select! {
        ended = timeout(limit, all_ended) => {
            if ended.is_err() {
                tracing::error!("a worker does not end");
                failed = true;
            }
        }
        signal = signals.next() => {
            tracing::warn!(signal, "second signal, ending at once");
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Drained,
    Failed,
}

fn spawn<F, Fut, E>(
    process: &Arc<Process>,
    start: F,
    ended: &UnboundedSender<Ending>,
) -> io::Result<()>
where
    F: Fn(Worker) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Listening>, E>>,
    E: Error,
{
    let start = Arc::new(start);
    let count = process.workers;
    for index in 0..count {
        let (process, start, ended) = (process.clone(), start.clone(), ended.clone());
        let work = move || {
            let worker = Worker { index, count };
            let result = catch_unwind(AssertUnwindSafe(|| work(&process, worker, &*start)));
            let ending = match result {
                Ok(Ok(())) => Ending::Drained,
                Ok(Err(error)) => {
                    tracing::error!(worker = index, error, "a worker failed");
                    Ending::Failed
                }
                Err(_panic) => Ending::Failed,
            };
            // Nobody waits any more after a second signal.
            let _ = ended.send(ending);
        };
        thread::Builder::new().name(format!("worker-{index}")).spawn(work)?;
    }
    Ok(())
}

/// The life of one worker. Errors are told as text, since theirs need not leave the thread.
fn work<F, Fut, E>(process: &Process, worker: Worker, start: &F) -> Result<(), String>
where
    F: Fn(Worker) -> Fut,
    Fut: Future<Output = Result<Vec<Listening>, E>>,
    E: Error,
{
    let runtime = runtime().map_err(|error| describe(&error))?;
    let result = runtime.block_on(async {
        let started = tokio::select! {
            started = start(worker) => started.map_err(|error| describe(&error))?,
            () = process.stop.cancelled() => return Ok(()),
        };
        let (mut servers, mut boards) = (Vec::new(), Vec::new());
        for (place, Listening { address, service }) in started.into_iter().enumerate() {
            let listener =
                process.ports.listen(place, address).map_err(|error| describe(&error))?;
            let address = listener.socket.local_addr().map_err(|error| describe(&error))?;
            if worker.is_first() {
                tracing::info!(service = service.name, %address, workers = worker.count, "listening");
            }
            let board = process.board(place, service.name, worker.count);
            let stop = process.stop.cancelled();
            servers.push(serve_in(worker, listener, service, &process.common, board.clone(), stop));
            boards.push(board);
        }
        tokio::select! {
            served = try_join_all(servers) => served.map(drop).map_err(|error| describe(&error)),
            ended = process.answer_probes(worker, &boards) => ended,
        }
    });
    runtime.shutdown_timeout(RUNTIME_STOP);
    result
}

/// A runtime on the current thread: half the CPU per call of a shared one, since what drives the
/// connections then runs once for a batch of messages.
fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Returns an error with its causes.
fn describe(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

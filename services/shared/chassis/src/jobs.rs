//! Background jobs beside the calls: periodic ones, which log only the transitions between success
//! and failure, and CPU-bound ones on dedicated threads.

use std::{error::Error, io, thread, time::Duration};

use futures::future::BoxFuture;
use opentelemetry::{KeyValue, global, metrics::BoundCounter};
use tokio::{
    runtime::Builder,
    sync::oneshot,
    time::{Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Niceness of the thread: about a tenth of a worker's share of a busy core, so that it still makes
/// progress.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// A periodic job that runs forever:
///
/// ```no_run
/// # use std::{io, time::Duration};
/// # async fn sweep() -> Result<(), io::Error> { Ok(()) }
/// # async fn job() {
/// let mut job = microblog_chassis::PeriodicJob::new("sweeping", Duration::from_secs(1));
/// loop {
///     job.tick().await;
///     job.record(sweep().await);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct PeriodicJob {
    job: &'static str,
    ticks: Interval,
    is_failing: bool,
    /// Counters of successful and failed runs.
    ended: [BoundCounter<u64>; 2],
}

impl PeriodicJob {
    /// Returns a job with a name for logs and metrics, which runs once per `period`. Must be called
    /// inside a runtime, with a period above zero.
    pub fn new(job: &'static str, period: Duration) -> Self {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let runs = global::meter("microblog-chassis")
            .u64_counter("microblog.job.runs")
            .with_unit("{run}")
            .with_description("Runs of periodic jobs, by outcome")
            .build();
        let ended = ["done", "failed"].map(|outcome| {
            let name = KeyValue::new("microblog.job.name", job);
            let ended = runs.bind(&[name, KeyValue::new("outcome", outcome)]);
            // Exported from the start: `rate()` cannot see the increase before the first sample.
            ended.add(0);
            ended
        });
        Self { job, ticks, is_failing: false, ended }
    }

    /// Waits for the next run. The first one is immediate. A run longer than the period delays the
    /// next; missed ticks are skipped.
    pub async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Records the result of a run. Logs the error with its sources at the first failure.
    pub fn record(&mut self, result: Result<(), impl Error + 'static>) {
        self.ended[usize::from(result.is_err())].add(1);
        match &result {
            Ok(()) if self.is_failing => tracing::info!(job = self.job, "job recovered"),
            Err(error) if !self.is_failing => {
                let error = error as &dyn Error;
                tracing::warn!(job = self.job, error, "job failed");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_failing = result.is_err();
    }
}

/// Runs the work once per `period`, forever, as a [`PeriodicJob`].
pub async fn run_periodically<E: Error + 'static>(
    job: &'static str,
    period: Duration,
    mut work: impl AsyncFnMut() -> Result<(), E>,
) {
    let mut job = PeriodicJob::new(job, period);
    loop {
        job.tick().await;
        job.record(work().await);
    }
}

/// Returns a job that runs the work on a dedicated, named thread with its own runtime: one of
/// [`Service::background`](crate::Service::background). For CPU-bound work, which would delay every
/// call in a worker's runtime. The thread has a lower priority than the workers. It starts at the first poll. The
/// job ends when the work completes or panics. Dropping the job cancels the work at its next
/// `.await`.
///
/// The work must not use resources of another runtime, such as a worker's connections. It has no
/// call context, and acts as `Identity::Anonymous`.
pub fn run_on_dedicated_thread(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let (ended, end) = oneshot::channel::<()>();
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropped when the thread ends, also by a panic.
            let _ended = ended;
            yield_to_others(name);
            let done = run(stop.run_until_cancelled_owned(work));
            if let Err(error) = done {
                tracing::error!(job = name, %error, "cannot start a runtime");
            }
        });
        match spawned {
            // Nothing is sent: the receiver resolves when the thread drops the sender.
            Ok(_thread) => drop(end.await),
            Err(error) => tracing::error!(job = name, %error, "cannot start a thread"),
        }
    })
}

// On Linux, niceness is per thread, and inherited by child threads.
#[cfg(target_os = "linux")]
fn yield_to_others(name: &str) {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::warn!(job = name, %error, "cannot lower the priority of a thread");
    }
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others(_name: &str) {}

fn run(work: impl Future) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work);
    runtime.shutdown_background();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{Arc, Mutex},
        time::Instant,
    };

    use tokio::time::{sleep, timeout};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn logs_only_transitions_between_success_and_failure() {
        let (written, log) = (Written::default(), tracing_subscriber::fmt().without_time());
        let writer = written.clone();
        let log = log.with_target(false).with_ansi(false).with_writer(move || writer.clone());
        let mut job = PeriodicJob::new("testing", Duration::from_secs(1));
        tracing::subscriber::with_default(log.finish(), || {
            for works in [true, false, false, true, true, false] {
                job.record(if works { Ok(()) } else { Err(io::Error::other("broken")) });
            }
        });
        let lines = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        let failing = "WARN job failed job=\"testing\" error=broken";
        let works = "INFO job recovered job=\"testing\"";
        assert_eq!(lines, [failing, works, failing]);
    }

    #[tokio::test]
    async fn first_run_is_immediate_and_the_next_one_period_later() {
        let period = Duration::from_millis(50);
        let begin = Instant::now();
        let mut job = PeriodicJob::new("testing", period);
        let mut long = PeriodicJob::new("testing", Duration::from_secs(3600));
        long.tick().await;
        job.tick().await;
        job.tick().await;
        assert!(begin.elapsed() >= period);
    }

    #[tokio::test]
    async fn work_runs_on_a_named_thread() {
        let (sender, received) = oneshot::channel();
        let work = async move {
            sleep(Duration::from_millis(1)).await;
            sender.send(thread::current().name().map(str::to_owned)).unwrap();
        };
        timeout(TIMEOUT, run_on_dedicated_thread("test-thread", work))
            .await
            .expect("the job ends with the work");
        assert_eq!(received.await.unwrap().as_deref(), Some("test-thread"));
    }

    #[tokio::test]
    async fn job_ends_when_the_work_panics() {
        let work = async { panic!("a bug") };
        timeout(TIMEOUT, run_on_dedicated_thread("test-thread", work)).await.expect("the job ends");
    }

    #[tokio::test]
    async fn work_is_cancelled_when_the_job_is_dropped() {
        let (start, started) = oneshot::channel();
        let (held, released) = oneshot::channel::<()>();
        let work = async move {
            let _held = held;
            start.send(()).unwrap();
            pending().await
        };
        let job = tokio::spawn(run_on_dedicated_thread("test-thread", work));
        started.await.unwrap();
        job.abort();
        let end = timeout(TIMEOUT, released).await.expect("the work ends");
        assert!(end.is_err(), "nothing is sent");
    }
}

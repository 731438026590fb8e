//! Periodic jobs beside the calls. Logs only the transitions between success and failure.

use std::{error::Error, time::Duration};

use opentelemetry::{KeyValue, global, metrics::BoundCounter};
use tokio::time::{Interval, MissedTickBehavior};

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
        let rounds = global::meter("microblog-chassis")
            .u64_counter("microblog.job.rounds")
            .with_unit("{round}")
            .with_description("Runs of periodic jobs, by outcome")
            .build();
        let ended = ["done", "failed"].map(|outcome| {
            let name = KeyValue::new("microblog.job.name", job);
            let ended = rounds.bind(&[name, KeyValue::new("outcome", outcome)]);
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

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
        time::Instant,
    };

    use super::*;

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
}

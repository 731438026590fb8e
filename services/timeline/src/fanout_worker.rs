//! Fan-out workers: each consumes one fan-out stream. A failed step, or one of a dead worker, stays
//! among the pending entries until a worker in any replica claims it.
//!
//! **Claims.** While a worker runs a step, it resets the step's idle time every `RENEWAL_PERIOD`. A
//! worker that finds a step idle for `ABANDONED_AFTER` claims it if it is still idle when the claim
//! runs. The second check matters after a stall of Redis: every pending step is idle until Redis
//! has read the renewals sent meanwhile. A wrong claim is harmless: a home timeline takes
//! a post once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use microblog_chassis::{PeriodicJob, message};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use crate::{
    error::Error,
    fanout_on_write::Fanout,
    home_cache,
    job::{Job, QUEUE},
    keys,
    metrics::{Metrics, Outcome},
    store::{ABANDONED_AFTER, RENEWAL_PERIOD, STEPS_MAX, Step, Store},
};

/// How many failing steps are remembered as logged.
const LOGGED_MAX: usize = 10_000;

/// The interval between claims of abandoned steps. Also the timeout of a blocking read.
const CLAIM_PERIOD: Duration = Duration::from_millis(300);

/// The time in which an idle worker claims and completes the step of a dead worker, which
/// guarantee 3 of `services/guarantees.md` states.
const RECOVERY_MAX: Duration = Duration::from_secs(2);
const _: () =
    assert!(ABANDONED_AFTER.as_millis() + 2 * CLAIM_PERIOD.as_millis() < RECOVERY_MAX.as_millis());

/// How long no step may fail before the job counts as healthy. Longer than a failed step waits for
/// its retry.
const HEALTHY_AFTER: Duration = Duration::from_secs(3);
const _: () = assert!(RECOVERY_MAX.as_millis() < HEALTHY_AFTER.as_millis());

/// The delay between retries during an outage of Redis or the relation service.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// The timeout of a step, with the wait for a permit.
const STEP_MAX: Duration = Duration::from_secs(8);

/// The most concurrent steps in a worker thread, over all its streams. Bounds the load that steps
/// put on Redis at once.
const STEPS_AT_ONCE: usize = 4;

/// The state that the workers of a thread share.
#[derive(Clone)]
pub(crate) struct FanoutWorkers {
    store: Store,
    fanout: Fanout,
    permits: Arc<Semaphore>,
    /// Steps of which a failure was logged.
    logged: Arc<Mutex<HashSet<String>>>,
    metrics: Metrics,
}

impl FanoutWorkers {
    pub(crate) fn new(store: Store, fanout: Fanout, metrics: Metrics) -> Self {
        let permits = Arc::new(Semaphore::new(STEPS_AT_ONCE));
        Self { store, fanout, permits, logged: Arc::default(), metrics }
    }

    /// Consumes a stream; never returns.
    pub(crate) async fn run(self, number: u16) {
        let stream = keys::fanout(number);
        let mut job = PeriodicJob::new("fanning posts out", RETRY_DELAY);
        let mut was_consumed = false;
        loop {
            // Returns only on an error.
            job.tick().await;
            let Err(error) = self.consume(&stream, &mut was_consumed, &mut job).await;
            job.record(Err(error));
        }
    }

    async fn consume(
        &self,
        stream: &str,
        was_consumed: &mut bool,
        job: &mut PeriodicJob,
    ) -> Result<std::convert::Infallible, Error> {
        // Redis has lost the jobs. Their posts are in user timelines, or in the post service.
        if *was_consumed && !self.store.has_group(stream).await? {
            self.store.record_unpushed(home_cache::BUILD_MAX).await?;
        }
        let mut connection = self.store.listen(stream).await?;
        *was_consumed = true;
        let mut next_claim = Instant::now();
        let mut healthy_at = Instant::now() + HEALTHY_AFTER;
        loop {
            if Instant::now() >= next_claim {
                // Steps that fail again and again, since a node of a cluster is full or away, must not
                // keep new ones waiting.
                if let Err(error) = self.claim_abandoned(stream).await {
                    job.record(Err(error));
                    healthy_at = Instant::now() + HEALTHY_AFTER;
                }
                next_claim = Instant::now() + CLAIM_PERIOD;
            }
            let steps = self.store.next_steps(&mut connection, stream, CLAIM_PERIOD).await?;
            self.process(steps, false).await?;
            // Not earlier: without due steps, no failure shows.
            if Instant::now() >= healthy_at {
                job.record(Ok::<(), Error>(()));
                healthy_at = Instant::now() + HEALTHY_AFTER;
            }
        }
    }

    async fn claim_abandoned(&self, stream: &str) -> Result<(), Error> {
        let mut cursor = None;
        loop {
            let (idle, next) = self.store.idle_steps(stream, cursor.as_deref()).await?;
            for ids in idle.chunks(STEPS_MAX) {
                let steps = self.store.claim(stream, ids).await?;
                self.process(steps, true).await?;
            }
            // To the last page: steps that never succeed must not hide those behind them.
            match next {
                Some(_) => cursor = next,
                None => return Ok(()),
            }
        }
    }

    // Runs all steps to completion. One failed step does not block the others, unless the error is
    // an outage, which affects the next ones too.
    async fn process(&self, steps: Vec<Step>, is_repeat: bool) -> Result<(), Error> {
        let done = join_all(steps.iter().map(|step| self.step(step, is_repeat))).await;
        done.into_iter().filter(|done| done.as_ref().is_err_and(Error::is_outage)).collect()
    }

    async fn step(&self, step: &Step, is_repeat: bool) -> Result<(), Error> {
        let Some(job) = &step.job else {
            if self.is_first_failure(step) {
                tracing::error!(?step, "unsupported fan-out job stays pending");
            }
            return Ok(());
        };
        let begun = Instant::now();
        let timed_out = |_| {
            let status = Status::deadline_exceeded("fan-out step timed out");
            Err(Error::Relation(status))
        };
        let done = async {
            tokio::select! {
                done = timeout(STEP_MAX, self.advance(step, job)) => {
                    done.unwrap_or_else(timed_out)
                }
                never = self.renew_claim(step) => never,
            }
        };
        let done = message::process(QUEUE, step.id(), &job.traceparent, done).await;
        let outcome = if done.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.metrics.stepped(job.kind(), outcome, is_repeat, begun.elapsed());
        if let Err(failure) = &done {
            let error = failure as &dyn std::error::Error;
            // `PeriodicJob` logs an outage.
            if failure.is_outage() || !self.is_first_failure(step) {
                tracing::debug!(?step, error, "fan-out step failed");
            } else {
                tracing::error!(?step, error, "fan-out step failed, will be retried");
            }
        }
        done
    }

    // Returns whether no failure of this step was logged before: it is retried every second or so.
    fn is_first_failure(&self, step: &Step) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= LOGGED_MAX {
            logged.clear();
        }
        logged.insert(step.key())
    }

    // Renews the claim on a step until it is dropped. Ignores errors: the step then fails too, or
    // another worker claims it.
    async fn renew_claim<T>(&self, step: &Step) -> T {
        loop {
            sleep(RENEWAL_PERIOD).await;
            let _ = self.store.renew(step).await;
        }
    }

    async fn advance(&self, step: &Step, job: &Job) -> Result<(), Error> {
        // Never closed.
        let _permit = self.permits.acquire().await;
        let rest = match self.fanout.step(job).await {
            // The relation service does not accept the page token any more.
            Err(Error::Relation(status)) if status.code() == Code::InvalidArgument => {
                Some(job.restarted())
            }
            rest => rest?,
        };
        self.store.advance(step, rest.as_ref()).await?;
        if rest.is_none() {
            self.metrics.finished(job.kind(), job.age());
        }
        Ok(())
    }
}

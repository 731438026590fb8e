//! Workers: each waits for the steps of one fan-out stream, and does them. Steps that fail, and those
//! of a process that died, stay pending in the stream until a worker claims them, in this replica or
//! in another one.
//!
//! **Claims.** While a worker does a step, it resets the step's idle time every `RENEWAL_PERIOD`. A
//! worker that finds a step idle for `ABANDONED_AFTER` claims it, if it is still idle when the answer
//! has come: after Redis has stood still, every pending step is idle until the renewals are read that
//! were sent meanwhile. A wrong claim does no harm: the step is done twice, the second time with a
//! check for duplicates, and readers show an entry once.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use microblog_chassis::{PeriodicJob, message};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use crate::{
    error::Error,
    fanout::Fanout,
    job::{Job, QUEUE},
    keys,
    metrics::{Metrics, Outcome},
    store::{ABANDONED_AFTER, RENEWAL_PERIOD, STEPS_MAX, Step, Store},
};

/// How often a worker looks for abandoned steps: so long does it block in a read, too.
const LOOK_PERIOD: Duration = Duration::from_millis(300);

/// Within this time, an idle worker has claimed a step whose worker died, and done it:
/// guarantee 3 of `services/guarantees.md`.
const CLAIMED_WITHIN: Duration = Duration::from_secs(2);
const _: () =
    assert!(ABANDONED_AFTER.as_millis() + 2 * LOOK_PERIOD.as_millis() < CLAIMED_WITHIN.as_millis());

/// For how long nothing must fail before the job counts as working again: longer than a step that
/// failed waits for its next attempt.
const CALM: Duration = Duration::from_secs(3);
const _: () = assert!(CLAIMED_WITHIN.as_millis() < CALM.as_millis());

/// Between two attempts while the store or the relation service is away.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest that one step may take, with the wait for its turn.
const STEP_MAX: Duration = Duration::from_secs(8);

/// How many steps a process's worker thread does at once, of all its streams: together, what each
/// has the store do at once must not come near its time-out.
const STEPS_AT_ONCE: usize = 4;

/// What the workers of a thread share.
#[derive(Clone)]
pub(crate) struct Workers {
    store: Store,
    fanout: Fanout,
    room: Arc<Semaphore>,
    metrics: Metrics,
}

impl Workers {
    pub(crate) fn new(store: Store, fanout: Fanout, metrics: Metrics) -> Self {
        Self { store, fanout, room: Arc::new(Semaphore::new(STEPS_AT_ONCE)), metrics }
    }

    /// Does the steps of a stream, for ever.
    pub(crate) async fn work(self, number: u16) {
        let stream = keys::fanout(number);
        let mut job = PeriodicJob::new("fanning posts out", PAUSE);
        loop {
            // Ends only with an error.
            job.tick().await;
            let Err(error) = self.listen(&stream, &mut job).await;
            job.record(Err(error));
        }
    }

    async fn listen(
        &self,
        stream: &str,
        job: &mut PeriodicJob,
    ) -> Result<std::convert::Infallible, Error> {
        let mut connection = self.store.listen(stream).await?;
        let mut next_look = Instant::now();
        let mut calm_at = Instant::now() + CALM;
        loop {
            if Instant::now() >= next_look {
                self.claim_abandoned(stream).await?;
                next_look = Instant::now() + LOOK_PERIOD;
            }
            let steps = self.store.next_steps(&mut connection, stream, LOOK_PERIOD).await?;
            self.work_off(steps, false).await?;
            // Not before: while no step is due, nothing fails.
            if Instant::now() >= calm_at {
                job.record(Ok::<(), Error>(()));
                calm_at = Instant::now() + CALM;
            }
        }
    }

    async fn claim_abandoned(&self, stream: &str) -> Result<(), Error> {
        let idle = self.store.idle_steps(stream).await?;
        for ids in idle.chunks(STEPS_MAX) {
            let steps = self.store.claim(stream, ids).await?;
            self.work_off(steps, true).await?;
        }
        Ok(())
    }

    // All to their end: one that fails keeps no other waiting, unless it is an outage, which the
    // next ones would meet as well.
    async fn work_off(&self, steps: Vec<Step>, is_repeat: bool) -> Result<(), Error> {
        let done = join_all(steps.iter().map(|step| self.step(step, is_repeat))).await;
        done.into_iter().filter(|done| done.as_ref().is_err_and(Error::is_outage)).collect()
    }

    async fn step(&self, step: &Step, is_repeat: bool) -> Result<(), Error> {
        let Some(job) = &step.job else {
            // Once, and not whenever it is claimed.
            if !is_repeat {
                tracing::error!(?step, "a job cannot be understood, and stays where it is");
            }
            return Ok(());
        };
        let begun = Instant::now();
        let late = |_| {
            let status = Status::deadline_exceeded("a step took too long");
            Err(Error::Relation(status))
        };
        let done = async {
            tokio::select! {
                done = timeout(STEP_MAX, self.advance(step, job, is_repeat)) => {
                    done.unwrap_or_else(late)
                }
                never = self.keep(step) => never,
            }
        };
        let done = message::process(QUEUE, step.id(), &job.traceparent, done).await;
        let outcome = if done.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.metrics.stepped(job.kind(), outcome, is_repeat, begun.elapsed());
        if let Err(failure) = &done {
            let error = failure as &dyn std::error::Error;
            // An outage is logged for the job as a whole; anything else once, and not at each attempt.
            if failure.is_outage() || is_repeat {
                tracing::debug!(?step, error, "fan-out step failed");
            } else {
                tracing::error!(?step, error, "fan-out step failed, is retried until it succeeds");
            }
        }
        done
    }

    // Renews the claim on a step until it is dropped. An error is not handled: the step then meets it
    // as well, or another worker claims the step.
    async fn keep<T>(&self, step: &Step) -> T {
        loop {
            sleep(RENEWAL_PERIOD).await;
            let _ = self.store.renew(step).await;
        }
    }

    async fn advance(&self, step: &Step, job: &Job, is_repeat: bool) -> Result<(), Error> {
        // Never closed.
        let _place = self.room.acquire().await;
        let rest = match self.fanout.step(job, is_repeat).await {
            // A place in the list of followers that is not known there any more.
            Err(Error::Relation(status)) if status.code() == Code::InvalidArgument => {
                Some(job.begun_again())
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

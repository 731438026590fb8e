//! Workers: each waits for the steps of one fan-out stream, and does them. Those that fail stay in
//! the stream and are taken up again, here or in another replica.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use microblog_chassis::{Rounds, message};
use microblog_keyspace::Exclusive;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tonic::{Code, Status};

use crate::{
    error::Error,
    fanout::Fanout,
    job::{Job, QUEUE},
    keys,
    metrics::{Metrics, Outcome},
    store::{ABANDONED_AFTER, Step, Store},
};

/// How long a worker waits for a step before it looks for abandoned ones.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a worker looks for steps that another one, or itself, read and did not do.
const CLAIM_PERIOD: Duration = Duration::from_secs(3);

/// Between two attempts while the store or the relation service is away.
const PAUSE: Duration = Duration::from_millis(500);

/// For one step: it must have ended when another worker takes it up.
const STEP_MAX: Duration = Duration::from_secs(8);
const _: () = assert!(STEP_MAX.as_secs() < ABANDONED_AFTER.as_secs());

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
        let mut rounds = Rounds::new("fanning posts out", PAUSE);
        loop {
            // Ends only with an error.
            rounds.next().await;
            let Err(error) = self.listen(&stream, &mut rounds).await;
            rounds.note(Err(error));
        }
    }

    async fn listen(
        &self,
        stream: &str,
        rounds: &mut Rounds,
    ) -> Result<std::convert::Infallible, Error> {
        let mut connection = self.store.listen(stream).await?;
        loop {
            let until = Instant::now() + CLAIM_PERIOD;
            self.claim(stream).await?;
            while Instant::now() < until {
                self.wait(&mut connection, stream).await?;
            }
            // Not before: as long as nothing waits, nothing fails.
            rounds.note(Ok::<(), Error>(()));
        }
    }

    async fn wait(&self, connection: &mut Exclusive, stream: &str) -> Result<(), Error> {
        let steps = self.store.next_steps(connection, stream, PATIENCE).await?;
        self.work_off(steps, false).await
    }

    async fn claim(&self, stream: &str) -> Result<(), Error> {
        let mut from = Some("0-0".to_owned());
        while let Some(place) = from {
            let (steps, next) = self.store.abandoned_steps(stream, &place).await?;
            self.work_off(steps, true).await?;
            from = next;
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
        // With the wait for a place: after that, somebody else may have taken it up.
        let done = timeout(STEP_MAX, self.advance(step, job, is_repeat));
        let late = |_| {
            let status = Status::deadline_exceeded("a step took too long");
            Err(Error::Relation(status))
        };
        let done = async { done.await.unwrap_or_else(late) };
        let done = message::process(QUEUE, step.id(), &job.traceparent, done).await;
        let outcome = if done.is_ok() { Outcome::Done } else { Outcome::Failed };
        self.metrics.stepped(job.kind(), outcome, is_repeat, begun.elapsed());
        if let Err(failure) = &done {
            let error = failure as &dyn std::error::Error;
            if failure.is_outage() {
                tracing::debug!(?step, error, "a step of a job is left for another time");
            } else {
                tracing::error!(
                    ?step,
                    error,
                    "a step of a job fails, and is left for another time"
                );
            }
        }
        done
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

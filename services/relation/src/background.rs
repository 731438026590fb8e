//! The jobs that run beside the calls, in one worker of every replica.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Interval, MissedTickBehavior};

use crate::{
    error::Error,
    forget,
    store::Store,
    sweeper::{PATIENCE, Sweeper},
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(store: &Store) -> Vec<BoxFuture<'static, ()>> {
    vec![Box::pin(sweep(store.clone())), Box::pin(forget(store.clone()))]
}

async fn sweep(store: Store) {
    let mut sweeper = Sweeper::new(store);
    let mut rounds = Rounds::new("sweeping");
    loop {
        rounds.next().await;
        rounds.note(sweeper.sweep(PATIENCE).await);
    }
}

async fn forget(store: Store) {
    let mut rounds = Rounds::new("forgetting");
    loop {
        rounds.next().await;
        rounds.note(forget::forget_marked(&store).await);
    }
}

/// The rounds of a job. A failure is logged when it begins and when it ends, not each time.
struct Rounds {
    job: &'static str,
    ticks: Interval,
    is_failing: bool,
}

impl Rounds {
    fn new(job: &'static str) -> Self {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { job, ticks, is_failing: false }
    }

    async fn next(&mut self) {
        self.ticks.tick().await;
    }

    fn note(&mut self, result: Result<(), Error>) {
        match &result {
            Ok(()) if self.is_failing => tracing::info!(job = self.job, "the job works again"),
            Err(error) if !self.is_failing => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(job = self.job, error, "the job cannot work");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_failing = result.is_err();
    }
}

//! The jobs that run beside the calls, in one worker of every replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::PeriodicJob;

use crate::{
    forget,
    store::Store,
    sweeper::{PATIENCE, Sweeper},
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// How often the clocks of the partitions are measured.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(store: &Store) -> Vec<BoxFuture<'static, ()>> {
    vec![
        Box::pin(sweep(store.clone())),
        Box::pin(forget(store.clone())),
        Box::pin(measure_clocks(store.clone())),
    ]
}

async fn measure_clocks(store: Store) {
    let mut job = PeriodicJob::new("measuring the clocks", CLOCKS_PERIOD);
    loop {
        job.tick().await;
        job.record(store.measure_clocks().await);
    }
}

async fn sweep(store: Store) {
    let mut sweeper = Sweeper::new(store);
    let mut job = PeriodicJob::new("sweeping", PERIOD);
    loop {
        job.tick().await;
        job.record(sweeper.sweep(PATIENCE).await);
    }
}

async fn forget(store: Store) {
    let mut job = PeriodicJob::new("forgetting", PERIOD);
    loop {
        job.tick().await;
        job.record(forget::forget_marked(&store).await);
    }
}

//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::PeriodicJob;
use microblog_record::{Database, Recorder};

use crate::{
    forget,
    record::{self, GraphTables},
    store::Store,
    sweeper::{STALE_AFTER, Sweeper},
};

/// The period of the jobs: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(store: &Store, database: Option<Database>) -> Vec<BoxFuture<'static, ()>> {
    let mut jobs: Vec<BoxFuture<'static, ()>> = vec![
        Box::pin(sweep(store.clone())),
        Box::pin(forget(store.clone())),
        Box::pin(measure_clocks(store.clone())),
    ];
    let recorder = database.map(|database| record::recorder(store.clone(), database));
    jobs.extend(recorder.map(|recorder| Box::pin(record_all(recorder)) as _));
    jobs
}

async fn record_all(recorder: Recorder<GraphTables>) {
    let mut job = PeriodicJob::new("recording", PERIOD);
    loop {
        job.tick().await;
        job.record(recorder.record_all().await);
    }
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
        job.record(sweeper.sweep(STALE_AFTER).await);
    }
}

async fn forget(store: Store) {
    let mut job = PeriodicJob::new("forgetting", PERIOD);
    loop {
        job.tick().await;
        job.record(forget::forget_marked(&store).await);
    }
}

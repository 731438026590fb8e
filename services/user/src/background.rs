//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::PeriodicJob;

use crate::{store::Store, sweeper::Sweeper};

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(sweeper: Sweeper, store: Store) -> Vec<BoxFuture<'static, ()>> {
    vec![Box::pin(sweep(sweeper)), Box::pin(measure_clocks(store))]
}

async fn measure_clocks(store: Store) {
    let mut job = PeriodicJob::new("measuring the clocks", CLOCKS_PERIOD);
    loop {
        job.tick().await;
        job.record(store.measure_clocks().await);
    }
}

async fn sweep(mut sweeper: Sweeper) {
    let mut job = PeriodicJob::new("sweeping registrations", sweeper.period());
    loop {
        job.tick().await;
        job.record(sweeper.sweep().await.map(|_| ()));
    }
}

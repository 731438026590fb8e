//! Background jobs. They run in one worker thread of each replica.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_record::Recorder;

use crate::{
    forget,
    record::GraphTables,
    store::Store,
    sweeper::{STALE_AFTER, Sweeper},
};

/// The period of the jobs: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(
    store: &Store,
    recorder: Option<&Arc<Recorder<GraphTables>>>,
) -> Vec<BoxFuture<'static, ()>> {
    let store = store.ignoring_closed();
    let (mut sweeper, marked, clocks) = (Sweeper::new(store.clone()), store.clone(), store.clone());
    let sweep = async move || sweeper.sweep(STALE_AFTER).await;
    let forget = async move || forget::forget_marked(&marked).await;
    let measure = async move || clocks.measure_clocks().await;
    let mut jobs: Vec<BoxFuture<'static, ()>> = vec![
        Box::pin(run_periodically("sweeping", PERIOD, sweep)),
        Box::pin(run_periodically("forgetting", PERIOD, forget)),
        Box::pin(run_periodically("measuring the clocks", CLOCKS_PERIOD, measure)),
    ];
    jobs.extend(recorder.iter().flat_map(|recorder| recorder.jobs()));
    jobs
}

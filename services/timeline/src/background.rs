//! Background jobs: the fan-out workers and the backlog gauge. The streams are divided among the
//! worker threads of each replica.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{PeriodicJob, Worker};

use crate::{fanout_worker::FanoutWorkers, keys::STREAMS, metrics::Metrics, store::Store};

/// The period of the backlog measurement.
const MEASURE_PERIOD: Duration = Duration::from_secs(5);

/// Returns the background jobs of a thread. They never complete.
pub(crate) fn jobs(
    store: &Store,
    workers: &FanoutWorkers,
    metrics: &Metrics,
    worker: Worker,
) -> Vec<BoxFuture<'static, ()>> {
    let is_ours = |stream: &u16| usize::from(*stream) % worker.count == worker.index;
    let streams = (0..STREAMS).filter(is_ours);
    let mut jobs: Vec<_> = streams.map(|stream| workers.clone().run(stream).boxed()).collect();
    if worker.is_first() {
        jobs.push(measure(store.clone(), metrics.clone()).boxed());
    }
    jobs
}

async fn measure(store: Store, metrics: Metrics) {
    let mut job = PeriodicJob::new("measuring the fan-out streams", MEASURE_PERIOD);
    loop {
        job.tick().await;
        let backlog = store.backlog().await;
        job.record(backlog.map(|backlog| {
            metrics.queued(backlog.depth, backlog.age().as_secs_f64());
        }));
    }
}

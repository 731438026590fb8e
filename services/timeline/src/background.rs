//! The jobs that run beside the calls: workers in every thread of every replica, each thread with
//! its share of the streams, and one look at the queues.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{PeriodicJob, Worker};

use crate::{keys::STREAMS, metrics::Metrics, store::Store, worker::Workers};

/// How often the queues are measured.
const MEASURE_PERIOD: Duration = Duration::from_secs(5);

/// Returns the jobs of a thread, each running for ever.
pub(crate) fn jobs(
    store: &Store,
    workers: &Workers,
    metrics: &Metrics,
    worker: Worker,
) -> Vec<BoxFuture<'static, ()>> {
    let is_ours = |stream: &u16| usize::from(*stream) % worker.count == worker.index;
    let streams = (0..STREAMS).filter(is_ours);
    let mut jobs: Vec<_> = streams.map(|stream| workers.clone().work(stream).boxed()).collect();
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

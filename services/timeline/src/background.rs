//! Background jobs: the fan-out workers, the repair after failovers and the backlog gauge. The streams
//! are divided among the worker threads of each replica.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{Worker, run_periodically};
use microblog_keyspace as keyspace;

use crate::{
    author_posts::PostLists, failover::FailoverRepair, fanout_worker::FanoutWorkers, keys::STREAMS,
    metrics::Metrics, store::Store,
};

/// The period of the backlog measurement.
const MEASURE_PERIOD: Duration = Duration::from_secs(5);

/// Returns the background jobs of a thread. They never complete.
pub(crate) fn jobs(
    store: &Store,
    posts: Option<PostLists>,
    workers: &FanoutWorkers,
    metrics: &Metrics,
    worker: Worker,
) -> Vec<BoxFuture<'static, ()>> {
    let is_ours = |stream: &u16| usize::from(*stream) % worker.count == worker.index;
    let streams = (0..STREAMS).filter(is_ours);
    let mut jobs: Vec<_> = streams.map(|stream| workers.clone().run(stream).boxed()).collect();
    if worker.is_first() {
        jobs.push(FailoverRepair::new(store.clone(), posts).run().boxed());
        let (store, metrics) = (store.clone(), metrics.clone());
        let measure = async move || {
            let backlog = store.backlog().await?;
            metrics.queued(backlog.depth, backlog.age().as_secs_f64());
            Ok::<_, keyspace::Error>(())
        };
        jobs.push(
            run_periodically("measuring the fan-out streams", MEASURE_PERIOD, measure).boxed(),
        );
    }
    jobs
}

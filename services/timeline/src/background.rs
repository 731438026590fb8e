//! The jobs that run beside the calls: workers in every thread of every replica, each thread with
//! its share of the streams, and one look at the queues.

use std::time::{Duration, SystemTime};

use futures::{
    FutureExt as _,
    future::{BoxFuture, try_join_all},
};
use microblog_chassis::{Rounds, Worker};

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
    let mut rounds = Rounds::new("measuring the fan-out streams", MEASURE_PERIOD);
    loop {
        rounds.next().await;
        let queues = try_join_all((0..STREAMS).map(|stream| store.queue(stream))).await;
        rounds.note(queues.map(|queues| {
            let depth = queues.iter().map(|queue| queue.depth).sum();
            let oldest = queues.iter().filter_map(|queue| queue.oldest_ms).min();
            metrics.queued(depth, oldest.map_or(0.0, seconds_since));
        }));
    }
}

fn seconds_since(unix_ms: u64) -> f64 {
    let then = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
    SystemTime::now().duration_since(then).unwrap_or_default().as_secs_f64()
}

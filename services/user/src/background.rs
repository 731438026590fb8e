//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;

use crate::{store::Store, sweeper::Sweeper};

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(mut sweeper: Sweeper, store: Store) -> Vec<BoxFuture<'static, ()>> {
    let period = sweeper.period();
    let sweep = async move || sweeper.sweep().await.map(|_| ());
    let measure = async move || store.measure_clocks().await;
    vec![
        Box::pin(run_periodically("sweeping registrations", period, sweep)),
        Box::pin(run_periodically("measuring the clocks", CLOCKS_PERIOD, measure)),
    ]
}

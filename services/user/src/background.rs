//! Background jobs. They run in one worker thread of each replica.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_record::Recorder;

use crate::{accounts::Accounts, record::AccountTables, sweeper::Sweeper};

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(
    accounts: &Accounts,
    write_budget: Duration,
    recorder: Option<&Arc<Recorder<AccountTables>>>,
) -> Vec<BoxFuture<'static, ()>> {
    let accounts = accounts.ignoring_closed();
    let mut sweeper = Sweeper::new(accounts.clone(), write_budget);
    let (store, period) = (accounts.store, sweeper.period());
    let sweep = async move || sweeper.sweep().await.map(|_| ());
    let measure = async move || store.measure_clocks().await;
    let mut jobs: Vec<BoxFuture<'static, ()>> = vec![
        Box::pin(run_periodically("sweeping registrations", period, sweep)),
        Box::pin(run_periodically("measuring the clocks", CLOCKS_PERIOD, measure)),
    ];
    jobs.extend(recorder.iter().flat_map(|recorder| recorder.jobs()));
    jobs
}

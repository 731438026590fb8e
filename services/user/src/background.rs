//! Background jobs. They run in one worker thread of each replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::run_periodically;
use microblog_record::Database;

use crate::{accounts::Accounts, record, sweeper::Sweeper};

/// The period of the recorder: 1,024 small reads in one batch.
const RECORDING_PERIOD: Duration = Duration::from_secs(1);

/// The period of the clock measurement.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Returns the background jobs. They never complete.
pub(crate) fn jobs(
    accounts: &Accounts,
    mut sweeper: Sweeper,
    database: Option<Database>,
) -> Vec<BoxFuture<'static, ()>> {
    let (store, period) = (accounts.store.clone(), sweeper.period());
    let sweep = async move || sweeper.sweep().await.map(|_| ());
    let measure = async move || store.measure_clocks().await;
    let mut jobs: Vec<BoxFuture<'static, ()>> = vec![
        Box::pin(run_periodically("sweeping registrations", period, sweep)),
        Box::pin(run_periodically("measuring the clocks", CLOCKS_PERIOD, measure)),
    ];
    if let Some(database) = database {
        let recorder = record::recorder(accounts.clone(), database);
        let record = async move || recorder.record_all().await;
        jobs.push(Box::pin(run_periodically("recording", RECORDING_PERIOD, record)));
    }
    jobs
}

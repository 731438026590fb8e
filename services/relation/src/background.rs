//! The jobs that run beside the calls, in one worker of every replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::Rounds;

use crate::{
    forget,
    store::Store,
    sweeper::{PATIENCE, Sweeper},
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(store: &Store) -> Vec<BoxFuture<'static, ()>> {
    vec![Box::pin(sweep(store.clone())), Box::pin(forget(store.clone()))]
}

async fn sweep(store: Store) {
    let mut sweeper = Sweeper::new(store);
    let mut rounds = Rounds::new("sweeping", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(sweeper.sweep(PATIENCE).await);
    }
}

async fn forget(store: Store) {
    let mut rounds = Rounds::new("forgetting", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(forget::forget_marked(&store).await);
    }
}

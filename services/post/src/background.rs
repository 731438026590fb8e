//! The jobs that run beside the calls, in one worker of every replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::Rounds;

use crate::{
    delivery::Delivery,
    forget,
    posts::Posts,
    store::Store,
    sweeper::{PATIENCE, Sweeper},
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(store: &Store, delivery: &Delivery) -> Vec<BoxFuture<'static, ()>> {
    let posts = Posts::new(store.clone(), delivery.clone());
    let sweeper = || Sweeper::new(store.clone(), delivery.clone());
    vec![
        Box::pin(tell(sweeper())),
        Box::pin(deliver(sweeper())),
        Box::pin(forget(store.clone(), posts)),
    ]
}

async fn tell(mut sweeper: Sweeper) {
    let mut rounds = Rounds::new("telling of reposts", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(sweeper.tell(PATIENCE).await);
    }
}

async fn deliver(mut sweeper: Sweeper) {
    let mut rounds = Rounds::new("delivering posts", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(sweeper.deliver(PATIENCE).await);
    }
}

async fn forget(store: Store, posts: Posts) {
    let mut rounds = Rounds::new("forgetting", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(forget::forget_marked(&store, &posts).await);
    }
}
